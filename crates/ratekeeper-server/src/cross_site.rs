//! Protection against cross-site requests from browsers.
//!
//! Any web page can make the browser of its visitor post to `http://127.0.0.1:8080/check`. The page can't read the
//! response, but the request would count. Browsers name the origin of such a request: `Origin` in every cross-site
//! POST, and `Sec-Fetch-Site` in every request. A page can't change either. So a request with neither was not sent by a
//! page, and passes: `curl -d` also sends the content type of a form, and means JSON.
//!
//! Forward-auth requests are exempt: these headers belong to the client's request to another server.

use crate::http::{HttpError, RequestHead, excerpt};

/// The most allowed origins.
const MAX_ORIGINS: usize = 256;

/// The origins whose pages may use a server, besides its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedOrigins(Vec<String>);

/// Why a list of origins is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllowedOriginsError {
    /// An entry is not an origin.
    #[error(
        "{0:?} is not an origin: write a scheme and a host, like https://admin.example or http://localhost:3000"
    )]
    NotAnOrigin(String),
    /// The list is too long.
    #[error("more than {MAX_ORIGINS} origins")]
    TooMany,
}

impl AllowedOrigins {
    /// Validates a list of origins.
    ///
    /// # Errors
    /// If an entry is not an origin, or there are too many.
    pub fn new<'a>(
        origins: impl IntoIterator<Item = &'a str>,
    ) -> Result<AllowedOrigins, AllowedOriginsError> {
        let is_origin = |origin: &str| {
            let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b"/?#@\"<>\\*".contains(&byte);
            host.is_some_and(|host| !host.is_empty() && host.bytes().all(is_allowed))
        };
        let parse = |origin: &str| {
            if is_origin(origin) {
                Ok(origin.to_ascii_lowercase())
            } else {
                Err(AllowedOriginsError::NotAnOrigin(origin.to_owned()))
            }
        };
        let origins = origins.into_iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        if origins.len() > MAX_ORIGINS {
            Err(AllowedOriginsError::TooMany)
        } else {
            Ok(AllowedOrigins(origins))
        }
    }

    /// Rejects a browser's request from a page whose origin is neither this server's own nor allowed.
    #[inline]
    pub(crate) fn admit(&self, head: &RequestHead<'_>) -> Result<(), HttpError> {
        if head.is_from_browser() { self.admit_browser(head) } else { Ok(()) }
    }

    #[cold]
    fn admit_browser(&self, head: &RequestHead<'_>) -> Result<(), HttpError> {
        let mut origins = head.header_values("origin");
        match (origins.next(), origins.next()) {
            (Some(origin), None) if self.contains(origin) => return Ok(()),
            (Some(origin), None) if !is_same_host(origin, head.host()) => {
                return Err(rejected(origin));
            }
            (_, Some(_)) => return Err(rejected(b"several origins")),
            (Some(_) | None, None) => {}
        }
        let is_own = |site: &[u8]| site == b"same-origin" || site == b"none";
        match head.header_values("sec-fetch-site").find(|site| !is_own(site)) {
            Some(site) => Err(rejected(site)),
            None => Ok(()),
        }
    }

    fn contains(&self, origin: &[u8]) -> bool {
        self.0.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(origin))
    }
}

fn rejected(site: &[u8]) -> HttpError {
    HttpError::CrossSite { site: excerpt(String::from_utf8_lossy(site)) }
}

/// Whether an origin is the request's host. The scheme is not compared, since a proxy in front may have changed it.
fn is_same_host(origin: &[u8], host: Option<&[u8]>) -> bool {
    let origin_host = origin.strip_prefix(b"https://").or_else(|| origin.strip_prefix(b"http://"));
    origin_host.zip(host).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a request to `own.example:8080` with these headers is admitted, on the fast path and by hyper.
    fn admits(allowed: &[&str], lines: &str) -> bool {
        let allowed = AllowedOrigins::new(allowed.iter().copied()).unwrap();
        let bytes =
            format!("POST /check HTTP/1.1\r\nHost: own.example:8080\r\n{lines}Content-Length: 0\r\n\r\n");
        let mut parts = hyper::Request::post("/check").header("host", "own.example:8080");
        for (name, value) in lines.lines().filter_map(|line| line.split_once(": ")) {
            parts = parts.header(name, value);
        }
        let (parts, ()) = parts.body(()).unwrap().into_parts();
        let [fast_path, hyper] = [RequestHead::plain(bytes.as_bytes()), RequestHead::Parts(&parts)]
            .map(|head| allowed.admit(&head).is_ok());
        assert_eq!(fast_path, hyper, "{lines}");
        fast_path
    }

    #[test]
    fn cross_site_requests_are_rejected() {
        for lines in [
            "Origin: https://evil.example\r\n",
            "Origin: null\r\n",
            "Origin: http://own.example\r\n",
            "Origin: http://own.example:8081\r\n",
            "Origin: http://own.example:8080.evil.example\r\n",
            "Origin: own.example:8080\r\n",
            "Origin: \r\n",
            "Origin: http://own.example:8080\r\nOrigin: https://evil.example\r\n",
            "Sec-Fetch-Site: cross-site\r\n",
            "Sec-Fetch-Site: same-site\r\n",
            "sec-fetch-site: something-new\r\n",
            "Origin: http://own.example:8080\r\nSec-Fetch-Site: cross-site\r\n",
            "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Site: cross-site\r\n",
        ] {
            assert!(!admits(&[], lines), "{lines}");
        }
    }

    #[test]
    fn programs_and_same_origin_pages_are_admitted() {
        for lines in [
            "",
            "Content-Type: application/x-www-form-urlencoded\r\n",
            "Origin: http://own.example:8080\r\n",
            "Origin: https://OWN.example:8080\r\nSec-Fetch-Site: same-origin\r\n",
            "Sec-Fetch-Site: none\r\n",
        ] {
            assert!(admits(&[], lines), "{lines}");
        }
    }

    #[test]
    fn pages_of_allowed_origins_are_admitted() {
        let allowed = ["https://admin.example", "http://localhost:3000"];
        assert!(admits(&allowed, "Origin: https://Admin.example\r\nSec-Fetch-Site: cross-site\r\n"));
        assert!(admits(&allowed, "Origin: http://localhost:3000\r\n"));
        assert!(!admits(&allowed, "Origin: http://admin.example\r\n"));
        assert!(!admits(&allowed, "Sec-Fetch-Site: cross-site\r\n"));
        for invalid in
            ["admin.example", "https://", "https://a/", "https://a/b", "*", "null", "https://*.a", "ftp://a"]
        {
            let error = AllowedOrigins::new([invalid]).unwrap_err();
            assert_eq!(error, AllowedOriginsError::NotAnOrigin(invalid.to_owned()));
        }
        assert_eq!(AllowedOrigins::new(["http://a"; 257]), Err(AllowedOriginsError::TooMany));
    }
}

//! Requests that a browser sends on behalf of a web page of another site.
//!
//! Any page that somebody opens can have their browser post to `http://127.0.0.1:8080/check`. The page does not see the
//! answer, but the request would count. Browsers say where such a request comes from: in `Origin` with every POST that
//! crosses sites, and in `Sec-Fetch-Handler` with every request. A page can't change either. So a request without both was
//! not sent by a page, and is not held to anything here: `curl -d` sends the content type of a form, too, and means JSON.
//!
//! What proxies ask for their clients is not held to this: the fields are those of the client's request to somebody else.

use crate::http::{HttpError, RequestHead};

/// The most origins that can be allowed.
const MAX_ORIGINS: usize = 256;

/// The web sites whose pages may use a server, besides its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedOrigins(Vec<String>);

/// Why a list of origins can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllowedOriginsError {
    /// One of them is not an origin.
    #[error(
        "{0:?} is no origin: write a scheme and a host, like https://admin.example or http://localhost:3000"
    )]
    NoOrigin(String),
    /// There are too many.
    #[error("there are more than {MAX_ORIGINS} origins")]
    TooMany,
}

impl AllowedOrigins {
    /// The origins in a list.
    ///
    /// # Errors
    /// If one of them is something else, or there are too many.
    pub fn new<'a>(
        origins: impl IntoIterator<Item = &'a str>,
    ) -> Result<AllowedOrigins, AllowedOriginsError> {
        let is_origin = |origin: &str| {
            let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b"/?#@\"<>\\*".contains(&byte);
            host.is_some_and(|host| !host.is_empty() && host.bytes().all(is_allowed))
        };
        let read = |origin: &str| match is_origin(origin) {
            true => Ok(origin.to_ascii_lowercase()),
            false => Err(AllowedOriginsError::NoOrigin(origin.to_owned())),
        };
        let origins = origins.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        if origins.len() > MAX_ORIGINS {
            Err(AllowedOriginsError::TooMany)
        } else {
            Ok(AllowedOrigins(origins))
        }
    }

    /// Refuses what a browser sends for a page of a site that is neither this server's own nor allowed.
    #[inline]
    pub(crate) fn admit(&self, head: &RequestHead<'_>) -> Result<(), HttpError> {
        if head.is_from_browser() { self.admit_browser(head) } else { Ok(()) }
    }

    #[cold]
    fn admit_browser(&self, head: &RequestHead<'_>) -> Result<(), HttpError> {
        let mut origins = head.values("origin");
        match (origins.next(), origins.next()) {
            (Some(origin), None) if self.contains(origin) => return Ok(()),
            (Some(origin), None) if !is_of_host(origin, head.host()) => {
                return Err(HttpError::cross_site(origin));
            }
            (_, Some(_)) => return Err(HttpError::cross_site(b"several origins")),
            (Some(_) | None, None) => {}
        }
        let is_own = |site: &[u8]| site == b"same-origin" || site == b"none";
        match head.values("sec-fetch-site").find(|site| !is_own(site)) {
            Some(site) => Err(HttpError::cross_site(site)),
            None => Ok(()),
        }
    }

    fn contains(&self, origin: &[u8]) -> bool {
        self.0.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(origin))
    }
}

/// Whether an origin is the host that was asked. A proxy in front may have changed the scheme, so that is not compared.
fn is_of_host(origin: &[u8], host: Option<&[u8]>) -> bool {
    let origin_host = origin.strip_prefix(b"https://").or_else(|| origin.strip_prefix(b"http://"));
    origin_host.zip(host).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a request to `own.example:8080` with these fields is admitted, whichever way it came in.
    fn admits(allowed: &[&str], lines: &str) -> bool {
        let allowed = AllowedOrigins::new(allowed.iter().copied()).unwrap();
        let bytes =
            format!("POST /check HTTP/1.1\r\nHost: own.example:8080\r\n{lines}Content-Length: 0\r\n\r\n");
        let mut parts = hyper::Request::post("/check").header("host", "own.example:8080");
        for (name, value) in lines.lines().filter_map(|line| line.split_once(": ")) {
            parts = parts.header(name, value);
        }
        let (parts, ()) = parts.body(()).unwrap().into_parts();
        let [lane, hyper] = [RequestHead::plain(bytes.as_bytes()), RequestHead::Parts(&parts)]
            .map(|head| allowed.admit(&head).is_ok());
        assert_eq!(lane, hyper, "{lines}");
        lane
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
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
    fn programs_and_pages_of_the_host_itself_are_admitted() {
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
        for wrong in
            ["admin.example", "https://", "https://a/", "https://a/b", "*", "null", "https://*.a", "ftp://a"]
        {
            let error = AllowedOrigins::new([wrong]).unwrap_err();
            assert_eq!(error, AllowedOriginsError::NoOrigin(wrong.to_owned()));
        }
        assert_eq!(AllowedOrigins::new(["http://a"; 257]), Err(AllowedOriginsError::TooMany));
    }
}

//! A request as handlers see it, whether the fast path or hyper parsed it.

use super::strict_h1::{self, PlainRequest};
use hyper::header::{CONTENT_TYPE, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use std::net::IpAddr;

/// The head of a request. Every part is computed only when it is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestHead<'a> {
    /// Parsed on the fast path; the bytes begin with the request.
    Plain(PlainRequest, &'a [u8]),
    /// Parsed by hyper.
    Parts(&'a Parts),
}

/// An admitted request with its body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpCall<'a, R> {
    pub(crate) route: R,
    pub(crate) head: RequestHead<'a>,
    pub(crate) body: &'a [u8],
    /// The address at the other end of the connection.
    pub(crate) peer: IpAddr,
}

impl<'a> RequestHead<'a> {
    pub(crate) fn method(&self) -> &'a str {
        match self {
            RequestHead::Plain(plain, _) => plain.method().as_str(),
            RequestHead::Parts(parts) => parts.method.as_str(),
        }
    }

    pub(crate) fn path(&self) -> &'a str {
        match self {
            RequestHead::Plain(plain, bytes) => plain.path(bytes),
            RequestHead::Parts(parts) => parts.uri.path(),
        }
    }

    /// The query string. `None` if the target has no question mark.
    pub(crate) fn query(&self) -> Option<&'a str> {
        match self {
            RequestHead::Plain(plain, bytes) => plain.query(bytes),
            RequestHead::Parts(parts) => parts.uri.query(),
        }
    }

    pub(crate) fn content_type(&self) -> Option<&'a [u8]> {
        match self {
            RequestHead::Plain(plain, bytes) => plain.content_type(bytes),
            RequestHead::Parts(parts) => parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes),
        }
    }

    /// The first value of the header `name`, which is in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&'a [u8]> {
        match self {
            RequestHead::Plain(plain, bytes) => strict_h1::header(plain.header_lines(bytes), name),
            RequestHead::Parts(parts) => parts.headers.get(name).map(HeaderValue::as_bytes),
        }
    }

    /// All values of the header `name`, in the order in which they were sent.
    pub(crate) fn header_values<'n>(
        &self,
        name: &'n str,
    ) -> impl DoubleEndedIterator<Item = &'a [u8]> + use<'a, 'n> {
        let (plain, parts) = match *self {
            RequestHead::Plain(plain, bytes) => {
                (Some(strict_h1::header_values(plain.header_lines(bytes), name)), None)
            }
            RequestHead::Parts(parts) => (None, Some(parts.headers.get_all(name).into_iter())),
        };
        let parts = parts.into_iter().flatten().map(HeaderValue::as_bytes);
        plain.into_iter().flatten().chain(parts)
    }

    /// Calls `visit` with the name, in any case, and the value of every header. Headers of one name keep their order.
    pub(crate) fn for_each_header(&self, mut visit: impl FnMut(&'a [u8], &'a [u8])) {
        match *self {
            RequestHead::Plain(plain, bytes) => strict_h1::for_each_header(plain.header_lines(bytes), visit),
            RequestHead::Parts(parts) => {
                parts.headers.iter().for_each(|(name, value)| visit(name.as_ref(), value.as_bytes()));
            }
        }
    }

    /// Whether it has an `Origin` or `Sec-Fetch-Site` header, by which browsers name the page behind a request.
    #[inline]
    pub(crate) fn is_from_browser(&self) -> bool {
        match self {
            RequestHead::Plain(plain, _) => plain.is_from_browser(),
            RequestHead::Parts(parts) => {
                parts.headers.contains_key(ORIGIN) || parts.headers.contains_key("sec-fetch-site")
            }
        }
    }

    /// The host that the request was sent to, as the client spelled it.
    pub(crate) fn host(&self) -> Option<&'a [u8]> {
        self.header("host").or_else(|| match *self {
            RequestHead::Plain(..) => None,
            // HTTP/2 sends it as `:authority`.
            RequestHead::Parts(parts) => parts.uri.authority().map(|authority| authority.as_str().as_bytes()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;
    use std::net::Ipv4Addr;

    #[test]
    fn fast_path_and_hyper_heads_give_the_same_values() {
        let bytes =
            b"POST /check?a=b HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer  x \r\nContent-Type: a/b\r\n\
            X-Twice: 1\r\nx-twice: 2\r\nContent-Length: 2\r\n\r\n{}";
        let (parts, ()) = Request::post("/check?a=b")
            .header("host", "h")
            .header("authorization", "Bearer  x")
            .header("content-type", "a/b")
            .header("x-twice", "1")
            .header("x-twice", "2")
            .header("content-length", "2")
            .body(())
            .unwrap()
            .into_parts();
        for head in [RequestHead::plain(bytes), RequestHead::Parts(&parts)] {
            let HttpCall { head, .. } =
                HttpCall { route: (), head, body: b"{}", peer: Ipv4Addr::LOCALHOST.into() };
            assert_eq!((head.method(), head.path(), head.query()), ("POST", "/check", Some("a=b")));
            assert_eq!(head.content_type(), Some(&b"a/b"[..]));
            assert_eq!(head.header("authorization"), Some(&b"Bearer  x"[..]));
            assert_eq!(head.header("x-twice"), Some(&b"1"[..]));
            assert_eq!(head.header("content-length"), Some(&b"2"[..]));
            assert_eq!(head.header("accept"), None);
            assert_eq!(head.header_values("x-twice").collect::<Vec<_>>(), [b"1", b"2"]);
            assert_eq!(head.header_values("X-Twice").rev().collect::<Vec<_>>(), [b"2", b"1"]);
            assert_eq!(head.header_values("accept").count(), 0);
            let mut fields = Vec::new();
            head.for_each_header(|name, value| fields.push((name.to_ascii_lowercase(), value)));
            fields.sort();
            let names: Vec<_> = fields.iter().map(|(name, _)| str::from_utf8(name).unwrap()).collect();
            assert_eq!(
                names,
                ["authorization", "content-length", "content-type", "host", "x-twice", "x-twice"]
            );
            assert_eq!(fields.iter().map(|(_, value)| value.len()).sum::<usize>(), 9 + 1 + 3 + 1 + 1 + 1);
        }
    }
}

//! A request as the desk sees it, whichever way it came in.

use super::strict_h1::{self, PlainRequest};
use hyper::header::{CONTENT_TYPE, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use std::net::IpAddr;

/// A request's head. Nothing of it is worked out before it is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestHead<'a> {
    /// A plain request, which the bytes begin with.
    Plain(PlainRequest, &'a [u8]),
    /// A request that hyper has read.
    Parts(&'a Parts),
}

/// A request whose head was admitted, with its body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpCall<'a, R> {
    pub(crate) route: R,
    pub(crate) head: RequestHead<'a>,
    pub(crate) body: &'a [u8],
    /// Who is at the other end of the connection.
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

    /// What follows the path's question mark, if there is one.
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

    /// The value of a field by its name, in lower case; of several, the first.
    pub(crate) fn field(&self, name: &str) -> Option<&'a [u8]> {
        match self {
            RequestHead::Plain(plain, bytes) => strict_h1::field(plain.fields(bytes), name),
            RequestHead::Parts(parts) => parts.headers.get(name).map(HeaderValue::as_bytes),
        }
    }

    /// All values of a field by its name, in the order in which they came.
    pub(crate) fn values<'n>(
        &self,
        name: &'n str,
    ) -> impl DoubleEndedIterator<Item = &'a [u8]> + use<'a, 'n> {
        let (plain, parts) = match *self {
            RequestHead::Plain(plain, bytes) => (Some(strict_h1::values(plain.fields(bytes), name)), None),
            RequestHead::Parts(parts) => (None, Some(parts.headers.get_all(name).into_iter())),
        };
        let parts = parts.into_iter().flatten().map(HeaderValue::as_bytes);
        plain.into_iter().flatten().chain(parts)
    }

    /// Has every field looked at, by its name in whichever case. Those of one name are in the order in which they came.
    pub(crate) fn each_field(&self, mut look: impl FnMut(&'a [u8], &'a [u8])) {
        match *self {
            RequestHead::Plain(plain, bytes) => strict_h1::each_field(plain.fields(bytes), look),
            RequestHead::Parts(parts) => {
                parts.headers.iter().for_each(|(name, value)| look(name.as_ref(), value.as_bytes()));
            }
        }
    }

    /// Whether it has a field by which browsers say where a request comes from.
    #[inline]
    pub(crate) fn is_from_browser(&self) -> bool {
        match self {
            RequestHead::Plain(plain, _) => plain.is_from_browser(),
            RequestHead::Parts(parts) => {
                parts.headers.contains_key(ORIGIN) || parts.headers.contains_key("sec-fetch-site")
            }
        }
    }

    /// The host that it was sent to, as the client spelled it.
    pub(crate) fn host(&self) -> Option<&'a [u8]> {
        self.field("host").or_else(|| match *self {
            RequestHead::Plain(..) => None,
            // HTTP/2 has it in the address.
            RequestHead::Parts(parts) => parts.uri.authority().map(|authority| authority.as_str().as_bytes()),
        })
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::super::strict_h1::ParsedFront;
    use super::*;

    impl<'a> RequestHead<'a> {
        /// The head that the bytes begin with, which must be plain.
        pub(crate) fn plain(bytes: &'a [u8]) -> RequestHead<'a> {
            let ParsedFront::Plain(plain) = PlainRequest::find(bytes) else {
                panic!("{bytes:?} is not plain")
            };
            RequestHead::Plain(plain, bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;
    use std::net::Ipv4Addr;

    #[test]
    fn a_head_reads_the_same_whichever_way_it_came() {
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
            assert_eq!(head.field("authorization"), Some(&b"Bearer  x"[..]));
            assert_eq!(head.field("x-twice"), Some(&b"1"[..]));
            assert_eq!(head.field("content-length"), Some(&b"2"[..]));
            assert_eq!(head.field("accept"), None);
            assert_eq!(head.values("x-twice").collect::<Vec<_>>(), [b"1", b"2"]);
            assert_eq!(head.values("X-Twice").rev().collect::<Vec<_>>(), [b"2", b"1"]);
            assert_eq!(head.values("accept").count(), 0);
            let mut fields = Vec::new();
            head.each_field(|name, value| fields.push((name.to_ascii_lowercase(), value)));
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

//! A request as the desk sees it, whichever way it came in.

use super::plain::{self, Plain};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;

/// A request's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
    pub(crate) content_type: Option<&'a [u8]>,
    fields: Fields<'a>,
}

/// A request whose head was admitted, with its body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a, R> {
    pub(crate) route: R,
    pub(crate) head: Head<'a>,
    pub(crate) body: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
enum Fields<'a> {
    /// The lines of a plain request.
    Lines(&'a [u8]),
    Map(&'a HeaderMap),
}

impl<'a> Head<'a> {
    /// The head of a plain request that `bytes` begin with.
    pub(super) fn of_plain(plain: &Plain, bytes: &'a [u8]) -> Head<'a> {
        Head {
            method: plain.method().as_str(),
            path: plain.path(bytes),
            query: plain.query(bytes),
            content_type: plain.content_type(bytes),
            fields: Fields::Lines(plain.fields(bytes)),
        }
    }

    /// The head of a request that hyper has read.
    pub(super) fn of_parts(parts: &'a Parts) -> Head<'a> {
        Head {
            method: parts.method.as_str(),
            path: parts.uri.path(),
            query: parts.uri.query(),
            content_type: parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes),
            fields: Fields::Map(&parts.headers),
        }
    }

    /// The value of a field by its name, in lower case; of several, the first.
    pub(crate) fn field(&self, name: &str) -> Option<&'a [u8]> {
        match self.fields {
            Fields::Lines(lines) => plain::field(lines, name),
            Fields::Map(map) => map.get(name).map(HeaderValue::as_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plain::Found;
    use super::*;
    use hyper::Request;

    #[test]
    fn a_head_reads_the_same_whichever_way_it_came() {
        let bytes = b"POST /check?a=b HTTP/1.1\r\nAuthorization: Bearer  x \r\nContent-Type: a/b\r\n\
            X-Twice: 1\r\nx-twice: 2\r\nContent-Length: 2\r\n\r\n{}";
        let Found::Plain(plain) = Plain::find(bytes) else { panic!("it is plain") };
        let (parts, ()) = Request::post("/check?a=b")
            .header("authorization", "Bearer  x")
            .header("content-type", "a/b")
            .header("x-twice", "1")
            .header("x-twice", "2")
            .header("content-length", "2")
            .body(())
            .unwrap()
            .into_parts();
        for head in [Head::of_plain(&plain, bytes), Head::of_parts(&parts)] {
            let Call { head, .. } = Call { route: (), head, body: b"{}" };
            assert_eq!((head.method, head.path, head.query), ("POST", "/check", Some("a=b")));
            assert_eq!(head.content_type, Some(&b"a/b"[..]));
            assert_eq!(head.field("authorization"), Some(&b"Bearer  x"[..]));
            assert_eq!(head.field("x-twice"), Some(&b"1"[..]));
            assert_eq!(head.field("content-length"), Some(&b"2"[..]));
            assert_eq!(head.field("accept"), None);
        }
    }
}

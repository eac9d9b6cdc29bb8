//! Replies: when one is whole, and whether it says what every reply must.

use anyhow::{Context, Result, ensure};
use memchr::memmem::Finder;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::request::Request;

/// Longer than any subject's reply to a thousand checks; a longer one is a mistake.
pub(crate) const MAX_BYTES: usize = 4 << 20;
/// The most headers a subject sends.
const MAX_HEADERS: usize = 16;
/// How long a subject may take for a single reply before it counts as dead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Where in some bytes a whole reply is. It borrows nothing, so that the bytes may be added to when it is not whole yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outline {
    status: u16,
    body: usize,
}

impl Outline {
    /// The reply that `bytes` are, or nothing if more of it is to come.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Outline>> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(body) = head.parse(bytes).context("what came is no HTTP")? else {
            return Ok(None);
        };
        let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
        let length = length.and_then(|header| str::from_utf8(header.value).ok()?.parse::<usize>().ok());
        let length = length.context("a reply does not say how long it is")?;
        let come = bytes.len() - body;
        ensure!(come <= length, "a reply is longer than it says");
        let status = head.code.context("a reply has no status")?;
        Ok((come == length).then_some(Outline { status, body }))
    }

    /// The reply itself, in the bytes it was found in.
    pub(crate) fn of(self, bytes: &[u8]) -> Reply<'_> {
        Reply { status: self.status, body: &bytes[self.body..] }
    }
}

/// A whole reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply<'a> {
    pub(crate) status: u16,
    pub(crate) body: &'a [u8],
}

impl Reply<'_> {
    /// The beginning of it, for a reader.
    pub(crate) fn excerpt(&self) -> String {
        let text = String::from_utf8_lossy(&self.body[..self.body.len().min(200)]);
        format!("{} {}", self.status, text.trim())
    }
}

/// What every reply must say: 200, and a phrase once for every check.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    phrase: Finder<'static>,
    times: usize,
}

impl Expected {
    pub(crate) fn new(phrase: &'static str, times: usize) -> Expected {
        Expected { phrase: Finder::new(phrase), times }
    }

    pub(crate) fn is_met_by(&self, reply: &Reply<'_>) -> bool {
        reply.status == 200 && self.phrase.find_iter(reply.body).count() == self.times
    }
}

/// Sends one request on a connection of its own, and waits for the reply: its status and body.
pub(crate) fn exchange(address: SocketAddr, request: &Request) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request.bytes())?;
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let length = stream.read(&mut piece).context("no reply came")?;
        ensure!(length > 0, "the connection was closed before the reply was whole");
        bytes.extend_from_slice(&piece[..length]);
        ensure!(bytes.len() <= MAX_BYTES, "the reply is longer than {MAX_BYTES} bytes");
        if let Some(outline) = Outline::parse(&bytes)? {
            let reply = outline.of(&bytes);
            return Ok((reply.status, String::from_utf8_lossy(reply.body).into_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_whole_when_its_body_is() {
        let bytes = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nContent-Length: 5\r\n\r\nhello";
        for length in 0..bytes.len() {
            assert!(Outline::parse(&bytes[..length]).unwrap().is_none(), "{length} bytes are whole");
        }
        let reply = Outline::parse(bytes).unwrap().unwrap().of(bytes);
        assert_eq!((reply.status, reply.body), (200, &b"hello"[..]));
        assert!(Outline::parse(&[&bytes[..], b"!"].concat()).is_err(), "nothing may follow it");
        assert!(Outline::parse(b"HTTP/1.1 200 OK\r\n\r\n").is_err(), "its length must be known");
    }

    #[test]
    fn every_check_must_be_answered_as_expected() {
        let expected = Expected::new(r#""allowed":true"#, 2);
        let is_met = |status, body: &str| expected.is_met_by(&Reply { status, body: body.as_bytes() });
        assert!(is_met(200, r#"[{"allowed":true},{"allowed":true}]"#));
        assert!(!is_met(200, r#"[{"allowed":true},{"allowed":false}]"#));
        assert!(!is_met(200, r#"[{"allowed":true}]"#));
        assert!(!is_met(429, r#"[{"allowed":true},{"allowed":true}]"#));
    }
}

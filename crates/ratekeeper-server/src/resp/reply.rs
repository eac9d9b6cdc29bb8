//! Encodes replies in RESP2 and RESP3.
//!
//! A client begins with RESP2 and may select RESP3 with `HELLO`. RESP3 has its own types for maps, sets and verbatim
//! strings, which RESP2 encodes as arrays and bulk strings. Integers, arrays and errors are the same in both.

use std::fmt;
use std::io::Write;

/// The protocol version of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RespVersion {
    #[default]
    Resp2,
    Resp3,
}

impl RespVersion {
    pub(super) fn number(self) -> i64 {
        match self {
            RespVersion::Resp2 => 2,
            RespVersion::Resp3 => 3,
        }
    }
}

/// Writes replies in the client's protocol version.
#[derive(Debug)]
pub(super) struct ReplyWriter<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) protocol: RespVersion,
}

impl ReplyWriter<'_> {
    pub(super) fn integer(&mut self, number: i64) {
        self.prefixed_number(b':', number);
    }

    /// Writes a simple string.
    pub(super) fn simple(&mut self, text: &'static str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// Writes a bulk string.
    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.prefixed_number(b'$', length(bytes.len()));
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes text for people: a verbatim string in RESP3.
    pub(super) fn text(&mut self, text: &str) {
        match self.protocol {
            RespVersion::Resp2 => self.bulk(text.as_bytes()),
            RespVersion::Resp3 => {
                self.prefixed_number(b'=', length(text.len() + 4));
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    pub(super) fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            RespVersion::Resp2 => b"$-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    /// Begins an array of `count` elements.
    pub(super) fn array(&mut self, count: usize) {
        self.prefixed_number(b'*', length(count));
    }

    /// Begins a map of `pairs` keys and values.
    pub(super) fn map(&mut self, pairs: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.array(pairs * 2),
            RespVersion::Resp3 => self.prefixed_number(b'%', length(pairs)),
        }
    }

    /// Begins a set of `count` elements.
    pub(super) fn set(&mut self, count: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.array(count),
            RespVersion::Resp3 => self.prefixed_number(b'~', length(count)),
        }
    }

    /// Writes an error: a code in capitals for programs, and a message for people.
    #[cold]
    pub(super) fn error(&mut self, message: &impl fmt::Display) {
        self.out.push(b'-');
        let begin = self.out.len();
        write!(self.out, "{message}").expect("writing to a Vec never fails");
        // A line end in text from the client would end the reply early, and the rest would look like another reply.
        for byte in &mut self.out[begin..] {
            if byte.is_ascii_control() {
                *byte = b'?';
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn prefixed_number(&mut self, kind: u8, number: i64) {
        self.out.push(kind);
        self.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Converts a length to a RESP integer.
fn length(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// Displays bytes from a client in an error message: truncated, with unprintable bytes replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Printable<'a>(pub(super) &'a [u8]);

/// The maximum number of bytes displayed.
const MAX_PRINTED_BYTES: usize = 48;

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Printable(bytes) = self;
        for byte in bytes.iter().take(MAX_PRINTED_BYTES) {
            let is_plain = byte.is_ascii_graphic() || *byte == b' ';
            f.write_str(if is_plain {
                std::str::from_utf8(std::slice::from_ref(byte)).unwrap_or("?")
            } else {
                "?"
            })?;
        }
        f.write_str(if bytes.len() > MAX_PRINTED_BYTES { "..." } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: RespVersion, write: impl FnOnce(&mut ReplyWriter<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut ReplyWriter { out: &mut out, protocol });
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn both_versions_encode_the_same_reply() {
        let write = |reply: &mut ReplyWriter<'_>| {
            reply.map(1);
            reply.bulk(b"k\r\n");
            reply.set(1);
            reply.integer(i64::MIN);
            reply.null();
            reply.text("hi");
            reply.array(0);
            reply.simple("PONG");
        };
        assert_eq!(
            written(RespVersion::Resp2, write),
            "*2\r\n$3\r\nk\r\n\r\n*1\r\n:-9223372036854775808\r\n$-1\r\n$2\r\nhi\r\n*0\r\n+PONG\r\n"
        );
        assert_eq!(
            written(RespVersion::Resp3, write),
            "%1\r\n$3\r\nk\r\n\r\n~1\r\n:-9223372036854775808\r\n_\r\n=6\r\ntxt:hi\r\n*0\r\n+PONG\r\n"
        );
    }

    #[test]
    fn an_error_is_one_line_whatever_the_client_sent() {
        let hostile = Printable(b"a\r\n+OK\r\n\xff\0\x7f");
        let reply =
            written(RespVersion::Resp2, |reply| reply.error(&format_args!("ERR unknown '{hostile}'\r\n:1")));
        assert_eq!(reply, "-ERR unknown 'a??+OK?????'??:1\r\n");
        let long = [b'x'; 1000];
        assert_eq!(Printable(&long).to_string(), "x".repeat(48) + "...");
    }
}

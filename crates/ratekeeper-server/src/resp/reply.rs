//! Replies as they go over the wire, in either version of the protocol.
//!
//! A client begins with the second version and may ask for the third, which has words for what the second writes as lists:
//! maps, sets, and text with a kind. Integers, lists and errors are the same in both.

use std::fmt;
use std::io::Write;

/// The version of the protocol that a client speaks.
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

/// Where replies are written, in the words that the client understands.
#[derive(Debug)]
pub(super) struct ReplyWriter<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) protocol: RespVersion,
}

impl ReplyWriter<'_> {
    pub(super) fn integer(&mut self, number: i64) {
        self.headed(b':', number);
    }

    /// A word or a few of our own.
    pub(super) fn simple(&mut self, text: &'static str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// Bytes of any kind.
    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.headed(b'$', length(bytes.len()));
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Text that is meant for people to read as it is.
    pub(super) fn text(&mut self, text: &str) {
        match self.protocol {
            RespVersion::Resp2 => self.bulk(text.as_bytes()),
            RespVersion::Resp3 => {
                self.headed(b'=', length(text.len() + 4));
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

    /// Begins a list of so many.
    pub(super) fn array(&mut self, count: usize) {
        self.headed(b'*', length(count));
    }

    /// Begins a map of so many names, each with what it stands for.
    pub(super) fn map(&mut self, pairs: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.array(pairs * 2),
            RespVersion::Resp3 => self.headed(b'%', length(pairs)),
        }
    }

    /// Begins a set of so many.
    pub(super) fn set(&mut self, count: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.array(count),
            RespVersion::Resp3 => self.headed(b'~', length(count)),
        }
    }

    /// An error: a word in capitals that programs look at, and then what people read.
    #[cold]
    pub(super) fn error(&mut self, said: &impl fmt::Display) {
        self.out.push(b'-');
        let begin = self.out.len();
        write!(self.out, "{said}").expect("memory can be written to");
        // A line that a client has a say in could otherwise end early, and the rest be taken for another reply.
        for byte in &mut self.out[begin..] {
            if byte.is_ascii_control() {
                *byte = b'?';
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn headed(&mut self, kind: u8, number: i64) {
        self.out.push(kind);
        self.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
}

/// A length as the protocol has it.
fn length(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// What a client sent, fit to be shown: not too long, and nothing in it that is not meant to be seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a>(pub(super) &'a [u8]);

/// How many bytes are shown.
const SHOWN: usize = 48;

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown(bytes) = self;
        for byte in bytes.iter().take(SHOWN) {
            let is_plain = byte.is_ascii_graphic() || *byte == b' ';
            f.write_str(if is_plain {
                std::str::from_utf8(std::slice::from_ref(byte)).unwrap_or("?")
            } else {
                "?"
            })?;
        }
        f.write_str(if bytes.len() > SHOWN { "..." } else { "" })
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
    fn both_versions_say_the_same_in_their_own_words() {
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
        let hostile = Shown(b"a\r\n+OK\r\n\xff\0\x7f");
        let said =
            written(RespVersion::Resp2, |reply| reply.error(&format_args!("ERR unknown '{hostile}'\r\n:1")));
        assert_eq!(said, "-ERR unknown 'a??+OK?????'??:1\r\n");
        let long = [b'x'; 1000];
        assert_eq!(Shown(&long).to_string(), "x".repeat(48) + "...");
    }
}

//! Decodes bytes into commands.
//!
//! A command is an array of bulk strings, as client libraries send it, or an inline command: a line of words, as people
//! type it. Arguments are not copied: a command is a list of spans in the input. An incomplete command is not decoded
//! from its start again when more arrives, and announced lengths allocate nothing before their bytes have arrived.

use super::arguments::{ArgumentSpan, Arguments, position};
use super::inline::{UnbalancedQuotes, split};

/// The maximum number of arguments of a command, its name included. A check with all its options has 108.
pub(super) const MAX_ARGUMENTS: usize = 1024;
/// The maximum encoded size of a command: that of a check over HTTP.
pub(super) const MAX_COMMAND_BYTES: usize = 64 * 1024;
/// The maximum size of an inline command.
pub(super) const MAX_LINE_BYTES: usize = 16 * 1024;
/// The maximum number of characters of a length, its sign included. No valid length has more.
const MAX_DIGITS: usize = 11;

/// Decodes the commands of one connection, one after the other.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// The arguments of the last decoded command, or those decoded so far.
    spans: Vec<ArgumentSpan>,
    /// The unquoted arguments of an inline command.
    line: Vec<u8>,
    progress: DecodeProgress,
    /// With fewer bytes than this, decoding makes no progress. 0 at the start of a command.
    min_bytes: usize,
}

/// How far the current command has been decoded.
#[derive(Clone, Copy, Debug, Default)]
enum DecodeProgress {
    /// At its start.
    #[default]
    Start,
    /// An inline command whose first `scanned` bytes have no line end.
    Inline { scanned: usize },
    /// An array with `left` arguments to come, the next one at offset `at`.
    Array { left: usize, at: usize },
}

/// The result of decoding the start of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecodedFront {
    /// A complete command of this size. [`Decoder::args`] returns its arguments.
    Command { bytes: usize },
    /// A blank line or an empty array of this size, to be skipped.
    Empty { bytes: usize },
    /// An incomplete command.
    Incomplete,
    /// A protocol error. The start of the next command is unknown.
    Invalid(ProtocolError),
}

impl Decoder {
    /// Decodes the first command in `bytes`. After an incomplete result, `bytes` must be those of the last call, and
    /// more.
    #[inline]
    pub(super) fn decode(&mut self, bytes: &[u8]) -> DecodedFront {
        if bytes.len() < self.min_bytes {
            return DecodedFront::Incomplete;
        }
        let front = match (self.progress, bytes.first()) {
            (_, None) => return DecodedFront::Incomplete,
            (DecodeProgress::Array { left, at }, _) => self.read_array(bytes, left, at),
            (DecodeProgress::Start, Some(b'*')) => self.read_array_header(bytes),
            (DecodeProgress::Start, Some(_)) => self.read_inline(bytes, 0),
            (DecodeProgress::Inline { scanned }, _) => self.read_inline(bytes, scanned),
        };
        if front != DecodedFront::Incomplete {
            (self.progress, self.min_bytes) = (DecodeProgress::Start, 0);
        }
        front
    }

    /// Whether the decoder is at the start of a command.
    #[inline]
    pub(super) fn is_at_start(&self) -> bool {
        self.min_bytes == 0
    }

    /// The arguments of the last decoded command. `bytes` must be those that it was decoded from.
    #[inline]
    pub(super) fn args<'a>(&'a self, bytes: &'a [u8]) -> Arguments<'a> {
        // Only arrays begin with an asterisk.
        let bytes = if bytes.first() == Some(&b'*') { bytes } else { &self.line };
        Arguments::new(bytes, &self.spans)
    }

    /// Releases the memory of an unusually long command. Invalidates its arguments.
    pub(super) fn shrink(&mut self) {
        self.spans.clear();
        self.spans.shrink_to(KEPT_SPANS);
        self.line.clear();
        self.line.shrink_to(KEPT_LINE_BYTES);
    }

    #[inline]
    fn read_array_header(&mut self, bytes: &[u8]) -> DecodedFront {
        self.spans.clear();
        match LineNumber::read(&bytes[1..]) {
            LineNumber::Incomplete => self.wait_for(DecodeProgress::Start, bytes.len() + 1),
            LineNumber::Complete(count, length) => match usize::try_from(count) {
                Ok(0) | Err(_) => DecodedFront::Empty { bytes: 1 + length },
                Ok(count @ 1..=MAX_ARGUMENTS) => self.read_array(bytes, count, 1 + length),
                Ok(_) => DecodedFront::Invalid(ProtocolError::TooManyArguments),
            },
            LineNumber::Invalid => DecodedFront::Invalid(ProtocolError::TooManyArguments),
        }
    }

    #[inline]
    fn read_array(&mut self, bytes: &[u8], mut left: usize, mut at: usize) -> DecodedFront {
        while left > 0 {
            let progress = DecodeProgress::Array { left, at };
            let begin = match bytes.get(at) {
                Some(b'$') => at + 1,
                Some(other) => return DecodedFront::Invalid(ProtocolError::MissingLength { found: *other }),
                None => return self.wait_for(progress, at + 1),
            };
            let (length, begin) = match LineNumber::read(&bytes[begin..]) {
                LineNumber::Complete(length, digits) => (usize::try_from(length), begin + digits),
                LineNumber::Incomplete => return self.wait_for(progress, bytes.len() + 1),
                LineNumber::Invalid => return DecodedFront::Invalid(ProtocolError::BadLength),
            };
            let Ok(length @ ..=MAX_COMMAND_BYTES) = length else {
                return DecodedFront::Invalid(ProtocolError::BadLength);
            };
            let end = begin + length;
            // The remaining arguments have to fit too, each with at least the six bytes of `$0\r\n\r\n`.
            if end + 2 + (left - 1) * 6 > MAX_COMMAND_BYTES {
                return DecodedFront::Invalid(ProtocolError::TooLong);
            }
            match bytes.get(end..end + 2) {
                Some(b"\r\n") => {}
                Some(_) => return DecodedFront::Invalid(ProtocolError::MissingTerminator),
                None => return self.wait_for(progress, end + 2),
            }
            self.spans.push((position(begin), position(end)));
            (at, left) = (end + 2, left - 1);
        }
        DecodedFront::Command { bytes: at }
    }

    fn read_inline(&mut self, bytes: &[u8], scanned: usize) -> DecodedFront {
        let limit = bytes.len().min(MAX_LINE_BYTES);
        let Some(end) = bytes[scanned..limit].iter().position(|byte| *byte == b'\n') else {
            return if limit == MAX_LINE_BYTES {
                DecodedFront::Invalid(ProtocolError::InlineTooLong)
            } else {
                self.wait_for(DecodeProgress::Inline { scanned: limit }, limit + 1)
            };
        };
        let end = scanned + end;
        self.spans.clear();
        match split(&bytes[..end], MAX_ARGUMENTS, &mut self.line, &mut self.spans) {
            Ok(()) if self.spans.is_empty() => DecodedFront::Empty { bytes: end + 1 },
            Ok(()) if self.spans.len() > MAX_ARGUMENTS => {
                DecodedFront::Invalid(ProtocolError::TooManyArguments)
            }
            Ok(()) => DecodedFront::Command { bytes: end + 1 },
            Err(UnbalancedQuotes) => DecodedFront::Invalid(ProtocolError::UnbalancedQuotes),
        }
    }

    /// Records the progress, and that more needs at least `min_bytes` bytes.
    fn wait_for(&mut self, progress: DecodeProgress, min_bytes: usize) -> DecodedFront {
        (self.progress, self.min_bytes) = (progress, min_bytes);
        DecodedFront::Incomplete
    }
}

/// The capacities that a decoder keeps for the next command.
const KEPT_SPANS: usize = 128;
const KEPT_LINE_BYTES: usize = 1024;

/// A number that ends with CRLF.
enum LineNumber {
    /// The number, and its size with the line end.
    Complete(i64, usize),
    Incomplete,
    Invalid,
}

impl LineNumber {
    #[inline]
    fn read(bytes: &[u8]) -> LineNumber {
        let (mut value, mut is_negative) = (0_i64, false);
        for (index, byte) in bytes.iter().enumerate().take(MAX_DIGITS + 1) {
            match byte {
                b'0'..=b'9' => value = value * 10 + i64::from(byte - b'0'),
                b'\r' if index > usize::from(is_negative) => {
                    return match bytes.get(index + 1) {
                        Some(b'\n') => {
                            LineNumber::Complete(if is_negative { -value } else { value }, index + 2)
                        }
                        Some(_) => LineNumber::Invalid,
                        None => LineNumber::Incomplete,
                    };
                }
                b'-' if index == 0 => is_negative = true,
                _ => return LineNumber::Invalid,
            }
        }
        if bytes.len() > MAX_DIGITS { LineNumber::Invalid } else { LineNumber::Incomplete }
    }
}

/// Why bytes are not a command. The connection is closed with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProtocolError {
    #[error("invalid multibulk length: a command has at most {MAX_ARGUMENTS} arguments")]
    TooManyArguments,
    #[error("invalid bulk length: an argument has at most {MAX_COMMAND_BYTES} bytes")]
    BadLength,
    #[error("a command has at most {MAX_COMMAND_BYTES} bytes with all its arguments")]
    TooLong,
    #[error("expected '$', got '{}': each argument must follow its length", found.escape_ascii())]
    MissingLength { found: u8 },
    #[error("an argument does not end where its length says")]
    MissingTerminator,
    #[error("too big inline request: an inline command has at most {MAX_LINE_BYTES} bytes")]
    InlineTooLong,
    #[error("unbalanced quotes in request")]
    UnbalancedQuotes,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes the start of the bytes; returns the arguments too if it is a command.
    fn decoded(bytes: &[u8]) -> (DecodedFront, Vec<Vec<u8>>) {
        let mut decoder = Decoder::default();
        let front = decoder.decode(bytes);
        let args = match front {
            DecodedFront::Command { .. } => decoder.args(bytes).starting_at(0).map(<[u8]>::to_vec).collect(),
            _ => Vec::new(),
        };
        (front, args)
    }

    #[track_caller]
    fn assert_command(bytes: &[u8], expected: &[&[u8]]) {
        let (front, args) = decoded(&[bytes, b"PING\r\n"].concat());
        assert_eq!(
            (front, args),
            (DecodedFront::Command { bytes: bytes.len() }, expected.iter().map(|arg| arg.to_vec()).collect())
        );
        for length in 0..bytes.len() {
            assert_eq!(decoded(&bytes[..length]).0, DecodedFront::Incomplete, "with {length} bytes");
        }
    }

    #[track_caller]
    fn assert_invalid(bytes: &[u8], expected: &str) {
        match decoded(bytes).0 {
            DecodedFront::Invalid(error) => assert!(error.to_string().starts_with(expected), "{error}"),
            other => panic!("{other:?} for {:?}", bytes.escape_ascii().to_string()),
        }
    }

    #[test]
    fn arrays_of_bulk_strings_are_commands() {
        assert_command(b"*1\r\n$4\r\nPING\r\n", &[b"PING"]);
        assert_command(b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", &[b"ECHO", b""]);
        assert_command(b"*2\r\n$004\r\nECHO\r\n$6\r\n\r\n$1\r\n\r\n", &[b"ECHO", b"\r\n$1\r\n"]);
        assert_command(b"*02\r\n$1\r\n\xff\r\n$1\r\n\0\r\n", &[b"\xff", b"\0"]);
        for nothing in [&b"*0\r\n"[..], b"*-1\r\n", b"*-99\r\n", b"\r\n", b"\n", b" \t \r\n"] {
            assert_eq!(decoded(nothing).0, DecodedFront::Empty { bytes: nothing.len() });
        }
    }

    #[test]
    fn inline_commands_may_have_quotes_and_escapes() {
        assert_command(b"PING\r\n", &[b"PING"]);
        assert_command(b"  ECHO\t a  \n", &[b"ECHO", b"a"]);
        assert_command(b"ECHO \"a b\" 'c d' \"\" ''\r\n", &[b"ECHO", b"a b", b"c d", b"", b""]);
        assert_command(
            b"ECHO \"\\x41\\n\\r\\t\\b\\a\\\\\\\"\\q\\xZZ\"\r\n",
            &[b"ECHO", b"A\n\r\t\x08\x07\\\"qxZZ"],
        );
        assert_command(b"ECHO 'a\\'b\\n\"'\r\n", &[b"ECHO", b"a'b\\n\""]);
        assert_command(b"ECHO a\"b c\" \xff\r\n", &[b"ECHO", b"ab c", b"\xff"]);
        assert_command(b"$4\r\n", &[b"$4"]);
    }

    #[test]
    fn protocol_errors_are_those_of_redis() {
        let args =
            |count: usize| [format!("*{count}\r\n").into_bytes(), b"$1\r\nx\r\n".repeat(count)].concat();
        assert!(matches!(decoded(&args(MAX_ARGUMENTS)).0, DecodedFront::Command { .. }));
        assert_invalid(
            &args(MAX_ARGUMENTS + 1),
            "invalid multibulk length: a command has at most 1024 arguments",
        );
        for head in [
            "*1000000\r\n",
            "*99999999999\r\n",
            "*999999999999",
            "*x\r\n",
            "*\r\n",
            "*-\r\n",
            "* 1\r\n",
            "*+1\r\n",
            "*1\n\n",
            "*1\rx",
        ] {
            assert_invalid(head.as_bytes(), "invalid multibulk length");
        }
        for length in ["65537", "99999999999", "999999999999", "-1", "x", "", "-", "+1", "1 "] {
            assert_invalid(
                format!("*1\r\n${length}\r\n").as_bytes(),
                "invalid bulk length: an argument has at most 65536 bytes",
            );
        }
        assert_invalid(b"*1\r\n:1\r\n", "expected '$', got ':'");
        assert_invalid(b"*2\r\n$1\r\nx\r\n*1\r\n", "expected '$', got '*'");
        assert_invalid(b"*1\r\n\xff", "expected '$', got '\\xff'");
        assert_invalid(b"*1\r\n$1\r\nxyz", "an argument does not end where its length says");
        assert_invalid(b"*1\r\n$1\r\nx\n\n", "an argument does not end where its length says");
        for line in ["\"", "'", "ECHO \"a", "ECHO 'a", "ECHO \"a\"b", "ECHO 'a'b", "ECHO \"a\\"] {
            assert_invalid(format!("{line}\r\n").as_bytes(), "unbalanced quotes in request");
        }
        let mut long = vec![b'x'; MAX_LINE_BYTES];
        assert_invalid(&long, "too big inline request");
        long[MAX_LINE_BYTES - 1] = b'\n';
        assert_eq!(decoded(&long).0, DecodedFront::Command { bytes: MAX_LINE_BYTES });
        assert_invalid(&[&b"x ".repeat(MAX_ARGUMENTS + 1)[..], b"\n"].concat(), "invalid multibulk length");
    }

    /// A command that would be too long as a whole is rejected as soon as that is known.
    #[test]
    fn a_command_is_rejected_by_the_lengths_it_announces() {
        let (longest, over) = (MAX_COMMAND_BYTES - 14, MAX_COMMAND_BYTES - 13);
        let with = |length: usize| {
            [format!("*1\r\n${length}\r\n").into_bytes(), vec![b'x'; length], b"\r\n".to_vec()].concat()
        };
        assert_eq!(decoded(&with(longest - 1)).0, DecodedFront::Command { bytes: MAX_COMMAND_BYTES - 1 });
        assert_eq!(decoded(&with(longest)).0, DecodedFront::Command { bytes: MAX_COMMAND_BYTES });
        assert_invalid(format!("*1\r\n${over}\r\n").as_bytes(), "a command has at most 65536 bytes");
        // The other arguments would not fit.
        assert_invalid(
            format!("*1024\r\n${}\r\n", MAX_COMMAND_BYTES - 6000).as_bytes(),
            "a command has at most 65536 bytes",
        );
    }

    #[test]
    fn incomplete_commands_are_decoded_incrementally() {
        let bytes = [b"*3\r\n$1\r\na\r\n$5\r\nhello\r\n".to_vec(), b"$2\r\nxy\r\n".to_vec()].concat();
        let mut decoder = Decoder::default();
        for length in 0..bytes.len() {
            assert_eq!(decoder.decode(&bytes[..length]), DecodedFront::Incomplete);
            assert!(decoder.min_bytes > length || length == 0);
        }
        assert_eq!(decoder.decode(&bytes), DecodedFront::Command { bytes: bytes.len() });
        assert_eq!(decoder.args(&bytes).starting_at(1).collect::<Vec<_>>(), [&b"hello"[..], b"xy"]);
        // Until an argument is complete, nothing is decoded.
        assert_eq!(decoder.decode(b"*1\r\n$60000\r\n"), DecodedFront::Incomplete);
        assert_eq!(decoder.min_bytes, 12 + 60_000 + 2);
        let DecodeProgress::Array { left: 1, at: 4 } = decoder.progress else {
            panic!("{:?}", decoder.progress)
        };
    }
}

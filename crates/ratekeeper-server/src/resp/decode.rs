//! From bytes to commands.
//!
//! A command is a list of byte strings, each behind its length, as every client library sends it; or a line of words, as
//! people type it. Arguments are not copied: a command is where each of them begins and ends. What has been read of a
//! command that is still coming is not read again, and what a client announces costs nothing before it has come.

use super::inline::{UnbalancedQuotes, split};

/// The most arguments of a command, its name among them. A check with all that it may carry has 108.
pub(super) const MAX_ARGUMENTS: usize = 1024;
/// The most bytes of a command, with all that stands around its arguments: as many as a check over HTTP may have.
pub(super) const MAX_COMMAND_BYTES: usize = 64 * 1024;
/// The most bytes of a command on a line. Nobody types more.
pub(super) const MAX_LINE_BYTES: usize = 16 * 1024;
/// The most characters of a length, and its sign. No length that is allowed has more.
const MAX_DIGITS: usize = 11;

/// Where an argument begins and ends.
pub(super) type ArgumentSpan = (u32, u32);

/// Reads the commands of one client, one behind the other.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// The arguments of the command that was found last, or so far.
    spans: Vec<ArgumentSpan>,
    /// The arguments of a command on a line, with quotes and escapes undone.
    line: Vec<u8>,
    progress: DecodeProgress,
    /// With fewer bytes than this there is nothing to find out.
    needs: usize,
}

/// How far the command at the front was read.
#[derive(Clone, Copy, Debug, Default)]
enum DecodeProgress {
    /// Not at all.
    #[default]
    Fresh,
    /// It is a line, and does not end within so many bytes.
    Line { scanned: usize },
    /// It is a list, of which so many arguments are still to come, the next of them at `at`.
    List { left: usize, at: usize },
}

/// What bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecodedFront {
    /// A command of so many bytes: [`Decoder::args`] are its arguments.
    Command { bytes: usize },
    /// So many bytes that mean nothing: a blank line, or an empty list.
    Nothing { bytes: usize },
    /// A part of a command.
    Unfinished,
    /// Something else. Where the next command would begin is anybody's guess.
    Broken(ProtocolError),
}

impl Decoder {
    /// Finds the first command. `bytes` are those of the last call and more, unless that found something.
    #[inline]
    pub(super) fn find(&mut self, bytes: &[u8]) -> DecodedFront {
        if bytes.len() < self.needs {
            return DecodedFront::Unfinished;
        }
        let found = match (self.progress, bytes.first()) {
            (_, None) => return DecodedFront::Unfinished,
            (DecodeProgress::List { left, at }, _) => self.read_list(bytes, left, at),
            (DecodeProgress::Fresh, Some(b'*')) => self.read_head(bytes),
            (DecodeProgress::Fresh, Some(_)) => self.read_line(bytes, 0),
            (DecodeProgress::Line { scanned }, _) => self.read_line(bytes, scanned),
        };
        if found != DecodedFront::Unfinished {
            (self.progress, self.needs) = (DecodeProgress::Fresh, 0);
        }
        found
    }

    /// Whether nothing is known of what comes next.
    #[inline]
    pub(super) fn is_fresh(&self) -> bool {
        self.needs == 0
    }

    /// The arguments of the command that was found, of which `bytes` are the same as then.
    #[inline]
    pub(super) fn args<'a>(&'a self, bytes: &'a [u8]) -> Arguments<'a> {
        // What is typed begins with no asterisk.
        let bytes = if bytes.first() == Some(&b'*') { bytes } else { &self.line };
        Arguments { bytes, spans: &self.spans }
    }

    /// Gives back what an unusually long command took, once nobody needs it any more.
    pub(super) fn shrink(&mut self) {
        self.spans.clear();
        self.spans.shrink_to(KEPT_SPANS);
        self.line.clear();
        self.line.shrink_to(KEPT_LINE_BYTES);
    }

    #[inline]
    fn read_head(&mut self, bytes: &[u8]) -> DecodedFront {
        self.spans.clear();
        match LineNumber::read(&bytes[1..]) {
            LineNumber::Unfinished => self.wait_for(DecodeProgress::Fresh, bytes.len() + 1),
            LineNumber::Is(count, length) => match usize::try_from(count) {
                Ok(0) | Err(_) => DecodedFront::Nothing { bytes: 1 + length },
                Ok(count @ 1..=MAX_ARGUMENTS) => self.read_list(bytes, count, 1 + length),
                Ok(_) => DecodedFront::Broken(ProtocolError::TooManyArguments),
            },
            LineNumber::None => DecodedFront::Broken(ProtocolError::TooManyArguments),
        }
    }

    #[inline]
    fn read_list(&mut self, bytes: &[u8], mut left: usize, mut at: usize) -> DecodedFront {
        while left > 0 {
            let waits = DecodeProgress::List { left, at };
            let begin = match bytes.get(at) {
                Some(b'$') => at + 1,
                Some(other) => return DecodedFront::Broken(ProtocolError::NoLength { found: *other }),
                None => return self.wait_for(waits, at + 1),
            };
            let (length, begin) = match LineNumber::read(&bytes[begin..]) {
                LineNumber::Is(length, digits) => (usize::try_from(length), begin + digits),
                LineNumber::Unfinished => return self.wait_for(waits, bytes.len() + 1),
                LineNumber::None => return DecodedFront::Broken(ProtocolError::BadLength),
            };
            let Ok(length @ ..=MAX_COMMAND_BYTES) = length else {
                return DecodedFront::Broken(ProtocolError::BadLength);
            };
            let end = begin + length;
            // All the others have to fit too, each with a length of at least six bytes and no more than that.
            if end + 2 + (left - 1) * 6 > MAX_COMMAND_BYTES {
                return DecodedFront::Broken(ProtocolError::TooLong);
            }
            match bytes.get(end..end + 2) {
                Some(b"\r\n") => {}
                Some(_) => return DecodedFront::Broken(ProtocolError::NoEnd),
                None => return self.wait_for(waits, end + 2),
            }
            self.spans.push((position(begin), position(end)));
            (at, left) = (end + 2, left - 1);
        }
        DecodedFront::Command { bytes: at }
    }

    fn read_line(&mut self, bytes: &[u8], scanned: usize) -> DecodedFront {
        let most = bytes.len().min(MAX_LINE_BYTES);
        let Some(end) = bytes[scanned..most].iter().position(|byte| *byte == b'\n') else {
            return match most == MAX_LINE_BYTES {
                true => DecodedFront::Broken(ProtocolError::LongLine),
                false => self.wait_for(DecodeProgress::Line { scanned: most }, most + 1),
            };
        };
        let end = scanned + end;
        self.spans.clear();
        match split(&bytes[..end], MAX_ARGUMENTS, &mut self.line, &mut self.spans) {
            Ok(()) if self.spans.is_empty() => DecodedFront::Nothing { bytes: end + 1 },
            Ok(()) if self.spans.len() > MAX_ARGUMENTS => {
                DecodedFront::Broken(ProtocolError::TooManyArguments)
            }
            Ok(()) => DecodedFront::Command { bytes: end + 1 },
            Err(UnbalancedQuotes) => DecodedFront::Broken(ProtocolError::Unbalanced),
        }
    }

    /// Waits until there are so many bytes.
    fn wait_for(&mut self, progress: DecodeProgress, needs: usize) -> DecodedFront {
        (self.progress, self.needs) = (progress, needs);
        DecodedFront::Unfinished
    }
}

/// How much a decoder keeps for the next command.
const KEPT_SPANS: usize = 128;
const KEPT_LINE_BYTES: usize = 1024;

/// A position in a command.
pub(super) fn position(at: usize) -> u32 {
    u32::try_from(at).expect("a command has no more bytes than fit")
}

/// A number on a line of its own.
enum LineNumber {
    /// It is this, in so many bytes with the line's end.
    Is(i64, usize),
    Unfinished,
    None,
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
                        Some(b'\n') => LineNumber::Is(if is_negative { -value } else { value }, index + 2),
                        Some(_) => LineNumber::None,
                        None => LineNumber::Unfinished,
                    };
                }
                b'-' if index == 0 => is_negative = true,
                _ => return LineNumber::None,
            }
        }
        if bytes.len() > MAX_DIGITS { LineNumber::None } else { LineNumber::Unfinished }
    }
}

/// The arguments of a command. The first is its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments<'a> {
    bytes: &'a [u8],
    spans: &'a [ArgumentSpan],
}

impl<'a> Arguments<'a> {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|(begin, end)| &self.bytes[*begin as usize..*end as usize])
    }

    /// Where each of the first ones begins and ends, if there are as many.
    pub(super) fn spans<const N: usize>(&self) -> Option<[(usize, usize); N]> {
        let spans = self.spans.first_chunk::<N>()?;
        Some(spans.map(|(begin, end)| (begin as usize, end as usize)))
    }

    /// The command's name.
    #[inline]
    pub(super) fn name(&self) -> &'a [u8] {
        self.get(0).unwrap_or_default()
    }

    /// All from the one at `first` on.
    pub(super) fn from(self, first: usize) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        (first..self.len()).filter_map(move |index| self.get(index))
    }
}

/// Why what a client sends is no command. The connection ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProtocolError {
    #[error("invalid multibulk length: a command has at most {MAX_ARGUMENTS} arguments")]
    TooManyArguments,
    #[error("invalid bulk length: an argument has at most {MAX_COMMAND_BYTES} bytes")]
    BadLength,
    #[error("a command has at most {MAX_COMMAND_BYTES} bytes with all its arguments")]
    TooLong,
    #[error("expected '$', got '{}': every argument comes behind its length", found.escape_ascii())]
    NoLength { found: u8 },
    #[error("an argument does not end where its length says")]
    NoEnd,
    #[error("too big inline request: a command on a line has at most {MAX_LINE_BYTES} bytes")]
    LongLine,
    #[error("unbalanced quotes in request")]
    Unbalanced,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the bytes begin with, and the arguments if it is a command.
    fn found(bytes: &[u8]) -> (DecodedFront, Vec<Vec<u8>>) {
        let mut decoder = Decoder::default();
        let found = decoder.find(bytes);
        let args = match found {
            DecodedFront::Command { .. } => decoder.args(bytes).from(0).map(<[u8]>::to_vec).collect(),
            _ => Vec::new(),
        };
        (found, args)
    }

    #[track_caller]
    fn command(bytes: &[u8], expected: &[&[u8]]) {
        let (found, args) = found(&[bytes, b"PING\r\n"].concat());
        assert_eq!(
            (found, args),
            (DecodedFront::Command { bytes: bytes.len() }, expected.iter().map(|arg| arg.to_vec()).collect())
        );
        for come in 0..bytes.len() {
            assert_eq!(super::tests::found(&bytes[..come]).0, DecodedFront::Unfinished, "with {come} bytes");
        }
    }

    #[track_caller]
    fn broken(bytes: &[u8], said: &str) {
        match found(bytes).0 {
            DecodedFront::Broken(breach) => assert!(breach.to_string().starts_with(said), "{breach}"),
            other => panic!("{other:?} for {:?}", bytes.escape_ascii().to_string()),
        }
    }

    #[test]
    fn lists_of_byte_strings_are_commands() {
        command(b"*1\r\n$4\r\nPING\r\n", &[b"PING"]);
        command(b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", &[b"ECHO", b""]);
        command(b"*2\r\n$004\r\nECHO\r\n$6\r\n\r\n$1\r\n\r\n", &[b"ECHO", b"\r\n$1\r\n"]);
        command(b"*02\r\n$1\r\n\xff\r\n$1\r\n\0\r\n", &[b"\xff", b"\0"]);
        for nothing in [&b"*0\r\n"[..], b"*-1\r\n", b"*-99\r\n", b"\r\n", b"\n", b" \t \r\n"] {
            assert_eq!(found(nothing).0, DecodedFront::Nothing { bytes: nothing.len() });
        }
    }

    #[test]
    fn lines_are_commands_with_quotes_and_escapes() {
        command(b"PING\r\n", &[b"PING"]);
        command(b"  ECHO\t a  \n", &[b"ECHO", b"a"]);
        command(b"ECHO \"a b\" 'c d' \"\" ''\r\n", &[b"ECHO", b"a b", b"c d", b"", b""]);
        command(b"ECHO \"\\x41\\n\\r\\t\\b\\a\\\\\\\"\\q\\xZZ\"\r\n", &[b"ECHO", b"A\n\r\t\x08\x07\\\"qxZZ"]);
        command(b"ECHO 'a\\'b\\n\"'\r\n", &[b"ECHO", b"a'b\\n\""]);
        command(b"ECHO a\"b c\" \xff\r\n", &[b"ECHO", b"ab c", b"\xff"]);
        command(b"$4\r\n", &[b"$4"]);
    }

    #[test]
    fn what_is_no_command_is_told_as_redis_would() {
        let args =
            |count: usize| [format!("*{count}\r\n").into_bytes(), b"$1\r\nx\r\n".repeat(count)].concat();
        assert!(matches!(found(&args(MAX_ARGUMENTS)).0, DecodedFront::Command { .. }));
        broken(&args(MAX_ARGUMENTS + 1), "invalid multibulk length: a command has at most 1024 arguments");
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
            broken(head.as_bytes(), "invalid multibulk length");
        }
        for length in ["65537", "99999999999", "999999999999", "-1", "x", "", "-", "+1", "1 "] {
            broken(
                format!("*1\r\n${length}\r\n").as_bytes(),
                "invalid bulk length: an argument has at most 65536 bytes",
            );
        }
        broken(b"*1\r\n:1\r\n", "expected '$', got ':'");
        broken(b"*2\r\n$1\r\nx\r\n*1\r\n", "expected '$', got '*'");
        broken(b"*1\r\n\xff", "expected '$', got '\\xff'");
        broken(b"*1\r\n$1\r\nxyz", "an argument does not end where its length says");
        broken(b"*1\r\n$1\r\nx\n\n", "an argument does not end where its length says");
        for line in ["\"", "'", "ECHO \"a", "ECHO 'a", "ECHO \"a\"b", "ECHO 'a'b", "ECHO \"a\\"] {
            broken(format!("{line}\r\n").as_bytes(), "unbalanced quotes in request");
        }
        let mut long = vec![b'x'; MAX_LINE_BYTES];
        broken(&long, "too big inline request");
        long[MAX_LINE_BYTES - 1] = b'\n';
        assert_eq!(found(&long).0, DecodedFront::Command { bytes: MAX_LINE_BYTES });
        broken(&[&b"x ".repeat(MAX_ARGUMENTS + 1)[..], b"\n"].concat(), "invalid multibulk length");
    }

    /// A command that would be too long as a whole is refused as soon as that is known.
    #[test]
    fn a_command_is_refused_for_what_it_announces() {
        let (room, over) = (MAX_COMMAND_BYTES - 14, MAX_COMMAND_BYTES - 13);
        let with = |length: usize| {
            [format!("*1\r\n${length}\r\n").into_bytes(), vec![b'x'; length], b"\r\n".to_vec()].concat()
        };
        assert_eq!(found(&with(room - 1)).0, DecodedFront::Command { bytes: MAX_COMMAND_BYTES - 1 });
        assert_eq!(found(&with(room)).0, DecodedFront::Command { bytes: MAX_COMMAND_BYTES });
        broken(format!("*1\r\n${over}\r\n").as_bytes(), "a command has at most 65536 bytes");
        // There is no room for the others.
        broken(
            format!("*1024\r\n${}\r\n", MAX_COMMAND_BYTES - 6000).as_bytes(),
            "a command has at most 65536 bytes",
        );
    }

    #[test]
    fn what_was_read_is_not_read_again() {
        let bytes = [b"*3\r\n$1\r\na\r\n$5\r\nhello\r\n".to_vec(), b"$2\r\nxy\r\n".to_vec()].concat();
        let mut decoder = Decoder::default();
        for come in 0..bytes.len() {
            assert_eq!(decoder.find(&bytes[..come]), DecodedFront::Unfinished);
            assert!(decoder.needs > come || come == 0);
        }
        assert_eq!(decoder.find(&bytes), DecodedFront::Command { bytes: bytes.len() });
        assert_eq!(decoder.args(&bytes).from(1).collect::<Vec<_>>(), [&b"hello"[..], b"xy"]);
        // While an argument is on its way, nothing is looked at.
        assert_eq!(decoder.find(b"*1\r\n$60000\r\n"), DecodedFront::Unfinished);
        assert_eq!(decoder.needs, 12 + 60_000 + 2);
        let DecodeProgress::List { left: 1, at: 4 } = decoder.progress else {
            panic!("{:?}", decoder.progress)
        };
    }
}

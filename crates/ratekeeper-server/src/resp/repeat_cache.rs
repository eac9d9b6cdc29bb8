//! The call that comes again.
//!
//! A program asks for one limit or a few, over and over, for many keys: of one `CL.THROTTLE` and the next, only the key
//! differs. So what stands around the key is remembered with what it meant, and a command that begins and ends with the
//! same bytes is not read again. Whatever else comes is read as if there were none of this; so what is heard here is
//! exactly what would be read.

use super::decode::Arguments;
use super::throttle::ThrottleCall;
use ratekeeper::rules::Verb;
use ratekeeper::{Limit, MAX_KEY_BYTES};

/// The most bytes in front of a key's length, and behind a key, that are worth remembering.
const MAX_HEAD_BYTES: usize = 32;
const MAX_TAIL_BYTES: usize = 64;

/// What the last call of a connection was, but for its key.
#[derive(Debug)]
pub(super) struct RepeatCache {
    /// All up to the length of the key.
    head: ShortBytes<MAX_HEAD_BYTES>,
    /// All behind the key.
    tail: ShortBytes<MAX_TAIL_BYTES>,
    pub(super) limit: Limit,
    pub(super) verb: Verb,
    pub(super) cost: u32,
}

/// A few bytes.
#[derive(Debug)]
struct ShortBytes<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> ShortBytes<N> {
    fn of(bytes: &[u8]) -> Option<ShortBytes<N>> {
        let mut line = ShortBytes { bytes: [0; N], length: bytes.len() };
        line.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(line)
    }

    #[inline]
    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl RepeatCache {
    /// Remembers a call that was read from `bytes`; nothing if it is too long to be worth it, or was typed.
    pub(super) fn learn(
        bytes: &[u8],
        args: Arguments<'_>,
        throttle: &ThrottleCall<'_>,
        limit: &Limit,
    ) -> Option<RepeatCache> {
        let [(_, name_end), (_, key_end)] = args.spans::<2>().filter(|_| bytes.first() == Some(&b'*'))?;
        // Between the name and the length of the key are the end of a line and a dollar sign.
        let head = ShortBytes::of(&bytes[..name_end + 3])?;
        let tail = ShortBytes::of(&bytes[key_end..])?;
        Some(RepeatCache { head, tail, limit: *limit, verb: throttle.verb, cost: throttle.cost })
    }

    /// The key of the call that `bytes` begin with, and how many bytes that call has, if it is the same call.
    #[inline]
    pub(super) fn hear<'a>(&self, bytes: &'a [u8]) -> Option<(&'a str, usize)> {
        let rest = bytes.strip_prefix(self.head.as_slice())?;
        let (length, digits) = key_length(rest)?;
        let begin = self.head.length + digits;
        let end = begin + length;
        let key = bytes.get(begin..end)?;
        if !bytes[end..].starts_with(self.tail.as_slice()) {
            return None;
        }
        Some((std::str::from_utf8(key).ok()?, end + self.tail.length))
    }
}

/// The length of a key, and in how many bytes it is written with the end of its line.
#[inline]
fn key_length(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut length = 0;
    for (index, byte) in bytes.iter().enumerate().take(5) {
        match byte {
            b'0'..=b'9' => length = length * 10 + usize::from(byte - b'0'),
            b'\r' => {
                let is_key = bytes.get(index + 1) == Some(&b'\n') && (1..=MAX_KEY_BYTES).contains(&length);
                return is_key.then_some((length, index + 2));
            }
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::decode::Decoder;
    use super::super::testing::{list, now, office, told, words};

    const RULES: &str = "default: {limit: 1/day}";

    /// Whatever comes behind a call is answered as if that call had not been.
    #[test]
    fn what_is_heard_is_what_would_be_read() {
        let call = words("CL.THROTTLE k 15 30 60");
        let with_key = |key: &[u8]| list([b"CL.THROTTLE", key, b"15", b"30", b"60"]);
        let spelled = |length: &str| {
            format!("*5\r\n$11\r\nCL.THROTTLE\r\n${length}\r\nabc\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n")
                .into_bytes()
        };
        let mut cases = vec![
            words("CL.THROTTLE abc 15 30 60"),
            words("CL.THROTTLE abc 15 30 61"),
            words("CL.THROTTLE abc 15 30 6"),
            words("CL.THROTTLE abc 15 30 60 1"),
            words("CL.THROTTLE abc 15 30"),
            words("cl.throttle abc 15 30 60"),
            words("RK.CHECK abc /"),
            b"CL.THROTTLE abc 15 30 60\r\n".to_vec(),
            with_key(b""),
            with_key(b"\xff"),
            with_key("é".as_bytes()),
            with_key(b"\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n"),
            with_key(&[b'k'; 4096]),
            with_key(&[b'k'; 4097]),
            with_key(&[b'k'; 10_000]),
            call.clone(),
        ];
        for length in [
            "3",
            "03",
            "003",
            "0003",
            "00003",
            "000000000003",
            "0000000000003",
            "2",
            "4",
            "-3",
            "+3",
            "",
            "x",
            "3 ",
            "99999",
        ] {
            cases.push(spelled(length));
        }
        for case in &cases {
            let (alone, _) = told(&office(RULES, None).0, case);
            let (behind, _) =
                told(&office(RULES, None).0, &[words("CL.THROTTLE other 15 30 60"), case.clone()].concat());
            let first = "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n";
            assert_eq!(behind.strip_prefix(first), Some(&*alone), "{}", case.escape_ascii());
        }
        // However it is cut.
        let twice = [call.clone(), words("CL.THROTTLE abc 15 30 60")].concat();
        for cut in call.len()..twice.len() {
            let (office, _) = office(RULES, None);
            let (mut clerk, mut decoder) = (office.clerk(), Decoder::default());
            let (taken, _) = now(clerk.answer(&mut decoder, &twice[..cut]));
            assert_eq!(taken, call.len());
            clerk.out.clear();
            now(clerk.answer(&mut decoder, &twice[taken..]));
            assert_eq!(clerk.out, b"*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n");
        }
    }

    /// A call that is remembered asks for as much, and in the same way, as when it was read.
    #[test]
    fn quantities_are_remembered_with_the_call() {
        let (office, _) = office(RULES, None);
        let said = told(&office, &words("CL.THROTTLE a 9 1 60 3").repeat(3)).0;
        assert_eq!(said.matches(":0\r\n:10\r\n").count(), 3);
        assert!(
            said.contains("\r\n:7\r\n") && said.contains("\r\n:4\r\n") && said.contains("\r\n:1\r\n"),
            "{said}"
        );
        let look = "*5\r\n:0\r\n:10\r\n:1\r\n:-1\r\n:540\r\n";
        assert_eq!(told(&office, &words("CL.THROTTLE a 9 1 60 0").repeat(3)).0, look.repeat(3));
        let said = told(&office, &words("CL.THROTTLE a 9 1 60 -2").repeat(3)).0;
        assert!(
            said.contains(":3\r\n:-1")
                && said.contains(":5\r\n:-1")
                && said.ends_with(":7\r\n:-1\r\n:180\r\n"),
            "{said}"
        );
    }

    /// What was admitted is not heard from whom it was taken back, nor carried out while it has to wait.
    #[test]
    fn a_call_is_heard_only_from_who_may_ask_now() {
        let (office, _) = office(RULES, Some("0123456789abcdef"));
        let (call, line) = (words("CL.THROTTLE a 9 1 60"), |line: &str| format!("{line}\r\n").into_bytes());
        let auth = line("AUTH 0123456789abcdef");
        let said = told(
            &office,
            &[&auth[..], &call, &line("MULTI"), &call, &line("DISCARD"), &call, &line("RESET"), &call]
                .concat(),
        );
        let answer = |left: u32, reset: u32| format!("*5\r\n:0\r\n:10\r\n:{left}\r\n:-1\r\n:{reset}\r\n");
        let expected = format!(
            "+OK\r\n{}+OK\r\n+QUEUED\r\n+OK\r\n{}+RESET\r\n-NOAUTH Authentication required.\r\n",
            answer(9, 60),
            answer(8, 120)
        );
        assert_eq!(said.0, expected);
    }

    #[test]
    fn a_call_ends_where_it_ended_wherever_it_was_read() {
        let call = words("CL.THROTTLE a 9 1 60");
        let (answer, after) = ("*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:60\r\n", words("CL.THROTTLE b 9 1 60"));
        let pings = b"PING\r\n".to_vec();
        let listed = b"*1\r\n$4\r\nPING\r\n".to_vec();
        let exec = [b"MULTI\r\n", &call[..], &listed, b"EXEC\r\n", &after, &listed].concat();
        let (said, _) = told(&office(RULES, None).0, &exec);
        let waited = "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n";
        assert_eq!(said, [waited, answer, "+PONG\r\n", answer, "+PONG\r\n"].concat());
        let (said, _) = told(&office(RULES, None).0, &[&call[..], &listed, &after, &listed, &pings].concat());
        assert_eq!(said, [answer, "+PONG\r\n", answer, "+PONG\r\n+PONG\r\n"].concat());
    }
}

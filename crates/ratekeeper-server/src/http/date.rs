//! The `date` field, written once a second.

use ratekeeper::Micros;
use std::cell::Cell;
use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

/// A line like `date: Sun, 06 Nov 1994 08:49:37 GMT`, with its CR and LF.
pub(super) type DateLine = [u8; 37];

thread_local! {
    /// The last line that this thread wrote, and its second.
    static LAST: Cell<(u64, DateLine)> = const { Cell::new((u64::MAX, [0; 37])) };
}

/// The line for `now`.
pub(super) fn date_line(now: Micros) -> DateLine {
    let second = now.get() / 1_000_000;
    let (written, line) = LAST.get();
    if written == second {
        return line;
    }
    let line = write(second);
    LAST.set((second, line));
    line
}

fn write(second: u64) -> DateLine {
    let mut line = [0; 37];
    let date = httpdate::HttpDate::from(UNIX_EPOCH + Duration::from_secs(second));
    write!(&mut line[..], "date: {date}\r\n").expect("a date has 29 bytes");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_written_as_http_wants_it_and_again_when_the_second_ends() {
        let line = |micros| String::from_utf8(date_line(Micros::new(micros)).to_vec()).unwrap();
        assert_eq!(line(784_111_777_999_999), "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
        assert_eq!(line(784_111_778_000_000), "date: Sun, 06 Nov 1994 08:49:38 GMT\r\n");
        assert_eq!(line(784_111_777_000_000), "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
        assert_eq!(line(0), "date: Thu, 01 Jan 1970 00:00:00 GMT\r\n");
        // The last instant that a number below 2^53 can name.
        assert_eq!(line((1 << 53) - 1), "date: Tue, 05 Jun 2255 23:47:34 GMT\r\n");
    }
}

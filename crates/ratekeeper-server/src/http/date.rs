//! The `date` header, formatted once a second per thread.

use ratekeeper::Micros;
use std::cell::Cell;
use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

/// A line like `date: Sun, 06 Nov 1994 08:49:37 GMT`, with its CRLF.
pub(super) type DateLine = [u8; 37];

thread_local! {
    /// The second of this thread's last line, and that line.
    static CACHED: Cell<(u64, DateLine)> = const { Cell::new((u64::MAX, [0; 37])) };
}

/// The `date` line for `now`.
pub(super) fn date_line(now: Micros) -> DateLine {
    let second = now.get() / 1_000_000;
    let (cached, line) = CACHED.get();
    if cached == second {
        return line;
    }
    let line = format_date_line(second);
    CACHED.set((second, line));
    line
}

fn format_date_line(second: u64) -> DateLine {
    let mut line = [0; 37];
    let date = httpdate::HttpDate::from(UNIX_EPOCH + Duration::from_secs(second));
    write!(&mut line[..], "date: {date}\r\n").expect("a date has 29 bytes");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_in_http_format_and_change_every_second() {
        let line = |micros| String::from_utf8(date_line(Micros::new(micros)).to_vec()).unwrap();
        assert_eq!(line(784_111_777_999_999), "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
        assert_eq!(line(784_111_778_000_000), "date: Sun, 06 Nov 1994 08:49:38 GMT\r\n");
        assert_eq!(line(784_111_777_000_000), "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
        assert_eq!(line(0), "date: Thu, 01 Jan 1970 00:00:00 GMT\r\n");
        // The last instant in microseconds below 2^53.
        assert_eq!(line((1 << 53) - 1), "date: Tue, 05 Jun 2255 23:47:34 GMT\r\n");
    }
}

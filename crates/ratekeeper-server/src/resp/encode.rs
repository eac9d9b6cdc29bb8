//! The five integers of a decision, as redis-cell has them.
//!
//! Whether it was limited; the limit; what is left of it; how many seconds to wait, -1 if it was allowed or never will
//! be; in how many seconds everything is back. Seconds are rounded up.

use crate::api::{RETRY_CLOSED_SECS, fails_closed};
use ratekeeper::{BindingLimit, Micros, Retry, RuleDecision};

/// As many bytes as five integers can take: the largest has ten digits, and a span of time no more.
const MAX_BYTES: usize = 4 + 5 * 14;

/// Writes the reply to a decision, and gives the time when a limit said so.
#[inline]
pub(super) fn write(verdict: &RuleDecision<'_>, out: &mut Vec<u8>) -> Option<Micros> {
    let binding = verdict.binding();
    let [limit, remaining, retry_after, reset_after] = match &binding {
        Some(BindingLimit { limit, outlook, .. }) => {
            let retry_after = match outlook.retry {
                // At least one: a client that is told 0 comes back at once and is refused again.
                Some(Retry::After(wait)) => Some(wait.secs_up().max(1)),
                Some(Retry::Never) | None => None,
            };
            let (limit, remaining) = (u64::from(limit.capacity()), u64::from(outlook.remaining));
            [Some(limit), Some(remaining), retry_after, Some(outlook.reset.secs_up())]
        }
        // Without a limit there is no bound to tell, nor what is left if the store gave no answer.
        None if verdict.is_allowed() => [None, None, None, Some(0)],
        None if fails_closed(verdict) => [Some(0), Some(0), Some(RETRY_CLOSED_SECS), Some(0)],
        // On the deny list nothing is left, ever.
        None => [Some(0), Some(0), None, Some(0)],
    };
    out.reserve(MAX_BYTES);
    out.extend_from_slice(if verdict.is_allowed() { b"*5\r\n:0\r\n:" } else { b"*5\r\n:1\r\n:" });
    for (figure, end) in [(limit, b"\r\n:"), (remaining, b"\r\n:"), (retry_after, b"\r\n:")] {
        number(figure, out);
        out.extend_from_slice(end);
    }
    number(reset_after, out);
    out.extend_from_slice(b"\r\n");
    binding.map(|binding| binding.now)
}

/// Writes a number; -1 if there is none.
#[inline]
fn number(number: Option<u64>, out: &mut Vec<u8>) {
    match number {
        None => out.extend_from_slice(b"-1"),
        Some(digit @ 0..=9) => out.push(b'0' + u8::try_from(digit).unwrap_or(0)),
        Some(number) => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
    }
}

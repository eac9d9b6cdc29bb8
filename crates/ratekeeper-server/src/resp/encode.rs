//! Encodes a decision as five integers, like redis-cell.
//!
//! 1 if it was denied; the limit; the units left; the seconds to wait, -1 if it was allowed or never will be; the
//! seconds until the limit is full again. Seconds are rounded up.

use crate::api::{FAIL_CLOSED_RETRY_SECS, fails_closed};
use ratekeeper::{BindingLimit, Micros, Retry, RuleDecision};

/// The maximum size of a reply: no integer has more than ten digits, spans of time included.
const MAX_BYTES: usize = 4 + 5 * 14;

/// Writes the reply to a decision, and returns the time of the decision if a limit made it.
#[inline]
pub(super) fn write(decision: &RuleDecision<'_>, out: &mut Vec<u8>) -> Option<Micros> {
    let binding = decision.binding();
    let [limit, remaining, retry_after, reset_after] = match &binding {
        Some(BindingLimit { limit, forecast: outlook, .. }) => {
            let retry_after = match outlook.retry {
                // At least 1: after 0 a client would retry at once and be denied again.
                Some(Retry::After(wait)) => Some(wait.secs_ceil().max(1)),
                Some(Retry::Never) | None => None,
            };
            let (limit, remaining) = (u64::from(limit.capacity()), u64::from(outlook.remaining));
            [Some(limit), Some(remaining), retry_after, Some(outlook.reset.secs_ceil())]
        }
        // Without a limit, or if the store did not answer, there is no limit and no remaining to report.
        None if decision.is_allowed() => [None, None, None, Some(0)],
        None if fails_closed(decision) => [Some(0), Some(0), Some(FAIL_CLOSED_RETRY_SECS), Some(0)],
        // On the deny list: a retry never helps.
        None => [Some(0), Some(0), None, Some(0)],
    };
    out.reserve(MAX_BYTES);
    out.extend_from_slice(if decision.is_allowed() { b"*5\r\n:0\r\n:" } else { b"*5\r\n:1\r\n:" });
    for (value, end) in [(limit, b"\r\n:"), (remaining, b"\r\n:"), (retry_after, b"\r\n:")] {
        number(value, out);
        out.extend_from_slice(end);
    }
    number(reset_after, out);
    out.extend_from_slice(b"\r\n");
    binding.map(|binding| binding.now)
}

/// Writes a number, -1 for `None`.
#[inline]
fn number(number: Option<u64>, out: &mut Vec<u8>) {
    match number {
        None => out.extend_from_slice(b"-1"),
        Some(digit @ 0..=9) => out.push(b'0' + u8::try_from(digit).unwrap_or(0)),
        Some(number) => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
    }
}

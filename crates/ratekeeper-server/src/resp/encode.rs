//! Encodes a decision as five integers, like redis-cell.
//!
//! 1 if it was denied; the limit; the units left; the seconds to wait, -1 if it was allowed or never will be; the
//! seconds until the limit is full again. Seconds are rounded up.

use crate::api::{WireNumbers, write_digits};
use ratekeeper::{Micros, RuleDecision};

/// The maximum size of a reply: no integer has more than ten digits, spans of time included.
const MAX_BYTES: usize = 4 + 5 * 14;

/// Writes the reply to a decision, and returns the time of the decision if a limit made it.
#[inline]
pub(super) fn write(decision: &RuleDecision<'_>, out: &mut Vec<u8>) -> Option<Micros> {
    let WireNumbers { limit, remaining, retry_after, reset_after, .. } = WireNumbers::from_decision(decision);
    let is_allowed = decision.is_allowed();
    // A denial without a limit has none to report: the client is on the deny list, or the store does not answer.
    let limit = limit.map(|(limit, _)| limit).or((!is_allowed).then_some(0));
    out.reserve(MAX_BYTES);
    out.extend_from_slice(if is_allowed { b"*5\r\n:0" } else { b"*5\r\n:1" });
    for value in [limit.map(u64::from), remaining.map(u64::from), retry_after, Some(reset_after)] {
        out.extend_from_slice(b"\r\n:");
        match value {
            Some(value) => write_digits(out, value),
            None => out.extend_from_slice(b"-1"),
        }
    }
    out.extend_from_slice(b"\r\n");
    decision.binding().map(|binding| binding.now)
}

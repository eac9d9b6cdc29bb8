//! The JSON of a decision.

use super::headers::{WireNumbers, write_digits};
use ratekeeper::{Reason, RuleDecision};

/// The response of `/check`: four fields, in this order.
pub(crate) fn write_short(decision: &RuleDecision<'_>, numbers: &WireNumbers, out: &mut Vec<u8>) {
    out.extend_from_slice(if decision.is_allowed() { b"{\"allowed\":true" } else { b"{\"allowed\":false" });
    out.extend_from_slice(b",\"remaining\":");
    match (numbers.remaining, decision.reason()) {
        (Some(remaining), _) => write_digits(out, remaining.into()),
        (None, Reason::Degraded) => out.extend_from_slice(b"-1"),
        // The highest possible cost: no limit applies.
        (None, _) => write_digits(out, u32::MAX.into()),
    }
    out.extend_from_slice(b",\"reset_at\":");
    write_digits(out, numbers.reset_at);
    write_retry_after(numbers, out);
    out.push(b'}');
}

/// The response of routes under `/v1`: the fields of `/check`, the applied limit and rule, and the reason.
pub(crate) fn write_full(decision: &RuleDecision<'_>, numbers: &WireNumbers, out: &mut Vec<u8>) {
    out.extend_from_slice(if decision.is_allowed() { b"{\"allowed\":true" } else { b"{\"allowed\":false" });
    let or_null = |name: &[u8], value: Option<u64>, out: &mut Vec<u8>| {
        out.extend_from_slice(name);
        match value {
            Some(value) => write_digits(out, value),
            None => out.extend_from_slice(b"null"),
        }
    };
    match (numbers.remaining, decision.reason()) {
        (None, Reason::Degraded) => out.extend_from_slice(b",\"remaining\":-1"),
        (remaining, _) => or_null(b",\"remaining\":", remaining.map(Into::into), out),
    }
    or_null(b",\"reset_at\":", numbers.limit.map(|_| numbers.reset_at), out);
    write_retry_after(numbers, out);
    or_null(b",\"limit\":", numbers.limit.map(|(limit, _)| limit.into()), out);
    or_null(b",\"window\":", numbers.limit.map(|(_, window)| window), out);
    out.extend_from_slice(b",\"rule\":");
    match decision.rule() {
        // A rule id has no characters that need escaping in JSON.
        Some(rule) => {
            out.push(b'"');
            out.extend_from_slice(rule.id().as_bytes());
            out.push(b'"');
        }
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"reason\":\"");
    out.extend_from_slice(decision.reason().name().as_bytes());
    out.extend_from_slice(b"\"}");
}

fn write_retry_after(numbers: &WireNumbers, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"retry_after\":");
    match numbers.retry_after {
        Some(seconds) => write_digits(out, seconds),
        None => out.extend_from_slice(b"null"),
    }
}

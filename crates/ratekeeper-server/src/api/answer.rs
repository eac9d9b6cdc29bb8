//! What a client hears, as JSON.

use super::headers::{WireNumbers, digits};
use ratekeeper::{Reason, RuleDecision};

/// What `/check` answers: these four fields, in this order.
pub(crate) fn short(verdict: &RuleDecision<'_>, figures: &WireNumbers, out: &mut Vec<u8>) {
    out.extend_from_slice(if verdict.is_allowed() { b"{\"allowed\":true" } else { b"{\"allowed\":false" });
    out.extend_from_slice(b",\"remaining\":");
    match (figures.remaining, verdict.cause()) {
        (Some(remaining), _) => digits(out, remaining.into()),
        (None, Reason::Degraded) => out.extend_from_slice(b"-1"),
        // As much as a cost can be: no limit binds.
        (None, _) => digits(out, u32::MAX.into()),
    }
    out.extend_from_slice(b",\"reset_at\":");
    digits(out, figures.reset_at);
    retry_after(figures, out);
    out.push(b'}');
}

/// What everything under `/v1` answers: the four fields of `/check`, and why.
pub(crate) fn full(verdict: &RuleDecision<'_>, figures: &WireNumbers, out: &mut Vec<u8>) {
    out.extend_from_slice(if verdict.is_allowed() { b"{\"allowed\":true" } else { b"{\"allowed\":false" });
    let or_null = |name: &[u8], value: Option<u64>, out: &mut Vec<u8>| {
        out.extend_from_slice(name);
        match value {
            Some(value) => digits(out, value),
            None => out.extend_from_slice(b"null"),
        }
    };
    match (figures.remaining, verdict.cause()) {
        (None, Reason::Degraded) => out.extend_from_slice(b",\"remaining\":-1"),
        (remaining, _) => or_null(b",\"remaining\":", remaining.map(Into::into), out),
    }
    or_null(b",\"reset_at\":", figures.limit.map(|_| figures.reset_at), out);
    retry_after(figures, out);
    or_null(b",\"limit\":", figures.limit.map(|(limit, _)| limit.into()), out);
    or_null(b",\"window\":", figures.limit.map(|(_, window)| window), out);
    out.extend_from_slice(b",\"rule\":");
    match verdict.rule() {
        // An id has no character that JSON would have escaped.
        Some(rule) => {
            out.push(b'"');
            out.extend_from_slice(rule.id().as_bytes());
            out.push(b'"');
        }
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"reason\":\"");
    out.extend_from_slice(reason(verdict.cause()).as_bytes());
    out.extend_from_slice(b"\"}");
}

fn retry_after(figures: &WireNumbers, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"retry_after\":");
    match figures.retry_after {
        Some(seconds) => digits(out, seconds),
        None => out.extend_from_slice(b"null"),
    }
}

/// Why, in a word.
pub(crate) fn reason(cause: Reason) -> &'static str {
    match cause {
        Reason::Limit => "limit",
        Reason::NoRule => "no_rule",
        Reason::AllowList => "allow_list",
        Reason::DenyList => "deny_list",
        Reason::Emergency => "emergency",
        Reason::Degraded => "degraded",
        Reason::UnknownTier => "unknown_tier",
        Reason::Missing => "missing",
    }
}

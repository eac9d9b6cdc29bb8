//! The rate limit headers of a response.

use ratekeeper::{BindingLimit, Reason, Retry, RuleDecision};
use std::io::Write;

/// Which rate limit headers a response has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimitHeaders {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, with this form of the reset time. `None` for no such headers.
    pub legacy: Option<ResetForm>,
    /// `RateLimit` and `RateLimit-Policy`, as in the current IETF draft.
    pub ietf: bool,
    /// `RateLimit: limit=, remaining=, reset=` and `RateLimit-Policy`, as in draft 7.
    pub draft_7: bool,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset` and `-Policy`, as in draft 6.
    pub draft_6: bool,
}

/// The form of `X-RateLimit-Reset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetForm {
    /// Unix seconds.
    Epoch,
    /// Seconds from now.
    Delta,
}

impl RateLimitHeaders {
    const NONE: RateLimitHeaders =
        RateLimitHeaders { legacy: None, ietf: false, draft_7: false, draft_6: false };
}

impl Default for RateLimitHeaders {
    fn default() -> RateLimitHeaders {
        RateLimitHeaders { legacy: Some(ResetForm::Epoch), ietf: true, draft_7: false, draft_6: false }
    }
}

/// The `Retry-After` of a request that was denied because the store failed: it may answer again by then.
pub(crate) const FAIL_CLOSED_RETRY_SECS: u64 = 1;

/// Whether the request was denied because the store failed and its limit fails closed.
pub(crate) fn fails_closed(decision: &RuleDecision<'_>) -> bool {
    decision.reason() == Reason::Degraded && !decision.is_allowed() && decision.binding().is_none()
}

/// A decision as the whole numbers in headers and bodies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WireNumbers {
    /// The capacity of the limit and its window in seconds. `None` if no limit applies.
    pub(crate) limit: Option<(u32, u64)>,
    /// The units left. `None` if no limit applies.
    pub(crate) remaining: Option<u32>,
    /// In Unix seconds.
    pub(crate) reset_at: u64,
    /// In seconds.
    pub(crate) reset_after: u64,
    /// In seconds. `None` if the request was allowed, or can never be.
    pub(crate) retry_after: Option<u64>,
}

impl WireNumbers {
    #[inline]
    pub(crate) fn from_decision(decision: &RuleDecision<'_>) -> WireNumbers {
        let Some(BindingLimit { limit, now, forecast: outlook }) = decision.binding() else {
            // Without a limit, nothing was taken, so there is nothing to reset.
            let remaining = (!decision.is_allowed()).then_some(0);
            let retry_after = fails_closed(decision).then_some(FAIL_CLOSED_RETRY_SECS);
            return WireNumbers { limit: None, remaining, reset_at: 0, reset_after: 0, retry_after };
        };
        WireNumbers {
            limit: Some((limit.capacity(), limit.window().secs_ceil().max(1))),
            remaining: Some(outlook.remaining),
            reset_at: now.plus(outlook.reset).get().div_ceil(1_000_000),
            reset_after: outlook.reset.secs_ceil(),
            retry_after: match outlook.retry {
                // At least 1: a client that gets 0 would retry at once and be denied again.
                Some(Retry::After(wait)) => Some(wait.secs_ceil().max(1)),
                Some(Retry::Never) | None => None,
            },
        }
    }
}

/// Writes the headers of a decision as HTTP/1 header lines.
pub(crate) fn write(
    profile: RateLimitHeaders,
    decision: &RuleDecision<'_>,
    numbers: &WireNumbers,
    out: &mut Vec<u8>,
) {
    if decision.reason() == Reason::Degraded && profile != RateLimitHeaders::NONE {
        write_header(out, "x-ratelimit-policy", format_args!("degraded"));
        if numbers.remaining.is_none() && profile.legacy.is_some() {
            write_header(out, "x-ratelimit-remaining", format_args!("-1"));
        }
    }
    if let (Some((limit, window)), Some(remaining)) = (numbers.limit, numbers.remaining) {
        let reset = numbers.reset_after;
        if let Some(form) = profile.legacy {
            write_number_header(out, b"x-ratelimit-limit: ", limit.into());
            write_number_header(out, b"x-ratelimit-remaining: ", remaining.into());
            let reset = if form == ResetForm::Epoch { numbers.reset_at } else { reset };
            write_number_header(out, b"x-ratelimit-reset: ", reset);
        }
        if profile.ietf {
            write_policies(decision, out);
            // Seconds until a denied client may retry, or else until the limit is fully reset. `Retry-After` is never
            // sooner.
            let wait = numbers.retry_after.unwrap_or(reset);
            if let Some(name) = decision.limit_name() {
                out.extend_from_slice(b"ratelimit: \"");
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(b"\";r=");
                write_digits(out, remaining.into());
                write_number_header(out, b";t=", wait);
            }
        }
        if profile.draft_7 {
            let text = format_args!("limit={limit}, remaining={remaining}, reset={reset}");
            write_header(out, "ratelimit", text);
        }
        if profile.draft_6 {
            write_number_header(out, b"ratelimit-limit: ", limit.into());
            write_number_header(out, b"ratelimit-remaining: ", remaining.into());
            write_number_header(out, b"ratelimit-reset: ", reset);
        }
        if (profile.draft_7 || profile.draft_6) && !profile.ietf {
            write_header(out, "ratelimit-policy", format_args!("{limit};w={window}"));
        }
    }
    if let Some(seconds) = numbers.retry_after {
        write_number_header(out, b"retry-after: ", seconds);
    }
}

/// Writes `RateLimit-Policy: "name";q=100;w=60, ...`: every limit that the request had to pass.
fn write_policies(decision: &RuleDecision<'_>, out: &mut Vec<u8>) {
    let mut lead: &[u8] = b"ratelimit-policy: \"";
    for policy in decision.policies() {
        out.extend_from_slice(lead);
        out.extend_from_slice(policy.name.as_bytes());
        out.extend_from_slice(b"\";q=");
        write_digits(out, policy.limit.capacity().into());
        out.extend_from_slice(b";w=");
        write_digits(out, policy.limit.window().secs_ceil().max(1));
        lead = b", \"";
    }
    if lead.starts_with(b",") {
        out.extend_from_slice(b"\r\n");
    }
}

fn write_header(out: &mut Vec<u8>, name: &str, value: std::fmt::Arguments<'_>) {
    write!(out, "{name}: {value}\r\n").expect("writing to memory does not fail");
}

fn write_number_header(out: &mut Vec<u8>, name: &[u8], value: u64) {
    out.extend_from_slice(name);
    write_digits(out, value);
    out.extend_from_slice(b"\r\n");
}

/// Writes a number in decimal.
pub(crate) fn write_digits(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

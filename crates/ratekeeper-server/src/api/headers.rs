//! The rate limit headers of a response.

use ratekeeper::{BindingLimit, Reason, Retry, RuleDecision};
use std::cell::RefCell;
use std::fmt;
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
const FAIL_CLOSED_RETRY_SECS: u64 = 1;

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

thread_local! {
    /// Space for the value of a header. Each thread keeps one, so that a warm server allocates nothing.
    static VALUE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `put` with the name and the value of each rate limit header of a decision, in the order in which they are sent.
/// Names are in lower case; no part of a value comes from a client.
pub(crate) fn for_each_header(
    profile: RateLimitHeaders,
    decision: &RuleDecision<'_>,
    numbers: &WireNumbers,
    mut put: impl FnMut(&'static str, &[u8]),
) {
    if decision.reason() == Reason::Degraded && profile != RateLimitHeaders::NONE {
        put("x-ratelimit-policy", b"degraded");
        if numbers.remaining.is_none() && profile.legacy.is_some() {
            put("x-ratelimit-remaining", b"-1");
        }
    }
    if let (Some((limit, window)), Some(remaining)) = (numbers.limit, numbers.remaining) {
        let reset = numbers.reset_after;
        if let Some(form) = profile.legacy {
            put_number("x-ratelimit-limit", limit.into(), &mut put);
            put_number("x-ratelimit-remaining", remaining.into(), &mut put);
            let reset = if form == ResetForm::Epoch { numbers.reset_at } else { reset };
            put_number("x-ratelimit-reset", reset, &mut put);
        }
        let mut value = VALUE.take();
        if profile.ietf {
            value.clear();
            write_policies(decision, &mut value);
            if !value.is_empty() {
                put("ratelimit-policy", &value);
            }
            if let Some(name) = decision.limit_name() {
                value.clear();
                value.push(b'"');
                value.extend_from_slice(name.as_bytes());
                value.extend_from_slice(b"\";r=");
                write_digits(&mut value, remaining.into());
                value.extend_from_slice(b";t=");
                // Seconds until a denied client may retry, or else until the limit is fully reset. `Retry-After` is
                // never sooner.
                write_digits(&mut value, numbers.retry_after.unwrap_or(reset));
                put("ratelimit", &value);
            }
        }
        let mut put_text = |name, text: fmt::Arguments<'_>| {
            value.clear();
            value.write_fmt(text).expect("writing to memory does not fail");
            put(name, &value);
        };
        if profile.draft_7 {
            put_text("ratelimit", format_args!("limit={limit}, remaining={remaining}, reset={reset}"));
        }
        if profile.draft_6 {
            put_text("ratelimit-limit", format_args!("{limit}"));
            put_text("ratelimit-remaining", format_args!("{remaining}"));
            put_text("ratelimit-reset", format_args!("{reset}"));
        }
        if (profile.draft_7 || profile.draft_6) && !profile.ietf {
            put_text("ratelimit-policy", format_args!("{limit};w={window}"));
        }
        VALUE.replace(value);
    }
    if let Some(seconds) = numbers.retry_after {
        put_number("retry-after", seconds, &mut put);
    }
}

/// Writes `"name";q=100;w=60, ...`: every limit that the request had to pass.
fn write_policies(decision: &RuleDecision<'_>, out: &mut Vec<u8>) {
    for policy in decision.policies() {
        out.extend_from_slice(if out.is_empty() { &b"\""[..] } else { b", \"" });
        out.extend_from_slice(policy.name.as_bytes());
        out.extend_from_slice(b"\";q=");
        write_digits(out, policy.limit.capacity().into());
        out.extend_from_slice(b";w=");
        write_digits(out, policy.limit.window().secs_ceil().max(1));
    }
}

fn put_number(name: &'static str, value: u64, put: &mut impl FnMut(&'static str, &[u8])) {
    put(name, itoa::Buffer::new().format(value).as_bytes());
}

/// Writes a number in decimal.
#[inline]
pub(crate) fn write_digits(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

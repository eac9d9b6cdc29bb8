//! The header fields that tell a client where it stands.

use ratekeeper::{BindingLimit, Reason, Retry, RuleDecision};
use std::io::Write;

/// Which fields an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldProfile {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, and what the last one is counted from.
    pub legacy: Option<ResetForm>,
    /// `RateLimit` and `RateLimit-Policy`, as the current IETF draft has them.
    pub ietf: bool,
    /// `RateLimit: limit=, remaining=, reset=` and `RateLimit-Policy`, as its seventh version had them.
    pub draft_7: bool,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset` and `-Policy`, as its sixth version had them.
    pub draft_6: bool,
}

/// What a reset is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetForm {
    /// The beginning of 1970.
    Epoch,
    /// Now.
    Delta,
}

impl FieldProfile {
    const NONE: FieldProfile = FieldProfile { legacy: None, ietf: false, draft_7: false, draft_6: false };
}

impl Default for FieldProfile {
    fn default() -> FieldProfile {
        FieldProfile { legacy: Some(ResetForm::Epoch), ietf: true, draft_7: false, draft_6: false }
    }
}

/// How soon somebody may ask again who was refused because the store gave no answer: by then it may.
pub(crate) const RETRY_CLOSED_SECS: u64 = 1;

/// Whether it was refused because the store gave no answer, whatever its limits would have said.
pub(crate) fn fails_closed(verdict: &RuleDecision<'_>) -> bool {
    verdict.cause() == Reason::Degraded && !verdict.is_allowed() && verdict.binding().is_none()
}

/// What a verdict says, in the whole numbers that fields and bodies have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WireNumbers {
    /// How much a draw can get at most, and in how many seconds it comes back; nothing where no limit binds.
    pub(crate) limit: Option<(u32, u64)>,
    /// How much is left; nothing where no limit binds.
    pub(crate) remaining: Option<u32>,
    pub(crate) reset_at: u64,
    /// In seconds.
    pub(crate) reset_after: u64,
    /// In seconds; nothing if it was allowed, or never will be.
    pub(crate) retry_after: Option<u64>,
}

impl WireNumbers {
    #[inline]
    pub(crate) fn of(verdict: &RuleDecision<'_>) -> WireNumbers {
        let Some(BindingLimit { limit, now, outlook }) = verdict.binding() else {
            // Where no limit binds, nothing was ever out.
            let remaining = (!verdict.is_allowed()).then_some(0);
            let retry_after = fails_closed(verdict).then_some(RETRY_CLOSED_SECS);
            return WireNumbers { limit: None, remaining, reset_at: 0, reset_after: 0, retry_after };
        };
        WireNumbers {
            limit: Some((limit.capacity(), limit.window().secs_up().max(1))),
            remaining: Some(outlook.remaining),
            reset_at: now.plus(outlook.reset).get().div_ceil(1_000_000),
            reset_after: outlook.reset.secs_up(),
            retry_after: match outlook.retry {
                // At least one: a client that is told 0 comes back at once and is refused again.
                Some(Retry::After(wait)) => Some(wait.secs_up().max(1)),
                Some(Retry::Never) | None => None,
            },
        }
    }
}

/// Writes the fields of a verdict, each on a line of its own as HTTP/1 has them.
pub(crate) fn write(
    profile: FieldProfile,
    verdict: &RuleDecision<'_>,
    figures: &WireNumbers,
    out: &mut Vec<u8>,
) {
    if verdict.cause() == Reason::Degraded && profile != FieldProfile::NONE {
        put(out, "x-ratelimit-policy", format_args!("degraded"));
        if figures.remaining.is_none() && profile.legacy.is_some() {
            put(out, "x-ratelimit-remaining", format_args!("-1"));
        }
    }
    if let (Some((limit, window)), Some(remaining)) = (figures.limit, figures.remaining) {
        let reset = figures.reset_after;
        if let Some(form) = profile.legacy {
            number(out, b"x-ratelimit-limit: ", limit.into());
            number(out, b"x-ratelimit-remaining: ", remaining.into());
            let reset = if form == ResetForm::Epoch { figures.reset_at } else { reset };
            number(out, b"x-ratelimit-reset: ", reset);
        }
        if profile.ietf {
            policies(verdict, out);
            // Until a refused client may come back; else until all is back. `Retry-After` is never sooner.
            let wait = figures.retry_after.unwrap_or(reset);
            if let Some(name) = verdict.limit_name() {
                out.extend_from_slice(b"ratelimit: \"");
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(b"\";r=");
                digits(out, remaining.into());
                number(out, b";t=", wait);
            }
        }
        if profile.draft_7 {
            let text = format_args!("limit={limit}, remaining={remaining}, reset={reset}");
            put(out, "ratelimit", text);
        }
        if profile.draft_6 {
            number(out, b"ratelimit-limit: ", limit.into());
            number(out, b"ratelimit-remaining: ", remaining.into());
            number(out, b"ratelimit-reset: ", reset);
        }
        if (profile.draft_7 || profile.draft_6) && !profile.ietf {
            put(out, "ratelimit-policy", format_args!("{limit};w={window}"));
        }
    }
    if let Some(seconds) = figures.retry_after {
        number(out, b"retry-after: ", seconds);
    }
}

/// `RateLimit-Policy: "name";q=100;w=60, ...`: every limit that the request had to pass.
fn policies(verdict: &RuleDecision<'_>, out: &mut Vec<u8>) {
    let mut lead: &[u8] = b"ratelimit-policy: \"";
    for policy in verdict.policies() {
        out.extend_from_slice(lead);
        out.extend_from_slice(policy.name.as_bytes());
        out.extend_from_slice(b"\";q=");
        digits(out, policy.limit.capacity().into());
        out.extend_from_slice(b";w=");
        digits(out, policy.limit.window().secs_up().max(1));
        lead = b", \"";
    }
    if lead.starts_with(b",") {
        out.extend_from_slice(b"\r\n");
    }
}

fn put(out: &mut Vec<u8>, name: &str, value: std::fmt::Arguments<'_>) {
    write!(out, "{name}: {value}\r\n").expect("memory can be written to");
}

fn number(out: &mut Vec<u8>, name: &[u8], value: u64) {
    out.extend_from_slice(name);
    digits(out, value);
    out.extend_from_slice(b"\r\n");
}

/// Writes a number in digits.
pub(crate) fn digits(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

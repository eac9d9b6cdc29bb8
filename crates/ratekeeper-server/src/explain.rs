//! What a request would be held to right now: by which rules, what is left, and what this node has in hand of it.

use crate::api::{read_check, reason};
use crate::http::HttpError;
use ratekeeper::rules::Verb;
use ratekeeper::{AppliedLimit, KeyLease, Retry, RuleLimiter, Span, Store, StoreHealth};
use serde::Serialize;
use std::time::Duration;

/// The answer: what `ratekeeper rules explain` says of these rules, and how it stands.
#[derive(Serialize)]
pub(crate) struct ExplainAnswer {
    allowed: bool,
    reason: &'static str,
    /// Every limit that binds, shadows too.
    limits: Vec<ExplainedLimit>,
    #[serde(flatten)]
    rules: serde_json::Value,
}

#[derive(Serialize)]
struct ExplainedLimit {
    rule: Option<String>,
    name: String,
    limit: String,
    shadow: bool,
    /// What the store, or without it this node, would still grant; nothing if neither says.
    remaining: Option<u32>,
    reset_after_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<ExplainedLease>,
}

/// What this node was lent of the key.
#[derive(Serialize)]
struct ExplainedLease {
    in_hand: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_in_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_for_ms: Option<f64>,
    /// Whether the store gave no answer when it was last told.
    mute: bool,
    units_per_second: f32,
    units_lent: u64,
    units_spent: u64,
    units_returned: u64,
    units_forfeited: u64,
    checks: u32,
    checks_asked: u32,
    checks_refused: u32,
    checks_refused_stale: u32,
}

/// Explains the check in a body, and takes nothing.
pub(crate) async fn explain<S: Store + StoreHealth>(
    gate: &RuleLimiter<S>,
    body: &[u8],
) -> Result<ExplainAnswer, HttpError> {
    let mut docket = gate.begin();
    let rules = read_check(body, false)?.with_request(|request| {
        gate.add(&mut docket, Verb::Peek, request);
        docket.rules().explain(request, || gate.clock().now()).to_json()
    });
    // While the store is away each limit is divided, so this is looked up before it is asked.
    let mut limits: Vec<ExplainedLimit> =
        docket.held_to(0).map(|held| ExplainedLimit::of(&held, gate.store())).collect();
    gate.settle(&mut docket).await;
    for (limit, held) in limits.iter_mut().zip(docket.held_to(0)) {
        limit.note(&held);
    }
    let verdict = docket.verdict(0);
    Ok(ExplainAnswer { allowed: verdict.is_allowed(), reason: reason(verdict.cause()), limits, rules })
}

impl ExplainedLimit {
    fn of(held: &AppliedLimit<'_>, store: &impl StoreHealth) -> ExplainedLimit {
        let policy = &held.policy;
        ExplainedLimit {
            rule: policy.rule.map(|rule| rule.id().to_owned()),
            name: policy.name.to_owned(),
            limit: policy.limit.to_string(),
            shadow: held.is_shadow,
            remaining: None,
            reset_after_ms: None,
            retry_after_ms: None,
            lease: store.lease(held.key, held.scope, policy.limit).map(ExplainedLease::of),
        }
    }

    /// Notes what the limit said.
    fn note(&mut self, held: &AppliedLimit<'_>) {
        if !held.is_decided {
            return;
        }
        let outlook = held.policy.reading.outlook();
        self.remaining = Some(outlook.remaining);
        self.reset_after_ms = Some(millis(outlook.reset));
        self.retry_after_ms = match outlook.retry {
            Some(Retry::After(wait)) => Some(millis(wait)),
            Some(Retry::Never) | None => None,
        };
    }
}

impl ExplainedLease {
    fn of(lease: KeyLease) -> ExplainedLease {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        ExplainedLease {
            in_hand: lease.in_hand,
            ends_in_ms: lease.lasts.map(millis),
            refused_for_ms: lease.paused.map(millis),
            mute: lease.is_mute,
            units_per_second: lease.per_second,
            units_lent: lease.lent,
            units_spent: lease.spent,
            units_returned: lease.returned,
            units_forfeited: lease.forfeited,
            checks: lease.draws,
            checks_asked: lease.asked,
            checks_refused: lease.refused,
            checks_refused_stale: lease.stale,
        }
    }
}

fn millis(span: Span) -> f64 {
    Duration::from_micros(span.get()).as_secs_f64() * 1e3
}

//! `POST /v1/explain`: which rules and limits apply to a request now, how much of each is left, and this node's lease.

use crate::api::with_any_request;
use crate::http::HttpError;
use ratekeeper::rules::Verb;
use ratekeeper::{AppliedLimit, KeyLease, Retry, RuleLimiter, Span, Store};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::time::Duration;

/// The response: the output of `ratekeeper rules explain`, and the current state of each limit.
#[derive(serde::Serialize)]
pub(crate) struct ExplainAnswer {
    allowed: bool,
    reason: &'static str,
    /// Every limit that applies, shadow limits included.
    limits: Vec<ExplainedLimit>,
    #[serde(flatten)]
    rules: serde_json::Value,
}

#[derive(serde::Serialize)]
struct ExplainedLimit {
    rule: Option<String>,
    name: String,
    limit: String,
    shadow: bool,
    /// The units left in the store, or in this node's share while the store is down; `None` if neither decided.
    remaining: Option<u32>,
    reset_after_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<ExplainedLease>,
}

/// This node's lease on the key.
struct ExplainedLease(KeyLease);

impl Serialize for ExplainedLease {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ExplainedLease(lease) = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("unspent", &lease.unspent)?;
        for (name, time) in [("ends_in_ms", lease.expires_in), ("denied_for_ms", lease.denied_for)] {
            if let Some(time) = time {
                map.serialize_entry(name, &(time.as_secs_f64() * 1e3))?;
            }
        }
        // Whether the store did not acknowledge the last report.
        map.serialize_entry("unacknowledged", &lease.is_unacknowledged)?;
        map.serialize_entry("units_per_second", &lease.per_second)?;
        map.serialize_entry("units_lent", &lease.lent)?;
        map.serialize_entry("units_spent", &lease.spent)?;
        map.serialize_entry("units_returned", &lease.returned)?;
        map.serialize_entry("units_expired", &lease.expired)?;
        map.serialize_entry("checks", &lease.draws)?;
        map.serialize_entry("checks_missed", &lease.misses)?;
        map.serialize_entry("checks_denied", &lease.denied)?;
        map.serialize_entry("checks_denied_stale", &lease.denied_stale)?;
        map.end()
    }
}

/// Explains the check in `body` without taking any units.
pub(crate) async fn explain<S: Store>(
    limiter: &RuleLimiter<S>,
    body: &[u8],
) -> Result<ExplainAnswer, HttpError> {
    let mut batch = limiter.begin();
    let rules = with_any_request(body, false, |request| {
        limiter.add(&mut batch, Verb::Peek, request);
        batch.rules().explain(request, || limiter.clock().now()).to_json()
    })?;
    // While the store is down, deciding divides each limit among the nodes, so the limits are read before that.
    let mut limits: Vec<ExplainedLimit> =
        batch.applied_limits(0).map(|applied| ExplainedLimit::of(&applied, limiter.store())).collect();
    limiter.decide(&mut batch).await;
    for (limit, applied) in limits.iter_mut().zip(batch.applied_limits(0)) {
        limit.add_decision(&applied);
    }
    let decision = batch.decision(0);
    Ok(ExplainAnswer { allowed: decision.is_allowed(), reason: decision.reason().name(), limits, rules })
}

impl ExplainedLimit {
    fn of(applied: &AppliedLimit<'_>, store: &impl Store) -> ExplainedLimit {
        let policy = &applied.policy;
        ExplainedLimit {
            rule: policy.rule.map(|rule| rule.id().to_owned()),
            name: policy.name.to_owned(),
            limit: policy.limit.to_string(),
            shadow: applied.is_shadow,
            remaining: None,
            reset_after_ms: None,
            retry_after_ms: None,
            lease: store.key_lease(applied.key, applied.scope, policy.limit).map(ExplainedLease),
        }
    }

    /// Adds what the limit decided, if it did.
    fn add_decision(&mut self, applied: &AppliedLimit<'_>) {
        if !applied.is_decided {
            return;
        }
        let outlook = applied.policy.status.forecast();
        self.remaining = Some(outlook.remaining);
        self.reset_after_ms = Some(millis(outlook.reset));
        self.retry_after_ms = match outlook.retry {
            Some(Retry::After(wait)) => Some(millis(wait)),
            Some(Retry::Never) | None => None,
        };
    }
}

fn millis(span: Span) -> f64 {
    Duration::from_micros(span.get()).as_secs_f64() * 1e3
}

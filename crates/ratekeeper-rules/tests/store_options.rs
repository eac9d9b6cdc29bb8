//! The store options of a file reach every draw: those of rules, of fallback limits, and of inline limits.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use ratekeeper_core::{Algorithm, Consistency, Draw, DrawOptions, FailureMode, Limit, Micros};
use ratekeeper_rules::{CheckRequest, DrawPlan, InlineLimit, RuleSet, Verb, read};

const FILE: &str = "
rules:
  - {id: login, match: {path: /login}, limit: 5/min, on_store_failure: closed, store_timeout: 20ms}
  - {id: trial, match: {path: /login}, limit: 1/min, shadow: true, consistency: local}
  - {id: tenants, match: {path: /login}, key: tenant, limit: 50/min, consistency: leased, on_store_failure: local}
  - {id: inherits, match: {path: /inherits}}
default: {limit: 100/min}
tiers: {pro: 1000/min}
clients: {acme: 5000/min}
";

fn options(is_shadow: bool, consistency: Consistency, on_failure: FailureMode, millis: u16) -> DrawOptions {
    DrawOptions { is_shadow, consistency, on_failure, timeout_ms: millis.try_into().ok() }
}

fn compile(more: &str) -> RuleSet {
    let parsed = read(&format!("{FILE}{more}"), Micros::EPOCH);
    RuleSet::compile(&parsed.spec.unwrap()).unwrap()
}

/// The options of each draw of a request.
fn draw_options(rules: &RuleSet, request: &CheckRequest<'_>) -> Vec<DrawOptions> {
    let mut plan = DrawPlan::new();
    plan.add(rules, Verb::Check, request, || Micros::EPOCH);
    plan.draws_of(plan.resolutions()[0]).0.iter().map(Draw::options).collect()
}

fn inline_options(rules: &RuleSet) -> DrawOptions {
    let mut plan = DrawPlan::new();
    let limit = Limit::new(Algorithm::TokenBucket, "1/s".parse().unwrap()).unwrap();
    plan.add_inline(rules, InlineLimit::Key, &limit, Verb::Check, &CheckRequest::new("a"));
    plan.draws_of(plan.resolutions()[0]).0[0].options()
}

#[test]
fn options_of_a_rule_override_those_of_the_file() {
    use Consistency::{Exact, Leased, Local};
    use FailureMode::{Closed, Open};
    let rules = compile("on_store_failure: open\nconsistency: exact\nstore_timeout: 70ms\n");
    let login = CheckRequest { endpoint: "/login", attributes: &[("tenant", "t")], ..CheckRequest::new("a") };
    assert_eq!(
        draw_options(&rules, &login),
        [
            options(false, Exact, Closed, 20),
            options(true, Local, Open, 70),
            options(false, Leased, FailureMode::Local, 70),
        ]
    );
    let file_options = options(false, Exact, Open, 70);
    for request in [
        CheckRequest::new("a"),
        CheckRequest { tier: "pro", ..CheckRequest::new("a") },
        CheckRequest::new("acme"),
        CheckRequest { endpoint: "/inherits", ..CheckRequest::new("a") },
    ] {
        assert_eq!(draw_options(&rules, &request), [file_options], "{request:?}");
    }
    assert_eq!(inline_options(&rules), file_options);
}

#[test]
fn a_file_without_options_has_the_defaults() {
    let rules = compile("");
    assert_eq!(draw_options(&rules, &CheckRequest::new("a")), [DrawOptions::default()]);
    assert_eq!(inline_options(&rules), DrawOptions::default());
    assert_eq!(inline_options(&RuleSet::default()), DrawOptions::default());
}

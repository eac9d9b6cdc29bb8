//! What a file says of the store reaches every draw: of rules, the base, and limits that come with requests.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

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

fn terms(is_shadow: bool, consistency: Consistency, on_failure: FailureMode, millis: u16) -> DrawOptions {
    DrawOptions { is_shadow, consistency, on_failure, deadline: millis.try_into().ok() }
}

fn compile(more: &str) -> RuleSet {
    let review = read(&format!("{FILE}{more}"), Micros::EPOCH);
    RuleSet::compile(&review.spec.unwrap()).unwrap()
}

/// The terms of each draw that a request makes.
fn of(rules: &RuleSet, request: &CheckRequest<'_>) -> Vec<DrawOptions> {
    let mut plan = DrawPlan::new();
    plan.add(rules, Verb::Check, request, || Micros::EPOCH);
    plan.bound(plan.cases()[0]).0.iter().map(Draw::terms).collect()
}

fn of_stated(rules: &RuleSet) -> DrawOptions {
    let mut plan = DrawPlan::new();
    let limit = Limit::new(Algorithm::TokenBucket, "1/s".parse().unwrap()).unwrap();
    plan.add_stated(rules, InlineLimit::Key, &limit, Verb::Check, &CheckRequest::new("a"));
    plan.bound(plan.cases()[0]).0[0].terms()
}

#[test]
fn a_rule_says_it_for_itself_and_the_file_for_all_others() {
    use Consistency::{Exact, Leased, Local};
    use FailureMode::{Closed, Open};
    let rules = compile("on_store_failure: open\nconsistency: exact\nstore_timeout: 70ms\n");
    let login = CheckRequest { endpoint: "/login", attributes: &[("tenant", "t")], ..CheckRequest::new("a") };
    assert_eq!(
        of(&rules, &login),
        [
            terms(false, Exact, Closed, 20),
            terms(true, Local, Open, 70),
            terms(false, Leased, FailureMode::Local, 70),
        ]
    );
    let files = terms(false, Exact, Open, 70);
    for request in [
        CheckRequest::new("a"),
        CheckRequest { tier: "pro", ..CheckRequest::new("a") },
        CheckRequest::new("acme"),
        CheckRequest { endpoint: "/inherits", ..CheckRequest::new("a") },
    ] {
        assert_eq!(of(&rules, &request), [files], "{request:?}");
    }
    assert_eq!(of_stated(&rules), files);
}

#[test]
fn a_file_that_says_nothing_leaves_it_at_what_is_usual() {
    let rules = compile("");
    assert_eq!(of(&rules, &CheckRequest::new("a")), [DrawOptions::default()]);
    assert_eq!(of_stated(&rules), DrawOptions::default());
    assert_eq!(of_stated(&RuleSet::default()), DrawOptions::default());
}

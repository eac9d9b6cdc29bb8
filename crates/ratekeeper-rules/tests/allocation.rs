//! Resolving a request does not allocate once the plan is warm.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use ratekeeper_core::Micros;
use ratekeeper_rules::{CheckRequest, Descriptor, DrawPlan, RuleSet, Verb, read};
use std::fmt::Write as _;

#[test]
fn resolving_a_descriptor_among_ten_thousand_rules_does_not_allocate() {
    let mut text = "rules:\n".to_owned();
    for index in 0..10_000 {
        writeln!(
            text,
            "  - {{id: u{index}, match: {{domain: edge, descriptor: [user: u{index}, path]}}, limit: 1/s}}"
        )
        .unwrap();
    }
    text.push_str("  - {id: rest, match: {descriptor: [user: u*, path: /api/*]}, limit: 1/s}\n");
    let parsed = read(&text, Micros::EPOCH);
    assert!(parsed.diagnostics.is_empty(), "{}", parsed.report("rules.yaml", &text));
    let rules = RuleSet::compile(&parsed.spec.unwrap()).unwrap();
    let mut plan = DrawPlan::new();
    let mut resolve = |user: &str, path: &str| {
        let entries = [("user", user), ("path", path)];
        let descriptor = Some(Descriptor { domain: "edge", entries: &entries });
        plan.clear();
        plan.add(
            &rules,
            Verb::Check,
            &CheckRequest { descriptor, attributes: &entries, ..CheckRequest::new("") },
            || Micros::EPOCH,
        );
        plan.draws_of(plan.resolutions()[0]).1.first().map(|source| source.rule)
    };
    assert_eq!(resolve("u9999", "/a;b=%"), Some(9_999));
    let mut found = None;
    let measured = allocation_counter::measure(|| found = resolve("u7777", "/a;b=%"));
    assert_eq!((found, measured.count_total), (Some(7_777), 0));
    let measured = allocation_counter::measure(|| found = resolve("ux", "/api/"));
    assert_eq!((found, measured.count_total), (Some(10_000), 0));
}

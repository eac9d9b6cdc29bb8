//! Once warm, resolving a request allocates nothing, whatever it brings.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper_core::Micros;
use ratekeeper_rules::{CheckRequest, Descriptor, DrawPlan, RuleSet, Verb, read};
use std::fmt::Write as _;

#[test]
fn a_descriptor_is_found_among_ten_thousand_and_counted_without_allocating() {
    let mut text = "rules:\n".to_owned();
    for index in 0..10_000 {
        writeln!(
            text,
            "  - {{id: u{index}, match: {{domain: edge, descriptor: [user: u{index}, path]}}, limit: 1/s}}"
        )
        .unwrap();
    }
    text.push_str("  - {id: rest, match: {descriptor: [user: u*, path: /api/*]}, limit: 1/s}\n");
    let review = read(&text, Micros::EPOCH);
    assert!(review.complaints.is_empty(), "{}", review.report("rules.yaml", &text));
    let rules = RuleSet::compile(&review.spec.unwrap()).unwrap();
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
        plan.bound(plan.cases()[0]).1.first().map(|bound| bound.rule)
    };
    assert_eq!(resolve("u9999", "/a;b=%"), Some(9_999));
    let mut found = None;
    let measured = allocation_counter::measure(|| found = resolve("u7777", "/a;b=%"));
    assert_eq!((found, measured.count_total), (Some(7_777), 0));
    let measured = allocation_counter::measure(|| found = resolve("ux", "/api/"));
    assert_eq!((found, measured.count_total), (Some(10_000), 0));
}

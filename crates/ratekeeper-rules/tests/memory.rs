//! Rule sets leave nothing behind, and the first request under new rules finds all of it built.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper_core::Micros;
use ratekeeper_rules::{CheckRequest, DrawPlan, Resolution, RuleSet, Verb, read};
use std::fmt::Write as _;

fn compile(text: &str) -> RuleSet {
    let review = read(text, Micros::EPOCH);
    let report = review.report("rules.yaml", text);
    RuleSet::compile(&review.spec.unwrap_or_else(|| panic!("{report}"))).unwrap()
}

/// Asks for a path, and says whether a rule binds it.
fn is_bound(rules: &RuleSet, plan: &mut DrawPlan, endpoint: &str) -> bool {
    plan.clear();
    plan.add(rules, Verb::Check, &CheckRequest { endpoint, ..CheckRequest::new("k") }, || Micros::EPOCH);
    matches!(plan.cases(), [Resolution::Bound { .. }])
}

/// An expression of some 40 KiB, another one each turn.
fn large(turn: usize) -> String {
    format!(
        r"rules: [{{id: r, key: client, match: {{path_regex: 'turn{turn}/(\w+/)+([a-z]+){{3,9}}$'}}, limit: 1/s}}]"
    )
}

#[test]
fn a_thousand_changes_of_one_expression_leave_no_memory_behind() {
    let mut plan = DrawPlan::new();
    let mut turn = 0;
    let mut change = |times: usize| {
        allocation_counter::measure(|| {
            for _ in 0..times {
                turn += 1;
                let rules = compile(&large(turn));
                assert!(is_bound(&rules, &mut plan, &format!("/turn{turn}/x/abcdefghi")));
                assert!(!is_bound(&rules, &mut plan, &format!("/turn{turn}/x/ABC")));
            }
        })
        .bytes_current
    };
    // What a thread and the table of names keep for good.
    change(100);
    let left = change(300);
    assert!(left.abs() < 64 << 10, "{left} bytes are left of 300 rule sets");
}

#[test]
fn a_thousand_expressions_stay_within_the_bound_and_leave_nothing_behind() {
    let file = |turn: usize| {
        let mut text = "rules:\n".to_owned();
        for rule in 0..1_000 {
            let expression = format!(r"t{turn}r{rule}/\w+/(a|b)*a(a|b){{9}}$");
            writeln!(
                text,
                "  - {{id: r{rule}, key: client, match: {{path_regex: '{expression}'}}, limit: 1/s}}"
            )
            .unwrap();
        }
        text
    };
    let mut plan = DrawPlan::new();
    let mut round = |turn: usize| {
        let mut most = 0;
        let measured = allocation_counter::measure(|| {
            let rules = compile(&file(turn));
            for rule in [0, 7, 999] {
                assert!(is_bound(&rules, &mut plan, &format!("/t{turn}r{rule}/x/abbbbbbbbb")));
            }
            most = 1;
        });
        assert_eq!(most, 1);
        (measured.bytes_current, measured.bytes_max)
    };
    round(0);
    let (left, most) = round(1);
    assert!(left.abs() < 1 << 20, "{left} bytes are left");
    assert!(most < 256 << 20, "{most} bytes at once");
}

#[test]
fn the_first_request_under_new_rules_builds_nothing() {
    let mut text = "rules:\n".to_owned();
    for rule in 0..100 {
        writeln!(
            text,
            "  - {{id: p{rule}, key: client, match: {{path_regex: '^/p{rule}/[0-9]+$'}}, limit: 1/s}}\n  \
             - {{id: l{rule}, key: client, match: {{path_regex: '[a-z]/l{rule}/[0-9]+$'}}, limit: 1/s}}\n  \
             - {{id: g{rule}, key: client, match: {{path: '/**/g{rule}/*.json'}}, limit: 1/s}}"
        )
        .unwrap();
    }
    let mut plan = DrawPlan::new();
    // The plan's own buffers are warm after one set, on whatever paths.
    let before = compile(&text.replace("/s}", "/min}"));
    let paths = ["/p7/42", "/x/l7/42", "/x/y/g7/a.json"];
    for path in paths {
        assert!(is_bound(&before, &mut plan, path));
    }
    let text = text.replace("[0-9]", "[0-8]");
    let rules = compile(&text);
    for path in paths {
        let mut found = false;
        let measured = allocation_counter::measure(|| found = is_bound(&rules, &mut plan, path));
        assert_eq!((found, measured.count_total), (true, 0), "{path}");
    }
}

#[test]
fn all_expressions_together_have_a_bound_that_is_told() {
    let mut text = "rules:\n".to_owned();
    for rule in 0..1_000 {
        writeln!(
            text,
            r"  - {{id: r{rule}, key: client, match: {{path_regex: 'r{rule}(\w{{3}}x){{5}}'}}, limit: 1/s}}"
        )
        .unwrap();
    }
    let review = read(&text, Micros::EPOCH);
    assert!(review.spec.is_none());
    let said: Vec<_> = review.complaints.iter().map(|complaint| &complaint.said).collect();
    assert!(said[0].starts_with("the expressions of the file take over 64 MiB together"), "{said:?}");
    assert_eq!(said.len(), 1);
    assert!(review.complaints[0].place.line > 2);
    let small = read("rules: [{id: r, match: {path_regex: '^/a/[0-9]+$'}, limit: 1/s}]", Micros::EPOCH);
    let (count, bytes) = small.spec.unwrap().expressions();
    assert!(count == 1 && bytes > 100 && bytes < 20_000, "{count} of {bytes}");
}

#[test]
fn expressions_that_are_too_large_are_not_all_looked_at() {
    let mut text = "rules:\n".to_owned();
    for rule in 0..1_000 {
        writeln!(
            text,
            r"  - {{id: r{rule}, key: client, match: {{path_regex: 'r{rule}(\w{{9}}x){{90}}'}}, limit: 1/s}}"
        )
        .unwrap();
    }
    let review = read(&text, Micros::EPOCH);
    assert!(review.spec.is_none());
    assert!(review.complaints.len() < 100, "{} are complained of", review.complaints.len());
}

//! Dropped rule sets leave no memory behind, and the first request under new rules builds nothing.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use ratekeeper_core::Micros;
use ratekeeper_rules::{CheckRequest, DrawPlan, Resolution, RuleSet, Verb, read};
use std::fmt::Write as _;

fn compile(text: &str) -> RuleSet {
    let parsed = read(text, Micros::EPOCH);
    let report = parsed.report("rules.yaml", text);
    RuleSet::compile(&parsed.spec.unwrap_or_else(|| panic!("{report}"))).unwrap()
}

/// Whether a rule applies to a request for this path.
fn is_limited(rules: &RuleSet, plan: &mut DrawPlan, endpoint: &str) -> bool {
    plan.clear();
    plan.add(rules, Verb::Check, &CheckRequest { endpoint, ..CheckRequest::new("k") }, || Micros::EPOCH);
    matches!(plan.resolutions(), [Resolution::Limited { .. }])
}

/// A rule with an expression of about 40 KiB, a different one for each turn.
fn large(turn: usize) -> String {
    format!(
        r"rules: [{{id: r, key: client, match: {{path_regex: 'turn{turn}/(\w+/)+([a-z]+){{3,9}}$'}}, limit: 1/s}}]"
    )
}

#[test]
fn replaced_expressions_leave_no_memory_behind() {
    let mut plan = DrawPlan::new();
    let mut turn = 0;
    let mut change = |times: usize| {
        allocation_counter::measure(|| {
            for _ in 0..times {
                turn += 1;
                let rules = compile(&large(turn));
                assert!(is_limited(&rules, &mut plan, &format!("/turn{turn}/x/abcdefghi")));
                assert!(!is_limited(&rules, &mut plan, &format!("/turn{turn}/x/ABC")));
            }
        })
        .bytes_current
    };
    // Warm up the buffers that the thread and the table of expressions keep.
    change(100);
    let left = change(300);
    assert!(left.abs() < 64 << 10, "{left} bytes left after 300 rule sets");
}

#[test]
fn a_thousand_expressions_stay_within_the_bound_and_leave_no_memory_behind() {
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
                assert!(is_limited(&rules, &mut plan, &format!("/t{turn}r{rule}/x/abbbbbbbbb")));
            }
            most = 1;
        });
        assert_eq!(most, 1);
        (measured.bytes_current, measured.bytes_max)
    };
    round(0);
    let (left, most) = round(1);
    assert!(left.abs() < 1 << 20, "{left} bytes left");
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
    // The plan's buffers are warm after any other rule set.
    let before = compile(&text.replace("/s}", "/min}"));
    let paths = ["/p7/42", "/x/l7/42", "/x/y/g7/a.json"];
    for path in paths {
        assert!(is_limited(&before, &mut plan, path));
    }
    let text = text.replace("[0-9]", "[0-8]");
    let rules = compile(&text);
    for path in paths {
        let mut found = false;
        let measured = allocation_counter::measure(|| found = is_limited(&rules, &mut plan, path));
        assert_eq!((found, measured.count_total), (true, 0), "{path}");
    }
}

#[test]
fn the_total_size_of_expressions_is_bounded() {
    let mut text = "rules:\n".to_owned();
    for rule in 0..1_000 {
        writeln!(
            text,
            r"  - {{id: r{rule}, key: client, match: {{path_regex: 'r{rule}(\w{{3}}x){{5}}'}}, limit: 1/s}}"
        )
        .unwrap();
    }
    let parsed = read(&text, Micros::EPOCH);
    assert!(parsed.spec.is_none());
    let messages: Vec<_> = parsed.diagnostics.iter().map(|diagnostic| &diagnostic.message).collect();
    let expected = "the regular expressions of the file take over 64 MiB when compiled";
    assert!(messages[0].starts_with(expected), "{messages:?}");
    assert_eq!(messages.len(), 1);
    assert!(parsed.diagnostics[0].place.line > 2);
    let small = read("rules: [{id: r, match: {path_regex: '^/a/[0-9]+$'}, limit: 1/s}]", Micros::EPOCH);
    let (count, bytes) = small.spec.unwrap().regex_usage();
    assert!(count == 1 && bytes > 100 && bytes < 20_000, "{count} expressions of {bytes} bytes");
}

#[test]
fn few_oversized_expressions_are_compiled() {
    let mut text = "rules:\n".to_owned();
    for rule in 0..1_000 {
        writeln!(
            text,
            r"  - {{id: r{rule}, key: client, match: {{path_regex: 'r{rule}(\w{{9}}x){{90}}'}}, limit: 1/s}}"
        )
        .unwrap();
    }
    let parsed = read(&text, Micros::EPOCH);
    assert!(parsed.spec.is_none());
    assert!(parsed.diagnostics.len() < 100, "{} diagnostics", parsed.diagnostics.len());
}

//! Access lists with very many patterns.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use ratekeeper_core::Micros;
use ratekeeper_rules::read;

fn list(pattern: impl Fn(usize) -> String, count: usize) -> String {
    let entries: Vec<_> = (0..count).map(|index| format!("'{}'", pattern(index))).collect();
    format!("default: 1/s\nallow: [{}]\n", entries.join(", "))
}

#[test]
fn patterns_with_the_same_prefix_and_suffix_are_bounded() {
    let text = list(|index| format!("*-{index}-*"), 1_000);
    assert!(read(&text, Micros::EPOCH).spec.is_some());
    let text = list(|index| format!("*-{index}-*"), 1_001);
    let parsed = read(&text, Micros::EPOCH);
    let [diagnostic] = &parsed.diagnostics[..] else { panic!("{:?}", parsed.diagnostics) };
    assert!(
        diagnostic.message.starts_with("more than 1000 patterns on the whitelist begin and end like"),
        "{diagnostic:?}"
    );
    let text = list(|index| format!("*-{index}-"), 20_000);
    assert!(read(&text, Micros::EPOCH).spec.is_some(), "each has a different suffix");
}

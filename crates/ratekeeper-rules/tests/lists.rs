//! Lists of very many patterns.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper_core::Micros;
use ratekeeper_rules::read;

fn list(pattern: impl Fn(usize) -> String, many: usize) -> String {
    let entries: Vec<_> = (0..many).map(|index| format!("'{}'", pattern(index))).collect();
    format!("default: 1/s\nallow: [{}]\n", entries.join(", "))
}

#[test]
fn patterns_that_begin_and_end_alike_have_a_bound() {
    let text = list(|index| format!("*-{index}-*"), 1_000);
    assert!(read(&text, Micros::EPOCH).spec.is_some());
    let text = list(|index| format!("*-{index}-*"), 1_001);
    let review = read(&text, Micros::EPOCH);
    let [complaint] = &review.complaints[..] else { panic!("{:?}", review.complaints) };
    assert!(
        complaint.said.starts_with("more than 1000 patterns on the whitelist begin and end like"),
        "{complaint:?}"
    );
    let text = list(|index| format!("*-{index}-"), 20_000);
    assert!(read(&text, Micros::EPOCH).spec.is_some(), "each ends in another way");
}

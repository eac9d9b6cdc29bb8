//! One answer on every node: whatever a limit admits, all nodes admit together, and hardly less.
//!
//! Four nodes share a store. Sixty-four clients ask all of them at once, each as fast as it is answered, for ten seconds, so that
//! everybody wants more than there is. Each law has its own bounds, which hold whatever the nodes' clocks say; see [`bounds`].

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]
#![expect(clippy::print_stdout, reason = "a test says by how much it passed or failed")]

mod bounds;
mod excess;
mod fleet;
mod law;
mod leased;
mod rolling;

use bounds::Bounds;
use fleet::{Clocks, Crowd};
use ratekeeper_testkit::despite_stalls;
use std::collections::BTreeSet;

/// One client whom everybody is: each law's limit is wanted many times over.
#[test]
fn a_key_that_everybody_wants() {
    despite_stalls(|| check_one_key(Clocks::True));
}

#[test]
fn a_key_that_everybody_wants_and_clocks_that_differ() {
    despite_stalls(|| check_one_key(Clocks::Apart));
}

#[test]
fn some_keys_are_more_popular_than_others() {
    despite_stalls(|| check_many_keys(Clocks::True));
}

#[test]
fn some_keys_are_more_popular_than_others_and_clocks_differ() {
    despite_stalls(|| check_many_keys(Clocks::Apart));
}

fn check_one_key(clocks: Clocks) {
    let told = fleet::run(Crowd::OneKey, clocks);
    for (index, law) in Crowd::OneKey.laws().iter().enumerate() {
        let bounds = Bounds::of(&told.tally.about(index), told.epoch);
        let share = bounds.hold_to(law);
        println!("{law:?}: {bounds}, {share:.5} of what there was");
        assert!(share >= 0.999, "{law:?} admitted {share} of what there was");
    }
}

fn check_many_keys(clocks: Clocks) {
    let told = fleet::run(Crowd::ManyKeys, clocks);
    for (index, law) in Crowd::ManyKeys.laws().iter().enumerate() {
        let about = told.tally.about(index);
        let keys: BTreeSet<u64> = about.answers().iter().map(|answer| answer.key).collect();
        let mut wanted = 0;
        for key in &keys {
            let bounds = Bounds::of(&about.for_key(*key), told.epoch);
            bounds.hold_to(law);
            wanted += usize::from(bounds.is_wanted());
        }
        let (allowed, denied) = (about.allowed(), about.denied());
        println!("{law:?}: {} keys, {wanted} too popular, {allowed} allowed, {denied} denied", keys.len());
        assert!(keys.len() > 100 && wanted >= 5, "{wanted} of {} keys were wanted by too many", keys.len());
    }
}

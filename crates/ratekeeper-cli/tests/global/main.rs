//! Global limits: all nodes together admit what one limit allows, and hardly less.
//!
//! Four nodes share a store. 64 clients send requests to all nodes for ten seconds, each as fast as it is answered,
//! so that demand exceeds every limit. Each algorithm has its own bounds, which hold whatever the nodes' clocks say;
//! see [`bounds`].

#![expect(clippy::unwrap_used, reason = "a failed unwrap in a test helper fails the test")]
#![expect(clippy::print_stdout, reason = "tests print by how much they pass or fail")]

mod bounds;
mod excess;
mod leased;
mod limit_case;
mod load;
mod rolling;

use bounds::KeyAnswers;
use load::{NodeClocks, Workload};
use std::collections::BTreeSet;

/// All clients use one key, so demand exceeds each limit many times over.
#[test]
fn one_hot_key() {
    check_one_key(NodeClocks::Accurate);
}

#[test]
fn one_hot_key_with_skewed_clocks() {
    check_one_key(NodeClocks::Skewed);
}

#[test]
fn zipf_distributed_keys() {
    check_many_keys(NodeClocks::Accurate);
}

#[test]
fn zipf_distributed_keys_with_skewed_clocks() {
    check_many_keys(NodeClocks::Skewed);
}

fn check_one_key(clocks: NodeClocks) {
    let result = load::run_load(Workload::OneKey, clocks);
    for (index, case) in Workload::OneKey.limit_cases().iter().enumerate() {
        let answers = KeyAnswers::of(&result.answer_log.for_endpoint(index), result.started_at);
        let share = answers.assert_bounds(case);
        println!("{case:?}: {answers}, {share:.5} of the available units");
        assert!(share >= 0.999, "{case:?} admitted only {share} of the available units");
    }
}

fn check_many_keys(clocks: NodeClocks) {
    let result = load::run_load(Workload::ManyKeys, clocks);
    for (index, case) in Workload::ManyKeys.limit_cases().iter().enumerate() {
        let about = result.answer_log.for_endpoint(index);
        let keys: BTreeSet<u64> = about.answers().iter().map(|answer| answer.key).collect();
        let mut with_denials = 0;
        for key in &keys {
            let answers = KeyAnswers::of(&about.for_key(*key), result.started_at);
            answers.assert_bounds(case);
            with_denials += usize::from(answers.has_denials());
        }
        let (allowed, denied) = (about.allowed(), about.denied());
        println!(
            "{case:?}: {} keys, {with_denials} with denials, {allowed} allowed, {denied} denied",
            keys.len()
        );
        assert!(keys.len() > 100 && with_denials >= 5, "{with_denials} of {} keys had denials", keys.len());
    }
}

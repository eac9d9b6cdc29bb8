//! Runs the written scenarios through the algorithms and through their models.

use ratekeeper_testkit::{KeyEngines, suite};

#[test]
fn the_algorithms_match_the_scenarios() {
    suite::check_scenarios(KeyEngines::of_algorithms);
}

#[test]
fn the_models_match_the_scenarios() {
    suite::check_scenarios(KeyEngines::of_models);
}

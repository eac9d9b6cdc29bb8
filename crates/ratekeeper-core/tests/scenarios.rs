//! What each law says, line by line. The laws and their models both have to say it.

use ratekeeper_testkit::{KeyEngines, suite};

#[test]
fn the_laws_say_what_the_scenarios_say() {
    suite::check_scenarios(KeyEngines::of_cells);
}

#[test]
fn the_models_say_what_the_scenarios_say() {
    suite::check_scenarios(KeyEngines::of_models);
}

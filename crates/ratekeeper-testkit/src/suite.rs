//! One test suite for every engine: hand-written scenarios, and randomly generated traces and requests.
//!
//! Every engine must reply as the scenario text and the models say: the algorithms, the memory store, the Lua script
//! that runs on servers, and a store on those servers in each topology.

pub use crate::algorithms::{algorithm_named, all_algorithms};
use crate::engine::Engine;
use crate::request::requests;
use crate::scenario::Scenario;
use crate::trace::{Trace, traces};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use ratekeeper_core::{Algorithm, Span};

/// How many random cases an engine is checked with.
#[derive(Clone, Copy, Debug)]
pub enum SuiteCases {
    /// As many as proptest is configured to run.
    Many,
    /// A two-hundredth of that, at least 16: for engines that are hundreds of times slower.
    Few,
}

impl SuiteCases {
    fn runner(self) -> TestRunner {
        let usual = Config { failure_persistence: None, ..Config::default() };
        let cases = match self {
            SuiteCases::Many => usual.cases,
            SuiteCases::Few => (usual.cases / 200).max(16),
        };
        TestRunner::new(Config { cases, ..usual })
    }
}

/// Runs every scenario, each through a new engine.
///
/// # Panics
/// If a reply differs from the text.
pub fn check_scenarios<E: Engine>(new: impl Fn() -> E) {
    let scenarios = Scenario::all();
    assert!(!scenarios.is_empty(), "there are no scenarios");
    for scenario in scenarios {
        scenario.check(&mut new());
    }
}

/// Runs random traces of one algorithm, each through a new engine. The clock falls behind its latest time by at most
/// `max_step_back`.
///
/// # Panics
/// If a reply differs from the model's.
pub fn check_traces<E: Engine>(
    algorithm: Algorithm,
    max_step_back: Span,
    cases: SuiteCases,
    new: impl Fn(&Trace) -> E,
) {
    check(&traces(algorithm, max_step_back), cases, |trace| trace.check(&mut new(&trace)));
}

/// Runs random requests over several limits, each sequence through a new engine.
///
/// # Panics
/// If a reply differs from the models'.
pub fn check_requests<E: Engine>(cases: SuiteCases, new: impl Fn() -> E) {
    check(&requests(), cases, |requests| requests.check(&mut new()));
}

fn check<S: Strategy>(strategy: &S, cases: SuiteCases, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    if let Err(error) = cases.runner().run(strategy, test) {
        panic!("{error}");
    }
}

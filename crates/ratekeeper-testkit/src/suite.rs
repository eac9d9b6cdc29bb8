//! One suite for every engine: the scenarios that people wrote, and the traces and requests that chance writes.
//!
//! What the text says and what the models say, every engine has to say: the laws, a store in memory, the script that runs
//! on servers, and a store on those servers, however they stand together.

use crate::engine::Engine;
use crate::patience::Must;
use crate::request::requests;
use crate::scenario::Scenario;
use crate::trace::{Trace, traces};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use ratekeeper_core::{Algorithm, Align, Leak, LogSize, Span, Zone};

/// Every law, and what tests call it.
pub fn laws() -> [(&'static str, Algorithm); 9] {
    let berlin = "Europe/Berlin".parse::<Zone>().must("there is such a zone");
    [
        ("token_bucket", Algorithm::TokenBucket),
        ("leaky_meter", Algorithm::LeakyBucket(Leak::Meter)),
        ("leaky_queue", Algorithm::LeakyBucket(Leak::Queue)),
        ("wall_window", Algorithm::FixedWindow(Align::Wall(Zone::UTC))),
        ("berlin_window", Algorithm::FixedWindow(Align::Wall(berlin))),
        ("first_hit_window", Algorithm::FixedWindow(Align::FirstHit)),
        ("sliding_window_counter", Algorithm::SlidingWindowCounter),
        ("sliding_window_log", Algorithm::SlidingWindowLog(LogSize::Modest)),
        ("concurrency", Algorithm::Concurrency),
    ]
}

/// The law that tests call so.
///
/// # Panics
/// If none is called so.
pub fn law(name: &str) -> Algorithm {
    let found = laws().into_iter().find(|(other, _)| *other == name);
    found.unwrap_or_else(|| panic!("no law is called {name}")).1
}

/// Makes a test for each law, of a function that is given the law.
#[macro_export]
macro_rules! test_each_law {
    ($check:path) => {
        $crate::test_each_law!($check: token_bucket leaky_meter leaky_queue wall_window berlin_window
            first_hit_window sliding_window_counter sliding_window_log concurrency);
    };
    ($check:path: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $check($crate::suite::law(stringify!($name)));
            }
        )*
    };
}

/// How many random cases an engine is tried with.
#[derive(Clone, Copy, Debug)]
pub enum SuiteCases {
    /// As many as a property gets.
    Many,
    /// A few, for those that take hundreds of times as long.
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

/// Runs every scenario, each through an engine of its own.
///
/// # Panics
/// If one says something else than the text.
pub fn check_scenarios<E: Engine>(new: impl Fn() -> E) {
    let scenarios = Scenario::all();
    assert!(!scenarios.is_empty(), "there are no scenarios");
    for scenario in scenarios {
        scenario.check(&mut new());
    }
}

/// Runs random traces under a law, each through an engine of its own. The clock falls no further behind than `back`.
///
/// # Panics
/// If one says something else than the model.
pub fn check_traces<E: Engine>(law: Algorithm, back: Span, cases: SuiteCases, new: impl Fn(&Trace) -> E) {
    check(&traces(law, back), cases, |trace| trace.check(&mut new(&trace)));
}

/// Runs random requests over several limits, each run of them through an engine of its own.
///
/// # Panics
/// If one says something else than the models.
pub fn check_requests<E: Engine>(cases: SuiteCases, new: impl Fn() -> E) {
    check(&requests(), cases, |requests| requests.check(&mut new()));
}

fn check<S: Strategy>(strategy: &S, cases: SuiteCases, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    if let Err(error) = cases.runner().run(strategy, test) {
        panic!("{error}");
    }
}

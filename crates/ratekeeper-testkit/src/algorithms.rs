//! All algorithms by their names in tests.

use crate::wait::OrFail;
use ratekeeper_core::{Algorithm, Align, Leak, LogSize, Zone};

/// Every algorithm, with its name in tests.
pub fn all_algorithms() -> [(&'static str, Algorithm); 9] {
    let berlin = "Europe/Berlin".parse::<Zone>().or_fail("the time zone Europe/Berlin is missing");
    [
        ("token_bucket", Algorithm::TokenBucket),
        ("leaky_meter", Algorithm::LeakyBucket(Leak::Meter)),
        ("leaky_queue", Algorithm::LeakyBucket(Leak::Queue)),
        ("wall_window", Algorithm::FixedWindow(Align::WallClock(Zone::UTC))),
        ("berlin_window", Algorithm::FixedWindow(Align::WallClock(berlin))),
        ("first_hit_window", Algorithm::FixedWindow(Align::FirstHit)),
        ("sliding_window_counter", Algorithm::SlidingWindowCounter),
        ("sliding_window_log", Algorithm::SlidingWindowLog(LogSize::Standard)),
        ("concurrency", Algorithm::Concurrency),
    ]
}

/// The algorithm with this test name.
///
/// # Panics
/// If no algorithm has the name.
pub fn algorithm_named(name: &str) -> Algorithm {
    let found = all_algorithms().into_iter().find(|(other, _)| *other == name);
    found.unwrap_or_else(|| panic!("no algorithm is called {name}")).1
}

/// Defines one test per algorithm, each of which calls the function `$check` with the algorithm.
#[macro_export]
macro_rules! test_each_algorithm {
    ($check:path) => {
        $crate::test_each_algorithm!($check: token_bucket leaky_meter leaky_queue wall_window berlin_window
            first_hit_window sliding_window_counter sliding_window_log concurrency);
    };
    ($check:path: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $check($crate::suite::algorithm_named(stringify!($name)));
            }
        )*
    };
}

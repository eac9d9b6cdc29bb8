//! Waiting for what real processes do in their own time.
//!
//! Nothing here sleeps for a fixed time and hopes: a condition is asked again and again, and the test fails with its name
//! when it does not come true.

use std::fmt::Display;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

/// How long something may take that takes next to no time on a machine that does nothing else.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again and again until there is an answer, and fails the test if there is none within this time.
#[track_caller]
pub fn within<T>(patience: Duration, what: &str, ask: impl FnMut() -> Option<T>) -> T {
    match try_within(patience, ask) {
        Some(answer) => answer,
        None => fail(&format!("{what}: not within {patience:?}")),
    }
}

/// Asks again and again until there is an answer or the time is over.
#[expect(clippy::disallowed_methods, reason = "what is waited for happens in real time")]
pub fn try_within<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        let is_over = begun.elapsed() >= patience;
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if is_over {
            return None;
        }
        park_timeout(Duration::from_millis(2));
    }
}

/// Fails the test.
#[track_caller]
pub(crate) fn fail(what: &str) -> ! {
    panic!("{what}")
}

/// What a test cannot go on without.
pub(crate) trait Must<T> {
    /// The value, or the end of the test with these words.
    #[track_caller]
    fn must(self, what: &str) -> T;
}

impl<T, E: Display> Must<T> for Result<T, E> {
    fn must(self, what: &str) -> T {
        match self {
            Ok(value) => value,
            Err(error) => fail(&format!("{what}: {error}")),
        }
    }
}

impl<T> Must<T> for Option<T> {
    fn must(self, what: &str) -> T {
        match self {
            Some(value) => value,
            None => fail(what),
        }
    }
}

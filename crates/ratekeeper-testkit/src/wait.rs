//! Waiting for real processes.
//!
//! Nothing here sleeps for a fixed time. A condition is polled, and the test fails with its name if it does not become
//! true before the timeout.

use std::fmt::Display;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

/// The timeout for anything that takes next to no time on an idle machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Polls until `poll` returns a value, and fails the test if it returns none within the timeout.
#[track_caller]
pub fn wait_for<T>(timeout: Duration, what: &str, poll: impl FnMut() -> Option<T>) -> T {
    match try_wait_for(timeout, poll) {
        Some(value) => value,
        None => fail(&format!("timed out after {timeout:?}: {what}")),
    }
}

/// Polls until `poll` returns a value. Returns `None` after the timeout.
#[expect(clippy::disallowed_methods, reason = "real processes run in real time")]
pub fn try_wait_for<T>(timeout: Duration, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        let is_timed_out = start.elapsed() >= timeout;
        if let Some(value) = poll() {
            return Some(value);
        }
        if is_timed_out {
            return None;
        }
        park_timeout(Duration::from_millis(2));
    }
}

/// Fails the test with this message.
#[track_caller]
pub(crate) fn fail(what: &str) -> ! {
    panic!("{what}")
}

/// `expect` for test support code, which reports the caller's location.
pub(crate) trait OrFail<T> {
    /// Returns the value, or fails the test with this message.
    #[track_caller]
    fn or_fail(self, what: &str) -> T;
}

impl<T, E: Display> OrFail<T> for Result<T, E> {
    fn or_fail(self, what: &str) -> T {
        match self {
            Ok(value) => value,
            Err(error) => fail(&format!("{what}: {error}")),
        }
    }
}

impl<T> OrFail<T> for Option<T> {
    fn or_fail(self, what: &str) -> T {
        match self {
            Some(value) => value,
            None => fail(what),
        }
    }
}

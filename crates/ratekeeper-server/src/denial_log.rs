//! The denial log: a bounded number of lines per second, and a count of the rest.
//!
//! Under a flood, a log line for each denial would cost more than the decision. So each second allows a few lines; the
//! other denials are counted and reported in one line when the second ends.

use ratekeeper::rules::{CheckRequest, Rule};
use ratekeeper::{Clock, Micros, Retry, RuleDecision};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// The most characters of a client's key that are logged: enough to recognise it, too few to use it.
const MAX_SHOWN_CHARS: usize = 4;
/// At most one in this many characters of a key is logged: four characters are nearly all of a short key.
const SHOWN_DIVISOR: usize = 3;

/// Logs denials, up to a maximum per second.
#[derive(Debug)]
pub(crate) struct DenialLog {
    /// The most lines per second.
    max_per_second: u64,
    /// The current second.
    second: AtomicU64,
    /// The denials in the current second.
    denials: AtomicU64,
    /// All denials that were not logged.
    suppressed: AtomicU64,
}

impl DenialLog {
    /// A log of at most `max_per_second` lines per second; 0 logs nothing.
    pub(crate) const fn new(max_per_second: u32) -> DenialLog {
        DenialLog {
            max_per_second: max_per_second as u64,
            second: AtomicU64::new(0),
            denials: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
        }
    }

    /// The number of denials that were not logged because there were too many.
    pub(crate) fn suppressed(&self) -> u64 {
        self.suppressed.load(Relaxed)
    }

    /// Reports suppressed denials at the end of each second. Never returns.
    pub(crate) async fn report_suppressed(&self, clock: &dyn Clock) {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.advance_to(clock.now());
        }
    }

    /// Whether a denial at `now` would not be logged, as far as can be told without a write to shared memory. If so, it
    /// may be counted with [`DenialLog::count_suppressed`] instead of [`DenialLog::record`].
    #[inline]
    pub(crate) fn is_full(&self, now: Option<Micros>) -> bool {
        let is_this_second = now.is_some_and(|now| now.get() / 1_000_000 == self.second.load(Relaxed));
        self.max_per_second == 0 || is_this_second && self.denials.load(Relaxed) >= self.max_per_second
    }

    /// Counts denials that are not logged.
    #[inline]
    pub(crate) fn count_suppressed(&self, denials: u64) {
        if denials > 0 && self.max_per_second > 0 {
            self.denials.fetch_add(denials, Relaxed);
            self.suppressed.fetch_add(denials, Relaxed);
        }
    }

    /// Logs a denial, or counts it if this second's lines are used up.
    #[cold]
    pub(crate) fn record(&self, clock: &dyn Clock, request: &CheckRequest<'_>, decision: &RuleDecision<'_>) {
        if self.max_per_second == 0 {
            return;
        }
        let binding = decision.binding();
        if self.take_line(binding.map_or_else(|| clock.now(), |binding| binding.now)) {
            let retry_after_ms = match binding.and_then(|binding| binding.forecast.retry) {
                Some(Retry::After(wait)) => Some(wait.get() / 1_000),
                Some(Retry::Never) | None => None,
            };
            tracing::info!(
                target: "ratekeeper::denied",
                key = abbreviated(request.client_key),
                endpoint = without_query(request.endpoint),
                ip = request.ip.map(tracing::field::display),
                cost = request.cost,
                rule = decision.rule().map(Rule::id),
                limit = binding.map(|binding| tracing::field::display(*binding.limit)),
                retry_after_ms,
                reason = decision.reason().name(),
                "denied"
            );
        }
    }

    /// Counts a denial. Returns whether this second allows a line for it.
    fn take_line(&self, now: Micros) -> bool {
        self.advance_to(now);
        let is_logged = self.denials.fetch_add(1, Relaxed) < self.max_per_second;
        if !is_logged {
            self.suppressed.fetch_add(1, Relaxed);
        }
        is_logged
    }

    /// Starts a new second if `now` is in one. The first caller in a new second reports the previous one's suppressed
    /// denials.
    fn advance_to(&self, now: Micros) {
        let second = now.get() / 1_000_000;
        let known = self.second.load(Relaxed);
        if known != second && self.second.compare_exchange(known, second, Relaxed, Relaxed).is_ok() {
            let more = self.denials.swap(0, Relaxed).saturating_sub(self.max_per_second);
            if more > 0 {
                tracing::info!(target: "ratekeeper::denied", more, "further denials were not logged");
            }
        }
    }
}

/// The first characters of a key; the rest is replaced by an ellipsis.
fn abbreviated(key: &str) -> String {
    if key.is_empty() {
        return String::new();
    }
    let count = MAX_SHOWN_CHARS.min(key.chars().count() / SHOWN_DIVISOR);
    key.chars().take(count).chain(['…']).collect()
}

/// An endpoint without its query and fragment, which may contain a client's secrets.
fn without_query(endpoint: &str) -> &str {
    endpoint.split(['?', '#']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_per_second_are_limited() {
        let log = DenialLog::new(2);
        let at = |second: u64| log.take_line(Micros::new(second * 1_000_000));
        assert_eq!([at(7), at(7), at(7), at(7)], [true, true, false, false]);
        assert_eq!([at(8), at(8), at(8)], [true, true, false]);
        assert_eq!(log.suppressed(), 3);
    }

    #[test]
    fn suppressed_denials_are_counted() {
        let log = DenialLog::new(2);
        let now = Micros::new(7_000_000);
        assert!(
            !log.is_full(Some(now)) && log.take_line(now) && !log.is_full(Some(now)) && log.take_line(now)
        );
        assert!(log.is_full(Some(now)) && !log.is_full(Some(Micros::new(8_000_000))) && !log.is_full(None));
        log.count_suppressed(5);
        assert_eq!((log.suppressed(), log.take_line(now), log.suppressed()), (5, false, 6));
        let none = DenialLog::new(0);
        none.count_suppressed(5);
        assert!(none.is_full(None) && none.suppressed() == 0);
    }

    #[test]
    fn a_key_is_logged_by_its_first_characters() {
        for (key, expected) in [
            ("", ""),
            ("ab", "…"),
            ("bob", "b…"),
            ("alice", "a…"),
            ("123456", "12…"),
            ("sk_prod_12345678", "sk_p…"),
            ("éééééééééééééé", "éééé…"),
        ] {
            assert_eq!(abbreviated(key), expected, "{key}");
        }
    }

    #[test]
    fn an_endpoint_is_logged_without_its_query() {
        for (endpoint, expected) in [
            ("/orders", "/orders"),
            ("/orders?token=secret", "/orders"),
            ("/a#b?c", "/a"),
            ("?a", ""),
            ("", ""),
        ] {
            assert_eq!(without_query(endpoint), expected);
        }
    }
}

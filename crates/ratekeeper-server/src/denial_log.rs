//! The log of denials: every one until there are too many, and then how many more there were.
//!
//! Under a flood, writing a line for each refusal would cost more than refusing. So each second has room for some lines;
//! what does not fit is counted and told in one line when the second is over.

use ratekeeper::rules::{CheckRequest, Rule};
use ratekeeper::{Clock, Micros, RuleDecision};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// The most characters of a client's key that are shown: enough to recognise it by, too few to use it.
const MAX_SHOWN: usize = 4;
/// Of a short key no more than this part is shown: of many keys, four characters are nearly all there is.
const SHOWN_PART: usize = 3;

/// The log of denials.
#[derive(Debug)]
pub(crate) struct DenialLog {
    /// The most lines a second.
    most: u64,
    /// The second that is being counted.
    second: AtomicU64,
    /// How many denials it has had.
    seen: AtomicU64,
    /// All that were not logged.
    silent: AtomicU64,
}

impl DenialLog {
    /// A log of at most so many lines a second; 0 for none.
    pub(crate) const fn new(most: u32) -> DenialLog {
        DenialLog {
            most: most as u64,
            second: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            silent: AtomicU64::new(0),
        }
    }

    /// How many denials were not logged because there were too many.
    pub(crate) fn silent(&self) -> u64 {
        self.silent.load(Relaxed)
    }

    /// Tells when a second is over how many it was silent about, for ever.
    pub(crate) async fn keep(&self, clock: &dyn Clock) {
        let mut beat = interval(Duration::from_secs(1));
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            self.turn_to(clock.now());
        }
    }

    /// Whether one that was denied `now` would not be logged, for all that is known without asking everybody: only then
    /// may it be [passed over](DenialLog::pass_over) instead of noted.
    #[inline]
    pub(crate) fn is_full(&self, now: Option<Micros>) -> bool {
        let is_this_second = now.is_some_and(|now| now.get() / 1_000_000 == self.second.load(Relaxed));
        self.most == 0 || is_this_second && self.seen.load(Relaxed) >= self.most
    }

    /// Counts denials that are not logged.
    #[inline]
    pub(crate) fn pass_over(&self, denials: u64) {
        if denials > 0 && self.most > 0 {
            self.seen.fetch_add(denials, Relaxed);
            self.silent.fetch_add(denials, Relaxed);
        }
    }

    /// Notes a denial.
    #[cold]
    pub(crate) fn note(&self, clock: &dyn Clock, request: &CheckRequest<'_>, verdict: &RuleDecision<'_>) {
        if self.most == 0 {
            return;
        }
        let now = verdict.binding().map_or_else(|| clock.now(), |binding| binding.now);
        if self.has_room(now) {
            let decision = verdict.decision();
            tracing::info!(
                target: "ratekeeper::denied",
                key = shown(request.client_key),
                endpoint = path_of(request.endpoint),
                ip = request.ip.map(tracing::field::display),
                cost = request.cost,
                rule = verdict.rule().map(Rule::id),
                limit = decision.limit().map(tracing::field::display),
                retry_after_ms = decision.retry_after().map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
                reason = crate::api::reason(verdict.cause()),
                "denied"
            );
        }
    }

    /// Whether this second has room for a line.
    fn has_room(&self, now: Micros) -> bool {
        self.turn_to(now);
        let is_logged = self.seen.fetch_add(1, Relaxed) < self.most;
        if !is_logged {
            self.silent.fetch_add(1, Relaxed);
        }
        is_logged
    }

    /// Whoever is first in a new second tells how many the last one was silent about.
    fn turn_to(&self, now: Micros) {
        let second = now.get() / 1_000_000;
        let known = self.second.load(Relaxed);
        if known != second && self.second.compare_exchange(known, second, Relaxed, Relaxed).is_ok() {
            let more = self.seen.swap(0, Relaxed).saturating_sub(self.most);
            if more > 0 {
                tracing::info!(target: "ratekeeper::denied", more, "so many more were denied and not logged");
            }
        }
    }
}

/// The first characters of a key, of which the rest is not shown.
fn shown(key: &str) -> String {
    if key.is_empty() {
        return String::new();
    }
    let count = MAX_SHOWN.min(key.chars().count() / SHOWN_PART);
    key.chars().take(count).chain(['…']).collect()
}

/// An endpoint without its query and fragment, which may carry a client's secrets.
fn path_of(endpoint: &str) -> &str {
    endpoint.split(['?', '#']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_room_for_so_many_lines() {
        let log = DenialLog::new(2);
        let at = |second: u64| log.has_room(Micros::new(second * 1_000_000));
        assert_eq!([at(7), at(7), at(7), at(7)], [true, true, false, false]);
        assert_eq!([at(8), at(8), at(8)], [true, true, false]);
        assert_eq!(log.silent(), 3);
    }

    #[test]
    fn what_is_passed_over_is_counted_all_the_same() {
        let log = DenialLog::new(2);
        let now = Micros::new(7_000_000);
        assert!(!log.is_full(Some(now)) && log.has_room(now) && !log.is_full(Some(now)) && log.has_room(now));
        assert!(log.is_full(Some(now)) && !log.is_full(Some(Micros::new(8_000_000))) && !log.is_full(None));
        log.pass_over(5);
        assert_eq!((log.silent(), log.has_room(now), log.silent()), (5, false, 6));
        let none = DenialLog::new(0);
        none.pass_over(5);
        assert!(none.is_full(None) && none.silent() == 0);
    }

    #[test]
    fn a_key_is_shown_to_be_recognised_and_not_to_be_used() {
        for (key, expected) in [
            ("", ""),
            ("ab", "…"),
            ("bob", "b…"),
            ("alice", "a…"),
            ("123456", "12…"),
            ("sk_prod_12345678", "sk_p…"),
            ("éééééééééééééé", "éééé…"),
        ] {
            assert_eq!(shown(key), expected, "{key}");
        }
    }

    #[test]
    fn an_endpoint_is_shown_without_its_query() {
        for (endpoint, expected) in [
            ("/orders", "/orders"),
            ("/orders?token=secret", "/orders"),
            ("/a#b?c", "/a"),
            ("?a", ""),
            ("", ""),
        ] {
            assert_eq!(path_of(endpoint), expected);
        }
    }
}

//! Logs tiers in requests that the rule file does not name.
//!
//! A caller that misspells a tier does so in every request, so at most one line in ten seconds is written, with the
//! number of requests since the last one. All of them are counted in [`DecisionCounts`](super::DecisionCounts).

use ratekeeper_core::Micros;
use ratekeeper_rules::spec::UnknownTier;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The minimum time between two lines.
const LOG_INTERVAL_MICROS: u64 = 10_000_000;
/// The maximum number of characters of a tier in a line.
const MAX_TIER_CHARS: usize = 64;

/// A rate-limited log of unknown tiers.
#[derive(Debug, Default)]
pub(super) struct UnknownTierLog {
    /// When the next line may be written.
    next_at: AtomicU64,
    /// The number of requests since the last line.
    unlogged: AtomicU64,
}

impl UnknownTierLog {
    /// Logs a request with an unknown tier, if a line is due.
    #[cold]
    pub(super) fn record(&self, tier: &str, handling: UnknownTier, now: Micros) {
        if let Some(unlogged) = self.start_line(now) {
            let shown = tier.char_indices().nth(MAX_TIER_CHARS).map_or(tier, |(end, _)| &tier[..end]);
            // Debug-formatted, so that a line break in the tier is escaped.
            tracing::warn!(
                tier = ?shown,
                handling = handling.name(),
                unlogged,
                "unknown tier in request: not defined in the rule file"
            );
        }
    }

    /// The number of requests not logged since the last line. Returns `None` if it is too early for another line.
    fn start_line(&self, now: Micros) -> Option<u64> {
        let next_at = self.next_at.load(Relaxed);
        let next = now.get().saturating_add(LOG_INTERVAL_MICROS);
        // A clock that was set back by a lot must not silence the log until it has caught up.
        let is_time = now.get() >= next_at || next_at > next;
        if is_time && self.next_at.compare_exchange(next_at, next, Relaxed, Relaxed).is_ok() {
            return Some(self.unlogged.swap(0, Relaxed));
        }
        self.unlogged.fetch_add(1, Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_one_line_in_ten_seconds_with_the_number_skipped() {
        let log = UnknownTierLog::default();
        let at = |seconds: u64| log.start_line(Micros::new(seconds * 1_000_000));
        assert_eq!([at(100), at(100), at(109), at(110), at(111)], [Some(0), None, None, Some(2), None]);
        assert_eq!(at(1), Some(1), "the clock was set back");
    }
}

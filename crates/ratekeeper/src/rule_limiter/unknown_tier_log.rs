//! The log of tiers that requests state and the rule file does not name.
//!
//! A caller that misspells a tier does so in every request, so one line in ten seconds is written, with how many
//! requests there were since the last one. All of them are counted in [`DecisionCounts`](super::DecisionCounts).

use ratekeeper_core::Micros;
use ratekeeper_rules::spec::UnknownTier;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The least time between two lines.
const PAUSE_MICROS: u64 = 10_000_000;
/// How many characters of a tier are shown.
const SHOWN: usize = 64;

/// The log of unknown tiers.
#[derive(Debug, Default)]
pub(super) struct UnknownTierLog {
    /// From when on the next line may be written.
    due: AtomicU64,
    /// How many requests there were since the last line.
    unlogged: AtomicU64,
}

impl UnknownTierLog {
    /// Notes a request that states an unknown tier.
    #[cold]
    pub(super) fn note(&self, tier: &str, handling: UnknownTier, now: Micros) {
        if let Some(unlogged) = self.take_turn(now) {
            let shown = tier.char_indices().nth(SHOWN).map_or(tier, |(end, _)| &tier[..end]);
            // Written as Rust writes text, so that nothing in it can end the line.
            tracing::warn!(
                tier = ?shown,
                handling = handling.name(),
                unlogged,
                "unknown tier in a request: the rule file does not name it"
            );
        }
    }

    /// How many requests were not logged, if it is time for a line.
    fn take_turn(&self, now: Micros) -> Option<u64> {
        let due = self.due.load(Relaxed);
        let next = now.get().saturating_add(PAUSE_MICROS);
        // A clock that was set back by much must not silence the log until it has caught up.
        let is_due = now.get() >= due || due > next;
        if is_due && self.due.compare_exchange(due, next, Relaxed, Relaxed).is_ok() {
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
    fn one_line_in_ten_seconds_says_how_many_there_were() {
        let log = UnknownTierLog::default();
        let at = |seconds: u64| log.take_turn(Micros::new(seconds * 1_000_000));
        assert_eq!([at(100), at(100), at(109), at(110), at(111)], [Some(0), None, None, Some(2), None]);
        assert_eq!(at(1), Some(1), "the clock was set back");
    }
}

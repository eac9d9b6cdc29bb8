//! The sliding window log: exact, at the price of remembering every admitted unit.
//!
//! A unit admitted at `t` counts until just before `t + per`. Units admitted at the same microsecond share a run, so
//! none is lost and a burst costs one entry.

use crate::ask::Ask;
use crate::reading::{Outlook, Retry};
use crate::time::{Micros, Span};
use std::collections::VecDeque;

/// A sliding log's constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingLog {
    pub(crate) amount: u32,
    pub(crate) per: Span,
}

/// The units a sliding log remembers, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    runs: VecDeque<(Micros, u32)>,
    used: u32,
}

impl Log {
    /// How many entries it holds: what its memory grows with.
    pub fn entries(&self) -> usize {
        self.runs.len()
    }

    /// When units were admitted, and how many, oldest first.
    pub fn runs(&self) -> impl Iterator<Item = (Micros, u32)> {
        self.runs.iter().copied()
    }

    pub(super) fn shrink(&mut self) {
        super::shrink(&mut self.runs);
    }

    fn newest(&self) -> Option<Micros> {
        self.runs.back().map(|(at, _)| *at)
    }

    /// Forgets the last `units` admitted.
    pub(crate) fn take_back(&mut self, mut units: u32) {
        while let Some((_, run)) = self.runs.back_mut().filter(|_| units > 0) {
            let taken = units.min(*run);
            *run -= taken;
            self.used -= taken;
            units -= taken;
            if *run == 0 {
                self.runs.pop_back();
            }
        }
    }
}

impl SlidingLog {
    /// Forgets what has passed out of sight, then admits as much of `ask` as still fits.
    pub(crate) fn draw(&self, log: &mut Log, now: Micros, ask: Ask) -> Option<u32> {
        self.age(log, now);
        let room = self.amount.saturating_sub(log.used);
        if ask.at_least() > room {
            return None;
        }
        let granted = ask.at_most().min(room);
        if granted > 0 {
            // A clock stepping back may not put a unit before an older one.
            let at = log.newest().map_or(now, |newest| newest.max(now));
            match log.runs.back_mut().filter(|(newest, _)| *newest == at) {
                Some((_, run)) => *run += granted,
                None => log.runs.push_back((at, granted)),
            }
            log.used += granted;
        }
        Some(granted)
    }

    /// Forgets what has passed out of sight. Time never runs back past the newest unit.
    pub(crate) fn age(&self, log: &mut Log, now: Micros) {
        let now = log.newest().map_or(now, |newest| newest.max(now));
        while let Some((_, run)) = log.runs.pop_front_if(|(at, _)| at.plus(self.per) <= now) {
            log.used -= run;
        }
    }

    /// What the log promises: `ask` was answered with `granted` at `now`.
    pub(crate) fn outlook(&self, log: &Log, now: Micros, ask: Ask, granted: Option<u32>) -> Outlook {
        let freed = |at: Micros| at.plus(self.per).since(now);
        Outlook {
            remaining: self.amount.saturating_sub(log.used),
            reset: log.newest().map_or(Span::ZERO, freed),
            delay: Span::ZERO,
            retry: if granted.is_none() { Some(self.retry(log, now, ask)) } else { None },
        }
    }

    /// When the oldest units will have made room.
    fn retry(&self, log: &Log, now: Micros, ask: Ask) -> Retry {
        let Some(room) = self.amount.checked_sub(ask.at_least()) else { return Retry::Never };
        let mut left = log.used;
        let last_in_the_way = log.runs.iter().find(|(_, run)| {
            left -= run;
            left <= room
        });
        Retry::After(last_in_the_way.map_or(Span::ZERO, |(at, _)| at.plus(self.per).since(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::law::Roll;

    #[test]
    fn a_log_that_has_drained_gives_its_memory_back() {
        let runs = (0..1000).map(|at| (Micros::new(at), 1)).collect();
        let mut roll = Roll::Log(Log { runs, used: 1000 });
        let Roll::Log(log) = &mut roll else { return };
        SlidingLog { amount: 1000, per: Span::micros(10) }.age(log, Micros::new(1008));
        assert_eq!((log.entries(), log.used), (1, 1));
        roll.shrink();
        assert!(matches!(&roll, Roll::Log(log) if log.runs.capacity() < 100));
    }
}

//! The sliding window counter: every unit with its window's number, weighted in wide integers.

use super::AlgorithmModel;
use ratekeeper_core::{Limit, MAX_CLOCK_STEP_BACK, Micros, PermitId};

#[derive(Clone)]
pub(super) struct SlidingCounters {
    limit: Limit,
    tick: u128,
    /// The window number and the units of each grant.
    grants: Vec<(u128, u128)>,
    /// The latest window with a grant or a refund.
    last_window: u128,
}

impl SlidingCounters {
    pub(super) fn new(limit: &Limit) -> SlidingCounters {
        let (amount, per) = (u128::from(limit.quota().amount()), u128::from(limit.quota().per().get()));
        let mut tick = 1;
        while amount * (per / tick) >= 1 << 53 {
            tick *= 10;
        }
        SlidingCounters { limit: *limit, tick, grants: Vec::new(), last_window: 0 }
    }

    fn window_ticks(&self) -> u128 {
        u128::from(self.limit.quota().per().get()) / self.tick
    }

    /// The window number and the ticks elapsed in it at `now`, but never before the latest window seen.
    fn position(&self, now: Micros) -> (u128, u128) {
        let tick = u128::from(now.get()) / self.tick;
        let (index, elapsed) = (tick / self.window_ticks(), tick % self.window_ticks());
        if self.last_window > index && !self.grants.is_empty() {
            (self.last_window, 0)
        } else {
            (index, elapsed)
        }
    }

    fn count(&self, index: u128) -> u128 {
        self.grants.iter().filter(|(window, _)| *window == index).map(|(_, units)| units).sum()
    }

    /// The weighted units at `now`, times the window length in ticks.
    fn scaled_weight(&self, now: Micros) -> u128 {
        let (index, elapsed) = self.position(now);
        let previous = if index == 0 { 0 } else { self.count(index - 1) };
        previous * (self.window_ticks() - elapsed) + self.count(index) * self.window_ticks()
    }

    fn used(&self, now: Micros) -> u128 {
        self.scaled_weight(now).div_ceil(self.window_ticks())
    }
}

impl AlgorithmModel for SlidingCounters {
    /// If the clock stepped back too far, moves the counts to the current window.
    fn advance(&mut self, now: Micros) {
        let tick = u128::from(now.get()) / self.tick;
        let farthest = (u128::from(MAX_CLOCK_STEP_BACK.get()) / self.tick).max(1);
        if !self.grants.is_empty() && self.last_window * self.window_ticks() > tick + farthest {
            let index = tick / self.window_ticks();
            let shift = self.last_window - index;
            self.grants.retain(|(window, _)| *window + 1 >= self.last_window);
            self.grants.iter_mut().for_each(|(window, _)| *window -= shift);
            self.last_window = index;
        }
    }

    fn free(&self, now: Micros) -> u64 {
        let free = u128::from(self.limit.quota().amount()).saturating_sub(self.used(now));
        u64::try_from(free).expect("at most the amount")
    }

    fn is_clean(&self, now: Micros) -> bool {
        self.scaled_weight(now) == 0
    }

    fn take(&mut self, now: Micros, units: u32, _permit: PermitId) {
        if units > 0 {
            self.last_window = self.position(now).0;
            self.grants.push((self.last_window, u128::from(units)));
        }
    }

    fn refund(&mut self, now: Micros, units: u32, _permit: PermitId) {
        let (index, _) = self.position(now);
        let mut units = u128::from(units);
        self.grants.retain(|(window, _)| window + 1 >= index);
        self.last_window = index;
        for (_, taken) in self.grants.iter_mut().rev() {
            let back = units.min(*taken);
            *taken -= back;
            units -= back;
        }
        self.grants.retain(|(_, units)| *units > 0);
    }

    fn change_quota(&mut self, limit: &Limit, now: Micros) {
        let amount = u128::from(limit.quota().amount());
        let (index, _) = self.position(now);
        let before = std::mem::replace(self, SlidingCounters::new(limit));
        if (self.window_ticks(), self.tick) == (before.window_ticks(), before.tick) {
            let previous = if index == 0 { 0 } else { before.count(index - 1).min(amount) };
            self.grants = vec![(index.saturating_sub(1), previous), (index, before.count(index).min(amount))];
            self.last_window = index;
            return;
        }
        let used = before.used(now).min(u128::from(before.limit.quota().amount())).min(amount);
        let begun =
            u64::try_from(index * before.window_ticks() * before.tick).expect("a window start fits in u64");
        let (index, _) = self.position(Micros::new(begun).max(now));
        self.grants = vec![(index, used)];
        self.last_window = index;
    }

    fn boxed_clone(&self) -> Box<dyn AlgorithmModel> {
        Box::new(self.clone())
    }
}

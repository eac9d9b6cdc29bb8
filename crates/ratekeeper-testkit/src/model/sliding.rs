//! The sliding window counter: every unit with its window's number, weighed in wide integers.

use super::AlgorithmModel;
use ratekeeper_core::{Limit, MOST_BACK, Micros, PermitId};

#[derive(Clone)]
pub(super) struct Counters {
    limit: Limit,
    tick: u128,
    /// The window's number and the units of each grant.
    grants: Vec<(u128, u128)>,
    /// The last window that something was noted in.
    reached: u128,
}

impl Counters {
    pub(super) fn new(limit: &Limit) -> Counters {
        let (amount, per) = (u128::from(limit.quota().amount()), u128::from(limit.quota().per().get()));
        let mut tick = 1;
        while amount * (per / tick) >= 1 << 53 {
            tick *= 10;
        }
        Counters { limit: *limit, tick, grants: Vec::new(), reached: 0 }
    }

    fn window(&self) -> u128 {
        u128::from(self.limit.quota().per().get()) / self.tick
    }

    /// The window's number and how far into it `now` is, but never before a window that was reached.
    fn place(&self, now: Micros) -> (u128, u128) {
        let tick = u128::from(now.get()) / self.tick;
        let (index, elapsed) = (tick / self.window(), tick % self.window());
        match self.reached > index && !self.grants.is_empty() {
            true => (self.reached, 0),
            false => (index, elapsed),
        }
    }

    fn count(&self, index: u128) -> u128 {
        self.grants.iter().filter(|(window, _)| *window == index).map(|(_, units)| units).sum()
    }

    /// What weighs at `now`, times the window.
    fn weight(&self, now: Micros) -> u128 {
        let (index, elapsed) = self.place(now);
        let previous = if index == 0 { 0 } else { self.count(index - 1) };
        previous * (self.window() - elapsed) + self.count(index) * self.window()
    }

    fn used(&self, now: Micros) -> u128 {
        self.weight(now).div_ceil(self.window())
    }
}

impl AlgorithmModel for Counters {
    /// If the clock was set back too far, what was counted counts in the window that it is in.
    fn settle(&mut self, now: Micros) {
        let tick = u128::from(now.get()) / self.tick;
        let farthest = (u128::from(MOST_BACK.get()) / self.tick).max(1);
        if !self.grants.is_empty() && self.reached * self.window() > tick + farthest {
            let index = tick / self.window();
            let shift = self.reached - index;
            self.grants.retain(|(window, _)| *window + 1 >= self.reached);
            self.grants.iter_mut().for_each(|(window, _)| *window -= shift);
            self.reached = index;
        }
    }

    fn free(&self, now: Micros) -> u64 {
        let free = u128::from(self.limit.quota().amount()).saturating_sub(self.used(now));
        u64::try_from(free).expect("at most the amount")
    }

    fn is_clean(&self, now: Micros) -> bool {
        self.weight(now) == 0
    }

    fn take(&mut self, now: Micros, units: u32, _permit: PermitId) {
        if units > 0 {
            self.reached = self.place(now).0;
            self.grants.push((self.reached, u128::from(units)));
        }
    }

    fn give(&mut self, now: Micros, units: u32, _permit: PermitId) {
        let (index, _) = self.place(now);
        let mut units = u128::from(units);
        self.grants.retain(|(window, _)| window + 1 >= index);
        self.reached = index;
        for (_, taken) in self.grants.iter_mut().rev() {
            let back = units.min(*taken);
            *taken -= back;
            units -= back;
        }
        self.grants.retain(|(_, units)| *units > 0);
    }

    fn change(&mut self, limit: &Limit, now: Micros) {
        let amount = u128::from(limit.quota().amount());
        let (index, _) = self.place(now);
        let before = std::mem::replace(self, Counters::new(limit));
        if (self.window(), self.tick) == (before.window(), before.tick) {
            let previous = if index == 0 { 0 } else { before.count(index - 1).min(amount) };
            self.grants = vec![(index.saturating_sub(1), previous), (index, before.count(index).min(amount))];
            self.reached = index;
            return;
        }
        let used = before.used(now).min(u128::from(before.limit.quota().amount())).min(amount);
        let begun = u64::try_from(index * before.window() * before.tick).expect("an instant");
        let (index, _) = self.place(Micros::new(begun).max(now));
        self.grants = vec![(index, used)];
        self.reached = index;
    }

    fn copy(&self) -> Box<dyn AlgorithmModel> {
        Box::new(self.clone())
    }
}

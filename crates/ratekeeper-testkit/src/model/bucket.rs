//! The bucket algorithms by their definition: from any admitted unit on, at most burst + rate × time.
//!
//! The debt at a time is the largest excess over the rate of any interval that ends there, which needs no state but the
//! arrivals themselves.

use super::AlgorithmModel;
use ratekeeper_core::{Algorithm, Leak, Limit, MAX_CLOCK_STEP_BACK, Micros, PermitId, Span};

#[derive(Clone)]
pub(super) struct Arrivals {
    rate: Rate,
    /// The debt, in parts, and its tick, after a refund or a change of quota cleared the arrivals.
    baseline: Option<(u128, u128)>,
    /// The tick and the units of each arrival.
    arrivals: Vec<(u128, u128)>,
}

/// A limit in wide integers: a unit has `unit` parts, and `amount` parts are paid back each tick.
#[derive(Clone)]
struct Rate {
    tick: u128,
    parts_per_unit: u128,
    parts_per_tick: u128,
    burst: u128,
    carryover: Carryover,
}

/// What survives a change of quota.
#[derive(Clone, PartialEq)]
enum Carryover {
    Tokens,
    Debt,
    Queue,
}

impl Rate {
    fn new(limit: &Limit) -> Rate {
        let (amount, per) = (u128::from(limit.quota().amount()), u128::from(limit.quota().per().get()));
        let burst = u128::from(limit.capacity());
        let mut tick = 1;
        loop {
            let ticks = per / tick;
            let common = gcd(amount, ticks);
            if burst * (ticks / common) + amount / common < 1 << 53 {
                let carryover = match limit.algorithm() {
                    Algorithm::TokenBucket => Carryover::Tokens,
                    Algorithm::LeakyBucket(Leak::Queue) => Carryover::Queue,
                    _ => Carryover::Debt,
                };
                return Rate {
                    tick,
                    parts_per_unit: ticks / common,
                    parts_per_tick: amount / common,
                    burst,
                    carryover,
                };
            }
            tick *= 10;
        }
    }

    fn capacity_parts(&self) -> u128 {
        self.burst * self.parts_per_unit
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Arrivals {
    pub(super) fn new(limit: &Limit) -> Arrivals {
        Arrivals { rate: Rate::new(limit), baseline: None, arrivals: Vec::new() }
    }

    /// The tick of `now`, but never before the latest one seen.
    fn tick(&self, now: Micros) -> u128 {
        let seen = self.arrivals.last().map(|(at, _)| *at).max(self.baseline.map(|(_, at)| at));
        (u128::from(now.get()) / self.rate.tick).max(seen.unwrap_or(0))
    }

    fn debt(&self, tick: u128) -> u128 {
        let units_from =
            |index: usize| -> u128 { self.arrivals[index..].iter().map(|(_, units)| units).sum() };
        let stretches = (0..self.arrivals.len()).map(|index| {
            (units_from(index) * self.rate.parts_per_unit)
                .saturating_sub((tick - self.arrivals[index].0) * self.rate.parts_per_tick)
        });
        let base = self.baseline.map(|(owed, at)| {
            (owed + units_from(0) * self.rate.parts_per_unit)
                .saturating_sub((tick - at) * self.rate.parts_per_tick)
        });
        stretches.chain(base).max().unwrap_or(0)
    }

    fn restart_from(&mut self, owed: u128, tick: u128) {
        self.baseline = Some((owed, tick)).filter(|(owed, _)| *owed > 0);
        self.arrivals.clear();
    }
}

impl AlgorithmModel for Arrivals {
    /// If the clock stepped back too far, shifts the debt back so that it counts from now on.
    fn advance(&mut self, now: Micros) {
        let (now, seen) = (u128::from(now.get()) / self.rate.tick, self.tick(Micros::EPOCH));
        let farthest = (u128::from(MAX_CLOCK_STEP_BACK.get()) / self.rate.tick).max(1);
        if seen > now + farthest {
            let owed = self.debt(seen);
            self.restart_from(owed, now);
        }
    }

    fn free(&self, now: Micros) -> u64 {
        let free = (self.rate.capacity_parts() - self.debt(self.tick(now))) / self.rate.parts_per_unit;
        u64::try_from(free).expect("the free units fit in u64")
    }

    fn is_clean(&self, now: Micros) -> bool {
        self.debt(self.tick(now)) == 0
    }

    fn delay(&self, now: Micros) -> Span {
        match self.rate.carryover {
            Carryover::Tokens | Carryover::Debt => Span::ZERO,
            Carryover::Queue => super::earliest(now, |at| self.is_clean(at)).since(now),
        }
    }

    fn take(&mut self, now: Micros, units: u32, _permit: PermitId) {
        if units > 0 {
            self.arrivals.push((self.tick(now), u128::from(units)));
        }
    }

    fn refund(&mut self, now: Micros, units: u32, _permit: PermitId) {
        let tick = self.tick(now);
        let owed = self.debt(tick).saturating_sub(u128::from(units) * self.rate.parts_per_unit);
        if self.baseline.is_some() || !self.arrivals.is_empty() {
            self.restart_from(owed, tick);
        }
    }

    fn change_quota(&mut self, limit: &Limit, now: Micros) {
        let tick = self.tick(now);
        let (owed, before) = (self.debt(tick), std::mem::replace(&mut self.rate, Rate::new(limit)));
        let (rate, capacity) = (&self.rate, self.rate.capacity_parts());
        let owed = match rate.carryover {
            Carryover::Tokens => {
                capacity
                    - ((before.capacity_parts() - owed) * rate.parts_per_unit / before.parts_per_unit)
                        .min(capacity)
            }
            Carryover::Debt | Carryover::Queue => {
                (owed * rate.parts_per_unit).div_ceil(before.parts_per_unit).min(capacity)
            }
        };
        let (begun, now) = (tick * before.tick, u128::from(now.get()));
        let micros = if begun > now + u128::from(MAX_CLOCK_STEP_BACK.get()) { now } else { begun.max(now) };
        let tick = micros.div_ceil(rate.tick);
        self.restart_from(owed, tick);
    }

    fn boxed_clone(&self) -> Box<dyn AlgorithmModel> {
        Box::new(self.clone())
    }
}

//! The bucket laws by their definition: from any admitted unit on, no more than burst + rate × time.
//!
//! What is owed at a time is the largest excess over the rate of any stretch that ends there, which needs no state
//! but the arrivals themselves.

use super::AlgorithmModel;
use ratekeeper_core::{Algorithm, Leak, Limit, MOST_BACK, Micros, PermitId, Span};

#[derive(Clone)]
pub(super) struct Arrivals {
    rate: Rate,
    /// What was owed at a tick, if a refund or a change of quota made a new beginning, in parts.
    base: Option<(u128, u128)>,
    /// Ticks and units.
    arrivals: Vec<(u128, u128)>,
}

/// A limit in wide integers: a unit is `unit` parts, and `amount` parts are paid back each tick.
#[derive(Clone)]
struct Rate {
    tick: u128,
    unit: u128,
    amount: u128,
    burst: u128,
    keeps: Keeps,
}

/// What survives a change of quota.
#[derive(Clone, PartialEq)]
enum Keeps {
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
                let keeps = match limit.law() {
                    Algorithm::TokenBucket => Keeps::Tokens,
                    Algorithm::LeakyBucket(Leak::Queue) => Keeps::Queue,
                    _ => Keeps::Debt,
                };
                return Rate { tick, unit: ticks / common, amount: amount / common, burst, keeps };
            }
            tick *= 10;
        }
    }

    fn capacity(&self) -> u128 {
        self.burst * self.unit
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Arrivals {
    pub(super) fn new(limit: &Limit) -> Arrivals {
        Arrivals { rate: Rate::new(limit), base: None, arrivals: Vec::new() }
    }

    /// The tick of `now`, but never before what has been seen.
    fn tick(&self, now: Micros) -> u128 {
        let seen = self.arrivals.last().map(|(at, _)| *at).max(self.base.map(|(_, at)| at));
        (u128::from(now.get()) / self.rate.tick).max(seen.unwrap_or(0))
    }

    fn owed(&self, tick: u128) -> u128 {
        let units_from =
            |index: usize| -> u128 { self.arrivals[index..].iter().map(|(_, units)| units).sum() };
        let stretches = (0..self.arrivals.len()).map(|index| {
            (units_from(index) * self.rate.unit)
                .saturating_sub((tick - self.arrivals[index].0) * self.rate.amount)
        });
        let base = self.base.map(|(owed, at)| {
            (owed + units_from(0) * self.rate.unit).saturating_sub((tick - at) * self.rate.amount)
        });
        stretches.chain(base).max().unwrap_or(0)
    }

    fn begin_again(&mut self, owed: u128, tick: u128) {
        self.base = Some((owed, tick)).filter(|(owed, _)| *owed > 0);
        self.arrivals.clear();
    }
}

impl AlgorithmModel for Arrivals {
    /// If the clock was set back too far, everything happened so much earlier that the last of it is now.
    fn settle(&mut self, now: Micros) {
        let (now, seen) = (u128::from(now.get()) / self.rate.tick, self.tick(Micros::EPOCH));
        let farthest = (u128::from(MOST_BACK.get()) / self.rate.tick).max(1);
        if seen > now + farthest {
            let owed = self.owed(seen);
            self.begin_again(owed, now);
        }
    }

    fn free(&self, now: Micros) -> u64 {
        let free = (self.rate.capacity() - self.owed(self.tick(now))) / self.rate.unit;
        u64::try_from(free).expect("a count of units")
    }

    fn is_clean(&self, now: Micros) -> bool {
        self.owed(self.tick(now)) == 0
    }

    fn delay(&self, now: Micros) -> Span {
        match self.rate.keeps {
            Keeps::Tokens | Keeps::Debt => Span::ZERO,
            Keeps::Queue => super::first(now, |at| self.is_clean(at)).since(now),
        }
    }

    fn take(&mut self, now: Micros, units: u32, _permit: PermitId) {
        if units > 0 {
            self.arrivals.push((self.tick(now), u128::from(units)));
        }
    }

    fn give(&mut self, now: Micros, units: u32, _permit: PermitId) {
        let tick = self.tick(now);
        let owed = self.owed(tick).saturating_sub(u128::from(units) * self.rate.unit);
        if self.base.is_some() || !self.arrivals.is_empty() {
            self.begin_again(owed, tick);
        }
    }

    fn change(&mut self, limit: &Limit, now: Micros) {
        let tick = self.tick(now);
        let (owed, before) = (self.owed(tick), std::mem::replace(&mut self.rate, Rate::new(limit)));
        let (rate, capacity) = (&self.rate, self.rate.capacity());
        let owed = match rate.keeps {
            Keeps::Tokens => capacity - ((before.capacity() - owed) * rate.unit / before.unit).min(capacity),
            Keeps::Debt | Keeps::Queue => (owed * rate.unit).div_ceil(before.unit).min(capacity),
        };
        let (begun, now) = (tick * before.tick, u128::from(now.get()));
        let micros = if begun > now + u128::from(MOST_BACK.get()) { now } else { begun.max(now) };
        let tick = micros.div_ceil(rate.tick);
        self.begin_again(owed, tick);
    }

    fn copy(&self) -> Box<dyn AlgorithmModel> {
        Box::new(self.clone())
    }
}

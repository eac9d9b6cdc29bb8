//! The token bucket, and the leaky bucket, which is the same arithmetic seen from below.
//!
//! What is remembered is a *debt*: how much has been taken and not yet refilled, and when that was true. The debt is
//! counted in parts: a unit is `unit` parts and every tick pays back `refill` parts, where `refill / unit` is the rate
//! in lowest terms. So any rate is exact, however odd (7/s, 10 million/s, 999 999/month), no fraction is ever rounded
//! away however often one asks, and a bucket left alone is simply without debt.

mod lent;

use super::share::{ShareChange, portion};
use super::tick::{Tick, exact_product};
use crate::limit::{Limit, Step};
use crate::op::Amount;
use crate::params::LimitParams;
use crate::quota::Quota;
use crate::state::State;
use crate::status::{Forecast, Retry};
use crate::time::{EXACT, MOST_BACK, Micros, Span};
use std::num::NonZeroU64;

/// A bucket's constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bucket {
    unit: NonZeroU64,
    refill: NonZeroU64,
    /// The most parts that may be owed.
    capacity: u64,
    /// How many ticks pay back everything.
    full: u64,
    tick: Tick,
    burst: u32,
    duty: BucketMode,
}

/// What a bucket is for. It decides who waits, and what a change of quota preserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BucketMode {
    /// Holds tokens: a change of quota keeps what is left.
    Tokens,
    /// Measures what came: a change of quota keeps what is in it.
    Meter,
    /// Delays what came until its turn: a change of quota keeps what is waiting.
    Queue,
}

/// The longest period of a share: all that it takes to be full again ends within [`Limit::LONGEST`].
const LIFETIME: Span = Span::micros(Limit::LONGEST.get() - Span::DAY.get());

/// What is owed, in parts, and since which tick.
#[derive(Clone, Copy)]
struct Debt {
    owed: u64,
    at: u64,
}

impl Debt {
    #[inline]
    fn of(state: State) -> Debt {
        let (owed, at) = state.numbers();
        Debt { owed, at }
    }

    #[inline]
    fn state(self) -> State {
        State::new(self.owed, self.at)
    }
}

impl Bucket {
    /// A bucket of `burst` units; nothing if its numbers would pass 2^53 at every tick.
    pub(crate) fn new(duty: BucketMode, quota: &Quota, burst: u32) -> Option<Bucket> {
        let lowest_terms = |ticks: u64| {
            let common = gcd(u64::from(quota.amount()), ticks);
            (ticks / common, u64::from(quota.amount()) / common)
        };
        let tick = Tick::shortest(quota.per(), |ticks| {
            let (unit, refill) = lowest_terms(ticks);
            exact_product(u64::from(burst), unit) && u64::from(burst) * unit <= EXACT - refill
        })?;
        let (unit, refill) = lowest_terms(tick.count(quota.per()));
        let capacity = u64::from(burst) * unit;
        Some(Bucket {
            unit: NonZeroU64::new(unit)?,
            refill: NonZeroU64::new(refill)?,
            capacity,
            full: capacity.div_ceil(refill),
            tick,
            burst,
            duty,
        })
    }

    /// What one of `nodes` has of the bucket that `quota` fills: a part of the burst, and what comes back in one period
    /// comes in so many.
    pub(crate) fn share(&self, quota: &Quota, nodes: u32) -> Bucket {
        let burst = portion(self.burst, nodes);
        let fill = |amount, per, burst| {
            let bucket = Bucket::new(self.duty, &Quota::new(amount, per).ok()?, burst)?;
            (bucket.ttl() <= Limit::LONGEST).then_some(bucket)
        };
        let periods = u128::from(quota.per().get()) * u128::from(nodes);
        let exact = || match u64::try_from(periods) {
            Ok(micros) if micros <= Span::MAX.get() => fill(quota.amount(), Span::micros(micros), burst),
            _ => None,
        };
        // So many periods may be too long to be counted. Then what comes in a lifetime is told, rounded down.
        let slow = || {
            let amount = u128::from(quota.amount()) * u128::from(LIFETIME.get()) / periods;
            fill(u32::try_from(amount).unwrap_or(u32::MAX).max(1), LIFETIME, burst)
        };
        let least = || fill(1, LIFETIME, 1);
        exact().or_else(slow).or_else(least).expect("a unit in a lifetime can be counted")
    }

    /// Ages the debt to `now`, then grants as much of `ask` as still fits.
    #[inline(always)]
    pub(crate) fn step(&self, state: Option<State>, now: Micros, ask: Amount) -> Step {
        let debt = self.age(state, now);
        let step = self.step_aged(debt, now, ask);
        // A debt that is counted from now on, because the clock was set back, must be written even if the draw is refused.
        let is_rebased = state.is_some_and(|before| Debt::of(before).at > debt.at);
        Step { changed: step.changed || is_rebased, ..step }
    }

    #[inline(always)]
    fn step_aged(&self, debt: Debt, now: Micros, ask: Amount) -> Step {
        let room = self.capacity - debt.owed;
        let fits = ask.at_least() <= self.burst && u64::from(ask.at_least()) * self.unit.get() <= room;
        if !fits || ask.at_least() > 0 && self.delay(debt, now) > ask.patience() {
            return Step { granted: None, state: debt.state(), changed: false };
        }
        let granted = match ask.at_most() == ask.at_least() {
            true => ask.at_least(),
            false => u32::try_from(room / self.unit).unwrap_or(u32::MAX).min(ask.at_most()),
        };
        let owed = debt.owed + u64::from(granted) * self.unit.get();
        Step { granted: Some(granted), state: Debt { owed, ..debt }.state(), changed: granted > 0 }
    }

    /// Pays back what has been refilled since.
    #[inline(always)]
    fn age(&self, state: Option<State>, now: Micros) -> Debt {
        let now = self.tick.of(now);
        let Some(debt) = state.map(Debt::of) else { return Debt { owed: 0, at: now } };
        // The difference stops at zero: a clock stepping back may pause the refill but never lends time.
        let elapsed = now.saturating_sub(debt.at);
        // Past `full` everything is paid, and the product below can't overflow.
        let paid = if elapsed >= self.full { self.capacity } else { elapsed * self.refill.get() };
        match debt.owed.saturating_sub(paid) {
            // Without a debt there is nothing to remember, not even when.
            0 => Debt { owed: 0, at: now },
            owed if debt.at > now => Debt { owed, at: self.after_step_back(debt.at, now) },
            owed => Debt { owed, at: now },
        }
    }

    /// From when on a debt is paid back after the clock stepped back: from when it was noted, or, if that is too far
    /// ahead, from now.
    #[cold]
    fn after_step_back(&self, at: u64, now: u64) -> u64 {
        if self.tick.is_ahead(at, now) { now } else { at }
    }

    /// How long a queue makes a newcomer wait; the other two never do.
    #[inline(always)]
    fn delay(&self, debt: Debt, now: Micros) -> Span {
        match self.duty {
            BucketMode::Queue => self.paid_at(debt, debt.owed).since(now),
            BucketMode::Tokens | BucketMode::Meter => Span::ZERO,
        }
    }

    /// When so many parts of the debt will have been paid back.
    fn paid_at(&self, debt: Debt, parts: u64) -> Micros {
        match parts {
            0 => Micros::EPOCH,
            _ => self.tick.start(debt.at.saturating_add(parts.div_ceil(self.refill.get()))),
        }
    }

    /// What the state promises: `ask` was answered with `granted` at `now`.
    pub(crate) fn outlook(&self, state: State, now: Micros, ask: Amount, granted: Option<u32>) -> Forecast {
        let debt = self.age(Some(state), now);
        let taken = u64::from(granted.unwrap_or(0)) * self.unit.get();
        Forecast {
            remaining: u32::try_from((self.capacity - debt.owed) / self.unit).unwrap_or(u32::MAX),
            reset: self.paid_at(debt, debt.owed).since(now),
            delay: self.delay(Debt { owed: debt.owed.saturating_sub(taken), ..debt }, now),
            retry: if granted.is_none() { Some(self.retry(debt, now, ask)) } else { None },
        }
    }

    /// When to come back with the same ask: neither early nor late, if nobody draws in between.
    fn retry(&self, debt: Debt, now: Micros, ask: Amount) -> Retry {
        if ask.at_least() > self.burst {
            return Retry::Never;
        }
        let room = self.capacity - u64::from(ask.at_least()) * self.unit.get();
        let fits_at = self.paid_at(debt, debt.owed.saturating_sub(room));
        let turn_at = match self.duty {
            BucketMode::Queue => self.paid_at(debt, debt.owed).less(ask.patience()),
            BucketMode::Tokens | BucketMode::Meter => Micros::EPOCH,
        };
        Retry::After(fits_at.max(turn_at).since(now))
    }

    /// Gives back so many units, at most all that are owed.
    pub(crate) fn give(&self, state: State, now: Micros, units: u32) -> State {
        let debt = self.age(Some(state), now);
        let given = u64::from(units).saturating_mul(self.unit.get());
        Debt { owed: debt.owed.saturating_sub(given), ..debt }.state()
    }

    /// The same key's state under this limit, after `before` wrote it: what is left stays left, or what is in stays
    /// in, and the new rate counts from `now`. Between shares, what is left is divided or put together.
    pub(crate) fn adopt(&self, state: State, before: &Bucket, passage: ShareChange, now: Micros) -> State {
        let debt = before.age(Some(state), now);
        // Either way what is owed is rounded up: a change of quota lends nothing.
        let owed = match (self.duty, passage.is_level()) {
            // Of a bucket that holds less than a unit for each node, the debt would be divided among too many: each
            // would soon have room for a unit.
            (BucketMode::Tokens, _) | (_, false) => {
                let left = scale(before.capacity - debt.owed, self.unit, before.unit, passage);
                self.capacity - self.capacity.min(left)
            }
            (BucketMode::Meter | BucketMode::Queue, true) => {
                self.capacity.min(scale_up(debt.owed, self.unit, before.unit))
            }
        };
        // The next whole tick: rounding down would count the time before it under both rates.
        let from = before.tick.start(debt.at);
        let is_ahead = from.since(now) > MOST_BACK;
        let at = self.tick.after(if is_ahead { now } else { from.max(now) });
        Debt { owed, at }.state()
    }

    /// The larger of two debts.
    pub(crate) fn merge(&self, one: State, other: State, now: Micros) -> State {
        let (one, other) = (self.age(Some(one), now), self.age(Some(other), now));
        Debt { owed: one.owed.max(other.owed), at: one.at.max(other.at) }.state()
    }

    /// When a debt was last written.
    pub(crate) fn written_at(&self, state: State) -> Micros {
        self.tick.start(Debt::of(state).at)
    }

    /// Whether nothing is owed any more.
    #[inline]
    pub(crate) fn is_drained(&self, state: State, now: Micros) -> bool {
        self.age(Some(state), now).owed == 0
    }

    /// How much of the capacity is in use, in thousandths.
    pub(crate) fn fill(&self, state: State, now: Micros) -> u32 {
        per_mille(self.age(Some(state), now).owed, self.capacity)
    }

    /// The longest that a state matters after it was written.
    pub(crate) fn ttl(&self) -> Span {
        self.tick.start(self.full.saturating_add(1)).since(Micros::EPOCH)
    }

    /// The numbers that it computes with.
    pub(crate) fn figures(&self) -> LimitParams {
        LimitParams::Bucket {
            unit: self.unit.get(),
            refill: self.refill.get(),
            capacity: self.capacity,
            burst: self.burst,
            tick: self.tick.micros(),
            is_queue: self.duty == BucketMode::Queue,
        }
    }

    /// The most units that may come at once.
    #[inline]
    pub(crate) fn burst(&self) -> u32 {
        self.burst
    }
}

/// `part / whole` in thousandths, rounded up, so that only nothing is 0.
pub(crate) fn per_mille(part: u64, whole: u64) -> u32 {
    let share = (u128::from(part) * 1000).div_ceil(u128::from(whole.max(1)));
    u32::try_from(share).unwrap_or(u32::MAX)
}

/// `parts × to / from`, and between shares as many times more or less, rounded down. Rare enough to be wide: only a
/// change of quota comes here.
fn scale(parts: u64, to: NonZeroU64, from: NonZeroU64, passage: ShareChange) -> u64 {
    // Below 2^53 × 2^53 × 2^16.
    let scaled = u128::from(parts) * u128::from(to.get()) * u128::from(passage.from)
        / (u128::from(from.get()) * u128::from(passage.to));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// `parts × to / from`, rounded up.
fn scale_up(parts: u64, to: NonZeroU64, from: NonZeroU64) -> u64 {
    let scaled = (u128::from(parts) * u128::from(to.get())).div_ceil(u128::from(from.get()));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

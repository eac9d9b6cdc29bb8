//! The token bucket, and the leaky bucket, which is the same arithmetic with the opposite point of view.
//!
//! The state is a *debt*: how many units have been taken and not yet refilled, and as of when. The debt is counted
//! in parts: a unit is `unit` parts and every tick refills `refill` parts, where `refill / unit` is the rate in
//! lowest terms. So any rate is exact (7/s, 10 million/s, 999 999/month), no fraction is ever rounded away, however
//! frequent the draws are, and an idle bucket simply has no debt.

mod leased;

use super::share::{ShareChange, share_of};
use super::tick::{Tick, is_exact_product};
use crate::limit::{Limit, Step};
use crate::op::Amount;
use crate::params::LimitParams;
use crate::quota::Quota;
use crate::state::State;
use crate::status::{Forecast, Retry};
use crate::time::{MAX_CLOCK_STEP_BACK, MAX_EXACT, Micros, Span};
use std::num::NonZeroU64;

/// The constants of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bucket {
    unit: NonZeroU64,
    refill: NonZeroU64,
    /// The maximum debt in parts.
    capacity: u64,
    /// How many ticks it takes to refill everything.
    refill_ticks: u64,
    tick: Tick,
    burst: u32,
    mode: BucketMode,
}

/// The use of a bucket. It determines whether draws wait and what a change of quota preserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BucketMode {
    /// Holds tokens: a change of quota keeps the tokens left.
    Tokens,
    /// Measures arrived units and denies the excess: a change of quota keeps the content.
    Meter,
    /// Delays arrived units until their turn: a change of quota keeps the waiting units.
    Queue,
}

/// The longest period of a share. A full refill then ends within [`Limit::MAX_TTL`].
const MAX_SHARE_PERIOD: Span = Span::micros(Limit::MAX_TTL.get() - Span::DAY.get());

/// The debt in parts, as of a tick.
#[derive(Clone, Copy)]
struct Debt {
    owed: u64,
    at: u64,
}

impl Debt {
    #[inline]
    fn from_state(state: State) -> Debt {
        let (owed, at) = state.numbers();
        Debt { owed, at }
    }

    #[inline]
    fn to_state(self) -> State {
        State::new(self.owed, self.at)
    }
}

impl Bucket {
    /// Creates a bucket of `burst` units. Returns `None` if its numbers would exceed 2^53 with every tick length.
    pub(crate) fn new(mode: BucketMode, quota: &Quota, burst: u32) -> Option<Bucket> {
        let lowest_terms = |ticks: u64| {
            let common = gcd(u64::from(quota.amount()), ticks);
            (ticks / common, u64::from(quota.amount()) / common)
        };
        let tick = Tick::shortest(quota.per(), |ticks| {
            let (unit, refill) = lowest_terms(ticks);
            is_exact_product(u64::from(burst), unit) && u64::from(burst) * unit <= MAX_EXACT - refill
        })?;
        let (unit, refill) = lowest_terms(tick.count(quota.per()));
        let capacity = u64::from(burst) * unit;
        Some(Bucket {
            unit: NonZeroU64::new(unit)?,
            refill: NonZeroU64::new(refill)?,
            capacity,
            refill_ticks: capacity.div_ceil(refill),
            tick,
            burst,
            mode,
        })
    }

    /// Returns the share of one of `nodes` in the bucket of `quota`: a part of the burst, and the refill of one
    /// period spread over `nodes` periods.
    pub(crate) fn share(&self, quota: &Quota, nodes: u32) -> Bucket {
        let burst = share_of(self.burst, nodes);
        let fill_per_mille = |amount, per, burst| {
            let bucket = Bucket::new(self.mode, &Quota::new(amount, per).ok()?, burst)?;
            (bucket.ttl() <= Limit::MAX_TTL).then_some(bucket)
        };
        let periods = u128::from(quota.per().get()) * u128::from(nodes);
        let exact = || match u64::try_from(periods) {
            Ok(micros) if micros <= Span::MAX.get() => {
                fill_per_mille(quota.amount(), Span::micros(micros), burst)
            }
            _ => None,
        };
        // `nodes` periods may be too long to be counted. Then the refill per `MAX_SHARE_PERIOD` is used, rounded
        // down.
        let slow = || {
            let amount = u128::from(quota.amount()) * u128::from(MAX_SHARE_PERIOD.get()) / periods;
            fill_per_mille(u32::try_from(amount).unwrap_or(u32::MAX).max(1), MAX_SHARE_PERIOD, burst)
        };
        let least = || fill_per_mille(1, MAX_SHARE_PERIOD, 1);
        exact().or_else(slow).or_else(least).expect("one unit per MAX_SHARE_PERIOD can be counted")
    }

    /// Ages the debt to `now`, then grants as much of `amount` as fits.
    #[inline(always)]
    pub(crate) fn step(&self, state: Option<State>, now: Micros, amount: Amount) -> Step {
        let debt = self.age(state, now);
        let step = self.step_aged(debt, now, amount);
        // A debt that was rebased because the clock was set back must be written even if the draw is denied.
        let is_rebased = state.is_some_and(|before| Debt::from_state(before).at > debt.at);
        Step { needs_write: step.needs_write || is_rebased, ..step }
    }

    #[inline(always)]
    fn step_aged(&self, debt: Debt, now: Micros, amount: Amount) -> Step {
        let free = self.capacity - debt.owed;
        let fits = amount.at_least() <= self.burst && u64::from(amount.at_least()) * self.unit.get() <= free;
        if !fits || amount.at_least() > 0 && self.delay(debt, now) > amount.max_delay() {
            return Step { granted: None, state: debt.to_state(), needs_write: false };
        }
        let granted = if amount.at_most() == amount.at_least() {
            amount.at_least()
        } else {
            u32::try_from(free / self.unit).unwrap_or(u32::MAX).min(amount.at_most())
        };
        let owed = debt.owed + u64::from(granted) * self.unit.get();
        Step { granted: Some(granted), state: Debt { owed, ..debt }.to_state(), needs_write: granted > 0 }
    }

    /// Subtracts the refill since the state was written.
    #[inline(always)]
    fn age(&self, state: Option<State>, now: Micros) -> Debt {
        let now = self.tick.floor(now);
        let Some(debt) = state.map(Debt::from_state) else { return Debt { owed: 0, at: now } };
        // `saturating_sub` stops at zero: a clock that steps back may pause the refill but never adds tokens.
        let elapsed = now.saturating_sub(debt.at);
        // Beyond `refill_ticks` the whole debt is paid, and below it the product can't overflow.
        let paid = if elapsed >= self.refill_ticks { self.capacity } else { elapsed * self.refill.get() };
        match debt.owed.saturating_sub(paid) {
            // Without a debt nothing has to be kept, not even the time.
            0 => Debt { owed: 0, at: now },
            owed if debt.at > now => Debt { owed, at: self.after_step_back(debt.at, now) },
            owed => Debt { owed, at: now },
        }
    }

    /// Returns the tick from which a debt is refilled after the clock stepped back: its own tick or, if that is too
    /// far ahead, the current one.
    #[cold]
    fn after_step_back(&self, at: u64, now: u64) -> u64 {
        if self.tick.is_too_far_ahead(at, now) { now } else { at }
    }

    /// Returns how long a queue delays a new draw. The other modes never do.
    #[inline(always)]
    fn delay(&self, debt: Debt, now: Micros) -> Span {
        match self.mode {
            BucketMode::Queue => self.repaid_at(debt, debt.owed).since(now),
            BucketMode::Tokens | BucketMode::Meter => Span::ZERO,
        }
    }

    /// Returns when `parts` of the debt will have been refilled.
    fn repaid_at(&self, debt: Debt, parts: u64) -> Micros {
        match parts {
            0 => Micros::EPOCH,
            _ => self.tick.start(debt.at.saturating_add(parts.div_ceil(self.refill.get()))),
        }
    }

    /// Returns the forecast after a draw of `amount` at `now` that got `granted`.
    pub(crate) fn forecast(
        &self,
        state: State,
        now: Micros,
        amount: Amount,
        granted: Option<u32>,
    ) -> Forecast {
        let debt = self.age(Some(state), now);
        let taken = u64::from(granted.unwrap_or(0)) * self.unit.get();
        Forecast {
            remaining: u32::try_from((self.capacity - debt.owed) / self.unit).unwrap_or(u32::MAX),
            reset: self.repaid_at(debt, debt.owed).since(now),
            delay: self.delay(Debt { owed: debt.owed.saturating_sub(taken), ..debt }, now),
            retry: if granted.is_none() { Some(self.retry(debt, now, amount)) } else { None },
        }
    }

    /// Returns when to retry a draw of `amount`: exact if no other draw is made in between.
    fn retry(&self, debt: Debt, now: Micros, amount: Amount) -> Retry {
        if amount.at_least() > self.burst {
            return Retry::Never;
        }
        let allowed_debt = self.capacity - u64::from(amount.at_least()) * self.unit.get();
        let fits_at = self.repaid_at(debt, debt.owed.saturating_sub(allowed_debt));
        let turn_at = match self.mode {
            BucketMode::Queue => self.repaid_at(debt, debt.owed).minus(amount.max_delay()),
            BucketMode::Tokens | BucketMode::Meter => Micros::EPOCH,
        };
        Retry::After(fits_at.max(turn_at).since(now))
    }

    /// Refunds units to the bucket, at most the whole debt.
    pub(crate) fn refund(&self, state: State, now: Micros, units: u32) -> State {
        let debt = self.age(Some(state), now);
        let returned = u64::from(units).saturating_mul(self.unit.get());
        Debt { owed: debt.owed.saturating_sub(returned), ..debt }.to_state()
    }

    /// Converts a state that `before` wrote: token buckets keep the tokens left, leaky buckets their content, and
    /// the new rate applies from `now`. If the number of shares changes, the units left are divided or combined.
    pub(crate) fn adopt(&self, state: State, before: &Bucket, change: ShareChange, now: Micros) -> State {
        let debt = before.age(Some(state), now);
        // The debt is always rounded up, so that a change of quota adds no units.
        let owed = match (self.mode, change.is_unchanged()) {
            // Dividing the debt would not be safe: if the bucket holds less than a unit per node, each share would
            // soon have capacity for a unit.
            (BucketMode::Tokens, _) | (_, false) => {
                let left = scale_down(before.capacity - debt.owed, self.unit, before.unit, change);
                self.capacity - self.capacity.min(left)
            }
            (BucketMode::Meter | BucketMode::Queue, true) => {
                self.capacity.min(scale_up(debt.owed, self.unit, before.unit))
            }
        };
        // Rounds up to the next tick: rounding down would count the time before it under both rates.
        let from = before.tick.start(debt.at);
        let is_ahead = from.since(now) > MAX_CLOCK_STEP_BACK;
        let at = self.tick.ceil(if is_ahead { now } else { from.max(now) });
        Debt { owed, at }.to_state()
    }

    /// Returns the larger of two debts.
    pub(crate) fn merge(&self, one: State, other: State, now: Micros) -> State {
        let (one, other) = (self.age(Some(one), now), self.age(Some(other), now));
        Debt { owed: one.owed.max(other.owed), at: one.at.max(other.at) }.to_state()
    }

    /// Returns when a debt was last written.
    pub(crate) fn written_at(&self, state: State) -> Micros {
        self.tick.start(Debt::from_state(state).at)
    }

    /// Returns whether there is no debt.
    #[inline]
    pub(crate) fn is_expired(&self, state: State, now: Micros) -> bool {
        self.age(Some(state), now).owed == 0
    }

    /// Returns how much of the capacity is in use, in thousandths.
    pub(crate) fn fill(&self, state: State, now: Micros) -> u32 {
        per_mille(self.age(Some(state), now).owed, self.capacity)
    }

    /// Returns the longest time for which a state matters after it was written.
    pub(crate) fn ttl(&self) -> Span {
        self.tick.start(self.refill_ticks.saturating_add(1)).since(Micros::EPOCH)
    }

    /// Returns the constants of the bucket.
    pub(crate) fn params(&self) -> LimitParams {
        LimitParams::Bucket {
            unit: self.unit.get(),
            refill: self.refill.get(),
            capacity: self.capacity,
            burst: self.burst,
            tick: self.tick.micros(),
            is_queue: self.mode == BucketMode::Queue,
        }
    }

    /// Returns the most units that may be taken at once.
    #[inline]
    pub(crate) fn burst(&self) -> u32 {
        self.burst
    }
}

/// Returns `part / whole` in thousandths, rounded up, so that only zero maps to 0.
pub(crate) fn per_mille(part: u64, whole: u64) -> u32 {
    let share = (u128::from(part) * 1000).div_ceil(u128::from(whole.max(1)));
    u32::try_from(share).unwrap_or(u32::MAX)
}

/// Returns `parts × to / from`, scaled by the change of shares and rounded down. Uses 128 bits, since only a change
/// of quota gets here.
fn scale_down(parts: u64, to: NonZeroU64, from: NonZeroU64, change: ShareChange) -> u64 {
    // The product is below 2^53 × 2^53 × 2^16.
    let scaled = u128::from(parts) * u128::from(to.get()) * u128::from(change.from)
        / (u128::from(from.get()) * u128::from(change.to));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Returns `parts × to / from`, rounded up.
fn scale_up(parts: u64, to: NonZeroU64, from: NonZeroU64) -> u64 {
    let scaled = (u128::from(parts) * u128::from(to.get())).div_ceil(u128::from(from.get()));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

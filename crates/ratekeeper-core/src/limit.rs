//! Limits: quotas under an algorithm.

mod error;
mod leased;

pub use error::LimitError;

use crate::algorithm::{
    Algorithm, Align, Bucket, Concurrency, FixedWindow, Leak, ListState, LogSize, ShareChange, SlidingLog,
    SlidingWindow, share_of,
};
use crate::algorithm::{BucketMode, CalendarPeriod, WindowLayout, Zone};
use crate::op::{Amount, PermitId};
use crate::params::LimitParams;
use crate::quota::Quota;
use crate::state::State;
use crate::status::{DrawOutcome, DrawResult, Forecast, LimitStatus};
use crate::time::{Micros, Span};
use std::fmt;

/// A quota under an algorithm: what a draw takes units from.
///
/// [`Limit::new`] checks that no computation can leave the integers below 2^53; after that, no operation can fail.
/// A limit is a plain value: two limits with the same algorithm and quota are equal.
///
/// ```
/// use ratekeeper_core::{Algorithm, Limit};
///
/// let limit = Limit::new(Algorithm::TokenBucket, "100/s burst 20".parse()?)?;
/// assert_eq!(limit.capacity(), 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    compiled: CompiledAlgorithm,
    quota: Quota,
    algorithm: Algorithm,
    /// The code of the algorithm in the lower bits and the number of shares minus one above it. Comparing it and
    /// the quota is enough to tell two limits apart on the hot path.
    code: u32,
}

/// The algorithm, the quota and the number of shares identify a limit; the compiled constants follow from them.
impl PartialEq for Limit {
    #[inline]
    fn eq(&self, other: &Limit) -> bool {
        self.code == other.code && self.quota == other.quota
    }
}

impl Eq for Limit {}

impl std::hash::Hash for Limit {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        (self.code, self.quota).hash(hasher);
    }
}

/// The constants that the algorithm computes with.
#[derive(Clone, Copy, Debug)]
enum CompiledAlgorithm {
    Bucket(Bucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    Concurrency(Concurrency),
}

/// The result of one step of an algorithm with a fixed-size [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How many units were granted; `None` if the limit denied.
    pub granted: Option<u32>,
    /// The state of the key after the step.
    pub state: State,
    /// Whether the state must be written for the grant to count. A denial needs a write only if the state was
    /// rebased after the clock was set back.
    pub needs_write: bool,
}

impl Step {
    /// Returns the outcome of the step.
    #[inline(always)]
    pub fn outcome(&self) -> DrawOutcome {
        match self.granted {
            Some(units) => DrawOutcome::Granted(units),
            None => DrawOutcome::Denied,
        }
    }
}

impl Limit {
    /// The maximum size, in units, of a log with [`LogSize::Standard`].
    pub const STANDARD_LOG_UNITS: u32 = 10_000;

    /// The maximum number of shares that a limit is divided into.
    pub const MAX_SHARES: u32 = 1 << 16;

    /// The longest time that a limit may take to reach full capacity: a century, so that every wait it reports ends
    /// before [`Micros::MAX`].
    pub const MAX_TTL: Span = Span::micros(100 * Span::YEAR.get());

    /// Creates a limit from an algorithm and a quota.
    ///
    /// # Errors
    /// Returns an error if the algorithm can't enforce the quota exactly. The message says what to write instead.
    pub fn new(algorithm: Algorithm, quota: Quota) -> Result<Limit, LimitError> {
        let compiled = match algorithm {
            Algorithm::TokenBucket => {
                CompiledAlgorithm::Bucket(bucket(BucketMode::Tokens, quota, quota.amount())?)
            }
            Algorithm::LeakyBucket(Leak::Meter) => {
                CompiledAlgorithm::Bucket(bucket(BucketMode::Meter, quota, 1)?)
            }
            Algorithm::LeakyBucket(Leak::Queue) => {
                CompiledAlgorithm::Bucket(bucket(BucketMode::Queue, quota, quota.amount())?)
            }
            Algorithm::FixedWindow(align) => {
                CompiledAlgorithm::FixedWindow(fixed_window(align, without_burst(algorithm, quota)?)?)
            }
            Algorithm::SlidingWindowCounter => {
                CompiledAlgorithm::SlidingWindow(sliding_window(without_burst(algorithm, quota)?)?)
            }
            Algorithm::SlidingWindowLog(size) => {
                CompiledAlgorithm::SlidingLog(sliding_log(size, without_burst(algorithm, quota)?)?)
            }
            Algorithm::Concurrency => {
                let quota = without_burst(algorithm, quota)?;
                CompiledAlgorithm::Concurrency(Concurrency {
                    amount: quota.amount(),
                    permit_ttl: quota.per(),
                })
            }
        };
        let limit = Limit { compiled, quota, algorithm, code: algorithm.code() };
        if limit.ttl() <= Limit::MAX_TTL {
            Ok(limit)
        } else {
            Err(LimitError::TooSlow { quota, takes: limit.ttl() })
        }
    }

    /// Returns the algorithm.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the family of states that the algorithm can read, a number below [`Algorithm::FAMILIES`]. States of
    /// one key in different families are independent.
    #[inline]
    pub fn family(&self) -> usize {
        (self.code >> Algorithm::FAMILY_SHIFT & 0xf) as usize
    }

    /// Returns one of `nodes` equal shares of the limit: the part that each node enforces while the nodes can't
    /// coordinate.
    ///
    /// All shares together grant no more than the limit, with one exception: each share has at least one unit,
    /// because a share of zero would deny everything. A bucket gets a part of the burst and refills at a fraction
    /// of the rate; windows, logs and concurrency slots are divided. A share of a share is a share of the whole
    /// limit, and one share of one is the whole limit again. `nodes` is capped at [`Limit::MAX_SHARES`].
    ///
    /// ```
    /// use ratekeeper_core::{Algorithm, Limit};
    ///
    /// let limit = Limit::new(Algorithm::TokenBucket, "100/s burst 20".parse()?)?;
    /// let share = limit.share(3);
    /// assert_eq!((share.capacity(), share.share_count()), (6, 3));
    /// assert_eq!(share.share(1), limit);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn share(&self, nodes: u32) -> Limit {
        let nodes = nodes.clamp(1, Limit::MAX_SHARES);
        if nodes == self.share_count() {
            return *self;
        }
        let whole = self.whole();
        let compiled = match whole.compiled {
            compiled if nodes == 1 => compiled,
            CompiledAlgorithm::Bucket(bucket) => CompiledAlgorithm::Bucket(bucket.share(&self.quota, nodes)),
            CompiledAlgorithm::FixedWindow(window) => CompiledAlgorithm::FixedWindow(window.share(nodes)),
            CompiledAlgorithm::SlidingWindow(window) => CompiledAlgorithm::SlidingWindow(window.share(nodes)),
            CompiledAlgorithm::SlidingLog(log) => {
                CompiledAlgorithm::SlidingLog(SlidingLog { amount: share_of(log.amount, nodes), ..log })
            }
            CompiledAlgorithm::Concurrency(slots) => {
                CompiledAlgorithm::Concurrency(Concurrency { amount: share_of(slots.amount, nodes), ..slots })
            }
        };
        Limit { compiled, code: whole.code | (nodes - 1) << Algorithm::SHARES_SHIFT, ..whole }
    }

    fn whole(&self) -> Limit {
        match self.share_count() {
            1 => *self,
            _ => Limit::new(self.algorithm, self.quota)
                .expect("the whole limit was built from the same values"),
        }
    }

    /// Returns the number of shares that the limit was divided into; 1 if it is the whole limit.
    #[inline]
    pub fn share_count(&self) -> u32 {
        (self.code >> Algorithm::SHARES_SHIFT) + 1
    }

    /// Returns the quota. For a share this is the quota of the whole limit.
    #[inline]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns the most units that a single draw can ever get.
    #[inline]
    pub fn capacity(&self) -> u32 {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) => bucket.burst(),
            CompiledAlgorithm::FixedWindow(window) => window.amount(),
            CompiledAlgorithm::SlidingWindow(window) => window.amount(),
            CompiledAlgorithm::SlidingLog(log) => log.amount,
            CompiledAlgorithm::Concurrency(slots) => slots.amount,
        }
    }

    /// Returns the time in which the full [`capacity`](Limit::capacity) refills. Capacity and window together give
    /// the rate.
    pub fn window(&self) -> Span {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) => {
                let (per, burst) = (u128::from(self.quota.per().get()), u128::from(bucket.burst()));
                let micros =
                    (per * burst * u128::from(self.share_count())).div_ceil(u128::from(self.quota.amount()));
                Span::micros(u64::try_from(micros).unwrap_or(u64::MAX))
            }
            _ => self.quota.per(),
        }
    }

    /// Returns whether the algorithm keeps a [`ListState`] instead of a [`State`].
    #[inline]
    pub fn uses_list_state(&self) -> bool {
        self.family() >= Algorithm::FIRST_LIST_FAMILY
    }

    /// Ages `state` to `now` and grants as much of `amount` as fits. Pure, integer-only and total.
    ///
    /// A limit with a [list state](Limit::uses_list_state) always denies here: use [`Limit::step_list`] for it.
    #[inline(always)]
    pub fn step(&self, state: Option<State>, now: Micros, amount: Amount) -> Step {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) => bucket.step(state, now, amount),
            CompiledAlgorithm::FixedWindow(window) => window.step(state, now, amount),
            CompiledAlgorithm::SlidingWindow(window) => window.step(state, now, amount),
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => {
                Step { granted: None, state: state.unwrap_or_default(), needs_write: false }
            }
        }
    }

    /// Returns the status after a step: the units left, and when to retry.
    pub fn status(&self, step: Step, now: Micros, amount: Amount) -> LimitStatus {
        LimitStatus { limit: *self, amount, result: DrawResult::from_state(step.outcome(), now, step.state) }
    }

    pub(crate) fn forecast(
        &self,
        state: State,
        now: Micros,
        amount: Amount,
        granted: Option<u32>,
    ) -> Forecast {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) => bucket.forecast(state, now, amount, granted),
            CompiledAlgorithm::FixedWindow(window) => window.forecast(state, now, amount, granted),
            CompiledAlgorithm::SlidingWindow(window) => window.forecast(state, now, amount, granted),
            CompiledAlgorithm::SlidingLog(log) => log.forecast(&Default::default(), now, amount, granted),
            CompiledAlgorithm::Concurrency(slots) => {
                slots.forecast(&Default::default(), now, amount, granted)
            }
        }
    }

    /// Returns the state after a refund of `units`, at most as many as are in use.
    pub fn refund(&self, state: State, now: Micros, units: u32) -> State {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) => bucket.refund(state, now, units),
            CompiledAlgorithm::FixedWindow(window) => window.refund(state, now, units),
            CompiledAlgorithm::SlidingWindow(window) => window.refund(state, now, units),
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => state,
        }
    }

    /// Converts the state that `before` wrote into a state of this limit. Returns `None` if that state has expired
    /// or the algorithms are of different [families](Limit::family).
    ///
    /// A token bucket keeps the tokens left, a leaky bucket its content, a window the units used. The new rate
    /// applies from `now`. If the number of [shares](Limit::share) differs, the units left are divided accordingly;
    /// shares never have more in total than was left.
    pub fn adopt(&self, state: State, before: &Limit, now: Micros) -> Option<State> {
        if self.family() != before.family() || before.is_expired(state, now) {
            return None;
        }
        let change = ShareChange { from: before.share_count(), to: self.share_count() };
        match (&self.compiled, &before.compiled) {
            (CompiledAlgorithm::Bucket(after), CompiledAlgorithm::Bucket(before)) => {
                Some(after.adopt(state, before, change, now))
            }
            (CompiledAlgorithm::FixedWindow(after), CompiledAlgorithm::FixedWindow(before)) => {
                Some(after.adopt(state, before, change, now))
            }
            (CompiledAlgorithm::SlidingWindow(after), CompiledAlgorithm::SlidingWindow(before)) => {
                Some(after.adopt(state, before, change, now))
            }
            _ => None,
        }
    }

    /// Returns a state that is at least as used as both `one` and `other`, which this limit wrote: a draw that it
    /// allows is allowed by both, now and later. For stores that let several keys share a state when memory is
    /// short.
    pub fn merge(&self, one: State, other: State, now: Micros) -> State {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) => bucket.merge(one, other, now),
            CompiledAlgorithm::FixedWindow(window) => window.merge(one, other, now),
            CompiledAlgorithm::SlidingWindow(window) => window.merge(one, other, now),
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => one,
        }
    }

    /// Returns a state that several keys share, adjusted after a draw of one of them at `now`: its fixed window
    /// ends no sooner than a window that this draw would have begun.
    pub fn extend_window(&self, state: State, now: Micros) -> State {
        match &self.compiled {
            CompiledAlgorithm::FixedWindow(window) => window.extend_window(state, now),
            _ => state,
        }
    }

    /// Returns an estimate of when a state was last written: the tick of a bucket, the beginning of a window.
    pub fn written_at(&self, state: State) -> Micros {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) => bucket.written_at(state),
            CompiledAlgorithm::FixedWindow(window) => window.written_at(state),
            CompiledAlgorithm::SlidingWindow(window) => window.written_at(state),
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => Micros::EPOCH,
        }
    }

    /// Returns three numbers that identify the limit. None of them is [`u64::MAX`].
    #[inline(always)]
    pub fn identity(&self) -> [u64; 3] {
        let burst = self.quota.burst().map_or(0, u64::from);
        [u64::from(self.code) << 32 | u64::from(self.quota.amount()), self.quota.per().get(), burst]
    }

    /// Returns whether the state is equivalent to no state, now and for as long as the clock does not step back.
    #[inline]
    pub fn is_expired(&self, state: State, now: Micros) -> bool {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) => bucket.is_expired(state, now),
            CompiledAlgorithm::FixedWindow(window) => window.is_expired(state, now),
            CompiledAlgorithm::SlidingWindow(window) => window.is_expired(state, now),
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => true,
        }
    }

    /// Returns how much of the limit is in use, in thousandths, rounded up: 0 only if nothing is in use.
    pub fn fill_per_mille(&self, state: State, now: Micros) -> u32 {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) => bucket.fill(state, now),
            CompiledAlgorithm::FixedWindow(window) => window.fill_per_mille(state, now),
            CompiledAlgorithm::SlidingWindow(window) => window.fill_per_mille(state, now),
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => 0,
        }
    }

    /// Returns the longest time for which a state matters after it was written. A store may use it as the TTL.
    pub fn ttl(&self) -> Span {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) => bucket.ttl(),
            CompiledAlgorithm::FixedWindow(window) => window.ttl(),
            CompiledAlgorithm::SlidingWindow(window) => window.ttl(),
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => self.quota.per(),
        }
    }

    /// Returns the constants that the algorithm computes with.
    pub fn params(&self) -> LimitParams {
        match &self.compiled {
            CompiledAlgorithm::Bucket(bucket) => bucket.params(),
            CompiledAlgorithm::FixedWindow(window) => window.params(),
            CompiledAlgorithm::SlidingWindow(window) => window.params(),
            CompiledAlgorithm::SlidingLog(SlidingLog { amount, per }) => {
                LimitParams::SlidingLog { amount: *amount, per: *per }
            }
            CompiledAlgorithm::Concurrency(Concurrency { amount, permit_ttl: lapse }) => {
                LimitParams::Concurrency { amount: *amount, permit_ttl: *lapse }
            }
        }
    }

    /// Returns when the fixed window that contains `now` ends, or `None` for other algorithms.
    pub fn window_end(&self, now: Micros) -> Option<Micros> {
        match &self.compiled {
            CompiledAlgorithm::FixedWindow(window) => Some(window.window_end(now)),
            _ => None,
        }
    }

    /// Returns the parts of a state. Bucket: the debt in parts and its tick. Fixed window: its end and the units
    /// used. Sliding window: its number, the previous count and the current count. Unused parts are 0.
    pub fn state_parts(&self, state: State) -> [u64; 3] {
        let (first, second) = state.numbers();
        match &self.compiled {
            CompiledAlgorithm::SlidingWindow(_) => SlidingWindow::state_parts(state),
            _ => [first, second, 0],
        }
    }

    /// Returns how many bytes each part of a state can need.
    pub fn state_part_bytes(&self) -> [usize; 3] {
        let bytes = |max: u64| (u64::BITS - max.leading_zeros()).div_ceil(8) as usize;
        // A time has 53 bits.
        match self.params() {
            LimitParams::Bucket { capacity, .. } => [bytes(capacity), 7, 0],
            LimitParams::FixedWindow { amount, .. } => [7, bytes(u64::from(amount)), 0],
            LimitParams::SlidingWindow { amount, window, tick } => {
                let last = Micros::MAX.get() / u64::from(tick) / window;
                [bytes(last), bytes(u64::from(amount)), bytes(u64::from(amount))]
            }
            LimitParams::SlidingLog { .. } | LimitParams::Concurrency { .. } => [0; 3],
        }
    }

    /// Returns the state with these parts, or `None` if this limit can't have written it.
    pub fn state_from_parts(&self, parts: [u64; 3]) -> Option<State> {
        let [first, second, _] = parts;
        let is_time = |number: u64| number <= Micros::MAX.get();
        match (&self.compiled, self.params()) {
            (CompiledAlgorithm::SlidingWindow(window), _) => window.state_from_parts(parts),
            (_, LimitParams::Bucket { capacity, .. }) if first <= capacity && is_time(second) => {
                Some(State::new(first, second))
            }
            (_, LimitParams::FixedWindow { amount, .. }) if is_time(first) && second <= u64::from(amount) => {
                Some(State::new(first, second))
            }
            _ => None,
        }
    }

    /// Returns an empty list state of the kind that the algorithm uses.
    pub fn new_list(&self) -> ListState {
        match &self.compiled {
            CompiledAlgorithm::Concurrency(_) => ListState::Holders(Default::default()),
            _ => ListState::Log(Default::default()),
        }
    }

    /// Like [`Limit::step`], for an algorithm with a list state. Returns `None` if the limit denies or the list
    /// belongs to another algorithm.
    pub fn step_list(
        &self,
        list: &mut ListState,
        now: Micros,
        amount: Amount,
        permit: PermitId,
    ) -> Option<u32> {
        match (&self.compiled, list) {
            (CompiledAlgorithm::SlidingLog(window), ListState::Log(log)) => window.take(log, now, amount),
            (CompiledAlgorithm::Concurrency(slots), ListState::Holders(holders)) => {
                slots.take(holders, now, amount, permit)
            }
            _ => None,
        }
    }

    /// Converts a list that `before` wrote into a list of this limit. Units that `before` no longer counts are
    /// dropped, unless an earlier quota still counts them.
    pub fn adopt_list(&self, list: &mut ListState, before: &Limit, now: Micros) {
        match (&self.compiled, &before.compiled, list) {
            (
                CompiledAlgorithm::SlidingLog(window),
                CompiledAlgorithm::SlidingLog(before),
                ListState::Log(log),
            ) => {
                window.adopt(log, before, now);
            }
            (CompiledAlgorithm::Concurrency(slots), _, ListState::Holders(holders)) => {
                slots.age(holders, now);
            }
            _ => {}
        }
    }

    /// Refunds units, the most recent first; under a concurrency limit, releases the permit.
    pub fn refund_list(&self, list: &mut ListState, units: u32, permit: PermitId) {
        match list {
            ListState::Log(log) => log.refund(units),
            ListState::Holders(holders) => holders.release(permit),
        }
    }

    /// Drops expired entries and returns whether the list is now empty.
    pub fn expire_list(&self, list: &mut ListState, now: Micros) -> bool {
        match (&self.compiled, &mut *list) {
            (CompiledAlgorithm::SlidingLog(window), ListState::Log(log)) => window.age(log, now),
            (CompiledAlgorithm::Concurrency(slots), ListState::Holders(holders)) => slots.age(holders, now),
            _ => return true,
        }
        list.entries() == 0
    }

    /// Returns what taking `amount` from a list without expired entries would report, without taking it.
    pub fn peek_list(&self, list: &ListState, now: Micros, amount: Amount) -> DrawResult {
        let denied = self.list_result(list, now, amount, DrawOutcome::Denied);
        if amount.at_least() <= denied.forecast(self, amount).remaining {
            self.list_result(list, now, amount, DrawOutcome::WouldGrant)
        } else {
            denied
        }
    }

    /// Returns the result of a draw of `amount` at `now` with the given outcome, including its forecast.
    pub fn list_result(
        &self,
        list: &ListState,
        now: Micros,
        amount: Amount,
        outcome: DrawOutcome,
    ) -> DrawResult {
        let granted = outcome.granted();
        let forecast = match (&self.compiled, list) {
            (CompiledAlgorithm::SlidingLog(window), ListState::Log(log)) => {
                window.forecast(log, now, amount, granted)
            }
            (CompiledAlgorithm::Concurrency(slots), ListState::Holders(holders)) => {
                slots.forecast(holders, now, amount, granted)
            }
            _ => self.forecast(State::default(), now, amount, granted),
        };
        DrawResult::from_forecast(outcome, now, forecast)
    }
}

/// Writes the name of the algorithm and the quota: `token_bucket 100/s burst 20`, or `…, one of 3 shares`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.algorithm.name(), self.quota)?;
        match self.share_count() {
            1 => Ok(()),
            shares => write!(f, ", one of {shares} shares"),
        }
    }
}

fn bucket(mode: BucketMode, quota: Quota, default_burst: u32) -> Result<Bucket, LimitError> {
    Bucket::new(mode, &quota, quota.burst().unwrap_or(default_burst)).ok_or(LimitError::TooFine { quota })
}

fn fixed_window(align: Align, quota: Quota) -> Result<FixedWindow, LimitError> {
    let layout = match (align, CalendarPeriod::from_span(quota.per())) {
        (Align::FirstHit, _) => WindowLayout::FirstHit,
        (Align::WallClock(zone), Some(period)) => WindowLayout::Calendar(period, zone),
        (Align::WallClock(Zone::UTC), None) => WindowLayout::Multiples,
        (Align::WallClock(zone), None) => {
            return Err(LimitError::ZoneWithoutCalendar { zone, per: quota.per() });
        }
    };
    Ok(FixedWindow::new(quota.amount(), quota.per(), layout))
}

fn sliding_window(quota: Quota) -> Result<SlidingWindow, LimitError> {
    if quota.per() < SlidingWindow::MIN_WINDOW {
        return Err(LimitError::WindowTooShort { per: quota.per(), shortest: SlidingWindow::MIN_WINDOW });
    }
    SlidingWindow::new(&quota).ok_or(LimitError::TooFine { quota })
}

fn sliding_log(size: LogSize, quota: Quota) -> Result<SlidingLog, LimitError> {
    match size {
        LogSize::Standard if quota.amount() > Limit::STANDARD_LOG_UNITS => {
            Err(LimitError::LogTooLong { quota })
        }
        LogSize::Standard | LogSize::Large => Ok(SlidingLog { amount: quota.amount(), per: quota.per() }),
    }
}

fn without_burst(algorithm: Algorithm, quota: Quota) -> Result<Quota, LimitError> {
    match quota.burst() {
        Some(_) => Err(LimitError::BurstUnused { algorithm: algorithm.name(), quota }),
        None => Ok(quota),
    }
}

//! A quota under a law.

mod lent;

use crate::algorithm::{
    Algorithm, Align, Bucket, Concurrency, FixedWindow, Leak, ListState, LogSize, ShareChange, SlidingLog,
    SlidingWindow, portion,
};
use crate::algorithm::{BucketDuty, CalendarPeriod, WindowLayout, Zone};
use crate::op::{Amount, PermitId};
use crate::params::LimitParams;
use crate::quota::Quota;
use crate::state::State;
use crate::status::{DrawOutcome, DrawResult, Forecast, LimitStatus};
use crate::time::{Micros, Span};
use std::fmt;

/// A quota under a law: what a draw is drawn from.
///
/// Building one checks that none of its arithmetic can leave the integers below 2^53; after that, nothing it does can
/// fail. It is a plain value: two limits of the same law and quota are the same limit.
///
/// ```
/// use ratekeeper_core::{Law, Limit};
///
/// let limit = Limit::new(Law::TokenBucket, "100/s burst 20".parse()?)?;
/// assert_eq!(limit.capacity(), 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    form: CompiledAlgorithm,
    quota: Quota,
    law: Algorithm,
    /// The law as a number, and above it the number of shares but one: comparing it and the quota is all that telling
    /// two limits apart takes on the hot path.
    code: u32,
}

/// The law, the quota and the number of shares say it all; the form only follows from them.
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

/// The constants that the law computes with.
#[derive(Clone, Copy, Debug)]
enum CompiledAlgorithm {
    Bucket(Bucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    Concurrency(Concurrency),
}

/// One step of a law that remembers a [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How many units were granted; nothing if the limit refused.
    pub granted: Option<u32>,
    /// The key's state now.
    pub state: State,
    /// Whether the state must be written for the grant to count. A refusal changes nothing.
    pub changed: bool,
}

impl Step {
    /// The step in words.
    #[inline(always)]
    pub fn answer(&self) -> DrawOutcome {
        match self.granted {
            Some(units) => DrawOutcome::Granted(units),
            None => DrawOutcome::Refused,
        }
    }
}

impl Limit {
    /// The longest log that a rule gets without saying that it means it, in units.
    pub const MODEST_LOG: u32 = 10_000;

    /// The most shares that a limit is divided into.
    pub const MOST_SHARES: u32 = 1 << 16;

    /// The longest that a limit may take to be full again: a century, so that every wait it names ends before time does.
    pub const LONGEST: Span = Span::micros(100 * Span::YEAR.get());

    /// Puts a quota under a law.
    ///
    /// # Errors
    /// If the law can't honour the quota exactly; the error says what to write instead.
    pub fn new(law: Algorithm, quota: Quota) -> Result<Limit, LimitError> {
        let form = match law {
            Algorithm::TokenBucket => {
                CompiledAlgorithm::Bucket(bucket(BucketDuty::Tokens, quota, quota.amount())?)
            }
            Algorithm::LeakyBucket(Leak::Meter) => {
                CompiledAlgorithm::Bucket(bucket(BucketDuty::Meter, quota, 1)?)
            }
            Algorithm::LeakyBucket(Leak::Queue) => {
                CompiledAlgorithm::Bucket(bucket(BucketDuty::Queue, quota, quota.amount())?)
            }
            Algorithm::FixedWindow(align) => {
                CompiledAlgorithm::FixedWindow(fixed_window(align, without_burst(law, quota)?)?)
            }
            Algorithm::SlidingWindowCounter => {
                CompiledAlgorithm::SlidingWindow(sliding_window(without_burst(law, quota)?)?)
            }
            Algorithm::SlidingWindowLog(size) => {
                CompiledAlgorithm::SlidingLog(sliding_log(size, without_burst(law, quota)?)?)
            }
            Algorithm::Concurrency => {
                let quota = without_burst(law, quota)?;
                CompiledAlgorithm::Concurrency(Concurrency { amount: quota.amount(), lapse: quota.per() })
            }
        };
        let limit = Limit { form, quota, law, code: law.code() };
        match limit.ttl() <= Limit::LONGEST {
            true => Ok(limit),
            false => Err(LimitError::TooSlow { quota, takes: limit.ttl() }),
        }
    }

    /// The law it follows.
    #[inline]
    pub fn law(&self) -> Algorithm {
        self.law
    }

    /// The family of states that its law can read, below [`Algorithm::FAMILIES`]. A key's states in different families
    /// never meet.
    #[inline]
    pub fn family(&self) -> usize {
        (self.code >> Algorithm::FAMILY_AT & 0xf) as usize
    }

    /// One of `nodes` equal shares of it: what each node enforces by itself while none knows of the others.
    ///
    /// Together they grant no more than the limit, but for one thing: each has at least one unit, for with none it would
    /// refuse everybody. A bucket holds a part of the burst and takes as many periods to refill as much; windows, logs
    /// and places are divided. A share is divided no further: this is always a share of the whole, and one of one is the
    /// whole again. More than [`Limit::MOST_SHARES`] are not told apart.
    ///
    /// ```
    /// use ratekeeper_core::{Law, Limit};
    ///
    /// let limit = Limit::new(Law::TokenBucket, "100/s burst 20".parse()?)?;
    /// let share = limit.share(3);
    /// assert_eq!((share.capacity(), share.shares()), (6, 3));
    /// assert_eq!(share.share(1), limit);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn share(&self, nodes: u32) -> Limit {
        let nodes = nodes.clamp(1, Limit::MOST_SHARES);
        if nodes == self.shares() {
            return *self;
        }
        let whole = self.whole();
        let form = match whole.form {
            form if nodes == 1 => form,
            CompiledAlgorithm::Bucket(bucket) => CompiledAlgorithm::Bucket(bucket.share(&self.quota, nodes)),
            CompiledAlgorithm::FixedWindow(window) => CompiledAlgorithm::FixedWindow(window.share(nodes)),
            CompiledAlgorithm::SlidingWindow(window) => CompiledAlgorithm::SlidingWindow(window.share(nodes)),
            CompiledAlgorithm::SlidingLog(log) => {
                CompiledAlgorithm::SlidingLog(SlidingLog { amount: portion(log.amount, nodes), ..log })
            }
            CompiledAlgorithm::Concurrency(places) => CompiledAlgorithm::Concurrency(Concurrency {
                amount: portion(places.amount, nodes),
                ..places
            }),
        };
        Limit { form, code: whole.code | (nodes - 1) << Algorithm::SHARES_AT, ..whole }
    }

    fn whole(&self) -> Limit {
        match self.shares() {
            1 => *self,
            _ => Limit::new(self.law, self.quota).expect("it was made of the same before it was divided"),
        }
    }

    /// Of how many shares it is one; 1 if it is the whole.
    #[inline]
    pub fn shares(&self) -> u32 {
        (self.code >> Algorithm::SHARES_AT) + 1
    }

    /// The quota it grants; of a share, that of the whole.
    #[inline]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// The most units that a single draw can ever get.
    #[inline]
    pub fn capacity(&self) -> u32 {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) => bucket.burst(),
            CompiledAlgorithm::FixedWindow(window) => window.amount(),
            CompiledAlgorithm::SlidingWindow(window) => window.amount(),
            CompiledAlgorithm::SlidingLog(log) => log.amount,
            CompiledAlgorithm::Concurrency(places) => places.amount,
        }
    }

    /// The stretch in which as much comes back as a draw can get at most: together with the
    /// [`capacity`](Limit::capacity) it says the rate.
    pub fn window(&self) -> Span {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) => {
                let (per, burst) = (u128::from(self.quota.per().get()), u128::from(bucket.burst()));
                let micros =
                    (per * burst * u128::from(self.shares())).div_ceil(u128::from(self.quota.amount()));
                Span::micros(u64::try_from(micros).unwrap_or(u64::MAX))
            }
            _ => self.quota.per(),
        }
    }

    /// Whether the law remembers a [`ListState`] instead of a [`State`].
    #[inline]
    pub fn keeps_roll(&self) -> bool {
        self.family() >= Algorithm::ROLLS
    }

    /// Ages `state` to `now` and grants as much of `ask` as fits. Pure, in integers, and total.
    ///
    /// A limit that keeps a roll has no state to step: it refuses here, and is drawn with [`Limit::step_roll`].
    #[inline(always)]
    pub fn step(&self, state: Option<State>, now: Micros, ask: Amount) -> Step {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) => bucket.step(state, now, ask),
            CompiledAlgorithm::FixedWindow(window) => window.step(state, now, ask),
            CompiledAlgorithm::SlidingWindow(window) => window.step(state, now, ask),
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => {
                Step { granted: None, state: state.unwrap_or_default(), changed: false }
            }
        }
    }

    /// Words a step: what is left, and when to come back.
    pub fn read(&self, step: Step, now: Micros, ask: Amount) -> LimitStatus {
        LimitStatus { limit: *self, ask, outcome: DrawResult::of_state(step.answer(), now, step.state) }
    }

    pub(crate) fn outlook(&self, state: State, now: Micros, ask: Amount, granted: Option<u32>) -> Forecast {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) => bucket.outlook(state, now, ask, granted),
            CompiledAlgorithm::FixedWindow(window) => window.outlook(state, now, ask, granted),
            CompiledAlgorithm::SlidingWindow(window) => window.outlook(state, now, ask, granted),
            CompiledAlgorithm::SlidingLog(log) => log.outlook(&Default::default(), now, ask, granted),
            CompiledAlgorithm::Concurrency(places) => places.outlook(&Default::default(), now, ask, granted),
        }
    }

    /// The state after `units` were given back, at most as many as are out.
    pub fn give(&self, state: State, now: Micros, units: u32) -> State {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) => bucket.give(state, now, units),
            CompiledAlgorithm::FixedWindow(window) => window.give(state, now, units),
            CompiledAlgorithm::SlidingWindow(window) => window.give(state, now, units),
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => state,
        }
    }

    /// The state that `before` wrote, under this limit: nothing if it had drained, or if the laws differ.
    ///
    /// A token bucket keeps the tokens that are left, a leaky bucket what is in it, a window what was used. The new
    /// rate counts from `now`. Where `before` is divided into more or fewer [shares](Limit::share), so is what is left:
    /// the shares of what is left are never more than what is left.
    pub fn adopt(&self, state: State, before: &Limit, now: Micros) -> Option<State> {
        if self.family() != before.family() || before.is_drained(state, now) {
            return None;
        }
        let passage = ShareChange { from: before.shares(), to: self.shares() };
        match (&self.form, &before.form) {
            (CompiledAlgorithm::Bucket(after), CompiledAlgorithm::Bucket(before)) => {
                Some(after.adopt(state, before, passage, now))
            }
            (CompiledAlgorithm::FixedWindow(after), CompiledAlgorithm::FixedWindow(before)) => {
                Some(after.adopt(state, before, passage, now))
            }
            (CompiledAlgorithm::SlidingWindow(after), CompiledAlgorithm::SlidingWindow(before)) => {
                Some(after.adopt(state, before, passage, now))
            }
            _ => None,
        }
    }

    /// A state that is at least as used as both `one` and `other`, both written by this limit: whatever it allows, each
    /// of the two allows too, now and later. For stores that let several keys share a state when memory is short.
    pub fn merge(&self, one: State, other: State, now: Micros) -> State {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) => bucket.merge(one, other, now),
            CompiledAlgorithm::FixedWindow(window) => window.merge(one, other, now),
            CompiledAlgorithm::SlidingWindow(window) => window.merge(one, other, now),
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => one,
        }
    }

    /// What a state that several keys share is to be after a draw of one of them at `now`: a window ends no sooner than
    /// one that this draw had begun.
    pub fn prolong(&self, state: State, now: Micros) -> State {
        match &self.form {
            CompiledAlgorithm::FixedWindow(window) => window.prolong(state, now),
            _ => state,
        }
    }

    /// When a state was last written, as far as it tells: of a bucket the tick, of a window its beginning.
    pub fn written_at(&self, state: State) -> Micros {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) => bucket.written_at(state),
            CompiledAlgorithm::FixedWindow(window) => window.written_at(state),
            CompiledAlgorithm::SlidingWindow(window) => window.written_at(state),
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => Micros::EPOCH,
        }
    }

    /// Three numbers that no other limit has. None of them is [`u64::MAX`].
    #[inline(always)]
    pub fn identity(&self) -> [u64; 3] {
        let burst = self.quota.burst().map_or(0, u64::from);
        [u64::from(self.code) << 32 | u64::from(self.quota.amount()), self.quota.per().get(), burst]
    }

    /// Whether the state says the same as no state at all, now and for as long as the clock does not step back.
    #[inline]
    pub fn is_drained(&self, state: State, now: Micros) -> bool {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) => bucket.is_drained(state, now),
            CompiledAlgorithm::FixedWindow(window) => window.is_drained(state, now),
            CompiledAlgorithm::SlidingWindow(window) => window.is_drained(state, now),
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => true,
        }
    }

    /// How much of the limit is in use, in thousandths; 0 only if nothing is.
    pub fn fill(&self, state: State, now: Micros) -> u32 {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) => bucket.fill(state, now),
            CompiledAlgorithm::FixedWindow(window) => window.fill(state, now),
            CompiledAlgorithm::SlidingWindow(window) => window.fill(state, now),
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => 0,
        }
    }

    /// The longest that a state matters after it was written: what a store may set as its time to live.
    pub fn ttl(&self) -> Span {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) => bucket.ttl(),
            CompiledAlgorithm::FixedWindow(window) => window.ttl(),
            CompiledAlgorithm::SlidingWindow(window) => window.ttl(),
            CompiledAlgorithm::SlidingLog(_) | CompiledAlgorithm::Concurrency(_) => self.quota.per(),
        }
    }

    /// The numbers that its law computes with.
    pub fn figures(&self) -> LimitParams {
        match &self.form {
            CompiledAlgorithm::Bucket(bucket) => bucket.figures(),
            CompiledAlgorithm::FixedWindow(window) => window.figures(),
            CompiledAlgorithm::SlidingWindow(window) => window.figures(),
            CompiledAlgorithm::SlidingLog(SlidingLog { amount, per }) => {
                LimitParams::SlidingLog { amount: *amount, per: *per }
            }
            CompiledAlgorithm::Concurrency(Concurrency { amount, lapse }) => {
                LimitParams::Concurrency { amount: *amount, lapse: *lapse }
            }
        }
    }

    /// When the fixed window that `now` falls into ends; nothing under another law.
    pub fn window_end(&self, now: Micros) -> Option<Micros> {
        match &self.form {
            CompiledAlgorithm::FixedWindow(window) => Some(window.end(now)),
            _ => None,
        }
    }

    /// What a state is made of: of a bucket, the parts owed and since which tick; of a fixed window, its end and what
    /// is used; of a sliding window, its number, the previous count and the current one. What there is none of is 0.
    pub fn parts_of(&self, state: State) -> [u64; 3] {
        let (first, second) = state.numbers();
        match &self.form {
            CompiledAlgorithm::SlidingWindow(_) => SlidingWindow::parts_of(state),
            _ => [first, second, 0],
        }
    }

    /// How many bytes each of those parts can need.
    pub fn part_bytes(&self) -> [usize; 3] {
        let bytes = |most: u64| (u64::BITS - most.leading_zeros()).div_ceil(8) as usize;
        // A time has 53 bits.
        match self.figures() {
            LimitParams::Bucket { capacity, .. } => [bytes(capacity), 7, 0],
            LimitParams::FixedWindow { amount, .. } => [7, bytes(u64::from(amount)), 0],
            LimitParams::SlidingWindow { amount, window, tick } => {
                let last = Micros::MAX.get() / u64::from(tick) / window;
                [bytes(last), bytes(u64::from(amount)), bytes(u64::from(amount))]
            }
            LimitParams::SlidingLog { .. } | LimitParams::Concurrency { .. } => [0; 3],
        }
    }

    /// The state of these parts; nothing if this limit can have written none like them.
    pub fn state_of(&self, parts: [u64; 3]) -> Option<State> {
        let [first, second, _] = parts;
        let is_time = |number: u64| number <= Micros::MAX.get();
        match (&self.form, self.figures()) {
            (CompiledAlgorithm::SlidingWindow(window), _) => window.state_of(parts),
            (_, LimitParams::Bucket { capacity, .. }) if first <= capacity && is_time(second) => {
                Some(State::new(first, second))
            }
            (_, LimitParams::FixedWindow { amount, .. }) if is_time(first) && second <= u64::from(amount) => {
                Some(State::new(first, second))
            }
            _ => None,
        }
    }

    /// An empty roll of the kind that the law keeps.
    pub fn new_roll(&self) -> ListState {
        match &self.form {
            CompiledAlgorithm::Concurrency(_) => ListState::Holders(Default::default()),
            _ => ListState::Log(Default::default()),
        }
    }

    /// Like [`Limit::step`], for a law that keeps a roll. A roll of another law grants nothing.
    pub fn step_roll(&self, roll: &mut ListState, now: Micros, ask: Amount, permit: PermitId) -> Option<u32> {
        match (&self.form, roll) {
            (CompiledAlgorithm::SlidingLog(law), ListState::Log(log)) => law.draw(log, now, ask),
            (CompiledAlgorithm::Concurrency(law), ListState::Holders(holders)) => {
                law.draw(holders, now, ask, permit)
            }
            _ => None,
        }
    }

    /// Goes on with a roll that `before` wrote: what that no longer counts is forgotten, unless a quota before it does.
    pub fn take_over_roll(&self, roll: &mut ListState, before: &Limit, now: Micros) {
        match (&self.form, &before.form, roll) {
            (
                CompiledAlgorithm::SlidingLog(law),
                CompiledAlgorithm::SlidingLog(before),
                ListState::Log(log),
            ) => {
                law.take_over(log, before, now);
            }
            (CompiledAlgorithm::Concurrency(law), _, ListState::Holders(holders)) => law.age(holders, now),
            _ => {}
        }
    }

    /// Gives back so many units, the youngest first, or the permit's places.
    pub fn give_roll(&self, roll: &mut ListState, units: u32, permit: PermitId) {
        match roll {
            ListState::Log(log) => log.take_back(units),
            ListState::Holders(holders) => holders.release(permit),
        }
    }

    /// Forgets what no longer counts, and says whether anything does.
    pub fn drain_roll(&self, roll: &mut ListState, now: Micros) -> bool {
        match (&self.form, &mut *roll) {
            (CompiledAlgorithm::SlidingLog(law), ListState::Log(log)) => law.age(log, now),
            (CompiledAlgorithm::Concurrency(law), ListState::Holders(holders)) => law.age(holders, now),
            _ => return true,
        }
        roll.entries() == 0
    }

    /// What taking from a roll that was drained would be answered, without taking.
    pub fn look_roll(&self, roll: &ListState, now: Micros, ask: Amount) -> DrawResult {
        let refused = self.read_roll(roll, now, ask, DrawOutcome::Refused);
        match ask.at_least() <= refused.outlook(self, ask).remaining {
            true => self.read_roll(roll, now, ask, DrawOutcome::Spared),
            false => refused,
        }
    }

    /// What the roll promises, after `ask` was answered so at `now`.
    pub fn read_roll(&self, roll: &ListState, now: Micros, ask: Amount, answer: DrawOutcome) -> DrawResult {
        let granted = answer.granted();
        let outlook = match (&self.form, roll) {
            (CompiledAlgorithm::SlidingLog(law), ListState::Log(log)) => law.outlook(log, now, ask, granted),
            (CompiledAlgorithm::Concurrency(law), ListState::Holders(holders)) => {
                law.outlook(holders, now, ask, granted)
            }
            _ => self.outlook(State::default(), now, ask, granted),
        };
        DrawResult::of_outlook(answer, now, outlook)
    }
}

/// The law's name and the quota: `token_bucket 100/s burst 20`, or `…, one of 3 shares`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.law.name(), self.quota)?;
        match self.shares() {
            1 => Ok(()),
            shares => write!(f, ", one of {shares} shares"),
        }
    }
}

fn bucket(duty: BucketDuty, quota: Quota, usual_burst: u32) -> Result<Bucket, LimitError> {
    Bucket::new(duty, &quota, quota.burst().unwrap_or(usual_burst)).ok_or(LimitError::TooFine { quota })
}

fn fixed_window(align: Align, quota: Quota) -> Result<FixedWindow, LimitError> {
    let layout = match (align, CalendarPeriod::of(quota.per())) {
        (Align::FirstHit, _) => WindowLayout::FirstHit,
        (Align::Wall(zone), Some(stretch)) => WindowLayout::Calendar(stretch, zone),
        (Align::Wall(Zone::UTC), None) => WindowLayout::Multiples,
        (Align::Wall(zone), None) => return Err(LimitError::ZoneWithoutCalendar { zone, per: quota.per() }),
    };
    Ok(FixedWindow::new(quota.amount(), quota.per(), layout))
}

fn sliding_window(quota: Quota) -> Result<SlidingWindow, LimitError> {
    if quota.per() < SlidingWindow::SHORTEST {
        return Err(LimitError::WindowTooShort { per: quota.per(), shortest: SlidingWindow::SHORTEST });
    }
    SlidingWindow::new(&quota).ok_or(LimitError::TooFine { quota })
}

fn sliding_log(size: LogSize, quota: Quota) -> Result<SlidingLog, LimitError> {
    match size {
        LogSize::Modest if quota.amount() > Limit::MODEST_LOG => Err(LimitError::LogTooLong { quota }),
        LogSize::Modest | LogSize::Large => Ok(SlidingLog { amount: quota.amount(), per: quota.per() }),
    }
}

fn without_burst(law: Algorithm, quota: Quota) -> Result<Quota, LimitError> {
    match quota.burst() {
        Some(_) => Err(LimitError::BurstUnused { law: law.name(), quota }),
        None => Ok(quota),
    }
}

/// Why a law can't honour a quota, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The exact arithmetic would pass 2^53.
    #[error(
        "{quota} is too fine to be counted exactly: round the amount (to a multiple of 1000, say), \
         shorten the period or lower the burst"
    )]
    TooFine {
        /// The quota.
        quota: Quota,
    },
    /// It would take more than a century to be full again.
    #[error(
        "{quota} would take {} years to be full again, and at most 100 can be counted: lower the burst or shorten the \
         period", takes.get() / Span::YEAR.get()
    )]
    TooSlow {
        /// The quota.
        quota: Quota,
        /// How long it takes.
        takes: Span,
    },
    /// The law has no use for a burst.
    #[error("{law} has no burst, but the quota is {quota}: leave the burst out, or use token_bucket")]
    BurstUnused {
        /// The law's name.
        law: &'static str,
        /// The quota.
        quota: Quota,
    },
    /// A log of that length takes much memory for each key.
    #[error(
        "a log of {} units for each key is long (the usual bound is {}): use sliding_window_counter, \
         or say that the log may be large", quota.amount(), Limit::MODEST_LOG
    )]
    LogTooLong {
        /// The quota.
        quota: Quota,
    },
    /// A time zone moves only days, weeks and months.
    #[error(
        "the time zone {zone} has no bearing on windows of {per}: leave it out, or use a day, a week or a month"
    )]
    ZoneWithoutCalendar {
        /// The zone.
        zone: Zone,
        /// The period.
        per: Span,
    },
    /// A sliding window that short can't be numbered.
    #[error("a sliding window of {per} is too short: write at least {shortest}, or use token_bucket")]
    WindowTooShort {
        /// The period.
        per: Span,
        /// The shortest there is.
        shortest: Span,
    },
}

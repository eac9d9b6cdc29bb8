//! Slow, obvious models of the algorithms: every admitted unit is kept with its time.
//!
//! A model shares no arithmetic with the algorithm it models. It only knows how many units are free at a given time;
//! the time at which a denied amount fits is found by trying times, not by solving for it.

mod bucket;
mod calendar;
mod concurrency;
mod log;
mod sliding;
mod window;

use crate::engine::{EngineReply, KeyEngine};
use ratekeeper_core::{Algorithm, Amount, DrawOutcome, Limit, Micros, Op, PermitId, Retry, Span};

/// The model of one algorithm.
trait AlgorithmModel {
    /// Advances to `now`, dropping what the algorithm would drop.
    fn advance(&mut self, now: Micros);
    /// Units that are free at `now`.
    fn free(&self, now: Micros) -> u64;
    /// Whether no unit that was taken counts any more at `now`.
    fn is_clean(&self, now: Micros) -> bool;
    /// How long a unit taken at `now` waits in the queue.
    fn delay(&self, _now: Micros) -> Span {
        Span::ZERO
    }
    /// Takes units at `now`.
    fn take(&mut self, now: Micros, units: u32, permit: PermitId);
    /// Returns units at `now`, or a permit.
    fn refund(&mut self, now: Micros, units: u32, permit: PermitId);
    /// Continues under another quota.
    fn change_quota(&mut self, limit: &Limit, now: Micros);
    /// A boxed clone, which a trait object cannot derive.
    fn boxed_clone(&self) -> Box<dyn AlgorithmModel>;
}

/// A slow, obvious model of one key under one algorithm.
pub struct Model {
    limit: Limit,
    model: Box<dyn AlgorithmModel>,
    /// The models of earlier quotas, until all their units have expired.
    prior: Vec<(Limit, Box<dyn AlgorithmModel>)>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Model({})", self.limit)
    }
}

impl Clone for Model {
    fn clone(&self) -> Model {
        let prior = self.prior.iter().map(|(limit, model)| (*limit, model.boxed_clone())).collect();
        Model { limit: self.limit, model: self.model.boxed_clone(), prior }
    }
}

impl Model {
    /// A model of `limit`'s algorithm. The quota may change later, the algorithm may not.
    pub fn new(limit: &Limit) -> Model {
        Model { limit: *limit, model: new_model(limit), prior: Vec::new() }
    }

    /// Continues under another quota with the units that are left under the one before, capped by what an earlier use
    /// of that same quota had left.
    fn change_quota(&mut self, limit: &Limit, now: Micros) {
        self.model.advance(now);
        let before = (self.limit, self.model.boxed_clone());
        self.limit = *limit;
        if limit.uses_list_state() {
            return self.model.change_quota(limit, now);
        }
        if self.model.is_clean(now) {
            self.model = new_model(limit);
        } else {
            self.model.change_quota(limit, now);
        }
        self.prior.iter_mut().for_each(|(_, model)| model.advance(now));
        self.prior.retain(|(_, model)| !model.is_clean(now));
        let own = self.prior.iter().position(|(other, _)| other == limit);
        let own = own.map(|own| self.prior.remove(own).1);
        if !before.1.is_clean(now) {
            self.prior.push(before);
        }
        if let Some(mut own) = own {
            let excess = own.free(now).saturating_sub(self.model.free(now));
            own.take(now, u32::try_from(excess).expect("at most a capacity"), PermitId(0));
            self.model = own;
        }
    }

    fn reply(&self, now: Micros, amount: Amount, outcome: DrawOutcome, delay: Span) -> EngineReply {
        let fits = |at: Micros| {
            amount.at_least() == 0
                || self.model.free(at) >= u64::from(amount.at_least())
                    && self.model.delay(at) <= amount.max_delay()
        };
        let retry = (outcome == DrawOutcome::Denied).then(|| {
            if amount.at_least() > self.limit.capacity() {
                Retry::Never
            } else {
                Retry::After(earliest(now, fits).since(now))
            }
        });
        let remaining = u32::try_from(self.model.free(now)).unwrap_or(u32::MAX);
        EngineReply {
            outcome,
            remaining,
            delay,
            retry,
            reset: earliest(now, |at| self.model.is_clean(at)).since(now),
        }
    }
}

impl KeyEngine for Model {
    fn apply(&mut self, now: Micros, limit: &Limit, op: Op, permit: PermitId) -> EngineReply {
        assert_eq!(self.limit.family(), limit.family(), "a model has one algorithm");
        if *limit != self.limit {
            self.change_quota(limit, now);
        }
        self.model.advance(now);
        let delay = self.model.delay(now);
        let grant = |amount: Amount| {
            if amount.at_least() == 0
                || u64::from(amount.at_least()) <= self.model.free(now) && delay <= amount.max_delay()
            {
                u32::try_from(u64::from(amount.at_most()).min(self.model.free(now))).ok()
            } else {
                None
            }
        };
        match op {
            Op::Take(amount) => match grant(amount) {
                Some(units) => {
                    self.model.take(now, units, permit);
                    self.reply(now, amount, DrawOutcome::Granted(units), delay)
                }
                None => self.reply(now, amount, DrawOutcome::Denied, delay),
            },
            Op::Peek(amount) => {
                let outcome = grant(amount).map_or(DrawOutcome::Denied, |_| DrawOutcome::WouldGrant);
                self.reply(now, amount, outcome, delay)
            }
            Op::Refund(units) => {
                self.model.refund(now, units, permit);
                self.reply(now, Amount::ZERO, DrawOutcome::WouldGrant, self.model.delay(now))
            }
            Op::Reset => {
                *self = Model::new(limit);
                self.reply(now, Amount::ZERO, DrawOutcome::WouldGrant, Span::ZERO)
            }
        }
    }
}

fn new_model(limit: &Limit) -> Box<dyn AlgorithmModel> {
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket(_) => Box::new(bucket::Arrivals::new(limit)),
        Algorithm::FixedWindow(_) => Box::new(window::Windows::new(limit)),
        Algorithm::SlidingWindowCounter => Box::new(sliding::SlidingCounters::new(limit)),
        Algorithm::SlidingWindowLog(_) => Box::new(log::UnitLog::new(limit)),
        Algorithm::Concurrency => Box::new(concurrency::HeldPermits::new(limit)),
    }
}

/// The first time from `now` on at which `holds` is true, found by doubling and bisecting. `holds` must stay true once
/// it is.
fn earliest(now: Micros, holds: impl Fn(Micros) -> bool) -> Micros {
    if holds(now) {
        return now;
    }
    let (mut no, mut step) = (now, 1);
    let mut yes = loop {
        let at = now.plus(Span::micros(step));
        if holds(at) || at == Micros::MAX {
            break at;
        }
        no = at;
        step *= 2;
    };
    while yes.since(no).get() > 1 {
        let middle = no.plus(Span::micros(yes.since(no).get() / 2));
        if holds(middle) { yes = middle } else { no = middle }
    }
    yes
}

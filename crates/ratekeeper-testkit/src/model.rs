//! The laws, slow and obvious: every admitted unit is kept with its time, and every answer is searched for.
//!
//! Nothing here is shared with the laws' own arithmetic. A model only knows how to say how many units are free at a
//! time; when a refused ask will fit is found by trying times, not by solving for one.

mod bucket;
mod calendar;
mod concurrency;
mod log;
mod sliding;
mod window;

use crate::engine::EngineReply;
use crate::key_engine::KeyEngine;
use ratekeeper_core::{Algorithm, Amount, DrawOutcome, Limit, Micros, Op, PermitId, Retry, Span};

/// What a model of a law must know.
trait AlgorithmModel {
    /// Moves on to `now`, forgetting what the law would forget.
    fn settle(&mut self, now: Micros);
    /// How many units are free at `now`.
    fn free(&self, now: Micros) -> u64;
    /// Whether nothing that was taken matters any more at `now`.
    fn is_clean(&self, now: Micros) -> bool;
    /// How long a newcomer waits for its turn.
    fn delay(&self, _now: Micros) -> Span {
        Span::ZERO
    }
    /// Takes units at `now`.
    fn take(&mut self, now: Micros, units: u32, permit: PermitId);
    /// Gives units back at `now`, or a permit.
    fn give(&mut self, now: Micros, units: u32, permit: PermitId);
    /// Goes on under another quota.
    fn change(&mut self, limit: &Limit, now: Micros);
    /// Another one like it.
    fn copy(&self) -> Box<dyn AlgorithmModel>;
}

/// A slow, obvious model of one key under one law.
pub struct Model {
    limit: Limit,
    slow: Box<dyn AlgorithmModel>,
    /// What it was under the quotas before, for as long as that matters.
    former: Vec<(Limit, Box<dyn AlgorithmModel>)>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Model({})", self.limit)
    }
}

impl Clone for Model {
    fn clone(&self) -> Model {
        let former = self.former.iter().map(|(limit, slow)| (*limit, slow.copy())).collect();
        Model { limit: self.limit, slow: self.slow.copy(), former }
    }
}

impl Model {
    /// A model of `limit`'s law. The limit's quota may change later; its law may not.
    pub fn new(limit: &Limit) -> Model {
        Model { limit: *limit, slow: fresh(limit), former: Vec::new() }
    }

    /// Goes on under another quota: with what is left under the one before, but no more than what that quota itself had left.
    fn change(&mut self, limit: &Limit, now: Micros) {
        self.slow.settle(now);
        let before = (self.limit, self.slow.copy());
        self.limit = *limit;
        if limit.keeps_roll() {
            return self.slow.change(limit, now);
        }
        match self.slow.is_clean(now) {
            true => self.slow = fresh(limit),
            false => self.slow.change(limit, now),
        }
        self.former.iter_mut().for_each(|(_, slow)| slow.settle(now));
        self.former.retain(|(_, slow)| !slow.is_clean(now));
        let own = self.former.iter().position(|(other, _)| other == limit);
        let own = own.map(|own| self.former.remove(own).1);
        if !before.1.is_clean(now) {
            self.former.push(before);
        }
        if let Some(mut own) = own {
            let excess = own.free(now).saturating_sub(self.slow.free(now));
            own.take(now, u32::try_from(excess).expect("at most a capacity"), PermitId(0));
            self.slow = own;
        }
    }

    fn reply(&self, now: Micros, ask: Amount, answer: DrawOutcome, delay: Span) -> EngineReply {
        let fits = |at: Micros| {
            ask.at_least() == 0
                || self.slow.free(at) >= u64::from(ask.at_least()) && self.slow.delay(at) <= ask.patience()
        };
        let retry = (answer == DrawOutcome::Refused).then(|| match ask.at_least() > self.limit.capacity() {
            true => Retry::Never,
            false => Retry::After(first(now, fits).since(now)),
        });
        let remaining = u32::try_from(self.slow.free(now)).unwrap_or(u32::MAX);
        EngineReply {
            answer,
            remaining,
            delay,
            retry,
            reset: first(now, |at| self.slow.is_clean(at)).since(now),
        }
    }
}

impl KeyEngine for Model {
    fn act(&mut self, now: Micros, limit: &Limit, act: Op, permit: PermitId) -> EngineReply {
        assert_eq!(self.limit.family(), limit.family(), "a model has one law");
        if *limit != self.limit {
            self.change(limit, now);
        }
        self.slow.settle(now);
        let delay = self.slow.delay(now);
        let grant = |ask: Amount| match ask.at_least() == 0
            || u64::from(ask.at_least()) <= self.slow.free(now) && delay <= ask.patience()
        {
            true => u32::try_from(u64::from(ask.at_most()).min(self.slow.free(now))).ok(),
            false => None,
        };
        match act {
            Op::Take(ask) => match grant(ask) {
                Some(units) => {
                    self.slow.take(now, units, permit);
                    self.reply(now, ask, DrawOutcome::Granted(units), delay)
                }
                None => self.reply(now, ask, DrawOutcome::Refused, delay),
            },
            Op::Look(ask) => {
                let answer = grant(ask).map_or(DrawOutcome::Refused, |_| DrawOutcome::Spared);
                self.reply(now, ask, answer, delay)
            }
            Op::Give(units) => {
                self.slow.give(now, units, permit);
                self.reply(now, Amount::PEEK, DrawOutcome::Spared, self.slow.delay(now))
            }
            Op::Clear => {
                *self = Model::new(limit);
                self.reply(now, Amount::PEEK, DrawOutcome::Spared, Span::ZERO)
            }
        }
    }
}

fn fresh(limit: &Limit) -> Box<dyn AlgorithmModel> {
    match limit.law() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket(_) => Box::new(bucket::Arrivals::new(limit)),
        Algorithm::FixedWindow(_) => Box::new(window::Windows::new(limit)),
        Algorithm::SlidingWindowCounter => Box::new(sliding::Counters::new(limit)),
        Algorithm::SlidingWindowLog(_) => Box::new(log::Units::new(limit)),
        Algorithm::Concurrency => Box::new(concurrency::HeldPermits::new(limit)),
    }
}

/// The first time from `now` on at which `holds` does, found by doubling and halving: every claim asked about here
/// stays true once it is.
fn first(now: Micros, holds: impl Fn(Micros) -> bool) -> Micros {
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

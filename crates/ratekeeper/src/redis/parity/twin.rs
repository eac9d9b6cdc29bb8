//! What the script should do, in Rust: the laws themselves around a map, one request after the other.

use super::fake::{Data, Fake};
use super::orders::Worded;
use crate::redis::stored_key;
use crate::redis::wire::{Lending, Loaned, Stored};
use ratekeeper_core::{
    Act, Answer, Ask, Draw, Draws, Figures, Former, Held, Lent, Limit, Loan, Micros, Outcome, PermitId,
    Reading, Report, Roll, Span, State, Wish,
};
use std::collections::BTreeMap;

/// For how long a state is kept after it has drained.
const SLACK_MS: u64 = 1000;

#[derive(Debug, Default)]
pub(super) struct Twin {
    kept: BTreeMap<Vec<u8>, Kept>,
}

#[derive(Clone, Debug)]
struct Kept {
    limit: Limit,
    memory: Memory,
    /// What other quotas have left of the key, and when that was worked out.
    former: (Former, Micros),
    /// From when on the state itself is void, beside what others have left.
    void: Micros,
    lapses_ms: u64,
}

#[derive(Clone, Debug)]
enum Memory {
    State(Held),
    Roll(Roll),
}

/// How to take back what one draw took.
enum Undo {
    Nothing,
    Restore(Box<Option<Kept>>),
    Give(u32),
}

/// The name of a draw's key.
pub(super) fn name_of(draws: &Draws, draw: &Draw) -> Vec<u8> {
    let mut name = Vec::new();
    stored_key::write(draws.key(draw), draw.scope(), draw.limit().family(), &mut name);
    name
}

impl Twin {
    /// Forgets what a server has forgotten by now.
    pub(super) fn forget_lapsed(&mut self, now: Micros) {
        self.kept.retain(|_, kept| now.get() / 1000 <= kept.lapses_ms);
    }

    /// Decides a request. What another limit wrote is taken for what it was when it was `seen`.
    pub(super) fn decide(&mut self, draws: &Draws, group: usize, seen: Micros, now: Micros) -> Vec<Outcome> {
        let group = draws.group(group);
        let names: Vec<_> = group.iter().map(|draw| name_of(draws, draw)).collect();
        for (draw, name) in group.iter().zip(&names) {
            self.adopt(name, draw.limit(), seen, now);
            self.rebase(name, draw.limit(), now);
        }
        let (mut outcomes, mut undos, mut is_refused) = (Vec::new(), Vec::new(), false);
        for (draw, name) in group.iter().zip(&names) {
            let act = if is_refused { draw.act().look() } else { draw.act() };
            let (outcome, undo) = self.act(name, draw.limit(), act, draw.permit(), now);
            is_refused |= outcome.is_refused() && !draw.is_shadow();
            outcomes.push(outcome);
            undos.push(undo);
        }
        if is_refused {
            for ((draw, name), undo) in group.iter().zip(&names).zip(undos).rev() {
                match undo {
                    Undo::Nothing => {}
                    Undo::Restore(kept) => match *kept {
                        Some(kept) => drop(self.kept.insert(name.clone(), kept)),
                        None => drop(self.kept.remove(name)),
                    },
                    Undo::Give(units) => {
                        self.act(name, draw.limit(), Act::Give(units), draw.permit(), now);
                    }
                }
            }
            for ((draw, name), outcome) in group.iter().zip(&names).zip(&mut outcomes) {
                if !outcome.is_refused() {
                    *outcome = self.act(name, draw.limit(), draw.act().look(), draw.permit(), now).0;
                }
            }
        }
        outcomes
    }

    /// Sees a state with the eyes of another limit than the one that wrote it.
    fn adopt(&mut self, name: &[u8], limit: &Limit, seen: Micros, now: Micros) {
        let Some(kept) = self.kept.get(name).cloned() else { return };
        let Some(held) = kept.held(seen) else { return };
        let Kept { limit: before, former: (mut former, _), .. } = kept;
        if before != *limit {
            let held = limit.take_over(held, &before, &mut former, seen);
            match (limit.drains_in(held, seen), former.is_empty()) {
                (Span::ZERO, true) => drop(self.kept.remove(name)),
                (Span::ZERO, false) => self.set(name, limit, Held::default(), (former, seen), now),
                // It is kept as it was worked out, even if it has drained on the way.
                _ => self.set(name, limit, held, (former, seen), now),
            }
        }
    }

    /// Counts from now on what was kept before the clock was set back.
    fn rebase(&mut self, name: &[u8], limit: &Limit, now: Micros) {
        if let Some(held) = self.held(name, limit, now).and_then(|held| limit.rebase(held, now)) {
            self.keep(name, limit, held, now);
        }
    }

    /// Keeps a state, beside what other quotas have left of the key and has not drained long ago.
    fn keep(&mut self, name: &[u8], limit: &Limit, held: Held, now: Micros) {
        let former = match self.kept.get(name) {
            Some(kept) if kept.limit == *limit => kept.former.clone(),
            _ => Default::default(),
        };
        let is_live = former.0.until(former.1).plus(Span::millis(SLACK_MS)) > now;
        let former = if is_live { former } else { Default::default() };
        match (limit.drains_in(held, now), former.0.is_empty()) {
            (Span::ZERO, true) => drop(self.kept.remove(name)),
            (Span::ZERO, false) => self.set(name, limit, Held::default(), former, now),
            _ => self.set(name, limit, held, former, now),
        }
    }

    fn set(&mut self, name: &[u8], limit: &Limit, held: Held, former: (Former, Micros), now: Micros) {
        let own = held.state.map(|_| now.plus(limit.drains_in(held, now)));
        let others = (!former.0.is_empty()).then(|| former.0.until(former.1));
        let lapse = |drained: Micros| match drained.since(now) {
            // Up to a second ago, so that some of the slack is gone.
            Span::ZERO => SLACK_MS - now.since(drained).get() / 1000,
            drains => drains.get().div_ceil(1000) + SLACK_MS,
        };
        let void = own.map_or(Micros::EPOCH, |own| now.plus(Span::millis(lapse(own))));
        let lapses_ms = now.get() / 1000 + own.into_iter().chain(others).map(lapse).max().unwrap_or(0);
        let kept = Kept { limit: *limit, memory: Memory::State(held), former, void, lapses_ms };
        self.kept.insert(name.to_vec(), kept);
    }

    /// What is kept of a key; nothing if another limit wrote it.
    fn held(&self, name: &[u8], limit: &Limit, now: Micros) -> Option<Held> {
        match self.kept.get(name) {
            None => Some(Held::default()),
            Some(kept) if kept.limit == *limit => kept.held(now),
            Some(_) => None,
        }
    }

    /// Takes note of an order's report, unless another limit stands in the way.
    pub(super) fn note(&mut self, order: &Worded, now: Micros) -> Option<Loan> {
        self.rebase(&order.name(), &order.limit, now);
        let held = self.held(&order.name(), &order.limit, now)?;
        Some(self.settle_order(order, held, order.report, Wish::default(), now))
    }

    /// Lends what an order whose report was `noted` wishes for, unless another limit has come in the way since.
    pub(super) fn lend(&mut self, order: &Worded, noted: Option<Loan>, now: Micros) -> Lending {
        let Some(noted) = noted else { return Lending::Stuck };
        let loan = match self.held(&order.name(), &order.limit, now) {
            Some(held) => self.settle_order(order, held, Report::default(), order.wish, now),
            None => noted,
        };
        let seen = self.held(&order.name(), &order.limit, now).map(|held| {
            let (step, lent) = order.limit.step_beside(held, now, Ask::PEEK);
            folded(&order.limit, step.state, lent)
        });
        Lending::Loaned(Loaned {
            units: loan.units,
            term: loan.term,
            left: loan.until.since(now),
            is_known: noted.is_known,
            seen,
        })
    }

    /// What changes nothing writes nothing.
    fn settle_order(&mut self, order: &Worded, held: Held, report: Report, wish: Wish, now: Micros) -> Loan {
        let (aged, _) = order.limit.lend(held, now, Report::default(), Wish::default());
        let (after, loan) = order.limit.lend(held, now, report, wish);
        if after != aged {
            self.keep(&order.name(), &order.limit, after, now);
        }
        loan
    }

    fn act(
        &mut self,
        name: &[u8],
        limit: &Limit,
        act: Act,
        permit: PermitId,
        now: Micros,
    ) -> (Outcome, Undo) {
        if limit.keeps_roll() {
            return self.act_on_roll(name, limit, act, permit, now);
        }
        let before = self.kept.get(name).cloned();
        let held = before.as_ref().and_then(|kept| kept.held(now)).unwrap_or_default();
        let looked = |held, ask| {
            let granted = limit.step_beside(held, now, ask).0.granted;
            let (step, lent) = limit.step_beside(held, now, Ask::PEEK);
            let answer = granted.map_or(Answer::Refused, |_| Answer::Spared);
            Outcome::of_state(answer, now, folded(limit, step.state, lent))
        };
        match act {
            Act::Take(ask) => {
                let (step, lent) = limit.step_beside(held, now, ask);
                let outcome = Outcome::of_state(step.answer(), now, folded(limit, step.state, lent));
                if !step.changed {
                    return (outcome, Undo::Nothing);
                }
                self.keep(name, limit, Held { state: Some(step.state), lent }, now);
                (outcome, Undo::Restore(Box::new(before)))
            }
            Act::Look(ask) => (looked(held, ask), Undo::Nothing),
            Act::Give(_) | Act::Clear => {
                let units = if let Act::Give(units) = act { units } else { u32::MAX };
                if act != Act::Clear && held.state.is_none() {
                    return (looked(held, Ask::PEEK), Undo::Nothing);
                }
                let given = limit.give_beside(held, now, units);
                if let (Act::Clear, Some(kept)) = (act, self.kept.get_mut(name)) {
                    kept.former = Default::default();
                }
                self.keep(name, limit, given, now);
                (looked(given, Ask::PEEK), Undo::Nothing)
            }
        }
    }

    fn act_on_roll(
        &mut self,
        name: &[u8],
        limit: &Limit,
        act: Act,
        permit: PermitId,
        now: Micros,
    ) -> (Outcome, Undo) {
        let mut roll = match self.kept.remove(name) {
            Some(Kept { limit: before, memory: Memory::Roll(mut roll), .. }) => {
                limit.take_over_roll(&mut roll, &before, now);
                roll
            }
            _ => limit.new_roll(),
        };
        limit.drain_roll(&mut roll, now);
        let mut undo = Undo::Nothing;
        let outcome = match act {
            Act::Take(ask) => {
                let granted = limit.step_roll(&mut roll, now, ask, permit);
                if let Some(units) = granted.filter(|units| *units > 0) {
                    undo = Undo::Give(units);
                }
                limit.read_roll(&roll, now, ask, granted.map_or(Answer::Refused, Answer::Granted))
            }
            Act::Look(ask) => limit.look_roll(&roll, now, ask),
            Act::Give(units) => {
                limit.give_roll(&mut roll, units, permit);
                limit.drain_roll(&mut roll, now);
                limit.look_roll(&roll, now, Ask::PEEK)
            }
            Act::Clear => {
                roll = limit.new_roll();
                limit.look_roll(&roll, now, Ask::PEEK)
            }
        };
        if roll.entries() > 0 {
            let kept = Kept {
                limit: *limit,
                memory: Memory::Roll(roll),
                former: Default::default(),
                void: Micros::MAX,
                lapses_ms: u64::MAX,
            };
            self.kept.insert(name.to_vec(), kept);
        }
        (outcome, undo)
    }

    /// What it keeps: under which name, what, and when it has drained or a little later.
    pub(super) fn kept(&self) -> impl Iterator<Item = (&[u8], Data, u64)> {
        self.kept.iter().map(|(name, kept)| (&name[..], kept.data(), kept.lapses_ms))
    }

    /// Says where a server keeps something else, or for another time.
    pub(super) fn differs_from(&mut self, fake: &Fake) -> Option<String> {
        if self.kept.keys().ne(fake.kept.keys()) {
            let (ours, theirs): (Vec<_>, Vec<_>) = (self.kept.keys().collect(), fake.kept.keys().collect());
            return Some(format!("keys: {ours:?} are kept here, {theirs:?} there"));
        }
        for ((name, kept), there) in self.kept.iter_mut().zip(fake.kept.values()) {
            let lapses_ms = there.lapses_ms.expect("everything has a time to live");
            let data = match &kept.memory {
                Memory::State(_) => kept.data(),
                Memory::Roll(roll) => {
                    // A list may live a little longer than what is on it, and goes with what is there.
                    let drained = drained_ms(&kept.limit, roll, fake.now_micros);
                    if lapses_ms < drained {
                        return Some(format!("{name:?} lapses at {lapses_ms}, but drains at {drained}"));
                    }
                    kept.lapses_ms = lapses_ms;
                    kept.data()
                }
            };
            if there.data != data || lapses_ms != kept.lapses_ms {
                return Some(format!(
                    "{name:?} under {}\n  there {there:?}\n  here {data:?} until {}",
                    kept.limit, kept.lapses_ms
                ));
            }
        }
        None
    }
}

/// The state in which all that is lent is owed.
fn folded(limit: &Limit, state: State, lent: Lent) -> State {
    let Figures::Bucket { unit, .. } = limit.figures() else { return state };
    let [owed, at, _] = limit.parts_of(state);
    State::new(owed + u64::from(lent.units()) * unit, at)
}

/// When nothing on the roll will matter any more; at the beginning of time if nothing does.
fn drained_ms(limit: &Limit, roll: &Roll, now_micros: u64) -> u64 {
    let now = Micros::new(now_micros);
    let outcome = limit.look_roll(roll, now, Ask::PEEK);
    match Reading::new(limit, Ask::PEEK, outcome).reset().get() {
        0 => 0,
        reset => (now_micros + reset).div_ceil(1000),
    }
}

impl Kept {
    /// The state, if it is one.
    fn held(&self, now: Micros) -> Option<Held> {
        match &self.memory {
            Memory::State(_) if !self.former.0.is_empty() && self.void <= now => Some(Held::default()),
            Memory::State(held) => Some(*held),
            Memory::Roll(_) => None,
        }
    }

    /// What a server keeps of it, byte for byte.
    fn data(&self) -> Data {
        match &self.memory {
            Memory::State(held) => {
                let mut value = Vec::new();
                let (former, seen) = self.former.clone();
                Stored { limit: self.limit, held: *held, void: self.void, former }.write(seen, &mut value);
                Data::Text(value)
            }
            Memory::Roll(Roll::Log(log)) => {
                let mut list = std::collections::VecDeque::new();
                let mut head = bytes(self.limit.quota().per().get(), 7);
                if let Some(earlier) = log.earlier() {
                    head.extend(bytes(earlier.per.get(), 7));
                    head.extend(bytes(u64::from(earlier.units), 4));
                    head.extend(bytes(earlier.until.get(), 7));
                }
                list.push_back(head);
                for (at, run) in log.runs() {
                    // How many came before is any number, as long as it goes on; the test sets it.
                    list.push_back([bytes(at.get(), 7), bytes(0, 7), bytes(u64::from(run), 4)].concat());
                }
                Data::List(list)
            }
            Memory::Roll(Roll::Holders(holders)) => {
                let mut set = Vec::new();
                let mut used = 0;
                for (permit, units, lapses) in holders.holds() {
                    used += u64::from(units);
                    let (permit, lapse, units) =
                        (permit.0.to_be_bytes(), bytes(lapses.get(), 7), bytes(u64::from(units), 4));
                    let mut number = 0_u8;
                    let (by_lapse, by_permit) = loop {
                        let by_lapse = [b"L", &lapse[..], &permit, &units, &[number]].concat();
                        let by_permit = [b"P", &permit[..], &[number], &lapse, &units].concat();
                        if !set.contains(&(0, by_lapse.clone())) {
                            break (by_lapse, by_permit);
                        }
                        number += 1;
                    };
                    set.extend([(0, by_lapse), (0, by_permit)]);
                }
                set.push((used, b"u".to_vec()));
                set.sort();
                Data::Sorted(set)
            }
        }
    }
}

fn bytes(number: u64, width: usize) -> Vec<u8> {
    number.to_be_bytes()[8 - width..].to_vec()
}

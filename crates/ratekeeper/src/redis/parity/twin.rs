//! What the script should do, in Rust: the laws themselves around a map, one request after the other.

use super::fake::{FakeData, FakeValueKind};
use super::orders::SentRandomRenewal;
use crate::redis::script_call::{GrantedLease, RenewalResult, StoredValue};
use crate::redis::stored_key;
use ratekeeper_core::{
    Amount, Draw, DrawOutcome, DrawResult, Draws, LeaseGrant, LeaseReport, LeaseRequest, LeasedState,
    LentUnits, Limit, LimitParams, LimitStatus, ListState, Micros, Op, PermitId, PriorStates, Span, State,
};
use std::collections::BTreeMap;

/// For how long a state is kept after it has drained.
const SLACK_MS: u64 = 1000;

#[derive(Debug, Default)]
pub(super) struct Twin {
    kept: BTreeMap<Vec<u8>, TwinValue>,
}

#[derive(Clone, Debug)]
struct TwinValue {
    limit: Limit,
    memory: TwinMemory,
    /// What other quotas have left of the key, and when that was worked out.
    former: (PriorStates, Micros),
    /// From when on the state itself is void, beside what others have left.
    void: Micros,
    lapses_ms: u64,
}

#[derive(Clone, Debug)]
enum TwinMemory {
    State(LeasedState),
    Roll(ListState),
}

/// How to take back what one draw took.
enum TwinUndo {
    Nothing,
    Restore(Box<Option<TwinValue>>),
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
    pub(super) fn decide(
        &mut self,
        draws: &Draws,
        group: usize,
        seen: Micros,
        now: Micros,
    ) -> Vec<DrawResult> {
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
                    TwinUndo::Nothing => {}
                    TwinUndo::Restore(kept) => match *kept {
                        Some(kept) => drop(self.kept.insert(name.clone(), kept)),
                        None => drop(self.kept.remove(name)),
                    },
                    TwinUndo::Give(units) => {
                        self.act(name, draw.limit(), Op::Give(units), draw.permit(), now);
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
        let TwinValue { limit: before, former: (mut former, _), .. } = kept;
        if before != *limit {
            let held = limit.take_over(held, &before, &mut former, seen);
            match (limit.drains_in(held, seen), former.is_empty()) {
                (Span::ZERO, true) => drop(self.kept.remove(name)),
                (Span::ZERO, false) => self.set(name, limit, LeasedState::default(), (former, seen), now),
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
    fn keep(&mut self, name: &[u8], limit: &Limit, held: LeasedState, now: Micros) {
        let former = match self.kept.get(name) {
            Some(kept) if kept.limit == *limit => kept.former.clone(),
            _ => Default::default(),
        };
        let is_live = former.0.until(former.1).plus(Span::millis(SLACK_MS)) > now;
        let former = if is_live { former } else { Default::default() };
        match (limit.drains_in(held, now), former.0.is_empty()) {
            (Span::ZERO, true) => drop(self.kept.remove(name)),
            (Span::ZERO, false) => self.set(name, limit, LeasedState::default(), former, now),
            _ => self.set(name, limit, held, former, now),
        }
    }

    fn set(
        &mut self,
        name: &[u8],
        limit: &Limit,
        held: LeasedState,
        former: (PriorStates, Micros),
        now: Micros,
    ) {
        let own = held.state.map(|_| now.plus(limit.drains_in(held, now)));
        let others = (!former.0.is_empty()).then(|| former.0.until(former.1));
        let lapse = |drained: Micros| match drained.since(now) {
            // Up to a second ago, so that some of the slack is gone.
            Span::ZERO => SLACK_MS - now.since(drained).get() / 1000,
            drains => drains.get().div_ceil(1000) + SLACK_MS,
        };
        let void = own.map_or(Micros::EPOCH, |own| now.plus(Span::millis(lapse(own))));
        let lapses_ms = now.get() / 1000 + own.into_iter().chain(others).map(lapse).max().unwrap_or(0);
        let kept = TwinValue { limit: *limit, memory: TwinMemory::State(held), former, void, lapses_ms };
        self.kept.insert(name.to_vec(), kept);
    }

    /// What is kept of a key; nothing if another limit wrote it.
    fn held(&self, name: &[u8], limit: &Limit, now: Micros) -> Option<LeasedState> {
        match self.kept.get(name) {
            None => Some(LeasedState::default()),
            Some(kept) if kept.limit == *limit => kept.held(now),
            Some(_) => None,
        }
    }

    /// Takes note of an order's report, unless another limit stands in the way.
    pub(super) fn note(&mut self, order: &SentRandomRenewal, now: Micros) -> Option<LeaseGrant> {
        self.rebase(&order.name(), &order.limit, now);
        let held = self.held(&order.name(), &order.limit, now)?;
        Some(self.settle_order(order, held, order.report, LeaseRequest::default(), now))
    }

    /// Lends what an order whose report was `noted` wishes for, unless another limit has come in the way since.
    pub(super) fn lend(
        &mut self,
        order: &SentRandomRenewal,
        noted: Option<LeaseGrant>,
        now: Micros,
    ) -> RenewalResult {
        let Some(noted) = noted else { return RenewalResult::Stuck };
        let loan = match self.held(&order.name(), &order.limit, now) {
            Some(held) => self.settle_order(order, held, LeaseReport::default(), order.wish, now),
            None => noted,
        };
        let seen = self.held(&order.name(), &order.limit, now).map(|held| {
            let (step, lent) = order.limit.step_beside(held, now, Amount::PEEK);
            folded(&order.limit, step.state, lent)
        });
        RenewalResult::Loaned(GrantedLease {
            units: loan.units,
            term: loan.term,
            left: loan.until.since(now),
            is_known: noted.is_known,
            seen,
        })
    }

    /// What changes nothing writes nothing.
    fn settle_order(
        &mut self,
        order: &SentRandomRenewal,
        held: LeasedState,
        report: LeaseReport,
        wish: LeaseRequest,
        now: Micros,
    ) -> LeaseGrant {
        let (aged, _) = order.limit.lend(held, now, LeaseReport::default(), LeaseRequest::default());
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
        act: Op,
        permit: PermitId,
        now: Micros,
    ) -> (DrawResult, TwinUndo) {
        if limit.keeps_roll() {
            return self.act_on_roll(name, limit, act, permit, now);
        }
        let before = self.kept.get(name).cloned();
        let held = before.as_ref().and_then(|kept| kept.held(now)).unwrap_or_default();
        let looked = |held, ask| {
            let granted = limit.step_beside(held, now, ask).0.granted;
            let (step, lent) = limit.step_beside(held, now, Amount::PEEK);
            let answer = granted.map_or(DrawOutcome::Refused, |_| DrawOutcome::Spared);
            DrawResult::of_state(answer, now, folded(limit, step.state, lent))
        };
        match act {
            Op::Take(ask) => {
                let (step, lent) = limit.step_beside(held, now, ask);
                let outcome = DrawResult::of_state(step.answer(), now, folded(limit, step.state, lent));
                if !step.changed {
                    return (outcome, TwinUndo::Nothing);
                }
                self.keep(name, limit, LeasedState { state: Some(step.state), lent }, now);
                (outcome, TwinUndo::Restore(Box::new(before)))
            }
            Op::Look(ask) => (looked(held, ask), TwinUndo::Nothing),
            Op::Give(_) | Op::Clear => {
                let units = if let Op::Give(units) = act { units } else { u32::MAX };
                if act != Op::Clear && held.state.is_none() {
                    return (looked(held, Amount::PEEK), TwinUndo::Nothing);
                }
                let given = limit.give_beside(held, now, units);
                if let (Op::Clear, Some(kept)) = (act, self.kept.get_mut(name)) {
                    kept.former = Default::default();
                }
                self.keep(name, limit, given, now);
                (looked(given, Amount::PEEK), TwinUndo::Nothing)
            }
        }
    }

    fn act_on_roll(
        &mut self,
        name: &[u8],
        limit: &Limit,
        act: Op,
        permit: PermitId,
        now: Micros,
    ) -> (DrawResult, TwinUndo) {
        let mut roll = match self.kept.remove(name) {
            Some(TwinValue { limit: before, memory: TwinMemory::Roll(mut roll), .. }) => {
                limit.take_over_roll(&mut roll, &before, now);
                roll
            }
            _ => limit.new_roll(),
        };
        limit.drain_roll(&mut roll, now);
        let mut undo = TwinUndo::Nothing;
        let outcome = match act {
            Op::Take(ask) => {
                let granted = limit.step_roll(&mut roll, now, ask, permit);
                if let Some(units) = granted.filter(|units| *units > 0) {
                    undo = TwinUndo::Give(units);
                }
                limit.read_roll(&roll, now, ask, granted.map_or(DrawOutcome::Refused, DrawOutcome::Granted))
            }
            Op::Look(ask) => limit.look_roll(&roll, now, ask),
            Op::Give(units) => {
                limit.give_roll(&mut roll, units, permit);
                limit.drain_roll(&mut roll, now);
                limit.look_roll(&roll, now, Amount::PEEK)
            }
            Op::Clear => {
                roll = limit.new_roll();
                limit.look_roll(&roll, now, Amount::PEEK)
            }
        };
        if roll.entries() > 0 {
            let kept = TwinValue {
                limit: *limit,
                memory: TwinMemory::Roll(roll),
                former: Default::default(),
                void: Micros::MAX,
                lapses_ms: u64::MAX,
            };
            self.kept.insert(name.to_vec(), kept);
        }
        (outcome, undo)
    }

    /// What it keeps: under which name, what, and when it has drained or a little later.
    pub(super) fn kept(&self) -> impl Iterator<Item = (&[u8], FakeValueKind, u64)> {
        self.kept.iter().map(|(name, kept)| (&name[..], kept.data(), kept.lapses_ms))
    }

    /// Says where a server keeps something else, or for another time.
    pub(super) fn differs_from(&mut self, fake: &FakeData) -> Option<String> {
        if self.kept.keys().ne(fake.kept.keys()) {
            let (ours, theirs): (Vec<_>, Vec<_>) = (self.kept.keys().collect(), fake.kept.keys().collect());
            return Some(format!("keys: {ours:?} are kept here, {theirs:?} there"));
        }
        for ((name, kept), there) in self.kept.iter_mut().zip(fake.kept.values()) {
            let lapses_ms = there.lapses_ms.expect("everything has a time to live");
            let data = match &kept.memory {
                TwinMemory::State(_) => kept.data(),
                TwinMemory::Roll(roll) => {
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
fn folded(limit: &Limit, state: State, lent: LentUnits) -> State {
    let LimitParams::Bucket { unit, .. } = limit.figures() else { return state };
    let [owed, at, _] = limit.parts_of(state);
    State::new(owed + u64::from(lent.units()) * unit, at)
}

/// When nothing on the roll will matter any more; at the beginning of time if nothing does.
fn drained_ms(limit: &Limit, roll: &ListState, now_micros: u64) -> u64 {
    let now = Micros::new(now_micros);
    let outcome = limit.look_roll(roll, now, Amount::PEEK);
    match LimitStatus::new(limit, Amount::PEEK, outcome).reset().get() {
        0 => 0,
        reset => (now_micros + reset).div_ceil(1000),
    }
}

impl TwinValue {
    /// The state, if it is one.
    fn held(&self, now: Micros) -> Option<LeasedState> {
        match &self.memory {
            TwinMemory::State(_) if !self.former.0.is_empty() && self.void <= now => {
                Some(LeasedState::default())
            }
            TwinMemory::State(held) => Some(*held),
            TwinMemory::Roll(_) => None,
        }
    }

    /// What a server keeps of it, byte for byte.
    fn data(&self) -> FakeValueKind {
        match &self.memory {
            TwinMemory::State(held) => {
                let mut value = Vec::new();
                let (former, seen) = self.former.clone();
                StoredValue { limit: self.limit, held: *held, void: self.void, former }
                    .write(seen, &mut value);
                FakeValueKind::Text(value)
            }
            TwinMemory::Roll(ListState::Log(log)) => {
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
                FakeValueKind::List(list)
            }
            TwinMemory::Roll(ListState::Holders(holders)) => {
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
                FakeValueKind::Sorted(set)
            }
        }
    }
}

fn bytes(number: u64, width: usize) -> Vec<u8> {
    number.to_be_bytes()[8 - width..].to_vec()
}

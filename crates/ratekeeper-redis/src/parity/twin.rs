//! The Rust twin of the script: the algorithms of the core crate on a map, one request after the other.

use super::fake::{FakeData, FakeValueKind};
use super::renewals::SentRandomRenewal;
use crate::batch::codec::{GrantedLease, RenewalResult, StoredValue};
use crate::batch::stored_key;
use ratekeeper_core::{
    Amount, Draw, DrawOutcome, DrawResult, Draws, LeaseGrant, LeaseReport, LeaseRequest, LeasedState,
    LentUnits, Limit, LimitParams, LimitStatus, ListState, Micros, Op, PermitId, PriorStates, Span, State,
};
use std::collections::BTreeMap;

/// How long a state is kept after it has drained.
const SLACK_MS: u64 = 1000;

/// The Rust twin of the script, with the values it stores.
#[derive(Debug, Default)]
pub(crate) struct Twin {
    values: BTreeMap<Vec<u8>, TwinValue>,
}

#[derive(Clone, Debug)]
struct TwinValue {
    limit: Limit,
    state: TwinState,
    /// States of the key under other quotas, and when they were computed.
    prior: (PriorStates, Micros),
    /// When the state itself becomes void, even if states under other quotas keep the value alive.
    void_from: Micros,
    expires_ms: u64,
}

#[derive(Clone, Debug)]
enum TwinState {
    State(LeasedState),
    List(ListState),
}

/// How to undo one draw.
enum TwinUndo {
    Nothing,
    Restore(Box<Option<TwinValue>>),
    Give(u32),
}

/// The name of a draw's key in the store.
pub(crate) fn key_name(draws: &Draws, draw: &Draw) -> Vec<u8> {
    stored_key::name(draws.key(draw), draw.scope(), draw.limit().family())
}

impl Twin {
    /// Removes the values that a server has expired by now.
    pub(crate) fn remove_expired(&mut self, now: Micros) {
        self.values.retain(|_, value| now.get() / 1000 <= value.expires_ms);
    }

    /// Decides a request. A state that another limit wrote is adopted as of `seen`.
    pub(crate) fn decide(
        &mut self,
        draws: &Draws,
        group: usize,
        seen: Micros,
        now: Micros,
    ) -> Vec<DrawResult> {
        let group = draws.group(group);
        let names: Vec<_> = group.iter().map(|draw| key_name(draws, draw)).collect();
        for (draw, name) in group.iter().zip(&names) {
            self.adopt(name, draw.limit(), seen, now);
            self.rebase(name, draw.limit(), now);
        }
        let (mut outcomes, mut undos, mut is_denied) = (Vec::new(), Vec::new(), false);
        for (draw, name) in group.iter().zip(&names) {
            let op = if is_denied { draw.op().to_peek() } else { draw.op() };
            let (outcome, undo) = self.apply(name, draw.limit(), op, draw.permit(), now);
            is_denied |= outcome.is_denied() && !draw.is_shadow();
            outcomes.push(outcome);
            undos.push(undo);
        }
        if is_denied {
            for ((draw, name), undo) in group.iter().zip(&names).zip(undos).rev() {
                match undo {
                    TwinUndo::Nothing => {}
                    TwinUndo::Restore(value) => match *value {
                        Some(value) => drop(self.values.insert(name.clone(), value)),
                        None => drop(self.values.remove(name)),
                    },
                    TwinUndo::Give(units) => {
                        self.apply(name, draw.limit(), Op::Refund(units), draw.permit(), now);
                    }
                }
            }
            for ((draw, name), outcome) in group.iter().zip(&names).zip(&mut outcomes) {
                if !outcome.is_denied() {
                    *outcome = self.apply(name, draw.limit(), draw.op().to_peek(), draw.permit(), now).0;
                }
            }
        }
        outcomes
    }

    /// Adopts a state that another limit wrote.
    fn adopt(&mut self, name: &[u8], limit: &Limit, seen: Micros, now: Micros) {
        let Some(value) = self.values.get(name).cloned() else { return };
        let Some(held) = value.leased_state(seen) else { return };
        let TwinValue { limit: before, prior: (mut prior, _), .. } = value;
        if before != *limit {
            let held = limit.adopt_with_prior(held, &before, &mut prior, seen);
            match (limit.expires_in(held, seen), prior.is_empty()) {
                (Span::ZERO, true) => drop(self.values.remove(name)),
                (Span::ZERO, false) => self.insert(name, limit, LeasedState::default(), (prior, seen), now),
                // Stored as computed, even if it has drained in the meantime.
                _ => self.insert(name, limit, held, (prior, seen), now),
            }
        }
    }

    /// Rebases a state that was written before the clock was set back: it counts from now.
    fn rebase(&mut self, name: &[u8], limit: &Limit, now: Micros) {
        if let Some(held) = self.held(name, limit, now).and_then(|held| limit.rebase(held, now)) {
            self.store(name, limit, held, now);
        }
    }

    /// Stores a state, with those under other quotas that have not drained long ago.
    fn store(&mut self, name: &[u8], limit: &Limit, held: LeasedState, now: Micros) {
        let prior = match self.values.get(name) {
            Some(value) if value.limit == *limit => value.prior.clone(),
            _ => Default::default(),
        };
        let is_live = prior.0.expires_at(prior.1).plus(Span::millis(SLACK_MS)) > now;
        let prior = if is_live { prior } else { Default::default() };
        match (limit.expires_in(held, now), prior.0.is_empty()) {
            (Span::ZERO, true) => drop(self.values.remove(name)),
            (Span::ZERO, false) => self.insert(name, limit, LeasedState::default(), prior, now),
            _ => self.insert(name, limit, held, prior, now),
        }
    }

    fn insert(
        &mut self,
        name: &[u8],
        limit: &Limit,
        leased_state: LeasedState,
        prior: (PriorStates, Micros),
        now: Micros,
    ) {
        let own = leased_state.state.map(|_| now.plus(limit.expires_in(leased_state, now)));
        let others = (!prior.0.is_empty()).then(|| prior.0.expires_at(prior.1));
        let ttl_ms = |drained: Micros| match drained.since(now) {
            // Drained up to a second ago, so that part of the slack is over.
            Span::ZERO => SLACK_MS - now.since(drained).get() / 1000,
            drains => drains.get().div_ceil(1000) + SLACK_MS,
        };
        let void = own.map_or(Micros::EPOCH, |own| now.plus(Span::millis(ttl_ms(own))));
        let expires_ms = now.get() / 1000 + own.into_iter().chain(others).map(ttl_ms).max().unwrap_or(0);
        let value = TwinValue {
            limit: *limit,
            state: TwinState::State(leased_state),
            prior,
            void_from: void,
            expires_ms,
        };
        self.values.insert(name.to_vec(), value);
    }

    /// The state of a key. Returns `None` if another limit wrote it.
    fn held(&self, name: &[u8], limit: &Limit, now: Micros) -> Option<LeasedState> {
        match self.values.get(name) {
            None => Some(LeasedState::default()),
            Some(value) if value.limit == *limit => value.leased_state(now),
            Some(_) => None,
        }
    }

    /// Applies the report of a renewal. Returns `None` if another limit wrote the state.
    pub(crate) fn apply_report(&mut self, renewal: &SentRandomRenewal, now: Micros) -> Option<LeaseGrant> {
        self.rebase(&renewal.name(), &renewal.limit, now);
        let held = self.held(&renewal.name(), &renewal.limit, now)?;
        Some(self.apply_renewal(renewal, held, renewal.report, LeaseRequest::default(), now))
    }

    /// Grants the request of a renewal whose report was applied with the result `reported`, unless another limit has
    /// written the state since.
    pub(crate) fn grant(
        &mut self,
        renewal: &SentRandomRenewal,
        reported: Option<LeaseGrant>,
        now: Micros,
    ) -> RenewalResult {
        let Some(reported) = reported else { return RenewalResult::Stuck };
        let grant = match self.held(&renewal.name(), &renewal.limit, now) {
            Some(held) => self.apply_renewal(renewal, held, LeaseReport::default(), renewal.request, now),
            None => reported,
        };
        let seen = self.held(&renewal.name(), &renewal.limit, now).map(|held| {
            let (step, lent) = renewal.limit.step_leased(held, now, Amount::ZERO);
            with_lent_as_debt(&renewal.limit, step.state, lent)
        });
        RenewalResult::Granted(GrantedLease {
            units: grant.units,
            term: grant.term,
            time_left: grant.expires_at.since(now),
            is_report_accepted: reported.is_report_accepted,
            state: seen,
        })
    }

    /// Applies a report and a request, and stores the state only if it changes.
    fn apply_renewal(
        &mut self,
        renewal: &SentRandomRenewal,
        held: LeasedState,
        report: LeaseReport,
        request: LeaseRequest,
        now: Micros,
    ) -> LeaseGrant {
        let (aged, _) = renewal.limit.grant_lease(held, now, LeaseReport::default(), LeaseRequest::default());
        let (after, grant) = renewal.limit.grant_lease(held, now, report, request);
        if after != aged {
            self.store(&renewal.name(), &renewal.limit, after, now);
        }
        grant
    }

    fn apply(
        &mut self,
        name: &[u8],
        limit: &Limit,
        op: Op,
        permit: PermitId,
        now: Micros,
    ) -> (DrawResult, TwinUndo) {
        if limit.uses_list_state() {
            return self.apply_to_list(name, limit, op, permit, now);
        }
        let before = self.values.get(name).cloned();
        let held = before.as_ref().and_then(|value| value.leased_state(now)).unwrap_or_default();
        let peek = |held, amount| {
            let granted = limit.step_leased(held, now, amount).0.granted;
            let (step, lent) = limit.step_leased(held, now, Amount::ZERO);
            let answer = granted.map_or(DrawOutcome::Denied, |_| DrawOutcome::WouldGrant);
            DrawResult::from_state(answer, now, with_lent_as_debt(limit, step.state, lent))
        };
        match op {
            Op::Take(amount) => {
                let (step, lent) = limit.step_leased(held, now, amount);
                let outcome =
                    DrawResult::from_state(step.outcome(), now, with_lent_as_debt(limit, step.state, lent));
                if !step.needs_write {
                    return (outcome, TwinUndo::Nothing);
                }
                self.store(name, limit, LeasedState { state: Some(step.state), lent }, now);
                (outcome, TwinUndo::Restore(Box::new(before)))
            }
            Op::Peek(amount) => (peek(held, amount), TwinUndo::Nothing),
            Op::Refund(_) | Op::Reset => {
                let units = if let Op::Refund(units) = op { units } else { u32::MAX };
                if op != Op::Reset && held.state.is_none() {
                    return (peek(held, Amount::ZERO), TwinUndo::Nothing);
                }
                let after = limit.refund_leased(held, now, units);
                if let (Op::Reset, Some(value)) = (op, self.values.get_mut(name)) {
                    value.prior = Default::default();
                }
                self.store(name, limit, after, now);
                (peek(after, Amount::ZERO), TwinUndo::Nothing)
            }
        }
    }

    fn apply_to_list(
        &mut self,
        name: &[u8],
        limit: &Limit,
        op: Op,
        permit: PermitId,
        now: Micros,
    ) -> (DrawResult, TwinUndo) {
        let mut list = match self.values.remove(name) {
            Some(TwinValue { limit: before, state: TwinState::List(mut list), .. }) => {
                limit.adopt_list(&mut list, &before, now);
                list
            }
            _ => limit.new_list(),
        };
        limit.expire_list(&mut list, now);
        let mut undo = TwinUndo::Nothing;
        let outcome = match op {
            Op::Take(amount) => {
                let granted = limit.step_list(&mut list, now, amount, permit);
                if let Some(units) = granted.filter(|units| *units > 0) {
                    undo = TwinUndo::Give(units);
                }
                limit.list_result(
                    &list,
                    now,
                    amount,
                    granted.map_or(DrawOutcome::Denied, DrawOutcome::Granted),
                )
            }
            Op::Peek(amount) => limit.peek_list(&list, now, amount),
            Op::Refund(units) => {
                limit.refund_list(&mut list, units, permit);
                limit.expire_list(&mut list, now);
                limit.peek_list(&list, now, Amount::ZERO)
            }
            Op::Reset => {
                list = limit.new_list();
                limit.peek_list(&list, now, Amount::ZERO)
            }
        };
        if list.entries() > 0 {
            let value = TwinValue {
                limit: *limit,
                state: TwinState::List(list),
                prior: Default::default(),
                void_from: Micros::MAX,
                expires_ms: u64::MAX,
            };
            self.values.insert(name.to_vec(), value);
        }
        (outcome, undo)
    }

    /// The stored values: name, content, and expiry time, which is when it has drained or a little later.
    pub(crate) fn stored_values(&self) -> impl Iterator<Item = (&[u8], FakeValueKind, u64)> {
        self.values.iter().map(|(name, value)| (&name[..], value.encode(), value.expires_ms))
    }

    /// Describes the first difference from a server's values or expiry times. Returns `None` if there is none.
    pub(crate) fn difference(&mut self, fake: &FakeData) -> Option<String> {
        if self.values.keys().ne(fake.values.keys()) {
            let (ours, theirs): (Vec<_>, Vec<_>) =
                (self.values.keys().collect(), fake.values.keys().collect());
            return Some(format!("keys: the twin has {ours:?}, the server {theirs:?}"));
        }
        for ((name, value), stored) in self.values.iter_mut().zip(fake.values.values()) {
            let expires_ms = stored.expires_ms.expect("every key has a time to live");
            let data = match &value.state {
                TwinState::State(_) => value.encode(),
                TwinState::List(list) => {
                    // A list may outlive its entries a little, so take over the expiry time of the server.
                    let drained = drained_ms(&value.limit, list, fake.now_micros);
                    if expires_ms < drained {
                        return Some(format!("{name:?} expires at {expires_ms}, but drains at {drained}"));
                    }
                    value.expires_ms = expires_ms;
                    value.encode()
                }
            };
            if stored.data != data || expires_ms != value.expires_ms {
                return Some(format!(
                    "{name:?} under {}\n  server {stored:?}\n  twin   {data:?} until {}",
                    value.limit, value.expires_ms
                ));
            }
        }
        None
    }
}

/// The state with all lent units counted as debt.
fn with_lent_as_debt(limit: &Limit, state: State, lent: LentUnits) -> State {
    let LimitParams::Bucket { unit, .. } = limit.params() else { return state };
    let [owed, at, _] = limit.state_parts(state);
    State::new(owed + u64::from(lent.total()) * unit, at)
}

/// When the list has drained, in milliseconds; 0 if it already has.
fn drained_ms(limit: &Limit, list: &ListState, now_micros: u64) -> u64 {
    let now = Micros::new(now_micros);
    let outcome = limit.peek_list(list, now, Amount::ZERO);
    match LimitStatus::new(limit, Amount::ZERO, outcome).reset().get() {
        0 => 0,
        reset => (now_micros + reset).div_ceil(1000),
    }
}

impl TwinValue {
    /// The state. Returns `None` for a list.
    fn leased_state(&self, now: Micros) -> Option<LeasedState> {
        match &self.state {
            TwinState::State(_) if !self.prior.0.is_empty() && self.void_from <= now => {
                Some(LeasedState::default())
            }
            TwinState::State(held) => Some(*held),
            TwinState::List(_) => None,
        }
    }

    /// The value as a server stores it, byte for byte.
    fn encode(&self) -> FakeValueKind {
        match &self.state {
            TwinState::State(held) => {
                let mut value = Vec::new();
                let (prior, seen) = self.prior.clone();
                StoredValue { limit: self.limit, leased: *held, void_from: self.void_from, prior }
                    .write(seen, &mut value);
                FakeValueKind::Text(value)
            }
            TwinState::List(ListState::Log(log)) => {
                let mut list = std::collections::VecDeque::new();
                let mut head = be_bytes(self.limit.quota().per().get(), 7);
                if let Some(earlier) = log.prior_retention() {
                    head.extend(be_bytes(earlier.per.get(), 7));
                    head.extend(be_bytes(u64::from(earlier.units), 4));
                    head.extend(be_bytes(earlier.until.get(), 7));
                }
                list.push_back(head);
                for (at, run) in log.runs() {
                    // The running count may start at any number; the test normalizes it to zero.
                    list.push_back(
                        [be_bytes(at.get(), 7), be_bytes(0, 7), be_bytes(u64::from(run), 4)].concat(),
                    );
                }
                FakeValueKind::List(list)
            }
            TwinState::List(ListState::Holders(holders)) => {
                let mut set = Vec::new();
                let mut used = 0;
                for (permit, units, expires) in holders.holds() {
                    used += u64::from(units);
                    let (permit, expiry, units) =
                        (permit.0.to_be_bytes(), be_bytes(expires.get(), 7), be_bytes(u64::from(units), 4));
                    let mut number = 0_u8;
                    let (by_expiry, by_permit) = loop {
                        let by_expiry = [b"L", &expiry[..], &permit, &units, &[number]].concat();
                        let by_permit = [b"P", &permit[..], &[number], &expiry, &units].concat();
                        if !set.contains(&(0, by_expiry.clone())) {
                            break (by_expiry, by_permit);
                        }
                        number += 1;
                    };
                    set.extend([(0, by_expiry), (0, by_permit)]);
                }
                set.push((used, b"u".to_vec()));
                set.sort();
                FakeValueKind::Sorted(set)
            }
        }
    }
}

fn be_bytes(number: u64, width: usize) -> Vec<u8> {
    number.to_be_bytes()[8 - width..].to_vec()
}

//! The algorithms themselves around one state: the smallest possible store.

use crate::engine::{EngineReply, KeyEngine};
use ratekeeper_core::{
    Amount, DrawOutcome, DrawResult, LeasedState, Limit, LimitStatus, ListState, Micros, Op, PermitId,
    PriorStates, State,
};

/// One key's state and the limit that wrote it, under the same contract as a real store.
#[derive(Clone, Debug, Default)]
pub struct SingleKeyStore {
    state: Option<(Limit, Option<State>)>,
    prior: PriorStates,
    list: Option<(Limit, ListState)>,
}

impl SingleKeyStore {
    /// The state, or `None` if nothing was taken or the algorithm keeps a list instead.
    pub fn state(&self) -> Option<State> {
        self.state.and_then(|(_, state)| state)
    }

    fn apply_to_state(&mut self, now: Micros, limit: &Limit, op: Op) -> LimitStatus {
        let held = |state| LeasedState { state, ..LeasedState::default() };
        let state = match self.state {
            Some((before, state)) if before != *limit => {
                limit.adopt_with_prior(held(state), &before, &mut self.prior, now).state
            }
            known => known.and_then(|(_, state)| state),
        };
        let state = limit.rebase(held(state), now).map_or(state, |rebased| rebased.state);
        self.state = Some((*limit, state));
        let peek = |state, amount, outcome| {
            let step = limit.step(state, now, Amount::ZERO);
            LimitStatus::new(limit, amount, DrawResult::from_state(outcome, now, step.state))
        };
        match op {
            Op::Take(amount) => {
                let step = limit.step(state, now, amount);
                if step.needs_write {
                    self.state = Some((*limit, Some(step.state)));
                }
                limit.status(step, now, amount)
            }
            Op::Peek(amount) => match limit.step(state, now, amount).granted {
                Some(_) => peek(state, amount, DrawOutcome::WouldGrant),
                None => peek(state, amount, DrawOutcome::Denied),
            },
            Op::Refund(units) => {
                let state = state.map(|state| limit.refund(state, now, units));
                self.state = Some((*limit, state));
                peek(state, Amount::ZERO, DrawOutcome::WouldGrant)
            }
            Op::Reset => {
                *self = SingleKeyStore::default();
                peek(None, Amount::ZERO, DrawOutcome::WouldGrant)
            }
        }
    }

    fn apply_to_list(&mut self, now: Micros, limit: &Limit, op: Op, permit: PermitId) -> LimitStatus {
        let mut roll = match self.list.take() {
            Some((before, mut roll)) => {
                limit.adopt_list(&mut roll, &before, now);
                roll
            }
            None => limit.new_list(),
        };
        limit.expire_list(&mut roll, now);
        let (amount, outcome) = match op {
            Op::Take(amount) => {
                let granted = limit.step_list(&mut roll, now, amount, permit);
                (
                    amount,
                    limit.list_result(
                        &roll,
                        now,
                        amount,
                        granted.map_or(DrawOutcome::Denied, DrawOutcome::Granted),
                    ),
                )
            }
            Op::Peek(amount) => (amount, limit.peek_list(&roll, now, amount)),
            Op::Refund(units) => {
                limit.refund_list(&mut roll, units, permit);
                limit.expire_list(&mut roll, now);
                (Amount::ZERO, limit.peek_list(&roll, now, Amount::ZERO))
            }
            Op::Reset => {
                roll = limit.new_list();
                (Amount::ZERO, limit.peek_list(&roll, now, Amount::ZERO))
            }
        };
        self.list = Some((*limit, roll));
        LimitStatus::new(limit, amount, outcome)
    }
}

impl KeyEngine for SingleKeyStore {
    fn apply(&mut self, now: Micros, limit: &Limit, op: Op, permit: PermitId) -> EngineReply {
        let status = if limit.uses_list_state() {
            self.apply_to_list(now, limit, op, permit)
        } else {
            self.apply_to_state(now, limit, op)
        };
        EngineReply::from(&status)
    }
}

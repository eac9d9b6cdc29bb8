//! The laws themselves around one state: the smallest store there is.

use crate::engine::EngineReply;
use crate::key_engine::KeyEngine;
use ratekeeper_core::{
    Amount, DrawOutcome, DrawResult, LeasedState, Limit, LimitStatus, ListState, Micros, Op, PermitId,
    PriorStates, State,
};

/// One key's state and the limit that wrote it. It follows the same contract as a real store.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    state: Option<(Limit, Option<State>)>,
    former: PriorStates,
    roll: Option<(Limit, ListState)>,
}

impl Cell {
    /// The state, if the law keeps one.
    pub fn state(&self) -> Option<State> {
        self.state.and_then(|(_, state)| state)
    }

    fn act_on_state(&mut self, now: Micros, limit: &Limit, act: Op) -> LimitStatus {
        let held = |state| LeasedState { state, ..LeasedState::default() };
        let state = match self.state {
            Some((before, state)) if before != *limit => {
                limit.take_over(held(state), &before, &mut self.former, now).state
            }
            known => known.and_then(|(_, state)| state),
        };
        let state = limit.rebase(held(state), now).map_or(state, |rebased| rebased.state);
        self.state = Some((*limit, state));
        let look = |state, ask, answer| {
            let step = limit.step(state, now, Amount::PEEK);
            LimitStatus::new(limit, ask, DrawResult::of_state(answer, now, step.state))
        };
        match act {
            Op::Take(ask) => {
                let step = limit.step(state, now, ask);
                if step.changed {
                    self.state = Some((*limit, Some(step.state)));
                }
                limit.read(step, now, ask)
            }
            Op::Look(ask) => match limit.step(state, now, ask).granted {
                Some(_) => look(state, ask, DrawOutcome::Spared),
                None => look(state, ask, DrawOutcome::Refused),
            },
            Op::Give(units) => {
                let state = state.map(|state| limit.give(state, now, units));
                self.state = Some((*limit, state));
                look(state, Amount::PEEK, DrawOutcome::Spared)
            }
            Op::Clear => {
                *self = Cell::default();
                look(None, Amount::PEEK, DrawOutcome::Spared)
            }
        }
    }

    fn act_on_roll(&mut self, now: Micros, limit: &Limit, act: Op, permit: PermitId) -> LimitStatus {
        let mut roll = match self.roll.take() {
            Some((before, mut roll)) => {
                limit.take_over_roll(&mut roll, &before, now);
                roll
            }
            None => limit.new_roll(),
        };
        limit.drain_roll(&mut roll, now);
        let (ask, outcome) = match act {
            Op::Take(ask) => {
                let granted = limit.step_roll(&mut roll, now, ask, permit);
                (
                    ask,
                    limit.read_roll(
                        &roll,
                        now,
                        ask,
                        granted.map_or(DrawOutcome::Refused, DrawOutcome::Granted),
                    ),
                )
            }
            Op::Look(ask) => (ask, limit.look_roll(&roll, now, ask)),
            Op::Give(units) => {
                limit.give_roll(&mut roll, units, permit);
                limit.drain_roll(&mut roll, now);
                (Amount::PEEK, limit.look_roll(&roll, now, Amount::PEEK))
            }
            Op::Clear => {
                roll = limit.new_roll();
                (Amount::PEEK, limit.look_roll(&roll, now, Amount::PEEK))
            }
        };
        self.roll = Some((*limit, roll));
        LimitStatus::new(limit, ask, outcome)
    }
}

impl KeyEngine for Cell {
    fn act(&mut self, now: Micros, limit: &Limit, act: Op, permit: PermitId) -> EngineReply {
        let reading = match limit.keeps_roll() {
            true => self.act_on_roll(now, limit, act, permit),
            false => self.act_on_state(now, limit, act),
        };
        EngineReply::from(&reading)
    }
}

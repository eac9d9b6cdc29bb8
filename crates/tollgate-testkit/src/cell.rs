//! The laws themselves around one state: the smallest store there is.

use crate::account::Account;
use crate::engine::Reply;
use tollgate_core::{Act, Answer, Ask, Limit, Micros, Outcome, PermitId, Reading, Roll, State};

/// One key's state and the limit that wrote it. It follows the same contract as a real store.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    state: Option<(Limit, State)>,
    roll: Option<(Limit, Roll)>,
}

impl Cell {
    /// The state, if the law keeps one.
    pub fn state(&self) -> Option<State> {
        self.state.map(|(_, state)| state)
    }

    fn act_on_state(&mut self, now: Micros, limit: &Limit, act: Act) -> Reading {
        let state = self.state.and_then(|(before, state)| match before == *limit {
            true => Some(state),
            false => limit.adopt(state, &before, now),
        });
        self.state = state.map(|state| (*limit, state));
        let look = |state, ask, answer| {
            let step = limit.step(state, now, Ask::PEEK);
            Reading::new(limit, ask, Outcome::of_state(answer, now, step.state))
        };
        match act {
            Act::Take(ask) => {
                let step = limit.step(state, now, ask);
                if step.changed {
                    self.state = Some((*limit, step.state));
                }
                limit.read(step, now, ask)
            }
            Act::Look(ask) => match limit.step(state, now, ask).granted {
                Some(_) => look(state, ask, Answer::Spared),
                None => look(state, ask, Answer::Refused),
            },
            Act::Give(units) => {
                let state = state.map(|state| limit.give(state, now, units));
                self.state = state.map(|state| (*limit, state));
                look(state, Ask::PEEK, Answer::Spared)
            }
            Act::Clear => {
                self.state = None;
                look(None, Ask::PEEK, Answer::Spared)
            }
        }
    }

    fn act_on_roll(&mut self, now: Micros, limit: &Limit, act: Act, permit: PermitId) -> Reading {
        let mut roll = match self.roll.take() {
            Some((before, mut roll)) => {
                before.drain_roll(&mut roll, now);
                roll
            }
            None => limit.new_roll(),
        };
        limit.drain_roll(&mut roll, now);
        let (ask, outcome) = match act {
            Act::Take(ask) => {
                let granted = limit.step_roll(&mut roll, now, ask, permit);
                (ask, limit.read_roll(&roll, now, ask, granted.map_or(Answer::Refused, Answer::Granted)))
            }
            Act::Look(ask) => (ask, limit.look_roll(&roll, now, ask)),
            Act::Give(units) => {
                limit.give_roll(&mut roll, units, permit);
                (Ask::PEEK, limit.look_roll(&roll, now, Ask::PEEK))
            }
            Act::Clear => {
                roll = limit.new_roll();
                (Ask::PEEK, limit.look_roll(&roll, now, Ask::PEEK))
            }
        };
        self.roll = Some((*limit, roll));
        Reading::new(limit, ask, outcome)
    }
}

impl Account for Cell {
    fn act(&mut self, now: Micros, limit: &Limit, act: Act, permit: PermitId) -> Reply {
        let reading = match limit.keeps_roll() {
            true => self.act_on_roll(now, limit, act, permit),
            false => self.act_on_state(now, limit, act),
        };
        Reply::from(&reading)
    }
}

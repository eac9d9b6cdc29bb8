//! The laws themselves around one state: the smallest store there is.

use crate::account::Account;
use crate::engine::Reply;
use ratekeeper_core::{
    Act, Answer, Ask, Former, Held, Limit, Micros, Outcome, PermitId, Reading, Roll, State,
};

/// One key's state and the limit that wrote it. It follows the same contract as a real store.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    state: Option<(Limit, Option<State>)>,
    former: Former,
    roll: Option<(Limit, Roll)>,
}

impl Cell {
    /// The state, if the law keeps one.
    pub fn state(&self) -> Option<State> {
        self.state.and_then(|(_, state)| state)
    }

    fn act_on_state(&mut self, now: Micros, limit: &Limit, act: Act) -> Reading {
        let held = |state| Held { state, ..Held::default() };
        let state = match self.state {
            Some((before, state)) if before != *limit => {
                limit.take_over(held(state), &before, &mut self.former, now).state
            }
            known => known.and_then(|(_, state)| state),
        };
        let state = limit.rebase(held(state), now).map_or(state, |rebased| rebased.state);
        self.state = Some((*limit, state));
        let look = |state, ask, answer| {
            let step = limit.step(state, now, Ask::PEEK);
            Reading::new(limit, ask, Outcome::of_state(answer, now, step.state))
        };
        match act {
            Act::Take(ask) => {
                let step = limit.step(state, now, ask);
                if step.changed {
                    self.state = Some((*limit, Some(step.state)));
                }
                limit.read(step, now, ask)
            }
            Act::Look(ask) => match limit.step(state, now, ask).granted {
                Some(_) => look(state, ask, Answer::Spared),
                None => look(state, ask, Answer::Refused),
            },
            Act::Give(units) => {
                let state = state.map(|state| limit.give(state, now, units));
                self.state = Some((*limit, state));
                look(state, Ask::PEEK, Answer::Spared)
            }
            Act::Clear => {
                *self = Cell::default();
                look(None, Ask::PEEK, Answer::Spared)
            }
        }
    }

    fn act_on_roll(&mut self, now: Micros, limit: &Limit, act: Act, permit: PermitId) -> Reading {
        let mut roll = match self.roll.take() {
            Some((before, mut roll)) => {
                limit.take_over_roll(&mut roll, &before, now);
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
                limit.drain_roll(&mut roll, now);
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

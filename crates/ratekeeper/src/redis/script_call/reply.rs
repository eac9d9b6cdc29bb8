//! What the script answered.

use super::renewals::RenewalResult;
use super::value::Codec;
use super::{CallGroup, ScriptCall};
use ratekeeper_core::{
    Amount, Draw, DrawOutcome, DrawResult, Forecast, Limit, Micros, Op, Retry, Span, State,
};

/// What the script answered to a parcel: what became of each of its groups, in order.
#[derive(Debug)]
pub(crate) struct ScriptReply<'a> {
    parcel: &'a ScriptCall,
    now: Micros,
    rest: &'a [u8],
    groups: usize,
}

/// What became of a group.
#[derive(Debug)]
pub(crate) enum GroupResult<'a> {
    /// It was decided.
    Decided(DecidedGroup<'a>),
    /// It was left alone, because something was in its way that Rust must look at first.
    Again(Readopt),
    /// It was left alone, because what is stored under one of its keys can't be read, or two limits of different quotas
    /// claim the same key.
    Broken,
    /// It was left alone, because the server does not take what would have to be written for it, and said so with this
    /// error code.
    Unwritten(&'a str),
}

/// A reply that the script can't have given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store's answer can't be read: another program may have loaded a script under the same name")]
pub(crate) struct ScriptReplyError;

impl<'a> ScriptReply<'a> {
    pub(super) fn new(parcel: &'a ScriptCall, bytes: &'a [u8]) -> Result<ScriptReply<'a>, ScriptReplyError> {
        let mut rest = bytes;
        let now = Micros::new(read_number(&mut rest, 7)?);
        Ok(ScriptReply { parcel, now, rest, groups: 0 })
    }

    /// The store's time when it decided.
    pub(crate) fn now(&self) -> Micros {
        self.now
    }

    /// What became of each order, in order, to be read once. What became of the groups must be read before, and is
    /// passed over if it was not.
    pub(crate) fn loans(&mut self) -> impl Iterator<Item = Result<RenewalResult, ScriptReplyError>> {
        self.by_ref().for_each(drop);
        self.parcel.orders.of().iter().map(|place| {
            let lending = RenewalResult::read(&mut self.rest, self.parcel.limits.codec(*place), self.now);
            if lending.is_err() {
                self.rest = &[];
            }
            lending
        })
    }

    fn read_fate(&mut self, group: &'a CallGroup) -> Result<GroupResult<'a>, ScriptReplyError> {
        match self.rest.first() {
            Some(&code::STUCK) => self.read_stuck(),
            Some(&code::UNWRITTEN) => self.read_unwritten(),
            Some(&code::MANY) => {
                self.rest = &self.rest[1..];
                let granted = read_units(&mut self.rest)?;
                self.read_decided(group, granted.min(group.times))
            }
            Some(_) => self.read_decided(group, 1),
            None => Err(ScriptReplyError),
        }
    }

    fn read_decided(
        &mut self,
        group: &'a CallGroup,
        granted: u32,
    ) -> Result<GroupResult<'a>, ScriptReplyError> {
        let parcel = self.parcel;
        let mut places = parcel.drawn_from[group.draws.clone()].iter();
        let mut read = |rest: &mut &'a [u8]| {
            places
                .next()
                .map(|place| ScriptDraw::read(rest, parcel.limits.codec(*place), self.now))
                .transpose()
        };
        let first = read(&mut self.rest)?.ok_or(ScriptReplyError)?;
        let others = self.rest;
        while read(&mut self.rest)?.is_some() {}
        Ok(GroupResult::Decided(DecidedGroup { parcel, group, now: self.now, granted, first, others }))
    }

    fn read_unwritten(&mut self) -> Result<GroupResult<'a>, ScriptReplyError> {
        let length = usize::from(self.rest.get(1).copied().ok_or(ScriptReplyError)?);
        self.rest = &self.rest[2..];
        let code = self.rest.split_off(..length).ok_or(ScriptReplyError)?;
        std::str::from_utf8(code).map(GroupResult::Unwritten).map_err(|_| ScriptReplyError)
    }

    fn read_stuck(&mut self) -> Result<GroupResult<'a>, ScriptReplyError> {
        let mut again = Readopt { now: self.now, found: Vec::new() };
        let mut is_broken = false;
        let count = self.rest.get(1).copied().ok_or(ScriptReplyError)?;
        self.rest = &self.rest[2..];
        for _ in 0..count {
            let (kind, draw) = (read_byte(&mut self.rest)?, read_byte(&mut self.rest)?);
            match kind {
                code::STALE => {
                    let length = usize::from(read_byte(&mut self.rest)?);
                    let found = self.rest.split_off(..length).ok_or(ScriptReplyError)?;
                    again.found.push((usize::from(draw), found.into()));
                }
                code::OUTSIDE => {}
                code::BROKEN => is_broken = true,
                _ => return Err(ScriptReplyError),
            }
        }
        Ok(if is_broken { GroupResult::Broken } else { GroupResult::Again(again) })
    }
}

impl<'a> Iterator for ScriptReply<'a> {
    type Item = Result<GroupResult<'a>, ScriptReplyError>;

    fn next(&mut self) -> Option<Result<GroupResult<'a>, ScriptReplyError>> {
        let group = self.parcel.groups.get(self.groups)?;
        self.groups += 1;
        let fate = self.read_fate(group);
        if fate.is_err() {
            // Where one answer can't be read, nobody knows where the next begins.
            self.rest = &[];
        }
        Some(fate)
    }
}

/// A group that must be sent once more. Nothing was taken for it.
///
/// Either another limit wrote one of its states: what this limit makes of it is worked out here and sent along. Or the
/// store's clock is in no window that was sent along: the parcel that it is added to must be
/// [started](ScriptCall::start) by that clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Readopt {
    now: Micros,
    found: Vec<(usize, Box<[u8]>)>,
}

impl Readopt {
    /// The store's time when it was left alone.
    pub(crate) fn now(&self) -> Micros {
        self.now
    }

    /// What was found under the key of one of its draws.
    pub(super) fn found(&self, draw: usize) -> Option<&[u8]> {
        self.found.iter().find(|(index, _)| *index == draw).map(|(_, found)| &**found)
    }
}

/// A group that was decided.
#[derive(Debug)]
pub(crate) struct DecidedGroup<'a> {
    parcel: &'a ScriptCall,
    group: &'a CallGroup,
    now: Micros,
    granted: u32,
    /// What was said of its first draw; most groups have no other.
    first: ScriptDraw,
    /// The same of the others, which has been read once and so can be read again.
    others: &'a [u8],
}

impl DecidedGroup<'_> {
    /// How many requests it was for.
    #[cfg(test)]
    pub(crate) fn times(&self) -> u32 {
        self.group.times
    }

    /// Notes in a request's draws what was decided. Where the group stood for several, `request` counts them from 0, in
    /// the order in which they are served.
    pub(crate) fn settle(&self, request: u32, draws: &mut [Draw]) {
        let mut rest = self.others;
        for (index, (draw, place)) in
            draws.iter_mut().zip(&self.parcel.drawn_from[self.group.draws.clone()]).enumerate()
        {
            let said = match index {
                0 => Ok(self.first),
                _ => ScriptDraw::read(&mut rest, self.parcel.limits.codec(*place), self.now),
            };
            let Ok(said) = said else { return };
            draw.settle(|limit, act, _| match self.group.times {
                1 => said.outcome(limit, act.ask(), self.now),
                _ => said.outcome_of(request, self.granted, limit, act, self.now),
            });
        }
    }
}

// What the script's answers begin with.
mod code {
    pub(super) const ANSWER: u8 = 3;
    pub(super) const GRANTED: u8 = 0;
    pub(super) const SPARED: u8 = 1;
    pub(super) const ABSENT: u8 = 4;
    pub(super) const COUNTED: u8 = 8;
    pub(super) const STUCK: u8 = 16;
    pub(super) const MANY: u8 = 32;
    pub(super) const UNWRITTEN: u8 = 64;
    pub(super) const STALE: u8 = 0;
    pub(super) const OUTSIDE: u8 = 1;
    pub(super) const BROKEN: u8 = 2;
}

/// What the script said of one draw.
#[derive(Clone, Copy, Debug)]
struct ScriptDraw {
    answer: u8,
    /// The units granted, where they are not those asked for; the requests granted, where there were several.
    count: Option<u32>,
    memory: ScriptState,
}

#[derive(Clone, Copy, Debug)]
enum ScriptState {
    State(Option<State>),
    Roll { remaining: u32, reset: Span, wait: Retry },
}

impl ScriptDraw {
    fn read(rest: &mut &[u8], codec: &Codec, now: Micros) -> Result<ScriptDraw, ScriptReplyError> {
        let code = read_byte(rest)?;
        if code >= code::STUCK {
            return Err(ScriptReplyError);
        }
        let count = if code & code::COUNTED != 0 { Some(read_units(rest)?) } else { None };
        let memory = match (codec.limit().keeps_roll(), code & code::ABSENT != 0) {
            (false, true) => ScriptState::State(None),
            (false, false) => {
                let value = rest.split_off(..codec.length()).ok_or(ScriptReplyError)?;
                ScriptState::State(Some(codec.read(value, now).ok_or(ScriptReplyError)?))
            }
            (true, _) => {
                let (remaining, reset) = (read_units(rest)?, Span::micros(read_number(rest, 7)?));
                let wait = match read_number(rest, 7)? {
                    wait if wait > Span::MAX.get() => Retry::Never,
                    wait => Retry::After(Span::micros(wait)),
                };
                ScriptState::Roll { remaining, reset, wait }
            }
        };
        Ok(ScriptDraw { answer: code & code::ANSWER, count, memory })
    }

    /// What a request was told that was the only one of its kind.
    fn outcome(&self, limit: &Limit, ask: Amount, now: Micros) -> DrawResult {
        let answer = match self.answer {
            code::GRANTED => DrawOutcome::Granted(self.count.unwrap_or(ask.at_least())),
            code::SPARED => DrawOutcome::Spared,
            _ => DrawOutcome::Refused,
        };
        match self.memory {
            ScriptState::State(state) => at_rest(limit, state, answer, now),
            ScriptState::Roll { remaining, reset, wait } => told(answer, now, remaining, reset, wait),
        }
    }

    /// What one of several requests was told. Those before the last that was granted saw less taken.
    fn outcome_of(&self, request: u32, granted: u32, limit: &Limit, act: Op, now: Micros) -> DrawResult {
        let (units, served) = (act.ask().at_least(), self.count.unwrap_or(0).min(granted));
        let taken_since = served.saturating_sub(request.saturating_add(1)).saturating_mul(units);
        let is_granted = request < served;
        match self.memory {
            ScriptState::State(state) if is_granted => {
                let before = state.map(|state| limit.give(state, now, taken_since));
                at_rest(limit, before, DrawOutcome::Granted(units), now)
            }
            ScriptState::State(state) => {
                let fits = limit.step(state, now, act.ask()).granted.is_some();
                at_rest(limit, state, if fits { DrawOutcome::Spared } else { DrawOutcome::Refused }, now)
            }
            ScriptState::Roll { remaining, reset, wait } => {
                let answer = match (is_granted, units <= remaining) {
                    (true, _) => DrawOutcome::Granted(units),
                    (false, true) => DrawOutcome::Spared,
                    (false, false) => DrawOutcome::Refused,
                };
                let taken_since = if is_granted { taken_since } else { 0 };
                told(answer, now, remaining.saturating_add(taken_since), reset, wait)
            }
        }
    }
}

/// An answer and the state as it stands now: the store may have told of it as it was written.
fn at_rest(limit: &Limit, state: Option<State>, answer: DrawOutcome, now: Micros) -> DrawResult {
    DrawResult::of_state(answer, now, limit.step(state, now, Amount::PEEK).state)
}

fn told(answer: DrawOutcome, now: Micros, remaining: u32, reset: Span, wait: Retry) -> DrawResult {
    let retry = (answer == DrawOutcome::Refused).then_some(wait);
    DrawResult::of_outlook(answer, now, Forecast { remaining, reset, delay: Span::ZERO, retry })
}

pub(super) fn read_byte(rest: &mut &[u8]) -> Result<u8, ScriptReplyError> {
    rest.split_off_first().copied().ok_or(ScriptReplyError)
}

pub(super) fn read_units(rest: &mut &[u8]) -> Result<u32, ScriptReplyError> {
    u32::try_from(read_number(rest, 4)?).map_err(|_| ScriptReplyError)
}

pub(super) fn read_number(rest: &mut &[u8], bytes: usize) -> Result<u64, ScriptReplyError> {
    let bytes = rest.split_off(..bytes).ok_or(ScriptReplyError)?;
    Ok(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

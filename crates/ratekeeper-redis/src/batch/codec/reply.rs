//! Decoding of the script's reply.

use super::reader::{ScriptReplyError, read_byte, read_number, read_units};
use super::renewals::RenewalResult;
use super::value::Codec;
use super::{CallGroup, ScriptCall};
use ratekeeper_core::{
    Amount, Draw, DrawOutcome, DrawResult, Forecast, Limit, Micros, Op, Retry, Span, State,
};

/// The script's reply to a call: an iterator over the results of its groups, in order.
#[derive(Debug)]
pub(crate) struct ScriptReply<'a> {
    call: &'a ScriptCall,
    now: Micros,
    rest: &'a [u8],
    next_group: usize,
}

/// The result of a group.
#[derive(Debug)]
pub(crate) enum GroupResult<'a> {
    /// It was decided.
    Decided(DecidedGroup<'a>),
    /// It was not decided, because a state has to be converted in Rust first, or because the store's clock is
    /// outside the calendar windows that were sent along.
    Retry(Readopt),
    /// It was not decided, because the value under one of its keys is unreadable, or because limits of different
    /// quotas use the same key.
    Broken,
    /// It was not decided, because the server rejected the write with this error code.
    Unwritten(&'a str),
}

impl<'a> ScriptReply<'a> {
    pub(crate) fn new(call: &'a ScriptCall, bytes: &'a [u8]) -> Result<ScriptReply<'a>, ScriptReplyError> {
        let mut rest = bytes;
        let now = Micros::new(read_number(&mut rest, 7)?);
        Ok(ScriptReply { call, now, rest, next_group: 0 })
    }

    /// The store's time when it decided.
    pub(crate) fn now(&self) -> Micros {
        self.now
    }

    /// The results of the renewals, in order. They can be read once. They follow the results of the groups, which
    /// are skipped if they were not read.
    pub(crate) fn renewal_results(
        &mut self,
    ) -> impl Iterator<Item = Result<RenewalResult, ScriptReplyError>> {
        self.by_ref().for_each(drop);
        self.call.renewals.limit_indices().iter().map(|limit_index| {
            let result = RenewalResult::read(&mut self.rest, self.call.limits.codec(*limit_index), self.now);
            if result.is_err() {
                self.rest = &[];
            }
            result
        })
    }

    fn read_group(&mut self, group: &'a CallGroup) -> Result<GroupResult<'a>, ScriptReplyError> {
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
        let call = self.call;
        let mut limit_indices = call.draw_limits[group.draws.clone()].iter();
        let mut read = |rest: &mut &'a [u8]| {
            limit_indices
                .next()
                .map(|limit_index| ScriptDraw::read(rest, call.limits.codec(*limit_index), self.now))
                .transpose()
        };
        let first = read(&mut self.rest)?.ok_or(ScriptReplyError)?;
        let others = self.rest;
        while read(&mut self.rest)?.is_some() {}
        Ok(GroupResult::Decided(DecidedGroup { call, group, now: self.now, granted, first, others }))
    }

    fn read_unwritten(&mut self) -> Result<GroupResult<'a>, ScriptReplyError> {
        let length = usize::from(self.rest.get(1).copied().ok_or(ScriptReplyError)?);
        self.rest = &self.rest[2..];
        let code = self.rest.split_off(..length).ok_or(ScriptReplyError)?;
        std::str::from_utf8(code).map(GroupResult::Unwritten).map_err(|_| ScriptReplyError)
    }

    fn read_stuck(&mut self) -> Result<GroupResult<'a>, ScriptReplyError> {
        let mut retry = Readopt { now: self.now, found: Vec::new() };
        let mut is_broken = false;
        let count = self.rest.get(1).copied().ok_or(ScriptReplyError)?;
        self.rest = &self.rest[2..];
        for _ in 0..count {
            let (kind, draw) = (read_byte(&mut self.rest)?, read_byte(&mut self.rest)?);
            match kind {
                code::STALE => {
                    let length = usize::from(read_byte(&mut self.rest)?);
                    let found = self.rest.split_off(..length).ok_or(ScriptReplyError)?;
                    retry.found.push((usize::from(draw), found.into()));
                }
                code::OUTSIDE => {}
                code::BROKEN => is_broken = true,
                _ => return Err(ScriptReplyError),
            }
        }
        Ok(if is_broken { GroupResult::Broken } else { GroupResult::Retry(retry) })
    }
}

impl<'a> Iterator for ScriptReply<'a> {
    type Item = Result<GroupResult<'a>, ScriptReplyError>;

    fn next(&mut self) -> Option<Result<GroupResult<'a>, ScriptReplyError>> {
        let group = self.call.groups.get(self.next_group)?;
        self.next_group += 1;
        let result = self.read_group(group);
        if result.is_err() {
            // Where one result is unreadable, the start of the next is unknown.
            self.rest = &[];
        }
        Some(result)
    }
}

/// Data for sending a group again. Nothing was taken for it.
///
/// Either another limit wrote one of its states: Rust converts it, and sends the result along. Or the store's
/// clock is in no calendar window that was sent along: the call that the group is added to must be
/// [reset](ScriptCall::reset) with that clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Readopt {
    now: Micros,
    found: Vec<(usize, Box<[u8]>)>,
}

impl Readopt {
    /// The store's time when the group was not decided.
    pub(crate) fn now(&self) -> Micros {
        self.now
    }

    /// The value that was found under the key of a draw.
    pub(crate) fn found(&self, draw: usize) -> Option<&[u8]> {
        self.found.iter().find(|(index, _)| *index == draw).map(|(_, found)| &**found)
    }
}

/// A group that was decided.
#[derive(Debug)]
pub(crate) struct DecidedGroup<'a> {
    call: &'a ScriptCall,
    group: &'a CallGroup,
    now: Micros,
    granted: u32,
    /// The result of its first draw; most groups have no other.
    first: ScriptDraw,
    /// The encoded results of the other draws. They were decoded once, so they are valid.
    others: &'a [u8],
}

impl DecidedGroup<'_> {
    /// The number of requests of the group.
    #[cfg(test)]
    pub(crate) fn times(&self) -> u32 {
        self.group.times
    }

    /// Records the results in the draws of a request. If the group was coalesced, `request` is the index of the
    /// request in order of arrival, from 0.
    pub(crate) fn apply(&self, request: u32, draws: &mut [Draw]) {
        let mut rest = self.others;
        for (index, (draw, limit_index)) in
            draws.iter_mut().zip(&self.call.draw_limits[self.group.draws.clone()]).enumerate()
        {
            let script_draw = match index {
                0 => Ok(self.first),
                _ => ScriptDraw::read(&mut rest, self.call.limits.codec(*limit_index), self.now),
            };
            let Ok(script_draw) = script_draw else { return };
            draw.decide_with(|limit, op, _| match self.group.times {
                1 => script_draw.result(limit, op.amount(), self.now),
                _ => script_draw.request_result(request, self.granted, limit, op, self.now),
            });
        }
    }
}

// Codes of the script's results.
mod code {
    pub(crate) const ANSWER: u8 = 3;
    pub(crate) const GRANTED: u8 = 0;
    pub(crate) const SPARED: u8 = 1;
    pub(crate) const ABSENT: u8 = 4;
    pub(crate) const COUNTED: u8 = 8;
    pub(crate) const STUCK: u8 = 16;
    pub(crate) const MANY: u8 = 32;
    pub(crate) const UNWRITTEN: u8 = 64;
    pub(crate) const STALE: u8 = 0;
    pub(crate) const OUTSIDE: u8 = 1;
    pub(crate) const BROKEN: u8 = 2;
}

/// The script's result for one draw.
#[derive(Clone, Copy, Debug)]
struct ScriptDraw {
    /// [`code::GRANTED`], [`code::SPARED`] or denied.
    outcome_code: u8,
    /// The granted units, if they differ from those requested. For a coalesced group, the number of granted
    /// requests.
    count: Option<u32>,
    state: ScriptState,
}

/// What the script sends about a key's state.
#[derive(Clone, Copy, Debug)]
enum ScriptState {
    State(Option<State>),
    List { remaining: u32, reset: Span, wait: Retry },
}

impl ScriptDraw {
    fn read(rest: &mut &[u8], codec: &Codec, now: Micros) -> Result<ScriptDraw, ScriptReplyError> {
        let code = read_byte(rest)?;
        if code >= code::STUCK {
            return Err(ScriptReplyError);
        }
        let count = if code & code::COUNTED != 0 { Some(read_units(rest)?) } else { None };
        let state = match (codec.limit().uses_list_state(), code & code::ABSENT != 0) {
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
                ScriptState::List { remaining, reset, wait }
            }
        };
        Ok(ScriptDraw { outcome_code: code & code::ANSWER, count, state })
    }

    /// The result for a request that was not coalesced.
    fn result(&self, limit: &Limit, amount: Amount, now: Micros) -> DrawResult {
        let outcome = match self.outcome_code {
            code::GRANTED => DrawOutcome::Granted(self.count.unwrap_or(amount.at_least())),
            code::SPARED => DrawOutcome::WouldGrant,
            _ => DrawOutcome::Denied,
        };
        match self.state {
            ScriptState::State(state) => state_result(limit, state, outcome, now),
            ScriptState::List { remaining, reset, wait } => list_result(outcome, now, remaining, reset, wait),
        }
    }

    /// The result for one of several coalesced requests. For those before the last granted one, fewer units were
    /// taken.
    fn request_result(&self, request: u32, granted: u32, limit: &Limit, op: Op, now: Micros) -> DrawResult {
        let (units, served) = (op.amount().at_least(), self.count.unwrap_or(0).min(granted));
        let taken_since = served.saturating_sub(request.saturating_add(1)).saturating_mul(units);
        let is_granted = request < served;
        match self.state {
            ScriptState::State(state) if is_granted => {
                let before = state.map(|state| limit.refund(state, now, taken_since));
                state_result(limit, before, DrawOutcome::Granted(units), now)
            }
            ScriptState::State(state) => {
                let fits = limit.step(state, now, op.amount()).granted.is_some();
                state_result(
                    limit,
                    state,
                    if fits { DrawOutcome::WouldGrant } else { DrawOutcome::Denied },
                    now,
                )
            }
            ScriptState::List { remaining, reset, wait } => {
                let outcome = match (is_granted, units <= remaining) {
                    (true, _) => DrawOutcome::Granted(units),
                    (false, true) => DrawOutcome::WouldGrant,
                    (false, false) => DrawOutcome::Denied,
                };
                let taken_since = if is_granted { taken_since } else { 0 };
                list_result(outcome, now, remaining.saturating_add(taken_since), reset, wait)
            }
        }
    }
}

/// A result with the state as of now: the script may have sent it as it was written.
fn state_result(limit: &Limit, state: Option<State>, outcome: DrawOutcome, now: Micros) -> DrawResult {
    DrawResult::from_state(outcome, now, limit.step(state, now, Amount::ZERO).state)
}

fn list_result(outcome: DrawOutcome, now: Micros, remaining: u32, reset: Span, wait: Retry) -> DrawResult {
    let retry = (outcome == DrawOutcome::Denied).then_some(wait);
    DrawResult::from_forecast(outcome, now, Forecast { remaining, reset, delay: Span::ZERO, retry })
}

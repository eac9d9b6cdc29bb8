//! Draws on their way to the store and back.
//!
//! A [`ScriptCall`] is filled with groups of draws and written as one call of the script (`draw.lua`), which decides them in
//! order, as if they had come one after the other, each all or nothing. The same parcel then reads the [`ScriptReply`]. It is
//! made to be kept: once warm, filling it allocates nothing.
//!
//! A limit's numbers travel once, however many draws are made from it, and so does a key's name. Whoever fills a parcel
//! bounds it: the server does nothing else while it decides one.
//!
//! Beside its groups a parcel carries *orders*: what this node says of units that it was lent, and wishes to be lent. What
//! is given back may be drawn by the groups of the same parcel, and what they draw comes before what is lent.

mod keys;
mod limits;
mod renewals;
mod reply;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use renewals::{GrantedLease, RenewalResult};
pub(crate) use reply::{GroupResult, Readopt, ScriptReply, ScriptReplyError};
pub(crate) use value::StoredValue;

use super::script;
use keys::CallKeys;
use limits::CallLimits;
use ratekeeper_core::{Draw, Draws, LeasedState, Limit, LimitParams, Micros, Op, Span};
use renewals::CallRenewals;
use std::ops::Range;

/// How a draw begins: flags, key, limit and units, in this order. What the flags announce follows.
mod flag {
    /// It is the last draw of its group. The lowest two bits are the act.
    pub(super) const LAST: u8 = 4;
    pub(super) const SHADOW: u8 = 8;
    /// The most units of use, and the longest wait worth having.
    pub(super) const RANGE: u8 = 16;
    /// The permit, of eight bytes.
    pub(super) const PERMIT: u8 = 32;
    /// What was found under the key, and what to take it for.
    pub(super) const ADOPTED: u8 = 64;
    /// How many requests of this kind there are.
    pub(super) const TIMES: u8 = 128;
}

/// Groups of draws that the store decides in one call.
#[derive(Debug, Default)]
pub(crate) struct ScriptCall {
    keys: CallKeys,
    limits: CallLimits,
    records: Vec<u8>,
    /// For each draw, where in `limits` its limit is.
    drawn_from: Vec<usize>,
    groups: Vec<CallGroup>,
    orders: CallRenewals,
    /// What an adopted state looks like, while it is being written.
    adopted: Vec<u8>,
}

/// One request's draws, or those of several requests that are all alike.
#[derive(Clone, Debug)]
struct CallGroup {
    draws: Range<usize>,
    times: u32,
}

impl ScriptCall {
    /// The most draws that one can carry.
    pub(crate) const MOST_DRAWS: usize = 8192;

    /// An empty one. It allocates when it is first filled.
    pub(crate) fn new() -> ScriptCall {
        ScriptCall::default()
    }

    /// Empties it and keeps its memory. `now` is about what the store's clock will say: where the calendar decides when
    /// a window ends, the ends around that time travel along.
    pub(crate) fn start(&mut self, now: Micros) {
        self.keys.clear();
        self.limits.start(now);
        self.records.clear();
        self.drawn_from.clear();
        self.groups.clear();
        self.orders.clear();
    }

    /// How many draws its groups have together.
    pub(crate) fn draw_count(&self) -> usize {
        self.drawn_from.len()
    }

    /// Whether several requests that make this very group may travel as one: it takes exact amounts, nobody's patience
    /// ends, no permits tell them apart, and all its keys differ.
    pub(crate) fn may_repeat(draws: &Draws, group: usize) -> bool {
        let group = draws.group(group);
        let is_exact = |draw: &Draw| match draw.act() {
            Op::Take(ask) => {
                let is_patient = !is_queue(draw.limit()) || ask.patience() == Span::MAX;
                ask.at_least() == ask.at_most() && is_patient
            }
            Op::Look(_) | Op::Give(_) | Op::Clear => false,
        };
        let meets = |one: &Draw, other: &Draw| {
            one.scope() == other.scope()
                && one.limit().family() == other.limit().family()
                && draws.key(one) == draws.key(other)
        };
        group.iter().enumerate().all(|(index, draw)| {
            is_exact(draw)
                && !matches!(draw.limit().figures(), LimitParams::Concurrency { .. })
                && !group[..index].iter().any(|other| meets(draw, other))
        })
    }

    /// Adds a group, on behalf of so many requests: more than one only if they [may repeat](ScriptCall::may_repeat) it.
    ///
    /// # Panics
    /// If it carries [`ScriptCall::MOST_DRAWS`] already, or if there is no such group.
    pub(crate) fn add(&mut self, draws: &Draws, group: usize, times: u32) {
        self.add_group(draws, group, times, None);
    }

    /// Adds a group again that could not be decided as it was sent, with what Rust made of what was in its way.
    ///
    /// # Panics
    /// If it carries [`ScriptCall::MOST_DRAWS`] already, or if there is no such group.
    pub(crate) fn add_again(&mut self, draws: &Draws, group: usize, times: u32, again: &Readopt) {
        self.add_group(draws, group, times, Some(again));
    }

    fn add_group(&mut self, draws: &Draws, group: usize, times: u32, again: Option<&Readopt>) {
        debug_assert!(
            times == 1 || ScriptCall::may_repeat(draws, group),
            "requests that differ travel apart"
        );
        let (first, group) = (self.drawn_from.len(), draws.group(group));
        assert!(first + group.len() <= ScriptCall::MOST_DRAWS, "whoever fills a parcel bounds it");
        for (index, draw) in group.iter().enumerate() {
            let (place, number) = self.limits.place(draw.limit());
            self.drawn_from.push(place);
            let key = self.keys.place(draws.key(draw), draw.scope(), draw.limit());
            let found = again.and_then(|again| again.found(index));
            let mut flags = 0;
            if index + 1 == group.len() {
                flags |= flag::LAST;
            }
            if index == 0 && times != 1 {
                flags |= flag::TIMES;
            }
            self.write_draw(draw, flags, key, number, found.map(|found| (found, again.map(Readopt::now))));
            if index == 0 && times != 1 {
                self.records.extend_from_slice(&times.to_be_bytes());
            }
        }
        self.limits.count_strings(self.keys.strings());
        self.groups.push(CallGroup { draws: first..self.drawn_from.len(), times });
    }

    fn write_draw(
        &mut self,
        draw: &Draw,
        mut flags: u8,
        key: u16,
        limit: u16,
        found: Option<(&[u8], Option<Micros>)>,
    ) {
        let (act, units) = match draw.act() {
            Op::Take(ask) => (0, ask.at_least()),
            Op::Look(ask) => (1, ask.at_least()),
            Op::Give(units) => (2, units),
            Op::Clear => (3, 0),
        };
        let ask = draw.act().ask();
        let patience = if is_queue(draw.limit()) { ask.patience() } else { Span::MAX };
        let has_range = act < 2 && (ask.at_most() != ask.at_least() || patience != Span::MAX);
        let has_permit = matches!(draw.limit().figures(), LimitParams::Concurrency { .. });
        for (is_set, bit) in [
            (draw.is_shadow(), flag::SHADOW),
            (has_range, flag::RANGE),
            (has_permit, flag::PERMIT),
            (found.is_some(), flag::ADOPTED),
        ] {
            flags |= if is_set { bit } else { 0 };
        }
        self.records.push(flags | act);
        self.records.extend_from_slice(&key.to_be_bytes());
        self.records.extend_from_slice(&limit.to_be_bytes());
        self.records.extend_from_slice(&units.to_be_bytes());
        if has_range {
            self.records.extend_from_slice(&ask.at_most().to_be_bytes());
            self.records.extend_from_slice(&patience.get().to_be_bytes()[1..]);
        }
        if has_permit {
            self.records.extend_from_slice(&draw.permit().0.to_be_bytes());
        }
        if let Some((found, now)) = found {
            self.adopted.clear();
            adopt(draw.limit(), found, now.unwrap_or(Micros::EPOCH), &mut self.adopted);
            push_text(found, &mut self.records);
            push_text(&self.adopted, &mut self.records);
        }
    }

    /// How many words it is written in, and how many bytes those have together, about.
    pub(crate) fn size(&self) -> (usize, usize) {
        let bytes = self.arguments().map(<[u8]>::len).sum::<usize>();
        (self.keys.len() + 6, self.keys.bytes() + bytes + 64)
    }

    /// Writes it as a call of the script.
    pub(crate) fn write(&self, call: &mut redis::Cmd) {
        call.arg("EVALSHA").arg(script::digest()).arg(self.keys.len());
        for key in self.keys.iter() {
            call.arg(key);
        }
        for argument in self.arguments() {
            call.arg(argument);
        }
    }

    /// The script's arguments: of orders there is only one if there are any.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        let orders = Some(self.orders.bytes()).filter(|orders| !orders.is_empty());
        [self.limits.bytes(), &self.records].into_iter().chain(orders)
    }

    /// Reads what the script answered to it.
    ///
    /// # Errors
    /// If that is no answer of the script.
    pub(crate) fn read<'a>(&'a self, reply: &'a [u8]) -> Result<ScriptReply<'a>, ScriptReplyError> {
        ScriptReply::new(self, reply)
    }
}

/// What tests look at.
#[cfg(test)]
impl ScriptCall {
    /// How many groups it carries.
    pub(crate) fn len(&self) -> usize {
        self.groups.len()
    }

    /// How many keys its groups have together.
    pub(crate) fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// The part of the first key's name that says which server of several it is on.
    pub(crate) fn tag(&self) -> &[u8] {
        self.keys.iter().next().map_or(&[], super::stored_key::tag)
    }

    /// The names of its keys, in the order in which the script is given them.
    pub(crate) fn key_names(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter()
    }
}

fn is_queue(limit: &Limit) -> bool {
    matches!(limit.figures(), LimitParams::Bucket { is_queue: true, .. })
}

/// Writes what a limit makes of a value that another one wrote, which stays behind it until that has drained: nothing if all
/// of it had, or can't be read. What is lent stays lent, because others may be spending it.
fn adopt(limit: &Limit, found: &[u8], now: Micros, adopted: &mut Vec<u8>) {
    let Some(StoredValue { limit: before, mut held, mut former, .. }) = StoredValue::read(found, now) else {
        return;
    };
    if before != *limit {
        held = limit.take_over(held, &before, &mut former, now);
    }
    if limit.drains_in(held, now) == Span::ZERO {
        held = LeasedState::default();
    }
    // The script writes from when on it is void; nothing is void at once.
    let void = if held == LeasedState::default() { Micros::EPOCH } else { Micros::MAX };
    StoredValue { limit: *limit, held, void, former }.write(now, adopted);
}

/// Writes bytes behind their number, which fits a byte: no state is longer.
fn push_text(bytes: &[u8], to: &mut Vec<u8>) {
    to.push(u8::try_from(bytes.len()).expect("the script tells only of values below 256 bytes"));
    to.extend_from_slice(bytes);
}

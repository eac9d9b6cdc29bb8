//! Encodes draws as calls of the script, and decodes its replies.
//!
//! A [`ScriptCall`] is filled with groups of draws and written as one call of the script (`draw.lua`), which
//! decides them in order, as if they had come one after the other, each all or nothing. The same `ScriptCall`
//! then reads the [`ScriptReply`]. It is reused: once warm, filling it allocates nothing.
//!
//! A limit's numbers are sent once per call, however many draws use it, and so is a key's name. The caller bounds
//! the size of a call: the server does nothing else while it decides one.
//!
//! Beside its groups a call carries *renewals*: reports on units that were leased to this node, and requests for
//! more. Returned units may be drawn by the groups of the same call, and draws take precedence over leases.

mod keys;
mod limits;
mod reader;
mod renewals;
mod reply;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use reader::ScriptReplyError;
pub(crate) use renewals::{GrantedLease, RenewalResult};
pub(crate) use reply::{GroupResult, Readopt, ScriptReply};
pub(crate) use value::StoredValue;

use crate::batch::script;
use keys::CallKeys;
use limits::CallLimits;
use ratekeeper::RenewalOwner;
use ratekeeper_core::{Draw, Draws, LeasedState, Limit, LimitParams, Micros, Op, Span};
use renewals::CallRenewals;
use std::ops::Range;

/// Flags of an encoded draw. A draw starts with flags, key, limit and units, in this order. The fields that the
/// flags announce follow.
mod flag {
    /// The last draw of its group. The lowest two bits are the operation.
    pub(crate) const LAST: u8 = 4;
    pub(crate) const SHADOW: u8 = 8;
    /// The most units to take, and the longest delay to accept.
    pub(crate) const RANGE: u8 = 16;
    /// The permit, of eight bytes.
    pub(crate) const PERMIT: u8 = 32;
    /// The value that was found under the key, and the value to replace it with.
    pub(crate) const ADOPTED: u8 = 64;
    /// The number of equal requests.
    pub(crate) const TIMES: u8 = 128;
}

/// Groups of draws that the store decides in one call. It allocates when it is first filled.
#[derive(Debug, Default)]
pub(crate) struct ScriptCall {
    keys: CallKeys,
    limits: CallLimits,
    records: Vec<u8>,
    /// For each draw, the index of its limit in `limits`.
    draw_limits: Vec<usize>,
    groups: Vec<CallGroup>,
    renewals: CallRenewals,
    /// Buffer for an adopted state.
    adopted: Vec<u8>,
}

/// The draws of one request, or of several equal requests.
#[derive(Clone, Debug)]
struct CallGroup {
    draws: Range<usize>,
    times: u32,
}

impl ScriptCall {
    /// The most draws of a call.
    pub(crate) const MAX_DRAWS: usize = 8192;

    /// Empties the call and keeps its memory. `now` is an estimate of the store's clock: for calendar windows,
    /// the window ends around that time are sent along.
    pub(crate) fn reset(&mut self, now: Micros) {
        self.keys.clear();
        self.limits.reset(now);
        self.records.clear();
        self.draw_limits.clear();
        self.groups.clear();
        self.renewals.clear();
    }

    /// The number of draws of all groups.
    pub(crate) fn draw_count(&self) -> usize {
        self.draw_limits.len()
    }

    /// Whether several requests with this group may be coalesced: it takes exact amounts, has no bound on its
    /// delay, takes no permits, and all its keys differ.
    pub(crate) fn can_coalesce(draws: &Draws, group: usize) -> bool {
        let group = draws.group(group);
        let is_exact = |draw: &Draw| match draw.op() {
            Op::Take(amount) => {
                let has_unbounded_delay = !is_queue(draw.limit()) || amount.max_delay() == Span::MAX;
                amount.at_least() == amount.at_most() && has_unbounded_delay
            }
            Op::Peek(_) | Op::Refund(_) | Op::Reset => false,
        };
        let is_same_key = |one: &Draw, other: &Draw| {
            one.scope() == other.scope()
                && one.limit().family() == other.limit().family()
                && draws.key(one) == draws.key(other)
        };
        group.iter().enumerate().all(|(index, draw)| {
            is_exact(draw)
                && !matches!(draw.limit().params(), LimitParams::Concurrency { .. })
                && !group[..index].iter().any(|other| is_same_key(draw, other))
        })
    }

    /// Adds a group on behalf of `times` requests: more than one only if they [can be
    /// coalesced](ScriptCall::can_coalesce). If the script could not decide the group at first, `retry` has the
    /// states that are converted for it.
    ///
    /// # Panics
    /// If the call has [`ScriptCall::MAX_DRAWS`] draws already, or if there is no such group.
    pub(crate) fn push(&mut self, draws: &Draws, group: usize, times: u32, retry: Option<&Readopt>) {
        debug_assert!(
            times == 1 || ScriptCall::can_coalesce(draws, group),
            "only equal requests are coalesced"
        );
        let (first, own_draws) = (self.draw_limits.len(), draws.group(group));
        assert!(first + own_draws.len() <= ScriptCall::MAX_DRAWS, "the caller bounds the size of a call");
        for (index, draw) in own_draws.iter().enumerate() {
            let (limit_index, number) = self.limits.intern(draw.limit());
            self.draw_limits.push(limit_index);
            let key = self.keys.intern(&RenewalOwner::Draw { group, draw: index }, draws);
            let found = retry.and_then(|retry| retry.found(index));
            let mut flags = 0;
            if index + 1 == own_draws.len() {
                flags |= flag::LAST;
            }
            if index == 0 && times != 1 {
                flags |= flag::TIMES;
            }
            self.write_draw(draw, flags, key, number, found.map(|found| (found, retry.map(Readopt::now))));
            if index == 0 && times != 1 {
                self.records.extend_from_slice(&times.to_be_bytes());
            }
        }
        self.limits.set_string_count(self.keys.strings());
        self.groups.push(CallGroup { draws: first..self.draw_limits.len(), times });
    }

    fn write_draw(
        &mut self,
        draw: &Draw,
        mut flags: u8,
        key: u16,
        limit: u16,
        found: Option<(&[u8], Option<Micros>)>,
    ) {
        let (op, units) = match draw.op() {
            Op::Take(amount) => (0, amount.at_least()),
            Op::Peek(amount) => (1, amount.at_least()),
            Op::Refund(units) => (2, units),
            Op::Reset => (3, 0),
        };
        let amount = draw.op().amount();
        let max_delay = if is_queue(draw.limit()) { amount.max_delay() } else { Span::MAX };
        let has_range = op < 2 && (amount.at_most() != amount.at_least() || max_delay != Span::MAX);
        let has_permit = matches!(draw.limit().params(), LimitParams::Concurrency { .. });
        for (is_set, bit) in [
            (draw.is_shadow(), flag::SHADOW),
            (has_range, flag::RANGE),
            (has_permit, flag::PERMIT),
            (found.is_some(), flag::ADOPTED),
        ] {
            flags |= if is_set { bit } else { 0 };
        }
        self.records.push(flags | op);
        self.records.extend_from_slice(&key.to_be_bytes());
        self.records.extend_from_slice(&limit.to_be_bytes());
        self.records.extend_from_slice(&units.to_be_bytes());
        if has_range {
            self.records.extend_from_slice(&amount.at_most().to_be_bytes());
            self.records.extend_from_slice(&max_delay.get().to_be_bytes()[1..]);
        }
        if has_permit {
            self.records.extend_from_slice(&draw.permit().0.to_be_bytes());
        }
        if let Some((found, now)) = found {
            self.adopted.clear();
            adopt(draw.limit(), found, now.unwrap_or(Micros::EPOCH), &mut self.adopted);
            push_bytes(found, &mut self.records);
            push_bytes(&self.adopted, &mut self.records);
        }
    }

    /// The number of arguments of the encoded call, and their approximate size in bytes.
    pub(crate) fn size_hint(&self) -> (usize, usize) {
        let bytes = self.arguments().map(<[u8]>::len).sum::<usize>();
        (self.keys.len() + 6, self.keys.name_bytes() + bytes + 64)
    }

    /// Writes the call as a command. `draws` are those that the call was filled with.
    pub(crate) fn write(&self, draws: &Draws, call: &mut redis::Cmd) {
        call.arg("EVALSHA").arg(script::digest()).arg(self.keys.len());
        self.keys.write(draws, call);
        for argument in self.arguments() {
            call.arg(argument);
        }
    }

    /// The script's arguments. The one for renewals is omitted if there are none.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        let renewals = Some(self.renewals.bytes()).filter(|renewals| !renewals.is_empty());
        [self.limits.bytes(), &self.records].into_iter().chain(renewals)
    }

    /// Reads the script's reply.
    ///
    /// # Errors
    /// If the reply is not one of the script.
    pub(crate) fn read_reply<'a>(&'a self, reply: &'a [u8]) -> Result<ScriptReply<'a>, ScriptReplyError> {
        ScriptReply::new(self, reply)
    }
}

/// Accessors for tests.
#[cfg(test)]
impl ScriptCall {
    /// The number of groups.
    pub(crate) fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// The number of distinct keys.
    pub(crate) fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// The names of the keys, in the order of the script's `KEYS`.
    pub(crate) fn key_names(&self, draws: &Draws) -> Vec<Vec<u8>> {
        self.keys.names(draws)
    }
}

fn is_queue(limit: &Limit) -> bool {
    matches!(limit.params(), LimitParams::Bucket { is_queue: true, .. })
}

/// Writes the value that a limit derives from one written under another limit, whose state is kept beside it
/// until it has drained. Writes nothing if all of it had drained or is unreadable. Leased units stay leased,
/// because other nodes may be spending them.
fn adopt(limit: &Limit, found: &[u8], now: Micros, adopted: &mut Vec<u8>) {
    let Some(StoredValue { limit: before, mut leased, mut prior, .. }) = StoredValue::read(found, now) else {
        return;
    };
    if before != *limit {
        leased = limit.adopt_with_prior(leased, &before, &mut prior, now);
    }
    if limit.expires_in(leased, now) == Span::ZERO {
        leased = LeasedState::default();
    }
    // The script writes the time from which the state is void. An empty state is void at once.
    let void_from = if leased == LeasedState::default() { Micros::EPOCH } else { Micros::MAX };
    StoredValue { limit: *limit, leased, void_from, prior }.write(now, adopted);
}

/// Writes a length byte and the bytes. No state is longer than 255 bytes.
fn push_bytes(bytes: &[u8], to: &mut Vec<u8>) {
    to.push(u8::try_from(bytes.len()).expect("the script reports only values below 256 bytes"));
    to.extend_from_slice(bytes);
}

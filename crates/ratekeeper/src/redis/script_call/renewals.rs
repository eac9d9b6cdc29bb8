//! Orders on their way to the store, and the loans that come back.
//!
//! An order is about one key under one limit: a report of what was lent of it before, and a wish for more.

use super::ScriptCall;
use super::reply::{ScriptReplyError, read_byte, read_number, read_units};
use super::value::Codec;
use ratekeeper_core::{Amount, KeyRef, LeaseReport, LeaseRequest, Limit, Micros, Scope, Span, State};

/// The orders of a parcel, as the script reads them.
#[derive(Debug, Default)]
pub(super) struct CallRenewals {
    bytes: Vec<u8>,
    /// For each order, where in the parcel's limits its limit is.
    of: Vec<usize>,
}

impl CallRenewals {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.of.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    /// Where the limits are that the orders are under, in order.
    pub(super) fn of(&self) -> &[usize] {
        &self.of
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl ScriptCall {
    /// Adds an order. Reports are taken note of before anything is drawn, and units are lent after everything was.
    ///
    /// # Panics
    /// If it carries [`ScriptCall::MOST_DRAWS`] already, orders included, or if the limit [can't](Limit::can_lend) lend.
    pub(crate) fn lend(
        &mut self,
        key: KeyRef<'_>,
        scope: Scope,
        limit: &Limit,
        report: LeaseReport,
        wish: LeaseRequest,
    ) {
        assert!(
            self.drawn_from.len() + self.orders.len() < ScriptCall::MOST_DRAWS,
            "whoever fills a parcel bounds it"
        );
        assert!(limit.can_lend(), "{limit} lends nothing");
        let (place, number) = self.limits.place(limit);
        self.orders.of.push(place);
        let key = self.keys.place(key, scope, limit);
        self.limits.count_strings(self.keys.strings());
        let bytes = &mut self.orders.bytes;
        bytes.extend_from_slice(&key.to_be_bytes());
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&report.term.to_be_bytes()[1..]);
        for units in [report.spent, report.kept, report.back, wish.soon, wish.later, wish.one_of] {
            bytes.extend_from_slice(&units.to_be_bytes());
        }
    }
}

/// What became of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalResult {
    /// The report was taken note of, and this was lent.
    Loaned(GrantedLease),
    /// Nothing was reported or lent: what is stored was written by another quota, or can't be read, or the store's clock
    /// is in no window of the calendar that was sent along.
    Stuck,
}

/// What was lent, which may be nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantedLease {
    /// How many units more.
    pub(crate) units: u32,
    /// The term that these, and those that were kept, are lent in.
    pub(crate) term: u64,
    /// How long after the store answered they lapse.
    pub(crate) left: Span,
    /// Whether what the report was about had not lapsed before. If it had, what was kept is gone.
    pub(crate) is_known: bool,
    /// What the store remembers after that, with all that is lent counted as taken; nothing if it could not be said.
    pub(crate) seen: Option<State>,
}

/// What the script's answers to orders begin with: whether what was reported is known, and what is told of the state.
const STUCK: u8 = 0;
const KNOWN: u8 = 2;
const SHOWN: u8 = 4;
const ABSENT: u8 = 8;

impl RenewalResult {
    pub(super) fn read(
        rest: &mut &[u8],
        codec: &Codec,
        now: Micros,
    ) -> Result<RenewalResult, ScriptReplyError> {
        let code = read_byte(rest)?;
        if code == STUCK {
            return Ok(RenewalResult::Stuck);
        }
        let (units, term) = (read_units(rest)?, read_number(rest, 7)?);
        let left = Micros::new(read_number(rest, 7)?).since(now);
        let at_rest = |state| codec.limit().step(state, now, Amount::PEEK).state;
        let seen = match code & (SHOWN | ABSENT) {
            SHOWN => {
                let value = rest.split_off(..codec.length()).ok_or(ScriptReplyError)?;
                Some(at_rest(Some(codec.read(value, now).ok_or(ScriptReplyError)?)))
            }
            ABSENT => Some(at_rest(None)),
            _ => None,
        };
        Ok(RenewalResult::Loaned(GrantedLease { units, term, left, is_known: code & KNOWN != 0, seen }))
    }
}

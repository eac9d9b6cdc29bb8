//! Encoding of renewals and decoding of the grants.
//!
//! A renewal is about one key under one limit: a report on the units that were leased of it, and a request for
//! more.

use super::ScriptCall;
use super::keys::key_and_limit;
use super::reader::{ScriptReplyError, read_byte, read_number, read_units};
use super::value::Codec;
use ratekeeper::RenewalOwner;
use ratekeeper_core::{Amount, Draws, LeaseReport, LeaseRequest, Micros, Span, State};

/// The encoded renewals of a call.
#[derive(Debug, Default)]
pub(crate) struct CallRenewals {
    bytes: Vec<u8>,
    /// For each renewal, the index of its limit in the call.
    limit_indices: Vec<usize>,
}

impl CallRenewals {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.limit_indices.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.limit_indices.len()
    }

    /// The indices of the renewals' limits, in order.
    pub(crate) fn limit_indices(&self) -> &[usize] {
        &self.limit_indices
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl ScriptCall {
    /// Adds a renewal for the key of a draw, or for a key of its own. Reports are applied before the draws are decided,
    /// and leases are granted afterwards.
    ///
    /// # Panics
    /// If the call has [`ScriptCall::MAX_DRAWS`] draws and renewals already, or if the limit
    /// [can't](ratekeeper_core::Limit::is_leasable) be leased.
    pub(crate) fn push_renewal(
        &mut self,
        draws: &Draws,
        owner: &RenewalOwner,
        report: LeaseReport,
        request: LeaseRequest,
    ) {
        assert!(
            self.draw_limits.len() + self.renewals.len() < ScriptCall::MAX_DRAWS,
            "the caller bounds the size of a call"
        );
        let (_, _, limit) = key_and_limit(owner, draws);
        assert!(limit.is_leasable(), "{limit} can't be leased");
        let (index, number) = self.limits.intern(limit);
        self.renewals.limit_indices.push(index);
        let key = self.keys.intern(owner, draws);
        self.limits.set_string_count(self.keys.strings());
        let bytes = &mut self.renewals.bytes;
        bytes.extend_from_slice(&key.to_be_bytes());
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&report.term.to_be_bytes()[1..]);
        for units in [
            report.spent,
            report.kept,
            report.returned,
            request.short_horizon,
            request.long_horizon,
            request.long_horizon_divisor,
        ] {
            bytes.extend_from_slice(&units.to_be_bytes());
        }
    }
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalResult {
    /// The report was applied, and this was granted.
    Granted(GrantedLease),
    /// Nothing was applied: the state was written under another quota or is unreadable, or the store's clock is
    /// in no calendar window that was sent along.
    Stuck,
}

/// The granted units, which may be none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantedLease {
    /// Additional units.
    pub(crate) units: u32,
    /// The term of these units and of the kept ones.
    pub(crate) term: u64,
    /// How long after the store's reply they expire.
    pub(crate) time_left: Span,
    /// Whether the reported lease had not expired before. If it had, the kept units are gone.
    pub(crate) is_report_accepted: bool,
    /// The key's state after the renewal, with all leased units counted as taken. `None` if the store did not
    /// send it.
    pub(crate) state: Option<State>,
}

/// Codes of the script's results for renewals: whether the reported lease was known, and whether the state
/// follows.
const STUCK: u8 = 0;
const KNOWN: u8 = 2;
const SHOWN: u8 = 4;
const ABSENT: u8 = 8;

impl RenewalResult {
    pub(crate) fn read(
        rest: &mut &[u8],
        codec: &Codec,
        now: Micros,
    ) -> Result<RenewalResult, ScriptReplyError> {
        let code = read_byte(rest)?;
        if code == STUCK {
            return Ok(RenewalResult::Stuck);
        }
        let (units, term) = (read_units(rest)?, read_number(rest, 7)?);
        let time_left = Micros::new(read_number(rest, 7)?).since(now);
        let at_rest = |state| codec.limit().step(state, now, Amount::ZERO).state;
        let state = match code & (SHOWN | ABSENT) {
            SHOWN => {
                let value = rest.split_off(..codec.length()).ok_or(ScriptReplyError)?;
                Some(at_rest(Some(codec.read(value, now).ok_or(ScriptReplyError)?)))
            }
            ABSENT => Some(at_rest(None)),
            _ => None,
        };
        Ok(RenewalResult::Granted(GrantedLease {
            units,
            term,
            time_left,
            is_report_accepted: code & KNOWN != 0,
            state,
        }))
    }
}

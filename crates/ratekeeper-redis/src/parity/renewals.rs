//! Random lease renewals: reports and requests of nodes.
//!
//! Reports need not be truthful. Whatever they claim, the script and the algorithms must treat them the same.

use super::KEYS;
use crate::batch::codec::{RenewalResult, ScriptCall};
use crate::batch::stored_key;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::sample::select;
use ratekeeper::{KeyName, RenewalOwner};
use ratekeeper_core::{Draw, Draws, Key, LeaseReport, LeaseRequest, Limit, Scope};
use std::collections::HashMap;
use std::sync::Arc;

/// A renewal whose report does not have its term yet.
#[derive(Clone, Debug)]
pub(crate) struct RandomRenewal {
    key: usize,
    limit: usize,
    /// How many terms the report lags behind the last grant.
    behind: u64,
    report: LeaseReport,
    request: LeaseRequest,
}

/// A renewal as it is sent.
#[derive(Clone, Debug)]
pub(crate) struct SentRandomRenewal {
    pub(crate) key: Key,
    pub(crate) limit: Limit,
    pub(crate) report: LeaseReport,
    pub(crate) request: LeaseRequest,
}

impl SentRandomRenewal {
    /// The name of its key in the store.
    pub(crate) fn name(&self) -> Vec<u8> {
        stored_key::name(self.key.borrow(), Scope(0), self.limit.family())
    }
}

/// The term of the last grant, by key and limit.
#[derive(Debug, Default)]
pub(crate) struct GrantedTerms(HashMap<(usize, usize), u64>);

impl GrantedTerms {
    /// Fills in the terms of the reports.
    pub(crate) fn with_terms(&self, renewals: &[RandomRenewal], limits: &[Limit]) -> Vec<SentRandomRenewal> {
        let with_term = |renewal: &RandomRenewal| {
            let last = self.0.get(&(renewal.key, renewal.limit)).copied().unwrap_or(0);
            let report = LeaseReport { term: last.saturating_sub(renewal.behind), ..renewal.report };
            let key = Key::new([KEYS[renewal.key]]).unwrap();
            SentRandomRenewal { key, limit: limits[renewal.limit], report, request: renewal.request }
        };
        renewals.iter().map(with_term).collect()
    }

    /// Records the terms of the grants.
    pub(crate) fn record(&mut self, renewals: &[RandomRenewal], results: &[RenewalResult]) {
        for (renewal, result) in renewals.iter().zip(results) {
            if let RenewalResult::Granted(lease) = result {
                self.0.insert((renewal.key, renewal.limit), lease.term);
            }
        }
    }
}

/// The renewals whose keys are not drawn from under another quota. Other renewals could change a state while a draw
/// adopts it, and the test can't know at which of several times that happened.
pub(crate) fn undisputed(renewals: &[RandomRenewal], draws: &Draws, limits: &[Limit]) -> Vec<RandomRenewal> {
    let is_undisputed = |renewal: &&RandomRenewal| {
        let limit = &limits[renewal.limit];
        let is_other = |draw: &Draw| draw.limit().family() == limit.family() && draw.limit() != limit;
        !draws.all().iter().any(|draw| draws.key(draw) == KEYS[renewal.key].into() && is_other(draw))
    };
    renewals.iter().filter(is_undisputed).cloned().collect()
}

/// Adds renewals to a call.
pub(crate) fn add_all(renewals: &[SentRandomRenewal], call: &mut ScriptCall, draws: &Draws) {
    for renewal in renewals {
        let owner = key_owner(renewal.key.clone(), &renewal.limit);
        call.push_renewal(draws, &owner, renewal.report, renewal.request);
    }
}

/// The owner of a renewal that travels without a draw.
pub(crate) fn key_owner(key: Key, limit: &Limit) -> RenewalOwner {
    RenewalOwner::Key(Arc::new(KeyName { key, scope: Scope(0) }), *limit)
}

/// Random renewals under limits that can lend; half of the time none.
pub(crate) fn random_renewals(limits: &[Limit]) -> impl Strategy<Value = Vec<RandomRenewal>> {
    let lenders: Vec<_> = (0..limits.len()).filter(|limit| limits[*limit].is_leasable()).collect();
    let units = || prop_oneof![3 => Just(0_u32), 6 => 0..8_u32, 1 => 8..60_u32, 1 => Just(u32::MAX)];
    let behind = prop_oneof![6 => Just(0_u64), 2 => Just(1_u64), 1 => 2..5_u64];
    let report = (units(), units(), units());
    let request = (units(), units(), 0..5_u32).prop_map(|(soon, later, one_of)| LeaseRequest {
        short_horizon: soon,
        long_horizon: later,
        long_horizon_divisor: one_of,
    });
    let renewal = (0..2_usize, select(lenders), behind, report, request);
    let renewal = renewal.prop_map(|(key, limit, behind, (spent, kept, back), request)| RandomRenewal {
        key,
        limit,
        behind,
        report: LeaseReport { term: 0, spent, kept, returned: back },
        request,
    });
    prop_oneof![1 => Just(Vec::new()), 1 => vec(renewal, 1..4)]
}

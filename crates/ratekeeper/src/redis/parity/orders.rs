//! Random orders: what nodes say of units that they were lent, and what they wish to be lent.
//!
//! They need not be honest. Whatever is said, the script and the laws must make the same of it.

use super::KEYS;
use crate::redis::script_call::{RenewalResult, ScriptCall};
use crate::redis::stored_key;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::sample::select;
use ratekeeper_core::{Draw, Draws, Key, LeaseReport, LeaseRequest, Limit, Scope};
use std::collections::HashMap;

/// An order before it is known which term its report is about.
#[derive(Clone, Debug)]
pub(super) struct RandomRenewal {
    key: usize,
    limit: usize,
    /// How many terms before that of the last loan.
    behind: u64,
    report: LeaseReport,
    wish: LeaseRequest,
}

/// An order as it is sent.
#[derive(Clone, Debug)]
pub(super) struct SentRandomRenewal {
    pub(super) key: Key,
    pub(super) limit: Limit,
    pub(super) report: LeaseReport,
    pub(super) wish: LeaseRequest,
}

impl SentRandomRenewal {
    /// The name of its key.
    pub(super) fn name(&self) -> Vec<u8> {
        let mut name = Vec::new();
        stored_key::write(self.key.borrow(), Scope(0), self.limit.family(), &mut name);
        name
    }
}

/// In which terms units were last lent, of which key under which limit.
#[derive(Debug, Default)]
pub(super) struct Ledger(HashMap<(usize, usize), u64>);

impl Ledger {
    /// The orders as they are sent.
    pub(super) fn word(&self, orders: &[RandomRenewal], limits: &[Limit]) -> Vec<SentRandomRenewal> {
        let word = |order: &RandomRenewal| {
            let last = self.0.get(&(order.key, order.limit)).copied().unwrap_or(0);
            let report = LeaseReport { term: last.saturating_sub(order.behind), ..order.report };
            let key = Key::new([KEYS[order.key]]).unwrap();
            SentRandomRenewal { key, limit: limits[order.limit], report, wish: order.wish }
        };
        orders.iter().map(word).collect()
    }

    /// Notes what was lent.
    pub(super) fn note(&mut self, orders: &[RandomRenewal], loans: &[RenewalResult]) {
        for (order, loan) in orders.iter().zip(loans) {
            if let RenewalResult::Loaned(loan) = loan {
                self.0.insert((order.key, order.limit), loan.term);
            }
        }
    }
}

/// Those orders whose keys nobody draws from under another quota. Others could change what a draw is to adopt while that
/// is worked out, and then nobody here knows at which of several times it was.
pub(super) fn undisputed(orders: &[RandomRenewal], draws: &Draws, limits: &[Limit]) -> Vec<RandomRenewal> {
    let is_undisputed = |order: &&RandomRenewal| {
        let limit = &limits[order.limit];
        let is_other = |draw: &Draw| draw.limit().family() == limit.family() && draw.limit() != limit;
        !draws.all().iter().any(|draw| draws.key(draw) == KEYS[order.key].into() && is_other(draw))
    };
    orders.iter().filter(is_undisputed).cloned().collect()
}

/// Adds them to a parcel.
pub(super) fn add(orders: &[SentRandomRenewal], parcel: &mut ScriptCall) {
    for order in orders {
        parcel.lend(order.key.borrow(), Scope(0), &order.limit, order.report, order.wish);
    }
}

/// Some orders, of limits that can lend; half of the time none.
pub(super) fn orders(limits: &[Limit]) -> impl Strategy<Value = Vec<RandomRenewal>> {
    let lenders: Vec<_> = (0..limits.len()).filter(|limit| limits[*limit].can_lend()).collect();
    let units = || prop_oneof![3 => Just(0_u32), 6 => 0..8_u32, 1 => 8..60_u32, 1 => Just(u32::MAX)];
    let behind = prop_oneof![6 => Just(0_u64), 2 => Just(1_u64), 1 => 2..5_u64];
    let report = (units(), units(), units());
    let wish =
        (units(), units(), 0..5_u32).prop_map(|(soon, later, one_of)| LeaseRequest { soon, later, one_of });
    let order = (0..2_usize, select(lenders), behind, report, wish);
    let order = order.prop_map(|(key, limit, behind, (spent, kept, back), wish)| RandomRenewal {
        key,
        limit,
        behind,
        report: LeaseReport { term: 0, spent, kept, back },
        wish,
    });
    prop_oneof![1 => Just(Vec::new()), 1 => vec(order, 1..4)]
}

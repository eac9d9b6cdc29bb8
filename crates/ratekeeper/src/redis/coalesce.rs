//! Requests that are alike travel as one.
//!
//! Of the draws that wait for a server, many may be the same: a hot key is asked for by every connection. Such requests
//! make one group of the call, which the script decides for all of them at once, just as if they had come one behind the
//! other. To keep it so, a request joins those before it only if nothing else has touched its keys since.

use super::script_call::{Readopt, ScriptCall};
use foldhash::quality::RandomState;
use ratekeeper_core::{Draw, Draws};
use std::collections::HashMap;
use std::hash::BuildHasher;

/// Groups that are alike, of which one goes on the way.
#[derive(Debug)]
pub(super) struct CoalescedGroup {
    /// The first of them.
    pub(super) first: usize,
    last: usize,
    /// How many they are.
    pub(super) times: u32,
    /// The slot of their keys, in a Cluster.
    pub(super) slot: u16,
    /// Whether they travel apart from all others: some keys of their slot are on another server already.
    pub(super) is_apart: bool,
    /// What was in their way, if they are sent again.
    pub(super) again: Option<Readopt>,
}

/// Finds those that are alike. It is kept and used again.
#[derive(Debug, Default)]
pub(super) struct Coalescer {
    /// For each key, by its hash, the bundle that touched it last. Keys whose hashes meet only travel apart.
    touched: HashMap<u64, usize, RandomState>,
    random: RandomState,
    /// For each group, the next one of its bundle, or itself.
    next: Vec<usize>,
}

impl Coalescer {
    /// Bundles all groups of a buffer, each in the slot that stands for it.
    pub(super) fn bind(&mut self, draws: &Draws, slots: &[u16], bundles: &mut Vec<CoalescedGroup>) {
        self.touched.clear();
        self.next.clear();
        self.next.extend(0..draws.len());
        bundles.clear();
        for (group, slot) in slots.iter().enumerate() {
            if let Some(bundle) = self.alike(draws, group, bundles) {
                let bundle = &mut bundles[bundle];
                self.next[bundle.last] = group;
                (bundle.last, bundle.times) = (group, bundle.times + 1);
                continue;
            }
            for draw in draws.group(group) {
                self.touched.insert(self.hash(draws, draw), bundles.len());
            }
            bundles.push(CoalescedGroup {
                first: group,
                last: group,
                times: 1,
                slot: *slot,
                is_apart: false,
                again: None,
            });
        }
    }

    /// The groups of a bundle, in the order in which they came.
    pub(super) fn members(&self, bundle: &CoalescedGroup) -> impl Iterator<Item = usize> + use<'_> {
        let mut at = Some(bundle.first);
        std::iter::from_fn(move || {
            let group = at?;
            at = Some(self.next[group]).filter(|next| *next != group);
            Some(group)
        })
    }

    /// The bundle that a group may join: it touched all its keys last, and is for the same.
    fn alike(&self, draws: &Draws, group: usize, bundles: &[CoalescedGroup]) -> Option<usize> {
        let mut touched = draws.group(group).iter().map(|draw| self.touched.get(&self.hash(draws, draw)));
        let bundle = *touched.next()??;
        let is_last = touched.all(|other| other == Some(&bundle));
        let is_same = || same(draws, group, bundles[bundle].first) && ScriptCall::may_repeat(draws, group);
        (is_last && is_same()).then_some(bundle)
    }

    fn hash(&self, draws: &Draws, draw: &Draw) -> u64 {
        let key = draws.key(draw);
        self.random.hash_one((key.bytes(), draw.scope().0, draw.limit().family()))
    }
}

/// Whether two groups want the very same.
fn same(draws: &Draws, one: usize, other: usize) -> bool {
    let (one, other) = (draws.group(one), draws.group(other));
    let same = |(one, other): (&Draw, &Draw)| {
        one.scope() == other.scope()
            && one.limit() == other.limit()
            && one.act() == other.act()
            && one.is_shadow() == other.is_shadow()
            && draws.key(one) == draws.key(other)
    };
    one.len() == other.len() && one.iter().zip(other).all(same)
}

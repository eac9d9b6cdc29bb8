//! Coalescing of equal requests.
//!
//! Many of the draws that wait for a server may be equal: every connection asks for a hot key. Equal requests
//! become one group of the call, which the script decides for all of them at once, with the same results as one
//! after the other. To keep it so, a request joins earlier ones only if no other request has touched its keys
//! since.

use crate::batch::codec::{Readopt, ScriptCall};
use foldhash::quality::RandomState;
use ratekeeper_core::{Draw, Draws};
use std::collections::HashMap;
use std::hash::BuildHasher;

/// Equal groups, of which one is sent.
#[derive(Debug)]
pub(crate) struct CoalescedGroup {
    /// The first of them.
    pub(crate) first: usize,
    last: usize,
    /// How many groups these are.
    pub(crate) times: u32,
    /// The Cluster slot of their keys.
    pub(crate) slot: u16,
    /// Whether the group is sent in its own call, because some keys of its slot have moved to another server.
    pub(crate) is_isolated: bool,
    /// What to send along if the script could not decide the group the first time.
    pub(crate) retry: Option<Readopt>,
}

/// Finds equal groups. Its buffers are reused.
#[derive(Debug, Default)]
pub(crate) struct Coalescer {
    /// For each key, by its hash, the coalesced group that touched it last. A hash collision only prevents
    /// coalescing.
    last_touched_by: HashMap<u64, usize, RandomState>,
    hasher: RandomState,
    /// The hashes of the current group's keys.
    hashes: Vec<u64>,
    /// For each group, the next one of its coalesced group, or itself.
    next: Vec<usize>,
}

impl Coalescer {
    /// Coalesces all groups of a buffer. `slots` has the Cluster slot of each group.
    pub(crate) fn coalesce(&mut self, draws: &Draws, slots: &[u16], coalesced: &mut Vec<CoalescedGroup>) {
        self.last_touched_by.clear();
        self.next.clear();
        self.next.extend(0..draws.len());
        coalesced.clear();
        for (group, slot) in slots.iter().enumerate() {
            self.hash_group(draws, group);
            if let Some(joined) = self.find_equal(draws, group, coalesced) {
                let joined = &mut coalesced[joined];
                self.next[joined.last] = group;
                (joined.last, joined.times) = (group, joined.times + 1);
                continue;
            }
            for hash in &self.hashes {
                self.last_touched_by.insert(*hash, coalesced.len());
            }
            coalesced.push(CoalescedGroup {
                first: group,
                last: group,
                times: 1,
                slot: *slot,
                is_isolated: false,
                retry: None,
            });
        }
    }

    /// The members of a coalesced group, in order of arrival.
    pub(crate) fn members(&self, coalesced: &CoalescedGroup) -> impl Iterator<Item = usize> + use<'_> {
        let mut at = Some(coalesced.first);
        std::iter::from_fn(move || {
            let group = at?;
            at = Some(self.next[group]).filter(|next| *next != group);
            Some(group)
        })
    }

    /// The coalesced group that a group may join: it was the last to touch all its keys, and is equal.
    fn find_equal(&self, draws: &Draws, group: usize, coalesced: &[CoalescedGroup]) -> Option<usize> {
        let mut touched = self.hashes.iter().map(|hash| self.last_touched_by.get(hash));
        let candidate = *touched.next()??;
        let is_last = touched.all(|other| other == Some(&candidate));
        let is_same =
            || is_equal(draws, group, coalesced[candidate].first) && ScriptCall::can_coalesce(draws, group);
        (is_last && is_same()).then_some(candidate)
    }

    /// Hashes the keys of a group, once for all that needs them.
    fn hash_group(&mut self, draws: &Draws, group: usize) {
        let hash = |draw: &Draw| {
            let key = draws.key(draw);
            self.hasher.hash_one((key.bytes(), draw.scope().0, draw.limit().family()))
        };
        self.hashes.clear();
        self.hashes.extend(draws.group(group).iter().map(hash));
    }
}

/// Whether two groups are equal.
fn is_equal(draws: &Draws, one: usize, other: usize) -> bool {
    let (one, other) = (draws.group(one), draws.group(other));
    let same = |(one, other): (&Draw, &Draw)| {
        one.scope() == other.scope()
            && one.limit() == other.limit()
            && one.op() == other.op()
            && one.is_shadow() == other.is_shadow()
            && draws.key(one) == draws.key(other)
    };
    one.len() == other.len() && one.iter().zip(other).all(same)
}

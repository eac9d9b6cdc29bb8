//! The distinct keys of a call.
//!
//! The call does not copy them: a key is named by the draw or the renewal that has it, and its stored name is written
//! once, into the command.

use crate::batch::stored_key;
use foldhash::quality::RandomState;
use ratekeeper::RenewalOwner;
use ratekeeper_core::{Draws, KeyRef, Limit, Scope};
use redis::{Cmd, RedisWrite};
use std::hash::BuildHasher;
use std::io::Write;

/// The distinct keys of a call. Keys with a string state are numbered from the front, the others from the back:
/// the script reads all strings with one command.
#[derive(Debug, Default)]
pub(super) struct CallKeys {
    strings: Vec<RenewalOwner>,
    lists: Vec<RenewalOwner>,
    /// The sum of the keys' sizes in bytes.
    bytes: usize,
    /// Open-addressing hash table of the keys. At least half of the slots are empty.
    slots: Vec<Option<KeySlot>>,
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct KeySlot {
    hash: u64,
    is_list: bool,
    /// Starting with 1.
    number: u16,
}

/// A key as it is stored: names of different keys, scopes or families differ.
type KeyIdentity<'a> = (KeyRef<'a>, Scope, usize);

impl CallKeys {
    pub(super) fn clear(&mut self) {
        self.strings.clear();
        self.lists.clear();
        self.bytes = 0;
        self.slots.fill(None);
    }

    pub(super) fn len(&self) -> usize {
        self.strings.len() + self.lists.len()
    }

    /// The number of keys with a string state.
    pub(super) fn strings(&self) -> usize {
        self.strings.len()
    }

    /// The approximate size of all names in bytes.
    pub(super) fn name_bytes(&self) -> usize {
        self.bytes + 16 * self.len()
    }

    /// The keys in order.
    fn iter<'a>(&'a self, draws: &'a Draws) -> impl Iterator<Item = KeyIdentity<'a>> {
        self.strings.iter().chain(self.lists.iter().rev()).map(|owner| identity(owner, draws))
    }

    /// Writes the names in order, as arguments of a command.
    pub(super) fn write(&self, draws: &Draws, command: &mut Cmd) {
        for (key, scope, family) in self.iter(draws) {
            let mut argument = command.writer_for_next_arg();
            stored_key::write(key, scope, family, &mut |bytes| {
                argument.write_all(bytes).expect("memory takes any bytes");
            });
        }
    }

    /// The number of a key among those of its kind, starting with 1.
    pub(super) fn intern(&mut self, owner: &RenewalOwner, draws: &Draws) -> u16 {
        if 2 * (self.len() + 1) > self.slots.len() {
            self.grow();
        }
        let (key, scope, family) = identity(owner, draws);
        let hash = self.hasher.hash_one((key.bytes(), scope.0, family));
        let is_same = |slot: KeySlot| {
            let kind = if slot.is_list { &self.lists } else { &self.strings };
            slot.hash == hash && identity(&kind[usize::from(slot.number) - 1], draws) == (key, scope, family)
        };
        let (at, known) = self.probe(hash, is_same);
        if let Some(known) = known {
            return known;
        }
        self.bytes += key.bytes().len();
        // The family determines the kind.
        let is_list = key_and_limit(owner, draws).2.uses_list_state();
        let kind = if is_list { &mut self.lists } else { &mut self.strings };
        kind.push(owner.clone());
        let number = u16::try_from(kind.len()).expect("a call has fewer than 2^16 draws, and so fewer keys");
        self.slots[at] = Some(KeySlot { hash, is_list, number });
        number
    }

    /// The slot of a key and its number, or the slot to insert it into.
    fn probe(&self, hash: u64, is_same: impl Fn(KeySlot) -> bool) -> (usize, Option<u16>) {
        let mask = self.slots.len() - 1;
        let mut at = usize::try_from(hash >> 32).unwrap_or(0) & mask;
        loop {
            match self.slots[at] {
                None => return (at, None),
                Some(slot) if is_same(slot) => return (at, Some(slot.number)),
                Some(_) => at = (at + 1) & mask,
            }
        }
    }

    fn grow(&mut self) {
        let before = std::mem::take(&mut self.slots);
        self.slots = vec![None; (2 * before.len()).max(64)];
        for slot in before.into_iter().flatten() {
            let (empty, _) = self.probe(slot.hash, |_| false);
            self.slots[empty] = Some(slot);
        }
    }

    /// The names in order.
    #[cfg(test)]
    pub(super) fn names(&self, draws: &Draws) -> Vec<Vec<u8>> {
        self.iter(draws).map(|(key, scope, family)| stored_key::name(key, scope, family)).collect()
    }
}

/// The key, the scope and the limit of a draw or a renewal.
pub(super) fn key_and_limit<'a>(owner: &'a RenewalOwner, draws: &'a Draws) -> (KeyRef<'a>, Scope, &'a Limit) {
    match owner {
        RenewalOwner::Draw { group, draw } => {
            let draw = &draws.group(*group)[*draw];
            (draws.key(draw), draw.scope(), draw.limit())
        }
        RenewalOwner::Key(name, limit) => (name.key.borrow(), name.scope, limit),
    }
}

fn identity<'a>(owner: &'a RenewalOwner, draws: &'a Draws) -> KeyIdentity<'a> {
    let (key, scope, limit) = key_and_limit(owner, draws);
    (key, scope, limit.family())
}

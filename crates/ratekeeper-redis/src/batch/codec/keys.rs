//! The distinct keys of a call.

use crate::batch::stored_key;
use foldhash::quality::RandomState;
use ratekeeper_core::{KeyRef, Limit, Scope};
use std::hash::BuildHasher;

/// The distinct keys of a call. Keys with a string state are numbered from the front, the others from the back:
/// the script reads all strings with one command.
#[derive(Debug, Default)]
pub(crate) struct CallKeys {
    names: Vec<u8>,
    strings: Vec<StoredName>,
    lists: Vec<StoredName>,
    /// Open-addressing hash table of the names. At least half of the slots are empty.
    slots: Vec<Option<KeySlot>>,
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct StoredName {
    start: usize,
    end: usize,
}

#[derive(Clone, Copy, Debug)]
struct KeySlot {
    name: StoredName,
    /// Starting with 1.
    number: u16,
}

impl CallKeys {
    pub(crate) fn clear(&mut self) {
        self.names.clear();
        self.strings.clear();
        self.lists.clear();
        self.slots.fill(None);
    }

    pub(crate) fn len(&self) -> usize {
        self.strings.len() + self.lists.len()
    }

    /// The size of all names in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.names.len()
    }

    /// The number of keys with a string state.
    pub(crate) fn strings(&self) -> usize {
        self.strings.len()
    }

    /// The names in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.strings.iter().chain(self.lists.iter().rev()).map(|name| &self.names[name.start..name.end])
    }

    /// The number of a key among those of its kind, starting with 1.
    pub(crate) fn intern(&mut self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> u16 {
        if 2 * (self.len() + 1) > self.slots.len() {
            self.grow();
        }
        let start = self.names.len();
        stored_key::write(key, scope, limit.family(), &mut self.names);
        let name = StoredName { start, end: self.names.len() };
        let empty = match self.find(name) {
            Ok(number) => {
                self.names.truncate(start);
                return number;
            }
            Err(empty) => empty,
        };
        // The algorithm family is a part of the name, so a name is of one kind.
        let kind = if limit.uses_list_state() { &mut self.lists } else { &mut self.strings };
        kind.push(name);
        let number = u16::try_from(kind.len()).expect("a call has fewer than 2^16 draws, and so fewer keys");
        self.slots[empty] = Some(KeySlot { name, number });
        number
    }

    /// The number of the key with this name, or the slot to insert it into.
    fn find(&self, name: StoredName) -> Result<u16, usize> {
        let bytes = &self.names[name.start..name.end];
        let mask = self.slots.len() - 1;
        let mut at = usize::try_from(self.hasher.hash_one(bytes) >> 32).unwrap_or(0) & mask;
        loop {
            match self.slots[at] {
                None => return Err(at),
                Some(slot) if self.names[slot.name.start..slot.name.end] == *bytes => return Ok(slot.number),
                Some(_) => at = (at + 1) & mask,
            }
        }
    }

    fn grow(&mut self) {
        let before = std::mem::take(&mut self.slots);
        self.slots = vec![None; (2 * before.len()).max(64)];
        for slot in before.into_iter().flatten() {
            if let Err(empty) = self.find(slot.name) {
                self.slots[empty] = Some(slot);
            }
        }
    }
}

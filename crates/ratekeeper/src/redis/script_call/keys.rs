//! The keys of a parcel, each named once.

use super::super::stored_key;
use foldhash::quality::RandomState;
use ratekeeper_core::{KeyRef, Limit, Scope};
use std::hash::BuildHasher;

/// The distinct keys of a parcel. Those whose states are strings are numbered from the front, the others from the back:
/// the script reads all strings with one command.
#[derive(Debug, Default)]
pub(super) struct CallKeys {
    names: Vec<u8>,
    strings: Vec<StoredName>,
    rolls: Vec<StoredName>,
    /// Where to find a name by its hash: open places hold nothing, and at least half are open.
    slots: Vec<Option<KeySlot>>,
    random: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct StoredName {
    start: usize,
    end: usize,
}

#[derive(Clone, Copy, Debug)]
struct KeySlot {
    name: StoredName,
    /// From 1 on.
    number: u16,
}

impl CallKeys {
    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.strings.clear();
        self.rolls.clear();
        self.slots.fill(None);
    }

    pub(super) fn len(&self) -> usize {
        self.strings.len() + self.rolls.len()
    }

    /// How many bytes the names have together.
    pub(super) fn bytes(&self) -> usize {
        self.names.len()
    }

    /// How many have a string for their state.
    pub(super) fn strings(&self) -> usize {
        self.strings.len()
    }

    /// The names in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.strings.iter().chain(self.rolls.iter().rev()).map(|name| &self.names[name.start..name.end])
    }

    /// The number of a key among those of its kind, from 1 on.
    pub(super) fn place(&mut self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> u16 {
        if 2 * (self.len() + 1) > self.slots.len() {
            self.grow();
        }
        let start = self.names.len();
        stored_key::write(key, scope, limit.family(), &mut self.names);
        let name = StoredName { start, end: self.names.len() };
        let open = match self.find(name) {
            Ok(number) => {
                self.names.truncate(start);
                return number;
            }
            Err(open) => open,
        };
        // The family is a part of the name, so a name is of one kind.
        let kind = if limit.keeps_roll() { &mut self.rolls } else { &mut self.strings };
        kind.push(name);
        let number =
            u16::try_from(kind.len()).expect("a parcel has fewer draws than 2^16, and so fewer keys");
        self.slots[open] = Some(KeySlot { name, number });
        number
    }

    /// The number of the key of this name, or the place where it belongs.
    fn find(&self, name: StoredName) -> Result<u16, usize> {
        let bytes = &self.names[name.start..name.end];
        let mask = self.slots.len() - 1;
        let mut at = usize::try_from(self.random.hash_one(bytes) >> 32).unwrap_or(0) & mask;
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
            if let Err(open) = self.find(slot.name) {
                self.slots[open] = Some(slot);
            }
        }
    }
}

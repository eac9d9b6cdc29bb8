//! The tier names that a file defines, and the error for a name that it does not.

use crate::diagnostic::{closest_name, quoted};
use std::collections::HashSet;

/// The tier names that a file defines.
#[derive(Debug)]
pub(crate) struct TierNames<'n> {
    /// In file order.
    names: Vec<&'n str>,
    known: HashSet<&'n str>,
}

impl<'n> TierNames<'n> {
    pub(crate) fn new(names: Vec<&'n str>) -> TierNames<'n> {
        TierNames { known: names.iter().copied().collect(), names }
    }

    /// The error for an undefined name. Returns `None` if the name is defined.
    pub(crate) fn error_for(&self, name: &str) -> Option<String> {
        /// The most names that a message lists.
        const SHOWN: usize = 10;
        /// The most names that are searched for a similar one.
        const SEARCHED: usize = 1_000;
        if self.known.contains(name) {
            return None;
        }
        let shown = quoted(name);
        if let Some(near) = closest_name(name, self.names.iter().copied().take(SEARCHED)) {
            return Some(format!("there is no tier {shown}: did you mean {near}?"));
        }
        let listed = self.names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
        let more = if self.names.len() > SHOWN { ", …" } else { "" };
        Some(format!("there is no tier {shown}: add it to tiers, or write one of {listed}{more}"))
    }
}

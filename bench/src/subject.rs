//! The subject of a benchmark: a limiter behind its own public API.
//!
//! A subject checks a whole chunk of keys per call, so that its loop is compiled for it alone and dynamic dispatch
//! happens once in four thousand checks. Of the result of a check, every subject reads only whether it was allowed.

use anyhow::Result;
use ratekeeper::{Capacity, KeyedRequest, Limiter, MemoryStore, SystemClock};

/// A limiter under measurement.
pub(crate) trait Subject: Sync {
    /// The name in a table, for this number of threads.
    fn name(&self, threads: usize) -> String;

    /// How many keys it holds, if it reports that.
    fn held(&self) -> Option<usize> {
        None
    }

    /// Takes `cost` units from one key. Returns whether that was allowed.
    #[expect(clippy::ptr_arg, reason = "governor looks its keys up by the type it stores, a String")]
    fn charge(&self, key: &String, cost: u32) -> bool;

    /// Takes one unit from each key, and returns how many were allowed. This is the timed part.
    fn check_all(&self, keys: &[String], threads: usize) -> usize;
}

/// What a subject allows per key: the same for all of them, in each one's own terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    pub(crate) amount: u32,
    pub(crate) per_secs: u32,
    pub(crate) burst: u32,
}

impl Allowance {
    /// More units than any run takes, which refill too slowly for a state to drain meanwhile: every check finds its
    /// key, computes and writes.
    pub(crate) const PLENTY: Allowance = Allowance { amount: 1000, per_secs: 3600, burst: 100_000_000 };

    /// Exhausted after a few checks, and not refilled within the run. The burst is not 1, because throttlecrab would
    /// then forget the key at once and never deny.
    pub(crate) const SCANT: Allowance = Allowance { amount: 1, per_secs: 86_400, burst: 5 };

    /// The quota in Ratekeeper's syntax.
    pub(crate) fn quota(&self) -> String {
        format!("{} per {}s burst {}", self.amount, self.per_secs, self.burst)
    }
}

/// Capacity for a fifth more keys than will exist: the cap is divided among shards, which fill unevenly.
pub(crate) fn roomy(keys: u64) -> Capacity {
    Capacity::keys((keys + keys / 5).max(10_000) as usize)
}

/// Ratekeeper with one limit per key.
pub(crate) struct Ratekeeper(Limiter);

impl Ratekeeper {
    pub(crate) fn new(allowance: Allowance, cap: Capacity) -> Result<Ratekeeper> {
        let store = MemoryStore::with(SystemClock::new(), cap)?;
        Ok(Ratekeeper(Limiter::with_store(allowance.quota().as_str(), store)?))
    }

    pub(crate) fn limiter(&self) -> &Limiter {
        &self.0
    }
}

impl Subject for Ratekeeper {
    fn name(&self, _: usize) -> String {
        "ratekeeper".to_owned()
    }

    fn held(&self) -> Option<usize> {
        Some(self.0.store().stats().keys)
    }

    fn charge(&self, key: &String, cost: u32) -> bool {
        self.0.check_now(KeyedRequest::from(key).cost(cost)).is_allowed()
    }

    fn check_all(&self, keys: &[String], _: usize) -> usize {
        keys.iter().filter(|key| self.0.check_now(*key).is_allowed()).count()
    }
}

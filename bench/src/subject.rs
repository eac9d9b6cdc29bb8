//! What is measured: a limiter behind its own public API.
//!
//! A subject checks a whole chunk of keys in one call, so that its loop is compiled for it alone and the only call that
//! is not known at compile time happens once in four thousand checks. Of what a check returns, every subject reads just
//! whether it was allowed.

use anyhow::Result;
use ratekeeper::{Capacity, KeyedRequest, Limiter, MemoryStore, SystemClock};

/// A limiter under measurement.
pub(crate) trait Subject: Sync {
    /// What it is called in a table of so many threads.
    fn name(&self, threads: usize) -> String;

    /// How many keys it remembers, if it tells.
    fn held(&self) -> Option<usize> {
        None
    }

    /// Takes `cost` units under one key; says whether it was allowed.
    #[expect(clippy::ptr_arg, reason = "governor looks its keys up by the type it stores, a String")]
    fn charge(&self, key: &String, cost: u32) -> bool;

    /// Takes a unit under each key, and counts those allowed. This is what the watch runs for.
    fn check_all(&self, keys: &[String], threads: usize) -> usize;
}

/// How much a subject allows each key: the same for all of them, each in its own words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    pub(crate) amount: u32,
    pub(crate) per_secs: u32,
    pub(crate) burst: u32,
}

impl Allowance {
    /// More than any run takes, and so slow to come back that no state drains while it lasts: every check finds its
    /// key, does the sum and writes.
    pub(crate) const PLENTY: Allowance = Allowance { amount: 1000, per_secs: 3600, burst: 100_000_000 };

    /// Gone after a few checks and not back before tomorrow. The burst is not 1, because throttlecrab then forgets the
    /// key at once and never refuses.
    pub(crate) const SCANT: Allowance = Allowance { amount: 1, per_secs: 86_400, burst: 5 };

    /// As Ratekeeper reads it.
    pub(crate) fn quota(&self) -> String {
        format!("{} per {}s burst {}", self.amount, self.per_secs, self.burst)
    }
}

/// Room for a fifth more keys than there will be: the cap is divided among shards, which fill unevenly.
pub(crate) fn roomy(keys: u64) -> Capacity {
    Capacity::keys((keys + keys / 5).max(10_000) as usize)
}

/// Ratekeeper, one limit under each key.
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

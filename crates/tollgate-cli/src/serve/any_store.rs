//! The store that the settings name.
//!
//! Servers are written once for any store, and the settings say which it is, so it is one of a few. Telling them apart is
//! a predicted branch for each batch of requests.

use crate::settings::Settings;
use anyhow::{Result, bail};
use tollgate::{
    Cap, Draws, KeyRef, Limit, MemoryStats, MemoryStore, PermitId, Scope, Store, StoreHealth, StoreReport,
    SystemClock,
};
use tollgate_server::Keeping;

/// The store that the settings name.
#[derive(Debug)]
pub(super) enum AnyStore {
    /// The memory of this process.
    Memory(MemoryStore),
}

impl AnyStore {
    pub(super) fn open(settings: &Settings) -> Result<AnyStore> {
        if !settings.store.is_memory() {
            bail!("the store {} can't be used in this version yet: write memory", settings.store);
        }
        Ok(AnyStore::Memory(MemoryStore::with(SystemClock::new(), Cap::keys(settings.max_keys))?))
    }
}

impl Store for AnyStore {
    async fn draw(&self, draws: &mut Draws) {
        match self {
            AnyStore::Memory(store) => store.draw_now(draws),
        }
    }

    fn release(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit, permit: PermitId) {
        match self {
            AnyStore::Memory(store) => store.release(key, scope, limit, permit),
        }
    }
}

impl StoreHealth for AnyStore {
    fn health(&self) -> Option<StoreReport> {
        match self {
            AnyStore::Memory(store) => store.health(),
        }
    }
}

impl Keeping for AnyStore {
    async fn keep(&self) {
        match self {
            AnyStore::Memory(store) => store.keep().await,
        }
    }

    fn census(&self) -> Option<MemoryStats> {
        match self {
            AnyStore::Memory(store) => store.census(),
        }
    }

    async fn leave(&self) {
        match self {
            AnyStore::Memory(store) => store.leave().await,
        }
    }
}

//! The store that the settings name.
//!
//! Servers are written once for any store, and the settings say which it is, so it is one of a few. Telling them apart is
//! a predicted branch for each batch of requests.

use crate::settings::Settings;
use anyhow::{Context, Result};
use std::time::Duration;
use tollgate::redis::{RedisOptions, RedisStore, StoreUrl};
use tollgate::{
    Cap, Draws, KeyRef, Limit, MemoryStats, MemoryStore, PermitId, Scope, ServerReport, Store, StoreHealth,
    StoreReport, SystemClock,
};
use tollgate_server::Keeping;

/// How long a start waits for servers that are slow to be found. Without them, it starts all the same.
const START_PATIENCE: Duration = Duration::from_secs(2);

/// The store that the settings name.
#[derive(Debug)]
pub(super) enum AnyStore {
    /// The memory of this process.
    Memory(MemoryStore),
    /// Redis or Valkey, which other nodes share.
    Redis(RedisStore),
}

impl AnyStore {
    /// Opens it. A store that is away is no error: it is looked for until it is found.
    pub(super) async fn open(settings: &Settings) -> Result<AnyStore> {
        let cap = Cap::keys(settings.max_keys);
        match settings.store.url() {
            StoreUrl::Memory => Ok(AnyStore::Memory(MemoryStore::with(SystemClock::new(), cap)?)),
            StoreUrl::Redis(url) => {
                let options = RedisOptions { patience: settings.store_timeout, cap };
                let store = RedisStore::connect(url, &options)
                    .with_context(|| format!("cannot set up the store {}", settings.store))?;
                store.ready(START_PATIENCE).await;
                Ok(AnyStore::Redis(store))
            }
        }
    }

    /// What it is, in a line; what about it may come as a surprise is a warning in the log.
    pub(super) fn words(&self, settings: &Settings) -> String {
        let Some(report) = self.health() else { return "memory, of this process alone".to_owned() };
        for server in report.servers.iter().filter(|server| server.may_forget) {
            let policy = server.eviction_policy.as_deref().unwrap_or_default();
            tracing::warn!(
                server = server.address,
                policy,
                "the store may drop limits when its memory is full, and who was refused starts afresh: set \
                 maxmemory-policy to noeviction or a volatile policy on a server of its own"
            );
        }
        let found = match report.is_degraded() {
            false => servers(&report),
            true => format!(
                "NOT THERE YET, so {} holds unless rules say otherwise",
                settings.on_store_failure.name()
            ),
        };
        format!(
            "{}: {found}; it has {:?} to answer, and without it {} holds",
            settings.store,
            settings.store_timeout,
            settings.on_store_failure.name()
        )
    }
}

/// `3 servers (cluster), redis 7.0.15, noeviction`.
fn servers(report: &StoreReport) -> String {
    let all = |tell: fn(&ServerReport) -> Option<&str>| {
        let mut told: Vec<_> = report.servers.iter().filter_map(tell).collect();
        told.sort_unstable();
        told.dedup();
        told.join(" and ")
    };
    let count = match report.servers.len() {
        1 => report.topology.name().to_owned(),
        many => format!("{}, {many} servers", report.topology.name()),
    };
    let software = all(|server| server.software.as_deref());
    let policy = all(|server| server.eviction_policy.as_deref());
    format!("{software}, {count}, {policy}")
}

impl Store for AnyStore {
    async fn draw(&self, draws: &mut Draws) {
        match self {
            AnyStore::Memory(store) => store.draw_now(draws),
            AnyStore::Redis(store) => store.draw(draws).await,
        }
    }

    fn release(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit, permit: PermitId) {
        match self {
            AnyStore::Memory(store) => store.release(key, scope, limit, permit),
            AnyStore::Redis(store) => store.release(key, scope, limit, permit),
        }
    }
}

impl StoreHealth for AnyStore {
    fn health(&self) -> Option<StoreReport> {
        match self {
            AnyStore::Memory(store) => store.health(),
            AnyStore::Redis(store) => store.health(),
        }
    }
}

impl Keeping for AnyStore {
    async fn keep(&self) {
        match self {
            AnyStore::Memory(store) => store.keep().await,
            AnyStore::Redis(store) => store.memory().keep().await,
        }
    }

    fn census(&self) -> Option<MemoryStats> {
        match self {
            AnyStore::Memory(store) => store.census(),
            AnyStore::Redis(store) => store.memory().census(),
        }
    }

    async fn leave(&self) {
        match self {
            AnyStore::Memory(store) => store.leave().await,
            AnyStore::Redis(store) => store.leave().await,
        }
    }
}

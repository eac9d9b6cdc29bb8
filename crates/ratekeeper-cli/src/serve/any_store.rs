//! The store that the settings select.
//!
//! The server is generic over its store, and the setting is read at run time, so the store is an enum. Dispatching on
//! it is a predicted branch per batch of requests.

use crate::settings::Settings;
use anyhow::{Context, Result};
use ratekeeper::{
    Capacity, Draws, KeyLease, KeyRef, Leased, Limit, MemoryStats, MemoryStore, PermitId, Scope,
    ServerReport, Store, StoreReport, SystemClock,
};
use ratekeeper_redis::{RedisOptions, RedisStore, StoreUrl};
use std::sync::Arc;
use std::time::Duration;

/// How long start-up waits for store servers. Without them, the server starts all the same.
const START_TIMEOUT: Duration = Duration::from_secs(2);
/// The most keys of which units are leased. Each takes some 250 bytes and its name, once it is drawn.
const MAX_LEASED_KEYS: usize = 1 << 18;
/// The maximum number of unreachable servers named in the banner, so that it stays one line.
const MAX_NAMED_SERVERS: usize = 3;

/// The store that the settings select.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a process has one store")]
pub(super) enum AnyStore {
    /// The memory of this process.
    Memory(MemoryStore),
    /// Redis or Valkey, shared with other nodes.
    Redis(Leased<RedisStore, Arc<SystemClock>>),
}

impl AnyStore {
    /// Opens the store. An unreachable store is not an error: connecting is retried until it succeeds.
    pub(super) async fn open(settings: &Settings) -> Result<AnyStore> {
        let capacity = Capacity::keys(settings.max_keys);
        match settings.store.url() {
            StoreUrl::Memory => Ok(AnyStore::Memory(MemoryStore::with(SystemClock::new(), capacity)?)),
            StoreUrl::Redis(url) => {
                let options = RedisOptions { timeout: settings.store_timeout, capacity };
                let clock = Arc::new(SystemClock::new());
                let store = RedisStore::connect(url, &options, Arc::clone(&clock))
                    .with_context(|| format!("cannot set up the store {}", settings.store))?;
                store.ready(START_TIMEOUT).await;
                Ok(AnyStore::Redis(Leased::new(store, clock, MAX_LEASED_KEYS)))
            }
        }
    }

    /// Describes the store in one line.
    pub(super) fn describe(&self, settings: &Settings) -> String {
        let Some(report) = self.health() else { return "memory (this process only)".to_owned() };
        let (store, mode) = (&settings.store, settings.on_store_failure.name());
        let fallback = format!("on_store_failure={mode} applies");
        let unreachable: Vec<&ServerReport> = report.unavailable_servers().collect();
        match (report.servers.len(), unreachable.as_slice(), report.uncovered_slots) {
            (0, ..) => format!("{store}: unreachable; {fallback}"),
            (1, [server], _) => {
                let reason =
                    server.problem.as_ref().map(|trouble| format!(" ({trouble})")).unwrap_or_default();
                format!("{store}: unreachable{reason}; {fallback}")
            }
            (all, [_, ..], _) => {
                let (count, servers) = (unreachable.len(), describe_unreachable(&unreachable));
                format!("{store}: {count} of {all} servers unreachable: {servers}; {fallback} to their keys")
            }
            (_, [], 0) => format!(
                "{store}: {}; timeout {:?}, on_store_failure={mode}",
                describe_servers(&report),
                settings.store_timeout
            ),
            (_, [], slots) => {
                format!(
                    "{store}: {}; {slots} slots have no server; {fallback} to their keys",
                    describe_servers(&report)
                )
            }
        }
    }
}

/// Names unreachable servers, each with its error.
fn describe_unreachable(unreachable: &[&ServerReport]) -> String {
    let named = unreachable.iter().take(MAX_NAMED_SERVERS).map(|server| server.describe());
    let more = unreachable.len().checked_sub(MAX_NAMED_SERVERS).filter(|more| *more > 0);
    named.chain(more.map(|more| format!("and {more} more"))).collect::<Vec<_>>().join(", ")
}

/// Describes reachable servers: `redis 7.0.15, cluster of 3 servers, noeviction`.
fn describe_servers(report: &StoreReport) -> String {
    let all = |field: fn(&ServerReport) -> Option<&str>| {
        let mut values: Vec<_> = report.servers.iter().filter_map(field).collect();
        values.sort_unstable();
        values.dedup();
        values.join(" and ")
    };
    let software = all(|server| server.software.as_deref());
    let topology = match report.servers.len() {
        1 => report.topology.name().to_owned(),
        many => format!("{} of {many} servers", report.topology.name()),
    };
    let policy = all(|server| server.eviction_policy.as_deref());
    let warning = if report.servers.iter().any(|server| server.may_evict) {
        " (may evict limits when memory is full: set maxmemory-policy to noeviction)"
    } else {
        ""
    };
    let parts = [software, topology, policy + warning];
    parts.iter().filter(|words| !words.is_empty()).map(String::as_str).collect::<Vec<_>>().join(", ")
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

    fn health(&self) -> Option<StoreReport> {
        match self {
            AnyStore::Memory(store) => store.health(),
            AnyStore::Redis(store) => store.health(),
        }
    }

    fn key_lease(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> Option<KeyLease> {
        match self {
            AnyStore::Memory(store) => store.key_lease(key, scope, limit),
            AnyStore::Redis(store) => store.key_lease(key, scope, limit),
        }
    }

    fn memory_stats(&self) -> Option<MemoryStats> {
        match self {
            AnyStore::Memory(store) => store.memory_stats(),
            AnyStore::Redis(store) => store.memory_stats(),
        }
    }

    async fn maintain(&self) {
        match self {
            AnyStore::Memory(store) => store.maintain().await,
            AnyStore::Redis(store) => store.maintain().await,
        }
    }

    async fn leave(&self) {
        match self {
            AnyStore::Memory(store) => store.leave().await,
            AnyStore::Redis(store) => store.leave().await,
        }
    }
}

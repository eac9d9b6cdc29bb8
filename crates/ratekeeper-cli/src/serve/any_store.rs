//! The store that the settings name.
//!
//! Servers are written once for any store, and the settings say which it is, so it is one of a few. Telling them apart is
//! a predicted branch for each batch of requests.

use crate::settings::Settings;
use anyhow::{Context, Result};
use ratekeeper::redis::{RedisOptions, RedisStore, StoreUrl};
use ratekeeper::{
    Capacity, Draws, KeyLease, KeyRef, Limit, MemoryStats, MemoryStore, PermitId, Scope, ServerReport, Store,
    StoreHealth, StoreReport, SystemClock,
};
use ratekeeper_server::StoreMaintenance;
use std::time::Duration;

/// How long a start waits for servers that are slow to be found. Without them, it starts all the same.
const START_PATIENCE: Duration = Duration::from_secs(2);
/// How many servers that are away the greeting names, so that it stays a line.
const MOST_NAMED: usize = 3;

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
        let cap = Capacity::keys(settings.max_keys);
        match settings.store.url() {
            StoreUrl::Memory => Ok(AnyStore::Memory(MemoryStore::with(SystemClock::new(), cap)?)),
            StoreUrl::Redis(url) => {
                let options =
                    RedisOptions { patience: settings.store_timeout, cap, ..RedisOptions::default() };
                let store = RedisStore::connect(url, &options)
                    .with_context(|| format!("cannot set up the store {}", settings.store))?;
                store.ready(START_PATIENCE).await;
                Ok(AnyStore::Redis(store))
            }
        }
    }

    /// What it is, in a line.
    pub(super) fn words(&self, settings: &Settings) -> String {
        let Some(report) = self.health() else { return "memory, of this process alone".to_owned() };
        let (store, mode) = (&settings.store, settings.on_store_failure.name());
        let holds = format!("{mode} holds unless rules say otherwise");
        let away: Vec<&ServerReport> = report.away().collect();
        match (report.servers.len(), away.as_slice(), report.uncovered_slots) {
            (0, ..) => format!("{store}: NOT THERE YET, so {holds}"),
            (1, [server], _) => {
                let why = server.trouble.as_ref().map(|trouble| format!(" ({trouble})")).unwrap_or_default();
                format!("{store}: NOT THERE YET{why}, so {holds}")
            }
            (all, [_, ..], _) => {
                let (count, who) = (away.len(), names(&away));
                format!("{store}: {count} of {all} servers NOT THERE YET, {who}, so for their keys {holds}")
            }
            (_, [], 0) => format!(
                "{store}: {}; it has {:?} to answer, and without it {mode} holds",
                servers(&report),
                settings.store_timeout
            ),
            (_, [], slots) => {
                format!(
                    "{store}: {}; {slots} slots have NO SERVER, so for their keys {holds}",
                    servers(&report)
                )
            }
        }
    }
}

/// Some servers, each with what is wrong with it.
fn names(away: &[&ServerReport]) -> String {
    let named = away.iter().take(MOST_NAMED).map(|server| server.in_words());
    let more = away.len().checked_sub(MOST_NAMED).filter(|more| *more > 0);
    named.chain(more.map(|more| format!("and {more} more"))).collect::<Vec<_>>().join(", ")
}

/// `Redis 7.0.15, cluster of 3 servers, noeviction`.
fn servers(report: &StoreReport) -> String {
    let all = |tell: fn(&ServerReport) -> Option<&str>| {
        let mut told: Vec<_> = report.servers.iter().filter_map(tell).collect();
        told.sort_unstable();
        told.dedup();
        told.join(" and ")
    };
    let software = all(|server| server.software.as_deref());
    let topology = match report.servers.len() {
        1 => report.topology.name().to_owned(),
        many => format!("{} of {many} servers", report.topology.name()),
    };
    let policy = all(|server| server.eviction_policy.as_deref());
    let warning = match report.servers.iter().any(|server| server.may_forget) {
        true => " MAY DROP LIMITS when memory is full: set maxmemory-policy to noeviction",
        false => "",
    };
    let found = [software, topology, policy + warning];
    found.iter().filter(|words| !words.is_empty()).map(String::as_str).collect::<Vec<_>>().join(", ")
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

    fn lease(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> Option<KeyLease> {
        match self {
            AnyStore::Memory(store) => store.lease(key, scope, limit),
            AnyStore::Redis(store) => store.lease(key, scope, limit),
        }
    }
}

impl StoreMaintenance for AnyStore {
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

    fn shortage(&self) -> Option<&'static str> {
        match self {
            AnyStore::Memory(store) => store.shortage(),
            AnyStore::Redis(store) => store.memory().shortage(),
        }
    }

    async fn leave(&self) {
        match self {
            AnyStore::Memory(store) => store.leave().await,
            AnyStore::Redis(store) => store.leave().await,
        }
    }
}

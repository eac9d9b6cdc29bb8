//! State on real servers: one answer for all nodes, and an answer whatever happens to the servers.
#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

mod known;
mod leased;
mod outage;
mod refusals;
mod rights;
mod shared;
mod spread;
mod suite;

use ratekeeper::redis::{RedisOptions, RedisStore, StoreUrl};
use ratekeeper::{
    Algorithm, Amount, Consistency, DrawOptions, Draws, FailureMode, KeyRef, Limit, Op, PermitId, Scope,
    Store,
};
use std::num::NonZeroU16;
use std::time::Duration;

/// How long anything may take that a test waits for.
const PATIENCE: Duration = Duration::from_secs(30);

fn limit(text: &str) -> Limit {
    limit_of(Algorithm::TokenBucket, text)
}

fn limit_of(law: Algorithm, text: &str) -> Limit {
    Limit::new(law, text.parse().unwrap()).unwrap()
}

/// A store that gives up on a server only when a busy machine would.
async fn connected(url: &str) -> RedisStore {
    let store = connect(url, Duration::from_secs(5));
    assert!(store.ready(PATIENCE).await, "{:?}", store.describe());
    store
}

fn connect(url: &str, patience: Duration) -> RedisStore {
    let StoreUrl::Redis(url) = url.parse::<StoreUrl>().unwrap() else { panic!("{url} is no server") };
    RedisStore::connect(&url, &RedisOptions { patience, ..RedisOptions::default() }).unwrap()
}

/// One request: its key and limits, and how much it takes.
struct Asked<'a> {
    keys: &'a [(&'a str, Limit)],
    act: Op,
    terms: DrawOptions,
}

fn take<'a>(keys: &'a [(&'a str, Limit)], units: u32) -> Asked<'a> {
    Asked { keys, act: Op::Take(Amount::exactly(units)), terms: DrawOptions::EXACT }
}

impl Asked<'_> {
    fn on_failure(mut self, mode: FailureMode) -> Self {
        self.terms.on_failure = mode;
        self
    }

    fn stays_here(mut self) -> Self {
        self.terms.consistency = Consistency::Local;
        self
    }

    fn leased(mut self) -> Self {
        self.terms.consistency = Consistency::Leased;
        self
    }

    fn within(mut self, millis: u16) -> Self {
        self.terms.deadline = NonZeroU16::new(millis);
        self
    }

    fn push(&self, draws: &mut Draws) {
        draws.begin();
        for (scope, (key, limit)) in (0..).zip(self.keys) {
            draws.push(KeyRef::from(*key), Scope(scope), *limit, self.act, PermitId::default());
            draws.set_terms(self.terms);
        }
    }

    /// Has it decided by itself.
    async fn by(&self, store: &impl Store) -> Draws {
        let mut draws = Draws::new();
        self.push(&mut draws);
        store.draw(&mut draws).await;
        draws
    }

    /// Whether it may go on, and how much is left of its first limit.
    async fn told_by(&self, store: &impl Store) -> (bool, u32) {
        let draws = self.by(store).await;
        assert_eq!(draws.failure(0..draws.all().len()), None);
        told(&draws, 0)
    }
}

fn told(draws: &Draws, group: usize) -> (bool, u32) {
    let group = draws.group(group);
    (!group.iter().any(ratekeeper::Draw::stops), group[0].reading().remaining())
}

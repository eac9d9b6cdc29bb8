//! `RedisStore` against real servers: all nodes share one state, and every draw is decided whatever happens to the
//! servers.
#![expect(clippy::unwrap_used, reason = "an unwrap in a test helper should fail the test")]

mod known;
mod leased;
mod outage;
mod refusals;
mod rights;
mod shared;
mod spread;
mod suite;

use ratekeeper::{
    Algorithm, Amount, Consistency, DrawOptions, Draws, FailureMode, KeyRef, Leased, Limit, Op, PermitId,
    Scope, Store, SystemClock,
};
use ratekeeper_redis::{RedisOptions, RedisStore, StoreUrl};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

/// Upper bound on every wait in these tests.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn limit(text: &str) -> Limit {
    limit_of(Algorithm::TokenBucket, text)
}

fn limit_of(algorithm: Algorithm, text: &str) -> Limit {
    Limit::new(algorithm, text.parse().unwrap()).unwrap()
}

/// The store as a server uses it.
type LeasedRedis = Leased<RedisStore, Arc<SystemClock>>;

/// A connected store with a timeout long enough for a busy machine.
async fn connected(url: &str) -> LeasedRedis {
    let store = connect(url, Duration::from_secs(5));
    assert!(store.store().ready(TEST_TIMEOUT).await, "{:?}", store.store().health());
    store
}

fn connect(url: &str, patience: Duration) -> LeasedRedis {
    let StoreUrl::Redis(url) = url.parse::<StoreUrl>().unwrap() else { panic!("{url} is not a Redis URL") };
    let options = RedisOptions { timeout: patience, ..RedisOptions::default() };
    let clock = Arc::new(SystemClock::new());
    Leased::new(RedisStore::connect(&url, &options, Arc::clone(&clock)).unwrap(), clock, 1 << 18)
}

/// One request: its keys and limits, the operation and the options.
struct TestRequest<'a> {
    keys: &'a [(&'a str, Limit)],
    op: Op,
    options: DrawOptions,
}

fn take<'a>(keys: &'a [(&'a str, Limit)], units: u32) -> TestRequest<'a> {
    TestRequest { keys, op: Op::Take(Amount::exactly(units)), options: DrawOptions::EXACT }
}

impl TestRequest<'_> {
    fn on_failure(mut self, mode: FailureMode) -> Self {
        self.options.on_failure = mode;
        self
    }

    fn local(mut self) -> Self {
        self.options.consistency = Consistency::Local;
        self
    }

    fn leased(mut self) -> Self {
        self.options.consistency = Consistency::Leased;
        self
    }

    fn within_ms(mut self, millis: u16) -> Self {
        self.options.timeout_ms = NonZeroU16::new(millis);
        self
    }

    fn push(&self, draws: &mut Draws) {
        draws.begin_group();
        for (scope, (key, limit)) in (0..).zip(self.keys) {
            draws.push(KeyRef::from(*key), Scope(scope), *limit, self.op, PermitId::default());
            draws.set_options(self.options);
        }
    }

    /// Decides this request alone.
    async fn draw_from(&self, store: &impl Store) -> Draws {
        let mut draws = Draws::new();
        self.push(&mut draws);
        store.draw(&mut draws).await;
        draws
    }

    /// Whether the request is allowed, and the remaining units of its first limit. Panics on a store failure.
    async fn check(&self, store: &impl Store) -> (bool, u32) {
        let draws = self.draw_from(store).await;
        assert_eq!(draws.failure_in(0..draws.all().len()), None);
        group_result(&draws, 0)
    }
}

fn group_result(draws: &Draws, group: usize) -> (bool, u32) {
    let group = draws.group(group);
    (!group.iter().any(ratekeeper::Draw::denies_request), group[0].status().remaining())
}

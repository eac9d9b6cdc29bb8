//! `RedisStore` on real servers, in every topology, under the suite that every engine must pass.
//!
//! The servers' clocks are fixed at the microsecond that the suite sets, so replies are compared exactly and keys
//! expire as they should.

use crate::LeasedRedis;
use crate::connected;
use ratekeeper::{Consistency, DrawOptions, Draws, Micros, Op, Span, Store};
use ratekeeper_testkit::servers::{Brand, RedisServer, Sentinels, TestCluster};
use ratekeeper_testkit::suite::{self, SuiteCases};
use ratekeeper_testkit::{Engine, EngineReply};
use std::cell::Cell;
use tokio::runtime::{Builder, Runtime};

/// Servers keep drained states for one more second, so a clock step back by less finds every state intact.
const MAX_STEP_BACK: Span = Span::micros(999_999);

/// A store and its servers.
struct StoreUnderTest<'a> {
    servers: &'a [RedisServer],
    store: LeasedRedis,
    runtime: Runtime,
    engines: Cell<u32>,
}

impl<'a> StoreUnderTest<'a> {
    fn new(url: &str, servers: &'a [RedisServer]) -> StoreUnderTest<'a> {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(connected(url));
        StoreUnderTest { servers, store, runtime, engines: Cell::new(0) }
    }

    /// An engine without any state.
    fn engine(&self) -> FreshEngine<'_> {
        self.engines.set(self.engines.get() + 1);
        FreshEngine { store_under_test: self, prefix: format!("engine {}", self.engines.get()) }
    }

    fn check_suite(&self) {
        suite::check_scenarios(|| self.engine());
        for (_, algorithm) in suite::all_algorithms() {
            suite::check_traces(algorithm, MAX_STEP_BACK, SuiteCases::Few, |_| self.engine());
        }
        suite::check_requests(SuiteCases::Few, || self.engine());
    }
}

/// An engine without any state: its keys have a unique prefix, which puts them into one cluster slot.
struct FreshEngine<'a> {
    store_under_test: &'a StoreUnderTest<'a>,
    prefix: String,
}

impl Engine for FreshEngine<'_> {
    fn decide(&mut self, now: Micros, draws: &Draws) -> Vec<EngineReply> {
        let StoreUnderTest { servers, store, runtime, .. } = self.store_under_test;
        servers.iter().for_each(|server| server.freeze_clock(now));
        if draws.len() > 1 {
            // Requests of one call are decided in order, except those on a calendar window whose position the node
            // cannot tell from the server's clock, which come last. A reply just before pins that clock.
            runtime.block_on(store.draw(&mut self.with_own_keys(draws, Op::to_peek, None)));
        }
        // An exhausted key is denied from memory until its next unit can be due, and no real clock jumps ahead like the
        // suite's. So the cached states are dropped.
        let local = DrawOptions { consistency: Consistency::Local, ..DrawOptions::EXACT };
        let mut reset = self.with_own_keys(draws, |_| Op::Reset, Some(local));
        runtime.block_on(store.draw(&mut reset));
        let mut own = self.with_own_keys(draws, |op| op, None);
        runtime.block_on(store.draw(&mut own));
        assert_eq!(own.failure_in(0..own.all().len()), None);
        assert!(own.all().iter().all(|draw| draw.decided_at() == now), "not decided at {now:?}");
        EngineReply::from_draws(&own)
    }
}

impl FreshEngine<'_> {
    /// The same draws under this engine's keys.
    fn with_own_keys(&self, draws: &Draws, map_op: impl Fn(Op) -> Op, options: Option<DrawOptions>) -> Draws {
        let mut own = Draws::new();
        for group in 0..draws.len() {
            own.begin_group();
            for draw in draws.group(group) {
                let key = draws.key(draw);
                let parts = [self.prefix.as_str()].into_iter().chain(key.parts());
                own.push_parts(parts, draw.scope(), *draw.limit(), map_op(draw.op()), draw.permit());
                own.set_options(options.unwrap_or(draw.options()));
            }
        }
        own
    }
}

fn one_server(brand: Brand) {
    let server = [RedisServer::setup(brand).clock(0.0).start()];
    StoreUnderTest::new(&server[0].url(), &server).check_suite();
}

fn sentinels(brand: Brand) {
    let setup = Sentinels::setup(brand).replicas(1).clock(0.0);
    // Sentinels time servers out by the machine's clock, so never here; master and replica time each other out by the
    // fixed clocks, hence the long timeout.
    let sentinels = setup.down_after_ms(60_000).set("repl-timeout", "2147483647").start();
    StoreUnderTest::new(&sentinels.url(), sentinels.servers()).check_suite();
}

fn cluster(brand: Brand) {
    let cluster = TestCluster::setup(brand).without_replicas().clock(0.0).start();
    for node in cluster.nodes() {
        // Nodes time each other out by the fixed clocks, which may jump by centuries.
        node.command(&["CONFIG", "SET", "cluster-node-timeout", "9000000000000"]).expect_ok();
    }
    StoreUnderTest::new(&cluster.url(), cluster.nodes()).check_suite();
}

#[test]
fn redis() {
    one_server(Brand::Redis);
}

#[test]
fn valkey() {
    one_server(Brand::Valkey);
}

#[test]
fn redis_sentinels() {
    sentinels(Brand::Redis);
}

#[test]
fn valkey_sentinels() {
    sentinels(Brand::Valkey);
}

#[test]
fn redis_cluster() {
    cluster(Brand::Redis);
}

#[test]
fn valkey_cluster() {
    cluster(Brand::Valkey);
}

//! The store on real servers, however they stand together, under the suite that every engine passes.
//!
//! The servers' clocks stand still at the very microsecond that the suite says, so their answers can be told to the letter,
//! and what lapses there lapses as it should.

use crate::connected;
use ratekeeper::redis::RedisStore;
use ratekeeper::{Draws, Micros, Op, Span, Store};
use ratekeeper_testkit::servers::{Brand, RedisServer, Sentinels, TestCluster};
use ratekeeper_testkit::suite::{self, SuiteCases};
use ratekeeper_testkit::{Engine, EngineReply};
use std::cell::Cell;
use tokio::runtime::{Builder, Runtime};

/// Servers keep what has drained for a second more, so a clock that falls back by less finds everything as it was.
const BACK: Span = Span::micros(999_999);

/// A store, and the servers that it is on.
struct Stage<'a> {
    servers: &'a [RedisServer],
    store: RedisStore,
    runtime: Runtime,
    engines: Cell<u32>,
}

impl<'a> Stage<'a> {
    fn new(url: &str, servers: &'a [RedisServer]) -> Stage<'a> {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(connected(url));
        Stage { servers, store, runtime, engines: Cell::new(0) }
    }

    /// An engine that has seen nobody yet.
    fn engine(&self) -> Fresh<'_> {
        self.engines.set(self.engines.get() + 1);
        Fresh { stage: self, prefix: format!("engine {}", self.engines.get()) }
    }

    fn passes_the_suite(&self) {
        suite::check_scenarios(|| self.engine());
        for (_, law) in suite::laws() {
            suite::check_traces(law, BACK, SuiteCases::Few, |_| self.engine());
        }
        suite::check_requests(SuiteCases::Few, || self.engine());
    }
}

/// A store that has seen nobody yet: its keys are its own, and all in one slot of a Cluster.
struct Fresh<'a> {
    stage: &'a Stage<'a>,
    prefix: String,
}

impl Engine for Fresh<'_> {
    fn decide(&mut self, now: Micros, draws: &Draws) -> Vec<EngineReply> {
        let Stage { servers, store, runtime, .. } = self.stage;
        servers.iter().for_each(|server| server.stop_clock(now));
        if draws.len() > 1 {
            // Requests of one call are decided in order, but for those whose calendar does not say where the server's clock is,
            // which come last. No node is so far off that was answered a moment ago.
            runtime.block_on(store.draw(&mut self.own(draws, Op::look)));
        }
        // A key that was found empty is denied from memory until its next unit can be due, and no clock goes forward as fast
        // as these. So what is remembered is forgotten.
        store.memory().draw_now(&mut self.own(draws, |_| Op::Clear));
        let mut own = self.own(draws, |act| act);
        runtime.block_on(store.draw(&mut own));
        assert_eq!(own.failure(0..own.all().len()), None);
        assert!(own.all().iter().all(|draw| draw.now() == now), "decided at another time than {now:?}");
        EngineReply::all(&own)
    }
}

impl Fresh<'_> {
    /// The same draws under keys of its own.
    fn own(&self, draws: &Draws, act: impl Fn(Op) -> Op) -> Draws {
        let mut own = Draws::new();
        for group in 0..draws.len() {
            own.begin();
            for draw in draws.group(group) {
                let key = draws.key(draw);
                let parts = [self.prefix.as_str()].into_iter().chain(key.parts());
                own.push_parts(parts, draw.scope(), *draw.limit(), act(draw.act()), draw.permit());
                own.set_terms(draw.terms());
            }
        }
        own
    }
}

fn one_server(brand: Brand) {
    let server = [RedisServer::setup(brand).clock(0.0).start()];
    Stage::new(&server[0].url(), &server).passes_the_suite();
}

fn sentinels(brand: Brand) {
    let setup = Sentinels::setup(brand).replicas(1).clock(0.0);
    // Sentinels give servers up by the machine's clock, and have no reason to; master and replica each other by their own.
    let fleet = setup.down_after_ms(60_000).set("repl-timeout", "2147483647").start();
    Stage::new(&fleet.url(), fleet.servers()).passes_the_suite();
}

fn cluster(brand: Brand) {
    let cluster = TestCluster::setup(brand).without_replicas().clock(0.0).start();
    for node in cluster.nodes() {
        // Nodes give each other up by their clocks: centuries may pass here.
        node.command(&["CONFIG", "SET", "cluster-node-timeout", "9000000000000"]).done();
    }
    Stage::new(&cluster.url(), cluster.nodes()).passes_the_suite();
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

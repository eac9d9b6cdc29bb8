//! Nodes that start and stop while the store is away.

use super::account::Extent;
use super::fleet::{Ask, FEW, Fleet};
use super::trial::Trial;
use ratekeeper_testkit::despite_stalls;
use ratekeeper_testkit::load::{LoadPlan, Running};
use ratekeeper_testkit::servers::RedisServer;
use std::time::{Duration, Instant};

#[test]
fn nodes_that_start_before_their_store() {
    despite_stalls(|| {
        let mut redis = RedisServer::start();
        redis.kill();
        let fleet = Fleet::start_each(2, |_, setup| setup.arguments(&["--store", &redis.url()]));
        for node in &fleet.nodes {
            assert!(node.greeting().contains("NOT THERE YET"), "{}", node.greeting());
        }
        let mut trial = Trial::without_store(fleet);
        trial.await_degraded();
        let few = trial.fleet.ask_for_few("meanwhile");
        assert_eq!(few.allowed, 2 * FEW, "each node thinks that it is the only one");
        trial.go_on(Duration::from_secs(2));
        trial.restore(|| redis.restart());
        trial.await_exact();
        trial.fleet.await_each_other();
        let account = trial.end();
        account.nobody_waits();
        account.modes_hold();
        account.extent_is(|_| Extent::All);
        account.recovers_by_itself();
        account.is_told_once();
        account.nobody_lingers(&redis);
    });
}

#[test]
fn a_node_stops_in_order_while_its_store_is_away() {
    despite_stalls(|| {
        let mut redis = RedisServer::start();
        let mut fleet = Fleet::start(1, &redis.url());
        let running = busy(&fleet);
        redis.kill();
        await_degraded(&running);
        stops_soon(&mut fleet, Duration::from_millis(500));
    });
}

#[test]
fn a_node_stops_in_order_while_its_store_stands_still() {
    despite_stalls(|| {
        let redis = RedisServer::start();
        let mut fleet = Fleet::start(1, &redis.url());
        let running = busy(&fleet);
        redis.pause();
        // Right after, so that it does not know yet and says goodbye to nobody.
        stops_soon(&mut fleet, Duration::from_millis(1500));
        drop(running);
    });
}

fn busy(fleet: &Fleet) -> Running {
    let load = LoadPlan::on(fleet.targets()).endpoints(&Ask::ALL.map(Ask::path)).connections(16).rate(100);
    let running = load.begin();
    running.await_more(50);
    running
}

fn await_degraded(running: &Running) {
    ratekeeper_testkit::within(ratekeeper_testkit::PATIENCE, "a node answers without its store", || {
        running.latest().iter().any(|answer| answer.is_degraded).then_some(())
    });
}

#[track_caller]
#[expect(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
pub(crate) fn stops_soon(fleet: &mut Fleet, soon: Duration) {
    let begun = Instant::now();
    let status = fleet.nodes[0].stop();
    assert!(status.success(), "{status}");
    assert!(begun.elapsed() <= soon, "it took {:?}", begun.elapsed());
}

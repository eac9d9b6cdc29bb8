//! Sentinel: the master is followed wherever it goes.

use super::{AMPLE, connect, connected, only, take, until_answered};
use ratekeeper::StoreFailure;
use ratekeeper::redis::NodePhase;
use ratekeeper_testkit::servers::{Brand, Sentinels};
use std::time::Duration;
use tokio::time::Instant;

/// The longest that may pass from a master's death to the first exact answer.
const FAILOVER: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_is_replaced_in_under_five_seconds_and_never_written_to_again() {
    for brand in Brand::ALL {
        let mut sentinels = Sentinels::setup(brand).start();
        let fleet = connected(&sentinels.url()).await;
        let deposed_node = only(&fleet);
        assert_eq!(take(&fleet, "a", AMPLE).await, Ok(1));
        let deposed = sentinels.kill_master();
        let killed = Instant::now();
        until_answered(&fleet, "a").await;
        let took = killed.elapsed();
        assert!(took < FAILOVER, "{took:?}");
        let master = sentinels.await_other_master(deposed);
        let promoted = sentinels.servers()[master].address();
        assert_eq!(only(&fleet).server().to_string(), promoted);
        assert_eq!(deposed_node.phase(), NodePhase::Retired);

        // It comes back as the master it was, until a Sentinel tells it otherwise.
        sentinels.server(deposed).restart();
        for _ in 0..200 {
            take(&fleet, "b", AMPLE).await.unwrap();
        }
        let commands = sentinels.servers()[deposed].info("total_commands_processed");
        let calls = sentinels.servers()[deposed].command(&["INFO", "commandstats"]);
        assert_eq!(calls.field("cmdstat_evalsha"), None, "{commands}");
        assert_eq!(sentinels.servers()[master].command(&["GET", "b"]).integer(), 200);
        let description = fleet.describe();
        assert!(description.sentinels.iter().all(|(_, is_there)| *is_there), "{description:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_deposed_while_it_runs_is_left() {
    let sentinels = Sentinels::start();
    let fleet = connected(&sentinels.url()).await;
    take(&fleet, "a", AMPLE).await.unwrap();
    let deposed = sentinels.master();
    let master = sentinels.fail_over();
    let promoted = sentinels.servers()[master].address();
    until_answered(&fleet, "a").await;
    super::eventually("the new master is called", async {
        while only(&fleet).server().to_string() != promoted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let calls = |index: usize| {
        let stats: &ratekeeper_testkit::servers::RedisServer = &sentinels.servers()[index];
        stats.command(&["INFO", "commandstats"]).field("cmdstat_evalsha").unwrap_or_default()
    };
    let before = calls(deposed);
    for _ in 0..100 {
        take(&fleet, "a", AMPLE).await.unwrap();
    }
    assert_eq!(calls(deposed), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_slept_through_its_fall_gets_nothing_new() {
    let mut sentinels = Sentinels::start();
    let fleet = connected(&sentinels.url()).await;
    take(&fleet, "a", AMPLE).await.unwrap();
    let sleeper = sentinels.master();
    sentinels.server(sleeper).pause();
    let mut unsure = 0;
    let began = Instant::now();
    while let Err(failure) = take(&fleet, "a", Duration::from_millis(100)).await {
        unsure += i64::from(failure == StoreFailure::Timeout);
        assert!(began.elapsed() < super::PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let master = sentinels.await_other_master(sleeper);
    sentinels.server(sleeper).resume();
    for _ in 0..100 {
        take(&fleet, "b", AMPLE).await.unwrap();
    }
    assert_eq!(sentinels.servers()[master].command(&["GET", "b"]).integer(), 100);
    // It finds what was sent to it before it was known to sleep, and no call that began later.
    let calls =
        sentinels.servers()[sleeper].command(&["INFO", "commandstats"]).field("cmdstat_incrby").unwrap();
    let calls = calls.split([',', '=']).nth(1).unwrap().parse::<i64>().unwrap();
    assert!(calls <= 1 + unsure, "{calls} calls, {unsure} without an answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_are_away_are_done_without() {
    let mut sentinels = Sentinels::start();
    sentinels.sentinel(0).kill();
    sentinels.sentinel(1).kill();
    let fleet = connected(&sentinels.url()).await;
    assert_eq!(take(&fleet, "a", AMPLE).await, Ok(1));
    // Without any of them the master is still the master.
    sentinels.sentinel(2).kill();
    assert_eq!(take(&fleet, "a", AMPLE).await, Ok(2));
    let unknown = connect(&sentinels.url());
    assert!(!unknown.ready(Duration::from_millis(500)).await);
    assert!(unknown.route(b"a").is_err());
    for index in 0..3 {
        sentinels.sentinel(index).restart();
    }
    assert_eq!(until_answered(&unknown, "a").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_and_servers_know_different_users() {
    let mut sentinels = Sentinels::start();
    for index in 0..3 {
        let rules =
            ["ACL", "SETUSER", "watcher", "on", ">w@tch", "&*", "-@all", "+hello", "+sentinel", "+subscribe"];
        sentinels.sentinel(index).command(&rules).done();
    }
    for server in sentinels.servers() {
        server.command(&["ACL", "SETUSER", "gate", "on", ">s3cret", "~*", "+@all"]).done();
    }
    let url = sentinels.url().replace("://", "://gate:s3cret@");
    let fleet = connected(&format!("{url}?sentinel_user=watcher&sentinel_password=w%40tch")).await;
    assert_eq!(take(&fleet, "a", AMPLE).await, Ok(1));
    assert!(sentinels.sentinel(0).command(&["CLIENT", "LIST"]).text().contains("user=watcher"));
    let stranger = connect(&format!("{url}?sentinel_user=watcher&sentinel_password=wrong"));
    assert!(!stranger.ready(Duration::from_millis(500)).await);
}

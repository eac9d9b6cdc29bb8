//! Redis Sentinel: the client follows the master across failovers.

use super::{AMPLE_TIMEOUT, connect, connected, only_node, take, until_success};
use crate::client::node::NodePhase;
use ratekeeper::StoreFailure;
use ratekeeper_testkit::servers::{Brand, Sentinels};
use std::time::Duration;
use tokio::time::Instant;

/// Upper bound on the time from a master's death to the first successful call.
const MAX_FAILOVER_TIME: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_is_replaced_within_five_seconds_and_never_written_to_again() {
    for brand in Brand::ALL {
        let mut sentinels = Sentinels::setup(brand).start();
        let server_set = connected(&sentinels.url()).await;
        let deposed_node = only_node(&server_set);
        assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Ok(1));
        let deposed = sentinels.kill_master();
        let killed = Instant::now();
        until_success(&server_set, "a").await;
        let took = killed.elapsed();
        assert!(took < MAX_FAILOVER_TIME, "{took:?}");
        let master = sentinels.wait_for_other_master(deposed);
        let promoted = sentinels.servers()[master].address();
        assert_eq!(only_node(&server_set).server.to_string(), promoted);
        assert_eq!(deposed_node.phase(), NodePhase::Retired);

        // It comes back as a master, until a Sentinel reconfigures it.
        sentinels.server(deposed).restart();
        for _ in 0..200 {
            take(&server_set, "b", AMPLE_TIMEOUT).await.unwrap();
        }
        let commands = sentinels.servers()[deposed].info("total_commands_processed");
        let calls = sentinels.servers()[deposed].command(&["INFO", "commandstats"]);
        assert_eq!(calls.field("cmdstat_evalsha"), None, "{commands}");
        assert_eq!(sentinels.servers()[master].command(&["GET", "b"]).integer(), 200);
        let sentinels = server_set.sentinels();
        assert!(sentinels.iter().all(|(_, is_up)| *is_up), "{sentinels:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_demoted_while_running_is_abandoned() {
    let sentinels = Sentinels::start();
    let server_set = connected(&sentinels.url()).await;
    take(&server_set, "a", AMPLE_TIMEOUT).await.unwrap();
    let deposed = sentinels.master();
    let master = sentinels.fail_over();
    let promoted = sentinels.servers()[master].address();
    until_success(&server_set, "a").await;
    super::eventually("the new master is routed to", async {
        while only_node(&server_set).server.to_string() != promoted {
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
        take(&server_set, "a", AMPLE_TIMEOUT).await.unwrap();
    }
    assert_eq!(calls(deposed), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_paused_during_its_failover_gets_no_new_calls() {
    let mut sentinels = Sentinels::start();
    let server_set = connected(&sentinels.url()).await;
    take(&server_set, "a", AMPLE_TIMEOUT).await.unwrap();
    let paused = sentinels.master();
    sentinels.server(paused).pause();
    let mut unacked = 0;
    let began = Instant::now();
    while let Err(failure) = take(&server_set, "a", Duration::from_millis(100)).await {
        unacked += i64::from(failure == StoreFailure::Timeout);
        assert!(began.elapsed() < super::TEST_TIMEOUT);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let master = sentinels.wait_for_other_master(paused);
    sentinels.server(paused).resume();
    for _ in 0..100 {
        take(&server_set, "b", AMPLE_TIMEOUT).await.unwrap();
    }
    assert_eq!(sentinels.servers()[master].command(&["GET", "b"]).integer(), 100);
    // It received the calls sent before it was known to be down, and none that began later.
    let calls =
        sentinels.servers()[paused].command(&["INFO", "commandstats"]).field("cmdstat_incrby").unwrap();
    let calls = calls.split([',', '=']).nth(1).unwrap().parse::<i64>().unwrap();
    assert!(calls <= 1 + unacked, "{calls} calls, {unacked} timed out");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_sentinels_are_tolerated() {
    let mut sentinels = Sentinels::start();
    sentinels.sentinel(0).kill();
    sentinels.sentinel(1).kill();
    let server_set = connected(&sentinels.url()).await;
    assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Ok(1));
    // Without any Sentinel the last known master is kept.
    sentinels.sentinel(2).kill();
    assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Ok(2));
    let unknown = connect(&sentinels.url());
    assert!(!unknown.wait_until_ready(Duration::from_millis(500)).await);
    assert!(unknown.route(b"a").is_err());
    for index in 0..3 {
        sentinels.sentinel(index).restart();
    }
    assert_eq!(until_success(&unknown, "a").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_and_servers_have_separate_credentials() {
    let mut sentinels = Sentinels::start();
    for index in 0..3 {
        let rules =
            ["ACL", "SETUSER", "watcher", "on", ">w@tch", "&*", "-@all", "+hello", "+sentinel", "+subscribe"];
        sentinels.sentinel(index).command(&rules).expect_ok();
    }
    for server in sentinels.servers() {
        server.command(&["ACL", "SETUSER", "gate", "on", ">s3cret", "~*", "+@all"]).expect_ok();
    }
    let url = sentinels.url().replace("://", "://gate:s3cret@");
    let server_set = connected(&format!("{url}?sentinel_user=watcher&sentinel_password=w%40tch")).await;
    assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Ok(1));
    assert!(sentinels.sentinel(0).command(&["CLIENT", "LIST"]).text().contains("user=watcher"));
    let unauthorized = connect(&format!("{url}?sentinel_user=watcher&sentinel_password=wrong"));
    assert!(!unauthorized.wait_until_ready(Duration::from_millis(500)).await);
}

//! Redis Cluster: the client follows slots as they move, and a dead node affects only its own slots.

use super::{AMPLE_TIMEOUT, add, connected, eventually, integer, take, until_success};
use crate::client::node::NodePhase;
use crate::client::server_set::ServerSet;
use ratekeeper::StoreFailure;
use ratekeeper_testkit::servers::{Brand, TestCluster};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

fn redirects(server_set: &ServerSet) -> u64 {
    server_set.nodes().iter().map(|node| node.counts().redirects).sum()
}

fn server_of_key(server_set: &ServerSet, key: &str) -> String {
    server_set.route(key.as_bytes()).unwrap().node.server.to_string()
}

/// Enough keys for every initial master to own some.
fn keys() -> Vec<String> {
    (0..60).map(|key| format!("user:{key}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_routed_by_the_clusters_slot_map() {
    for brand in Brand::ALL {
        let cluster = TestCluster::setup(brand).start();
        let server_set = connected(&cluster.url()).await;
        for key in keys() {
            let route = server_set.route(key.as_bytes()).unwrap();
            assert_eq!(route.slot, cluster.slot(&key));
            assert_eq!(take(&server_set, &key, AMPLE_TIMEOUT).await, Ok(1));
        }
        assert_eq!(redirects(&server_set), 0);
        let description = server_set.report();
        assert_eq!((description.servers.len(), description.uncovered_slots), (3, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migrating_slot_is_followed_and_no_command_runs_twice() {
    let mut cluster = TestCluster::start();
    let server_set = connected(&cluster.url()).await;
    let added = cluster.add_node();
    let slot = cluster.slot("{user}");
    let [known, new] = ["{user}:known", "{user}:new"];
    let ask = async |key: &str| {
        let node = server_set.route(b"user").unwrap().node;
        let mut results = server_set.execute(&node, vec![add(key, 1)], Instant::now() + AMPLE_TIMEOUT).await;
        results.remove(0).map(|value| integer(&value))
    };
    assert_eq!(ask(known).await, Ok(1));

    // While the slot migrates, the old node answers for keys it still has, and redirects the others to the new node.
    let from = cluster.begin_move(slot, added);
    assert_eq!((ask(known).await, redirects(&server_set)), (Ok(2), 0));
    assert_eq!(ask(new).await, Ok(1));
    assert_eq!(
        cluster.nodes()[added].command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]).integer(),
        1
    );
    cluster.move_keys(slot, from, added);
    assert_eq!((ask(known).await, ask(new).await), (Ok(3), Ok(2)));
    cluster.end_move(slot, from, added);
    // After the migration the first call is redirected, and soon none is.
    assert_eq!((ask(known).await, ask(new).await), (Ok(4), Ok(3)));
    let to = cluster.nodes()[added].address();
    eventually("the new node is routed to", async {
        while server_of_key(&server_set, "user") != to {
            assert!(ask("{user}:probe").await.is_ok());
        }
    })
    .await;
    let before = redirects(&server_set);
    assert_eq!((ask(known).await, redirects(&server_set)), (Ok(5), before));
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_move_under_load_without_a_lost_or_doubled_unit() {
    let mut cluster = TestCluster::setup(Brand::Redis).without_replicas().start();
    let server_set = Arc::new(connected(&cluster.url()).await);
    let added = cluster.add_node();
    let keys = keys();
    let slots: Vec<u16> = keys.iter().map(|key| cluster.slot(key)).collect();
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let load = {
        let (server_set, keys, is_over) = (Arc::clone(&server_set), keys.clone(), Arc::clone(&is_over));
        tokio::spawn(async move {
            let mut taken = vec![0_i64; keys.len()];
            let mut unreachable = 0;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                for (key, taken) in keys.iter().zip(&mut taken) {
                    match take(&server_set, key, AMPLE_TIMEOUT).await {
                        Ok(number) => {
                            *taken += 1;
                            assert_eq!(number, *taken, "{key}");
                        }
                        Err(StoreFailure::Unreachable) => unreachable += 1,
                        Err(other) => panic!("{key}: {other}"),
                    }
                }
            }
            (taken, unreachable)
        })
    };
    for slot in slots {
        cluster.move_slots(slot..slot + 1, added);
    }
    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    let (taken, unreachable) = load.await.unwrap();
    assert!(taken.iter().all(|taken| *taken > 0));
    assert_eq!(unreachable, 0, "{} units were taken", taken.iter().sum::<i64>());
    for (key, taken) in keys.iter().zip(taken) {
        assert_eq!(cluster.nodes()[added].command(&["GET", key]).integer(), taken, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_fails_only_its_slots_until_its_replica_takes_over() {
    let mut cluster = TestCluster::start();
    let server_set = Arc::new(connected(&cluster.url()).await);
    let keys = keys();
    for key in &keys {
        take(&server_set, key, AMPLE_TIMEOUT).await.unwrap();
    }
    let victim = keys[0].clone();
    let dead = server_of_key(&server_set, &victim);
    let others: Vec<String> =
        keys.into_iter().filter(|key| server_of_key(&server_set, key) != dead).collect();
    let slot = cluster.slot(&victim);
    let owner = cluster.kill_owner(slot);
    assert_eq!(cluster.nodes()[owner].address(), dead);
    let killed = Instant::now();
    // Calls to the other slots succeed throughout.
    let others = {
        let (server_set, others) = (Arc::clone(&server_set), others.clone());
        tokio::spawn(async move {
            loop {
                for key in &others {
                    let result = take(&server_set, key, AMPLE_TIMEOUT).await;
                    assert!(result.is_ok(), "{key}: {result:?}");
                }
            }
        })
    };
    assert!(until_success(&server_set, &victim).await >= 1);
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(!others.is_finished());
    others.abort();
    assert!(others.await.unwrap_err().is_cancelled());
    let replica = cluster.wait_for_other_owner(slot, owner);
    let promoted = cluster.nodes()[replica].address();
    eventually("the promoted replica is routed to", async {
        while server_of_key(&server_set, &victim) != promoted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // The old master comes back as a replica, and receives no calls.
    cluster.node(owner).restart();
    for _ in 0..50 {
        take(&server_set, &victim, AMPLE_TIMEOUT).await.unwrap();
    }
    let calls = cluster.nodes()[owner].command(&["INFO", "commandstats"]).field("cmdstat_evalsha");
    let has_no_calls = |calls: String| calls.contains("calls=0");
    assert!(calls.is_none_or(has_no_calls));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_replica_is_found_soon_even_without_calls() {
    let mut cluster = TestCluster::start();
    let server_set = connected(&cluster.url()).await;
    let key = "user:1";
    let owner = cluster.kill_owner(cluster.slot(key));
    let replica = cluster.wait_for_other_owner(cluster.slot(key), owner);
    let (agreed_at, promoted) = (Instant::now(), cluster.nodes()[replica].address());
    eventually("the promoted replica is routed to", async {
        while server_of_key(&server_set, key) != promoted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let took = agreed_at.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?} after all nodes had agreed on the new owner");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_reports_down_counts_as_down() {
    let setup =
        TestCluster::setup(Brand::Redis).without_replicas().set("cluster-require-full-coverage", "yes");
    let mut cluster = setup.start();
    let server_set = connected(&cluster.url()).await;
    let killed = cluster.kill_owner(0);
    let lost = cluster.nodes()[killed].address();
    let nodes = server_set.nodes();
    for node in nodes.iter().filter(|node| node.server.to_string() != lost) {
        // The node runs, and reports that the cluster is down even without calls.
        super::until_phase(node, NodePhase::Down).await;
        let error = node.failure().map(|failure| failure.message).unwrap_or_default();
        assert!(error.contains("cluster is down"), "{error}");
    }
    cluster.node(killed).restart();
    for node in &nodes {
        super::until_phase(node, NodePhase::Up).await;
    }
    for key in keys() {
        assert_eq!(until_success(&server_set, &key).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manual_failover_fails_no_call() {
    let cluster = TestCluster::setup(Brand::Valkey).start();
    let server_set = Arc::new(connected(&cluster.url()).await);
    let key = "user:1";
    let owner = cluster.owner(cluster.slot(key));
    let load = {
        let server_set = Arc::clone(&server_set);
        tokio::spawn(async move {
            let mut taken = 0;
            loop {
                taken += 1;
                assert_eq!(take(&server_set, key, AMPLE_TIMEOUT).await, Ok(taken));
            }
        })
    };
    // The replicas follow the three masters in the node list.
    cluster.fail_over_to(owner + 3);
    let promoted = cluster.nodes()[owner + 3].address();
    eventually("the promoted replica is routed to", async {
        while server_of_key(&server_set, key) != promoted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    load.abort();
    assert!(load.await.unwrap_err().is_cancelled());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_cluster_is_accepted_although_its_epochs_restart() {
    let cluster = TestCluster::setup(Brand::Redis).without_replicas().start();
    for node in cluster.nodes() {
        node.command(&["CLUSTER", "BUMPEPOCH"]).expect_ok();
    }
    let server_set = connected(&cluster.url()).await;
    for node in cluster.nodes() {
        node.command(&["CLUSTER", "RESET", "HARD"]).expect_ok();
    }
    // One node owns all slots, one joins it, and one stays outside.
    let owner = &cluster.nodes()[2];
    owner.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).expect_ok();
    let bus = owner.command(&["CONFIG", "GET", "cluster-port"]).array()[1].text();
    let other = &cluster.nodes()[1];
    other.command(&["CLUSTER", "MEET", "127.0.0.1", &owner.port().to_string(), &bus]).expect_ok();
    eventually("the new node is routed to for all keys", async {
        while server_set.nodes().len() > 1 || server_of_key(&server_set, "user") != owner.address() {
            let _ = take(&server_set, "user", AMPLE_TIMEOUT).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(until_success(&server_set, "user").await >= 1);
}

//! Cluster: slots are followed wherever they go, and a dead node takes only its own with it.

use super::{AMPLE, add, connected, eventually, number, take, until_answered};
use ratekeeper::StoreFailure;
use ratekeeper::redis::{NodePhase, ServerSet};
use ratekeeper_testkit::servers::{Brand, TestCluster};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

fn redirects(fleet: &ServerSet) -> u64 {
    fleet.nodes().iter().map(|node| node.counts().redirects).sum()
}

fn place(fleet: &ServerSet, key: &str) -> String {
    fleet.route(key.as_bytes()).unwrap().node.server().to_string()
}

/// Keys of which each begin-as-master node has some.
fn keys() -> Vec<String> {
    (0..60).map(|key| format!("user:{key}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_where_the_cluster_says() {
    for brand in Brand::ALL {
        let cluster = TestCluster::setup(brand).start();
        let fleet = connected(&cluster.url()).await;
        for key in keys() {
            let route = fleet.route(key.as_bytes()).unwrap();
            assert_eq!(route.slot, cluster.slot(&key));
            assert_eq!(take(&fleet, &key, AMPLE).await, Ok(1));
        }
        assert_eq!(redirects(&fleet), 0);
        let description = fleet.describe();
        assert_eq!((description.servers.len(), description.uncovered_slots), (3, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_is_followed_and_nothing_runs_twice() {
    let mut cluster = TestCluster::start();
    let fleet = connected(&cluster.url()).await;
    let added = cluster.add_node();
    let slot = cluster.slot("{user}");
    let [known, new] = ["{user}:known", "{user}:new"];
    let ask = async |key: &str| {
        let node = fleet.route(b"user").unwrap().node;
        let mut results = fleet.ask(&node, vec![add(key, 1)], Instant::now() + AMPLE).await;
        results.remove(0).map(|value| number(&value))
    };
    assert_eq!(ask(known).await, Ok(1));

    // On its way, what the old node has is there, and what it has not is asked of the new one.
    let from = cluster.begin_move(slot, added);
    assert_eq!((ask(known).await, redirects(&fleet)), (Ok(2), 0));
    assert_eq!(ask(new).await, Ok(1));
    assert_eq!(
        cluster.nodes()[added].command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]).integer(),
        1
    );
    cluster.move_keys(slot, from, added);
    assert_eq!((ask(known).await, ask(new).await), (Ok(3), Ok(2)));
    cluster.end_move(slot, from, added);
    // Moved for good: the first call is sent on, and soon none is.
    assert_eq!((ask(known).await, ask(new).await), (Ok(4), Ok(3)));
    let to = cluster.nodes()[added].address();
    eventually("the new node is found", async {
        while place(&fleet, "user") != to {
            assert!(ask("{user}:probe").await.is_ok());
        }
    })
    .await;
    let before = redirects(&fleet);
    assert_eq!((ask(known).await, redirects(&fleet)), (Ok(5), before));
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_move_under_load_without_a_lost_or_doubled_unit() {
    let mut cluster = TestCluster::setup(Brand::Redis).without_replicas().start();
    let fleet = Arc::new(connected(&cluster.url()).await);
    let added = cluster.add_node();
    let keys = keys();
    let slots: Vec<u16> = keys.iter().map(|key| cluster.slot(key)).collect();
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let load = {
        let (fleet, keys, is_over) = (Arc::clone(&fleet), keys.clone(), Arc::clone(&is_over));
        tokio::spawn(async move {
            let mut taken = vec![0_i64; keys.len()];
            let mut refused = 0;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                for (key, taken) in keys.iter().zip(&mut taken) {
                    match take(&fleet, key, AMPLE).await {
                        Ok(number) => {
                            *taken += 1;
                            assert_eq!(number, *taken, "{key}");
                        }
                        Err(StoreFailure::Unreachable) => refused += 1,
                        Err(other) => panic!("{key}: {other}"),
                    }
                }
            }
            (taken, refused)
        })
    };
    for slot in slots {
        cluster.move_slots(slot..slot + 1, added);
    }
    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    let (taken, refused) = load.await.unwrap();
    assert!(taken.iter().all(|taken| *taken > 0));
    assert_eq!(refused, 0, "{} were taken", taken.iter().sum::<i64>());
    for (key, taken) in keys.iter().zip(taken) {
        assert_eq!(cluster.nodes()[added].command(&["GET", key]).integer(), taken, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_fails_its_slots_alone_until_its_replica_takes_over() {
    let mut cluster = TestCluster::start();
    let fleet = Arc::new(connected(&cluster.url()).await);
    let keys = keys();
    for key in &keys {
        take(&fleet, key, AMPLE).await.unwrap();
    }
    let victim = keys[0].clone();
    let dead = place(&fleet, &victim);
    let others: Vec<String> = keys.into_iter().filter(|key| place(&fleet, key) != dead).collect();
    let slot = cluster.slot(&victim);
    let owner = cluster.kill_owner(slot);
    assert_eq!(cluster.nodes()[owner].address(), dead);
    let killed = Instant::now();
    // Nobody else notices, all the while that it takes.
    let others = {
        let (fleet, others) = (Arc::clone(&fleet), others.clone());
        tokio::spawn(async move {
            loop {
                for key in &others {
                    let result = take(&fleet, key, AMPLE).await;
                    assert!(result.is_ok(), "{key}: {result:?}");
                }
            }
        })
    };
    assert!(until_answered(&fleet, &victim).await >= 1);
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(!others.is_finished());
    others.abort();
    assert!(others.await.unwrap_err().is_cancelled());
    let replica = cluster.await_other_owner(slot, owner);
    let promoted = cluster.nodes()[replica].address();
    eventually("the promoted replica is found", async {
        while place(&fleet, &victim) != promoted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // What comes back is a replica, and gets nothing.
    cluster.node(owner).restart();
    for _ in 0..50 {
        take(&fleet, &victim, AMPLE).await.unwrap();
    }
    let calls = cluster.nodes()[owner].command(&["INFO", "commandstats"]).field("cmdstat_evalsha");
    let is_of_replication = |calls: String| calls.contains("calls=0");
    assert!(calls.is_none_or(is_of_replication));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_replica_is_found_soon_even_if_nobody_calls() {
    let mut cluster = TestCluster::start();
    let fleet = connected(&cluster.url()).await;
    let key = "user:1";
    let owner = cluster.kill_owner(cluster.slot(key));
    let replica = cluster.await_other_owner(cluster.slot(key), owner);
    let (agreed, promoted) = (Instant::now(), cluster.nodes()[replica].address());
    eventually("the promoted replica is found", async {
        while place(&fleet, key) != promoted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let took = agreed.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?} after all nodes had agreed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_down_is_away() {
    let whole =
        TestCluster::setup(Brand::Redis).without_replicas().set("cluster-require-full-coverage", "yes");
    let mut cluster = whole.start();
    let fleet = connected(&cluster.url()).await;
    let killed = cluster.kill_owner(0);
    let lost = cluster.nodes()[killed].address();
    let nodes = fleet.nodes();
    for node in nodes.iter().filter(|node| node.server().to_string() != lost) {
        // It runs, and says that it serves nobody, whether somebody calls or not.
        super::until(node, NodePhase::Down).await;
        let trouble = node.trouble().unwrap_or_default();
        assert!(trouble.contains("cluster is down"), "{trouble}");
    }
    cluster.node(killed).restart();
    for node in &nodes {
        super::until(node, NodePhase::Up).await;
    }
    for key in keys() {
        assert_eq!(until_answered(&fleet, &key).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_in_order_is_noticed_by_nobody() {
    let cluster = TestCluster::setup(Brand::Valkey).start();
    let fleet = Arc::new(connected(&cluster.url()).await);
    let key = "user:1";
    let owner = cluster.owner(cluster.slot(key));
    let load = {
        let fleet = Arc::clone(&fleet);
        tokio::spawn(async move {
            let mut taken = 0;
            loop {
                taken += 1;
                assert_eq!(take(&fleet, key, AMPLE).await, Ok(taken));
            }
        })
    };
    // Behind the three masters are their replicas.
    cluster.fail_over_to(owner + 3);
    let promoted = cluster.nodes()[owner + 3].address();
    eventually("the promoted replica is found", async {
        while place(&fleet, key) != promoted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    load.abort();
    assert!(load.await.unwrap_err().is_cancelled());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_set_up_anew_is_believed_though_it_counts_elections_from_the_start() {
    let cluster = TestCluster::setup(Brand::Redis).without_replicas().start();
    for node in cluster.nodes() {
        node.command(&["CLUSTER", "BUMPEPOCH"]).done();
    }
    let fleet = connected(&cluster.url()).await;
    for node in cluster.nodes() {
        node.command(&["CLUSTER", "RESET", "HARD"]).done();
    }
    // One node for all slots, one that meets it, and one that is left over.
    let anew = &cluster.nodes()[2];
    anew.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).done();
    let bus = anew.command(&["CONFIG", "GET", "cluster-port"]).array()[1].text();
    let other = &cluster.nodes()[1];
    other.command(&["CLUSTER", "MEET", "127.0.0.1", &anew.port().to_string(), &bus]).done();
    eventually("the new node has all keys", async {
        while fleet.nodes().len() > 1 || place(&fleet, "user") != anew.address() {
            let _ = take(&fleet, "user", AMPLE).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(until_answered(&fleet, "user").await >= 1);
}

//! Several servers together: Sentinels promote another master, and a cluster another owner of its slots.

#![expect(clippy::unwrap_used, reason = "an unwrap in a test helper fails the test, as it should")]

use ratekeeper_testkit::servers::{Brand, RedisServer, RespClient, Sentinels, TestCluster};
use ratekeeper_testkit::{TEST_TIMEOUT, wait_for};

#[test]
fn sentinels_replace_a_killed_master() {
    for brand in Brand::ALL {
        let mut sentinels = Sentinels::setup(brand).start();
        assert_eq!((sentinels.master(), sentinels.addresses().len(), sentinels.servers().len()), (0, 3, 3));
        sentinels.servers()[0].command(&["SET", "a", "1"]).expect_ok();
        assert_eq!(sentinels.servers()[0].command(&["WAIT", "2", "5000"]).integer(), 2);
        let old = sentinels.kill_master();
        let new = sentinels.wait_for_other_master(old);
        assert_eq!(sentinels.servers()[new].command(&["INCR", "a"]).integer(), 2);
    }
}

#[test]
fn sentinels_and_servers_may_have_passwords() {
    for brand in Brand::ALL {
        let mut sentinels =
            Sentinels::setup(brand).password("of data").sentinel_password("of sentinels").start();
        for (address, password) in [
            (sentinels.addresses()[0].clone(), "of sentinels"),
            (sentinels.servers()[1].address(), "of data"),
        ] {
            let mut client = RespClient::connect_tcp(&address).unwrap();
            assert!(client.call(&["ROLE"]).unwrap().error().unwrap().starts_with("NOAUTH"));
            client.call(&["AUTH", password]).unwrap().expect_ok();
            client.call(&["ROLE"]).unwrap().expect_ok();
        }
        let old = sentinels.kill_master();
        sentinels.wait_for_other_master(old);
    }
}

#[test]
fn sentinels_replace_a_running_master_and_a_paused_one() {
    let mut sentinels = Sentinels::setup(Brand::Redis).replicas(1).start();
    let first = sentinels.fail_over();
    assert_eq!(first, 1);
    wait_for(TEST_TIMEOUT, "the old master is a replica", || {
        (sentinels.servers()[0].role() == "slave"
            && sentinels.servers()[0].info("master_link_status") == "up")
            .then_some(())
    });
    sentinels.server(first).pause();
    assert_eq!(sentinels.wait_for_other_master(first), 0);
    sentinels.server(first).resume();
    wait_for(TEST_TIMEOUT, "the paused master becomes a replica", || {
        (sentinels.servers()[first].role() == "slave").then_some(())
    });
}

fn owners(cluster: &TestCluster) -> Vec<usize> {
    [0, 6000, 16383].map(|slot| cluster.owner(slot)).to_vec()
}

#[test]
fn a_replica_takes_over_the_slots_of_a_killed_master() {
    for brand in Brand::ALL {
        let mut cluster = TestCluster::setup(brand).start();
        assert_eq!((owners(&cluster), cluster.nodes().len()), (vec![0, 1, 2], 6));
        assert_eq!(cluster.slot("{user}a"), cluster.slot("{user}b"));
        assert_eq!(cluster.kill_owner(0), 0);
        assert_eq!(cluster.wait_for_other_owner(0, 0), 3);
        cluster.node(0).restart();
        assert_eq!(owners(&cluster), [3, 1, 2]);
        wait_for(TEST_TIMEOUT, "a restarted master is a replica", || {
            (cluster.nodes()[0].info("master_link_status") == "up").then_some(())
        });
        cluster.fail_over_to(0);
        assert_eq!(owners(&cluster), [0, 1, 2]);
    }
}

/// Sends a command to one node, and returns its reply or redirect as text.
fn ask(node: &RedisServer, words: &[&str]) -> String {
    let reply = RespClient::connect_tcp(&node.address()).unwrap().call(words).unwrap();
    reply.error().map_or_else(|| reply.text(), str::to_owned)
}

#[test]
fn slots_move_with_their_keys_to_a_new_node_and_back() {
    let mut cluster = TestCluster::setup(Brand::Redis).without_replicas().start();
    let slot = cluster.slot("{a}");
    let old = cluster.owner(slot);
    for index in 0..250 {
        assert_eq!(ask(&cluster.nodes()[old], &["SET", &format!("{{a}}{index}"), "x"]), "OK");
    }
    let new = cluster.add_node();
    let address = cluster.nodes()[new].address();

    assert_eq!(cluster.begin_move(slot, new), old);
    assert_eq!(ask(&cluster.nodes()[old], &["GET", "{a}0"]), "x");
    assert_eq!(ask(&cluster.nodes()[old], &["GET", "{a}other"]), format!("ASK {slot} {address}"));
    cluster.move_keys(slot, old, new);
    assert_eq!(ask(&cluster.nodes()[old], &["GET", "{a}0"]), format!("ASK {slot} {address}"));
    cluster.end_move(slot, old, new);
    assert_eq!(ask(&cluster.nodes()[old], &["GET", "{a}0"]), format!("MOVED {slot} {address}"));
    assert_eq!(ask(&cluster.nodes()[new], &["GET", "{a}249"]), "x");
    assert_eq!(cluster.owner(slot), new);

    cluster.move_slots(slot..slot + 3, old);
    assert_eq!(cluster.owner(slot), old);
    assert_eq!(
        cluster.nodes()[old].command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]).integer(),
        250
    );
}

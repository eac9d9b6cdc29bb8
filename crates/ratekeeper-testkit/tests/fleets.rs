//! Several servers together: Sentinels find another master, and a cluster another owner for its slots.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

use ratekeeper_testkit::servers::{Brand, RedisServer, RespClient, Sentinels, TestCluster};
use ratekeeper_testkit::{PATIENCE, within};

#[test]
fn sentinels_replace_a_killed_master() {
    for brand in Brand::ALL {
        let mut fleet = Sentinels::setup(brand).start();
        assert_eq!((fleet.master(), fleet.addresses().len(), fleet.servers().len()), (0, 3, 3));
        fleet.servers()[0].command(&["SET", "a", "1"]).done();
        assert_eq!(fleet.servers()[0].command(&["WAIT", "2", "5000"]).integer(), 2);
        let old = fleet.kill_master();
        let new = fleet.await_other_master(old);
        assert_eq!(fleet.servers()[new].command(&["INCR", "a"]).integer(), 2);
    }
}

#[test]
fn sentinels_and_servers_may_have_passwords() {
    for brand in Brand::ALL {
        let mut fleet = Sentinels::setup(brand).password("of data").sentinel_password("of sentinels").start();
        for (address, password) in
            [(fleet.addresses()[0].clone(), "of sentinels"), (fleet.servers()[1].address(), "of data")]
        {
            let mut client = RespClient::tcp(&address).unwrap();
            assert!(client.ask(&["ROLE"]).unwrap().error().unwrap().starts_with("NOAUTH"));
            client.ask(&["AUTH", password]).unwrap().done();
            client.ask(&["ROLE"]).unwrap().done();
        }
        let old = fleet.kill_master();
        fleet.await_other_master(old);
    }
}

#[test]
fn sentinels_replace_a_paused_master_and_one_that_is_well() {
    let mut fleet = Sentinels::setup(Brand::Redis).replicas(1).start();
    let first = fleet.fail_over();
    assert_eq!(first, 1);
    within(PATIENCE, "the old master is a replica", || {
        (fleet.servers()[0].role() == "slave" && fleet.servers()[0].info("master_link_status") == "up")
            .then_some(())
    });
    fleet.server(first).pause();
    assert_eq!(fleet.await_other_master(first), 0);
    fleet.server(first).resume();
    within(PATIENCE, "who was paused is told", || (fleet.servers()[first].role() == "slave").then_some(()));
}

fn owners(cluster: &TestCluster) -> Vec<usize> {
    [0, 6000, 16383].map(|slot| cluster.owner(slot)).to_vec()
}

#[test]
fn a_cluster_gives_the_slots_of_a_killed_master_to_its_replica() {
    for brand in Brand::ALL {
        let mut cluster = TestCluster::setup(brand).start();
        assert_eq!((owners(&cluster), cluster.nodes().len()), (vec![0, 1, 2], 6));
        assert_eq!(cluster.slot("{user}a"), cluster.slot("{user}b"));
        assert_eq!(cluster.kill_owner(0), 0);
        assert_eq!(cluster.await_other_owner(0, 0), 3);
        cluster.node(0).restart();
        assert_eq!(owners(&cluster), [3, 1, 2]);
        within(PATIENCE, "who comes back is a replica", || {
            (cluster.nodes()[0].info("master_link_status") == "up").then_some(())
        });
        cluster.fail_over_to(0);
        assert_eq!(owners(&cluster), [0, 1, 2]);
    }
}

/// Asks a node as a client does that does not know better.
fn ask(node: &RedisServer, words: &[&str]) -> String {
    let reply = RespClient::tcp(&node.address()).unwrap().ask(words).unwrap();
    reply.error().map_or_else(|| reply.text(), str::to_owned)
}

#[test]
fn slots_move_with_their_keys_also_to_a_new_node() {
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

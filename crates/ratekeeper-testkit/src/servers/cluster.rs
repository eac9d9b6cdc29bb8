//! A Cluster: masters that share the slots, and a replica of each.

use super::redis::{Brand, RedisServer, RedisSetup};
use super::resp::RespReply;
use crate::patience::{Must, PATIENCE, fail, within};
use std::ops::Range;

/// How many slots there are in every cluster.
pub const SLOTS: u16 = 16384;
/// How many keys go to another node at once when their slot moves.
const KEYS_AT_ONCE: &str = "100";

/// How a cluster is to be started.
#[derive(Clone, Debug)]
pub struct ClusterSetup {
    brand: Brand,
    masters: usize,
    has_replicas: bool,
    clock: Option<f64>,
    lines: Vec<(String, String)>,
}

impl ClusterSetup {
    /// How many masters there are; three unless told, which is the least that can agree on a failover.
    #[must_use]
    pub fn masters(mut self, count: usize) -> ClusterSetup {
        self.masters = count;
        self
    }

    /// Leaves the replicas out: what a dead master held is unreachable then.
    #[must_use]
    pub fn without_replicas(mut self) -> ClusterSetup {
        self.has_replicas = false;
        self
    }

    /// Has the clocks of all nodes differ from the machine's.
    #[must_use]
    pub fn clock(mut self, ahead_seconds: f64) -> ClusterSetup {
        self.clock = Some(ahead_seconds);
        self
    }

    /// A setting of all nodes, as a line of `redis.conf` has it.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> ClusterSetup {
        self.lines.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts all nodes, and waits until each knows that the cluster is whole.
    pub fn start(self) -> TestCluster {
        let count = self.masters * if self.has_replicas { 2 } else { 1 };
        let nodes = (0..count).map(|_| self.node().start()).collect();
        let cluster = TestCluster { nodes, setup: self };
        cluster.share_slots();
        cluster.introduce_all();
        cluster.make_replicas();
        cluster.await_whole();
        cluster
    }

    fn node(&self) -> RedisSetup {
        let plain = RedisServer::setup(self.brand)
            .cluster_node()
            // Silent for so long, a node is taken for gone. The usual fifteen seconds would have tests wait.
            .set("cluster-node-timeout", "1500")
            .set("cluster-replica-validity-factor", "0")
            // A master that has given its last slot away stays one.
            .set("cluster-allow-replica-migration", "no")
            // What is left goes on when a part is gone, as Ratekeeper advises.
            .set("cluster-require-full-coverage", "no");
        let plain = self.clock.into_iter().fold(plain, RedisSetup::clock);
        self.lines.iter().fold(plain, |setup, (name, value)| setup.set(name, value))
    }
}

/// The nodes of a cluster, all killed when this is dropped. First come those that begin as masters, then, in the same order,
/// the replica of each.
#[derive(Debug)]
pub struct TestCluster {
    nodes: Vec<RedisServer>,
    setup: ClusterSetup,
}

impl TestCluster {
    /// Three masters of Redis with a replica each.
    pub fn start() -> TestCluster {
        TestCluster::setup(Brand::Redis).start()
    }

    /// With settings.
    pub fn setup(brand: Brand) -> ClusterSetup {
        ClusterSetup { brand, masters: 3, has_replicas: true, clock: None, lines: Vec::new() }
    }

    /// Where it is, as clients are told: the nodes that began as masters.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes[..self.setup.masters].iter().map(RedisServer::address).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// All nodes.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// One of the nodes, to pause, kill or restart it.
    pub fn node(&mut self, index: usize) -> &mut RedisServer {
        &mut self.nodes[index]
    }

    /// The slot of a key.
    pub fn slot(&self, key: impl AsRef<[u8]>) -> u16 {
        let words: [&[u8]; 3] = [b"CLUSTER", b"KEYSLOT", key.as_ref()];
        let slot = self.witness().command(&words).integer();
        u16::try_from(slot).must("a slot is a small number")
    }

    /// Which node answers for a slot, as every node that runs sees it; none while they are not of one mind.
    pub fn find_owner(&self, slot: u16) -> Option<usize> {
        let mut told = self.nodes.iter().filter_map(|node| self.owner_in_the_eyes_of(node, slot));
        let first = told.next()??;
        told.all(|other| other == Some(first)).then_some(first)
    }

    /// Which node answers for a slot. Waits until all that run are of one mind.
    #[track_caller]
    pub fn owner(&self, slot: u16) -> usize {
        within(PATIENCE, "the nodes agree whose slot it is", || self.find_owner(slot))
    }

    /// Kills the master of a slot, and tells which node it was. Its replica needs a while to notice.
    pub fn kill_owner(&mut self, slot: u16) -> usize {
        let owner = self.owner(slot);
        self.nodes[owner].kill();
        owner
    }

    /// Waits until another node answers for a slot, and tells which.
    #[track_caller]
    pub fn await_other_owner(&self, slot: u16, than: usize) -> usize {
        within(PATIENCE, "another node answers for the slot", || {
            self.find_owner(slot).filter(|owner| *owner != than)
        })
    }

    /// Has a replica become the master of its slots in order, while the old master still runs.
    pub fn fail_over_to(&self, replica: usize) {
        let name = self.name(replica);
        for node in &self.nodes {
            // A master that does not know its replica would not hear it.
            within(PATIENCE, "a node knows that another is a replica", || {
                let told = node.glance(&["CLUSTER", "NODES"]).map(|told| told.text());
                let is_known =
                    |told: String| told.lines().any(|line| line.starts_with(&name) && line.contains("slave"));
                told.is_none_or(is_known).then_some(())
            });
        }
        self.nodes[replica].command(&["CLUSTER", "FAILOVER"]).done();
        within(PATIENCE, "a replica becomes the master", || {
            (self.nodes[replica].role() == "master").then_some(())
        });
    }

    /// Adds an empty master, and tells which node it is.
    pub fn add_node(&mut self) -> usize {
        let node = self.setup.node().start();
        self.nodes.push(node);
        let added = self.nodes.len() - 1;
        for node in &self.nodes[..added] {
            meet(node, &self.nodes[added]);
        }
        self.await_whole();
        added
    }

    /// Moves slots with all their keys to another master, one slot after the other, as an administrator does under load:
    /// those who ask for a key on the way are answered with `ASK`, and afterwards with `MOVED`.
    pub fn move_slots(&self, slots: Range<u16>, to: usize) {
        for slot in slots {
            let from = self.begin_move(slot, to);
            if from != to {
                self.move_keys(slot, from, to);
                self.end_move(slot, from, to);
            }
        }
    }

    /// Opens a slot to move to another master, and tells which has it now. From here on a key of the slot that the old master
    /// does not have is answered with `ASK`.
    pub fn begin_move(&self, slot: u16, to: usize) -> usize {
        let from = self.owner(slot);
        if from != to {
            let number = slot.to_string();
            let set = |node: usize, what: &str, other: usize| {
                self.nodes[node].command(&["CLUSTER", "SETSLOT", &number, what, &self.name(other)]).done()
            };
            set(to, "IMPORTING", from);
            set(from, "MIGRATING", to);
        }
        from
    }

    /// Moves the keys of a slot that was opened for it.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let (number, port) = (slot.to_string(), self.nodes[to].port().to_string());
        loop {
            let keys = self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &number, KEYS_AT_ONCE]).done();
            if keys.array().is_empty() {
                return;
            }
            let start =
                ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"].map(|word| word.as_bytes().to_vec());
            let keys = keys.array().iter().map(|key| match key {
                RespReply::Bulk(key) => key.clone(),
                other => fail(&format!("{other:?} is no key")),
            });
            let words: Vec<Vec<u8>> = start.into_iter().chain(keys).collect();
            self.nodes[from].command(&words).done();
        }
    }

    /// Closes the move: from here on the old master answers with `MOVED`.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let (number, name) = (slot.to_string(), self.name(to));
        let set = |node: usize| self.nodes[node].command(&["CLUSTER", "SETSLOT", &number, "NODE", &name]);
        // The new one first: the other way around nobody would have the slot for a moment.
        set(to).done();
        // One that has nothing left may have heard of it already, and follow the new one as its replica.
        set(from);
    }

    /// What a node is called within the cluster.
    fn name(&self, index: usize) -> String {
        self.nodes[index].command(&["CLUSTER", "MYID"]).done().text()
    }

    /// Some node that runs.
    fn witness(&self) -> &RedisServer {
        let running = self.nodes.iter().find(|node| node.glance(&["PING"]).is_some());
        running.must("no node of the cluster runs")
    }

    /// None if the node does not run, or some if it does, with the owner that it knows.
    fn owner_in_the_eyes_of(&self, node: &RedisServer, slot: u16) -> Option<Option<usize>> {
        let told = node.glance(&["CLUSTER", "SLOTS"])?;
        let (slot, mut ranges) = (i64::from(slot), told.array().iter());
        let range =
            ranges.find(|range| (range.array()[0].integer()..=range.array()[1].integer()).contains(&slot));
        let port = range.map(|range| range.array()[2].array()[1].integer());
        Some(port.and_then(|port| self.nodes.iter().position(|node| i64::from(node.port()) == port)))
    }

    fn share_slots(&self) {
        let masters = u16::try_from(self.setup.masters).must("there are few masters");
        for (index, node) in (0..masters).zip(&self.nodes) {
            let bound = |index: u16| u32::from(SLOTS) * u32::from(index) / u32::from(masters);
            let (first, last) = (bound(index).to_string(), (bound(index + 1) - 1).to_string());
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).done();
        }
    }

    /// Each is told of each: hearing of one another by gossip alone would take seconds.
    fn introduce_all(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            // With an epoch of its own none has to be told that another has the same.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]).done();
        }
        for (index, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[..index] {
                meet(node, other);
            }
        }
        self.await_acquaintance();
    }

    fn make_replicas(&self) {
        for (index, replica) in self.nodes[self.setup.masters..].iter().enumerate() {
            let master = self.name(index);
            within(PATIENCE, "a node may become the replica of another", || {
                // It must have heard that the other is a master.
                let answer = replica.command(&["CLUSTER", "REPLICATE", &master]);
                answer.error().is_none().then_some(())
            });
        }
        for replica in &self.nodes[self.setup.masters..] {
            within(PATIENCE, "a replica has all that its master has", || {
                (replica.info("master_link_status") == "up").then_some(())
            });
        }
    }

    fn await_acquaintance(&self) {
        let count = self.nodes.len();
        for node in &self.nodes {
            within(PATIENCE, "a node knows all others", || {
                let told = node.command(&["CLUSTER", "NODES"]).text();
                let is_known = |line: &str| line.contains(" connected") && !line.contains("handshake");
                (told.lines().filter(|line| is_known(line)).count() == count).then_some(())
            });
        }
    }

    /// Waits until every node holds the cluster for whole, and all are of one mind who is a replica of whom.
    fn await_whole(&self) {
        self.await_acquaintance();
        let replicas = if self.setup.has_replicas { self.setup.masters } else { 0 };
        for node in &self.nodes {
            within(PATIENCE, "a node holds the cluster for whole", || {
                let is_whole =
                    node.command(&["CLUSTER", "INFO"]).field("cluster_state").as_deref() == Some("ok");
                let told = node.command(&["CLUSTER", "NODES"]).text();
                let known = told.lines().filter(|line| line.contains("slave")).count();
                (is_whole && known == replicas).then_some(())
            });
        }
    }
}

/// Tells one node of another.
fn meet(node: &RedisServer, other: &RedisServer) {
    let (port, bus) = (other.port().to_string(), other.bus_port().to_string());
    node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).done();
}

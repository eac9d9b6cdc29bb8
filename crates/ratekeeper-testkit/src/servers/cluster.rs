//! A Redis or Valkey Cluster: masters that share the slots, and a replica of each.

use super::redis::{Brand, RedisServer, RedisSetup};
use super::resp::RespReply;
use crate::wait::{OrFail, TEST_TIMEOUT, fail, wait_for};
use std::ops::Range;

/// The number of slots of every cluster.
pub const SLOTS: u16 = 16384;
/// The number of keys that one `MIGRATE` moves.
const MIGRATE_BATCH: &str = "100";

/// The settings of a cluster to start.
#[derive(Clone, Debug)]
pub struct ClusterSetup {
    brand: Brand,
    masters: usize,
    has_replicas: bool,
    clock_offset: Option<f64>,
    config: Vec<(String, String)>,
}

impl ClusterSetup {
    /// The number of masters; three by default, the minimum for a failover vote.
    #[must_use]
    pub fn masters(mut self, count: usize) -> ClusterSetup {
        self.masters = count;
        self
    }

    /// Starts no replicas: the slots of a dead master are then unavailable.
    #[must_use]
    pub fn without_replicas(mut self) -> ClusterSetup {
        self.has_replicas = false;
        self
    }

    /// The offset of all nodes' clocks from the machine's, in seconds.
    #[must_use]
    pub fn clock(mut self, ahead_seconds: f64) -> ClusterSetup {
        self.clock_offset = Some(ahead_seconds);
        self
    }

    /// A `redis.conf` setting of all nodes.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> ClusterSetup {
        self.config.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts all nodes, and waits until each reports the cluster as healthy.
    pub fn start(self) -> TestCluster {
        let count = self.masters * if self.has_replicas { 2 } else { 1 };
        let nodes = (0..count).map(|_| self.node_setup().start()).collect();
        let cluster = TestCluster { nodes, setup: self };
        cluster.assign_slots();
        cluster.meet_all();
        cluster.make_replicas();
        cluster.wait_until_healthy();
        cluster
    }

    fn node_setup(&self) -> RedisSetup {
        let plain = RedisServer::setup(self.brand)
            .cluster_node()
            // A node that is silent for this long counts as failed. The default of 15 s would slow tests down.
            .set("cluster-node-timeout", "1500")
            .set("cluster-replica-validity-factor", "0")
            // A master that has lost its last slot stays a master.
            .set("cluster-allow-replica-migration", "no")
            // The remaining slots stay available when a master is down, as Ratekeeper recommends.
            .set("cluster-require-full-coverage", "no");
        let plain = self.clock_offset.into_iter().fold(plain, RedisSetup::clock);
        self.config.iter().fold(plain, |setup, (name, value)| setup.set(name, value))
    }
}

/// The nodes of a cluster, all killed when this is dropped: first the initial masters, then their replicas in the same
/// order.
#[derive(Debug)]
pub struct TestCluster {
    nodes: Vec<RedisServer>,
    setup: ClusterSetup,
}

impl TestCluster {
    /// Starts three Redis masters with a replica each.
    pub fn start() -> TestCluster {
        TestCluster::setup(Brand::Redis).start()
    }

    /// Settings for a cluster, to be changed before it starts.
    pub fn setup(brand: Brand) -> ClusterSetup {
        ClusterSetup { brand, masters: 3, has_replicas: true, clock_offset: None, config: Vec::new() }
    }

    /// The store URL, which names the initial masters.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes[..self.setup.masters].iter().map(RedisServer::address).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// All nodes.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// One of the nodes, to pause, kill or restart.
    pub fn node(&mut self, index: usize) -> &mut RedisServer {
        &mut self.nodes[index]
    }

    /// The slot of a key.
    pub fn slot(&self, key: impl AsRef<[u8]>) -> u16 {
        let words: [&[u8]; 3] = [b"CLUSTER", b"KEYSLOT", key.as_ref()];
        let slot = self.any_running_node().command(&words).integer();
        u16::try_from(slot).or_fail("the slot does not fit in u16")
    }

    /// The node that serves a slot, by the view of all running nodes. Returns `None` while they disagree.
    pub fn find_owner(&self, slot: u16) -> Option<usize> {
        let mut views = self.nodes.iter().filter_map(|node| self.owner_seen_by(node, slot));
        let first = views.next()??;
        views.all(|other| other == Some(first)).then_some(first)
    }

    /// The node that serves a slot. Waits until all running nodes agree.
    #[track_caller]
    pub fn owner(&self, slot: u16) -> usize {
        wait_for(TEST_TIMEOUT, "the nodes agree on the owner of the slot", || self.find_owner(slot))
    }

    /// Kills the master of a slot, and returns its index. Its replica takes a while to notice.
    pub fn kill_owner(&mut self, slot: u16) -> usize {
        let owner = self.owner(slot);
        self.nodes[owner].kill();
        owner
    }

    /// Waits until another node serves a slot, and returns its index.
    #[track_caller]
    pub fn wait_for_other_owner(&self, slot: u16, than: usize) -> usize {
        wait_for(TEST_TIMEOUT, "another node serves the slot", || {
            self.find_owner(slot).filter(|owner| *owner != than)
        })
    }

    /// Promotes a replica in an orderly failover, while its master runs.
    pub fn fail_over_to(&self, replica: usize) {
        let name = self.node_id(replica);
        for node in &self.nodes {
            // A master that does not know its replica ignores its request.
            wait_for(TEST_TIMEOUT, "a node knows that another is a replica", || {
                let nodes = node.probe(&["CLUSTER", "NODES"]).map(|nodes| nodes.text());
                let is_known = |nodes: String| {
                    nodes.lines().any(|line| line.starts_with(&name) && line.contains("slave"))
                };
                nodes.is_none_or(is_known).then_some(())
            });
        }
        self.nodes[replica].command(&["CLUSTER", "FAILOVER"]).expect_ok();
        wait_for(TEST_TIMEOUT, "a replica becomes the master", || {
            (self.nodes[replica].role() == "master").then_some(())
        });
    }

    /// Adds a master without slots, and returns its index.
    pub fn add_node(&mut self) -> usize {
        let node = self.setup.node_setup().start();
        self.nodes.push(node);
        let added = self.nodes.len() - 1;
        for node in &self.nodes[..added] {
            meet(node, &self.nodes[added]);
        }
        self.wait_until_healthy();
        added
    }

    /// Moves slots with all their keys to another master, one slot after the other, as an administrator does under
    /// load: requests for a key that has moved already are answered with `ASK`, and after the move with `MOVED`.
    pub fn move_slots(&self, slots: Range<u16>, to: usize) {
        for slot in slots {
            let from = self.begin_move(slot, to);
            if from != to {
                self.move_keys(slot, from, to);
                self.end_move(slot, from, to);
            }
        }
    }

    /// Starts the move of a slot to another master, and returns the current one. From here on the old master answers
    /// `ASK` for keys of the slot that it does not have.
    pub fn begin_move(&self, slot: u16, to: usize) -> usize {
        let from = self.owner(slot);
        if from != to {
            let number = slot.to_string();
            let set = |node: usize, what: &str, other: usize| {
                self.nodes[node]
                    .command(&["CLUSTER", "SETSLOT", &number, what, &self.node_id(other)])
                    .expect_ok()
            };
            set(to, "IMPORTING", from);
            set(from, "MIGRATING", to);
        }
        from
    }

    /// Moves the keys of a slot whose move was started.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let (number, port) = (slot.to_string(), self.nodes[to].port().to_string());
        loop {
            let keys =
                self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &number, MIGRATE_BATCH]).expect_ok();
            if keys.array().is_empty() {
                return;
            }
            let start =
                ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"].map(|word| word.as_bytes().to_vec());
            let keys = keys.array().iter().map(|key| match key {
                RespReply::Bulk(key) => key.clone(),
                other => fail(&format!("{other:?} is not a key")),
            });
            let words: Vec<Vec<u8>> = start.into_iter().chain(keys).collect();
            self.nodes[from].command(&words).expect_ok();
        }
    }

    /// Ends the move: from here on the old master answers `MOVED`.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let (number, name) = (slot.to_string(), self.node_id(to));
        let set = |node: usize| self.nodes[node].command(&["CLUSTER", "SETSLOT", &number, "NODE", &name]);
        // The new owner first: the other way around the slot would have no owner for a moment.
        set(to).expect_ok();
        // An old master without slots may have heard of it already, and be a replica of the new one.
        set(from);
    }

    /// The node id within the cluster.
    fn node_id(&self, index: usize) -> String {
        self.nodes[index].command(&["CLUSTER", "MYID"]).expect_ok().text()
    }

    /// Any running node.
    fn any_running_node(&self) -> &RedisServer {
        let running = self.nodes.iter().find(|node| node.probe(&["PING"]).is_some());
        running.or_fail("no node of the cluster is running")
    }

    /// The owner of a slot in one node's view, `None` if it knows none. Returns `None` if the node does not answer.
    fn owner_seen_by(&self, node: &RedisServer, slot: u16) -> Option<Option<usize>> {
        let shards = node.probe(&["CLUSTER", "SLOTS"])?;
        let (slot, mut ranges) = (i64::from(slot), shards.array().iter());
        let range =
            ranges.find(|range| (range.array()[0].integer()..=range.array()[1].integer()).contains(&slot));
        let port = range.map(|range| range.array()[2].array()[1].integer());
        Some(port.and_then(|port| self.nodes.iter().position(|node| i64::from(node.port()) == port)))
    }

    fn assign_slots(&self) {
        let masters = u16::try_from(self.setup.masters).or_fail("too many masters");
        for (index, node) in (0..masters).zip(&self.nodes) {
            let bound = |index: u16| u32::from(SLOTS) * u32::from(index) / u32::from(masters);
            let (first, last) = (bound(index).to_string(), (bound(index + 1) - 1).to_string());
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).expect_ok();
        }
    }

    /// Introduces every node to every other: gossip alone would take seconds.
    fn meet_all(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            // Distinct config epochs avoid conflicts that nodes would have to resolve.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]).expect_ok();
        }
        for (index, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[..index] {
                meet(node, other);
            }
        }
        self.wait_until_all_known();
    }

    fn make_replicas(&self) {
        for (index, replica) in self.nodes[self.setup.masters..].iter().enumerate() {
            let master = self.node_id(index);
            wait_for(TEST_TIMEOUT, "a node becomes a replica", || {
                // The node must know that the other is a master.
                let answer = replica.command(&["CLUSTER", "REPLICATE", &master]);
                answer.error().is_none().then_some(())
            });
        }
        for replica in &self.nodes[self.setup.masters..] {
            wait_for(TEST_TIMEOUT, "a replica is in sync with its master", || {
                (replica.info("master_link_status") == "up").then_some(())
            });
        }
    }

    fn wait_until_all_known(&self) {
        let count = self.nodes.len();
        for node in &self.nodes {
            wait_for(TEST_TIMEOUT, "a node knows all others", || {
                let nodes = node.command(&["CLUSTER", "NODES"]).text();
                let is_known = |line: &str| line.contains(" connected") && !line.contains("handshake");
                (nodes.lines().filter(|line| is_known(line)).count() == count).then_some(())
            });
        }
    }

    /// Waits until every node reports the cluster as healthy and knows all replicas.
    fn wait_until_healthy(&self) {
        self.wait_until_all_known();
        let replicas = if self.setup.has_replicas { self.setup.masters } else { 0 };
        for node in &self.nodes {
            wait_for(TEST_TIMEOUT, "a node reports the cluster as healthy", || {
                let is_whole =
                    node.command(&["CLUSTER", "INFO"]).field("cluster_state").as_deref() == Some("ok");
                let nodes = node.command(&["CLUSTER", "NODES"]).text();
                let known = nodes.lines().filter(|line| line.contains("slave")).count();
                (is_whole && known == replicas).then_some(())
            });
        }
    }
}

/// Introduces one node to another.
fn meet(node: &RedisServer, other: &RedisServer) {
    let (port, bus) = (other.port().to_string(), other.bus_port().to_string());
    node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).expect_ok();
}

//! Redis Cluster: discovers the topology, follows redirects and failovers.
//!
//! One task reads the slot map from any node that answers: periodically, soon after a call found it stale, and often
//! while a node is down. A reply from a node that missed the latest election is ignored, so a returning master can't
//! reclaim its old slots. The exception is a cluster that was set up anew: its epoch is lower, and it is accepted
//! when all nodes that accept commands report it repeatedly. Each node has its own breaker, so a dead node fails only
//! the calls for its slots.

mod map;

use crate::client::connection::{CommandBatch, RedisConnection, command};
use crate::client::failure::ServerFailure;
use crate::client::node::{CommandOutcome, NodePhase, RedisNode, ServerOptions};
use crate::client::reply::Redirect;
use crate::client::slot::SLOTS;
use crate::client::topology::discovery::DiscoveryServer;
use crate::client::url::ServerAddress;
use arc_swap::ArcSwap;
use map::{SlotMap, StaleTopology, TopologyReply};
use parking_lot::Mutex;
use ratekeeper::StoreErrorCause;
use ratekeeper_core::StoreFailure;
use redis::Value;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

/// Refresh interval of the slot map while the cluster is healthy, and while it is not.
const REFRESH_INTERVAL: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(250));
/// Minimum time between two refreshes.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(100);
/// Nodes queried in one refresh until one reports the latest epoch.
const MAX_NODES_QUERIED: usize = 8;
/// Delay between a node's removal from the slot map and its retirement. In-flight calls to it have been redirected by
/// then.
const RETIRE_DELAY: Duration = Duration::from_secs(2);
/// Maximum number of nodes to connect to. Redis recommends at most 1000.
const MAX_NODES: usize = 1_000;

/// A Redis Cluster: its slot map, its nodes, and the task that keeps them current.
pub(crate) struct RedisCluster {
    inner: Arc<ClusterInner>,
    task: AbortHandle,
}

struct ClusterInner {
    options: ServerOptions,
    /// The nodes listed in the URL, queried when no other node answers.
    seeds: Vec<DiscoveryServer>,
    map: ArcSwap<SlotMap>,
    nodes: Mutex<HashMap<ServerAddress, Arc<RedisNode>>>,
    /// Nodes that have left the slot map, and when, in the order in which they left it.
    leaving: Mutex<Vec<(Arc<RedisNode>, Instant)>>,
    /// Triggers a refresh of the slot map.
    refresh: Notify,
    has_map: watch::Sender<bool>,
}

impl RedisCluster {
    pub(crate) fn start(seeds: Vec<ServerAddress>, options: ServerOptions) -> RedisCluster {
        let inner = Arc::new(ClusterInner::new(seeds, options));
        let task = tokio::spawn(refresh_loop(Arc::clone(&inner))).abort_handle();
        RedisCluster { inner, task }
    }

    /// The node that serves a slot. Returns `None`, and triggers a refresh, if the slot map has none.
    pub(crate) fn node(&self, slot: u16) -> Option<Arc<RedisNode>> {
        let node = self.inner.map.load().node(slot);
        if node.is_none() {
            self.inner.refresh.notify_one();
        }
        node
    }

    /// The nodes that serve slots.
    pub(crate) fn nodes(&self) -> Vec<Arc<RedisNode>> {
        self.inner.map.load().nodes().to_vec()
    }

    /// The nodes listed in the URL.
    pub(crate) fn discovery_servers(&self) -> &[DiscoveryServer] {
        &self.inner.seeds
    }

    /// The number of slots without a node.
    pub(crate) fn uncovered_slots(&self) -> usize {
        self.inner.map.load().uncovered_slots()
    }

    /// Waits for the first slot map.
    pub(crate) async fn wait_for_topology(&self) {
        // Cannot fail: the sender lives as long as the cluster.
        let _ = self.inner.has_map.subscribe().wait_for(|is_known| *is_known).await;
    }

    /// Sends commands to a node, and follows each redirect once.
    pub(crate) async fn call(
        &self,
        node: &RedisNode,
        batch: &CommandBatch,
        deadline: Instant,
    ) -> Vec<CommandOutcome> {
        let mut outcomes = node.call(batch, deadline).await;
        let mut redirects: HashMap<(&str, bool), Vec<usize>> = HashMap::new();
        for (index, outcome) in outcomes.iter().enumerate() {
            match outcome {
                CommandOutcome::Redirect(Redirect::Moved(to)) => {
                    redirects.entry((to, false)).or_default().push(index);
                }
                CommandOutcome::Redirect(Redirect::Ask(to)) => {
                    redirects.entry((to, true)).or_default().push(index);
                }
                CommandOutcome::Failed(StoreFailure::Unreachable) => self.inner.refresh.notify_one(),
                _ => {}
            }
        }
        if redirects.is_empty() {
            return outcomes;
        }
        let mut sent = JoinSet::new();
        for ((to, is_ask), indices) in redirects {
            if !is_ask {
                self.inner.refresh.notify_one();
            }
            let Some(to) =
                parse_endpoint(to, &node.server).and_then(|server| self.inner.redirect_node(&server))
            else {
                continue;
            };
            let batch = batch.select(&indices, is_ask);
            sent.spawn(async move { (indices, to.call(&batch, deadline).await) });
        }
        while let Some(joined) = sent.join_next().await {
            // If a task panicked, its commands keep their redirect, which counts as a failure.
            let Ok((indices, resent)) = joined else { continue };
            for (index, outcome) in indices.into_iter().zip(resent) {
                outcomes[index] = match outcome {
                    CommandOutcome::Value(value) => CommandOutcome::Redirected(value),
                    other => other,
                };
            }
        }
        outcomes
    }
}

impl Drop for RedisCluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Refreshes the slot map forever.
async fn refresh_loop(inner: Arc<ClusterInner>) {
    let mut stale = StaleTopology::default();
    loop {
        let started = Instant::now();
        inner.retire_left_nodes();
        if let Some(reply) = inner.fetch_topology(&mut stale).await {
            inner.install(&reply);
        }
        let (healthy, unhealthy) = REFRESH_INTERVAL;
        // Refresh when a call found the map stale, while the cluster is unhealthy, or when the interval is over.
        while timeout(unhealthy, inner.refresh.notified()).await.is_err() {
            if !inner.is_healthy() || started.elapsed() >= healthy {
                break;
            }
        }
        sleep_until(started + MIN_REFRESH_INTERVAL).await;
    }
}

impl ClusterInner {
    fn new(seeds: Vec<ServerAddress>, options: ServerOptions) -> ClusterInner {
        ClusterInner {
            options,
            seeds: seeds.into_iter().map(DiscoveryServer::new).collect(),
            map: ArcSwap::from_pointee(SlotMap::empty()),
            nodes: Mutex::new(HashMap::new()),
            leaving: Mutex::default(),
            refresh: Notify::new(),
            has_map: watch::Sender::new(false),
        }
    }

    /// Queries nodes until one reports the latest epoch.
    ///
    /// Returns `None` if no node has a reply that is to be trusted.
    async fn fetch_topology(&self, stale: &mut StaleTopology) -> Option<TopologyReply> {
        let known = self.map.load().epoch();
        let mut older = Vec::new();
        for node in self.up_nodes() {
            let Some(connection) = node.pick_connection() else { continue };
            match self.query_topology(&connection, &node.server).await {
                Ok(reply) if reply.epoch >= known => return stale.accept(reply),
                reply => older.extend(reply.ok()),
            }
        }
        for seed in &self.seeds {
            match self.query_seed(seed).await {
                Ok(reply) if reply.epoch >= known => return stale.accept(reply),
                reply => older.extend(reply.ok()),
            }
        }
        stale.consider(older)
    }

    /// Queries a node listed in the URL. Until the first slot map is known, failures are logged.
    async fn query_seed(&self, seed: &DiscoveryServer) -> Result<TopologyReply, ServerFailure> {
        let query = async {
            let connection = self.options.connector.connect(seed.server(), || {}).await?;
            self.query_topology(&connection, seed.server()).await
        };
        let reply = query.await;
        match &reply {
            Ok(_) => seed.record_success(),
            Err(error) => {
                let new_failure = seed.record_failure(&self.options.connector, error.clone()).await;
                if let Some(failure) = new_failure.filter(|_| !*self.has_map.borrow()) {
                    warn!(server = %seed.server(), "cannot read the store cluster's topology: {failure}");
                }
            }
        }
        reply
    }

    async fn query_topology(
        &self,
        connection: &RedisConnection,
        server: &ServerAddress,
    ) -> Result<TopologyReply, ServerFailure> {
        let login = self.options.connector.login_context();
        let commands = ["INFO", "SLOTS"].map(|part| command(&["CLUSTER", part]));
        let values = connection.query(commands, login).await?;
        let unreadable = || {
            ServerFailure::new(StoreErrorCause::Other, "unreadable reply to CLUSTER INFO or CLUSTER SLOTS")
        };
        match values.as_slice() {
            [Value::ServerError(error), _] | [_, Value::ServerError(error)] => Err(login.explain(error)),
            [Value::BulkString(info), slots] => {
                TopologyReply::parse(&String::from_utf8_lossy(info), slots, server).ok_or_else(unreadable)
            }
            _ => Err(unreadable()),
        }
    }

    /// Up to eight nodes that are up, the least loaded first.
    fn up_nodes(&self) -> Vec<Arc<RedisNode>> {
        let nodes = self.nodes.lock();
        // Without sorting, the hash map's order would always query the same nodes first.
        let mut up: Vec<Arc<RedisNode>> =
            nodes.values().filter(|node| node.phase() == NodePhase::Up).cloned().collect();
        up.sort_by_key(|node| node.load());
        up.truncate(MAX_NODES_QUERIED);
        up
    }

    fn install(&self, reply: &TopologyReply) {
        let mut masters: Vec<&ServerAddress> = reply.masters();
        if masters.is_empty() {
            return;
        }
        // The slots of the others count as uncovered, which is logged.
        masters.truncate(MAX_NODES);
        let started: HashMap<ServerAddress, Arc<RedisNode>> = {
            let mut nodes = self.nodes.lock();
            nodes.retain(|server, node| {
                let stays = masters.binary_search(&server).is_ok();
                if !stays {
                    self.leaving.lock().push((Arc::clone(node), Instant::now()));
                }
                stays
            });
            for server in masters {
                if !nodes.contains_key(server) {
                    nodes.insert(server.clone(), self.reuse_or_start(server));
                }
            }
            self.retire_excess(nodes.len());
            nodes.clone()
        };
        for (server, slot) in reply.first_slots() {
            if let Some(node) = started.get(server) {
                node.set_probe_slot(slot);
            }
        }
        let before = self.map.load_full();
        let map = reply.slot_map(&started);
        self.log_changes(&before, &map);
        self.map.store(Arc::new(map));
        self.has_map.send_replace(true);
    }

    /// Whether every slot has a node, all nodes are up, and none is waiting to be retired.
    fn is_healthy(&self) -> bool {
        let is_whole = self.map.load().uncovered_slots() == 0;
        let are_up = || self.nodes.lock().values().all(|node| node.phase() == NodePhase::Up);
        is_whole && are_up() && self.leaving.lock().is_empty()
    }

    /// Retires nodes that left the slot map a while ago. Otherwise callers that still hold a reference would keep their
    /// connections open and go on probing servers that no longer belong to the cluster.
    fn retire_left_nodes(&self) {
        self.leaving.lock().retain(|(node, left)| {
            let stays = left.elapsed() < RETIRE_DELAY;
            if !stays {
                node.retire();
            }
            stays
        });
    }

    fn log_changes(&self, before: &SlotMap, after: &SlotMap) {
        let names = |map: &SlotMap| {
            let mut names: Vec<String> = map.nodes().iter().map(|node| node.server.to_string()).collect();
            names.sort();
            names.join(", ")
        };
        let masters = names(after);
        if names(before) != masters {
            info!("store cluster masters: {masters}");
        }
        let missing = after.uncovered_slots();
        match (before.uncovered_slots(), missing) {
            (was, 0) if was > 0 && was < SLOTS => info!("store cluster covers all slots again"),
            (was, missing) if missing > 0 && was != missing => {
                warn!(missing, "store cluster has uncovered slots: their keys can't be counted in the store");
            }
            _ => {}
        }
    }

    /// The node at the target of a redirect. Returns `None` if there are too many nodes already.
    fn redirect_node(&self, server: &ServerAddress) -> Option<Arc<RedisNode>> {
        let mut nodes = self.nodes.lock();
        if !nodes.contains_key(server) && nodes.len() >= MAX_NODES {
            return None;
        }
        let node = nodes.entry(server.clone());
        let node = Arc::clone(node.or_insert_with(|| self.reuse_or_start(server)));
        self.retire_excess(nodes.len());
        Some(node)
    }

    /// Retires the nodes that left first, if they and the `used` ones exceed the maximum.
    fn retire_excess(&self, used: usize) {
        let mut leaving = self.leaving.lock();
        let excess = (used + leaving.len()).saturating_sub(MAX_NODES);
        for (node, _) in leaving.drain(..excess) {
            node.retire();
        }
    }

    /// The node for a server: a leaving one that has not been retired yet, or a new one.
    fn reuse_or_start(&self, server: &ServerAddress) -> Arc<RedisNode> {
        let mut leaving = self.leaving.lock();
        match leaving.iter().position(|(node, _)| node.server == *server) {
            Some(index) => leaving.remove(index).0,
            None => Arc::new(RedisNode::start(server.clone(), self.options.clone())),
        }
    }
}

/// Parses the target of a redirect. A node that does not know its own name means the host that was queried.
fn parse_endpoint(text: &str, asked: &ServerAddress) -> Option<ServerAddress> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.split_once('@').map_or(port, |(port, _)| port).parse().ok()?;
    resolve_endpoint(host, port, asked)
}

fn resolve_endpoint(host: &str, port: u16, asked: &ServerAddress) -> Option<ServerAddress> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match (host, asked) {
        ("" | "?", ServerAddress::Tcp { host, .. }) => Some(ServerAddress::Tcp { host: host.clone(), port }),
        ("" | "?", ServerAddress::Unix(_)) => None,
        (host, _) => Some(ServerAddress::Tcp { host: host.to_owned(), port }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::connector::Connector;
    use crate::client::node::{RoleCheck, ServerSetOptions};
    use crate::client::url::Credentials;
    use ratekeeper::SystemClock;
    use ratekeeper::Topology;

    /// A topology in which each port is a master with one slot.
    fn topology(ports: std::ops::Range<u16>) -> TopologyReply {
        let host = || Value::BulkString(b"127.0.0.1".into());
        let ranges = ports.clone().map(|port| {
            let slot = Value::Int(i64::from(port - ports.start));
            let master = Value::Array(vec![host(), Value::Int(i64::from(port))]);
            Value::Array(vec![slot.clone(), slot, master])
        });
        let asked = ServerAddress::Tcp { host: "127.0.0.1".into(), port: 1 };
        TopologyReply::parse(
            "cluster_state:ok\r\ncluster_current_epoch:1",
            &Value::Array(ranges.collect()),
            &asked,
        )
        .expect("the reply has an epoch")
    }

    /// The test never awaits, so no node gets to connect.
    #[tokio::test]
    async fn the_number_of_nodes_is_bounded_however_many_come_and_go() {
        let connector = Connector::new(&Credentials::default(), 0, None, Topology::Cluster)
            .expect("no TLS files are needed");
        let bounds = ServerSetOptions::new("", Arc::new(SystemClock::new()));
        let options = ServerOptions { connector, digest: String::new(), role: RoleCheck::Cluster, bounds };
        let inner = ClusterInner::new(Vec::new(), options);
        let count = || (inner.nodes.lock().len(), inner.leaving.lock().len());
        inner.install(&topology(10_000..10_600));
        assert_eq!(count(), (600, 0));
        inner.install(&topology(10_500..11_100));
        assert_eq!(count(), (600, 400), "leaving nodes are kept for a while, up to the maximum");
        inner.install(&topology(10_400..11_100));
        assert_eq!(count(), (700, 300), "nodes that left last are reused");
        inner.install(&topology(20_000..22_000));
        assert_eq!(count(), (MAX_NODES, 0));
        assert_eq!(inner.map.load().nodes().len(), MAX_NODES);
        let unknown = ServerAddress::Tcp { host: "127.0.0.1".into(), port: 9 };
        assert!(inner.redirect_node(&unknown).is_none());
    }
}

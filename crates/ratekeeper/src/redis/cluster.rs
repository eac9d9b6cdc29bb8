//! Redis Cluster: which node has which slot, and following what moves.
//!
//! The map is asked of any node that answers, by one task: now and then, soon after somebody found it wrong, and
//! often while a node is away. What is learnt from a node that has missed the latest election is not believed, so a
//! master that comes back from the dead can't draw its old slots to itself; unless all say so that take commands, again and
//! again, because the cluster was set up anew. Each node has its own breaker: one that is dead fails the calls for its slots
//! and no others.

mod map;
pub(super) mod slot;

use super::discovery::DiscoveryServer;
use super::node::{CommandBatch, CommandOutcome, NodePhase, RedisNode, ServerFailure, ServerOptions};
use super::url::ServerAddress;
use crate::health::StoreErrorCause;
use ::redis::{Value, cmd};
use arc_swap::ArcSwap;
use map::{SlotMap, StaleTopology, TopologyReply};
use parking_lot::Mutex;
use ratekeeper_core::StoreFailure;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

/// How often the map is asked for while all is well, and while something is not.
const PERIOD: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(250));
/// The shortest time between two askings.
const SHORTEST: Duration = Duration::from_millis(100);
/// How long a node may take to say how the cluster stands.
const PATIENCE: Duration = Duration::from_millis(500);
/// How many nodes are asked in one go until one is found that knows the latest.
const ASKED: usize = 8;
/// How long after it has left the map a node is let go of. By then whoever was on the way to it has been sent on.
const FAREWELL: Duration = Duration::from_secs(2);
/// The most nodes that are spoken to. Redis recommends at most a thousand.
const MOST_NODES: usize = 1_000;

/// A Redis Cluster.
pub(super) struct RedisCluster {
    shared: Arc<ClusterInner>,
    task: AbortHandle,
}

struct ClusterInner {
    terms: ServerOptions,
    /// The nodes that were listed, asked when no other answers.
    seeds: Vec<DiscoveryServer>,
    map: ArcSwap<SlotMap>,
    nodes: Mutex<HashMap<ServerAddress, Arc<RedisNode>>>,
    /// Those that are no longer on the map, and since when, in the order in which they left it.
    leaving: Mutex<Vec<(Arc<RedisNode>, Instant)>>,
    /// Asks for a new map.
    stale: Notify,
    is_known: watch::Sender<bool>,
}

impl RedisCluster {
    pub(super) fn start(seeds: Vec<ServerAddress>, terms: ServerOptions) -> RedisCluster {
        let shared = Arc::new(ClusterInner::new(seeds, terms));
        let task = tokio::spawn(follow(Arc::clone(&shared))).abort_handle();
        RedisCluster { shared, task }
    }

    /// The node that has a slot, as far as is known.
    pub(super) fn node(&self, slot: u16) -> Option<Arc<RedisNode>> {
        let node = self.shared.map.load().node(slot);
        if node.is_none() {
            self.shared.stale.notify_one();
        }
        node
    }

    /// The nodes that have slots.
    pub(super) fn nodes(&self) -> Vec<Arc<RedisNode>> {
        self.shared.map.load().nodes().to_vec()
    }

    /// The nodes that were listed.
    pub(super) fn contacts(&self) -> &[DiscoveryServer] {
        &self.shared.seeds
    }

    /// How many slots nobody has.
    pub(super) fn uncovered(&self) -> usize {
        self.shared.map.load().uncovered()
    }

    /// Waits until a map is there.
    pub(super) async fn wait_until_known(&self) {
        // It can't end otherwise: the sender lives as long as the cluster.
        let _ = self.shared.is_known.subscribe().wait_for(|is_known| *is_known).await;
    }

    /// Sends commands to a node, and those that it sends on to where they belong: once.
    pub(super) async fn ask(
        &self,
        node: &RedisNode,
        batch: &CommandBatch,
        deadline: Instant,
    ) -> Vec<CommandOutcome> {
        let mut answers = node.exchange(batch, deadline).await;
        let mut onward: HashMap<(&str, bool), Vec<usize>> = HashMap::new();
        for (index, answer) in answers.iter().enumerate() {
            match answer {
                CommandOutcome::Value(_) | CommandOutcome::Elsewhere(_) | CommandOutcome::Torn => {}
                CommandOutcome::Moved(to) => onward.entry((to, false)).or_default().push(index),
                CommandOutcome::Ask(to) => onward.entry((to, true)).or_default().push(index),
                CommandOutcome::Failed(StoreFailure::Unreachable) => self.shared.stale.notify_one(),
                CommandOutcome::Failed(_) => {}
            }
        }
        if onward.is_empty() {
            return answers;
        }
        let mut sent = JoinSet::new();
        for ((to, is_ask), indices) in onward {
            if !is_ask {
                self.shared.stale.notify_one();
            }
            let Some(to) = read_endpoint(to, node.server()).and_then(|server| self.shared.node_at(&server))
            else {
                continue;
            };
            let commands = batch.commands(&indices);
            let batch = if is_ask { CommandBatch::asking(commands) } else { CommandBatch::new(commands) };
            sent.spawn(async move { (indices, to.exchange(&batch, deadline).await) });
        }
        while let Some(joined) = sent.join_next().await {
            // A task that panicked leaves its commands where they were, which is a failure too.
            let Ok((indices, again)) = joined else { continue };
            for (index, answer) in indices.into_iter().zip(again) {
                answers[index] = match answer {
                    CommandOutcome::Value(value) => CommandOutcome::Elsewhere(value),
                    other => other,
                };
            }
        }
        answers
    }
}

impl Drop for RedisCluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Keeps the map true for ever.
async fn follow(shared: Arc<ClusterInner>) {
    let mut doubt = StaleTopology::default();
    loop {
        let asked = Instant::now();
        shared.see_off();
        if let Some(word) = shared.ask(&mut doubt).await {
            shared.install(&word);
        }
        let (calm, busy) = PERIOD;
        // It is asked for again when somebody found it wrong, when something is not well, and after some time.
        while timeout(busy, shared.stale.notified()).await.is_err() {
            if !shared.is_well() || asked.elapsed() >= calm {
                break;
            }
        }
        sleep_until(asked + SHORTEST).await;
    }
}

impl ClusterInner {
    fn new(seeds: Vec<ServerAddress>, terms: ServerOptions) -> ClusterInner {
        ClusterInner {
            terms,
            seeds: seeds.into_iter().map(DiscoveryServer::new).collect(),
            map: ArcSwap::from_pointee(SlotMap::empty()),
            nodes: Mutex::new(HashMap::new()),
            leaving: Mutex::default(),
            stale: Notify::new(),
            is_known: watch::Sender::new(false),
        }
    }

    /// Asks how the cluster stands, until somebody says it who knows of the latest election.
    async fn ask(&self, doubt: &mut StaleTopology) -> Option<TopologyReply> {
        let known = self.map.load().epoch();
        let mut older = Vec::new();
        for node in self.up_nodes() {
            let Some(link) = node.link() else { continue };
            match self.ask_for_map(&link, node.server()).await {
                Ok(word) if word.epoch >= known => return doubt.dispel(word),
                word => older.extend(word.ok()),
            }
        }
        for seed in &self.seeds {
            match self.ask_seed(seed).await {
                Ok(word) if word.epoch >= known => return doubt.dispel(word),
                word => older.extend(word.ok()),
            }
        }
        doubt.weigh(older)
    }

    /// Asks a node that was listed. As long as nobody has answered, it is told why this one does not.
    async fn ask_seed(&self, seed: &DiscoveryServer) -> Result<TopologyReply, ServerFailure> {
        let asked = async {
            let link = self.terms.dialer.dial(seed.server(), || {}).await?;
            self.ask_for_map(&link, seed.server()).await
        };
        let answer = asked.await;
        match &answer {
            Ok(_) => seed.note_answer(),
            Err(trouble) => {
                let news = seed.note_failure(&self.terms.dialer, trouble.clone()).await;
                if let Some(news) = news.filter(|_| !*self.is_known.borrow()) {
                    warn!(server = %seed.server(), "store cluster can't be asked for its nodes: {news}");
                }
            }
        }
        answer
    }

    async fn ask_for_map(
        &self,
        link: &super::node::RedisConnection,
        server: &ServerAddress,
    ) -> Result<TopologyReply, ServerFailure> {
        let [mut info, mut slots] = [cmd("CLUSTER"), cmd("CLUSTER")];
        info.arg("INFO");
        slots.arg("SLOTS");
        let asker = self.terms.dialer.asker();
        let answer = timeout(PATIENCE, link.send(&CommandBatch::new([info, slots]))).await;
        let answer = answer.map_err(|_| ServerFailure::too_slow(PATIENCE))?;
        let values = answer.map_err(|error| asker.explain_connect(&error))?;
        let unreadable =
            || ServerFailure::new(StoreErrorCause::Other, "what it says of its cluster can't be read");
        match values.as_slice() {
            [Value::ServerError(error), _] | [_, Value::ServerError(error)] => Err(asker.explain(error)),
            [Value::BulkString(info), slots] => {
                TopologyReply::read(&String::from_utf8_lossy(info), slots, server).ok_or_else(unreadable)
            }
            _ => Err(unreadable()),
        }
    }

    /// Some nodes that are there, not always the same ones first.
    fn up_nodes(&self) -> Vec<Arc<RedisNode>> {
        let nodes = self.nodes.lock();
        // A hash map's order is as good as any, but it is always the same; the busiest nodes come last.
        let mut up: Vec<Arc<RedisNode>> =
            nodes.values().filter(|node| node.phase() == NodePhase::Up).cloned().collect();
        up.sort_by_key(|node| node.load().1);
        up.truncate(ASKED);
        up
    }

    fn install(&self, word: &TopologyReply) {
        let mut masters: Vec<&ServerAddress> = word.masters();
        if masters.is_empty() {
            return;
        }
        // The slots of the rest have no server, which is told of.
        masters.truncate(MOST_NODES);
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
                    nodes.insert(server.clone(), self.welcome(server));
                }
            }
            self.make_room(nodes.len());
            nodes.clone()
        };
        for (server, slot) in word.first_slots() {
            if let Some(node) = started.get(server) {
                node.set_probe_slot(slot);
            }
        }
        let before = self.map.load_full();
        let map = word.map(&started);
        self.tell(&before, &map);
        self.map.store(Arc::new(map));
        self.is_known.send_replace(true);
    }

    /// Whether every slot has a node that is there, and nobody is about to leave.
    fn is_well(&self) -> bool {
        let is_whole = self.map.load().uncovered() == 0;
        let are_up = || self.nodes.lock().values().all(|node| node.phase() == NodePhase::Up);
        is_whole && are_up() && self.leaving.lock().is_empty()
    }

    /// Lets go of nodes that left a while ago. Whoever still holds them would keep their connections otherwise, and go on
    /// probing servers that are none of ours any more.
    fn see_off(&self) {
        self.leaving.lock().retain(|(node, left)| {
            let stays = left.elapsed() < FAREWELL;
            if !stays {
                node.retire();
            }
            stays
        });
    }

    fn tell(&self, before: &SlotMap, after: &SlotMap) {
        let names = |map: &SlotMap| {
            let mut names: Vec<String> = map.nodes().iter().map(|node| node.server().to_string()).collect();
            names.sort();
            names.join(", ")
        };
        let masters = names(after);
        if names(before) != masters {
            info!("store cluster's masters are {masters}");
        }
        let missing = after.uncovered();
        match (before.uncovered(), missing) {
            (was, 0) if was > 0 && was < slot::SLOTS => info!("store cluster has all its slots again"),
            (was, missing) if missing > 0 && was != missing => {
                warn!(missing, "store cluster lacks slots: their keys can't be counted there");
            }
            _ => {}
        }
    }

    /// A node that another one named.
    fn node_at(&self, server: &ServerAddress) -> Option<Arc<RedisNode>> {
        let mut nodes = self.nodes.lock();
        if !nodes.contains_key(server) && nodes.len() >= MOST_NODES {
            return None;
        }
        let node = nodes.entry(server.clone());
        let node = Arc::clone(node.or_insert_with(|| self.welcome(server)));
        self.make_room(nodes.len());
        Some(node)
    }

    /// Lets go of those that left first, as far as there are too many beside so many that are in use.
    fn make_room(&self, used: usize) {
        let mut leaving = self.leaving.lock();
        let excess = (used + leaving.len()).saturating_sub(MOST_NODES);
        for (node, _) in leaving.drain(..excess) {
            node.retire();
        }
    }

    /// A node for a server: a new one, unless the last has not been let go of yet.
    fn welcome(&self, server: &ServerAddress) -> Arc<RedisNode> {
        let mut leaving = self.leaving.lock();
        match leaving.iter().position(|(node, _)| node.server() == server) {
            Some(index) => leaving.remove(index).0,
            None => Arc::new(RedisNode::start(server.clone(), self.terms.clone())),
        }
    }
}

/// Reads where a command is sent on to. A node that doesn't know its own name means the host that was asked.
fn read_endpoint(text: &str, asked: &ServerAddress) -> Option<ServerAddress> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.split_once('@').map_or(port, |(port, _)| port).parse().ok()?;
    endpoint(host, port, asked)
}

fn endpoint(host: &str, port: u16, asked: &ServerAddress) -> Option<ServerAddress> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match (host, asked) {
        ("" | "?", ServerAddress::Tcp { host, .. }) => Some(ServerAddress::Tcp { host: host.clone(), port }),
        ("" | "?", ServerAddress::Unix(_)) => None,
        (host, _) => Some(ServerAddress::Tcp { host: host.to_owned(), port }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::{Connector, RoleCheck};
    use super::super::url::Credentials;
    use super::*;
    use crate::clock::SystemClock;
    use crate::health::Topology;

    /// A cluster of which each port is a master with a slot.
    fn word(ports: std::ops::Range<u16>) -> TopologyReply {
        let host = || Value::BulkString(b"127.0.0.1".into());
        let ranges = ports.clone().map(|port| {
            let slot = Value::Int(i64::from(port - ports.start));
            let master = Value::Array(vec![host(), Value::Int(i64::from(port))]);
            Value::Array(vec![slot.clone(), slot, master])
        });
        let asked = ServerAddress::Tcp { host: "127.0.0.1".into(), port: 1 };
        TopologyReply::read(
            "cluster_state:ok\r\ncluster_current_epoch:1",
            &Value::Array(ranges.collect()),
            &asked,
        )
        .expect("it has an epoch")
    }

    /// Nothing here waits, so no node gets as far as to connect.
    #[tokio::test]
    async fn no_more_nodes_are_spoken_to_than_may_be_however_many_come_and_go() {
        let dialer =
            Connector::new(&Credentials::default(), 0, None, Topology::Cluster).expect("it needs no files");
        let clock = Arc::new(SystemClock::new());
        let (script, digest) = ("", String::new());
        let terms =
            ServerOptions { dialer, script, digest, links: 2, in_flight: 1, role: RoleCheck::Cluster, clock };
        let shared = ClusterInner::new(Vec::new(), terms);
        let count = || (shared.nodes.lock().len(), shared.leaving.lock().len());
        shared.install(&word(10_000..10_600));
        assert_eq!(count(), (600, 0));
        shared.install(&word(10_500..11_100));
        assert_eq!(
            count(),
            (600, 400),
            "some leave, of which as many are kept for a while as there is room for"
        );
        shared.install(&word(10_400..11_100));
        assert_eq!(count(), (700, 300), "those that left last are welcome back");
        shared.install(&word(20_000..22_000));
        assert_eq!(count(), (MOST_NODES, 0));
        assert_eq!(shared.map.load().nodes().len(), MOST_NODES);
        let stranger = ServerAddress::Tcp { host: "127.0.0.1".into(), port: 9 };
        assert!(shared.node_at(&stranger).is_none());
    }
}

//! Redis Cluster: which node has which slot, and following what moves.
//!
//! The map is asked of any node that answers, by one task: now and then, soon after somebody found it wrong, and
//! often while a node is away. What is learnt from a node that has missed the latest election is not believed, so a
//! master that comes back from the dead can't draw its old slots to itself; unless all say so that take commands, again and
//! again, because the cluster was set up anew. Each node has its own breaker: one that is dead fails the calls for its slots
//! and no others.

mod map;
pub(super) mod slot;

use super::contact::Contact;
use super::node::{Answer, Batch, Node, Phase, Terms, Trouble};
use super::url::Server;
use crate::health::StoreErrorCause;
use ::redis::{Value, cmd};
use arc_swap::ArcSwap;
use map::{Doubt, Map, Word};
use parking_lot::Mutex;
use ratekeeper_core::Failure;
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
pub(super) struct Cluster {
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    terms: Terms,
    /// The nodes that were listed, asked when no other answers.
    seeds: Vec<Contact>,
    map: ArcSwap<Map>,
    nodes: Mutex<HashMap<Server, Arc<Node>>>,
    /// Those that are no longer on the map, and since when, in the order in which they left it.
    leaving: Mutex<Vec<(Arc<Node>, Instant)>>,
    /// Asks for a new map.
    stale: Notify,
    is_known: watch::Sender<bool>,
}

impl Cluster {
    pub(super) fn start(seeds: Vec<Server>, terms: Terms) -> Cluster {
        let shared = Arc::new(Shared::new(seeds, terms));
        let task = tokio::spawn(follow(Arc::clone(&shared))).abort_handle();
        Cluster { shared, task }
    }

    /// The node that has a slot, as far as is known.
    pub(super) fn node(&self, slot: u16) -> Option<Arc<Node>> {
        let node = self.shared.map.load().node(slot);
        if node.is_none() {
            self.shared.stale.notify_one();
        }
        node
    }

    /// The nodes that have slots.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        self.shared.map.load().nodes().to_vec()
    }

    /// The nodes that were listed.
    pub(super) fn contacts(&self) -> &[Contact] {
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
    pub(super) async fn ask(&self, node: &Node, batch: &Batch, deadline: Instant) -> Vec<Answer> {
        let mut answers = node.exchange(batch, deadline).await;
        let mut onward: HashMap<(&str, bool), Vec<usize>> = HashMap::new();
        for (index, answer) in answers.iter().enumerate() {
            match answer {
                Answer::Value(_) | Answer::Elsewhere(_) | Answer::Torn => {}
                Answer::Moved(to) => onward.entry((to, false)).or_default().push(index),
                Answer::Ask(to) => onward.entry((to, true)).or_default().push(index),
                Answer::Failed(Failure::Unreachable) => self.shared.stale.notify_one(),
                Answer::Failed(_) => {}
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
            let batch = if is_ask { Batch::asking(commands) } else { Batch::new(commands) };
            sent.spawn(async move { (indices, to.exchange(&batch, deadline).await) });
        }
        while let Some(joined) = sent.join_next().await {
            // A task that panicked leaves its commands where they were, which is a failure too.
            let Ok((indices, again)) = joined else { continue };
            for (index, answer) in indices.into_iter().zip(again) {
                answers[index] = match answer {
                    Answer::Value(value) => Answer::Elsewhere(value),
                    other => other,
                };
            }
        }
        answers
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Keeps the map true for ever.
async fn follow(shared: Arc<Shared>) {
    let mut doubt = Doubt::default();
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

impl Shared {
    fn new(seeds: Vec<Server>, terms: Terms) -> Shared {
        Shared {
            terms,
            seeds: seeds.into_iter().map(Contact::new).collect(),
            map: ArcSwap::from_pointee(Map::empty()),
            nodes: Mutex::new(HashMap::new()),
            leaving: Mutex::default(),
            stale: Notify::new(),
            is_known: watch::Sender::new(false),
        }
    }

    /// Asks how the cluster stands, until somebody says it who knows of the latest election.
    async fn ask(&self, doubt: &mut Doubt) -> Option<Word> {
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
    async fn ask_seed(&self, seed: &Contact) -> Result<Word, Trouble> {
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

    async fn ask_for_map(&self, link: &super::node::Link, server: &Server) -> Result<Word, Trouble> {
        let [mut info, mut slots] = [cmd("CLUSTER"), cmd("CLUSTER")];
        info.arg("INFO");
        slots.arg("SLOTS");
        let asker = self.terms.dialer.asker();
        let answer = timeout(PATIENCE, link.send(&Batch::new([info, slots]))).await;
        let answer = answer.map_err(|_| Trouble::too_slow(PATIENCE))?;
        let values = answer.map_err(|error| asker.explain_connect(&error))?;
        let unreadable = || Trouble::new(StoreErrorCause::Other, "what it says of its cluster can't be read");
        match values.as_slice() {
            [Value::ServerError(error), _] | [_, Value::ServerError(error)] => Err(asker.explain(error)),
            [Value::BulkString(info), slots] => {
                Word::read(&String::from_utf8_lossy(info), slots, server).ok_or_else(unreadable)
            }
            _ => Err(unreadable()),
        }
    }

    /// Some nodes that are there, not always the same ones first.
    fn up_nodes(&self) -> Vec<Arc<Node>> {
        let nodes = self.nodes.lock();
        // A hash map's order is as good as any, but it is always the same; the busiest nodes come last.
        let mut up: Vec<Arc<Node>> =
            nodes.values().filter(|node| node.phase() == Phase::Up).cloned().collect();
        up.sort_by_key(|node| node.load().1);
        up.truncate(ASKED);
        up
    }

    fn install(&self, word: &Word) {
        let mut masters: Vec<&Server> = word.masters();
        if masters.is_empty() {
            return;
        }
        // The slots of the rest have no server, which is told of.
        masters.truncate(MOST_NODES);
        let started: HashMap<Server, Arc<Node>> = {
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
        let are_up = || self.nodes.lock().values().all(|node| node.phase() == Phase::Up);
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

    fn tell(&self, before: &Map, after: &Map) {
        let names = |map: &Map| {
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
    fn node_at(&self, server: &Server) -> Option<Arc<Node>> {
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
    fn welcome(&self, server: &Server) -> Arc<Node> {
        let mut leaving = self.leaving.lock();
        match leaving.iter().position(|(node, _)| node.server() == server) {
            Some(index) => leaving.remove(index).0,
            None => Arc::new(Node::start(server.clone(), self.terms.clone())),
        }
    }
}

/// Reads where a command is sent on to. A node that doesn't know its own name means the host that was asked.
fn read_endpoint(text: &str, asked: &Server) -> Option<Server> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.split_once('@').map_or(port, |(port, _)| port).parse().ok()?;
    endpoint(host, port, asked)
}

fn endpoint(host: &str, port: u16, asked: &Server) -> Option<Server> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match (host, asked) {
        ("" | "?", Server::Tcp { host, .. }) => Some(Server::Tcp { host: host.clone(), port }),
        ("" | "?", Server::Unix(_)) => None,
        (host, _) => Some(Server::Tcp { host: host.to_owned(), port }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::{Dialer, RoleCheck};
    use super::super::url::Login;
    use super::*;
    use crate::clock::SystemClock;
    use crate::health::Topology;

    /// A cluster of which each port is a master with a slot.
    fn word(ports: std::ops::Range<u16>) -> Word {
        let host = || Value::BulkString(b"127.0.0.1".into());
        let ranges = ports.clone().map(|port| {
            let slot = Value::Int(i64::from(port - ports.start));
            let master = Value::Array(vec![host(), Value::Int(i64::from(port))]);
            Value::Array(vec![slot.clone(), slot, master])
        });
        let asked = Server::Tcp { host: "127.0.0.1".into(), port: 1 };
        Word::read("cluster_state:ok\r\ncluster_current_epoch:1", &Value::Array(ranges.collect()), &asked)
            .expect("it has an epoch")
    }

    /// Nothing here waits, so no node gets as far as to connect.
    #[tokio::test]
    async fn no_more_nodes_are_spoken_to_than_may_be_however_many_come_and_go() {
        let dialer = Dialer::new(&Login::default(), 0, None, Topology::Cluster).expect("it needs no files");
        let clock = Arc::new(SystemClock::new());
        let (script, digest) = ("", String::new());
        let terms = Terms { dialer, script, digest, links: 2, in_flight: 1, role: RoleCheck::Cluster, clock };
        let shared = Shared::new(Vec::new(), terms);
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
        let stranger = Server::Tcp { host: "127.0.0.1".into(), port: 9 };
        assert!(shared.node_at(&stranger).is_none());
    }
}

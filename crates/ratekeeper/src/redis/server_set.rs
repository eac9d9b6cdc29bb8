//! All servers of a store: which of them a key is on, and how to ask it.
//!
//! However the servers stand together, the face is the same: a tag is routed to a node, and commands for one node are
//! asked of it within a deadline, with one result for each. What a server sends on elsewhere is followed here. Nothing
//! here fails because a server is away: the fleet starts without it and goes on trying.

use super::cluster::{self, RedisCluster};
use super::discovery::DiscoveryServer;
use super::node::{
    CommandBatch, CommandOutcome, Connector, NodePhase, RedisNode, RoleCheck, ServerOptions, StoreTlsError,
};
use super::report;
use super::sentinel::SentinelMaster;
use super::sharded::ServerShards;
use super::url::{RedisUrl, ServerAddress, UrlTopology};
use crate::clock::SystemClock;
use crate::health::{ServerReport, Topology};
use ::redis::{Cmd, Value};
use ratekeeper_core::{Clock, StoreFailure};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// All servers of a store.
pub struct ServerSet {
    url: RedisUrl,
    layout: ServerLayout,
}

enum ServerLayout {
    One(Arc<RedisNode>),
    Sentinel(SentinelMaster),
    Cluster(RedisCluster),
    Sharded { nodes: Vec<Arc<RedisNode>>, shards: ServerShards },
}

/// What a fleet's servers are used for, and within what bounds.
#[derive(Clone)]
pub struct ServerSetOptions {
    /// The script that commands call by its digest; it is loaded where it is missing. To find out whether a server would run
    /// it, it is called once a second on each connection with a key and no arguments. It should then change nothing, and
    /// return two texts: which commands the user may not run, and the error that a write would be refused with. An error of
    /// the script itself is taken for nothing wrong.
    pub script: &'static str,
    /// How many connections are kept to each server.
    pub links: usize,
    /// The most commands in flight to each server at once.
    pub in_flight: usize,
    /// This node's wall clock, which servers' clocks are compared with.
    pub clock: Arc<dyn Clock>,
}

impl ServerSetOptions {
    /// Two connections and at most 1024 commands in flight to each server.
    pub fn new(script: &'static str) -> ServerSetOptions {
        ServerSetOptions { script, links: 2, in_flight: 1024, clock: Arc::new(SystemClock::new()) }
    }
}

impl fmt::Debug for ServerSetOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerSetOptions { links, in_flight, .. } = self;
        out.debug_struct("FleetOptions")
            .field("links", links)
            .field("in_flight", in_flight)
            .finish_non_exhaustive()
    }
}

/// Where a tag is.
#[derive(Clone, Debug)]
pub struct ServerRoute {
    /// The server that has it.
    pub node: Arc<RedisNode>,
    /// Its slot in a Cluster, in which all keys of a command must be; 0 elsewhere, where they need not.
    pub slot: u16,
}

impl ServerSet {
    /// Sets out to connect to a store, on the tokio runtime that this is called on.
    ///
    /// # Errors
    /// If the files that TLS needs are of no use. That a server is away is no error.
    pub fn connect(url: &RedisUrl, options: ServerSetOptions) -> Result<ServerSet, StoreTlsError> {
        let dialer = Connector::new(&url.login, url.db, url.tls.as_ref(), url.form.topology())?;
        let ServerSetOptions { script, links, in_flight, clock } = options;
        let role = match url.form.topology() {
            Topology::Standalone | Topology::Sharded => RoleCheck::NoReplica,
            Topology::Sentinel => RoleCheck::Master,
            Topology::Cluster => RoleCheck::Cluster,
        };
        let digest = sha1_smol::Sha1::from(script).digest().to_string();
        let terms = ServerOptions { dialer, script, digest, links: links.max(1), in_flight, role, clock };
        let start = |server: &ServerAddress| Arc::new(RedisNode::start(server.clone(), terms.clone()));
        let layout = match &url.form {
            UrlTopology::Standalone => ServerLayout::One(start(&url.servers[0])),
            UrlTopology::Sharded => ServerLayout::Sharded {
                nodes: url.servers.iter().map(start).collect(),
                shards: ServerShards::new(&url.servers),
            },
            UrlTopology::Cluster => ServerLayout::Cluster(RedisCluster::start(url.servers.clone(), terms)),
            UrlTopology::Sentinel { master, login } => {
                let dialer = Connector::for_news(login, url.tls.as_ref())?;
                ServerLayout::Sentinel(SentinelMaster::start(
                    url.servers.clone(),
                    master.clone(),
                    &dialer,
                    terms,
                ))
            }
        };
        Ok(ServerSet { url: url.clone(), layout })
    }

    /// Waits until it is known where everything is and every server has been tried, but no longer than `patience`.
    /// Says whether all of them are there.
    pub async fn ready(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let known = async {
            match &self.layout {
                ServerLayout::One(_) | ServerLayout::Sharded { .. } => {}
                ServerLayout::Sentinel(sentinel) => sentinel.wait_until_known().await,
                ServerLayout::Cluster(cluster) => cluster.wait_until_known().await,
            }
            for node in self.nodes() {
                // A node whose task has ended is not waited for.
                let _ = node.phases().wait_for(|phase| *phase != NodePhase::New).await;
            }
        };
        timeout_at(deadline, known).await.is_ok() && self.is_up()
    }

    /// Whether all servers are there, as far as they are known.
    pub fn is_up(&self) -> bool {
        let nodes = self.nodes();
        self.uncovered_slots() == 0
            && !nodes.is_empty()
            && nodes.iter().all(|node| node.phase() == NodePhase::Up)
    }

    /// Whether keys are spread over several servers.
    pub fn is_spread(&self) -> bool {
        match &self.layout {
            ServerLayout::One(_) | ServerLayout::Sentinel(_) => false,
            ServerLayout::Cluster(_) | ServerLayout::Sharded { .. } => true,
        }
    }

    /// Where a tag is.
    ///
    /// # Errors
    /// If it is not known yet who has it.
    pub fn route(&self, tag: &[u8]) -> Result<ServerRoute, StoreFailure> {
        let (node, slot) = match &self.layout {
            ServerLayout::One(node) => (Some(Arc::clone(node)), 0),
            ServerLayout::Sentinel(sentinel) => (sentinel.node(), 0),
            ServerLayout::Sharded { nodes, shards } => (nodes.get(shards.place(tag)).cloned(), 0),
            ServerLayout::Cluster(cluster) => {
                let slot = cluster::slot::slot(tag);
                (cluster.node(slot), slot)
            }
        };
        node.map(|node| ServerRoute { node, slot }).ok_or(StoreFailure::Unreachable)
    }

    /// Sends commands to a server at once and gives each one's result, in their order, all by the deadline.
    ///
    /// A command is sent a second time only if the server said that it did not run: because the script was missing, or
    /// because its slot is elsewhere.
    pub async fn ask(
        &self,
        node: &RedisNode,
        commands: Vec<Cmd>,
        deadline: Instant,
    ) -> Vec<Result<Value, StoreFailure>> {
        let answers = self.exchange(node, commands, deadline).await;
        answers.into_iter().map(CommandOutcome::settle).collect()
    }

    /// The same, for those who can do something about a command that did not run.
    pub(super) async fn exchange(
        &self,
        node: &RedisNode,
        commands: Vec<Cmd>,
        deadline: Instant,
    ) -> Vec<CommandOutcome> {
        let batch = CommandBatch::new(commands);
        match &self.layout {
            ServerLayout::Cluster(cluster) => cluster.ask(node, &batch, deadline).await,
            ServerLayout::One(_) | ServerLayout::Sentinel(_) | ServerLayout::Sharded { .. } => {
                node.exchange(&batch, deadline).await
            }
        }
    }

    /// The servers that keep state, as far as they are known.
    pub fn nodes(&self) -> Vec<Arc<RedisNode>> {
        match &self.layout {
            ServerLayout::One(node) => vec![Arc::clone(node)],
            ServerLayout::Sentinel(sentinel) => sentinel.node().into_iter().collect(),
            ServerLayout::Sharded { nodes, .. } => nodes.clone(),
            ServerLayout::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// How everything stands: for logs and for people.
    pub fn describe(&self) -> ServerSetReport {
        let sentinels = match &self.layout {
            ServerLayout::Sentinel(sentinel) => sentinel.sentinels(),
            ServerLayout::One(_) | ServerLayout::Cluster(_) | ServerLayout::Sharded { .. } => Vec::new(),
        };
        let named = sentinels.into_iter().map(|(server, is_there)| (server.to_string(), is_there));
        ServerSetReport {
            url: self.url.to_string(),
            topology: self.url.form.topology(),
            servers: self.servers(),
            sentinels: named.collect(),
            uncovered_slots: self.uncovered_slots(),
        }
    }

    /// How servers are doing: those that keep state, or, as long as none is known, those that are asked where they are.
    fn servers(&self) -> Vec<ServerReport> {
        let nodes = self.nodes();
        let contacts = match &self.layout {
            ServerLayout::Sentinel(sentinel) if nodes.is_empty() => sentinel.contacts(),
            ServerLayout::Cluster(cluster) if nodes.is_empty() => cluster.contacts(),
            _ => return nodes.iter().map(|node| report::of_server(node)).collect(),
        };
        contacts.iter().map(DiscoveryServer::report).collect()
    }

    fn uncovered_slots(&self) -> usize {
        match &self.layout {
            ServerLayout::Cluster(cluster) => cluster.uncovered(),
            ServerLayout::One(_) | ServerLayout::Sentinel(_) | ServerLayout::Sharded { .. } => 0,
        }
    }
}

impl fmt::Debug for ServerSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Fleet({}, {:?})", self.url, self.nodes())
    }
}

/// How a store's servers stand.
#[derive(Clone, Debug)]
pub struct ServerSetReport {
    /// The store's URL, without passwords.
    pub url: String,
    /// How its servers belong together.
    pub topology: Topology,
    /// The servers that keep state; behind Sentinel the master alone. As long as none is known, the sentinels, or the listed
    /// nodes of the Cluster.
    pub servers: Vec<ServerReport>,
    /// The sentinels, and whether each has answered of late.
    pub sentinels: Vec<(String, bool)>,
    /// How many of a Cluster's slots nobody has.
    pub uncovered_slots: usize,
}

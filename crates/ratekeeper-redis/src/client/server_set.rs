//! All servers of a store: routes keys to them and sends them commands.
//!
//! The interface is the same for every topology: a hash tag is routed to a node, and commands are sent to a node with
//! a deadline and one result for each. Redirects are followed here. A server that is down is no error: the set starts
//! without it and keeps trying to connect.

use crate::client::connection::CommandBatch;
use crate::client::connector::Connector;
use crate::client::node::{CommandOutcome, NodePhase, RedisNode, RoleCheck, ServerOptions};
use crate::client::report;
use crate::client::slot;
use crate::client::tls::StoreTlsError;
use crate::client::topology::cluster::RedisCluster;
use crate::client::topology::discovery::DiscoveryServer;
use crate::client::topology::sentinel::SentinelMaster;
use crate::client::topology::sharded::ServerShards;
use crate::client::url::{RedisUrl, ServerAddress, UrlTopology};
use ratekeeper::{ServerReport, Topology};
use ratekeeper_core::{Clock, StoreFailure};
use redis::{Cmd, Value};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// All servers of a store.
pub(crate) struct ServerSet {
    url: RedisUrl,
    layout: ServerLayout,
}

enum ServerLayout {
    Standalone(Arc<RedisNode>),
    Sentinel(SentinelMaster),
    Cluster(RedisCluster),
    Sharded { nodes: Vec<Arc<RedisNode>>, shards: ServerShards },
}

/// How the servers of a [`ServerSet`] are used, and within what bounds.
#[derive(Clone)]
pub(crate) struct ServerSetOptions {
    /// The script that commands call by its digest; it is loaded on servers that do not have it.
    ///
    /// To probe whether a server would run it, the script is called once a second on each connection with a key and
    /// no arguments. It should then change nothing and return two strings: the commands that the user may not run,
    /// and the error with which a write would be rejected. An error of the script itself is ignored.
    pub(crate) script: &'static str,
    /// Number of connections to each server.
    pub(crate) connections: usize,
    /// Maximum number of commands in flight to each server.
    pub(crate) max_in_flight: usize,
    /// This node's wall clock, with which the servers' clocks are compared.
    pub(crate) clock: Arc<dyn Clock>,
}

impl ServerSetOptions {
    /// Options for a script, with two connections and at most 1024 commands in flight per server.
    pub(crate) fn new(script: &'static str, clock: Arc<dyn Clock>) -> ServerSetOptions {
        ServerSetOptions { script, connections: 2, max_in_flight: 1024, clock }
    }
}

impl fmt::Debug for ServerSetOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerSetOptions { connections, max_in_flight, .. } = self;
        out.debug_struct("ServerSetOptions")
            .field("connections", connections)
            .field("max_in_flight", max_in_flight)
            .finish_non_exhaustive()
    }
}

/// The server that a hash tag is routed to.
#[derive(Clone, Debug)]
pub(crate) struct ServerRoute {
    /// The server.
    pub(crate) node: Arc<RedisNode>,
    /// The slot in a Cluster, which all keys of a command must share. Always 0 in other topologies, where keys need not
    /// share a slot.
    pub(crate) slot: u16,
}

impl ServerSet {
    /// Starts to connect to a store, on the current tokio runtime.
    ///
    /// # Errors
    /// If the TLS files are missing or invalid. A server that is down is no error.
    pub(crate) fn connect(url: &RedisUrl, options: ServerSetOptions) -> Result<ServerSet, StoreTlsError> {
        let connector = Connector::new(&url.credentials, url.db, url.tls.as_ref(), url.topology.kind())?;
        let ServerSetOptions { script, connections, max_in_flight, clock } = options;
        let role = match url.topology.kind() {
            Topology::Standalone | Topology::Sharded => RoleCheck::NoReplica,
            Topology::Sentinel => RoleCheck::Master,
            Topology::Cluster => RoleCheck::Cluster,
        };
        let digest = sha1_smol::Sha1::from(script).digest().to_string();
        let server_options = ServerOptions {
            connector,
            script,
            digest,
            connections: connections.max(1),
            max_in_flight,
            role,
            clock,
        };
        let start =
            |server: &ServerAddress| Arc::new(RedisNode::start(server.clone(), server_options.clone()));
        let layout = match &url.topology {
            UrlTopology::Standalone => ServerLayout::Standalone(start(&url.servers[0])),
            UrlTopology::Sharded => ServerLayout::Sharded {
                nodes: url.servers.iter().map(start).collect(),
                shards: ServerShards::new(&url.servers),
            },
            UrlTopology::Cluster => {
                ServerLayout::Cluster(RedisCluster::start(url.servers.clone(), server_options))
            }
            UrlTopology::Sentinel { master, credentials } => {
                let connector = Connector::for_sentinels(credentials, url.tls.as_ref())?;
                ServerLayout::Sentinel(SentinelMaster::start(
                    url.servers.clone(),
                    master.clone(),
                    &connector,
                    server_options,
                ))
            }
        };
        Ok(ServerSet { url: url.clone(), layout })
    }

    /// Waits until the topology is known and a connection to every server has been attempted, for at most `timeout`.
    /// Returns whether all servers are up.
    pub(crate) async fn wait_until_ready(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let known = async {
            match &self.layout {
                ServerLayout::Standalone(_) | ServerLayout::Sharded { .. } => {}
                ServerLayout::Sentinel(sentinel) => sentinel.wait_for_master().await,
                ServerLayout::Cluster(cluster) => cluster.wait_for_topology().await,
            }
            for node in self.nodes() {
                // An error means that the node's task has ended.
                let _ = node.phase_changes().wait_for(|phase| *phase != NodePhase::New).await;
            }
        };
        timeout_at(deadline, known).await.is_ok() && self.is_up()
    }

    /// Whether all known servers are up, and cover all slots of a Cluster.
    pub(crate) fn is_up(&self) -> bool {
        let nodes = self.nodes();
        self.uncovered_slots() == 0
            && !nodes.is_empty()
            && nodes.iter().all(|node| node.phase() == NodePhase::Up)
    }

    /// Whether keys are distributed over several servers.
    pub(crate) fn is_distributed(&self) -> bool {
        match &self.layout {
            ServerLayout::Standalone(_) | ServerLayout::Sentinel(_) => false,
            ServerLayout::Cluster(_) | ServerLayout::Sharded { .. } => true,
        }
    }

    /// The server that serves a hash tag.
    ///
    /// # Errors
    /// If no server is known to serve it.
    pub(crate) fn route(&self, tag: &[u8]) -> Result<ServerRoute, StoreFailure> {
        let (node, slot) = match &self.layout {
            ServerLayout::Standalone(node) => (Some(Arc::clone(node)), 0),
            ServerLayout::Sentinel(sentinel) => (sentinel.node(), 0),
            ServerLayout::Sharded { nodes, shards } => (nodes.get(shards.index_of(tag)).cloned(), 0),
            ServerLayout::Cluster(cluster) => {
                let slot = slot::slot(tag);
                (cluster.node(slot), slot)
            }
        };
        node.map(|node| ServerRoute { node, slot }).ok_or(StoreFailure::Unreachable)
    }

    /// Sends commands to a server in one write, and returns their results in order, by the deadline at the latest.
    ///
    /// A command is resent only if the server reported that it did not run: because the script was missing, or
    /// because its slot has moved.
    pub(crate) async fn execute(
        &self,
        node: &RedisNode,
        commands: Vec<Cmd>,
        deadline: Instant,
    ) -> Vec<Result<Value, StoreFailure>> {
        let outcomes = self.call(node, commands, deadline).await;
        outcomes.into_iter().map(CommandOutcome::into_result).collect()
    }

    /// Like [`ServerSet::execute`], but returns outcomes that tell why a command did not run.
    pub(crate) async fn call(
        &self,
        node: &RedisNode,
        commands: Vec<Cmd>,
        deadline: Instant,
    ) -> Vec<CommandOutcome> {
        let batch = CommandBatch::new(commands);
        match &self.layout {
            ServerLayout::Cluster(cluster) => cluster.call(node, &batch, deadline).await,
            ServerLayout::Standalone(_) | ServerLayout::Sentinel(_) | ServerLayout::Sharded { .. } => {
                node.call(&batch, deadline).await
            }
        }
    }

    /// The known servers that hold state.
    pub(crate) fn nodes(&self) -> Vec<Arc<RedisNode>> {
        match &self.layout {
            ServerLayout::Standalone(node) => vec![Arc::clone(node)],
            ServerLayout::Sentinel(sentinel) => sentinel.node().into_iter().collect(),
            ServerLayout::Sharded { nodes, .. } => nodes.clone(),
            ServerLayout::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// A report of the topology and the health of each server.
    pub(crate) fn report(&self) -> ServerSetReport {
        let sentinels = match &self.layout {
            ServerLayout::Sentinel(sentinel) => sentinel.sentinels(),
            ServerLayout::Standalone(_) | ServerLayout::Cluster(_) | ServerLayout::Sharded { .. } => {
                Vec::new()
            }
        };
        let sentinels = sentinels.into_iter().map(|(server, is_up)| (server.to_string(), is_up));
        ServerSetReport {
            url: self.url.to_string(),
            topology: self.url.topology.kind(),
            server_reports: self.servers(),
            sentinels: sentinels.collect(),
            uncovered_slots: self.uncovered_slots(),
        }
    }

    /// Health reports of the servers that hold state; while none is known, of those that are queried for the topology.
    fn servers(&self) -> Vec<ServerReport> {
        let nodes = self.nodes();
        let discovery_servers = match &self.layout {
            ServerLayout::Sentinel(sentinel) if nodes.is_empty() => sentinel.discovery_servers(),
            ServerLayout::Cluster(cluster) if nodes.is_empty() => cluster.discovery_servers(),
            _ => return nodes.iter().map(|node| report::server_report(node)).collect(),
        };
        discovery_servers.iter().map(DiscoveryServer::report).collect()
    }

    fn uncovered_slots(&self) -> usize {
        match &self.layout {
            ServerLayout::Cluster(cluster) => cluster.uncovered_slots(),
            ServerLayout::Standalone(_) | ServerLayout::Sentinel(_) | ServerLayout::Sharded { .. } => 0,
        }
    }
}

impl fmt::Debug for ServerSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ServerSet({}, {:?})", self.url, self.nodes())
    }
}

/// The topology of a store, and the health of its servers.
#[derive(Clone, Debug)]
pub struct ServerSetReport {
    /// The store's URL, without passwords.
    pub url: String,
    /// The topology of its servers.
    pub topology: Topology,
    /// The servers that hold state; with Sentinel only the master. While none is known, the sentinels, or the Cluster
    /// nodes listed in the URL.
    pub server_reports: Vec<ServerReport>,
    /// The sentinels, and whether each has replied recently.
    pub sentinels: Vec<(String, bool)>,
    /// The number of Cluster slots without a server.
    pub uncovered_slots: usize,
}

//! All servers of a store: routes keys to them and sends them commands.
//!
//! The interface is the same for every topology: a hash tag is routed to a node, and commands are sent to a node with
//! a deadline and one result for each. Redirects are followed here. A server that is down is no error: the set starts
//! without it and keeps trying to connect.

use crate::client::connection::CommandBatch;
use crate::client::connector::Connector;
use crate::client::node::{CommandOutcome, NodePhase, RedisNode, RoleCheck, ServerOptions, ServerSetOptions};
use crate::client::slot;
use crate::client::tls::StoreTlsError;
use crate::client::topology::cluster::RedisCluster;
use crate::client::topology::discovery::DiscoveryServer;
use crate::client::topology::sentinel::SentinelMaster;
use crate::client::topology::sharded::ServerShards;
use crate::client::url::{RedisUrl, UrlTopology};
use ratekeeper::{ServerReport, StoreCounts, StoreReport, Topology};
use ratekeeper_core::StoreFailure;
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
    /// One server, or several that know nothing of each other.
    Independent(Vec<Arc<RedisNode>>, ServerShards),
    Sentinel(SentinelMaster),
    Cluster(RedisCluster),
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
    pub(crate) fn connect(url: &RedisUrl, bounds: ServerSetOptions) -> Result<ServerSet, StoreTlsError> {
        let (topology, tls, servers) = (url.topology.kind(), url.tls.as_ref(), url.servers.clone());
        let options = ServerOptions {
            connector: Connector::new(&url.credentials, url.db, tls, topology)?,
            digest: sha1_smol::Sha1::from(bounds.script).digest().to_string(),
            role: match topology {
                Topology::Standalone | Topology::Sharded => RoleCheck::NoReplica,
                Topology::Sentinel => RoleCheck::Master,
                Topology::Cluster => RoleCheck::Cluster,
            },
            bounds,
        };
        let layout = match &url.topology {
            UrlTopology::Standalone | UrlTopology::Sharded => {
                let shards = ServerShards::new(&servers);
                let start = |server| Arc::new(RedisNode::start(server, options.clone()));
                ServerLayout::Independent(servers.into_iter().map(start).collect(), shards)
            }
            UrlTopology::Cluster => ServerLayout::Cluster(RedisCluster::start(servers, options)),
            UrlTopology::Sentinel { master, credentials } => {
                let connector = Connector::for_sentinels(credentials, tls)?;
                ServerLayout::Sentinel(SentinelMaster::start(servers, master.clone(), &connector, options))
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
                ServerLayout::Independent(..) => {}
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
            ServerLayout::Independent(nodes, _) => nodes.len() > 1,
            ServerLayout::Sentinel(_) => false,
            ServerLayout::Cluster(_) => true,
        }
    }

    /// The server that serves a hash tag.
    ///
    /// # Errors
    /// If no server is known to serve it.
    pub(crate) fn route(&self, tag: &[u8]) -> Result<ServerRoute, StoreFailure> {
        let (node, slot) = match &self.layout {
            ServerLayout::Independent(nodes, shards) => (nodes.get(shards.index_of(tag)).cloned(), 0),
            ServerLayout::Sentinel(sentinel) => (sentinel.node(), 0),
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
            ServerLayout::Independent(..) | ServerLayout::Sentinel(_) => node.call(&batch, deadline).await,
        }
    }

    /// The known servers that hold state.
    pub(crate) fn nodes(&self) -> Vec<Arc<RedisNode>> {
        match &self.layout {
            ServerLayout::Independent(nodes, _) => nodes.clone(),
            ServerLayout::Sentinel(sentinel) => sentinel.node().into_iter().collect(),
            ServerLayout::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// The topology and the health of each server. What the store above knows is left out.
    pub(crate) fn report(&self) -> StoreReport {
        StoreReport {
            address: self.url.to_string(),
            topology: self.url.topology.kind(),
            servers: self.server_reports(),
            uncovered_slots: self.uncovered_slots(),
            last_failure: None,
            live_nodes: 1,
            counts: StoreCounts::default(),
        }
    }

    /// Health reports of the servers that hold state; while none is known, of those that are queried for the topology.
    fn server_reports(&self) -> Vec<ServerReport> {
        let nodes = self.nodes();
        let discovery_servers = match &self.layout {
            ServerLayout::Sentinel(sentinel) if nodes.is_empty() => sentinel.discovery_servers(),
            ServerLayout::Cluster(cluster) if nodes.is_empty() => cluster.discovery_servers(),
            _ => return nodes.iter().map(|node| node.report()).collect(),
        };
        discovery_servers.iter().map(DiscoveryServer::report).collect()
    }

    fn uncovered_slots(&self) -> usize {
        match &self.layout {
            ServerLayout::Cluster(cluster) => cluster.uncovered_slots(),
            ServerLayout::Independent(..) | ServerLayout::Sentinel(_) => 0,
        }
    }

    /// The sentinels, and whether each has replied recently.
    #[cfg(test)]
    pub(crate) fn sentinels(&self) -> Vec<(String, bool)> {
        match &self.layout {
            ServerLayout::Sentinel(sentinel) => sentinel.sentinels(),
            ServerLayout::Independent(..) | ServerLayout::Cluster(_) => Vec::new(),
        }
    }
}

impl fmt::Debug for ServerSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ServerSet({}, {:?})", self.url, self.nodes())
    }
}

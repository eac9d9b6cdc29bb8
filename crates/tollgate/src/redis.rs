//! State on Redis or Valkey, shared by all nodes.
//!
//! [`StoreUrl`] says where the servers are, a [`Fleet`] speaks to them, a [`Heartbeat`] counts the nodes that do.

mod breaker;
mod bundle;
mod cluster;
mod errand;
mod fleet;
mod heartbeat;
mod lane;
mod node;
mod notes;
#[cfg(test)]
mod parity;
mod report;
mod script;
mod sentinel;
mod sharded;
mod skew;
mod store;
mod stored_key;
mod tally;
mod url;
mod wire;

pub use fleet::{Description, Fleet, FleetOptions, Route, ServerReport};
pub use heartbeat::Heartbeat;
pub use node::{Counts, Facts, Node, Phase, TrustError};
pub use store::{RedisError, RedisOptions, RedisStore};
pub use url::{Login, MAX_SERVERS, RedisUrl, Secret, Server, StoreUrl, StoreUrlError, TlsFiles, Topology};

//! State on Redis or Valkey, shared by all nodes.
//!
//! [`StoreUrl`] says where the servers are, a [`Fleet`] speaks to them, a [`Heartbeat`] counts the nodes that do.

mod breaker;
mod cluster;
mod fleet;
mod heartbeat;
mod node;
#[cfg(test)]
mod parity;
mod script;
mod sentinel;
mod sharded;
mod skew;
mod stored_key;
mod url;
mod wire;

pub use breaker::BreakerState;
pub use fleet::{Description, Fleet, FleetOptions, Route, ServerReport};
pub use heartbeat::Heartbeat;
pub use node::{Counts, Facts, LATENCY_BOUNDS_MICROS, Latency, Node, Phase, TrustError};
pub use url::{Login, MAX_SERVERS, RedisUrl, Secret, Server, StoreUrl, StoreUrlError, TlsFiles, Topology};

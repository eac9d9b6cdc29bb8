//! Real servers for tests: Redis and Valkey, standalone, with Sentinels or as a Cluster, Ratekeeper nodes, and faults
//! on the network between them.
//!
//! Each guard starts its processes on reserved ports in its own temporary folder, and kills them when it is dropped;
//! they also end if the test is killed and drops nothing. Guards share nothing, so tests may run in parallel, in one
//! process or in many. When a guard fails at something, the test fails with the server's log.
//!
//! Environment variables say where the programs are: `RATEKEEPER_REDIS_SERVER`, `RATEKEEPER_VALKEY_SERVER` and
//! `RATEKEEPER_LIBFAKETIME`. `cargo xtask test` installs missing ones and sets the variables; without them, the
//! programs are searched on the `PATH`.

mod chaos;
mod cluster;
mod faketime;
mod footprint;
mod network;
mod node;
mod port;
mod process;
mod program;
mod redis;
mod resp;
mod sentinels;

pub use chaos::{ChaosProxy, DroppedDirection, LinkFaults};
pub use cluster::{ClusterSetup, SLOTS, TestCluster};
pub use footprint::Footprint;
pub use network::{Network, NetworkHost};
pub use node::{NodeSetup, ServerNode};
pub use port::ReservedPort;
pub use process::ChildProcess;
pub use redis::{Brand, RedisServer, RedisSetup, ServerCertificates};
pub use resp::{RespClient, RespReply};
pub(crate) use resp::{connect, encode};
pub use sentinels::{Sentinels, SentinelsSetup};

//! Real servers for a test: Redis and Valkey, alone, watched by Sentinels or as a Cluster, and what can go wrong on the way
//! to them.
//!
//! Each guard starts its processes on ports nobody else has, in a folder of its own, and takes them down when it is
//! dropped; they end as well when the test is killed and drops nothing. Guards share nothing, so tests that use them may
//! run beside each other, in one process or in many. What a guard cannot do fails the test with the server's log.
//!
//! Where the programs are, environment variables tell: `RATEKEEPER_REDIS_SERVER`, `RATEKEEPER_VALKEY_SERVER` and
//! `RATEKEEPER_LIBFAKETIME`. `cargo xtask test` installs what is missing and sets them; without, the programs are looked for
//! on the `PATH`.

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
pub use port::FreePort;
pub use process::ChildProcess;
pub use redis::{Brand, RedisServer, RedisSetup, ServerCertificates};
pub use resp::{RespClient, RespReply};
pub(crate) use resp::{connect, encode};
pub use sentinels::{Sentinels, SentinelsSetup};

//! A store on Redis or Valkey that several nodes share.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ratekeeper::{Leased, Limiter, SystemClock};
//! use ratekeeper::redis::{RedisOptions, RedisStore};
//! use std::sync::Arc;
//!
//! let clock = Arc::new(SystemClock::new());
//! let url = "redis://127.0.0.1:6379".parse()?;
//! let store = RedisStore::connect(&url, &RedisOptions::default(), Arc::clone(&clock))?;
//! let store = Leased::new(store, clock, 1 << 18);
//! let limiter = Limiter::with_store("100/s", store)?;
//! assert!(limiter.check("user:42").await?.is_allowed());
//! # Ok(())
//! # }
//! ```
//!
//! A [`RedisUrl`] names the servers, a [`ServerSet`] connects to them and routes commands, and a [`Heartbeat`] counts
//! the nodes that share the store.

mod batcher;
mod breaker;
mod clock_offset;
mod cluster;
mod coalesce;
mod counters;
mod denial_cache;
mod discovery;
mod fan_out;
mod heartbeat;
mod node;
#[cfg(test)]
mod parity;
mod report;
mod router;
mod script;
mod script_call;
mod sentinel;
mod server_set;
mod sharded;
mod store;
mod stored_key;
mod url;

pub use heartbeat::Heartbeat;
pub use node::{CallCounts, NodePhase, RedisNode, ServerInfo, StoreTlsError};
pub use server_set::{ServerRoute, ServerSet, ServerSetOptions, ServerSetReport};
pub use store::{RedisError, RedisOptions, RedisStore};
pub use url::{
    Credentials, MAX_SERVERS, RedisUrl, SecretText, ServerAddress, StoreTlsFiles, StoreUrl, StoreUrlError,
    UrlTopology,
};

//! State on Redis or Valkey, shared by all nodes.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ratekeeper::Limiter;
//! use ratekeeper::redis::{RedisOptions, RedisStore};
//!
//! let store = RedisStore::connect(&"redis://127.0.0.1:6379".parse()?, &RedisOptions::default())?;
//! let limiter = Limiter::with_store("100/s", store)?;
//! assert!(limiter.check("user:42").await?.is_allowed());
//! # Ok(())
//! # }
//! ```
//!
//! [`RedisUrl`] says where the servers are, a [`Fleet`] speaks to them, a [`Heartbeat`] counts the nodes that do.

mod breaker;
mod bundle;
mod cluster;
mod contact;
mod errand;
mod fleet;
mod hand;
mod heartbeat;
mod lane;
mod node;
mod notes;
#[cfg(test)]
mod parity;
mod post;
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

pub use fleet::{Description, Fleet, FleetOptions, Route};
pub use heartbeat::Heartbeat;
pub use node::{Counts, Facts, Node, Phase, TrustError};
pub use store::{RedisError, RedisOptions, RedisStore};
pub use url::{Form, Login, MAX_SERVERS, RedisUrl, Secret, Server, StoreUrl, StoreUrlError, TlsFiles};

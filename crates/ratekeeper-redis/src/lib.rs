//! A store for [`ratekeeper`] on Redis or Valkey, which several nodes share.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ratekeeper::{Leased, Limiter, SystemClock};
//! use ratekeeper_redis::{RedisOptions, RedisStore};
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
//! The crate has three layers, each of which uses only those below it. The store routes draws, and decides those that
//! need no server. A batcher for each server collects draws and sends them as calls of a script. The client keeps
//! connections to the servers of every topology.

mod batch;
mod client;
mod counters;
#[cfg(test)]
mod parity;
mod store;
#[cfg(test)]
mod tests;

pub use client::tls::StoreTlsError;
pub use client::url::{
    Credentials, HIDDEN_PASSWORD, MAX_SERVERS, RedisUrl, SecretText, ServerAddress, StoreTlsFiles, StoreUrl,
    StoreUrlError, UrlTopology,
};
pub use store::{RedisError, RedisOptions, RedisStore};

//! Tollgate's edges: bytes become requests, decisions become bytes, and nothing here decides anything.
//!
//! [`Rules`] reads the file that says which limits there are; [`serve`] answers for them over HTTP until it is told to
//! stop. The caller owns the socket, the limiter and the reason to stop:
//!
//! ```
//! use tollgate::{Limiter, MemoryStore};
//! use tollgate_server::{Rules, serve};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = Rules::built_in();
//! let limiter = Limiter::with_store(rules.limits(), MemoryStore::new())?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let asked_to_stop = std::future::ready(());
//! serve(listener, limiter, asked_to_stop).await;
//! # Ok(())
//! # }
//! ```

mod file;
mod http;
mod rules;
mod serve;
pub mod tls;
mod token;
mod watch;

pub use rules::{Complaint, Rule, Rules, RulesError};
pub use serve::serve;
pub use token::{Token, TokenError};
pub use watch::Watch;

/// The examples in the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

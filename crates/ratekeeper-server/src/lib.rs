//! Ratekeeper's server: decodes requests, has them decided, and encodes the decisions. It decides nothing itself.
//!
//! [`serve`] answers checks over HTTP, gRPC and RESP with a [`RuleLimiter`](ratekeeper::RuleLimiter) until it is told
//! to stop. The caller owns the sockets, the limiter and the stop signal; [`rule_source`] loads rules from a file and
//! reloads them when it changes.

mod admin;
mod api;
mod client_address;
mod conn;
mod cross_site;
mod denial_log;
mod explain;
pub mod file;
mod grpc;
mod http;
mod listener;
mod metrics;
mod resp;
pub mod rule_source;
mod serve;
mod store_report;
pub mod tls;
mod token;
mod watch;

pub use api::{ApiOptions, ForwardOptions, KeySources, KeySourcesError, RateLimitHeaders, ResetForm};
pub use client_address::{AddressHeader, TrustedProxies};
pub use cross_site::{AllowedOrigins, AllowedOriginsError};
pub use hyper::StatusCode;
pub use listener::BoundSocket;
pub use serve::{ServerSetup, serve};
pub use token::{Token, TokenError};
pub use watch::FileWatch;

/// Compiles and runs the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

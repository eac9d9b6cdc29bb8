//! Ratekeeper's edges: bytes become requests, decisions become bytes, and nothing here decides anything.
//!
//! [`serve`] answers over HTTP, gRPC and RESP by the rules of a [`RuleLimiter`](ratekeeper::RuleLimiter) until it is told to stop. The caller owns the
//! sockets, the gate and the reason to stop; [`rule_source`] brings rules from their file into force.

mod admin;
mod api;
mod client_address;
mod connection_caps;
mod connections;
mod cross_site;
mod denial_log;
mod explain;
mod file;
mod grpc;
mod http;
mod listener;
mod maintenance;
mod metrics;
mod resp;
pub mod rule_source;
mod serve;
mod store_report;
pub mod tls;
mod token;
mod watch;

pub use api::{ApiOptions, FieldProfile, ForwardOptions, KeySources, KeySourcesError, ResetForm};
pub use client_address::{AddressField, TrustedProxies};
pub use cross_site::{AllowedOrigins, AllowedOriginsError};
pub use hyper::StatusCode;
pub use listener::BoundSocket;
pub use maintenance::StoreMaintenance;
pub use serve::{ServerSetup, serve};
pub use token::{Token, TokenError};
pub use watch::FileWatch;

/// The examples in the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

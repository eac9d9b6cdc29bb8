//! Ratekeeper's edges: bytes become requests, decisions become bytes, and nothing here decides anything.
//!
//! [`serve`] answers over HTTP, gRPC and RESP by the rules of a [`Gate`](ratekeeper::Gate) until it is told to stop. The caller owns the
//! sockets, the gate and the reason to stop; [`feed`] brings rules from their file into force.

mod admin;
mod api;
mod client_address;
mod connection_caps;
mod cross_site;
mod denials;
mod explain;
pub mod feed;
mod file;
mod grpc;
mod http;
mod keeping;
mod metrics;
mod port;
mod residents;
mod resp;
mod serve;
mod store_report;
pub mod tls;
mod token;
mod watch;

pub use api::{ApiOptions, FieldProfile, ForwardOptions, KeySources, KeySourcesError, ResetForm};
pub use client_address::{AddressField, TrustedProxies};
pub use cross_site::{AllowedOrigins, AllowedOriginsError};
pub use hyper::StatusCode;
pub use keeping::Keeping;
pub use port::Door;
pub use serve::{Setup, serve};
pub use token::{Token, TokenError};
pub use watch::Watch;

/// The examples in the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

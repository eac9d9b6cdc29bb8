//! Servers over gRPC: Envoy's and throttlecrab's unary calls, and Ratekeeper's stream.

use super::{CONNECTIONS, Protocol, ServerConfig, Subject};
use crate::server::client::grpc::{StreamClient, UnaryClient};
use crate::server::floor::Kind;
use crate::server::load::Plan;
use crate::server::process::{Process, SERVERS, free_address};
use crate::server::program::Program;
use crate::server::proto::{
    CheckRequest, CheckStreamRequest, Descriptor, Entry, RateLimitRequest, ThrottleRequest,
};
use crate::server::template::KEY;
use anyhow::Result;

pub(crate) const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
pub(crate) const CHECK_STREAM: &str = "/ratekeeper.v1.RateLimiter/CheckStream";
const THROTTLE: &str = "/throttlecrab.RateLimiter/Throttle";

/// The number of connections with a stream, and of checks in flight on each.
pub(crate) const STREAMS: usize = 8;
pub(crate) const CHECKS: usize = 128;

/// For Envoy's calls, which carry a descriptor and no key, and for the stream's checks, which carry a key. Each is
/// allowed more than any run takes.
const RULES: &str = "rules:
  - id: per-client
    match: {domain: bench, descriptor: [remote_address]}
    limit: 1000000/s
  - id: per-key
    limit: 1000000/s
";

/// Response codes of Envoy's API.
const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

/// Ratekeeper with Envoy's calls.
pub(crate) fn ratekeeper(program: &Program) -> Result<Subject> {
    let (process, address) =
        ServerConfig { rules: RULES, ..ServerConfig::DEFAULT }.start(program, Protocol::Grpc)?;
    let call = |code| Plan::single(should_rate_limit("proof", 1_000_000, code));
    let stream = |is_allowed| Plan::single(check_stream("proof", 1_000_000, 1, is_allowed));
    Ok(Subject {
        name: format!("ratekeeper {}", program.version),
        process,
        address,
        plan: calls(),
        verifications: vec![call(OK), call(OVER_LIMIT), stream(true), stream(false)],
    })
}

/// throttlecrab's server, with its default store and clean-up. Each call carries the limit.
pub(crate) fn throttlecrab(program: &Program) -> Result<Subject> {
    let address = free_address()?;
    let port = address.port().to_string();
    let arguments = ["--grpc", "--grpc-host", "127.0.0.1", "--grpc-port", &port].map(Into::into);
    let throttle = |key: &str, count, period, quantity, is_allowed| {
        let key = key.to_owned();
        let message = ThrottleRequest { key, max_burst: count, count_per_period: count, period, quantity };
        UnaryClient::new(THROTTLE, &message, i32::from(is_allowed))
    };
    let verification = |is_allowed| Plan::single(throttle("proof", 10, 60, 10, is_allowed));
    Ok(Subject {
        name: format!("throttlecrab-server {}", program.version),
        process: Process::start_at(address, program, &arguments, SERVERS)?,
        address,
        plan: Plan::new(throttle(KEY, 1_000_000, 1, 1, true), CONNECTIONS),
        verifications: vec![verification(true), verification(false)],
    })
}

/// A server that decides nothing, neither on calls nor on streams.
pub(crate) fn floor() -> Result<Subject> {
    Subject::floor(Kind::Grpc, calls())
}

/// Envoy's calls, one at a time.
pub(super) fn calls() -> Plan {
    Plan::new(should_rate_limit(KEY, 1, OK), CONNECTIONS)
}

/// Checks on streams.
pub(crate) fn streams() -> Plan {
    Plan::new(check_stream(KEY, 1, CHECKS, true), STREAMS)
}

fn should_rate_limit(client: &str, hits_addend: u32, code: i32) -> UnaryClient {
    let entry = Entry { key: "remote_address".to_owned(), value: client.to_owned() };
    let descriptors = vec![Descriptor { entries: vec![entry] }];
    let message = RateLimitRequest { domain: "bench".to_owned(), descriptors, hits_addend };
    UnaryClient::new(SHOULD_RATE_LIMIT, &message, code)
}

fn check_stream(key: &str, cost: u32, checks: usize, is_allowed: bool) -> StreamClient {
    let (client_key, endpoint) = (key.to_owned(), "/v1/orders".to_owned());
    let check = CheckRequest { client_key, endpoint, cost: Some(cost) };
    StreamClient::new(CHECK_STREAM, &CheckStreamRequest { id: 0, check: Some(check) }, checks, is_allowed)
}

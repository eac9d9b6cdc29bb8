//! The RESP listener, for Redis clients.
//!
//! `CL.THROTTLE` has the arguments and the reply of redis-cell, `RK.CHECK` checks a request against the rules, and the
//! other commands are those that client libraries send when they connect. Pipelined commands are decided together, in
//! one call to the store. An invalid command gets an error that says what to write instead, and takes nothing; a
//! protocol error closes the connection, as it does with Redis.

mod arguments;
mod check;
mod commands;
mod connection;
mod decode;
mod encode;
mod error;
mod executor;
#[cfg(test)]
mod fuzz;
mod inline;
mod introspection;
mod repeat_cache;
mod reply;
mod session;
#[cfg(test)]
mod testing;
mod throttle;

use crate::api::ApiOptions;
use crate::conn::{BodyPermits, ShutdownPhase};
use crate::denial_log::DenialLog;
use crate::listener::Protocol;
use connection::RespConnection;
use executor::ExecutorShared;
use ratekeeper::{RuleLimiter, Store};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// The RESP protocol of a listener.
#[derive(Debug)]
pub(crate) struct Resp<S> {
    shared: Arc<ExecutorShared<S>>,
}

impl<S> Clone for Resp<S> {
    fn clone(&self) -> Resp<S> {
        Resp { shared: Arc::clone(&self.shared) }
    }
}

impl<S: Store> Resp<S> {
    pub(crate) fn new(limiter: RuleLimiter<S>, api: &ApiOptions, denials: Arc<DenialLog>) -> Resp<S> {
        let shared = ExecutorShared {
            started_at: limiter.clock().now(),
            limiter,
            token: api.token.clone(),
            denials,
            body_permits: BodyPermits::default(),
            connections: AtomicU64::new(0),
        };
        Resp { shared: Arc::new(shared) }
    }
}

impl<S: Store> Protocol for Resp<S> {
    async fn serve<C: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: C,
        peer: IpAddr,
        phase: watch::Receiver<ShutdownPhase>,
    ) {
        RespConnection::new(stream, &self.shared, peer, phase).run().await.log();
    }
}

//! The RESP edge: what clients of Redis speak.
//!
//! `CL.THROTTLE` has the arguments and the reply of redis-cell, `RK.CHECK` holds a request to the rules, and everything else
//! is what client libraries say to a server before and besides. Commands that come together, pipelined, are decided
//! together, in one call to the store. What can't be carried out is an error that says what to write instead, and takes
//! nothing; what is no command at all ends the connection, as it does with Redis.

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
use crate::denial_log::DenialLog;
use crate::http::{BodyPermits, ShutdownPhase};
use crate::listener::Protocol;
use connection::RespConnection;
use executor::ExecutorShared;
use ratekeeper::{RuleLimiter, Store};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// Speaks RESP.
#[derive(Debug)]
pub(crate) struct Resp<S> {
    office: Arc<ExecutorShared<S>>,
}

impl<S> Clone for Resp<S> {
    fn clone(&self) -> Resp<S> {
        Resp { office: Arc::clone(&self.office) }
    }
}

impl<S: Store> Resp<S> {
    pub(crate) fn new(gate: RuleLimiter<S>, api: &ApiOptions, denials: Arc<DenialLog>) -> Resp<S> {
        let office = ExecutorShared {
            started_at: gate.clock().now(),
            gate,
            token: api.token.clone(),
            denials,
            room: BodyPermits::default(),
            connections: AtomicU64::new(0),
        };
        Resp { office: Arc::new(office) }
    }
}

impl<S: Store> Protocol for Resp<S> {
    async fn attend<C: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: C,
        peer: IpAddr,
        phase: watch::Receiver<ShutdownPhase>,
    ) {
        RespConnection::new(stream, &self.office, peer, phase).hold().await.log();
    }
}

//! The RESP edge: what clients of Redis speak.
//!
//! `CL.THROTTLE` has the arguments and the reply of redis-cell, `RK.CHECK` holds a request to the rules, and everything else
//! is what client libraries say to a server before and besides. Commands that come together, pipelined, are decided
//! together, in one call to the store. What can't be carried out is an error that says what to write instead, and takes
//! nothing; what is no command at all ends the connection, as it does with Redis.

mod about;
mod check;
mod clerk;
mod commands;
mod conversation;
mod decode;
mod figures;
#[cfg(test)]
mod fuzz;
mod inline;
mod mistake;
mod refrain;
mod reply;
mod session;
#[cfg(test)]
mod testing;
mod throttle;

use crate::api::ApiOptions;
use crate::denials::DenialLog;
use crate::http::{Phase, Room};
use crate::port::Attendant;
use clerk::Office;
use conversation::Conversation;
use ratekeeper::{Gate, Store};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// Speaks RESP.
#[derive(Debug)]
pub(crate) struct Resp<S> {
    office: Arc<Office<S>>,
}

impl<S> Clone for Resp<S> {
    fn clone(&self) -> Resp<S> {
        Resp { office: Arc::clone(&self.office) }
    }
}

impl<S: Store> Resp<S> {
    pub(crate) fn new(gate: Gate<S>, api: &ApiOptions, denials: Arc<DenialLog>) -> Resp<S> {
        let office = Office {
            started_at: gate.clock().now(),
            gate,
            token: api.token.clone(),
            denials,
            room: Room::default(),
            connections: AtomicU64::new(0),
        };
        Resp { office: Arc::new(office) }
    }
}

impl<S: Store> Attendant for Resp<S> {
    async fn attend<C: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: C,
        peer: IpAddr,
        phase: watch::Receiver<Phase>,
    ) {
        Conversation::new(stream, &self.office, peer, phase).hold().await.log();
    }
}

//! The RESP edge.

use crate::api::ApiOptions;
use crate::denials::DenialLog;
use crate::http::Phase;
use crate::port::Attendant;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tollgate::{Gate, Store};

/// Speaks RESP.
#[derive(Debug)]
pub(crate) struct Resp<S> {
    gate: Gate<S>,
    denials: Arc<DenialLog>,
}

impl<S> Clone for Resp<S> {
    fn clone(&self) -> Resp<S> {
        Resp { gate: self.gate.clone(), denials: Arc::clone(&self.denials) }
    }
}

impl<S: Store> Resp<S> {
    pub(crate) fn new(gate: Gate<S>, _api: &ApiOptions, denials: Arc<DenialLog>) -> Resp<S> {
        Resp { gate, denials }
    }
}

impl<S: Store> Attendant for Resp<S> {
    async fn attend<C: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        _stream: C,
        _peer: IpAddr,
        _phase: watch::Receiver<Phase>,
    ) {
        let _ = (&self.gate, &self.denials);
    }
}

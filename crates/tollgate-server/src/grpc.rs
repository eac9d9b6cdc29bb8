//! The gRPC edge.

use crate::api::ApiOptions;
use crate::denials::DenialLog;
use crate::http::Phase;
use crate::port::Attendant;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tollgate::{Gate, Store};

/// Speaks gRPC.
#[derive(Debug)]
pub(crate) struct Grpc<S> {
    gate: Gate<S>,
    denials: Arc<DenialLog>,
}

impl<S> Clone for Grpc<S> {
    fn clone(&self) -> Grpc<S> {
        Grpc { gate: self.gate.clone(), denials: Arc::clone(&self.denials) }
    }
}

impl<S: Store> Grpc<S> {
    pub(crate) fn new(gate: Gate<S>, _api: &ApiOptions, denials: Arc<DenialLog>) -> Grpc<S> {
        Grpc { gate, denials }
    }
}

impl<S: Store> Attendant for Grpc<S> {
    async fn attend<C: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        _stream: C,
        _peer: IpAddr,
        _phase: watch::Receiver<Phase>,
    ) {
        let _ = (&self.gate, &self.denials);
    }
}

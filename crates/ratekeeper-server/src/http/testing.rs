//! Test support: heads without a connection, and connections without the fast path.

use super::call::RequestHead;
use super::handler::{ConnectionContext, Handler};
use super::strict_h1::{ParsedFront, PlainRequest};
use super::{Http, idle_timer};
use crate::conn::ShutdownPhase;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

impl<'a> RequestHead<'a> {
    /// The plain head at the start of `bytes`.
    pub(crate) fn plain(bytes: &'a [u8]) -> RequestHead<'a> {
        let ParsedFront::Plain(plain) = PlainRequest::parse(bytes) else { panic!("{bytes:?} is not plain") };
        RequestHead::Plain(plain, bytes)
    }
}

impl<T: Handler> Http<T> {
    /// Serves a connection with hyper from its first byte.
    pub(crate) async fn serve_without_fast_path<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: S,
        peer: IpAddr,
        phase: watch::Receiver<ShutdownPhase>,
    ) {
        let (handler, permits) = (Arc::clone(&self.handler), self.shared.body_permits.clone());
        let context = Arc::new(ConnectionContext::new(handler, permits, peer));
        self.serve_with_hyper(stream, context, idle_timer(), phase).await;
    }
}

//! The gRPC listener: Ratekeeper's own service, Envoy's rate limit service, health and reflection.
//!
//! hyper speaks HTTP/2. Checks are decoded and encoded here, frame by frame; health and reflection are tonic's.
//! Everything that a client can make grow is bounded: connections, streams, headers, messages, unread answers, and how
//! long each of these may last. An idle connection stays open as long as its client answers pings, because proxies keep
//! theirs.

mod body;
mod check;
mod connection;
#[cfg(test)]
mod differential;
mod envoy;
mod frame;
#[cfg(test)]
#[path = "../tests/grpc/generated/mod.rs"]
mod generated;
mod message;
mod response_body;
mod standard;
mod stream;
mod streams;

use crate::api::ApiOptions;
use crate::conn::{BodyPermits, FIRST_REQUEST_TIMEOUT, PrefixedStream, ShutdownPhase, ShutdownSignal};
use crate::denial_log::DenialLog;
use crate::listener::Protocol;
use connection::GrpcConnection;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use ratekeeper::{RuleLimiter, Store};
use standard::StandardServices;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;

/// The maximum number of concurrent calls per connection. A proxy that has more opens another connection.
const MAX_STREAMS: u32 = 128;
/// The flow control window of a stream.
const STREAM_WINDOW: u32 = 64 * 1024;
/// The flow control window of a connection: the sum of its streams' windows. It also bounds how many small frames may
/// be buffered, since h2 tolerates as many as fit into half of it. Several streams of short checks, each check in its
/// own frame, stay within that.
const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;
/// How much of an answer hyper buffers for a stream whose client does not read.
const MAX_UNSENT_BYTES: usize = 64 * 1024;
/// The maximum size of a call's headers, metadata included.
const MAX_HEAD_BYTES: u32 = 16 * 1024;
/// How often a client is pinged, and how long it may take to answer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The connection preface of HTTP/2.
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The response to a client that does not send the preface.
const NOT_GRPC: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\
    Content-Length: 65\r\n\r\n\
    This port speaks gRPC, over HTTP/2: the HTTP API has its own port";

/// The gRPC protocol of a listener.
pub(crate) struct Grpc<S> {
    shared: Arc<GrpcInner<S>>,
}

/// State shared by all connections.
struct GrpcInner<S> {
    limiter: RuleLimiter<S>,
    options: ApiOptions,
    denials: Arc<DenialLog>,
    /// Permits for large messages.
    body_permits: BodyPermits,
    standard: StandardServices,
    http2: http2::Builder<TokioExecutor>,
}

impl<S> Clone for Grpc<S> {
    fn clone(&self) -> Grpc<S> {
        Grpc { shared: Arc::clone(&self.shared) }
    }
}

impl<S: Store> Grpc<S> {
    pub(crate) fn new(
        limiter: RuleLimiter<S>,
        api: &ApiOptions,
        denials: Arc<DenialLog>,
        body_permits: BodyPermits,
    ) -> Grpc<S> {
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2.timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
        http2.max_concurrent_streams(MAX_STREAMS).max_header_list_size(MAX_HEAD_BYTES);
        http2.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        http2.max_send_buf_size(MAX_UNSENT_BYTES).auto_date_header(false);
        let (options, standard) = (api.clone(), StandardServices::new());
        Grpc { shared: Arc::new(GrpcInner { limiter, options, denials, body_permits, standard, http2 }) }
    }

    /// Sets the status that the health service reports.
    pub(crate) async fn set_serving(&self, is_serving: bool) {
        self.shared.standard.set_serving(is_serving).await;
    }

    async fn serve_connection<C: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: C,
        phase: watch::Receiver<ShutdownPhase>,
    ) {
        let mut shutdown = ShutdownSignal::new(phase.clone());
        let calls = Arc::new(GrpcConnection::new(Arc::clone(&self.shared), phase));
        let service = service_fn(|request| calls.handle(request));
        let mut connection = pin!(self.shared.http2.serve_connection(TokioIo::new(stream), service));
        let mut overdue = pin!(calls.wait_until_overdue());
        let mut has_begun_shutdown = false;
        // A hand-written `select!`: its futures are created once, not whenever the connection makes progress.
        poll_fn(|cx| {
            loop {
                if !has_begun_shutdown && shutdown.is_draining() {
                    has_begun_shutdown = true;
                    connection.as_mut().graceful_shutdown();
                }
                if let Poll::Ready(result) = connection.as_mut().poll(cx) {
                    let _ = result.inspect_err(|error| tracing::debug!(%error, "connection failed"));
                    return Poll::Ready(());
                }
                if overdue.as_mut().poll(cx).is_ready() {
                    tracing::debug!("connection closed: the client does not read its answers");
                    return Poll::Ready(());
                }
                if shutdown.poll_closed(cx).is_ready() {
                    return Poll::Ready(());
                }
                if has_begun_shutdown || !shutdown.is_draining() {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }
}

impl<S: Store> Protocol for Grpc<S> {
    async fn serve<C: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        mut stream: C,
        _peer: IpAddr,
        mut phase: watch::Receiver<ShutdownPhase>,
    ) {
        let shutdown = phase.clone();
        let preface = tokio::select! {
            preface = timeout(FIRST_REQUEST_TIMEOUT, read_preface(&mut stream)) => preface,
            // Without a preface the client has sent no call that would have to be finished.
            _ = phase.wait_for(|phase| *phase == ShutdownPhase::Draining) => return,
        };
        match preface {
            Ok(true) => self.serve_connection(PrefixedStream::new(stream, PREFACE.to_vec()), shutdown).await,
            Ok(false) => {}
            Err(_) => tracing::debug!("connection closed: no HTTP/2 preface in time"),
        }
    }
}

/// Reads the preface of HTTP/2 and returns whether it was valid. hyper would wait for it without a timeout.
async fn read_preface<C: AsyncRead + AsyncWrite + Unpin>(stream: &mut C) -> bool {
    let (mut read, mut preface) = (0, [0; PREFACE.len()]);
    while read < PREFACE.len() {
        match stream.read(&mut preface[read..]).await {
            Ok(0) | Err(_) => return false,
            Ok(length) => read += length,
        }
        if preface[..read] != PREFACE[..read] {
            // Best effort: the connection is closed either way.
            let _ = stream.write_all(NOT_GRPC).await;
            let _ = stream.shutdown().await;
            return false;
        }
    }
    true
}

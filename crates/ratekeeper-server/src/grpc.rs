//! The gRPC edge: checks of our own service, Envoy's rate limit service, health and reflection.
//!
//! Calls come over HTTP/2, which hyper speaks. What is asked often is read and answered here, frame by frame, and decides
//! nothing that the other edges do not; health and reflection are tonic's. Everything a stranger can make grow has a bound:
//! connections, streams, heads, messages, answers that nobody takes, and how long any of these may last. A connection that
//! is idle is kept for as long as its client answers pings, for proxies keep theirs.

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
use crate::denial_log::DenialLog;
use crate::http::{BodyPermits, FIRST_PATIENCE, PrefixedStream, ShutdownPhase, ShutdownSignal};
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

/// The most calls at once on one connection. A proxy that has more opens another.
const MAX_STREAMS: u32 = 128;
/// How much a client may send ahead of what was read on one stream.
const STREAM_WINDOW: u32 = 64 * 1024;
/// How much on all streams together: as much as they may alone. It also says how many small frames may wait, since h2 bears
/// with as many as half of it has room for; several streams of short checks, each in a frame of its own, are within that.
const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;
/// How much of an answer hyper holds for a stream while its client does not read.
const MAX_UNSENT_BYTES: usize = 64 * 1024;
/// The most bytes of a call's head, of which metadata is a part.
const MAX_HEAD_BYTES: u32 = 16 * 1024;
/// How often a client is asked whether it is still there, and how long it may take to say so.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_PATIENCE: Duration = Duration::from_secs(20);

/// What every client that speaks HTTP/2 begins with.
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What any other is told.
const NOT_GRPC: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 65\r\n\r\n\
    This port speaks gRPC, over HTTP/2: the HTTP API has its own port";

/// Speaks gRPC.
pub(crate) struct Grpc<S> {
    shared: Arc<GrpcInner<S>>,
}

/// What all connections share.
struct GrpcInner<S> {
    gate: RuleLimiter<S>,
    options: ApiOptions,
    denials: Arc<DenialLog>,
    /// For messages that are larger than most.
    room: BodyPermits,
    standard: StandardServices,
    speech: http2::Builder<TokioExecutor>,
}

impl<S> Clone for Grpc<S> {
    fn clone(&self) -> Grpc<S> {
        Grpc { shared: Arc::clone(&self.shared) }
    }
}

impl<S: Store> Grpc<S> {
    pub(crate) fn new(
        gate: RuleLimiter<S>,
        api: &ApiOptions,
        denials: Arc<DenialLog>,
        room: BodyPermits,
    ) -> Grpc<S> {
        let mut speech = http2::Builder::new(TokioExecutor::new());
        speech.timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_PATIENCE);
        speech.max_concurrent_streams(MAX_STREAMS).max_header_list_size(MAX_HEAD_BYTES);
        speech.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        speech.max_send_buf_size(MAX_UNSENT_BYTES).auto_date_header(false);
        let (options, standard) = (api.clone(), StandardServices::new());
        Grpc { shared: Arc::new(GrpcInner { gate, options, denials, room, standard, speech }) }
    }

    /// Says to whoever asks for the server's health whether it serves.
    pub(crate) async fn report(&self, is_serving: bool) {
        self.shared.standard.report(is_serving).await;
    }

    async fn converse<C: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: C,
        phase: watch::Receiver<ShutdownPhase>,
    ) {
        let mut orders = ShutdownSignal::new(phase.clone());
        let desk = Arc::new(GrpcConnection::new(Arc::clone(&self.shared), phase));
        let service = service_fn(|request| desk.reply(request));
        let mut connection = pin!(self.shared.speech.serve_connection(TokioIo::new(stream), service));
        let mut overdue = pin!(desk.is_overdue());
        let mut is_told = false;
        // Written out, so that what is waited for is begun once and not whenever the connection moves.
        poll_fn(|cx| {
            loop {
                if !is_told && orders.is_draining() {
                    is_told = true;
                    connection.as_mut().graceful_shutdown();
                }
                if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                    let _ = ended.inspect_err(|error| tracing::debug!(%error, "a connection broke"));
                    return Poll::Ready(());
                }
                if overdue.as_mut().poll(cx).is_ready() {
                    tracing::debug!("a connection did not take its answers");
                    return Poll::Ready(());
                }
                if orders.poll_gone(cx).is_ready() {
                    return Poll::Ready(());
                }
                if is_told || !orders.is_draining() {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }
}

impl<S: Store> Protocol for Grpc<S> {
    async fn attend<C: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        mut stream: C,
        _peer: IpAddr,
        mut phase: watch::Receiver<ShutdownPhase>,
    ) {
        let told = phase.clone();
        let greeted = tokio::select! {
            greeted = timeout(FIRST_PATIENCE, greet(&mut stream)) => greeted,
            // Who has not come so far has asked for nothing.
            _ = phase.wait_for(|phase| *phase == ShutdownPhase::Draining) => return,
        };
        match greeted {
            Ok(true) => self.converse(PrefixedStream::new(stream, PREFACE.to_vec()), told).await,
            Ok(false) => {}
            Err(_) => tracing::debug!("a connection was given up before it asked for anything"),
        }
    }
}

/// Reads what HTTP/2 begins with, and says whether that is what came. Hyper would wait for it for ever.
async fn greet<C: AsyncRead + AsyncWrite + Unpin>(stream: &mut C) -> bool {
    let (mut read, mut preface) = (0, [0; PREFACE.len()]);
    while read < PREFACE.len() {
        match stream.read(&mut preface[read..]).await {
            Ok(0) | Err(_) => return false,
            Ok(length) => read += length,
        }
        if preface[..read] != PREFACE[..read] {
            // If the client does not want to hear it, nobody does.
            let _ = stream.write_all(NOT_GRPC).await;
            let _ = stream.shutdown().await;
            return false;
        }
    }
    true
}

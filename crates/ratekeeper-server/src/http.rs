//! The HTTP edge: connections in, answers out.
//!
//! HTTP/1.1 with keep-alive and pipelining, and HTTP/2 for clients that begin with it, on the same port. A connection
//! begins on the express lane (`lane.rs`), which answers plain requests itself; with the first that is anything else it
//! passes to hyper, for good. Everything a stranger can make grow has a bound: connections, headers, bodies, streams,
//! and how long any of these may take. A request on its way touches only what belongs to its connection, and the limiter.

mod body;
mod body_budget;
mod body_permits;
mod buffer;
mod buffer_pool;
mod call;
mod close_reason;
mod date;
#[cfg(test)]
mod differential;
mod error;
mod fast_path;
mod handler;
mod line_ends;
mod long_responses;
mod prefixed_stream;
mod response;
mod response_body;
mod shutdown;
mod strict_h1;
mod timeouts;
mod write_coalescer;

use crate::listener::Protocol;
pub(crate) use body::{BodyPart, next_frame};
pub(crate) use body_budget::BodyBudget;
pub(crate) use body_permits::{BodyPermit, BodyPermits, SMALL_BYTES};
pub(crate) use buffer::ReadBuffer;
pub(crate) use call::{HttpCall, RequestHead};
pub(crate) use close_reason::CloseReason;
pub(crate) use error::HttpError;
use fast_path::FastPath;
use handler::ConnectionContext;
pub(crate) use handler::{AdmittedRequest, Handler, ResponseLength, expect_json};
use hyper::Response;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use line_ends::LineEnds;
pub(crate) use long_responses::{LongResponse, LongResponses};
pub(crate) use prefixed_stream::PrefixedStream;
use ratekeeper::SystemClock;
pub(crate) use response::{JSON, ResponseWriter, TEXT};
use response_body::HttpBody;
pub(crate) use shutdown::{ShutdownPhase, ShutdownSignal};
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use strict_h1::MAX_HEAD_BYTES;
pub(crate) use timeouts::{BODY_PATIENCE, FIRST_PATIENCE, IdleTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use write_coalescer::WriteCoalescer;

/// The most requests at once on an HTTP/2 connection.
const MAX_STREAMS: u32 = 128;
/// How much of an answer hyper holds for a stream of HTTP/2 while its client does not read.
const MAX_UNSENT_BYTES: usize = 64 * 1024;

type HttpReply = Response<HttpBody>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Speaks HTTP, whichever version the client begins with.
#[derive(Debug)]
pub(crate) struct Http<T> {
    speech: Arc<HttpVersion>,
    site: Arc<T>,
}

impl<T> Clone for Http<T> {
    fn clone(&self) -> Http<T> {
        Http { speech: Arc::clone(&self.speech), site: Arc::clone(&self.site) }
    }
}

#[derive(Debug)]
struct HttpVersion {
    /// For connections of which nothing is known yet.
    any: auto::Builder<TokioExecutor>,
    /// For those that have spoken HTTP/1 on the lane: HTTP/2 can't begin in their midst.
    http1: auto::Builder<TokioExecutor>,
    /// What answers are dated by.
    clock: SystemClock,
    /// For bodies that are larger than most.
    room: BodyPermits,
}

impl<T: Handler> Http<T> {
    pub(crate) fn new(site: Arc<T>, room: BodyPermits) -> Http<T> {
        let mut any = auto::Builder::new(TokioExecutor::new());
        // Hyper's own timeout for headers would cost a timer for each request; `IdleTimer` is one for each connection.
        // Without `half_close`, a client that says it has sent everything would not be answered.
        any.http1().header_read_timeout(None).half_close(true).max_buf_size(MAX_HEAD_BYTES);
        any.http2().max_concurrent_streams(MAX_STREAMS).max_send_buf_size(MAX_UNSENT_BYTES);
        let http1 = any.clone().http1_only();
        let speech = HttpVersion { any, http1, clock: SystemClock::new(), room };
        Http { speech: Arc::new(speech), site }
    }

    /// Has hyper answer a connection.
    async fn converse<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: S,
        desk: Arc<ConnectionContext<T>>,
        mut patience: IdleTimer,
        mut phase: watch::Receiver<ShutdownPhase>,
    ) {
        let backlog = LongResponses::new();
        let service = service_fn(|request| {
            let (desk, backlog) = (Arc::clone(&desk), backlog.clone());
            async move { Ok::<_, Infallible>(desk.reply(request, &backlog).await) }
        });
        let wire = WriteCoalescer::new(LineEnds::new(stream));
        let builder = if desk.begun() == 0 { &self.speech.any } else { &self.speech.http1 };
        let mut connection = pin!(builder.serve_connection(TokioIo::new(wire.clone()), service));
        loop {
            // The connection comes first: when it is told to stop, it has seen what the lane had read already.
            tokio::select! {
                biased;
                ended = poll_fn(|cx| poll_and_send(connection.as_mut(), &wire, cx)) => {
                    return ended.unwrap_or_else(|error| tracing::debug!(error, "a connection broke"));
                }
                changed = phase.changed() => match (changed, *phase.borrow()) {
                    (Ok(()), ShutdownPhase::Open) => {}
                    (Ok(()), ShutdownPhase::Draining) => connection.as_mut().graceful_shutdown(),
                    (Err(_), _) => return,
                },
                () = backlog.is_overdue() => {
                    return tracing::debug!("a connection did not take its answers");
                }
                _ = poll_fn(|cx| patience.poll_lost(desk.begun(), cx)) => {
                    return tracing::debug!("a connection went quiet");
                }
            }
        }
    }
}

impl<T: Handler> Protocol for Http<T> {
    async fn attend<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        mut stream: S,
        peer: IpAddr,
        phase: watch::Receiver<ShutdownPhase>,
    ) {
        // In one allocation of the connection's own: a count shared by all connections would be fought over.
        let desk = Arc::new(ConnectionContext::new(Arc::clone(&self.site), self.speech.room.clone(), peer));
        let mut patience = IdleTimer::new();
        let orders = ShutdownSignal::new(phase.clone());
        let lane = FastPath::new(&mut stream, &desk, &self.speech.clock, &mut patience, orders);
        match lane.ride().await {
            Ok(unanswered) => {
                let stream = PrefixedStream::new(stream, unanswered);
                // Boxed, so that connections which never get here need no room for it.
                Box::pin(self.converse(stream, desk, patience, phase)).await;
            }
            Err(ended) => ended.log(),
        }
    }
}

/// Polls a connection, and sends what it has written.
fn poll_and_send<S: AsyncWrite + Unpin, F: Future<Output = Result<(), BoxError>>>(
    connection: Pin<&mut F>,
    wire: &WriteCoalescer<S>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), BoxError>> {
    let ended = connection.poll(cx);
    match wire.poll_send(cx) {
        Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
        Poll::Ready(Ok(())) | Poll::Pending => ended,
    }
}

//! The HTTP edge: connections in, answers out.
//!
//! HTTP/1.1 with keep-alive and pipelining, and HTTP/2 for clients that begin with it, on the same port. A connection
//! begins on the express lane (`lane.rs`), which answers plain requests itself; with the first that is anything else it
//! passes to hyper, for good. Everything a stranger can make grow has a bound: connections, headers, bodies, streams,
//! and how long any of these may take. A request on its way touches only what belongs to its connection, and the limiter.

mod backlog;
mod body;
mod body_budget;
mod buffer;
mod call;
mod date;
mod desk;
mod ended;
mod fault;
mod lane;
mod line_ends;
mod load;
mod orders;
mod out;
mod patience;
mod plain;
mod rewind;
mod room;
#[cfg(test)]
mod sameness;
mod spare;
mod wire;

use crate::port::Attendant;
pub(crate) use backlog::{Backlog, Turn};
pub(crate) use body::{Next, next_frame};
pub(crate) use body_budget::BodyBudget;
pub(crate) use buffer::Buffer;
pub(crate) use call::{Call, Head};
use desk::Desk;
pub(crate) use desk::{Admitted, Length, Site, expect_json};
pub(crate) use ended::Ended;
pub(crate) use fault::Fault;
use hyper::Response;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use lane::Lane;
use line_ends::LineEnds;
use load::Load;
pub(crate) use orders::{Orders, Phase};
pub(crate) use out::{JSON, Out, TEXT};
pub(crate) use patience::{BODY_PATIENCE, FIRST_PATIENCE, Patience};
use plain::MAX_HEAD_BYTES;
use ratekeeper::SystemClock;
pub(crate) use rewind::Rewind;
pub(crate) use room::{Place, Room, SMALL_BYTES};
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use wire::Wire;

/// The most requests at once on an HTTP/2 connection.
const MAX_STREAMS: u32 = 128;
/// How much of an answer hyper holds for a stream of HTTP/2 while its client does not read.
const MAX_UNSENT_BYTES: usize = 64 * 1024;

type Reply = Response<Load>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Speaks HTTP, whichever version the client begins with.
#[derive(Debug)]
pub(crate) struct Http<T> {
    speech: Arc<Speech>,
    site: Arc<T>,
}

impl<T> Clone for Http<T> {
    fn clone(&self) -> Http<T> {
        Http { speech: Arc::clone(&self.speech), site: Arc::clone(&self.site) }
    }
}

#[derive(Debug)]
struct Speech {
    /// For connections of which nothing is known yet.
    any: auto::Builder<TokioExecutor>,
    /// For those that have spoken HTTP/1 on the lane: HTTP/2 can't begin in their midst.
    http1: auto::Builder<TokioExecutor>,
    /// What answers are dated by.
    clock: SystemClock,
    /// For bodies that are larger than most.
    room: Room,
}

impl<T: Site> Http<T> {
    pub(crate) fn new(site: Arc<T>, room: Room) -> Http<T> {
        let mut any = auto::Builder::new(TokioExecutor::new());
        // Hyper's own timeout for headers would cost a timer for each request; `Patience` is one for each connection.
        // Without `half_close`, a client that says it has sent everything would not be answered.
        any.http1().header_read_timeout(None).half_close(true).max_buf_size(MAX_HEAD_BYTES);
        any.http2().max_concurrent_streams(MAX_STREAMS).max_send_buf_size(MAX_UNSENT_BYTES);
        let http1 = any.clone().http1_only();
        let speech = Speech { any, http1, clock: SystemClock::new(), room };
        Http { speech: Arc::new(speech), site }
    }

    /// Has hyper answer a connection.
    async fn converse<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: S,
        desk: Arc<Desk<T>>,
        mut patience: Patience,
        mut phase: watch::Receiver<Phase>,
    ) {
        let backlog = Backlog::new();
        let service = service_fn(|request| {
            let (desk, backlog) = (Arc::clone(&desk), backlog.clone());
            async move { Ok::<_, Infallible>(desk.reply(request, &backlog).await) }
        });
        let wire = Wire::new(LineEnds::new(stream));
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
                    (Ok(()), Phase::Open) => {}
                    (Ok(()), Phase::Draining) => connection.as_mut().graceful_shutdown(),
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

impl<T: Site> Attendant for Http<T> {
    async fn attend<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        mut stream: S,
        peer: IpAddr,
        phase: watch::Receiver<Phase>,
    ) {
        // In one allocation of the connection's own: a count shared by all connections would be fought over.
        let desk = Arc::new(Desk::new(Arc::clone(&self.site), self.speech.room.clone(), peer));
        let mut patience = Patience::new();
        let orders = Orders::new(phase.clone());
        let lane = Lane::new(&mut stream, &desk, &self.speech.clock, &mut patience, orders);
        match lane.ride().await {
            Ok(unanswered) => {
                let stream = Rewind::new(stream, unanswered);
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
    wire: &Wire<S>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), BoxError>> {
    let ended = connection.poll(cx);
    match wire.poll_send(cx) {
        Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
        Poll::Ready(Ok(())) | Poll::Pending => ended,
    }
}

//! HTTP server: HTTP/1.1 with keep-alive and pipelining, and HTTP/2 for clients that start with it, on one listener.
//!
//! A connection starts on the fast path (`fast_path.rs`), which parses and answers plain HTTP/1 requests without hyper.
//! The first request that is not plain hands the connection over to hyper for good. Everything that a client can make
//! grow is bounded: connections, headers, bodies, streams, and the time that each of them may take. A request touches
//! only the state of its own connection, and the limiter.

mod bare_lf_filter;
mod body;
mod call;
mod date;
mod error;
mod fast_path;
mod handler;
mod response;
mod response_body;
mod strict_h1;
#[cfg(test)]
mod testing;

use crate::conn::{
    BodyPermits, Connection, FIRST_REQUEST_TIMEOUT, IdleTimer, LongResponses, PrefixedStream, ShutdownPhase,
    WriteCoalescer,
};
use crate::listener::Protocol;
use bare_lf_filter::BareLfFilter;
pub(crate) use call::{HttpCall, RequestHead};
pub(crate) use error::{HttpError, excerpt};
use fast_path::FastPath;
use handler::ConnectionContext;
pub(crate) use handler::{AdmittedRequest, Handler, ResponseLength, expect_json};
use hyper::Response;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use ratekeeper::SystemClock;
pub(crate) use response::{JSON, ResponseWriter, TEXT};
use response_body::HttpBody;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use strict_h1::MAX_HEAD_BYTES;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// The most concurrent streams on an HTTP/2 connection.
const MAX_STREAMS: u32 = 128;
/// The most response bytes that hyper buffers for an HTTP/2 stream whose client does not read.
const MAX_SEND_BUFFER_BYTES: usize = 64 * 1024;

/// How often a connection is checked: it is closed if no request has started since the last check. Longer than the 60
/// seconds after which common load balancers close an idle connection, so that they close first and no request is
/// sent while we close.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(75);

type HttpResponse = Response<HttpBody>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The HTTP protocol of a listener: HTTP/1 or HTTP/2, whichever the client starts with.
#[derive(Debug)]
pub(crate) struct Http<T> {
    shared: Arc<HttpShared>,
    handler: Arc<T>,
}

impl<T> Clone for Http<T> {
    fn clone(&self) -> Http<T> {
        Http { shared: Arc::clone(&self.shared), handler: Arc::clone(&self.handler) }
    }
}

/// State shared by all connections of a listener.
#[derive(Debug)]
struct HttpShared {
    /// For connections whose protocol version is still unknown.
    any: auto::Builder<TokioExecutor>,
    /// For connections that already used HTTP/1 on the fast path: they can't switch to HTTP/2.
    http1: auto::Builder<TokioExecutor>,
    /// The clock behind the `date` header.
    clock: SystemClock,
    /// Permits for large request bodies.
    body_permits: BodyPermits,
}

impl<T: Handler> Http<T> {
    pub(crate) fn new(handler: Arc<T>, body_permits: BodyPermits) -> Http<T> {
        let mut any = auto::Builder::new(TokioExecutor::new());
        // Hyper's header timeout would set a timer per request; `IdleTimer` needs one per connection. Without
        // `half_close`, a client that shuts down its sending side would get no response.
        any.http1().header_read_timeout(None).half_close(true).max_buf_size(MAX_HEAD_BYTES);
        any.http2().max_concurrent_streams(MAX_STREAMS).max_send_buf_size(MAX_SEND_BUFFER_BYTES);
        let http1 = any.clone().http1_only();
        let shared = HttpShared { any, http1, clock: SystemClock::new(), body_permits };
        Http { shared: Arc::new(shared), handler }
    }

    /// Serves a connection with hyper until it closes.
    async fn serve_with_hyper<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: S,
        context: Arc<ConnectionContext<T>>,
        mut idle_timer: IdleTimer,
        mut phase: watch::Receiver<ShutdownPhase>,
    ) {
        let long_responses = LongResponses::new();
        let service = service_fn(|request| {
            let (context, long_responses) = (Arc::clone(&context), long_responses.clone());
            async move { Ok::<_, Infallible>(context.handle(request, &long_responses).await) }
        });
        let coalescer = WriteCoalescer::new(BareLfFilter::new(stream));
        let builder = if context.started_requests() == 0 { &self.shared.any } else { &self.shared.http1 };
        let mut connection = pin!(builder.serve_connection(TokioIo::new(coalescer.clone()), service));
        loop {
            // The connection is polled first: hyper sees all that the fast path read before a graceful shutdown starts.
            tokio::select! {
                biased;
                closed = poll_fn(|cx| poll_and_send(connection.as_mut(), &coalescer, cx)) => {
                    return closed.unwrap_or_else(|error| tracing::debug!(error, "connection error"));
                }
                changed = phase.changed() => match (changed, *phase.borrow()) {
                    (Ok(()), ShutdownPhase::Running) => {}
                    (Ok(()), ShutdownPhase::Draining) => connection.as_mut().graceful_shutdown(),
                    (Err(_), _) => return,
                },
                () = long_responses.wait_until_overdue() => {
                    return tracing::debug!("connection closed: the client did not read its responses in time");
                }
                _ = poll_fn(|cx| idle_timer.poll_timed_out(context.started_requests(), cx)) => {
                    return tracing::debug!("connection closed: idle timeout");
                }
            }
        }
    }
}

impl<T: Handler> Protocol for Http<T> {
    async fn serve<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: S,
        peer: IpAddr,
        phase: watch::Receiver<ShutdownPhase>,
    ) {
        // One `Arc` per connection: a reference count shared by all connections would be contended.
        let context = Arc::new(ConnectionContext::new(
            Arc::clone(&self.handler),
            self.shared.body_permits.clone(),
            peer,
        ));
        let mut conn = Connection::new(stream, idle_timer(), phase.clone());
        match FastPath::new(&mut conn, &context, &self.shared.clock).run().await {
            Ok(()) => {
                let Connection { stream, buffer, idle_timer, .. } = conn;
                let stream = PrefixedStream::new(stream, buffer.into_unconsumed());
                // Boxed, so that connections that stay on the fast path need no memory for it.
                Box::pin(self.serve_with_hyper(stream, context, idle_timer, phase)).await;
            }
            Err(reason) => reason.log(),
        }
    }
}

/// The timer of a new connection.
fn idle_timer() -> IdleTimer {
    IdleTimer::new(FIRST_REQUEST_TIMEOUT, IDLE_CHECK_INTERVAL)
}

/// Polls a hyper connection, then sends the bytes that it wrote.
fn poll_and_send<S: AsyncWrite + Unpin, F: Future<Output = Result<(), BoxError>>>(
    connection: Pin<&mut F>,
    coalescer: &WriteCoalescer<S>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), BoxError>> {
    let closed = connection.poll(cx);
    match coalescer.poll_send(cx) {
        Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
        Poll::Ready(Ok(())) | Poll::Pending => closed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ApiOptions;
    use crate::api::testing::api;
    use std::net::Ipv4Addr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    }

    /// Sends a batch of checks over HTTP/2 with a flow-control window of `window` bytes for the response. Returns the
    /// seconds until the connection closed, and the bytes that were read.
    async fn batch_with_window(window: u32) -> (u64, usize) {
        let (api, _) = api("default: {limit: 100000/h}", ApiOptions::default());
        let (stream, mut client) = duplex(1 << 20);
        let (_phase, receiver) = watch::channel(ShutdownPhase::Running);
        let settings = [&[0, 4][..], &window.to_be_bytes()].concat();
        let path = "/v1/check/batch";
        let fields = [&[0x83, 0x86, 0x01, 1, b'a', 0x04, 15], path.as_bytes()].concat();
        let body = format!("{{\"checks\":[{}]}}", vec![r#"{"client_key":"a"}"#; 300].join(","));
        let start = Instant::now();
        let request = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, 0, &settings),
            frame(1, 4, 1, &fields),
            frame(0, 1, 1, body.as_bytes()),
        ];
        client.write_all(&request.concat()).await.unwrap();
        let (http, mut read) = (Http::new(api, BodyPermits::default()), Vec::new());
        let ((), all) = tokio::join!(
            http.serve(stream, Ipv4Addr::LOCALHOST.into(), receiver),
            client.read_to_end(&mut read)
        );
        all.unwrap();
        (start.elapsed().as_secs(), read.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_its_response_is_disconnected() {
        for window in [0, 1, 100, 20_000] {
            let (seconds, bytes) = batch_with_window(window).await;
            assert_eq!(seconds, 10, "window {window}");
            assert!(bytes < window as usize + 1000, "{bytes}");
        }
        let (seconds, bytes) = batch_with_window(1 << 20).await;
        assert!(seconds > 10 && bytes > 40_000, "a client that read it stays connected: {seconds}, {bytes}");
    }
}

//! The HTTP edge: connections in, answers out.
//!
//! HTTP/1.1 with keep-alive and pipelining, and HTTP/2 for clients that begin with it, on the same port. Everything a
//! stranger can make grow has a bound: connections, headers, bodies, streams, and how long any of these may take. A
//! request on its way touches only what belongs to its connection, and the limiter.

mod check;
mod fault;
mod wire;

use fault::Fault;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde::Serialize;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tollgate::{Clock, Limiter, MemoryStore};
use wire::Wire;

/// The most bytes of a body. A check with the longest key has a tenth of it.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// How much of a body that is too large is still taken in. Most clients read no answer before they have sent all, and
/// closing in their face would lose it.
const MAX_DRAINED_BYTES: u64 = 1024 * 1024;
/// How long a body may take. It comes right behind its headers, so only a broken or hostile client takes long.
const BODY_PATIENCE: Duration = Duration::from_secs(10);
/// How long a new connection may take until its first request has begun: its headers, or HTTP/2's preface, are in.
const FIRST_PATIENCE: Duration = Duration::from_secs(15);
/// How often a connection is looked at: if no request has begun since the last look, it is closed. Above the 60 seconds
/// after which common load balancers drop an idle connection, so that it is them who close, and no request crosses
/// with our closing.
const PATIENCE: Duration = Duration::from_secs(75);
/// The most bytes buffered for an HTTP/1 connection each way, and so of its headers.
const MAX_BUFFER_BYTES: usize = 32 * 1024;
/// The most requests at once on an HTTP/2 connection.
const MAX_STREAMS: u32 = 128;

/// What the server tells all its connections. When it is gone itself, they leave at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Go on.
    Open,
    /// Finish what has begun, and leave.
    Draining,
}

type Reply = Response<Full<Bytes>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Speaks HTTP, whichever version the client begins with.
#[derive(Clone, Debug)]
pub(crate) struct Http(auto::Builder<TokioExecutor>);

impl Http {
    pub(crate) fn new() -> Http {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // Hyper's own timeout for headers would cost a timer for each request; `attend` has one for each connection.
        // Without `half_close`, a client that says it has sent everything would not be answered.
        let mut http1 = builder.http1();
        http1.header_read_timeout(None).half_close(true).max_buf_size(MAX_BUFFER_BYTES);
        builder.http2().max_concurrent_streams(MAX_STREAMS);
        Http(builder)
    }

    /// Answers a connection's requests until it ends, goes quiet, or has to.
    pub(crate) async fn attend<C: Clock>(
        &self,
        stream: TcpStream,
        limiter: Limiter<MemoryStore<C>>,
        mut phase: watch::Receiver<Phase>,
    ) {
        // In one allocation of the connection's own: a count shared by all connections would be fought over.
        let desk = Arc::new(Desk { limiter, begun: AtomicU64::new(0) });
        let service = service_fn(|request| {
            let desk = Arc::clone(&desk);
            async move { Ok::<_, Infallible>(desk.answer(request).await) }
        });
        let wire = Wire::new(stream);
        let mut connection = pin!(self.0.serve_connection(TokioIo::new(wire.clone()), service));
        let mut patience = pin!(sleep(FIRST_PATIENCE));
        let mut seen = 0;
        loop {
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
                () = patience.as_mut() => {
                    let begun = desk.begun.load(Relaxed);
                    if begun == seen {
                        return tracing::debug!("a connection went quiet");
                    }
                    seen = begun;
                    patience.as_mut().reset(Instant::now() + PATIENCE);
                }
            }
        }
    }
}

/// Polls a connection, and sends what it has written.
fn poll_and_send<F: Future<Output = Result<(), BoxError>>>(
    connection: Pin<&mut F>,
    wire: &Wire,
    cx: &mut Context<'_>,
) -> Poll<Result<(), BoxError>> {
    let ended = connection.poll(cx);
    match wire.poll_send(cx) {
        Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
        Poll::Ready(Ok(())) | Poll::Pending => ended,
    }
}

/// Where the requests of one connection are answered.
struct Desk<C> {
    limiter: Limiter<MemoryStore<C>>,
    /// How many requests have begun.
    begun: AtomicU64,
}

impl<C: Clock> Desk<C> {
    async fn answer(&self, request: Request<Incoming>) -> Reply {
        self.begun.fetch_add(1, Relaxed);
        self.route(request).await.unwrap_or_else(Fault::into_reply)
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Reply, Fault> {
        match (request.uri().path(), request.method()) {
            ("/check", &Method::POST) => self.check(request).await,
            ("/check", method) => {
                Err(Fault::WrongMethod { path: "/check", method: method.clone(), allow: "POST" })
            }
            ("/livez", &Method::GET | &Method::HEAD) => Ok(reply("ok", "text/plain")),
            ("/livez", method) => {
                Err(Fault::WrongMethod { path: "/livez", method: method.clone(), allow: "GET, HEAD" })
            }
            (path, _) => Err(Fault::no_such_path(path)),
        }
    }

    async fn check(&self, request: Request<Incoming>) -> Result<Reply, Fault> {
        expect_json(request.headers().get(CONTENT_TYPE))?;
        let body = timeout(BODY_PATIENCE, read(request.into_body())).await.map_err(|_| Fault::TooSlow)??;
        check::check(&self.limiter, &body).map(|answer| json(&answer))
    }
}

/// A client may leave the type out, or say what `curl -d` says unless it is told otherwise; another type is a mistake.
fn expect_json(found: Option<&HeaderValue>) -> Result<(), Fault> {
    let Some(found) = found else { return Ok(()) };
    let essence = found.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is = |kind: &[u8]| essence.eq_ignore_ascii_case(kind);
    let is_json = is(b"application/json")
        || essence.last_chunk::<5>().is_some_and(|end| end.eq_ignore_ascii_case(b"+json"));
    match is_json || is(b"application/x-www-form-urlencoded") {
        true => Ok(()),
        false => Err(Fault::not_json(found)),
    }
}

/// Takes in a body. One that came in one piece, as nearly all do, is not copied.
async fn read(mut body: Incoming) -> Result<Bytes, Fault> {
    if body.size_hint().lower() > MAX_BODY_BYTES as u64 {
        return Err(drain(body).await);
    }
    let mut whole = Bytes::new();
    let mut pieces = Vec::new();
    while let Some(frame) = body.frame().await {
        // Trailers say nothing about a check.
        let Ok(piece) = frame.map_err(|_| Fault::CutOff)?.into_data() else { continue };
        if whole.len() + pieces.len() + piece.len() > MAX_BODY_BYTES {
            return Err(drain(body).await);
        }
        if whole.is_empty() && pieces.is_empty() {
            whole = piece;
        } else {
            pieces.extend_from_slice(&std::mem::take(&mut whole));
            pieces.extend_from_slice(&piece);
        }
    }
    Ok(if pieces.is_empty() { whole } else { pieces.into() })
}

/// Lets the client finish sending, within reason, so that it reads why.
async fn drain(mut body: Incoming) -> Fault {
    let mut left = MAX_DRAINED_BYTES;
    // What announces that it is longer is not even begun: a client that waits for leave to send is told at once.
    while body.size_hint().lower() <= left {
        let Some(Ok(frame)) = body.frame().await else { break };
        left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len() as u64));
    }
    Fault::TooLarge { most: MAX_BODY_BYTES }
}

fn json(body: &impl Serialize) -> Reply {
    // A check's answer fits; an error grows it once.
    let mut bytes = Vec::with_capacity(128);
    serde_json::to_writer(&mut bytes, body).expect("numbers and text can be written to memory");
    reply(bytes, "application/json")
}

fn reply(body: impl Into<Bytes>, kind: &'static str) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

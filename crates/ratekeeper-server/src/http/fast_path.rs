//! The express lane: plain requests answered without hyper.
//!
//! Nearly all traffic is small, plain requests on connections that stay open, and hyper spends more on such a request
//! than its answer costs. So every connection begins here. What has come in is cut into plain requests; all that are
//! complete are answered as one batch and sent with one write; then more is read. The first thing that is not plain, or
//! that the desk would refuse for its head, ends the lane for this connection: what was not answered is given to hyper,
//! byte for byte and for good. A request is answered here or given away, never both.
//!
//! Everything has a bound. A batch has at most [`MAX_BATCH`] requests, and no more than the buffer holds. While answers
//! wait for a client to read them, it is not read from. How long a client may take is a matter of [`IdleTimer`].

use super::body_budget::HeldBytes;
use super::body_permits::{BodyPermit, SMALL_BYTES};
use super::buffer::ReadBuffer;
use super::call::{HttpCall, RequestHead};
use super::close_reason::CloseReason;
use super::error::HttpError;
use super::handler::{AdmittedRequest, ConnectionContext, Handler, ResponseLength};
use super::response::H1Writer;
use super::shutdown::ShutdownSignal;
use super::strict_h1::{MAX_HEAD_BYTES, ParsedFront, PlainRequest};
use super::timeouts::IdleTimer;
use ratekeeper::{Clock, SystemClock};
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};

/// The most requests that are answered at once. Twice as many as clients pipeline who pipeline much.
const MAX_BATCH: usize = 128;

/// The most bytes of a body that is waited for here: a batch of some thousand checks. Hyper takes in larger ones.
const MAX_BODY_BYTES: usize = 512 * 1024;

/// What waits in a connection's buffer and counts for nothing: every connection has as much.
const UNCOUNTED_BYTES: usize = 8 * 1024;

/// One connection on the lane.
pub(super) struct FastPath<'a, S, T: Handler> {
    stream: &'a mut S,
    desk: &'a ConnectionContext<T>,
    clock: &'a SystemClock,
    patience: &'a mut IdleTimer,
    orders: ShutdownSignal,
    buffer: ReadBuffer,
    front: FrontRequest,
    batch: Vec<CompleteRequest<T::Route>>,
    out: H1Writer,
    /// For the request at the front, if it is a large one.
    place: Option<BodyPermit>,
    /// What has come of that request, if it has to be waited for.
    held: HeldBytes,
    /// How much was answered since others could go.
    streak: usize,
}

/// What is known of the request at the front of the buffer, so that it is not found out again for every byte that comes.
#[derive(Clone, Copy, Debug)]
enum FrontRequest {
    Unknown,
    /// Its head is not finished within so many bytes.
    Head {
        bytes: usize,
    },
    /// It has begun, and is complete with so many bytes.
    Body {
        bytes: usize,
    },
}

impl FrontRequest {
    /// Whether the request can't be complete with the bytes there are.
    fn waits(self, bytes: &[u8]) -> bool {
        match self {
            FrontRequest::Unknown => false,
            // A head ends with a line, and is not waited for beyond its bound.
            FrontRequest::Head { bytes: known } => {
                bytes.len() < MAX_HEAD_BYTES && !bytes[known..].contains(&b'\n')
            }
            FrontRequest::Body { bytes: complete } => bytes.len() < complete,
        }
    }
}

/// A complete request, and where in the buffer it begins.
#[derive(Clone, Copy, Debug)]
struct CompleteRequest<R> {
    at: usize,
    plain: PlainRequest,
    route: R,
}

impl<R: Copy> CompleteRequest<R> {
    fn call<'b>(&self, bytes: &'b [u8], peer: IpAddr) -> HttpCall<'b, R> {
        let bytes = &bytes[self.at..];
        HttpCall {
            route: self.route,
            head: RequestHead::Plain(self.plain, bytes),
            body: self.plain.body(bytes),
            peer,
        }
    }
}

/// What comes behind a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterBatch {
    /// Perhaps another one.
    Batch,
    /// Nothing that is complete: there is more to read.
    Read,
    /// Something that is not for the lane.
    GiveAway,
    /// Nothing at all: the last request was the connection's last.
    Close,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin, T: Handler> FastPath<'a, S, T> {
    pub(super) fn new(
        stream: &'a mut S,
        desk: &'a ConnectionContext<T>,
        clock: &'a SystemClock,
        patience: &'a mut IdleTimer,
        orders: ShutdownSignal,
    ) -> FastPath<'a, S, T> {
        let (buffer, batch, out) = (ReadBuffer::new(), Vec::new(), H1Writer::default());
        let (front, place, held, streak) = (FrontRequest::Unknown, None, desk.room.hold(), 0);
        FastPath { stream, desk, clock, patience, orders, buffer, front, batch, out, place, held, streak }
    }

    /// Answers all that is plain, and gives what was read and not answered as soon as something is not.
    pub(super) async fn ride(mut self) -> Result<Vec<u8>, CloseReason> {
        loop {
            let mut next = self.gather();
            if !self.batch.is_empty() {
                if self.orders.is_draining() {
                    next = AfterBatch::Close;
                }
                self.answer(next == AfterBatch::Close).await;
                self.send().await?;
                self.place = None;
                self.let_others_go().await;
            }
            match next {
                AfterBatch::Batch => {}
                AfterBatch::Read => match self.read().await {
                    Ok(0) if self.buffer.is_empty() => return Err(self.close().await),
                    // Hyper knows what to say to half a request.
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(CloseReason::Late) => return Err(self.refuse(&HttpError::TooSlow).await),
                    Err(ended) => return Err(ended),
                },
                AfterBatch::GiveAway => break,
                AfterBatch::Close => return Err(self.close().await),
            }
        }
        self.patience.expect_no_body();
        Ok(self.buffer.into_rest())
    }

    /// Collects the complete requests at the front of the buffer.
    fn gather(&mut self) -> AfterBatch {
        self.batch.clear();
        let bytes = self.buffer.filled();
        if self.front.waits(bytes) {
            // Only what has come needs a place: announcing a large body costs nothing.
            if bytes.len() > MAX_HEAD_BYTES + SMALL_BYTES && self.place.is_none() {
                self.place = self.desk.room.place();
            }
            let has_place = self.place.is_some() || bytes.len() <= MAX_HEAD_BYTES + SMALL_BYTES;
            let has_room = has_place && (bytes.len() <= UNCOUNTED_BYTES || self.held.grow_to(bytes.len()));
            return if has_room { AfterBatch::Read } else { AfterBatch::GiveAway };
        }
        self.held.release();
        // Of the requests below, the first may have been waited for, and have been counted then.
        let counted = u64::from(matches!(self.front, FrontRequest::Body { .. }));
        self.front = FrontRequest::Unknown;
        self.patience.expect_no_body();
        let mut at = 0;
        let next = loop {
            let rest = &bytes[at..];
            let plain = match PlainRequest::find(rest) {
                ParsedFront::Plain(plain) => plain,
                ParsedFront::Unfinished if rest.is_empty() => break AfterBatch::Read,
                ParsedFront::Unfinished => {
                    self.front = FrontRequest::Head { bytes: rest.len() };
                    break AfterBatch::Read;
                }
                ParsedFront::Other => break AfterBatch::GiveAway,
            };
            // What is refused for its head is refused before its body has come, and that hyper can do.
            let admitted = self.desk.site().admit(&RequestHead::Plain(plain, rest));
            let Ok(AdmittedRequest { route, max_body, answer }) = admitted else {
                break AfterBatch::GiveAway;
            };
            if plain.body_bytes() > max_body.min(MAX_BODY_BYTES) {
                break AfterBatch::GiveAway;
            }
            if plain.bytes() > rest.len() {
                self.front = FrontRequest::Body { bytes: plain.bytes() };
                break AfterBatch::Read;
            }
            self.batch.push(CompleteRequest { at, plain, route });
            at += plain.bytes();
            if plain.closes() {
                break AfterBatch::Close;
            }
            // Behind a long answer nothing else is written before it is sent.
            if answer == ResponseLength::Long {
                self.streak += MAX_BATCH;
                break AfterBatch::Batch;
            }
            if self.batch.len() == MAX_BATCH {
                break AfterBatch::Batch;
            }
        };
        self.streak += self.batch.len();
        let waiting = u64::from(matches!(self.front, FrontRequest::Body { .. }));
        self.desk.begin((self.batch.len() as u64 + waiting).saturating_sub(counted));
        next
    }

    /// Writes the answers to the batch, and lets go of its requests.
    async fn answer(&mut self, closes: bool) {
        self.out.open(self.batch.len(), self.clock.now(), closes);
        let bytes = self.buffer.filled();
        let peer = self.desk.peer();
        let calls = self.batch.iter().map(|due| due.call(bytes, peer));
        self.desk.site().answer(calls, &mut self.out).await;
        let answered = self.batch.last().map_or(0, |last| last.at + last.plain.bytes());
        self.buffer.take(answered);
    }

    /// Reads more; gives how much, and 0 at the end.
    async fn read(&mut self) -> Result<usize, CloseReason> {
        self.buffer.make_room();
        if let FrontRequest::Body { .. } = self.front {
            self.patience.expect_body();
        }
        poll_fn(|cx| match self.buffer.poll_fill(self.stream, cx) {
            Poll::Ready(read) => Poll::Ready(read.map_err(CloseReason::Broken)),
            Poll::Pending => {
                let ended = self.poll_ended(cx);
                // A request of which some has come is worth waiting for.
                let leaves = self.buffer.is_empty() && self.orders.is_draining();
                if leaves { Poll::Ready(Ok(0)) } else { ended.map(Err) }
            }
        })
        .await
    }

    /// Sends all that was written.
    async fn send(&mut self) -> Result<(), CloseReason> {
        poll_fn(|cx| match self.out.poll_send(self.stream, cx) {
            Poll::Ready(sent) => Poll::Ready(sent.map_err(CloseReason::Broken)),
            Poll::Pending => self.poll_ended(cx).map(Err),
        })
        .await
    }

    /// Steps back once much was answered in a row. A client that always has more to ask would otherwise keep its thread
    /// until tokio takes it away, which is thousands of checks later.
    async fn let_others_go(&mut self) {
        if self.streak < MAX_BATCH {
            return;
        }
        self.streak = 0;
        let mut has_stepped_back = false;
        // Tokio's own way of saying this allocates.
        poll_fn(|cx| {
            if std::mem::replace(&mut has_stepped_back, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Tells the client that nothing more will come.
    async fn close(&mut self) -> CloseReason {
        poll_fn(|cx| match Pin::new(&mut *self.stream).poll_shutdown(cx) {
            Poll::Ready(closed) => {
                Poll::Ready(closed.map_or_else(CloseReason::Broken, |()| CloseReason::Done))
            }
            Poll::Pending => self.poll_ended(cx),
        })
        .await
    }

    /// Answers the request at the front, of which not all has come, and closes: where the next one would begin is
    /// anybody's guess.
    async fn refuse(&mut self, fault: &HttpError) -> CloseReason {
        self.patience.expect_no_body();
        self.out.open(1, self.clock.now(), true);
        fault.tell(&mut self.out);
        match self.send().await {
            Ok(()) => self.close().await,
            Err(ended) => ended,
        }
    }

    /// Until there is no more reason to wait.
    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        if self.orders.poll_gone(cx).is_ready() {
            return Poll::Ready(CloseReason::Gone);
        }
        self.patience.poll_lost(self.desk.begun(), cx).map(CloseReason::from)
    }
}

#[cfg(test)]
mod tests {
    use super::super::body_permits::BodyPermits;
    use super::super::shutdown::ShutdownPhase;
    use super::*;
    use crate::api::ApiOptions;
    use crate::api::testing::{TestApi, api};
    use std::io;
    use std::net::Ipv4Addr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
    use tokio::sync::watch;
    use tokio::time::timeout;

    const CHECK: &str = "POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\n{\"client_key\":\"a\"}";
    const LIVEZ: &str = "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n";

    fn desk() -> ConnectionContext<TestApi> {
        ConnectionContext::new(
            api("default: {limit: 100000/h}", ApiOptions::default()).0,
            BodyPermits::default(),
            Ipv4Addr::LOCALHOST.into(),
        )
    }

    /// Rides with a client that does as `client` says, over a stream that holds so many bytes each way; gives what
    /// became of the ride, and how many requests had begun.
    async fn ride<F: Future<Output = ()>>(
        held: usize,
        client: impl FnOnce(DuplexStream) -> F,
    ) -> (Result<Vec<u8>, CloseReason>, u64) {
        let (mut stream, end) = duplex(held);
        let desk = desk();
        let (_phase, told) = watch::channel(ShutdownPhase::Open);
        let (dated_by, mut patience) = (SystemClock::new(), IdleTimer::new());
        let ride = async {
            let lane = FastPath::new(&mut stream, &desk, &dated_by, &mut patience, ShutdownSignal::new(told));
            let ended = lane.ride().await;
            drop(stream);
            ended
        };
        let (ended, ()) = tokio::join!(ride, client(end));
        (ended, desk.begun())
    }

    /// Sends everything, says no more, and reads everything.
    async fn talk(stream: DuplexStream, bytes: &[u8]) -> String {
        let (mut from, mut to) = tokio::io::split(stream);
        let send = async {
            let _ = to.write_all(bytes).await;
            let _ = to.shutdown().await;
        };
        let mut read = String::new();
        let (all, ()) = tokio::join!(from.read_to_string(&mut read), send);
        all.unwrap();
        read
    }

    #[tokio::test]
    async fn plain_requests_are_all_answered_here() {
        let requests = [CHECK, LIVEZ, &CHECK.replace('{', "[")].concat().repeat(100);
        let (ended, begun) = ride(64 * 1024, |stream| async {
            let read = talk(stream, requests.as_bytes()).await;
            assert_eq!(read.matches("HTTP/1.1 200 OK").count(), 200);
            assert_eq!(read.matches("HTTP/1.1 400 Bad Request").count(), 100);
        })
        .await;
        assert!(matches!(ended, Err(CloseReason::Done)), "{ended:?}");
        assert_eq!(begun, 300);
    }

    #[tokio::test]
    async fn what_is_not_for_the_lane_is_given_away_byte_for_byte() {
        let big = CHECK.replace("18", "65537");
        for other in [
            "PRI * HTTP/2.0\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "HEAD /livez HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST /check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0",
            "POST /check HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 18\r\n\r\n",
            "POST /check HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 18\r\n\r\n",
            "\r\n",
            &big,
            // Not complete, and nothing more will come.
            "POST /che",
            "POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\n{",
        ] {
            for count in [0, 1, 3, 200] {
                let bytes = CHECK.repeat(count) + other;
                let (ended, _) = ride(64 * 1024, |stream| async {
                    let read = talk(stream, bytes.as_bytes()).await;
                    assert_eq!(read.matches("HTTP/1.1 200 OK").count(), count, "{other:?}");
                })
                .await;
                let rest = ended.expect("it is given away");
                assert_eq!(String::from_utf8_lossy(&rest), other, "behind {count}");
            }
        }
    }

    #[tokio::test]
    async fn a_head_that_never_ends_is_given_away_at_its_bound() {
        for begin in ["", CHECK] {
            for endless in
                ["GET /", "GET /livez HTTP/1.1\r\nHost: a\r\nX: ", "POST /check HTTP/1.1\r\nHost: a\r\n"]
            {
                let bytes = [begin, endless, &"y".repeat(10 * MAX_HEAD_BYTES)].concat();
                let (ended, _) = ride(64 * 1024, |stream| async {
                    talk(stream, bytes.as_bytes()).await;
                })
                .await;
                let rest = ended.expect("it is given away");
                assert!(rest.starts_with(endless.as_bytes()));
                assert!((MAX_HEAD_BYTES..=2 * MAX_HEAD_BYTES).contains(&rest.len()), "{}", rest.len());
            }
        }
    }

    #[tokio::test]
    async fn nothing_behind_the_last_request_is_answered() {
        let last = CHECK.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        let (ended, begun) = ride(64 * 1024, |stream| async {
            let read = talk(stream, [CHECK, &last, CHECK].concat().as_bytes()).await;
            assert_eq!(read.matches("HTTP/1.1 200 OK").count(), 2);
            assert_eq!(read.matches("\r\nconnection: close\r\n").count(), 1);
        })
        .await;
        assert!(matches!(ended, Err(CloseReason::Done)), "{ended:?}");
        assert_eq!(begun, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_not_read_from() {
        let (ended, begun) = ride(1024, |mut stream| async move {
            let requests = CHECK.repeat(1000);
            let mut sent = 0;
            while let Ok(Ok(length)) =
                timeout(std::time::Duration::from_millis(1), stream.write(&requests.as_bytes()[sent..])).await
            {
                sent += length;
            }
            // What fits into the stream both ways, and into the buffer.
            assert!(sent < 16 * 1024, "{sent} bytes were taken in");
            drop(stream);
        })
        .await;
        assert!(matches!(ended, Err(CloseReason::Broken(_))), "{ended:?}");
        assert!(begun < 200, "{begun} were answered");
    }

    #[tokio::test]
    async fn a_request_that_is_waited_for_counts_once() {
        let (ended, begun) = ride(1024, |mut stream| async move {
            let mut answer = [0; 1024];
            for piece in CHECK.as_bytes().chunks(7) {
                stream.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            assert_ne!(stream.read(&mut answer).await.unwrap(), 0);
        })
        .await;
        assert!(matches!(ended, Err(CloseReason::Done)), "{ended:?}");
        assert_eq!(begun, 1);
    }

    /// A client that always has more to ask and takes every answer; after a while, it has the server drain.
    struct Tireless {
        asked: usize,
        phase: watch::Sender<ShutdownPhase>,
    }

    impl AsyncRead for Tireless {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.asked += 1;
            if self.asked == 100 {
                self.phase.send_replace(ShutdownPhase::Draining);
            }
            assert!(self.asked < 200, "nobody hears that the server drains");
            buffer.put_slice(CHECK.repeat(3).as_bytes());
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_never_idle_hears_that_the_server_drains() {
        let (phase, told) = watch::channel(ShutdownPhase::Open);
        let mut stream = tokio::io::join(Tireless { asked: 0, phase }, tokio::io::sink());
        let (desk, dated_by, mut patience) = (desk(), SystemClock::new(), IdleTimer::new());
        let lane = FastPath::new(&mut stream, &desk, &dated_by, &mut patience, ShutdownSignal::new(told));
        let ended = lane.ride().await;
        assert!(matches!(ended, Err(CloseReason::Done)), "{ended:?}");
        assert_eq!(desk.begun(), 300);
    }
}

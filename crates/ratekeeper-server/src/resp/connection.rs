//! One connection: what comes is read, what is complete is answered at once, and all answers leave with one write.
//!
//! Everything has a bound. A batch has at most [`MAX_BATCH`] commands, and no more than the buffer holds. While answers wait
//! for a client to read them, it is not read from. How long a client may take is a matter of [`IdleTimer`].

use super::decode::Decoder;
use super::executor::{AfterCommands, Executor, ExecutorShared, MAX_BATCH};
use crate::http::{CloseReason, IdleTimer, ReadBuffer, ShutdownPhase, ShutdownSignal};
use ratekeeper::Store;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

/// How long a new connection may take until its first command is in; where a token is needed, until it was shown. Clients
/// greet a server as soon as they are connected.
const FIRST_PATIENCE: Duration = Duration::from_secs(60);
/// How often a connection is looked at: if no command came since the last look, it is closed. Clients of Redis keep idle
/// connections for long, because Redis does not close them, and many find out only with the next command that one is
/// gone. Those whose other end is gone are found out by the system sooner.
const PATIENCE: Duration = Duration::from_secs(60 * 60);
/// How long the rest of a command may take. It comes right behind its beginning.
const REST_PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may take to read what it was answered, which is some tens of kilobytes.
const SEND_PATIENCE: Duration = Duration::from_secs(60);
/// How long what a client still sends is taken in after the last answer, and how much of it. Else the system would have
/// the answer overtaken by the news that nobody listens.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(1);
const FAREWELL_BYTES: usize = 1 << 20;

/// How many batches of a client that never pauses are answered while the server stops.
const LAST_BATCHES: u32 = 64;

/// How much a connection keeps for the next answers. Those to as many checks as are read at once take less.
const KEPT_BYTES: usize = 16 * 1024;

/// The rest of a command did not come.
struct CommandTimeout;

impl fmt::Display for CommandTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rest of a command did not come within {} seconds", REST_PATIENCE.as_secs())
    }
}

/// One connection.
pub(super) struct RespConnection<'o, C, S> {
    stream: C,
    clerk: Executor<'o, S>,
    decoder: Decoder,
    buffer: ReadBuffer,
    /// How much of what the clerk wrote was sent.
    sent: usize,
    patience: IdleTimer,
    orders: ShutdownSignal,
    /// How many commands were answered since others could go.
    streak: u64,
    /// How many batches there may be until the client has to leave.
    last_batches: u32,
}

impl<'o, C: AsyncRead + AsyncWrite + Unpin, S: Store> RespConnection<'o, C, S> {
    pub(super) fn new(
        stream: C,
        office: &'o ExecutorShared<S>,
        peer: IpAddr,
        phase: watch::Receiver<ShutdownPhase>,
    ) -> RespConnection<'o, C, S> {
        RespConnection {
            stream,
            clerk: Executor::new(office, peer),
            decoder: Decoder::default(),
            buffer: ReadBuffer::new(),
            sent: 0,
            patience: IdleTimer::with(FIRST_PATIENCE, PATIENCE),
            orders: ShutdownSignal::new(phase),
            streak: 0,
            last_batches: LAST_BATCHES,
        }
    }

    /// Answers commands until there is a reason not to.
    pub(super) async fn hold(mut self) -> CloseReason {
        loop {
            let next = self.answer().await;
            if let Err(ended) = self.send().await {
                return ended;
            }
            match next {
                AfterCommands::Close => return self.close().await,
                AfterCommands::Batch | AfterCommands::Read if self.must_leave() => return self.close().await,
                AfterCommands::Batch => {}
                AfterCommands::Read => match self.read().await {
                    // Half a command has no answer, and nobody waits for one.
                    Ok(0) => return self.close().await,
                    Ok(_) => {}
                    Err(CloseReason::Late) => return self.give_up().await,
                    Err(ended) => return ended,
                },
            }
            self.let_others_go().await;
        }
    }

    /// Whether the server stops and the client has been answered: nobody waits for the rest of what never ends.
    fn must_leave(&mut self) -> bool {
        if !self.orders.is_draining() {
            return false;
        }
        self.last_batches = self.last_batches.saturating_sub(1);
        self.buffer.is_empty() || self.last_batches == 0
    }

    /// Answers all that is complete, and forgets it.
    async fn answer(&mut self) -> AfterCommands {
        let begun = self.clerk.begun;
        let (answered, next) = self.clerk.answer(&mut self.decoder, self.buffer.filled()).await;
        self.buffer.take(answered);
        if answered > 0 {
            self.patience.expect_nothing();
        }
        self.streak += self.clerk.begun - begun;
        next
    }

    /// Reads more; gives how much, and 0 at the end.
    async fn read(&mut self) -> Result<usize, CloseReason> {
        self.buffer.make_room();
        match self.buffer.is_empty() {
            true => self.decoder.shrink(),
            false => self.patience.expect(REST_PATIENCE),
        }
        poll_fn(|cx| match self.buffer.poll_fill(&mut self.stream, cx) {
            Poll::Ready(read) => Poll::Ready(read.map_err(CloseReason::Broken)),
            Poll::Pending => {
                let ended = self.poll_ended(cx);
                // A command of which some has come is worth waiting for.
                let leaves = self.buffer.is_empty() && self.orders.is_draining();
                if leaves { Poll::Ready(Ok(0)) } else { ended.map(Err) }
            }
        })
        .await
    }

    /// Sends all that was answered.
    async fn send(&mut self) -> Result<(), CloseReason> {
        if self.clerk.out.is_empty() {
            return Ok(());
        }
        poll_fn(|cx| match self.poll_send(cx) {
            Poll::Ready(sent) => Poll::Ready(sent.map_err(CloseReason::Broken)),
            Poll::Pending => {
                self.patience.expect(SEND_PATIENCE);
                self.poll_ended(cx).map(Err)
            }
        })
        .await?;
        self.clerk.out.clear();
        self.clerk.out.shrink_to(KEPT_BYTES);
        self.sent = 0;
        self.patience.expect_nothing();
        Ok(())
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.clerk.out.len() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.clerk.out[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Steps back once much was answered in a row. A client that always has more to ask would otherwise keep its thread
    /// until tokio takes it away.
    async fn let_others_go(&mut self) {
        if self.streak < MAX_BATCH as u64 {
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

    /// Tells a client that does not go on why it is left.
    async fn give_up(mut self) -> CloseReason {
        self.patience.expect_nothing();
        self.clerk.refuse(&CommandTimeout);
        match self.send().await {
            Ok(()) => {
                self.close().await;
                CloseReason::Late
            }
            Err(ended) => ended,
        }
    }

    /// Tells the client that nothing more will come, and lets it finish.
    async fn close(mut self) -> CloseReason {
        self.patience.expect_nothing();
        self.patience.expect(FAREWELL_PATIENCE);
        let mut thrown_away = 0;
        let mut is_shut = false;
        poll_fn(|cx| {
            if !is_shut {
                match Pin::new(&mut self.stream).poll_shutdown(cx) {
                    Poll::Ready(Ok(())) => is_shut = true,
                    Poll::Ready(Err(error)) => return Poll::Ready(CloseReason::Broken(error)),
                    Poll::Pending => return self.poll_ended(cx),
                }
            }
            loop {
                let mut room = [0; 4096];
                let mut room = ReadBuf::new(&mut room);
                match Pin::new(&mut self.stream).poll_read(cx, &mut room) {
                    Poll::Ready(Ok(())) if !room.filled().is_empty() && thrown_away < FAREWELL_BYTES => {
                        thrown_away += room.filled().len();
                    }
                    Poll::Ready(_) => return Poll::Ready(CloseReason::Done),
                    Poll::Pending => return self.poll_ended(cx).map(|_| CloseReason::Done),
                }
            }
        })
        .await
    }

    /// Until there is no more reason to wait.
    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        if self.orders.poll_gone(cx).is_ready() {
            return Poll::Ready(CloseReason::Gone);
        }
        self.patience.poll_lost(self.clerk.begun, cx).map(CloseReason::from)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{office, words};
    use super::*;
    use std::net::Ipv4Addr;

    /// A client that has sent all it will, and notes each write that it is sent.
    struct Sent<'a> {
        unread: &'a [u8],
        writes: &'a mut Vec<Vec<u8>>,
    }

    impl AsyncRead for Sent<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            room: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let (now, later) = self.unread.split_at(self.unread.len().min(room.remaining()));
            room.put_slice(now);
            self.unread = later;
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Sent<'_> {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.writes.push(bytes.to_vec());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_pipeline_is_answered_with_one_write() {
        let (office, _) = office("default: {limit: 1/day}", None);
        let pipeline: Vec<u8> =
            (0..64).flat_map(|number| words(&format!("CL.THROTTLE key{number} 15 30 60"))).collect();
        let mut writes = Vec::new();
        let (_phase, told) = watch::channel(ShutdownPhase::Open);
        let stream = Sent { unread: &pipeline, writes: &mut writes };
        let ended = RespConnection::new(stream, &office, Ipv4Addr::LOCALHOST.into(), told).hold().await;
        assert!(matches!(ended, CloseReason::Done), "{ended:?}");
        let [replies] = &writes[..] else { panic!("{} writes", writes.len()) };
        assert_eq!(String::from_utf8_lossy(replies), "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n".repeat(64));
    }
}

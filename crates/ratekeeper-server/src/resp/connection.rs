//! The loop of one connection: read, execute all complete commands, and send their replies with one write.
//!
//! Everything is bounded. A batch has at most [`MAX_BATCH`] commands, and no more than the read buffer holds. While
//! replies wait to be sent, nothing is read from the client. [`IdleTimer`] bounds how long a client may take.

use super::decode::Decoder;
use super::executor::{AfterCommands, Executor, ExecutorShared, MAX_BATCH};
use crate::conn::{CloseReason, IdleTimer, ReadBuffer, ShutdownPhase, ShutdownSignal};
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

/// How long a new connection may take for its first command, or to authenticate if a token is required. Clients send
/// their handshake as soon as they are connected.
const FIRST_COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a connection is checked: if no command arrived since the last check, it is closed. Redis clients keep idle
/// connections for long, because Redis does not close them by default, and many notice a closed one only with the next
/// command. Dead peers are detected sooner, by TCP keepalive.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// How long the rest of a command may take. Clients send a command at once.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to read its replies, which take some tens of kilobytes.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// How long, and how many bytes, the server keeps reading after the last reply. Closing with unread data would send a
/// reset, which could discard the reply before the client reads it.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_LINGER_BYTES: usize = 1 << 20;

/// The maximum number of batches of a client that never pauses to execute while the server stops.
const MAX_DRAIN_BATCHES: u32 = 64;

/// The capacity that a connection keeps for replies. The replies to one read buffer of checks take less.
const KEPT_REPLY_BYTES: usize = 16 * 1024;

/// The rest of a command did not arrive in time.
struct CommandTimeout;

impl fmt::Display for CommandTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rest of a command did not arrive within {} seconds", COMMAND_TIMEOUT.as_secs())
    }
}

/// A RESP connection.
pub(super) struct RespConnection<'o, C, S> {
    stream: C,
    executor: Executor<'o, S>,
    decoder: Decoder,
    buffer: ReadBuffer,
    /// How many bytes of the replies were sent.
    sent: usize,
    idle_timer: IdleTimer,
    shutdown: ShutdownSignal,
    /// The number of commands executed since the task last yielded.
    commands_since_yield: u64,
    /// How many more batches are executed while the server stops.
    drain_batches_left: u32,
}

impl<'o, C: AsyncRead + AsyncWrite + Unpin, S: Store> RespConnection<'o, C, S> {
    pub(super) fn new(
        stream: C,
        shared: &'o ExecutorShared<S>,
        peer: IpAddr,
        phase: watch::Receiver<ShutdownPhase>,
    ) -> RespConnection<'o, C, S> {
        RespConnection {
            stream,
            executor: Executor::new(shared, peer),
            decoder: Decoder::default(),
            buffer: ReadBuffer::new(),
            sent: 0,
            idle_timer: IdleTimer::new(FIRST_COMMAND_TIMEOUT, IDLE_CHECK_INTERVAL),
            shutdown: ShutdownSignal::new(phase),
            commands_since_yield: 0,
            drain_batches_left: MAX_DRAIN_BATCHES,
        }
    }

    /// Executes commands until the connection ends, and returns why it did.
    pub(super) async fn run(mut self) -> CloseReason {
        loop {
            let next = self.execute().await;
            if let Err(reason) = self.send().await {
                return reason;
            }
            match next {
                AfterCommands::Close => return self.close().await,
                AfterCommands::More | AfterCommands::Read if self.must_close() => return self.close().await,
                AfterCommands::More => {}
                AfterCommands::Read => match self.read().await {
                    // An incomplete command gets no reply.
                    Ok(0) => return self.close().await,
                    Ok(_) => {}
                    Err(CloseReason::Timeout) => return self.close_timed_out().await,
                    Err(reason) => return reason,
                },
            }
            self.yield_if_busy().await;
        }
    }

    /// Whether to close because the server stops: all commands are answered, or the client never pauses.
    fn must_close(&mut self) -> bool {
        if !self.shutdown.is_draining() {
            return false;
        }
        self.drain_batches_left = self.drain_batches_left.saturating_sub(1);
        self.buffer.is_empty() || self.drain_batches_left == 0
    }

    /// Executes all complete commands and removes them from the buffer.
    async fn execute(&mut self) -> AfterCommands {
        let begun = self.executor.command_count;
        let (answered, next) = self.executor.execute(&mut self.decoder, self.buffer.filled()).await;
        self.buffer.consume(answered);
        if answered > 0 {
            self.idle_timer.clear_deadline();
        }
        self.commands_since_yield += self.executor.command_count - begun;
        next
    }

    /// Reads more. Returns the number of bytes read, 0 at the end of the stream or when the server stops.
    async fn read(&mut self) -> Result<usize, CloseReason> {
        self.buffer.reserve();
        if self.buffer.is_empty() {
            self.decoder.shrink();
        } else {
            self.idle_timer.start_deadline(COMMAND_TIMEOUT);
        }
        poll_fn(|cx| match self.buffer.poll_fill(&mut self.stream, cx) {
            Poll::Ready(read) => Poll::Ready(read.map_err(CloseReason::Io)),
            Poll::Pending => {
                let reason = self.poll_close_reason(cx);
                // An incomplete command is still waited for.
                let is_drained = self.buffer.is_empty() && self.shutdown.is_draining();
                if is_drained { Poll::Ready(Ok(0)) } else { reason.map(Err) }
            }
        })
        .await
    }

    /// Sends all replies.
    async fn send(&mut self) -> Result<(), CloseReason> {
        if self.executor.out.is_empty() {
            return Ok(());
        }
        poll_fn(|cx| match self.poll_send(cx) {
            Poll::Ready(sent) => Poll::Ready(sent.map_err(CloseReason::Io)),
            Poll::Pending => {
                self.idle_timer.start_deadline(SEND_TIMEOUT);
                self.poll_close_reason(cx).map(Err)
            }
        })
        .await?;
        self.executor.out.clear();
        self.executor.out.shrink_to(KEPT_REPLY_BYTES);
        self.sent = 0;
        self.idle_timer.clear_deadline();
        Ok(())
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.executor.out.len() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.executor.out[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Yields after [`MAX_BATCH`] commands in a row. A client that always has more to send would otherwise keep its
    /// worker thread until tokio's cooperative budget ends.
    async fn yield_if_busy(&mut self) {
        if self.commands_since_yield < MAX_BATCH as u64 {
            return;
        }
        self.commands_since_yield = 0;
        let mut has_yielded = false;
        // `tokio::task::yield_now` allocates.
        poll_fn(|cx| {
            if std::mem::replace(&mut has_yielded, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Sends the timeout error and closes.
    async fn close_timed_out(mut self) -> CloseReason {
        self.idle_timer.clear_deadline();
        self.executor.reply_protocol_error(&CommandTimeout);
        match self.send().await {
            Ok(()) => {
                self.close().await;
                CloseReason::Timeout
            }
            Err(reason) => reason,
        }
    }

    /// Shuts down the write side, and reads on until the client closes or the linger timeout ends.
    async fn close(mut self) -> CloseReason {
        self.idle_timer.clear_deadline();
        self.idle_timer.start_deadline(LINGER_TIMEOUT);
        let mut discarded = 0;
        let mut is_shut = false;
        poll_fn(|cx| {
            if !is_shut {
                match Pin::new(&mut self.stream).poll_shutdown(cx) {
                    Poll::Ready(Ok(())) => is_shut = true,
                    Poll::Ready(Err(error)) => return Poll::Ready(CloseReason::Io(error)),
                    Poll::Pending => return self.poll_close_reason(cx),
                }
            }
            loop {
                let mut buffer = [0; 4096];
                let mut buffer = ReadBuf::new(&mut buffer);
                match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                    Poll::Ready(Ok(())) if !buffer.filled().is_empty() && discarded < MAX_LINGER_BYTES => {
                        discarded += buffer.filled().len();
                    }
                    Poll::Ready(_) => return Poll::Ready(CloseReason::Done),
                    Poll::Pending => return self.poll_close_reason(cx).map(|_| CloseReason::Done),
                }
            }
        })
        .await
    }

    /// Completes when the connection has to end: the server is gone, or a timeout is over.
    fn poll_close_reason(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        if self.shutdown.poll_closed(cx).is_ready() {
            return Poll::Ready(CloseReason::ServerStopped);
        }
        self.idle_timer.poll_timed_out(self.executor.command_count, cx).map(CloseReason::from)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{encode_words, test_shared};
    use super::*;
    use std::net::Ipv4Addr;

    /// A client that has sent all its bytes, and records each write of the server.
    struct RecordingClient<'a> {
        unread: &'a [u8],
        writes: &'a mut Vec<Vec<u8>>,
    }

    impl AsyncRead for RecordingClient<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let (now, later) = self.unread.split_at(self.unread.len().min(buffer.remaining()));
            buffer.put_slice(now);
            self.unread = later;
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for RecordingClient<'_> {
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
        let (shared, _) = test_shared("default: {limit: 1/day}", None);
        let pipeline: Vec<u8> =
            (0..64).flat_map(|number| encode_words(&format!("CL.THROTTLE key{number} 15 30 60"))).collect();
        let mut writes = Vec::new();
        let (_phase, phase) = watch::channel(ShutdownPhase::Running);
        let stream = RecordingClient { unread: &pipeline, writes: &mut writes };
        let reason = RespConnection::new(stream, &shared, Ipv4Addr::LOCALHOST.into(), phase).run().await;
        assert!(matches!(reason, CloseReason::Done), "{reason:?}");
        let [replies] = &writes[..] else { panic!("{} writes", writes.len()) };
        assert_eq!(String::from_utf8_lossy(replies), "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n".repeat(64));
    }
}

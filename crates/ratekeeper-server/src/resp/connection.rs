//! The loop of one connection: read, execute all complete commands, and send their replies with one write.
//!
//! Everything is bounded. A batch has at most [`MAX_BATCH`] commands, and no more than the read buffer holds.
//! [`IdleTimer`] bounds how long a client may take.

use super::decode::Decoder;
use super::executor::{AfterCommands, Executor, ExecutorShared, MAX_BATCH};
use crate::conn::{CloseReason, Connection, IdleTimer, ShutdownPhase};
use ratekeeper::Store;
use std::fmt;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::Poll;
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
    conn: Connection<C>,
    executor: Executor<'o, S>,
    decoder: Decoder,
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
        let idle_timer = IdleTimer::new(FIRST_COMMAND_TIMEOUT, IDLE_CHECK_INTERVAL);
        RespConnection {
            conn: Connection::new(stream, idle_timer, phase),
            executor: Executor::new(shared, peer),
            decoder: Decoder::default(),
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
            self.conn.yield_after(MAX_BATCH).await;
        }
    }

    /// Whether to close because the server stops: all commands are answered, or the client never pauses.
    fn must_close(&mut self) -> bool {
        if !self.conn.shutdown.is_draining() {
            return false;
        }
        self.drain_batches_left = self.drain_batches_left.saturating_sub(1);
        self.conn.buffer.is_empty() || self.drain_batches_left == 0
    }

    /// Executes all complete commands and removes them from the buffer.
    async fn execute(&mut self) -> AfterCommands {
        let begun = self.executor.command_count;
        let (answered, next) = self.executor.execute(&mut self.decoder, self.conn.buffer.filled()).await;
        self.conn.buffer.consume(answered);
        if answered > 0 {
            self.conn.idle_timer.clear_deadline();
        }
        let executed = self.executor.command_count - begun;
        self.conn.answered_since_yield += usize::try_from(executed).unwrap_or(MAX_BATCH);
        next
    }

    /// Reads more. Returns the number of bytes read, 0 at the end of the stream or when the server stops.
    async fn read(&mut self) -> Result<usize, CloseReason> {
        if self.conn.buffer.is_empty() {
            self.decoder.shrink();
        } else {
            self.conn.idle_timer.start_deadline(COMMAND_TIMEOUT);
        }
        self.conn.read(self.executor.command_count).await
    }

    /// Sends all replies.
    async fn send(&mut self) -> Result<(), CloseReason> {
        let Executor { out, command_count, .. } = &mut self.executor;
        if !out.is_empty() {
            self.conn.send(out, Some(SEND_TIMEOUT), *command_count).await?;
            out.shrink_to(KEPT_REPLY_BYTES);
            self.conn.idle_timer.clear_deadline();
        }
        Ok(())
    }

    /// Sends the timeout error and closes.
    async fn close_timed_out(mut self) -> CloseReason {
        self.conn.idle_timer.clear_deadline();
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
        let (conn, started) = (&mut self.conn, self.executor.command_count);
        conn.idle_timer.clear_deadline();
        conn.idle_timer.start_deadline(LINGER_TIMEOUT);
        match conn.shut_down(started).await {
            CloseReason::Done => {}
            reason => return reason,
        }
        let mut discarded = 0;
        poll_fn(|cx| {
            loop {
                let mut bytes = [0; 4096];
                let mut buffer = ReadBuf::new(&mut bytes);
                match Pin::new(&mut conn.stream).poll_read(cx, &mut buffer) {
                    Poll::Ready(Ok(())) if !buffer.filled().is_empty() && discarded < MAX_LINGER_BYTES => {
                        discarded += buffer.filled().len();
                    }
                    Poll::Ready(_) => return Poll::Ready(CloseReason::Done),
                    Poll::Pending => return conn.poll_close_reason(started, cx).map(|_| CloseReason::Done),
                }
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{encode_words, test_shared};
    use super::*;
    use std::io;
    use std::net::Ipv4Addr;
    use std::task::Context;

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

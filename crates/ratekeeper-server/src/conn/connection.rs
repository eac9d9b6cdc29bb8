//! A connection that a loop serves: read what has arrived, answer it as one batch, send all answers with one write.
//!
//! The HTTP fast path and RESP are such loops. Each wait ends when the client is too slow or the server stops. While
//! answers wait to be sent, nothing is read from the client.

use super::buffer::ReadBuffer;
use super::close_reason::CloseReason;
use super::shutdown::{ShutdownPhase, ShutdownSignal};
use super::timeouts::IdleTimer;
use super::write_all::poll_write_all;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// A stream with its read buffer, timer and shutdown signal. `started` is always the number of requests that have
/// started so far, by which the idle timeout sees that the client is active.
pub(crate) struct Connection<S> {
    pub(crate) stream: S,
    pub(crate) buffer: ReadBuffer,
    pub(crate) idle_timer: IdleTimer,
    pub(crate) shutdown: ShutdownSignal,
    /// The requests answered since the task last yielded.
    pub(crate) answered_since_yield: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn new(
        stream: S,
        idle_timer: IdleTimer,
        phase: watch::Receiver<ShutdownPhase>,
    ) -> Connection<S> {
        let shutdown = ShutdownSignal::new(phase);
        Connection { stream, buffer: ReadBuffer::new(), idle_timer, shutdown, answered_since_yield: 0 }
    }

    /// Reads more and returns the number of bytes; 0 at the end of the stream, or if the server drains and no request
    /// has arrived in part.
    pub(crate) async fn read(&mut self, started: u64) -> Result<usize, CloseReason> {
        self.buffer.reserve();
        poll_fn(|cx| match self.buffer.poll_fill(&mut self.stream, cx) {
            Poll::Ready(read) => Poll::Ready(read.map_err(CloseReason::Io)),
            Poll::Pending => {
                let reason = self.poll_close_reason(started, cx);
                let is_drained = self.buffer.is_empty() && self.shutdown.is_draining();
                if is_drained { Poll::Ready(Ok(0)) } else { reason.map(Err) }
            }
        })
        .await
    }

    /// Sends `bytes` and clears them. If the client has to be waited for, it may take `timeout`.
    pub(crate) async fn send(
        &mut self,
        bytes: &mut Vec<u8>,
        timeout: Option<Duration>,
        started: u64,
    ) -> Result<(), CloseReason> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut sent = 0;
        poll_fn(|cx| match poll_write_all(&mut self.stream, bytes, &mut sent, cx) {
            Poll::Ready(written) => Poll::Ready(written.map_err(CloseReason::Io)),
            Poll::Pending => {
                if let Some(timeout) = timeout {
                    self.idle_timer.start_deadline(timeout);
                }
                self.poll_close_reason(started, cx).map(Err)
            }
        })
        .await?;
        bytes.clear();
        Ok(())
    }

    /// Yields to other tasks after `max_requests` in a row. A client that always has more requests would otherwise keep
    /// its thread until tokio's coop budget ends, thousands of checks later.
    pub(crate) async fn yield_after(&mut self, max_requests: usize) {
        if self.answered_since_yield < max_requests {
            return;
        }
        self.answered_since_yield = 0;
        let mut has_yielded = false;
        // `tokio::task::yield_now` allocates.
        poll_fn(|cx| {
            if mem::replace(&mut has_yielded, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Shuts down the sending side of the stream.
    pub(crate) async fn shut_down(&mut self, started: u64) -> CloseReason {
        poll_fn(|cx| match Pin::new(&mut self.stream).poll_shutdown(cx) {
            Poll::Ready(closed) => Poll::Ready(closed.map_or_else(CloseReason::Io, |()| CloseReason::Done)),
            Poll::Pending => self.poll_close_reason(started, cx),
        })
        .await
    }

    /// Ready once the server has stopped or a timeout is exceeded.
    pub(crate) fn poll_close_reason(&mut self, started: u64, cx: &mut Context<'_>) -> Poll<CloseReason> {
        if self.shutdown.poll_closed(cx).is_ready() {
            return Poll::Ready(CloseReason::ServerStopped);
        }
        self.idle_timer.poll_timed_out(started, cx).map(CloseReason::from)
    }
}

//! Coalesces hyper's writes into one system call per poll.
//!
//! All bytes that hyper writes during one poll of a connection are sent together at the end of that poll: the responses
//! to pipelined requests cost one system call, and a response never waits for the next request. Hyper's own
//! `pipeline_flush` guarantees neither: it holds responses back while half a request is in its buffer, lets them pile
//! up for a client that does not read, and loses its response to a head that can't be parsed.

use super::write_all::poll_write_all;
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most bytes that are buffered, beyond a single write. Further writes wait until the buffer is sent.
const MAX_PENDING_BYTES: usize = 16 * 1024;

/// A stream that buffers writes until [`WriteCoalescer::poll_send`] is called, or until the buffer is full.
///
/// Clones share the stream: hyper holds one, and the task that polls hyper the other. Only that task polls either, so
/// the lock is never contended.
#[derive(Debug)]
pub(crate) struct WriteCoalescer<S>(Arc<Mutex<CoalescerState<S>>>);

#[derive(Debug)]
struct CoalescerState<S> {
    stream: S,
    pending: Vec<u8>,
    /// How much of the buffer has been sent.
    sent: usize,
}

impl<S> Clone for WriteCoalescer<S> {
    fn clone(&self) -> WriteCoalescer<S> {
        WriteCoalescer(Arc::clone(&self.0))
    }
}

impl<S: AsyncWrite + Unpin> WriteCoalescer<S> {
    pub(crate) fn new(stream: S) -> WriteCoalescer<S> {
        WriteCoalescer(Arc::new(Mutex::new(CoalescerState { stream, pending: Vec::new(), sent: 0 })))
    }

    /// Sends all buffered bytes.
    pub(crate) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().poll_send(cx)
    }
}

impl<S: AsyncWrite + Unpin> CoalescerState<S> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.pending.is_empty() {
            ready!(poll_write_all(&mut self.stream, &self.pending, &mut self.sent, cx))?;
        }
        self.pending.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Ready once the buffer may take another write.
    fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.pending.len() < MAX_PENDING_BYTES { Poll::Ready(Ok(())) } else { self.poll_send(cx) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteCoalescer<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteCoalescer<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        ready!(state.poll_capacity(cx))?;
        let before = state.pending.len();
        for piece in pieces {
            state.pending.extend_from_slice(piece);
        }
        Poll::Ready(Ok(state.pending.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: the bytes are sent at the end of the poll.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        ready!(state.poll_send(cx))?;
        Pin::new(&mut state.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    async fn coalescer_and_peer() -> (WriteCoalescer<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (WriteCoalescer::new(listener.accept().await.unwrap().0), peer)
    }

    #[tokio::test]
    async fn writes_are_sent_together() {
        let (mut coalescer, mut peer) = coalescer_and_peer().await;
        coalescer.write_all(b"one, ").await.unwrap();
        coalescer.flush().await.unwrap();
        coalescer.write_all(b"two").await.unwrap();
        assert_eq!(coalescer.0.lock().pending, b"one, two");
        poll_fn(|cx| coalescer.poll_send(cx)).await.unwrap();
        let mut read = [0; 16];
        assert_eq!(peer.read(&mut read).await.unwrap(), 8, "both in one segment");
        coalescer.write_all(b", three").await.unwrap();
        coalescer.shutdown().await.unwrap();
        let mut rest = String::new();
        peer.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, ", three", "shutdown sends buffered bytes");
    }

    #[tokio::test]
    async fn the_buffer_is_bounded_for_a_peer_that_does_not_read() {
        let (mut coalescer, mut peer) = coalescer_and_peer().await;
        let piece: Vec<u8> = (0..=250).collect();
        let mut written = 0;
        // Until the socket buffers are full, and then the coalescer's.
        let fill = poll_fn(|cx| {
            while let Poll::Ready(length) = Pin::new(&mut coalescer).poll_write(cx, &piece) {
                written += length.unwrap();
            }
            Poll::Ready(())
        });
        tokio::task::unconstrained(fill).await;
        assert!(coalescer.0.lock().pending.capacity() < 4 * MAX_PENDING_BYTES);
        let mut read = vec![0; written];
        let (sent, received) =
            tokio::join!(poll_fn(|cx| coalescer.poll_send(cx)), peer.read_exact(&mut read));
        assert!(sent.is_ok() && received.is_ok());
        assert!(read.chunks(piece.len()).all(|chunk| chunk == piece), "nothing is lost or out of order");
    }
}

//! A connection's bytes.
//!
//! Whatever is written during one poll of a connection leaves together at the end of that poll: the answers to
//! pipelined requests cost one system call, and an answer never waits for the next request. Hyper's own
//! `pipeline_flush` does neither for sure: it holds answers back while half a request is in its buffer, lets them pile
//! up for a client that does not read, and loses its answer to a head that can't be parsed.

use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much is held back at most, beyond a single write. What is more goes out at once, or waits until it can.
const HELD_BYTES: usize = 16 * 1024;

/// A stream that sends what was written when [`WriteCoalescer::poll_send`] is called, or when too much has come together. A clone
/// is the same wire: hyper holds one, and whoever polls hyper the other. They are polled by one task, so the lock is
/// always free.
#[derive(Debug)]
pub(super) struct WriteCoalescer<S>(Arc<Mutex<HeldBack<S>>>);

#[derive(Debug)]
struct HeldBack<S> {
    stream: S,
    held: Vec<u8>,
    /// How much of what is held has been sent.
    sent: usize,
}

impl<S> Clone for WriteCoalescer<S> {
    fn clone(&self) -> WriteCoalescer<S> {
        WriteCoalescer(Arc::clone(&self.0))
    }
}

impl<S: AsyncWrite + Unpin> WriteCoalescer<S> {
    pub(super) fn new(stream: S) -> WriteCoalescer<S> {
        WriteCoalescer(Arc::new(Mutex::new(HeldBack { stream, held: Vec::new(), sent: 0 })))
    }

    /// Sends all that is held.
    pub(super) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().poll_send(cx)
    }
}

impl<S: AsyncWrite + Unpin> HeldBack<S> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.held.len() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.held[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        if !self.held.is_empty() {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        }
        self.held.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Waits until more may be held.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.held.len() < HELD_BYTES {
            true => Poll::Ready(Ok(())),
            false => self.poll_send(cx),
        }
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
        let mut line = self.0.lock();
        ready!(line.poll_room(cx))?;
        let before = line.held.len();
        for piece in pieces {
            line.held.extend_from_slice(piece);
        }
        Poll::Ready(Ok(line.held.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Says yes and waits: the end of the poll is near.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut line = self.0.lock();
        ready!(line.poll_send(cx))?;
        Pin::new(&mut line.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    async fn wire_and_peer() -> (WriteCoalescer<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (WriteCoalescer::new(listener.accept().await.unwrap().0), peer)
    }

    #[tokio::test]
    async fn what_is_written_leaves_together_when_it_is_sent() {
        let (mut wire, mut peer) = wire_and_peer().await;
        wire.write_all(b"one, ").await.unwrap();
        wire.flush().await.unwrap();
        wire.write_all(b"two").await.unwrap();
        assert_eq!(wire.0.lock().held, b"one, two");
        poll_fn(|cx| wire.poll_send(cx)).await.unwrap();
        let mut read = [0; 16];
        assert_eq!(peer.read(&mut read).await.unwrap(), 8, "both in one segment");
        wire.write_all(b", three").await.unwrap();
        wire.shutdown().await.unwrap();
        let mut rest = String::new();
        peer.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, ", three", "closing sends what is held");
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_fills_no_memory() {
        let (mut wire, mut peer) = wire_and_peer().await;
        let piece: Vec<u8> = (0..=250).collect();
        let mut written = 0;
        // Until the system's own buffers are full, and the wire's behind them.
        let fill = poll_fn(|cx| {
            while let Poll::Ready(length) = Pin::new(&mut wire).poll_write(cx, &piece) {
                written += length.unwrap();
            }
            Poll::Ready(())
        });
        tokio::task::unconstrained(fill).await;
        assert!(wire.0.lock().held.capacity() < 4 * HELD_BYTES);
        let mut read = vec![0; written];
        let (sent, received) = tokio::join!(poll_fn(|cx| wire.poll_send(cx)), peer.read_exact(&mut read));
        assert!(sent.is_ok() && received.is_ok());
        assert!(read.chunks(piece.len()).all(|chunk| chunk == piece), "nothing is lost or out of order");
    }
}

//! A stream with bytes put back in front of it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads `prefix` first, and then from `stream`. Writes go to the stream unchanged.
#[derive(Debug)]
pub(crate) struct PrefixedStream<S> {
    prefix: Vec<u8>,
    /// How much of the prefix has been read.
    position: usize,
    stream: S,
}

impl<S> PrefixedStream<S> {
    pub(crate) fn new(stream: S, prefix: Vec<u8>) -> PrefixedStream<S> {
        PrefixedStream { prefix, position: 0, stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PrefixedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let unread = &this.prefix[this.position..];
        if unread.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buffer);
        }
        let length = unread.len().min(buffer.remaining());
        buffer.put_slice(&unread[..length]);
        this.position += length;
        if this.position == this.prefix.len() {
            (this.prefix, this.position) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PrefixedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

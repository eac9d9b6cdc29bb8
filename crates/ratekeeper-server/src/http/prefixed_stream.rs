//! A stream some of whose bytes were read already, as if they had not been.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Gives `ahead` first, and then what `stream` gives. Writing goes straight to the stream.
#[derive(Debug)]
pub(crate) struct PrefixedStream<S> {
    ahead: Vec<u8>,
    /// How much of what is ahead has been read.
    read: usize,
    stream: S,
}

impl<S> PrefixedStream<S> {
    pub(crate) fn new(stream: S, ahead: Vec<u8>) -> PrefixedStream<S> {
        PrefixedStream { ahead, read: 0, stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PrefixedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rewind = &mut *self;
        let ahead = &rewind.ahead[rewind.read..];
        if ahead.is_empty() {
            return Pin::new(&mut rewind.stream).poll_read(cx, buffer);
        }
        let length = ahead.len().min(buffer.remaining());
        buffer.put_slice(&ahead[..length]);
        rewind.read += length;
        if rewind.read == rewind.ahead.len() {
            (rewind.ahead, rewind.read) = (Vec::new(), 0);
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

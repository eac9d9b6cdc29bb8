//! The read buffer of a connection: bytes received and not yet processed.
//!
//! One contiguous buffer that is read into and parsed in place. It starts small and doubles only when received bytes
//! fill it, so a client that announces a large body gets no memory before it sends one. An empty buffer shrinks to its
//! initial size, so thousands of idle connections stay small.

use super::buffer_pool;
use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// The initial size. A check takes some 200 bytes, so 40 of them fit.
const INITIAL_BYTES: usize = 8 * 1024;

/// A growable buffer between a stream and a parser.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    /// Always as long as the buffer; only `start..end` holds data.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadBuffer {
    pub(crate) fn new() -> ReadBuffer {
        ReadBuffer { bytes: vec![0; INITIAL_BYTES], start: 0, end: 0 }
    }

    /// The bytes received and not yet consumed.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Removes the first `bytes`.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end, "only received bytes are consumed");
    }

    /// Makes space for at least one more byte, and shrinks an empty buffer.
    pub(crate) fn reserve(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == 0 && self.bytes.len() > INITIAL_BYTES {
            buffer_pool::put(mem::replace(&mut self.bytes, vec![0; INITIAL_BYTES]));
        }
        if self.end == self.bytes.len() {
            self.grow();
        }
    }

    fn grow(&mut self) {
        let min_bytes = 2 * self.end;
        match buffer_pool::take(min_bytes) {
            Some(mut larger) => {
                larger.resize(larger.len().max(min_bytes), 0);
                larger[..self.end].copy_from_slice(&self.bytes);
                buffer_pool::put(mem::replace(&mut self.bytes, larger));
            }
            None => self.bytes.resize(min_bytes, 0),
        }
    }

    /// Reads once and returns the number of bytes; 0 at the end of the stream.
    pub(crate) fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut unfilled = ReadBuf::new(&mut self.bytes[self.end..]);
        ready!(Pin::new(stream).poll_read(cx, &mut unfilled))?;
        let read = unfilled.filled().len();
        self.end += read;
        Poll::Ready(Ok(read))
    }

    /// The bytes received and not consumed.
    pub(crate) fn into_unconsumed(mut self) -> Vec<u8> {
        self.bytes.truncate(self.end);
        self.bytes.drain(..self.start);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    async fn fill(buffer: &mut ReadBuffer, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            buffer.reserve();
            poll_fn(|cx| buffer.poll_fill(&mut bytes, cx)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn it_grows_when_full_and_shrinks_when_empty() {
        let mut buffer = ReadBuffer::new();
        let bytes: Vec<u8> = (0..=250).cycle().take(50_000).collect();
        fill(&mut buffer, &bytes).await;
        assert_eq!((buffer.filled(), buffer.bytes.len()), (&bytes[..], 64 * 1024));
        buffer.consume(49_990);
        buffer.reserve();
        assert_eq!((buffer.filled(), buffer.bytes.len()), (&bytes[49_990..], 64 * 1024));
        buffer.consume(10);
        buffer.reserve();
        assert!(buffer.is_empty());
        assert_eq!(buffer.bytes.capacity(), INITIAL_BYTES);
    }

    #[tokio::test]
    async fn unconsumed_bytes_are_returned() {
        let mut buffer = ReadBuffer::new();
        fill(&mut buffer, b"first rest").await;
        buffer.consume(6);
        assert_eq!(buffer.into_unconsumed(), b"rest");
    }
}

//! Bytes that a client has sent and nobody has answered yet.
//!
//! One stretch of memory that is read into and answered from. It begins small and doubles only when what has come fills
//! it, so whoever announces much gets nothing for it before sending much. Once it is empty it goes back to its first
//! size: thousands of idle connections stay small.

use super::buffer_pool;
use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// How much is read at once. A check takes some 200 bytes, so that 40 of them fit.
const FIRST_BYTES: usize = 8 * 1024;

#[derive(Debug)]
pub(crate) struct ReadBuffer {
    /// As long as it may be filled. What was not filled has no meaning.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadBuffer {
    pub(crate) fn new() -> ReadBuffer {
        ReadBuffer { bytes: vec![0; FIRST_BYTES], start: 0, end: 0 }
    }

    /// What has come and was not yet taken.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Forgets the first `bytes`.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end, "nothing is taken that has not come");
    }

    /// Makes sure that something can be read.
    pub(crate) fn make_room(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == 0 && self.bytes.len() > FIRST_BYTES {
            buffer_pool::give(mem::replace(&mut self.bytes, vec![0; FIRST_BYTES]));
        }
        if self.end == self.bytes.len() {
            self.grow();
        }
    }

    fn grow(&mut self) {
        let least = 2 * self.end;
        match buffer_pool::take(least) {
            Some(mut larger) => {
                larger.resize(larger.len().max(least), 0);
                larger[..self.end].copy_from_slice(&self.bytes);
                buffer_pool::give(mem::replace(&mut self.bytes, larger));
            }
            None => self.bytes.resize(least, 0),
        }
    }

    /// Reads what there is; gives how much that was, and 0 at the end.
    pub(crate) fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut room = ReadBuf::new(&mut self.bytes[self.end..]);
        ready!(Pin::new(stream).poll_read(cx, &mut room))?;
        let read = room.filled().len();
        self.end += read;
        Poll::Ready(Ok(read))
    }

    /// What is left, for somebody else.
    pub(super) fn into_rest(mut self) -> Vec<u8> {
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
            buffer.make_room();
            poll_fn(|cx| buffer.poll_fill(&mut bytes, cx)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn it_grows_with_what_comes_and_shrinks_when_all_is_taken() {
        let mut buffer = ReadBuffer::new();
        let bytes: Vec<u8> = (0..=250).cycle().take(50_000).collect();
        fill(&mut buffer, &bytes).await;
        assert_eq!((buffer.filled(), buffer.bytes.len()), (&bytes[..], 64 * 1024));
        buffer.take(49_990);
        buffer.make_room();
        assert_eq!((buffer.filled(), buffer.bytes.len()), (&bytes[49_990..], 64 * 1024));
        buffer.take(10);
        buffer.make_room();
        assert!(buffer.is_empty());
        assert_eq!(buffer.bytes.capacity(), FIRST_BYTES);
    }

    #[tokio::test]
    async fn what_is_left_is_handed_on() {
        let mut buffer = ReadBuffer::new();
        fill(&mut buffer, b"taken left").await;
        buffer.take(6);
        assert_eq!(buffer.into_rest(), b"left");
    }
}

//! Writes a whole buffer to a stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// Writes all bytes from `sent` on, and flushes them. `sent` grows with every write.
pub(super) fn poll_write_all<S: AsyncWrite + Unpin>(
    stream: &mut S,
    bytes: &[u8],
    sent: &mut usize,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    while *sent < bytes.len() {
        match ready!(Pin::new(&mut *stream).poll_write(cx, &bytes[*sent..]))? {
            0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => *sent += written,
        }
    }
    Pin::new(stream).poll_flush(cx)
}

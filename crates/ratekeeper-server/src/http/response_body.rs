//! The body of a response that hyper sends.
//!
//! Hyper takes it frame by frame, as the client's flow-control window allows. The permits that a response holds are
//! released after the last frame, so a client that reads slowly keeps its own permits busy.

use crate::conn::{BodyPermit, LongResponse};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The most bytes of a frame: the default maximum of HTTP/2.
const MAX_FRAME_BYTES: usize = 16 * 1024;

/// A response body in memory, and the permits to hold until it is sent.
#[derive(Debug, Default)]
pub(super) struct HttpBody {
    bytes: Bytes,
    _guard: Option<SendGuard>,
}

/// The permits held until a response is sent: its long-response permit, and that of the request's body if it was large.
pub(super) type SendGuard = (LongResponse, Option<BodyPermit>);

impl HttpBody {
    pub(super) fn new(bytes: Bytes) -> HttpBody {
        HttpBody { bytes, _guard: None }
    }

    /// Holds `guard` until the body is sent.
    pub(super) fn with_guard(self, guard: Option<SendGuard>) -> HttpBody {
        HttpBody { _guard: guard, ..self }
    }
}

impl Body for HttpBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match self.bytes.len() {
            0 => return Poll::Ready(None),
            1..=MAX_FRAME_BYTES => std::mem::take(&mut self.bytes),
            _ => self.bytes.split_to(MAX_FRAME_BYTES),
        };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn a_body_is_split_into_frames() {
        for length in [0, 1, MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, 5 * MAX_FRAME_BYTES] {
            let bytes: Vec<u8> = (0..=250).cycle().take(length).collect();
            let mut body = HttpBody::new(bytes.clone().into());
            assert_eq!(body.size_hint().exact(), Some(length as u64));
            let mut sent = Vec::new();
            while let Some(Ok(frame)) = body.frame().await {
                let piece = frame.into_data().unwrap();
                assert!((1..=MAX_FRAME_BYTES).contains(&piece.len()));
                sent.extend_from_slice(&piece);
            }
            assert!(body.is_end_stream() && sent == bytes, "{length}");
        }
    }
}

//! The body of an answer that hyper sends.
//!
//! It is given away piece by piece, the next when the client has room for it, and what is held for its sake is let go
//! with the last: until then it counts as the client's, whom it keeps waiting.

use super::body_permits::BodyPermit;
use super::long_responses::LongResponse;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The most that is given away at once: what fits into a frame of HTTP/2.
const PIECE_BYTES: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(super) struct HttpBody {
    bytes: Bytes,
    _held: Option<HttpBodyHold>,
}

/// What is held until an answer is sent: its turn, and the place of the body it answers if that was a large one.
pub(super) type HttpBodyHold = (LongResponse, Option<BodyPermit>);

impl HttpBody {
    pub(super) fn new(bytes: Bytes) -> HttpBody {
        HttpBody { bytes, _held: None }
    }

    /// The same, and this is held until it is sent.
    pub(super) fn holding(self, held: Option<HttpBodyHold>) -> HttpBody {
        HttpBody { _held: held, ..self }
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
            1..=PIECE_BYTES => std::mem::take(&mut self.bytes),
            _ => self.bytes.split_to(PIECE_BYTES),
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
    async fn it_is_given_away_in_pieces() {
        for length in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES] {
            let bytes: Vec<u8> = (0..=250).cycle().take(length).collect();
            let mut load = HttpBody::new(bytes.clone().into());
            assert_eq!(load.size_hint().exact(), Some(length as u64));
            let mut given = Vec::new();
            while let Some(Ok(frame)) = load.frame().await {
                let piece = frame.into_data().unwrap();
                assert!((1..=PIECE_BYTES).contains(&piece.len()));
                given.extend_from_slice(&piece);
            }
            assert!(load.is_end_stream() && given == bytes, "{length}");
        }
    }
}

//! Reads a body that hyper receives, within the budget for unfinished bodies.

use super::body_budget::HeldBytes;
use super::body_permits::{BodyPermit, BodyPermits, SMALL_BODY_BYTES};
use hyper::body::{Body, Bytes, Incoming};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// The part of a body that has been received. A body that arrives in one piece, as nearly all do, is not copied.
pub(crate) struct BodyReader<'p> {
    permits: &'p BodyPermits,
    held: HeldBytes,
    whole: Bytes,
    pieces: Vec<u8>,
    permit: Option<BodyPermit>,
}

/// Why the rest of a body can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyReadError {
    /// The client cut it short.
    Truncated,
    /// It has to be awaited, and the budget can't hold what has been received.
    OverBudget,
}

impl<'p> BodyReader<'p> {
    pub(crate) fn new(permits: &'p BodyPermits) -> BodyReader<'p> {
        let held = permits.held_bytes();
        BodyReader { permits, held, whole: Bytes::new(), pieces: Vec::new(), permit: None }
    }

    /// Waits for the next piece; `None` is the end. Meanwhile the bytes received so far count against the budget.
    pub(crate) async fn next(&mut self, body: &mut Incoming) -> Result<Option<Bytes>, BodyReadError> {
        let received = self.whole.len() + self.pieces.capacity();
        loop {
            let frame = poll_fn(|cx| match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(frame) => Poll::Ready(Ok(frame)),
                Poll::Pending if self.held.grow_to(received) => Poll::Pending,
                Poll::Pending => Poll::Ready(Err(BodyReadError::OverBudget)),
            });
            let frame = frame.await.inspect_err(|_| self.permits.count_rejected())?;
            let Some(frame) = frame else { return Ok(None) };
            // Trailers are ignored.
            if let Ok(piece) = frame.map_err(|_| BodyReadError::Truncated)?.into_data() {
                return Ok(Some(piece));
            }
        }
    }

    /// Appends a piece.
    pub(crate) fn push(&mut self, piece: Bytes) {
        if self.received().is_empty() {
            self.whole = piece;
        } else {
            self.pieces.extend_from_slice(&std::mem::take(&mut self.whole));
            self.pieces.extend_from_slice(&piece);
        }
    }

    /// The bytes received so far.
    pub(crate) fn received(&self) -> &[u8] {
        if self.pieces.is_empty() { &self.whole } else { &self.pieces }
    }

    /// Takes a permit if a body of `bytes` needs one. Returns `false` if none is free.
    pub(crate) fn permit_for(&mut self, bytes: usize) -> bool {
        if bytes > SMALL_BODY_BYTES && self.permit.is_none() {
            self.permit = self.permits.try_acquire();
            return self.permit.is_some();
        }
        true
    }

    /// The body, and its permit if it is large, to be kept as long as the body.
    pub(crate) fn finish(self) -> (Bytes, Option<BodyPermit>) {
        (if self.pieces.is_empty() { self.whole } else { self.pieces.into() }, self.permit)
    }
}

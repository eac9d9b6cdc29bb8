//! Reading and draining request bodies with hyper.

use super::error::HttpError;
use crate::conn::{BODY_TIMEOUT, BodyPermit, BodyPermits, BodyReadError, BodyReader, SMALL_BODY_BYTES};
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Incoming};
use std::time::Duration;
use tokio::time::timeout;

/// How much of a body is drained, and for how long, if its request is rejected by its head. An HTTP/2 client that gets
/// a response before it has sent its body also gets a stream reset, and some clients treat that as an error and drop
/// the response.
const MAX_REJECTED_BODY_BYTES: u64 = SMALL_BODY_BYTES as u64;
const REJECTED_BODY_TIMEOUT: Duration = Duration::from_secs(1);
/// How much of a body that is too large is drained. Most clients read no response before they have sent the whole body,
/// and closing earlier would lose it.
const MAX_DRAINED_BYTES: u64 = 1024 * 1024;
/// The least that a drained frame counts for.
const MIN_FRAME_BYTES: u64 = 64;

/// Reads a body of at most `max_bytes` within [`BODY_TIMEOUT`]. A large body comes with its permit, to be kept as long
/// as the body.
pub(super) async fn read(
    body: Incoming,
    max_bytes: usize,
    permits: &BodyPermits,
) -> Result<(Bytes, Option<BodyPermit>), HttpError> {
    timeout(BODY_TIMEOUT, read_all(body, max_bytes, permits)).await.map_err(|_| HttpError::BodyTimeout)?
}

/// Reads a body without a timeout.
async fn read_all(
    mut body: Incoming,
    max_bytes: usize,
    permits: &BodyPermits,
) -> Result<(Bytes, Option<BodyPermit>), HttpError> {
    if body.size_hint().lower() > max_bytes as u64 {
        return Err(drain(body, HttpError::TooLarge { most: max_bytes }).await);
    }
    let mut reader = BodyReader::new(permits);
    loop {
        let piece = match reader.next(&mut body).await {
            Ok(Some(piece)) => piece,
            Ok(None) => return Ok(reader.finish()),
            Err(BodyReadError::Truncated) => return Err(HttpError::BodyTruncated),
            Err(BodyReadError::OverBudget) => {
                drop(reader);
                drain_briefly(MAX_DRAINED_BYTES, body).await;
                return Err(HttpError::Busy);
            }
        };
        let length = reader.received().len() + piece.len();
        if length > max_bytes {
            return Err(drain(body, HttpError::TooLarge { most: max_bytes }).await);
        }
        if !reader.permit_for(length) {
            return Err(drain(body, HttpError::Busy).await);
        }
        reader.push(piece);
    }
}

/// Drains the body of a request that was rejected by its head, if it is small and arrives soon.
pub(super) async fn drain_rejected(body: Incoming) {
    drain_briefly(MAX_REJECTED_BODY_BYTES, body).await;
}

/// Drains up to `max_bytes` of a body for a short time. A client that takes longer gets its response anyway.
async fn drain_briefly(max_bytes: u64, body: Incoming) {
    let _ = timeout(REJECTED_BODY_TIMEOUT, drain_up_to(max_bytes, body)).await;
}

/// Drains a body up to a bound, so that the client finishes sending and then reads `error`.
async fn drain(body: Incoming, error: HttpError) -> HttpError {
    drain_up_to(MAX_DRAINED_BYTES, body).await;
    error
}

async fn drain_up_to(mut left: u64, mut body: Incoming) {
    // A body that announces more is not drained at all: a client that sent `Expect` gets its response at once.
    while body.size_hint().lower() <= left {
        let Some(Ok(frame)) = body.frame().await else { break };
        // A chunked body announces no length and may be endless, so received bytes are counted. A frame of one byte is
        // as much work as a larger one.
        let received = frame.data_ref().map_or(0, |data| data.len() as u64);
        let Some(rest) = left.checked_sub(received.max(MIN_FRAME_BYTES)) else { break };
        left = rest;
    }
}

//! Bodies that hyper reads.

use super::body_budget::HeldBytes;
use super::body_permits::{BodyPermit, BodyPermits, SMALL_BYTES};
use super::error::HttpError;
use super::timeouts::BODY_PATIENCE;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::timeout;

/// How much of a body is taken in whose request is refused for its head, and for how long. A client of HTTP/2 that is answered
/// before it has sent all is also told that the rest is not wanted, and some take that for a failure and drop the answer.
const MAX_UNWANTED_BYTES: u64 = SMALL_BYTES as u64;
const UNWANTED_PATIENCE: Duration = Duration::from_secs(1);
/// How much of a body that is too large is still taken in. Most clients read no answer before they have sent all, and
/// closing in their face would lose it.
const MAX_DRAINED_BYTES: u64 = 1024 * 1024;
/// What a frame of it counts for at least.
const LEAST_DRAINED_BYTES: u64 = 64;

/// Takes in a body within bounds of size and time. A large one keeps its place for as long as the second is held.
pub(super) async fn read(
    body: Incoming,
    most: usize,
    room: &BodyPermits,
) -> Result<(Bytes, Option<BodyPermit>), HttpError> {
    timeout(BODY_PATIENCE, read_slowly(body, most, room)).await.map_err(|_| HttpError::TooSlow)?
}

/// Takes in a body. One that came in one piece, as nearly all do, is not copied.
async fn read_slowly(
    mut body: Incoming,
    most: usize,
    room: &BodyPermits,
) -> Result<(Bytes, Option<BodyPermit>), HttpError> {
    if body.size_hint().lower() > most as u64 {
        return Err(drain(body, HttpError::TooLarge { most }).await);
    }
    let mut place = None;
    let mut whole = Bytes::new();
    let mut pieces = Vec::new();
    let mut held = room.hold();
    loop {
        let come = whole.len() + pieces.capacity();
        let frame = match next_frame(&mut body, &mut held, come).await {
            BodyPart::Frame(Some(frame)) => frame.map_err(|_| HttpError::CutOff)?,
            BodyPart::Frame(None) => break,
            BodyPart::NoRoom => {
                room.refuse();
                drop((held, whole, pieces));
                drain_soon(MAX_DRAINED_BYTES, body).await;
                return Err(HttpError::Busy);
            }
        };
        // Trailers say nothing about a check.
        let Ok(piece) = frame.into_data() else { continue };
        let length = whole.len() + pieces.len() + piece.len();
        if length > most {
            return Err(drain(body, HttpError::TooLarge { most }).await);
        }
        if length > SMALL_BYTES && place.is_none() {
            place = room.place();
            if place.is_none() {
                return Err(drain(body, HttpError::Busy).await);
            }
        }
        if whole.is_empty() && pieces.is_empty() {
            whole = piece;
        } else {
            pieces.extend_from_slice(&std::mem::take(&mut whole));
            pieces.extend_from_slice(&piece);
        }
    }
    Ok((if pieces.is_empty() { whole } else { pieces.into() }, place))
}

/// What comes next of a body.
pub(crate) enum BodyPart {
    /// A frame, or the end.
    Frame(Option<Result<Frame<Bytes>, hyper::Error>>),
    /// It would have to be waited for, and there is no room for what has come.
    NoRoom,
}

/// Waits for the next frame of a body, of which `come` bytes are here and count for as long as that takes.
pub(crate) async fn next_frame(body: &mut Incoming, held: &mut HeldBytes, come: usize) -> BodyPart {
    poll_fn(|cx| match Pin::new(&mut *body).poll_frame(cx) {
        Poll::Ready(frame) => Poll::Ready(BodyPart::Frame(frame)),
        Poll::Pending if held.grow_to(come) => Poll::Pending,
        Poll::Pending => Poll::Ready(BodyPart::NoRoom),
    })
    .await
}

/// Takes in the body of a request that is refused for its head, if it is small and comes soon.
pub(super) async fn drain_unwanted(body: Incoming) {
    drain_soon(MAX_UNWANTED_BYTES, body).await;
}

/// Takes in a body, up to so many bytes and for a short time. A client that takes longer is answered all the same.
async fn drain_soon(most: u64, body: Incoming) {
    let _ = timeout(UNWANTED_PATIENCE, drain_up_to(most, body)).await;
}

/// Lets the client finish sending, within reason, so that it reads why.
async fn drain(body: Incoming, fault: HttpError) -> HttpError {
    drain_up_to(MAX_DRAINED_BYTES, body).await;
    fault
}

async fn drain_up_to(mut left: u64, mut body: Incoming) {
    // What announces that it is longer is not even begun: a client that waits for leave to send is told at once.
    while body.size_hint().lower() <= left {
        let Some(Ok(frame)) = body.frame().await else { break };
        // A body in chunks announces nothing and need not end, so what has come is counted. A frame of a byte is as much
        // work as one of many.
        let come = frame.data_ref().map_or(0, |data| data.len() as u64);
        let Some(rest) = left.checked_sub(come.max(LEAST_DRAINED_BYTES)) else { break };
        left = rest;
    }
}

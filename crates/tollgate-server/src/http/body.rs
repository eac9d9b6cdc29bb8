//! Bodies that hyper reads.

use super::fault::Fault;
use super::patience::BODY_PATIENCE;
use super::room::{Place, Room, SMALL_BYTES};
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Incoming};
use tokio::time::timeout;

/// How much of a body that is too large is still taken in. Most clients read no answer before they have sent all, and
/// closing in their face would lose it.
const MAX_DRAINED_BYTES: u64 = 1024 * 1024;
/// What a frame of it counts for at least.
const LEAST_DRAINED_BYTES: u64 = 64;

/// Takes in a body within bounds of size and time. A large one keeps its place for as long as the second is held.
pub(super) async fn read(body: Incoming, most: usize, room: &Room) -> Result<(Bytes, Option<Place>), Fault> {
    timeout(BODY_PATIENCE, read_slowly(body, most, room)).await.map_err(|_| Fault::TooSlow)?
}

/// Takes in a body. One that came in one piece, as nearly all do, is not copied.
async fn read_slowly(mut body: Incoming, most: usize, room: &Room) -> Result<(Bytes, Option<Place>), Fault> {
    if body.size_hint().lower() > most as u64 {
        return Err(drain(body, Fault::TooLarge { most }).await);
    }
    let mut place = None;
    let mut whole = Bytes::new();
    let mut pieces = Vec::new();
    while let Some(frame) = body.frame().await {
        // Trailers say nothing about a check.
        let Ok(piece) = frame.map_err(|_| Fault::CutOff)?.into_data() else { continue };
        let length = whole.len() + pieces.len() + piece.len();
        if length > most {
            return Err(drain(body, Fault::TooLarge { most }).await);
        }
        if length > SMALL_BYTES && place.is_none() {
            place = room.place();
            if place.is_none() {
                return Err(drain(body, Fault::Busy).await);
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

/// Lets the client finish sending, within reason, so that it reads why.
async fn drain(mut body: Incoming, fault: Fault) -> Fault {
    let mut left = MAX_DRAINED_BYTES;
    // What announces that it is longer is not even begun: a client that waits for leave to send is told at once.
    while body.size_hint().lower() <= left {
        let Some(Ok(frame)) = body.frame().await else { break };
        // A body in chunks announces nothing and need not end, so what has come is counted. A frame of a byte is as much
        // work as one of many.
        let come = frame.data_ref().map_or(0, |data| data.len() as u64);
        let Some(rest) = left.checked_sub(come.max(LEAST_DRAINED_BYTES)) else { break };
        left = rest;
    }
    fault
}

//! Bodies that hyper reads.

use super::fault::Fault;
use super::patience::BODY_PATIENCE;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Incoming};
use tokio::time::timeout;

/// The most bytes of a body. A check with the longest key has a tenth of it.
pub(super) const MAX_BODY_BYTES: usize = 64 * 1024;
/// How much of a body that is too large is still taken in. Most clients read no answer before they have sent all, and
/// closing in their face would lose it.
const MAX_DRAINED_BYTES: u64 = 1024 * 1024;

/// Takes in a body within bounds of size and time.
pub(super) async fn read(body: Incoming) -> Result<Bytes, Fault> {
    timeout(BODY_PATIENCE, read_slowly(body)).await.map_err(|_| Fault::TooSlow)?
}

/// Takes in a body. One that came in one piece, as nearly all do, is not copied.
async fn read_slowly(mut body: Incoming) -> Result<Bytes, Fault> {
    if body.size_hint().lower() > MAX_BODY_BYTES as u64 {
        return Err(drain(body).await);
    }
    let mut whole = Bytes::new();
    let mut pieces = Vec::new();
    while let Some(frame) = body.frame().await {
        // Trailers say nothing about a check.
        let Ok(piece) = frame.map_err(|_| Fault::CutOff)?.into_data() else { continue };
        if whole.len() + pieces.len() + piece.len() > MAX_BODY_BYTES {
            return Err(drain(body).await);
        }
        if whole.is_empty() && pieces.is_empty() {
            whole = piece;
        } else {
            pieces.extend_from_slice(&std::mem::take(&mut whole));
            pieces.extend_from_slice(&piece);
        }
    }
    Ok(if pieces.is_empty() { whole } else { pieces.into() })
}

/// Lets the client finish sending, within reason, so that it reads why.
async fn drain(mut body: Incoming) -> Fault {
    let mut left = MAX_DRAINED_BYTES;
    // What announces that it is longer is not even begun: a client that waits for leave to send is told at once.
    while body.size_hint().lower() <= left {
        let Some(Ok(frame)) = body.frame().await else { break };
        left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len() as u64));
    }
    Fault::TooLarge { most: MAX_BODY_BYTES }
}

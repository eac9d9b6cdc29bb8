//! The message of a call that has one.

use super::frame;
use crate::http::{BODY_PATIENCE, BodyPart, BodyPermit, BodyPermits, SMALL_BYTES, next_frame};
use hyper::body::{Bytes, Incoming};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use tokio::time::timeout;
use tonic::Status;

/// The message of a call. A large one keeps its place for as long as it is held.
#[derive(Debug)]
pub(super) struct MessageBody {
    body: Bytes,
    pub(super) place: Option<BodyPermit>,
}

impl MessageBody {
    /// Takes in a body of a single message, within bounds of size and time.
    pub(super) async fn read(body: Incoming, most: usize, room: &BodyPermits) -> Result<MessageBody, Status> {
        let mut reading = pin!(MessageBody::read_slowly(body, most, room));
        // Nearly always all of it is there already, and a timer would cost more than taking it in.
        let at_once = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await;
        match at_once {
            Poll::Ready(read) => read,
            Poll::Pending => timeout(BODY_PATIENCE, reading).await.unwrap_or_else(|_| Err(too_slow())),
        }
    }

    /// Takes in a body. One that came in one piece, as nearly all do, is not copied.
    async fn read_slowly(mut body: Incoming, most: usize, room: &BodyPermits) -> Result<MessageBody, Status> {
        let mut place = None;
        let mut whole = Bytes::new();
        let mut pieces = Vec::new();
        let mut held = room.hold();
        loop {
            let come = whole.len() + pieces.capacity();
            let frame = match next_frame(&mut body, &mut held, come).await {
                BodyPart::Frame(Some(frame)) => {
                    frame.map_err(|_| Status::cancelled("the call was broken off"))?
                }
                BodyPart::Frame(None) => break,
                BodyPart::NoRoom => {
                    room.refuse();
                    return Err(busy());
                }
            };
            // Trailers say nothing about a check.
            let Ok(piece) = frame.into_data() else { continue };
            if whole.is_empty() && pieces.is_empty() {
                whole = piece;
            } else {
                pieces.extend_from_slice(&std::mem::take(&mut whole));
                pieces.extend_from_slice(&piece);
            }
            let come = if pieces.is_empty() { &whole[..] } else { &pieces[..] };
            // It also tells from a message's head whether there is any use in waiting for the rest.
            if let Some((_, [_, ..])) = frame::split(come, most)? {
                return Err(Status::invalid_argument("there is more than one message: send one"));
            }
            if come.len() > SMALL_BYTES && place.is_none() {
                place = Some(room.place().ok_or_else(busy)?);
            }
        }
        let body = if pieces.is_empty() { whole } else { pieces.into() };
        match frame::split(&body, most)? {
            Some(_) => Ok(MessageBody { body, place }),
            None => Err(Status::invalid_argument("there is no whole message: send one")),
        }
    }

    /// The message.
    pub(super) fn message(&self) -> &[u8] {
        &self.body[frame::HEAD_BYTES..]
    }
}

fn too_slow() -> Status {
    Status::deadline_exceeded("the message did not come in time: send it right behind the head")
}

fn busy() -> Status {
    Status::resource_exhausted("there are too many large messages at the moment: send it again, or in parts")
}

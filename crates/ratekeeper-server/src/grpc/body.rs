//! Reads the body of a unary call.

use super::frame;
use crate::conn::{BODY_TIMEOUT, BodyPermit, BodyPermits, SMALL_BODY_BYTES};
use crate::http::{BodyPart, next_frame};
use hyper::body::{Bytes, Incoming};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use tokio::time::timeout;
use tonic::Status;

/// The message of a unary call, and the permit of a large one.
#[derive(Debug)]
pub(super) struct MessageBody {
    body: Bytes,
    pub(super) permit: Option<BodyPermit>,
}

impl MessageBody {
    /// Reads a body of exactly one message of at most `max_bytes`, within the body timeout.
    pub(super) async fn read(
        body: Incoming,
        max_bytes: usize,
        permits: &BodyPermits,
    ) -> Result<MessageBody, Status> {
        let mut reading = pin!(MessageBody::read_to_end(body, max_bytes, permits));
        // Nearly always the whole body has arrived already, and a timer would cost more than reading it.
        let first_poll = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await;
        match first_poll {
            Poll::Ready(read) => read,
            Poll::Pending => timeout(BODY_TIMEOUT, reading).await.unwrap_or_else(|_| Err(too_slow())),
        }
    }

    /// Reads a body. One that arrives in one piece, as nearly all do, is not copied.
    async fn read_to_end(
        mut body: Incoming,
        max_bytes: usize,
        permits: &BodyPermits,
    ) -> Result<MessageBody, Status> {
        let mut permit = None;
        let mut whole = Bytes::new();
        let mut pieces = Vec::new();
        let mut held = permits.held_bytes();
        loop {
            let held_bytes = whole.len() + pieces.capacity();
            let frame = match next_frame(&mut body, &mut held, held_bytes).await {
                BodyPart::Frame(Some(frame)) => {
                    frame.map_err(|_| Status::cancelled("the call was cancelled"))?
                }
                BodyPart::Frame(None) => break,
                BodyPart::OverBudget => {
                    permits.count_rejected();
                    return Err(busy());
                }
            };
            // Trailers carry no part of a message.
            let Ok(piece) = frame.into_data() else { continue };
            if whole.is_empty() && pieces.is_empty() {
                whole = piece;
            } else {
                pieces.extend_from_slice(&std::mem::take(&mut whole));
                pieces.extend_from_slice(&piece);
            }
            let received = if pieces.is_empty() { &whole[..] } else { &pieces[..] };
            // This also rejects a message that is too long or compressed as soon as its header has arrived.
            if let Some((_, [_, ..])) = frame::split(received, max_bytes)? {
                return Err(Status::invalid_argument("there is more than one message: send one"));
            }
            if received.len() > SMALL_BODY_BYTES && permit.is_none() {
                permit = Some(permits.try_acquire().ok_or_else(busy)?);
            }
        }
        let body = if pieces.is_empty() { whole } else { pieces.into() };
        match frame::split(&body, max_bytes)? {
            Some(_) => Ok(MessageBody { body, permit }),
            None => Err(Status::invalid_argument("there is no whole message: send one")),
        }
    }

    /// The message without its frame header.
    pub(super) fn message(&self) -> &[u8] {
        &self.body[frame::HEADER_BYTES..]
    }
}

fn too_slow() -> Status {
    Status::deadline_exceeded("the message did not arrive in time: send it right after the headers")
}

fn busy() -> Status {
    Status::resource_exhausted("too many large messages at the moment: send it again, or in parts")
}

//! Reads the body of a unary call.

use super::frame;
use crate::conn::{BODY_TIMEOUT, BodyPermit, BodyPermits, BodyReadError, BodyReader};
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

    async fn read_to_end(
        mut body: Incoming,
        max_bytes: usize,
        permits: &BodyPermits,
    ) -> Result<MessageBody, Status> {
        let mut reader = BodyReader::new(permits);
        while let Some(piece) = reader.next(&mut body).await? {
            reader.push(piece);
            // This also rejects a message that is too long or compressed as soon as its header has arrived.
            if let Some((_, [_, ..])) = frame::split(reader.received(), max_bytes)? {
                return Err(Status::invalid_argument("there is more than one message: send one"));
            }
            if !reader.permit_for(reader.received().len()) {
                return Err(busy());
            }
        }
        match frame::split(reader.received(), max_bytes)? {
            Some(_) => {
                let (body, permit) = reader.finish();
                Ok(MessageBody { body, permit })
            }
            None => Err(Status::invalid_argument("there is no whole message: send one")),
        }
    }

    /// The message without its frame header.
    pub(super) fn message(&self) -> &[u8] {
        &self.body[frame::HEADER_BYTES..]
    }
}

impl From<BodyReadError> for Status {
    fn from(error: BodyReadError) -> Status {
        match error {
            BodyReadError::Truncated => Status::cancelled("the call was cancelled"),
            BodyReadError::OverBudget => busy(),
        }
    }
}

fn too_slow() -> Status {
    Status::deadline_exceeded("the message did not arrive in time: send it right after the headers")
}

fn busy() -> Status {
    Status::resource_exhausted("too many large messages at the moment: send it again, or in parts")
}

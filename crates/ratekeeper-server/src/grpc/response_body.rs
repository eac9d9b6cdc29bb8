//! The body of an answer: messages, and behind them how the call went.

use crate::http::{BodyPermit, LongResponse};
use hyper::HeaderMap;
use hyper::body::{Body, Bytes, Frame};
use hyper::header::HeaderValue;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;

/// The most that is given away at once: what fits into a frame of HTTP/2.
const PIECE_BYTES: usize = 16 * 1024;

/// The body of an answer.
#[derive(Default)]
pub(super) enum GrpcBody {
    /// The head says it all.
    #[default]
    Empty,
    /// One message, as far as it is not sent yet, and that all went well.
    Message(Bytes, Option<GrpcBodyHold>),
    /// Messages for as long as there are, and what became of them.
    Stream(Pin<Box<dyn Body<Data = Bytes, Error = Status> + Send>>),
}

/// What is held until an answer is sent: its turn, and the place of what it answers if that was large.
pub(super) type GrpcBodyHold = (LongResponse, Option<BodyPermit>);

impl Body for GrpcBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut *self {
            GrpcBody::Empty => Poll::Ready(None),
            GrpcBody::Message(bytes, held) => Poll::Ready(Some(Ok(match bytes.len() {
                0 => {
                    *self = GrpcBody::Empty;
                    Frame::trailers(success())
                }
                1..=PIECE_BYTES => {
                    *held = None;
                    Frame::data(std::mem::take(bytes))
                }
                _ => Frame::data(bytes.split_to(PIECE_BYTES)),
            }))),
            GrpcBody::Stream(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            GrpcBody::Empty => true,
            GrpcBody::Message(..) => false,
            GrpcBody::Stream(body) => body.is_end_stream(),
        }
    }
}

/// What stands behind the messages of a call that went well.
pub(super) fn success() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

/// What stands behind the messages of a call that did not.
pub(super) fn failure(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    // Nothing of ours has characters that a header could not carry, once it is escaped.
    if status.add_header(&mut trailers).is_err() {
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("13"));
    }
    trailers
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn a_message_is_given_away_in_pieces_and_then_how_it_went() {
        for length in [1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES] {
            let bytes: Vec<u8> = (0..=250).cycle().take(length).collect();
            let mut load = GrpcBody::Message(bytes.clone().into(), None);
            let mut given = Vec::new();
            let trailers = loop {
                assert!(!load.is_end_stream());
                match load.frame().await.unwrap().unwrap().into_data() {
                    Ok(piece) => given.extend_from_slice(&piece),
                    Err(frame) => break frame.into_trailers().unwrap(),
                }
            };
            assert!(given == bytes && trailers["grpc-status"] == "0" && load.is_end_stream(), "{length}");
        }
    }
}

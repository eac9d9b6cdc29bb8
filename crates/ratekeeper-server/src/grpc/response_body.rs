//! The body of a response: messages, followed by trailers with the status of the call.

use crate::conn::{BodyPermit, LongResponse};
use hyper::HeaderMap;
use hyper::body::{Body, Bytes, Frame};
use hyper::header::HeaderValue;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;

/// The maximum size of a data frame: the default of HTTP/2.
const MAX_FRAME_BYTES: usize = 16 * 1024;

/// The body of a response.
#[derive(Default)]
pub(super) enum GrpcBody {
    /// No body: the status is in the headers.
    #[default]
    Empty,
    /// The unsent part of one message, followed by the status `OK`.
    Message(Bytes, Option<GrpcBodyHold>),
    /// A stream of messages, followed by its status.
    Stream(Pin<Box<dyn Body<Data = Bytes, Error = Status> + Send>>),
}

/// Permits held until a response is sent: that of a long response, and that of the request if it was large.
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
                    Frame::trailers(ok_trailers())
                }
                1..=MAX_FRAME_BYTES => {
                    *held = None;
                    Frame::data(std::mem::take(bytes))
                }
                _ => Frame::data(bytes.split_to(MAX_FRAME_BYTES)),
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

/// The trailers of a successful call.
pub(super) fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

/// The trailers of a failed call.
pub(super) fn error_trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    // Does not happen: escaped messages have no characters that a header can't carry. 13 is INTERNAL.
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
    async fn a_message_is_sent_in_frames_and_then_the_trailers() {
        for length in [1, MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, 5 * MAX_FRAME_BYTES] {
            let bytes: Vec<u8> = (0..=250).cycle().take(length).collect();
            let mut body = GrpcBody::Message(bytes.clone().into(), None);
            let mut sent = Vec::new();
            let trailers = loop {
                assert!(!body.is_end_stream());
                match body.frame().await.unwrap().unwrap().into_data() {
                    Ok(piece) => sent.extend_from_slice(&piece),
                    Err(frame) => break frame.into_trailers().unwrap(),
                }
            };
            assert!(sent == bytes && trailers["grpc-status"] == "0" && body.is_end_stream(), "{length}");
        }
    }
}

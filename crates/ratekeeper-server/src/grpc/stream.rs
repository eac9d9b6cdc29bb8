//! `CheckStream`: checks that have arrived are decided as one batch and answered in one data frame.
//!
//! A stream is read until no more data is available or the read limit is reached. So a client that sends one check at a
//! time is answered at once, and one that pipelines gets the throughput of batches. Nothing is read while an answer is
//! being sent.

use super::GrpcInner;
use super::check;
use super::frame;
use super::message::{put_bytes, put_message, put_number};
use super::response_body::{error_trailers, ok_trailers};
use super::streams::StreamGuard;
use crate::api::MAX_CHECK_BYTES;
use crate::conn::ShutdownSignal;
use hyper::body::{Body, Bytes, Frame, Incoming};
use ratekeeper::rules::{CheckRequest, Verb};
use ratekeeper::{CheckBatch, Store};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tonic::Status;

/// How much is read before a batch is decided.
const MAX_READ_BYTES: usize = 64 * 1024;
/// The maximum number of checks in a batch. Their answers take some tens of kilobytes.
const MAX_BATCH: usize = 1024;
/// The typical size of an encoded answer, rounded up.
const TYPICAL_ANSWER_BYTES: usize = 64;

/// A stream of checks, which is also the body of its response.
pub(super) struct CheckStream<S> {
    shared: Arc<GrpcInner<S>>,
    incoming: Incoming,
    has_ended: bool,
    stage: StreamStage,
    shutdown: ShutdownSignal,
    guard: StreamGuard,
}

enum StreamStage {
    /// Collecting checks.
    Reading(StreamBatch),
    /// Deciding a batch.
    Deciding(Pin<Box<dyn Future<Output = (StreamBatch, Bytes)> + Send>>),
    /// The trailers were sent, or the client is gone.
    Over,
}

/// Received bytes, and the checks decoded from them.
#[derive(Debug, Default)]
struct StreamBatch {
    received: Vec<u8>,
    queued: Vec<QueuedCheck>,
    /// Why the bytes after the queued checks can't be read.
    error: Option<Status>,
}

/// A check to be answered.
#[derive(Debug)]
enum QueuedCheck {
    /// The id of a check in the batch.
    Valid(u64),
    /// The id of an invalid check, and why it is invalid.
    Invalid(u64, String),
}

impl<S: Store> CheckStream<S> {
    pub(super) fn new(
        shared: Arc<GrpcInner<S>>,
        incoming: Incoming,
        shutdown: ShutdownSignal,
        guard: StreamGuard,
    ) -> CheckStream<S> {
        let stage = StreamStage::Reading(StreamBatch::default());
        CheckStream { shared, incoming, has_ended: false, stage, shutdown, guard }
    }

    /// Reads what is available. An error means that the client is gone.
    fn read_available(&mut self, cx: &mut Context<'_>) -> Result<(), hyper::Error> {
        let StreamStage::Reading(batch) = &mut self.stage else { return Ok(()) };
        while !self.has_ended && batch.received.len() < MAX_READ_BYTES {
            match Pin::new(&mut self.incoming).poll_frame(cx) {
                Poll::Ready(Some(frame)) => {
                    // Trailers carry no part of a message.
                    if let Some(data) = frame?.data_ref() {
                        batch.received.extend_from_slice(data);
                    }
                }
                Poll::Ready(None) => self.has_ended = true,
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// The status that the stream ends with. Returns `None` if it does not end now.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Option<Result<(), Status>> {
        let StreamStage::Reading(batch) = &mut self.stage else { return None };
        if let Some(status) = batch.error.take() {
            return Some(Err(status));
        }
        if self.has_ended {
            return Some(if batch.received.is_empty() {
                Ok(())
            } else {
                Err(Status::invalid_argument("the stream ends in the middle of a message"))
            });
        }
        let is_stopped = self.shutdown.poll_closed(cx).is_ready();
        (is_stopped || self.shutdown.is_draining())
            .then(|| Err(Status::unavailable("the server is stopping: open the stream again")))
    }
}

impl<S: Store> Body for CheckStream<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let stream = self.get_mut();
        stream.guard.finish_send();
        if stream.read_available(cx).is_err() {
            stream.stage = StreamStage::Over;
        }
        loop {
            match &mut stream.stage {
                StreamStage::Reading(batch) if batch.is_ready() => {
                    let (shared, batch) = (Arc::clone(&stream.shared), std::mem::take(batch));
                    stream.stage = StreamStage::Deciding(Box::pin(batch.decide(shared)));
                }
                StreamStage::Reading(_) => {
                    let Some(ending) = stream.poll_end(cx) else { return Poll::Pending };
                    stream.stage = StreamStage::Over;
                    let trailers = ending.map_or_else(|status| error_trailers(&status), |()| ok_trailers());
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                StreamStage::Deciding(deciding) => {
                    let (batch, answers) = ready!(deciding.as_mut().poll(cx));
                    stream.stage = StreamStage::Reading(batch);
                    if !answers.is_empty() {
                        stream.guard.begin_send();
                        return Poll::Ready(Some(Ok(Frame::data(answers))));
                    }
                }
                StreamStage::Over => return Poll::Ready(None),
            }
        }
    }
}

impl StreamBatch {
    /// Whether there is a complete message to decide, or a malformed one to report.
    fn is_ready(&self) -> bool {
        self.error.is_none() && !matches!(frame::split(&self.received, MAX_CHECK_BYTES), Ok(None))
    }

    /// Decides all complete messages, and returns the encoded answers.
    async fn decide<S: Store>(mut self, shared: Arc<GrpcInner<S>>) -> (StreamBatch, Bytes) {
        let mut checks = shared.limiter.begin();
        let mut rest = &self.received[..];
        while self.queued.len() < MAX_BATCH {
            let (message, after) = match frame::split(rest, MAX_CHECK_BYTES) {
                Ok(Some(parts)) => parts,
                Ok(None) => break,
                Err(status) => {
                    self.error = Some(status);
                    break;
                }
            };
            rest = after;
            let add = |request: &CheckRequest<'_>| shared.limiter.add(&mut checks, Verb::Check, request);
            let (id, added) = check::with_stream_request(message, add);
            self.queued.push(match added {
                Ok(()) => QueuedCheck::Valid(id),
                Err(error) => QueuedCheck::Invalid(id, error.into_text()),
            });
        }
        let read = self.received.len() - rest.len();
        if !checks.is_empty() {
            shared.limiter.decide(&mut checks).await;
        }
        let answers = self.encode_answers(&checks);
        if checks.decisions().any(|decision| !decision.is_allowed()) {
            self.log_denials(&shared, &checks);
        }
        self.queued.clear();
        self.received.drain(..read);
        // Release the memory of a long message.
        self.received.shrink_to(MAX_READ_BYTES);
        (self, answers)
    }

    /// Encodes the answers, in the order of the checks.
    fn encode_answers(&self, checks: &CheckBatch) -> Bytes {
        let mut out = Vec::with_capacity(self.queued.len() * TYPICAL_ANSWER_BYTES);
        let mut decisions = checks.decisions();
        for queued in &self.queued {
            frame::append(&mut out, |out| match queued {
                QueuedCheck::Valid(id) => {
                    let decision = decisions.next().expect("there is a decision for every check");
                    put_number(out, 1, *id);
                    put_message(out, 2, |out| check::write_answer(&decision, out));
                }
                QueuedCheck::Invalid(id, error) => {
                    put_number(out, 1, *id);
                    put_bytes(out, 3, error.as_bytes());
                }
            });
        }
        out.into()
    }

    /// Logs denials. Decodes the messages a second time: denials are rare, and keeping the checks would slow every
    /// batch.
    #[cold]
    fn log_denials<S: Store>(&self, shared: &GrpcInner<S>, checks: &CheckBatch) {
        let (mut rest, mut decisions) = (&self.received[..], checks.decisions());
        for queued in &self.queued {
            // It can't fail: the same bytes were split before.
            let Ok(Some((message, after))) = frame::split(rest, MAX_CHECK_BYTES) else { return };
            rest = after;
            if let QueuedCheck::Valid(_) = queued
                && let Some(decision) = decisions.next()
                && !decision.is_allowed()
            {
                let log = |request: &CheckRequest<'_>| {
                    shared.denials.record(shared.limiter.clock(), request, &decision);
                };
                // It can't fail: the same message was read before.
                let _ = check::with_stream_request(message, log);
            }
        }
    }
}

/// The answers to all messages in `received`, up to the first malformed one.
#[cfg(test)]
pub(super) async fn answers<S: Store>(received: Vec<u8>, shared: Arc<GrpcInner<S>>) -> Vec<u8> {
    let (mut batch, mut all) = (StreamBatch { received, ..StreamBatch::default() }, Vec::new());
    while batch.is_ready() {
        let (rest, answers) = batch.decide(Arc::clone(&shared)).await;
        batch = rest;
        all.extend_from_slice(&answers);
    }
    all
}

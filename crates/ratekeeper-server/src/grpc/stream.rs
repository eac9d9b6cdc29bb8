//! Checks on a stream: whatever has arrived is decided together and answered together.
//!
//! A stream is read until nothing is there, or enough is; all of it goes through one docket, and the answers leave in one
//! piece. So a client that asks one thing at a time is answered at once, and one that sends without waiting pays for a
//! batch. Nothing is read while an answer is on its way.

use super::GrpcInner;
use super::check;
use super::frame;
use super::message::{put_bytes, put_message, put_number};
use super::response_body::{failure, success};
use super::streams::StreamGuard;
use crate::api::MAX_CHECK_BYTES;
use crate::http::ShutdownSignal;
use hyper::body::{Body, Bytes, Frame, Incoming};
use ratekeeper::rules::Verb;
use ratekeeper::{CheckBatch, Store};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tonic::Status;

/// How much is read before anything is decided.
const ENOUGH_BYTES: usize = 64 * 1024;
/// The most checks that are decided at once: their answers take some tens of kilobytes.
const MAX_BATCH: usize = 1024;
/// How long an answer is as a rule, with some room.
const TYPICAL_ANSWER_BYTES: usize = 64;

/// A stream of checks, which is also the body of its answers.
pub(super) struct CheckStream<S> {
    shared: Arc<GrpcInner<S>>,
    incoming: Incoming,
    has_ended: bool,
    stage: StreamStage,
    orders: ShutdownSignal,
    pulse: StreamGuard,
}

enum StreamStage {
    /// Waits for checks.
    Reading(StreamBatch),
    /// Has them decided.
    Deciding(Pin<Box<dyn Future<Output = (StreamBatch, Bytes)> + Send>>),
    /// There is no more to be said.
    Over,
}

/// What has arrived, and what is to be answered.
#[derive(Debug, Default)]
struct StreamBatch {
    inbox: Vec<u8>,
    filed: Vec<QueuedCheck>,
    /// Why nothing behind what is filed can be read.
    broken: Option<Status>,
}

/// A check of a batch.
#[derive(Debug)]
enum QueuedCheck {
    /// Its id; it is on the docket.
    Asked(u64),
    /// Its id, and what is wrong with it.
    Flawed(u64, String),
}

impl<S: Store> CheckStream<S> {
    pub(super) fn new(
        shared: Arc<GrpcInner<S>>,
        incoming: Incoming,
        orders: ShutdownSignal,
        pulse: StreamGuard,
    ) -> CheckStream<S> {
        let stage = StreamStage::Reading(StreamBatch::default());
        CheckStream { shared, incoming, has_ended: false, stage, orders, pulse }
    }

    /// Takes in what is there. An error means that the client is gone.
    fn take_in(&mut self, cx: &mut Context<'_>) -> Result<(), hyper::Error> {
        let StreamStage::Reading(batch) = &mut self.stage else { return Ok(()) };
        while !self.has_ended && batch.inbox.len() < ENOUGH_BYTES {
            match Pin::new(&mut self.incoming).poll_frame(cx) {
                Poll::Ready(Some(frame)) => {
                    // Trailers say nothing about a check.
                    if let Some(data) = frame?.data_ref() {
                        batch.inbox.extend_from_slice(data);
                    }
                }
                Poll::Ready(None) => self.has_ended = true,
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// How the stream ends, if it does now.
    fn ending(&mut self, cx: &mut Context<'_>) -> Option<Result<(), Status>> {
        let StreamStage::Reading(batch) = &mut self.stage else { return None };
        if let Some(status) = batch.broken.take() {
            return Some(Err(status));
        }
        if self.has_ended {
            return Some(match batch.inbox.is_empty() {
                true => Ok(()),
                false => Err(Status::invalid_argument("the stream ends in the midst of a message")),
            });
        }
        let is_gone = self.orders.poll_gone(cx).is_ready();
        (is_gone || self.orders.is_draining())
            .then(|| Err(Status::unavailable("the server is stopping: open the stream again")))
    }
}

impl<S: Store> Body for CheckStream<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let stream = self.get_mut();
        stream.pulse.ask();
        if stream.take_in(cx).is_err() {
            stream.stage = StreamStage::Over;
        }
        loop {
            match &mut stream.stage {
                StreamStage::Reading(batch) if batch.is_ready() => {
                    let (shared, batch) = (Arc::clone(&stream.shared), std::mem::take(batch));
                    stream.stage = StreamStage::Deciding(Box::pin(batch.decide(shared)));
                }
                StreamStage::Reading(_) => {
                    let Some(ending) = stream.ending(cx) else { return Poll::Pending };
                    stream.stage = StreamStage::Over;
                    let trailers = ending.map_or_else(|status| failure(&status), |()| success());
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                StreamStage::Deciding(deciding) => {
                    let (batch, answers) = ready!(deciding.as_mut().poll(cx));
                    stream.stage = StreamStage::Reading(batch);
                    if !answers.is_empty() {
                        stream.pulse.hand_over();
                        return Poll::Ready(Some(Ok(Frame::data(answers))));
                    }
                }
                StreamStage::Over => return Poll::Ready(None),
            }
        }
    }
}

impl StreamBatch {
    /// Whether there is anything to decide, or to find broken.
    fn is_ready(&self) -> bool {
        self.broken.is_none() && !matches!(frame::split(&self.inbox, MAX_CHECK_BYTES), Ok(None))
    }

    /// Has all that is whole decided, and gives the answers.
    async fn decide<S: Store>(mut self, shared: Arc<GrpcInner<S>>) -> (StreamBatch, Bytes) {
        let mut docket = shared.gate.begin();
        let mut rest = &self.inbox[..];
        while self.filed.len() < MAX_BATCH {
            let (message, behind) = match frame::split(rest, MAX_CHECK_BYTES) {
                Ok(Some(parts)) => parts,
                Ok(None) => break,
                Err(status) => {
                    self.broken = Some(status);
                    break;
                }
            };
            rest = behind;
            let (id, check) = check::read_numbered(message);
            self.filed.push(match check {
                Ok(check) => {
                    shared.gate.add(&mut docket, Verb::Check, &check.request());
                    QueuedCheck::Asked(id)
                }
                Err(flaw) => QueuedCheck::Flawed(id, flaw.into_text()),
            });
        }
        let read = self.inbox.len() - rest.len();
        if !docket.is_empty() {
            shared.gate.settle(&mut docket).await;
        }
        let answers = self.answer(&docket);
        if docket.verdicts().any(|verdict| !verdict.is_allowed()) {
            self.log_denials(&shared, &docket);
        }
        self.filed.clear();
        self.inbox.drain(..read);
        // What a long message needed is not kept for the short ones behind it.
        self.inbox.shrink_to(ENOUGH_BYTES);
        (self, answers)
    }

    /// The answers, in the order of the checks.
    fn answer(&self, docket: &CheckBatch) -> Bytes {
        let mut out = Vec::with_capacity(self.filed.len() * TYPICAL_ANSWER_BYTES);
        let mut verdicts = docket.verdicts();
        for filed in &self.filed {
            frame::append(&mut out, |out| match filed {
                QueuedCheck::Asked(id) => {
                    let verdict = verdicts.next().expect("there is a verdict for every check");
                    put_number(out, 1, *id);
                    put_message(out, 2, |out| check::write_answer(&verdict, out));
                }
                QueuedCheck::Flawed(id, said) => {
                    put_number(out, 1, *id);
                    put_bytes(out, 3, said.as_bytes());
                }
            });
        }
        out.into()
    }

    /// Logs denials. What was asked is read once more: that is rare, and keeping it would cost everybody.
    #[cold]
    fn log_denials<S: Store>(&self, shared: &GrpcInner<S>, docket: &CheckBatch) {
        let (mut rest, mut verdicts) = (&self.inbox[..], docket.verdicts());
        for filed in &self.filed {
            // It was read before, so it can be read again.
            let Ok(Some((message, behind))) = frame::split(rest, MAX_CHECK_BYTES) else { return };
            rest = behind;
            if let (QueuedCheck::Asked(_), (_, Ok(check))) = (filed, check::read_numbered(message))
                && let Some(verdict) = verdicts.next()
                && !verdict.is_allowed()
            {
                shared.denials.note(shared.gate.clock(), &check.request(), &verdict);
            }
        }
    }
}

/// The answers to all that is in an inbox, as far as it can be read.
#[cfg(test)]
pub(super) async fn answers<S: Store>(inbox: Vec<u8>, shared: Arc<GrpcInner<S>>) -> Vec<u8> {
    let (mut batch, mut all) = (StreamBatch { inbox, ..StreamBatch::default() }, Vec::new());
    while batch.is_ready() {
        let (rest, answers) = batch.decide(Arc::clone(&shared)).await;
        batch = rest;
        all.extend_from_slice(&answers);
    }
    all
}

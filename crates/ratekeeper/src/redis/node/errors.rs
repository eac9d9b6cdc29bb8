//! Errors that a server answers with: what is remembered of them, and what the log tells.

use super::failure::write_refusal;
use super::{LoginContext, NodeCore, ServerFailure, TELL_REFUSALS};
use crate::health::StoreErrorCause;
use ::redis::ServerError;
use ratekeeper_core::StoreFailure;
use tokio::time::Instant;
use tracing::{info, warn};

/// An error that a server answered with.
pub(super) struct LastError {
    pub(super) trouble: ServerFailure,
    pub(super) at: Instant,
    /// When one was last told of.
    told: Instant,
}

/// What is wrong with a server that can be used all the same, because it still answers some requests: it takes no writes, or
/// the user may not run commands that only some laws need.
#[derive(Default)]
pub(super) struct ServerWarning {
    pub(super) trouble: Option<ServerFailure>,
    /// When the log last told that there is one, and whether it has told since that it is over.
    told: Option<Instant>,
    is_told: bool,
}

impl NodeCore {
    /// Notes an error that a server answered with, and tells of it, though not of every request.
    pub(super) fn note_error(&self, error: &ServerError) {
        let (trouble, at) = (self.asker().explain(error), Instant::now());
        self.meter.note_errors(trouble.cause, 1);
        if matches!(trouble.cause, StoreErrorCause::Permission | StoreErrorCause::Unsupported) {
            // It may be about this command alone, or about all of them: the keeper finds out.
            self.wake.notify_one();
        }
        if trouble.cause.stops_writes_only() {
            self.note_shortcoming(Some(trouble.clone()));
        }
        let mut last = self.refusal.lock();
        let told = last.as_ref().map(|last| last.told);
        let told = told.filter(|told| at.saturating_duration_since(*told) < TELL_REFUSALS);
        if told.is_none() && !trouble.cause.stops_writes_only() {
            warn!(server = %self.server, "store server answers with errors: {trouble}");
        }
        *last = Some(LastError { trouble, at, told: told.unwrap_or(at) });
    }

    pub(super) fn note_unwritten(&self, code: &str, requests: u32) {
        let cause = write_refusal(code).unwrap_or(StoreErrorCause::Other);
        self.meter.note_errors(cause, requests as usize);
        self.meter.note_failures(StoreFailure::Refused, requests as usize);
        self.note_shortcoming(Some(LoginContext::no_writes(cause, code)));
    }

    /// Notes what is wrong with a server that can be used all the same; nothing if nothing is. The log tells of a change, but
    /// not of one back and forth.
    pub(super) fn note_shortcoming(&self, trouble: Option<ServerFailure>) {
        let mut shortcoming = self.shortcoming.lock();
        let cause = |trouble: &Option<ServerFailure>| trouble.as_ref().map(|trouble| trouble.cause);
        if cause(&shortcoming.trouble) == cause(&trouble) {
            return;
        }
        let now = Instant::now();
        match &trouble {
            Some(trouble) => {
                let is_recent = |told: Instant| now.saturating_duration_since(told) < TELL_REFUSALS;
                if !shortcoming.told.is_some_and(is_recent) {
                    warn!(server = %self.server, "store server refuses some requests: {trouble}");
                    shortcoming.told = Some(now);
                    shortcoming.is_told = true;
                }
            }
            None if shortcoming.is_told => {
                info!(server = %self.server, "store server refuses nothing any more");
                shortcoming.is_told = false;
            }
            None => {}
        }
        shortcoming.trouble = trouble;
    }
}

//! Error replies of a server: the last one is remembered, and logging is rate-limited.

use super::{ERROR_LOG_INTERVAL, NodeCore};
use crate::client::failure::{LoginContext, ServerFailure, write_error_cause};
use ratekeeper::StoreErrorCause;
use ratekeeper_core::StoreFailure;
use redis::ServerError;
use tokio::time::Instant;
use tracing::{info, warn};

/// The last error that a server replied with.
pub(crate) struct LastError {
    pub(crate) failure: ServerFailure,
    pub(crate) at: Instant,
    /// When an error was last logged.
    logged_at: Instant,
}

/// A failure of a server that stays in use because it still answers some requests: it rejects writes, or the user may
/// not run commands that only some algorithms need.
#[derive(Default)]
pub(crate) struct ServerWarning {
    pub(crate) failure: Option<ServerFailure>,
    /// When a warning was last logged.
    logged_at: Option<Instant>,
    /// Whether a warning was logged whose end has not been logged yet.
    is_logged: bool,
}

impl NodeCore {
    /// Records an error reply, and logs it, at most once per interval.
    pub(crate) fn record_error(&self, error: &ServerError) {
        let (failure, at) = (self.login_context().explain(error), Instant::now());
        self.counters.record_errors(failure.cause, 1);
        if matches!(failure.cause, StoreErrorCause::Permission | StoreErrorCause::Unsupported) {
            // The error may concern this command only, or all of them: the supervisor finds out.
            self.wake_supervisor.notify_one();
        }
        if failure.cause.blocks_writes_only() {
            self.set_warning(Some(failure.clone()));
        }
        let mut last = self.last_error.lock();
        let logged_at = last.as_ref().map(|last| last.logged_at);
        let logged_at =
            logged_at.filter(|logged_at| at.saturating_duration_since(*logged_at) < ERROR_LOG_INTERVAL);
        if logged_at.is_none() && !failure.cause.blocks_writes_only() {
            warn!(server = %self.server, "store server returned an error: {failure}");
        }
        *last = Some(LastError { failure, at, logged_at: logged_at.unwrap_or(at) });
    }

    pub(crate) fn record_rejected_writes(&self, code: &str, requests: u32) {
        let cause = write_error_cause(code).unwrap_or(StoreErrorCause::Other);
        self.counters.record_errors(cause, requests as usize);
        self.counters.record_failures(StoreFailure::StoreError, requests as usize);
        self.set_warning(Some(LoginContext::writes_rejected(cause, code)));
    }

    /// Sets the failure of a server that stays in use; `None` if there is none. Changes are logged, but a server that
    /// keeps changing back and forth is not logged every time.
    pub(crate) fn set_warning(&self, failure: Option<ServerFailure>) {
        let mut warning = self.warning.lock();
        let cause = |failure: &Option<ServerFailure>| failure.as_ref().map(|failure| failure.cause);
        if cause(&warning.failure) == cause(&failure) {
            return;
        }
        let now = Instant::now();
        match &failure {
            Some(failure) => {
                let is_recent =
                    |logged_at: Instant| now.saturating_duration_since(logged_at) < ERROR_LOG_INTERVAL;
                if !warning.logged_at.is_some_and(is_recent) {
                    warn!(server = %self.server, "store server degraded: {failure}");
                    warning.logged_at = Some(now);
                    warning.is_logged = true;
                }
            }
            None if warning.is_logged => {
                info!(server = %self.server, "store server no longer degraded");
                warning.is_logged = false;
            }
            None => {}
        }
        warning.failure = failure;
    }
}

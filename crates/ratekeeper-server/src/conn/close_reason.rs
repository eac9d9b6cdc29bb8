//! Why a connection was closed, for all protocols.

use super::timeouts::TimedOut;
use std::io;

/// Why a connection was closed.
#[derive(Debug)]
pub(crate) enum CloseReason {
    /// Normal end: the client sends no more requests, or the server drains.
    Done,
    /// Idle timeout: the client sent no request for too long.
    Idle,
    /// The client did not finish a request that it had started, or did not read its responses in time.
    Timeout,
    /// The server has stopped.
    ServerStopped,
    Io(io::Error),
}

impl CloseReason {
    /// Logs errors and timeouts at debug level.
    pub(crate) fn log(&self) {
        match self {
            CloseReason::Io(error) => tracing::debug!(%error, "connection error"),
            CloseReason::Idle | CloseReason::Timeout => {
                tracing::debug!(reason = ?self, "connection closed");
            }
            CloseReason::Done | CloseReason::ServerStopped => {}
        }
    }
}

impl From<TimedOut> for CloseReason {
    fn from(timeout: TimedOut) -> CloseReason {
        match timeout {
            TimedOut::Idle => CloseReason::Idle,
            TimedOut::Deadline => CloseReason::Timeout,
        }
    }
}

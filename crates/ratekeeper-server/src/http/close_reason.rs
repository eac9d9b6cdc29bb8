//! Why a connection ended, whatever was spoken on it.

use super::timeouts::TimedOut;
use std::io;

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum CloseReason {
    /// All was said: the client has no more to ask, or the server stops.
    Done,
    /// The client asked for nothing for long.
    Quiet,
    /// The client did not send the rest of what it had begun, or did not read.
    Late,
    /// The server is gone.
    Gone,
    Broken(io::Error),
}

impl CloseReason {
    /// Tells whoever looks for it, unless all went as it should.
    pub(crate) fn log(&self) {
        match self {
            CloseReason::Broken(error) => tracing::debug!(%error, "a connection broke"),
            CloseReason::Quiet | CloseReason::Late => {
                tracing::debug!(ended = ?self, "a connection was given up")
            }
            CloseReason::Done | CloseReason::Gone => {}
        }
    }
}

impl From<TimedOut> for CloseReason {
    fn from(lost: TimedOut) -> CloseReason {
        match lost {
            TimedOut::Quiet => CloseReason::Quiet,
            TimedOut::Late => CloseReason::Late,
        }
    }
}

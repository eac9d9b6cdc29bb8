//! Why a connection ended, whatever was spoken on it.

use super::patience::Lost;
use std::io;

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum Ended {
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

impl Ended {
    /// Tells whoever looks for it, unless all went as it should.
    pub(crate) fn log(&self) {
        match self {
            Ended::Broken(error) => tracing::debug!(%error, "a connection broke"),
            Ended::Quiet | Ended::Late => tracing::debug!(ended = ?self, "a connection was given up"),
            Ended::Done | Ended::Gone => {}
        }
    }
}

impl From<Lost> for Ended {
    fn from(lost: Lost) -> Ended {
        match lost {
            Lost::Quiet => Ended::Quiet,
            Lost::Late => Ended::Late,
        }
    }
}

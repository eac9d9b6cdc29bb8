//! Room for bodies that are larger than most.
//!
//! Small bodies are bounded by the number of connections. Larger ones, of which each may take megabytes, share a fixed
//! number of places: who finds none is told to come back, and the server's memory stays what it is.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most bytes of a body that needs no place.
pub(crate) const SMALL_BYTES: usize = 64 * 1024;
/// How many larger bodies there may be at once.
const PLACES: usize = 64;

/// Room for larger bodies, shared by all connections of a port.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<Semaphore>);

/// A place for one of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Room {
    pub(crate) fn new() -> Room {
        Room(Arc::new(Semaphore::new(PLACES)))
    }

    /// A place, if one is free.
    pub(crate) fn place(&self) -> Option<Place> {
        Arc::clone(&self.0).try_acquire_owned().ok().map(|permit| Place { _permit: permit })
    }
}

//! Where state is kept.

use std::future::Future;
use std::io;
use std::time::Duration;
use tollgate_core::{Draws, KeyRef, Limit, PermitId, Scope};

/// Where state is kept: in this process, or where other processes see it too.
///
/// A store is given plain data and knows nothing of rules. Time is the store's own. A group is of one kind: it takes,
/// looks, gives back or clears. Each is decided in one atomic step, and takes all or nothing; groups of one call are
/// decided in order, as if they had come one after the other.
pub trait Store: Send + Sync + 'static {
    /// Decides every group and notes each draw's outcome in it.
    ///
    /// On an error nothing is known of any draw: it may or may not have been charged.
    fn draw(&self, draws: &mut Draws) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Frees a permit without waiting for it. If the word is lost, the permit lapses by itself.
    fn release(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit, permit: PermitId);
}

/// Why a store gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The draw may or may not have been applied. It is not retried: a retry could charge twice.
    #[error("the store gave no answer within {0:?}")]
    Timeout(Duration),
    /// The store could not be spoken to.
    #[error("the store can't be reached")]
    Unreachable(#[source] io::Error),
}

//! Where state is kept.

use ratekeeper_core::{Draws, KeyRef, Limit, PermitId, Scope};
use std::future::Future;

/// Where state is kept: in this process, or where other processes see it too.
///
/// A store is given plain data and knows nothing of rules. Time is the store's own. A group is of one kind: it takes,
/// looks, gives back or clears. Each is decided in one atomic step, and takes all or nothing; groups of one call are
/// decided in order, as if they had come one after the other.
pub trait Store: Send + Sync + 'static {
    /// Decides every group and notes each draw's outcome in it; or, where it can't, notes with [`Draws::fail`] that the
    /// group got no answer, and decides those of its draws from memory whose [terms](ratekeeper_core::DrawOptions) say so.
    ///
    /// It always comes to an end, and within the time that draws are given: a store that waits for others gives up on
    /// them.
    fn draw(&self, draws: &mut Draws) -> impl Future<Output = ()> + Send;

    /// Frees a permit without waiting for it. If the word is lost, the permit lapses by itself.
    fn release(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit, permit: PermitId);
}

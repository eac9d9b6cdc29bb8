//! The store interface.

use ratekeeper_core::{Draws, KeyRef, Limit, PermitId, Scope};
use std::future::Future;

/// A place where limiter state is kept: in this process, or shared between processes.
///
/// A store receives plain data and knows nothing of rules. It uses its own clock. All draws of a group have the
/// same kind of operation: take, peek, refund or reset. Each group is decided in one atomic step and takes all or
/// nothing. The groups of one call are decided in order, as if they had arrived one after the other.
pub trait Store: Send + Sync + 'static {
    /// Decides every group and writes the result of each draw into it. If the store does not answer, it records the
    /// failure of the group with [`Draws::fail_group`] and decides those draws from memory whose
    /// [options](ratekeeper_core::DrawOptions) say so.
    ///
    /// This always completes, and within the timeout of the draws: a store that waits for a server gives up on it.
    fn draw(&self, draws: &mut Draws) -> impl Future<Output = ()> + Send;

    /// Releases a permit without waiting for the result. If the message is lost, the permit expires by itself.
    fn release(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit, permit: PermitId);
}

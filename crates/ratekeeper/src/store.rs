//! The store interface.

use crate::health::{KeyLease, StoreReport};
use crate::memory_stats::MemoryStats;
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

    /// Returns the health of a shared store, or `None` if the store is in this process.
    ///
    /// This may allocate and lock. It is meant for people and scrapers, not for the request path.
    fn health(&self) -> Option<StoreReport> {
        None
    }

    /// Returns the lease that this node holds on a key under a limit, or `None` if it has none or the key is
    /// unknown.
    fn key_lease(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> Option<KeyLease> {
        let _ = (key, scope, limit);
        None
    }

    /// Returns the use of this process's memory for states, or `None` if the store keeps none here.
    ///
    /// This locks every part of the memory in turn. It is meant for people and scrapers, not for the request path.
    fn memory_stats(&self) -> Option<MemoryStats> {
        None
    }

    /// Does the store's background work. A server runs it beside its requests, until it stops. It may return early
    /// if there is nothing to do.
    fn maintain(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Tells the other nodes that share the store that this one leaves. Called after the last request; the store goes
    /// on answering.
    fn leave(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

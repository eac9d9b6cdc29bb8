//! A simulated node: the shipped [`Leased`] store on a simulated clock.

use super::client::SimStore;
use super::clock::SimClock;
use ratekeeper::{LeaseOptions, Leased, Store};
use ratekeeper_core::Draws;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};
use tokio::runtime::{Builder, Runtime};

/// A request that a node is deciding.
pub(super) type DrawFuture = Pin<Box<dyn Future<Output = Draws> + Send>>;
type LeaveFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A stopping node waits for its leases to be returned, at most until a timeout of the runtime's clock. Nothing drives
/// this runtime, so the timeout never passes: in virtual time, the simulation ends the wait.
static TIMERS: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime without threads"));

/// A simulated node. After a crash it restarts at once, without its leases.
pub(super) struct SimNode {
    pub(super) leased: Arc<Leased<SimStore, SimClock>>,
    /// The number of restarts. Replies to an earlier incarnation are dropped.
    pub(super) incarnation: u32,
    /// Until when the node does nothing although time passes.
    pub(super) stalled_until: u64,
    leaving: Option<LeaveFuture>,
    options: LeaseOptions,
    node_count: u32,
    /// Draws granted from leases in earlier incarnations.
    granted_before: u64,
}

impl SimNode {
    pub(super) fn new(options: LeaseOptions, node_count: u32, clock: SimClock) -> SimNode {
        SimNode {
            leased: start(options, node_count, clock),
            incarnation: 0,
            stalled_until: 0,
            leaving: None,
            options,
            node_count,
            granted_before: 0,
        }
    }

    /// Begins to decide a request. Returns the future if it waits for the server.
    pub(super) fn draw(&self, mut draws: Draws) -> Result<Draws, DrawFuture> {
        let leased = Arc::clone(&self.leased);
        let mut future: DrawFuture = Box::pin(async move {
            leased.draw(&mut draws).await;
            draws
        });
        poll(&mut future).ok_or(future)
    }

    /// Begins to return all leases.
    pub(super) fn leave(&mut self) {
        let leased = Arc::clone(&self.leased);
        let mut leaving: LeaveFuture = Box::pin(async move { leased.leave().await });
        let _timers = TIMERS.enter();
        if poll(&mut leaving).is_none() {
            self.leaving = Some(leaving);
        }
    }

    /// Restarts the node. Its leases are lost.
    pub(super) fn restart(&mut self, clock: SimClock) {
        self.granted_before = self.draws_from_leases();
        self.leaving = None;
        self.leased = start(self.options, self.node_count, clock);
        self.incarnation += 1;
        self.stalled_until = 0;
    }

    /// Draws granted from leases, in all incarnations.
    pub(super) fn draws_from_leases(&self) -> u64 {
        self.granted_before + self.leased.counts().leases.granted
    }
}

fn start(options: LeaseOptions, node_count: u32, clock: SimClock) -> Arc<Leased<SimStore, SimClock>> {
    let leased = Leased::unattended(SimStore::new(node_count), clock, options);
    leased.sweep();
    Arc::new(leased)
}

/// Polls a future once. Nothing wakes it: the simulation polls it again when there is something new for it.
pub(super) fn poll<T>(future: &mut Pin<Box<dyn Future<Output = T> + Send>>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

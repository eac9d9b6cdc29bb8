//! What the server tells its connections.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use tokio::sync::watch;
use tokio::task::coop::has_budget_remaining;

/// What the server tells all its connections. When it is gone itself, they leave at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShutdownPhase {
    /// Go on.
    Open,
    /// Finish what has begun, and leave.
    Draining,
}

/// The server's orders to one connection.
pub(crate) struct ShutdownSignal {
    phase: watch::Receiver<ShutdownPhase>,
    is_draining: bool,
    /// Waits for the next change. It is kept from request to request: to begin to wait takes a lock that all
    /// connections share.
    change: Pin<Box<dyn Future<Output = Option<watch::Receiver<ShutdownPhase>>> + Send>>,
    /// Whom the next change will wake, if that is settled.
    waits: Option<Waker>,
}

impl ShutdownSignal {
    pub(crate) fn new(phase: watch::Receiver<ShutdownPhase>) -> ShutdownSignal {
        ShutdownSignal { change: Box::pin(change(phase.clone())), phase, is_draining: false, waits: None }
    }

    /// Whether to finish what has begun and leave. It asks nobody but a counter, so a connection that is never idle, and
    /// so never waits for orders, may ask as often as it likes.
    pub(crate) fn is_draining(&mut self) -> bool {
        if self.phase.has_changed().unwrap_or(true) {
            self.waits = None;
            self.is_draining = *self.phase.borrow_and_update() == ShutdownPhase::Draining;
        }
        self.is_draining
    }

    /// Until the server is gone. It also wakes whoever polls when there is another phase.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let waits = self.waits.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if waits && self.phase.has_changed().is_ok_and(|has_changed| !has_changed) {
            return Poll::Pending;
        }
        // Without budget, tokio has a task come again before anything is settled.
        self.waits = has_budget_remaining().then(|| cx.waker().clone());
        while let Some(phase) = ready!(self.change.as_mut().poll(cx)) {
            self.change = Box::pin(change(phase));
        }
        Poll::Ready(())
    }
}

/// Waits for another phase, and hands the receiver back; nothing if the server is gone.
async fn change(mut phase: watch::Receiver<ShutdownPhase>) -> Option<watch::Receiver<ShutdownPhase>> {
    phase.changed().await.is_ok().then_some(phase)
}

//! The shutdown signal from the server to its connections.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use tokio::sync::watch;
use tokio::task::coop::has_budget_remaining;

/// The phase that a server announces to its connections. If the server drops the sender, they close at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShutdownPhase {
    /// Requests are served.
    Running,
    /// Connections finish the requests that have started, and close.
    Draining,
}

/// The shutdown signal as one connection sees it.
pub(crate) struct ShutdownSignal {
    phase: watch::Receiver<ShutdownPhase>,
    is_draining: bool,
    /// Waits for the next change. It is kept across requests: to start waiting takes a lock that all connections share.
    next_phase: Pin<Box<dyn Future<Output = Option<watch::Receiver<ShutdownPhase>>> + Send>>,
    /// The waker registered with `next_phase`. `None` if it must be polled again.
    registered_waker: Option<Waker>,
}

impl ShutdownSignal {
    pub(crate) fn new(phase: watch::Receiver<ShutdownPhase>) -> ShutdownSignal {
        ShutdownSignal {
            next_phase: Box::pin(wait_for_change(phase.clone())),
            phase,
            is_draining: false,
            registered_waker: None,
        }
    }

    /// Whether to finish started requests and close. It reads only a version counter, so a connection that is never
    /// idle, and so never polls [`ShutdownSignal::poll_closed`], can call it after every batch.
    pub(crate) fn is_draining(&mut self) -> bool {
        if self.phase.has_changed().unwrap_or(true) {
            self.registered_waker = None;
            self.is_draining = *self.phase.borrow_and_update() == ShutdownPhase::Draining;
        }
        self.is_draining
    }

    /// Ready once the server has dropped its sender. A change of phase also wakes the task.
    pub(crate) fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_registered = self.registered_waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if is_registered && self.phase.has_changed().is_ok_and(|has_changed| !has_changed) {
            return Poll::Pending;
        }
        // Without coop budget, tokio returns `Pending` and reschedules the task without registering the waker.
        self.registered_waker = has_budget_remaining().then(|| cx.waker().clone());
        while let Some(phase) = ready!(self.next_phase.as_mut().poll(cx)) {
            self.next_phase = Box::pin(wait_for_change(phase));
        }
        Poll::Ready(())
    }
}

/// Waits for another phase and returns the receiver. Returns `None` if the server has dropped the sender.
async fn wait_for_change(
    mut phase: watch::Receiver<ShutdownPhase>,
) -> Option<watch::Receiver<ShutdownPhase>> {
    phase.changed().await.is_ok().then_some(phase)
}

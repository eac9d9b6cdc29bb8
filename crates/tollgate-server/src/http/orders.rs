//! What the server tells its connections.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::watch;

/// What the server tells all its connections. When it is gone itself, they leave at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Go on.
    Open,
    /// Finish what has begun, and leave.
    Draining,
}

/// The server's orders to one connection.
pub(super) struct Orders {
    phase: watch::Receiver<Phase>,
    is_draining: bool,
    /// Waits for the next change. It is kept from request to request: to begin to wait takes a lock that all
    /// connections share.
    change: Pin<Box<dyn Future<Output = Option<watch::Receiver<Phase>>> + Send>>,
}

impl Orders {
    pub(super) fn new(phase: watch::Receiver<Phase>) -> Orders {
        Orders { change: Box::pin(change(phase.clone())), phase, is_draining: false }
    }

    /// Whether to finish what has begun and leave. It asks nobody but a counter, so a connection that is never idle, and
    /// so never waits for orders, may ask as often as it likes.
    pub(super) fn is_draining(&mut self) -> bool {
        if self.phase.has_changed().unwrap_or(true) {
            self.is_draining = *self.phase.borrow_and_update() == Phase::Draining;
        }
        self.is_draining
    }

    /// Until the server is gone. It also wakes whoever polls when there is another phase.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(phase) = ready!(self.change.as_mut().poll(cx)) {
            self.change = Box::pin(change(phase));
        }
        Poll::Ready(())
    }
}

/// Waits for another phase, and hands the receiver back; nothing if the server is gone.
async fn change(mut phase: watch::Receiver<Phase>) -> Option<watch::Receiver<Phase>> {
    phase.changed().await.is_ok().then_some(phase)
}

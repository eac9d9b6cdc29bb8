//! How long a connection is borne with.
//!
//! One timer for each connection, whatever it does: a timer for each request would cost more than many a request. It is
//! the same patience before and after a connection has left the lane. Other protocols have their own, of the same kind.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::task::coop::has_budget_remaining;
use tokio::time::{Instant, Sleep, sleep};

/// How long a body may take. It comes right behind its headers, so only a broken or hostile client takes long.
pub(crate) const BODY_PATIENCE: Duration = Duration::from_secs(10);
/// How long a new connection may take until its first request has begun: its headers, or HTTP/2's preface, are in.
pub(crate) const FIRST_PATIENCE: Duration = Duration::from_secs(15);
/// How often a connection is looked at: if no request has begun since the last look, it is closed. Above the 60 seconds
/// after which common load balancers drop an idle connection, so that it is them who close, and no request crosses
/// with our closing.
const PATIENCE: Duration = Duration::from_secs(75);

/// What patience was lost over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimedOut {
    /// No request has begun for long.
    Quiet,
    /// Something that was expected did not happen in time: the body of a request that has begun did not arrive.
    Late,
}

#[derive(Debug)]
pub(crate) struct IdleTimer {
    timer: Pin<Box<Sleep>>,
    /// How often the connection is looked at.
    pace: Duration,
    /// Whom the timer will wake, if that is settled.
    waits: Option<Waker>,
    /// When the connection is looked at next.
    look_at: Instant,
    /// How many requests had begun at the last look.
    seen: u64,
    /// When that must have happened which is being waited for.
    due: Option<Instant>,
}

impl IdleTimer {
    /// Patience with a new connection that speaks HTTP.
    pub(super) fn new() -> IdleTimer {
        IdleTimer::with(FIRST_PATIENCE, PATIENCE)
    }

    /// Patience with a new connection: how long its first request may take, and how often it is looked at from then on.
    pub(crate) fn with(first: Duration, pace: Duration) -> IdleTimer {
        let timer = Box::pin(sleep(first));
        IdleTimer { look_at: timer.deadline(), timer, pace, waits: None, seen: 0, due: None }
    }

    /// Waits for a body from now on, unless it does already.
    pub(super) fn expect_body(&mut self) {
        self.expect(BODY_PATIENCE);
    }

    /// Waits for something from now on that must happen within a time, unless it does already.
    pub(crate) fn expect(&mut self, within: Duration) {
        if self.due.is_none() {
            let due = Instant::now() + within;
            self.due = Some(due);
            self.waits = None;
            self.timer.as_mut().reset(due.min(self.look_at));
        }
    }

    /// Waits for no body any more.
    pub(super) fn expect_no_body(&mut self) {
        self.expect_nothing();
    }

    /// Waits for nothing any more. The timer may go off for it all the same, and is then set for the next look.
    pub(crate) fn expect_nothing(&mut self) {
        self.due = None;
    }

    /// Until patience is lost. `begun` is how many requests have begun.
    pub(crate) fn poll_lost(&mut self, begun: u64, cx: &mut Context<'_>) -> Poll<TimedOut> {
        let waits = self.waits.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if waits && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        // Without budget, tokio has a task come again before anything is settled.
        self.waits = has_budget_remaining().then(|| cx.waker().clone());
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let now = Instant::now();
            if self.due.is_some_and(|due| due <= now) {
                return Poll::Ready(TimedOut::Late);
            }
            if self.look_at <= now {
                if begun == self.seen {
                    return Poll::Ready(TimedOut::Quiet);
                }
                self.seen = begun;
                self.look_at = now + self.pace;
            }
            let next = self.due.map_or(self.look_at, |due| due.min(self.look_at));
            self.timer.as_mut().reset(next);
        }
    }
}

//! Idle and request timeouts of a connection.
//!
//! Each connection has one timer: a timer per request would cost more than many requests do. A connection that is
//! handed over from one part of the server to another keeps its timer.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::task::coop::has_budget_remaining;
use tokio::time::{Instant, Sleep, sleep};

/// How long a body may take. It follows its headers directly, so only a broken or hostile client takes long.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a new connection may take to start its first request, that is, to send its headers or the HTTP/2 preface.
pub(crate) const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Which timeout a connection exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimedOut {
    /// No request has started for too long.
    Idle,
    /// A deadline passed: for example, the body of a started request did not arrive in time.
    Deadline,
}

/// The timer of one connection: an idle timeout, and at most one deadline.
#[derive(Debug)]
pub(crate) struct IdleTimer {
    timer: Pin<Box<Sleep>>,
    /// How often the connection is checked for activity.
    check_interval: Duration,
    /// The waker registered with the timer. `None` if the timer must be polled again.
    registered_waker: Option<Waker>,
    next_check: Instant,
    /// The number of requests that had started at the last check.
    started_at_last_check: u64,
    /// The deadline for what the connection waits for, if anything.
    deadline: Option<Instant>,
}

impl IdleTimer {
    /// The timer of a new connection: its first request must start within `first`, and it is checked every
    /// `check_interval` from then on.
    pub(crate) fn new(first: Duration, check_interval: Duration) -> IdleTimer {
        let timer = Box::pin(sleep(first));
        IdleTimer {
            next_check: timer.deadline(),
            timer,
            check_interval,
            registered_waker: None,
            started_at_last_check: 0,
            deadline: None,
        }
    }

    /// Sets a deadline `within` from now, unless one is set already.
    pub(crate) fn start_deadline(&mut self, within: Duration) {
        if self.deadline.is_none() {
            let deadline = Instant::now() + within;
            self.deadline = Some(deadline);
            self.registered_waker = None;
            self.timer.as_mut().reset(deadline.min(self.next_check));
        }
    }

    /// Clears the deadline. The timer may still fire for it, and is then reset to the next check.
    pub(crate) fn clear_deadline(&mut self) {
        self.deadline = None;
    }

    /// Ready once a timeout is exceeded. `started` is the number of requests that have started.
    pub(crate) fn poll_timed_out(&mut self, started: u64, cx: &mut Context<'_>) -> Poll<TimedOut> {
        let is_registered = self.registered_waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if is_registered && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        // Without coop budget, tokio returns `Pending` and reschedules the task without registering the waker.
        self.registered_waker = has_budget_remaining().then(|| cx.waker().clone());
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let now = Instant::now();
            if self.deadline.is_some_and(|deadline| deadline <= now) {
                return Poll::Ready(TimedOut::Deadline);
            }
            if self.next_check <= now {
                if started == self.started_at_last_check {
                    return Poll::Ready(TimedOut::Idle);
                }
                self.started_at_last_check = started;
                self.next_check = now + self.check_interval;
            }
            let next = self.deadline.map_or(self.next_check, |deadline| deadline.min(self.next_check));
            self.timer.as_mut().reset(next);
        }
    }
}

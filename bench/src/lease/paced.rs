//! Checks that come when they are due, whether or not those before have been answered.
//!
//! One thread asks. What is answered at once is done with; what has to wait for Redis does so in a task of its own, and
//! holds nobody up.

use super::node::{LEASED, LeasedNode, push};
use crate::histogram::Histogram;
use anyhow::{Result, bail};
use ratekeeper::{DrawOutcome, Draws, Limit, Store, StoreFailure};
use std::hint::spin_loop;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// What came of it.
pub(crate) struct Paced {
    /// From when checks were due until they were answered.
    pub(crate) times: Histogram,
    pub(crate) granted: u64,
    pub(crate) refused: u64,
    /// Checks that got no answer, and why the first did not.
    pub(crate) failed: u64,
    failure: Option<StoreFailure>,
    /// Checks that had to wait for Redis.
    pub(crate) waited: u64,
    pub(crate) elapsed: Duration,
}

/// Asks so many times a second for so long: the nodes and the keys in turn.
pub(crate) fn press(
    runtime: &Runtime,
    nodes: &[Arc<LeasedNode>],
    keys: &[String],
    limit: Limit,
    per_sec: f64,
    time: Duration,
) -> Paced {
    let _context = runtime.enter();
    let (tell, told) = channel();
    let total = (per_sec * time.as_secs_f64()) as u64;
    let mut paced = Paced {
        times: Histogram::new(),
        granted: 0,
        refused: 0,
        failed: 0,
        failure: None,
        waited: 0,
        elapsed: Duration::ZERO,
    };
    let mut spare: Vec<Draws> = Vec::new();
    let begin = Instant::now();
    for index in 0..total {
        let due = begin + Duration::from_nanos((index as f64 * 1e9 / per_sec) as u64);
        let mut draws = spare.pop().unwrap_or_default();
        draws.clear();
        push(&mut draws, &keys[index as usize % keys.len()], limit, LEASED);
        while Instant::now() < due {
            spin_loop();
        }
        let node = Arc::clone(&nodes[index as usize % nodes.len()]);
        let mut check: Pin<Box<_>> = Box::pin(async move {
            node.draw(&mut draws).await;
            draws
        });
        match check.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(draws) => {
                paced.count(&draws, due.elapsed());
                spare.push(draws);
            }
            Poll::Pending => {
                paced.waited += 1;
                let tell = tell.clone();
                runtime.spawn(async move {
                    let draws = check.await;
                    // It is listened to until all have told.
                    _ = tell.send((draws, due.elapsed()));
                });
            }
        }
    }
    paced.elapsed = begin.elapsed();
    drop(tell);
    for (draws, time) in told {
        paced.count(&draws, time);
    }
    paced
}

impl Paced {
    fn count(&mut self, draws: &Draws, time: Duration) {
        self.times.record(time.as_nanos() as u64);
        let failure = draws.group_failure(0);
        self.failure = self.failure.or(failure);
        match (failure, draws.all()[0].outcome()) {
            (Some(_), _) => self.failed += 1,
            (None, DrawOutcome::Granted(_)) => self.granted += 1,
            (None, DrawOutcome::Denied | DrawOutcome::WouldGrant) => self.refused += 1,
        }
    }

    /// The same, if every check got an answer.
    pub(crate) fn answered(self) -> Result<Paced> {
        if let Some(failure) = self.failure {
            bail!("{} of {} checks got no answer, the first because {failure}", self.failed, self.checks());
        }
        Ok(self)
    }

    pub(crate) fn checks(&self) -> u64 {
        self.granted + self.refused + self.failed
    }
}

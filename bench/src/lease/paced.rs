//! Checks at a fixed rate (open loop), whether or not earlier ones have been answered.
//!
//! One thread issues the checks. Checks that are decided at once are done; checks that wait for Redis continue in a
//! task of their own, and delay no others.

use super::node::{LEASED, push};
use crate::histogram::Histogram;
use crate::redis::host::LeasedRedis;
use anyhow::{Result, bail};
use ratekeeper::{DrawOutcome, Draws, Limit, Store, StoreFailure};
use std::hint::spin_loop;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// The results of a load load.
pub(crate) struct PacedLoad {
    /// From the time a check was due until it was answered.
    pub(crate) times: Histogram,
    pub(crate) granted: u64,
    pub(crate) denied: u64,
    /// Checks without an answer, and the reason of the first.
    pub(crate) failed: u64,
    failure: Option<StoreFailure>,
    /// Checks that waited for Redis.
    pub(crate) waited: u64,
    pub(crate) elapsed: Duration,
}

/// Issues `per_sec` checks per second for `time`, cycling through the nodes and the keys.
pub(crate) fn run_load(
    runtime: &Runtime,
    nodes: &[Arc<LeasedRedis>],
    keys: &[String],
    limit: Limit,
    per_sec: f64,
    time: Duration,
) -> PacedLoad {
    let _context = runtime.enter();
    let (sender, results) = channel();
    let total = (per_sec * time.as_secs_f64()) as u64;
    let mut load = PacedLoad {
        times: Histogram::new(),
        granted: 0,
        denied: 0,
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
                load.count(&draws, due.elapsed());
                spare.push(draws);
            }
            Poll::Pending => {
                load.waited += 1;
                let sender = sender.clone();
                runtime.spawn(async move {
                    let draws = check.await;
                    // The receiver is read until all senders are gone.
                    _ = sender.send((draws, due.elapsed()));
                });
            }
        }
    }
    load.elapsed = begin.elapsed();
    drop(sender);
    for (draws, time) in results {
        load.count(&draws, time);
    }
    load
}

impl PacedLoad {
    fn count(&mut self, draws: &Draws, time: Duration) {
        self.times.record(time.as_nanos() as u64);
        let failure = draws.group_failure(0);
        self.failure = self.failure.or(failure);
        match (failure, draws.all()[0].outcome()) {
            (Some(_), _) => self.failed += 1,
            (None, DrawOutcome::Granted(_)) => self.granted += 1,
            (None, DrawOutcome::Denied | DrawOutcome::WouldGrant) => self.denied += 1,
        }
    }

    /// Returns the results, or an error if a check got no answer.
    pub(crate) fn answered(self) -> Result<PacedLoad> {
        if let Some(failure) = self.failure {
            bail!("{} of {} checks failed, the first because {failure}", self.failed, self.checks());
        }
        Ok(self)
    }

    pub(crate) fn checks(&self) -> u64 {
        self.granted + self.denied + self.failed
    }
}

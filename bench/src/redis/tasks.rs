//! Concurrent tasks in this process, each of which makes one check at a time.

use super::QUOTA;
use super::host::{Host, LeasedRedis};
use super::measurement::{Measurement, Stopwatch};
use crate::keys::Rng;
use crate::server::rounds::LoadSchedule;
use crate::server::template::KEYS;
use anyhow::{Result, ensure};
use ratekeeper::{
    Algorithm, Amount, DrawOptions, DrawOutcome, Draws, KeyRef, Limit, Op, PermitId, Scope, Store,
};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// A store in this process, and the runtime with the one thread that it uses.
pub(crate) struct Tasks {
    runtime: Runtime,
    store: Arc<LeasedRedis>,
}

/// State shared by the tasks of a measurement.
#[derive(Default)]
struct Shared {
    checks: AtomicU64,
    wrong: AtomicU64,
    is_over: AtomicBool,
}

impl Tasks {
    pub(crate) fn connect(host: &Host) -> Result<Tasks> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let store = Arc::new(runtime.block_on(host.store())?);
        Ok(Tasks { runtime, store })
    }

    /// Runs `tasks` tasks that check random keys without a pause.
    pub(crate) fn measure(
        &self,
        host: &Host,
        tasks: u64,
        schedule: LoadSchedule,
        seed: u64,
    ) -> Result<Measurement> {
        let limit = limit(QUOTA)?;
        let shared = Arc::new(Shared::default());
        self.runtime.block_on(async {
            let mut set = JoinSet::new();
            for task in 0..tasks {
                let rng = Rng::new(seed << 32 | task);
                set.spawn(check_repeatedly(Arc::clone(&self.store), limit, rng, Arc::clone(&shared)));
            }
            tokio::time::sleep(schedule.warm_up).await;
            let (stopwatch, before) = (Stopwatch::start(host, None)?, shared.checks.load(Relaxed));
            tokio::time::sleep(schedule.time).await;
            let measurement = stopwatch.stop(shared.checks.load(Relaxed) - before)?;
            shared.is_over.store(true, Relaxed);
            set.join_all().await;
            let wrong = shared.wrong.load(Relaxed);
            ensure!(wrong == 0, "{wrong} checks were not allowed by Redis");
            Ok(measurement)
        })
    }

    /// Takes one unit from each of the keys `0..keys`.
    pub(crate) fn take_each(&self, keys: u64, tasks: u64, limit: Limit) -> Result<()> {
        let next = Arc::new(AtomicU64::new(0));
        let wrong = self.runtime.block_on(async {
            let mut set = JoinSet::new();
            for _ in 0..tasks {
                let (store, next) = (Arc::clone(&self.store), Arc::clone(&next));
                set.spawn(async move {
                    let mut checker = Checker::new(limit);
                    let mut wrong = 0;
                    loop {
                        let number = next.fetch_add(1, Relaxed);
                        if number >= keys {
                            return wrong;
                        }
                        wrong += u64::from(checker.check(&store, number).await != Some(true));
                    }
                });
            }
            set.join_all().await.into_iter().sum::<u64>()
        });
        ensure!(wrong == 0, "{wrong} checks were not allowed by Redis");
        Ok(())
    }

    /// Runs a future with the store, on the store's thread.
    pub(crate) fn run<T>(&self, work: impl AsyncFnOnce(&LeasedRedis) -> T) -> T {
        self.runtime.block_on(work(&self.store))
    }
}

async fn check_repeatedly(store: Arc<LeasedRedis>, limit: Limit, mut rng: Rng, shared: Arc<Shared>) {
    let mut checker = Checker::new(limit);
    while !shared.is_over.load(Relaxed) {
        let is_right = checker.check(&store, rng.below(KEYS)).await == Some(true);
        shared.checks.fetch_add(1, Relaxed);
        if !is_right {
            shared.wrong.fetch_add(1, Relaxed);
        }
    }
}

/// Checks one unit at a time, with reused buffers.
pub(crate) struct Checker {
    limit: Limit,
    key: String,
    draws: Draws,
}

impl Checker {
    pub(crate) fn new(limit: Limit) -> Checker {
        Checker { limit, key: String::new(), draws: Draws::new() }
    }

    /// Whether the check was allowed, by Redis or by what is cached of it; `None` if the store failed.
    pub(crate) async fn check(&mut self, store: &LeasedRedis, number: u64) -> Option<bool> {
        self.key.clear();
        write!(self.key, "user:{number:07}").expect("writing to a string does not fail");
        self.draws.clear();
        let act = Op::Take(Amount::exactly(1));
        self.draws.push(KeyRef::from(self.key.as_str()), Scope(0), self.limit, act, PermitId::default());
        self.draws.set_options(DrawOptions::EXACT);
        store.draw(&mut self.draws).await;
        match self.draws.group_failure(0) {
            Some(_) => None,
            None => Some(matches!(self.draws.group(0)[0].outcome(), DrawOutcome::Granted(_))),
        }
    }
}

/// A token bucket.
pub(crate) fn limit(quota: &str) -> Result<Limit> {
    Ok(Limit::new(Algorithm::TokenBucket, quota.parse()?)?)
}

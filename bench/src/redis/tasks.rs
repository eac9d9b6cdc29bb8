//! Tasks of this process that ask a store, each for one check at a time.

use super::QUOTA;
use super::host::Host;
use super::turn::{Turn, Watch};
use crate::keys::Rng;
use crate::redis::host::LeasedRedis;
use crate::server::rounds::Effort;
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

/// A store in this process, and the one thread that everything of it runs on.
pub(crate) struct Tasks {
    runtime: Runtime,
    store: Arc<LeasedRedis>,
}

/// What all tasks of a turn share.
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

    /// So many tasks ask without a pause, for keys at random.
    pub(crate) fn press(&self, host: &Host, tasks: u64, effort: Effort, seed: u64) -> Result<Turn> {
        let limit = limit(QUOTA)?;
        let shared = Arc::new(Shared::default());
        self.runtime.block_on(async {
            let mut set = JoinSet::new();
            for task in 0..tasks {
                let rng = Rng::new(seed << 32 | task);
                set.spawn(ask_on(Arc::clone(&self.store), limit, rng, Arc::clone(&shared)));
            }
            tokio::time::sleep(effort.warm_up).await;
            let (watch, before) = (Watch::start(host, None)?, shared.checks.load(Relaxed));
            tokio::time::sleep(effort.time).await;
            let turn = watch.stop(shared.checks.load(Relaxed) - before)?;
            shared.is_over.store(true, Relaxed);
            set.join_all().await;
            let wrong = shared.wrong.load(Relaxed);
            ensure!(wrong == 0, "{wrong} checks were not allowed by Redis");
            Ok(turn)
        })
    }

    /// Takes one unit of every key of numbers below `keys`, once.
    pub(crate) fn take_each(&self, keys: u64, tasks: u64, limit: Limit) -> Result<()> {
        let next = Arc::new(AtomicU64::new(0));
        let wrong = self.runtime.block_on(async {
            let mut set = JoinSet::new();
            for _ in 0..tasks {
                let (store, next) = (Arc::clone(&self.store), Arc::clone(&next));
                set.spawn(async move {
                    let mut asker = Asker::new(limit);
                    let mut wrong = 0;
                    loop {
                        let number = next.fetch_add(1, Relaxed);
                        if number >= keys {
                            return wrong;
                        }
                        wrong += u64::from(asker.ask(&store, number).await != Some(true));
                    }
                });
            }
            set.join_all().await.into_iter().sum::<u64>()
        });
        ensure!(wrong == 0, "{wrong} checks were not allowed by Redis");
        Ok(())
    }

    /// Lets something be done with the store, on its thread.
    pub(crate) fn run<T>(&self, work: impl AsyncFnOnce(&LeasedRedis) -> T) -> T {
        self.runtime.block_on(work(&self.store))
    }
}

async fn ask_on(store: Arc<LeasedRedis>, limit: Limit, mut rng: Rng, shared: Arc<Shared>) {
    let mut asker = Asker::new(limit);
    while !shared.is_over.load(Relaxed) {
        let is_right = asker.ask(&store, rng.below(KEYS)).await == Some(true);
        shared.checks.fetch_add(1, Relaxed);
        if !is_right {
            shared.wrong.fetch_add(1, Relaxed);
        }
    }
}

/// Asks for one unit at a time, with buffers that are kept.
pub(crate) struct Asker {
    limit: Limit,
    key: String,
    draws: Draws,
}

impl Asker {
    pub(crate) fn new(limit: Limit) -> Asker {
        Asker { limit, key: String::new(), draws: Draws::new() }
    }

    /// Whether Redis, or what is known of it, allowed it; nothing if it was not asked.
    pub(crate) async fn ask(&mut self, store: &LeasedRedis, number: u64) -> Option<bool> {
        self.key.clear();
        write!(self.key, "user:{number:07}").expect("a text can be added to");
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

//! Leased checks in one process, compared with the memory store: the same keys through the same interface.

use super::node::{LEASED, connect, push, runtime};
use crate::interleaved::{Expected, Samples, Schedule, run_interleaved};
use crate::keys::{self, Chunk, Mix};
use crate::redis::host::{Host, LeasedRedis};
use crate::redis::tasks::limit;
use crate::run::Run;
use crate::server::process::GENERATOR;
use crate::server::program::Program;
use crate::subject::{Subject, roomy};
use crate::table::Table;
use anyhow::{Result, ensure};
use ratekeeper::{DrawOptions, DrawOutcome, Draws, Limit, MemoryStore, Store, SystemClock};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// The required share of the memory store's speed.
const BAR: f64 = 0.8;
const THREADS: [usize; 2] = [1, 2];
/// Keys that stay in the cache, and keys that don't.
const FEW: u64 = 1_000;
const MANY: u64 = 20_000;
/// More than is ever taken. With many keys, each is drawn less often, so its limit is lower: otherwise the leased part
/// would be too small to be renewed before it expires.
const PLENTY: &str = "100000000/s";
const ENOUGH: &str = "10000/s";
/// Requests per call.
const BATCHES: [usize; 2] = [1, 16];
/// Keys are warm once fewer than one in `WARM` checks needs the store. Warming up may take this long.
const WARM: u64 = 10_000;
const WARM_UP: Duration = Duration::from_secs(60);
/// Large batches reach all keys quickly. With this many passes over some thousand keys, the keys are found to be busy,
/// so that more units are leased of each than a benchmark takes.
const WARM_BATCH: usize = 1024;
const WARM_PASSES: usize = 200;

pub(crate) fn measure(run: &mut Run, redis: &Program) -> Result<()> {
    let many = run.pace.pick(MANY, MANY / 20);
    let schedule = run
        .pace
        .pick(Schedule { rounds: 9, warm: 64, timed: 256 }, Schedule { rounds: 2, warm: 2, timed: 4 });
    run.say(format_args!(
        "\nin process: {} interleaved rounds; a sample is {} checks per thread after {} to warm up; every subject is called\n            \
         with `Store::draw` and awaited; none is denied",
        schedule.rounds,
        schedule.timed * Chunk::KEYS,
        schedule.warm * Chunk::KEYS,
    ));
    for (mix, quota) in [(Mix::One, PLENTY), (Mix::Uniform(FEW), PLENTY), (Mix::Uniform(many), ENOUGH)] {
        compare(run, redis, mix, quota, schedule)?;
    }
    Ok(())
}

fn compare(run: &mut Run, redis: &Program, mix: Mix, quota: &str, schedule: Schedule) -> Result<()> {
    let host = Host::start(redis, GENERATOR)?;
    let runtime = runtime()?;
    let leased = connect(&runtime, &host.url(), 1)?.remove(0);
    let memory = Arc::new(MemoryStore::with(SystemClock::new(), roomy(mix.keys()))?);
    let limit = limit(quota)?;
    let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
    for batch in BATCHES {
        let (handle, store) = (runtime.handle().clone(), Arc::clone(&memory));
        let options = DrawOptions::default();
        subjects.push(Box::new(BatchedStore { name: "memory", store, limit, options, batch, handle }));
        let (handle, store) = (runtime.handle().clone(), Arc::clone(&leased));
        subjects.push(Box::new(BatchedStore {
            name: "leased",
            store,
            limit,
            options: LEASED,
            batch,
            handle,
        }));
    }
    let (handle, store) = (runtime.handle().clone(), Arc::clone(&leased));
    warm_up(
        &BatchedStore { name: "leased", store, limit, options: LEASED, batch: WARM_BATCH, handle },
        mix.keys(),
    )?;
    keys::in_chunks(0, mix.keys(), |keys| _ = subjects[0].check_all(keys, 1));

    run.say(format_args!("\nkeys: {}, uniform, {quota} each", mix.keys()));
    let mut table = Table::new(1, ["", "threads", "ns/check", "min", "max", "x memory", "bar", ""]);
    let before = leased.counts().leases;
    for threads in THREADS {
        let samples = run_interleaved(&subjects, mix, threads, Expected::Allowed, schedule)?;
        for (pair, subjects) in samples.chunks(2).zip(subjects.chunks(2)) {
            let ratio = pair[0].median() / pair[1].median();
            let result = run.check_bar(ratio >= BAR);
            table.row(row(&*subjects[0], threads, &pair[0], &Default::default()));
            let figures = [format!("{ratio:.2}"), format!(">= {BAR}"), result.to_owned()];
            table.row(row(&*subjects[1], threads, &pair[1], &figures));
        }
    }
    run.say(table);
    let after = leased.counts().leases;
    run.say(format_args!(
        "of {} leased checks, {} needed the store; {} renewals",
        after.granted + after.misses - before.granted - before.misses,
        after.misses - before.misses,
        after.renewals - before.renewals,
    ));
    Ok(())
}

fn row(subject: &dyn Subject, threads: usize, samples: &Samples, figures: &[String; 3]) -> Vec<String> {
    let (min, max) = samples.spread();
    let times = [samples.median(), min, max].map(|time| format!("{time:.1}"));
    [&[subject.name(threads), threads.to_string()][..], &times, figures].concat()
}

/// Checks all keys until hardly any check needs the store.
fn warm_up(subject: &BatchedStore<LeasedRedis>, keys: u64) -> Result<()> {
    let (begin, store) = (Instant::now(), &subject.store);
    keys::in_chunks(0, keys, |keys| (0..WARM_PASSES).for_each(|_| _ = subject.check_all(keys, 1)));
    loop {
        let before = store.counts().leases;
        // Long enough for the store to answer.
        let pass = Instant::now();
        while pass.elapsed() < Duration::from_millis(500) {
            keys::in_chunks(0, keys, |keys| _ = subject.check_all(keys, 1));
        }
        let after = store.counts().leases;
        if (after.misses - before.misses) * WARM < after.granted - before.granted {
            return Ok(());
        }
        ensure!(begin.elapsed() < WARM_UP, "keys did not warm up: {:?}", store.counts());
    }
}

thread_local! {
    /// Refilled for each call, as the documentation recommends, so that nothing is allocated.
    static DRAWS: RefCell<Draws> = const { RefCell::new(Draws::new()) };
}

/// A store that decides `batch` requests per call.
struct BatchedStore<S> {
    name: &'static str,
    store: Arc<S>,
    limit: Limit,
    options: DrawOptions,
    batch: usize,
    handle: Handle,
}

impl<S: Store> BatchedStore<S> {
    async fn check_batch(&self, keys: &[String], draws: &mut Draws) -> usize {
        draws.clear();
        for key in keys {
            push(draws, key, self.limit, self.options);
        }
        self.store.draw(draws).await;
        match draws.failure_in(0..draws.all().len()) {
            Some(_) => 0,
            None => {
                draws.all().iter().filter(|draw| matches!(draw.outcome(), DrawOutcome::Granted(_))).count()
            }
        }
    }
}

impl<S: Store> Subject for BatchedStore<S> {
    fn name(&self, _: usize) -> String {
        match self.batch {
            1 => self.name.to_owned(),
            batch => format!("{}, batches of {batch}", self.name),
        }
    }

    fn charge(&self, key: &String, _: u32) -> bool {
        self.check_all(std::slice::from_ref(key), 1) == 1
    }

    fn check_all(&self, keys: &[String], _: usize) -> usize {
        let work = async |draws: &mut Draws| {
            let mut allowed = 0;
            for batch in keys.chunks(self.batch) {
                allowed += self.check_batch(batch, draws).await;
            }
            allowed
        };
        DRAWS.with_borrow_mut(|draws| self.handle.block_on(work(draws)))
    }
}

//! Leased checks in one process, beside the memory store's: the same keys, by the same way in.

use super::node::{LEASED, LeasedNode, connect, push, runtime};
use crate::keys::{self, Chunk, Mix};
use crate::race::{Effort, Laps, Verdict, race};
use crate::redis::host::Host;
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

/// What share of the memory store's checks must be answered from what was lent.
const BAR: f64 = 0.8;
const THREADS: [usize; 2] = [1, 2];
/// Keys that stay in the cache, and keys that don't.
const FEW: u64 = 1_000;
const MANY: u64 = 20_000;
/// More than anybody takes. Of many keys each is drawn less, and what is lent of it is a part of its limit that is worth
/// renewing before it lapses.
const PLENTY: &str = "100000000/s";
const ENOUGH: &str = "10000/s";
/// How many requests there are in a call.
const BATCHES: [usize; 2] = [1, 16];
/// Keys are warm once fewer than one of so many checks had to ask, and that must not take for ever.
const WARM: u64 = 10_000;
const WARM_UP: Duration = Duration::from_secs(60);
/// With so many requests in a call, keys that nobody has met are met soon; and with so many passes over some thousand keys,
/// one after the other, they are found to be busy, so that more is lent of each than a race takes.
const WARM_BATCH: usize = 1024;
const WARM_PASSES: usize = 200;

pub(crate) fn measure(run: &mut Run, redis: &Program) -> Result<()> {
    let many = run.pace.pick(MANY, MANY / 20);
    let effort =
        run.pace.pick(Effort { rounds: 9, warm: 64, timed: 256 }, Effort { rounds: 2, warm: 2, timed: 4 });
    run.say(format_args!(
        "\nin process: {} rounds, subjects in turn; a lap is {} checks a thread after {} to warm up; every subject is asked\n            \
         with `Store::draw`, and awaited; nobody is refused",
        effort.rounds,
        effort.timed * Chunk::KEYS,
        effort.warm * Chunk::KEYS,
    ));
    for (mix, quota) in [(Mix::One, PLENTY), (Mix::Uniform(FEW), PLENTY), (Mix::Uniform(many), ENOUGH)] {
        compare(run, redis, mix, quota, effort)?;
    }
    Ok(())
}

fn compare(run: &mut Run, redis: &Program, mix: Mix, quota: &str, effort: Effort) -> Result<()> {
    let host = Host::start(redis, GENERATOR)?;
    let runtime = runtime()?;
    let leased = connect(&runtime, &host.url(), 1)?.remove(0);
    let memory = Arc::new(MemoryStore::with(SystemClock::new(), roomy(mix.keys()))?);
    let limit = limit(quota)?;
    let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
    for batch in BATCHES {
        let (handle, store) = (runtime.handle().clone(), Arc::clone(&memory));
        let terms = DrawOptions::default();
        subjects.push(Box::new(Asked { name: "memory", store, limit, terms, batch, handle }));
        let (handle, store) = (runtime.handle().clone(), Arc::clone(&leased));
        subjects.push(Box::new(Asked { name: "leased", store, limit, terms: LEASED, batch, handle }));
    }
    let (handle, store) = (runtime.handle().clone(), Arc::clone(&leased));
    warm_up(&Asked { name: "leased", store, limit, terms: LEASED, batch: WARM_BATCH, handle }, mix.keys())?;
    keys::in_chunks(0, mix.keys(), |keys| _ = subjects[0].check_all(keys, 1));

    run.say(format_args!("\nkeys: {}, each as likely as any other, {quota} each", mix.keys()));
    let mut table = Table::new(1, ["", "threads", "ns/check", "min", "max", "x memory", "bar", ""]);
    let before = leased.counts().leases;
    for threads in THREADS {
        let laps = race(&subjects, mix, threads, Verdict::Allowed, effort)?;
        for (pair, subjects) in laps.chunks(2).zip(subjects.chunks(2)) {
            let ratio = pair[0].median() / pair[1].median();
            let verdict = run.judge(ratio >= BAR);
            table.row(row(&*subjects[0], threads, &pair[0], &Default::default()));
            let figures = [format!("{ratio:.2}"), format!(">= {BAR}"), verdict.to_owned()];
            table.row(row(&*subjects[1], threads, &pair[1], &figures));
        }
    }
    run.say(table);
    let after = leased.counts().leases;
    run.say(format_args!(
        "of {} leased checks {} asked; {} refills",
        after.granted + after.misses - before.granted - before.misses,
        after.misses - before.misses,
        after.renewals - before.renewals,
    ));
    Ok(())
}

fn row(subject: &dyn Subject, threads: usize, laps: &Laps, figures: &[String; 3]) -> Vec<String> {
    let (min, max) = laps.spread();
    let times = [laps.median(), min, max].map(|time| format!("{time:.1}"));
    [&[subject.name(threads), threads.to_string()][..], &times, figures].concat()
}

/// Asks for all keys until hardly any has to be asked for at the store.
fn warm_up(subject: &Asked<LeasedNode>, keys: u64) -> Result<()> {
    let (begin, store) = (Instant::now(), &subject.store);
    keys::in_chunks(0, keys, |keys| (0..WARM_PASSES).for_each(|_| _ = subject.check_all(keys, 1)));
    loop {
        let before = store.counts().leases;
        // A pass takes long enough for answers to come.
        let pass = Instant::now();
        while pass.elapsed() < Duration::from_millis(500) {
            keys::in_chunks(0, keys, |keys| _ = subject.check_all(keys, 1));
        }
        let after = store.counts().leases;
        if (after.misses - before.misses) * WARM < after.granted - before.granted {
            return Ok(());
        }
        ensure!(begin.elapsed() < WARM_UP, "keys do not get warm: {:?}", store.counts());
    }
}

thread_local! {
    /// Filled anew for each call, as its manual says, so that nothing is allocated.
    static DRAWS: RefCell<Draws> = const { RefCell::new(Draws::new()) };
}

/// A store that is asked for so many requests in a call.
struct Asked<S> {
    name: &'static str,
    store: Arc<S>,
    limit: Limit,
    terms: DrawOptions,
    batch: usize,
    handle: Handle,
}

impl<S: Store> Asked<S> {
    async fn check_batch(&self, keys: &[String], draws: &mut Draws) -> usize {
        draws.clear();
        for key in keys {
            push(draws, key, self.limit, self.terms);
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

impl<S: Store> Subject for Asked<S> {
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

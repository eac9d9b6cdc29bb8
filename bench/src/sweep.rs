//! How long a sweep delays checks, with half of all keys drained.
//!
//! One thread sweeps the whole table, shard after shard without a pause, while another checks random keys and times
//! every check. A small machine suspends a thread for a millisecond now and then, so each pass has a control: the same
//! checks for the same time, while the first thread only reads the clock and records the gaps between readings.

use crate::child::{self, Figures};
use crate::histogram::Histogram;
use crate::keys::{self, Rng};
use crate::run::Run;
use crate::table::Table;
use anyhow::{Context, Result, ensure};
use core_affinity::CoreId;
use quanta::Clock;
use ratekeeper::{
    Algorithm, Amount, Capacity, DrawOutcome, Limit, ManualClock, MemoryStore, Micros, PermitId, Scope, Span,
};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

/// The maximum duration of a sweep of one shard.
const BAR_NS: u64 = 1_000_000;
/// The reported quantiles: name and thousandths.
const SHARES: [(&str, u64); 4] = [("p50", 500), ("p99", 990), ("p99.9", 999), ("max", 1000)];

/// Sweeps a store of `keys` keys `passes` times.
pub(crate) fn measure(run: &mut Run, keys: u64, passes: u64) -> Result<()> {
    let figures = child::run("sweep", &[keys.to_string(), passes.to_string()])?;
    let mut table = Table::new(1, ["ns", "count", "p50", "p99", "p99.9", "max", "bar", ""]);
    for pass in 1..=passes {
        for what in ["sweep(1)", "check, swept", "check, control", "gap, control"] {
            let read = |name: &str| figures.read(&figure(pass, what, name));
            let mut cells = vec![format!("pass {pass}: {what}"), read("count")?.to_string()];
            for (share, _) in SHARES {
                cells.push(read(share)?.to_string());
            }
            if what == "sweep(1)" {
                cells.push(format!("<= {BAR_NS}"));
                cells.push(run.check_bar(read("max")? <= BAR_NS).to_owned());
            }
            table.row(cells);
        }
    }
    run.say(format_args!(
        "\nsweep: {keys} keys, half of them drained, swept by one thread while another checks random keys\n\
         (a gap is the time between two clock readings of the sweeping thread in the control: a disturbance of the machine)"
    ));
    run.say(table);
    Ok(())
}

fn figure(pass: u64, what: &str, name: &str) -> String {
    format!("{pass}/{}/{name}", what.replace(' ', "_"))
}

/// Runs in the child process.
pub(crate) fn take(keys: u64, passes: u64) -> Result<Figures> {
    let cores = core_affinity::get_core_ids().context("the number of cores is unknown")?;
    let [sweeping, checking, ..] = *cores else { anyhow::bail!("a sweep beside checks needs two cores") };
    let test = SweepTest::new(keys)?;
    let mut figures = Figures::default();
    for pass in 1..=passes {
        test.fill();
        let before = test.store.stats().keys;
        test.clock.advance(Span::secs(10));
        let swept = test.run_beside_checks(sweeping, checking, SweepTest::sweep_all);
        let dropped = before - test.store.stats().keys;
        ensure!(dropped * 100 >= before * 45, "the sweep dropped {dropped} of {before} keys, not about half");
        let control = test.run_beside_checks(sweeping, checking, |test| test.record_gaps(swept.time_ns));
        let series = [
            ("sweep(1)", &swept.acted),
            ("check, swept", &swept.checked),
            ("check, control", &control.checked),
            ("gap, control", &control.acted),
        ];
        for (what, times) in series {
            figures.note(figure(pass, what, "count"), times.total());
            for (name, share) in SHARES {
                figures.note(figure(pass, what, name), times.at_most(share));
            }
        }
    }
    Ok(figures)
}

/// A store of keys that drain soon (the even ones) and late (the odd ones).
struct SweepTest {
    clock: Arc<ManualClock>,
    store: MemoryStore<Arc<ManualClock>>,
    keys: u64,
    soon: Limit,
    late: Limit,
    timer: Clock,
}

/// The times that two threads recorded.
struct Recorded {
    acted: Histogram,
    checked: Histogram,
    time_ns: u64,
}

impl SweepTest {
    fn new(keys: u64) -> Result<SweepTest> {
        let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_000_000)));
        let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys((keys * 12 / 10) as usize))?;
        let limit = |quota: &str| anyhow::Ok(Limit::new(Algorithm::TokenBucket, quota.parse()?)?);
        let (soon, late) = (limit("1/s burst 100")?, limit("1/day burst 100")?);
        Ok(SweepTest { clock, store, keys, soon, late, timer: Clock::new() })
    }

    fn check(&self, number: u64, key: &str) -> DrawOutcome {
        let limit = if number.is_multiple_of(2) { &self.soon } else { &self.late };
        self.store
            .take_now(key.into(), Scope::default(), limit, Amount::exactly(1), PermitId::default())
            .outcome()
    }

    fn fill(&self) {
        let mut number = 0;
        keys::in_chunks(0, self.keys, |keys| {
            for key in keys {
                self.check(number, key);
                number += 1;
            }
        });
    }

    /// Runs `act` on one thread while another checks.
    fn run_beside_checks(
        &self,
        acting: CoreId,
        checking: CoreId,
        act: impl FnOnce(&SweepTest) -> Histogram + Send,
    ) -> Recorded {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let checker = scope.spawn(|| {
                core_affinity::set_for_current(checking);
                self.check_until(&done)
            });
            let actor = scope.spawn(|| {
                core_affinity::set_for_current(acting);
                let start = self.timer.raw();
                let acted = act(self);
                done.store(true, Relaxed);
                (acted, self.timer.delta_as_nanos(start, self.timer.raw()))
            });
            let (acted, time_ns) = actor.join().expect("a sweep does not panic");
            Recorded { acted, checked: checker.join().expect("a check does not panic"), time_ns }
        })
    }

    /// Checks random keys and times each check.
    fn check_until(&self, done: &AtomicBool) -> Histogram {
        let (mut times, mut rng, mut key) = (Histogram::new(), Rng::new(1), String::new());
        while !done.load(Relaxed) {
            let number = rng.below(self.keys);
            keys::write(&mut key, number);
            let start = self.timer.raw();
            std::hint::black_box(self.check(number, &key));
            times.record(self.timer.delta_as_nanos(start, self.timer.raw()));
        }
        times
    }

    /// Sweeps every shard once and times each sweep.
    fn sweep_all(&self) -> Histogram {
        let mut times = Histogram::new();
        for _ in 0..self.store.shards() {
            let start = self.timer.raw();
            self.store.sweep(1);
            times.record(self.timer.delta_as_nanos(start, self.timer.raw()));
        }
        times
    }

    /// Reads the clock repeatedly for `time_ns`, and records the time between readings.
    fn record_gaps(&self, time_ns: u64) -> Histogram {
        let mut times = Histogram::new();
        let start = self.timer.raw();
        let mut before = start;
        while self.timer.delta_as_nanos(start, before) < time_ns {
            let now = self.timer.raw();
            times.record(self.timer.delta_as_nanos(before, now));
            before = now;
        }
        times
    }
}

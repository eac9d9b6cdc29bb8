//! Nanoseconds per check in one process, compared with governor and throttlecrab.
//!
//! Each library is called through its public API and reads its own clock. All keys exist before timing starts, each
//! with a debt that outlasts the run. Every check is allowed, or in `denied` every check is denied.

use crate::floor::Floor;
use crate::interleaved::{Expected, Samples, Schedule, run_interleaved};
use crate::keys::{self, Mix, Zipf};
use crate::other_limiters::{Governor, Throttlecrab};
use crate::run::Run;
use crate::several_limits::{self, Batch, ThreeChecks, ThreeLimits};
use crate::subject::{Allowance, Ratekeeper, Subject, roomy};
use crate::table::Table;
use anyhow::{Result, ensure};

const THREADS: [usize; 2] = [1, 2];
const KEYS: u64 = 1_000_000;
const DENIED_KEYS: u64 = 1000;
/// The units taken from each key before timing starts. A thousand units take an hour to refill.
const PREFILL: u32 = 1000;

/// A key distribution, and the required ratio of Ratekeeper's speed to governor's.
struct Scenario {
    name: &'static str,
    mix: Mix,
    expected: Expected,
    bar: Option<f64>,
}

/// Measures every scenario whose name contains `only`.
pub(crate) fn measure(run: &mut Run, only: Option<&str>) -> Result<()> {
    let keys = run.pace.pick(KEYS, KEYS / 20);
    // Nine rounds, whose median is quoted. With more than a million checks per thread, a scheduler tick is a small part
    // of a measurement.
    let schedule = run
        .pace
        .pick(Schedule { rounds: 9, warm: 64, timed: 256 }, Schedule { rounds: 2, warm: 2, timed: 4 });
    run.say(format_args!(
        "method    {} interleaved rounds; a sample is {} checks per thread after {} to warm up",
        schedule.rounds,
        schedule.timed * keys::Chunk::KEYS,
        schedule.warm * keys::Chunk::KEYS,
    ));
    for scenario in scenarios(keys) {
        if only.is_none_or(|only| scenario.name.contains(only)) {
            compare(run, &scenario, schedule)?;
        }
    }
    if only.is_none_or(|only| "three".contains(only)) {
        compare_three(run, keys, schedule)?;
    }
    Ok(())
}

fn scenarios(keys: u64) -> [Scenario; 4] {
    let (allowed, denied) = (Expected::Allowed, Expected::Denied);
    [
        Scenario { name: "hot", mix: Mix::One, expected: allowed, bar: Some(1.5) },
        Scenario { name: "uniform", mix: Mix::Uniform(keys), expected: allowed, bar: Some(2.0) },
        Scenario { name: "zipf", mix: Mix::Zipf(Zipf::new(keys, 1.1)), expected: allowed, bar: Some(2.0) },
        Scenario { name: "denied", mix: Mix::Uniform(DENIED_KEYS), expected: denied, bar: None },
    ]
}

/// Compares Ratekeeper with the other limiters.
fn compare(run: &mut Run, scenario: &Scenario, schedule: Schedule) -> Result<()> {
    let subjects = subjects(scenario)?;
    for subject in &subjects {
        prepare(&**subject, scenario)?;
    }
    let mut table = Table::new(1, ["", "threads", "ns/check", "min", "max", "x governor", "bar", ""]);
    for threads in THREADS {
        let samples = run_interleaved(&subjects, scenario.mix, threads, scenario.expected, schedule)?;
        // `subjects` returns Ratekeeper first and governor second.
        let governor = samples[1].median();
        for (index, (subject, samples)) in subjects.iter().zip(&samples).enumerate() {
            let ratio = governor / samples.median();
            let bar = scenario.bar.filter(|_| index == 0);
            let result = bar.map_or("", |bar| run.check_bar(ratio >= bar));
            let bar = bar.map_or(String::new(), |bar| format!(">= {bar}"));
            table.row(row(&subject.name(threads), threads, samples, format!("{ratio:.2}"), bar, result));
        }
    }
    let result = format!("{:?}", scenario.expected).to_lowercase();
    run.say(format_args!("\n{}: keys: {}, every check {result}", scenario.name, scenario.mix.keys()));
    run.say(table);
    Ok(())
}

fn subjects(scenario: &Scenario) -> Result<Vec<Box<dyn Subject>>> {
    let keys = scenario.mix.keys();
    let allowance = match scenario.expected {
        Expected::Allowed => Allowance::PLENTY,
        Expected::Denied => Allowance::SCANT,
    };
    let mut subjects: Vec<Box<dyn Subject>> = vec![
        Box::new(Ratekeeper::new(allowance, roomy(keys))?),
        Box::new(Governor::new(allowance)?),
        Box::new(Throttlecrab::periodic(allowance, keys)),
        Box::new(Throttlecrab::adaptive(allowance, keys)),
        Box::new(Floor::new(allowance, keys)),
    ];
    if scenario.bar.is_some() && keys > 1 {
        subjects.push(Box::new(Batch::new(allowance, keys)?));
    }
    Ok(subjects)
}

/// One check of three limits must cost less than three checks of one limit.
fn compare_three(run: &mut Run, keys: u64, schedule: Schedule) -> Result<()> {
    let subjects: [Box<dyn Subject>; 2] =
        [Box::new(ThreeLimits::new(keys)?), Box::new(ThreeChecks::new(keys)?)];
    let scenario =
        Scenario { name: "three", mix: Mix::Uniform(keys), expected: Expected::Allowed, bar: None };
    for subject in &subjects {
        prepare(&**subject, &scenario)?;
    }
    let mut table = Table::new(1, ["", "threads", "ns/request", "min", "max", "x three checks", "bar", ""]);
    for threads in THREADS {
        let samples = run_interleaved(&subjects, scenario.mix, threads, scenario.expected, schedule)?;
        let ratio = samples[0].median() / samples[1].median();
        let (bar, result) = ("< 1".to_owned(), run.check_bar(ratio < 1.0));
        let names = subjects.each_ref().map(|subject| subject.name(threads));
        table.row(row(&names[0], threads, &samples[0], format!("{ratio:.2}"), bar, result));
        table.row(row(&names[1], threads, &samples[1], "1.00".to_owned(), String::new(), ""));
    }
    run.say(format_args!("\nthree: keys: {keys}, uniform, three limits each"));
    run.say(table);
    let result = run.check_bar(several_limits::have_separate_counts()?);
    run.say(format_args!("limits of one key have separate counts: {result}"));
    Ok(())
}

fn row(
    name: &str,
    threads: usize,
    samples: &Samples,
    ratio: String,
    bar: String,
    result: &str,
) -> [String; 8] {
    let (min, max) = samples.spread();
    let ns = |time: f64| format!("{time:.1}");
    let result = result.to_owned();
    [name.to_owned(), threads.to_string(), ns(samples.median()), ns(min), ns(max), ratio, bar, result]
}

/// Brings every key into the state that the scenario needs: indebted, or exhausted.
fn prepare(subject: &dyn Subject, scenario: &Scenario) -> Result<()> {
    let is_ready = |key: &String| match scenario.expected {
        Expected::Allowed => subject.charge(key, PREFILL),
        Expected::Denied => (0..100).any(|_| !subject.charge(key, 1)),
    };
    let (name, keys) = (subject.name(1), scenario.mix.keys());
    let mut unready = 0;
    keys::in_chunks(0, keys, |keys| unready += keys.iter().filter(|key| !is_ready(key)).count());
    ensure!(unready == 0, "{name}: {unready} of {keys} keys are in the wrong state before the benchmark");
    let held = subject.held().unwrap_or(keys as usize);
    ensure!(held == keys as usize, "{name}: holds {held} of {keys} keys before the benchmark");
    Ok(())
}

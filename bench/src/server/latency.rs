//! Latency at half of a server's maximum throughput.
//!
//! Requests are sent at a fixed rate, whether or not responses arrive, and the latency of a request counts from when it
//! was due. So whenever the machine suspends a core for a moment, every request due meanwhile is late, whichever server
//! answers. The control shows how much that is: a thread on the servers' core that answers each due request at once, by
//! reading the clock.

use super::load::{Load, Tally};
use super::process;
use super::rounds::LoadSchedule;
use super::subject::{CONNECTIONS, Subject};
use crate::histogram::Histogram;
use crate::interleaved::Samples;
use crate::run::Run;
use crate::table::Table;
use anyhow::{Context, Result};
use quanta::Clock;
use std::time::Duration;
use std::{hint, thread};

/// The maximum p99, at half of Ratekeeper's throughput.
const BAR_P99_US: f64 = 1000.0;

/// The servers to measure, each with its maximum requests per second.
pub(crate) struct Servers<'a> {
    pub(crate) ratekeeper: (&'a Subject, f64),
    pub(crate) floor: &'a Subject,
    pub(crate) others: Vec<(&'a Subject, f64)>,
}

/// What answers the requests.
enum Server<'a> {
    Subject(&'a Subject),
    /// The control.
    Clock,
}

struct Entry<'a> {
    name: String,
    server: Server<'a>,
    per_sec: f64,
    bar: Option<f64>,
    rounds: Vec<Histogram>,
}

/// Measures all servers in interleaved rounds, each with its own plan.
pub(crate) fn measure(
    run: &mut Run,
    units: &str,
    servers: &Servers<'_>,
    schedule: LoadSchedule,
    tally: &mut Tally,
) -> Result<()> {
    let (ratekeeper, most) = servers.ratekeeper;
    let control = Entry {
        name: "control: reads the clock".to_owned(),
        server: Server::Clock,
        ..entry(ratekeeper, most / 2.0)
    };
    let mut entries = vec![
        Entry { bar: Some(BAR_P99_US), ..entry(ratekeeper, most / 2.0) },
        entry(servers.floor, most / 2.0),
    ];
    entries.extend(servers.others.iter().map(|(other, most)| entry(other, most / 2.0)));
    entries.push(control);
    for round in 0..schedule.rounds {
        for entry in &mut entries {
            let times = entry.time(schedule, round, tally);
            entry.rounds.push(times.with_context(|| entry.name.clone())?);
        }
    }
    let LoadSchedule { rounds, time, .. } = schedule;
    run.say(format_args!(
        "\nlatency of {units}: {CONNECTIONS} connections, each server at half of its own {units}/s, the lower bound and the control\n         \
         at Ratekeeper's, {rounds} rounds of {time:?}; latency counts from when a request was due, whether or not its\n         \
         connection was free; medians of the rounds, and the minimum and maximum p99",
    ));
    let per_sec = format!("{units}/s");
    let mut table = Table::new(1, ["us", &per_sec, "p50", "p99", "min", "max", "p99.9", "max", "bar", ""]);
    for entry in &entries {
        table.row(entry.row(run));
    }
    run.say(table);
    Ok(())
}

fn entry(subject: &Subject, per_sec: f64) -> Entry<'_> {
    let (name, rounds) = (subject.name.clone(), Vec::new());
    Entry { name, server: Server::Subject(subject), per_sec, bar: None, rounds }
}

impl Entry<'_> {
    fn time(&self, schedule: LoadSchedule, seed: u64, tally: &mut Tally) -> Result<Histogram> {
        match self.server {
            Server::Clock => read_clock(self.per_sec, schedule.time),
            Server::Subject(subject) => {
                subject.process.resume()?;
                let mut load = Load::connect(subject.address, &subject.plan, seed)?;
                let times = load.pace(self.per_sec, schedule.warm_up, schedule.time)?;
                tally.add(load.finish()?);
                subject.process.pause()?;
                Ok(times)
            }
        }
    }

    fn row(&self, run: &mut Run) -> Vec<String> {
        let samples = |of_thousand: u64| {
            let micros = |times: &Histogram| times.at_most(of_thousand) as f64 / 1e3;
            Samples::new(self.rounds.iter().map(micros).collect())
        };
        let p99 = samples(990);
        let (min, max) = p99.spread();
        let mut cells = vec![self.name.clone(), format!("{:.0}", self.per_sec)];
        let times =
            [samples(500).median(), p99.median(), min, max, samples(999).median(), samples(1000).spread().1];
        cells.extend(times.map(|time| format!("{time:.1}")));
        if let Some(bar) = self.bar {
            let result = run.check_bar(p99.median() < bar).to_owned();
            cells.extend([format!("p99 < {bar}"), result]);
        }
        cells
    }
}

/// The latency of a server that takes no time: on the servers' core, how late the clock is read after a request was
/// due, while the generator's core is as busy as usual.
fn read_clock(per_sec: f64, time: Duration) -> Result<Histogram> {
    let reader = thread::spawn(move || {
        process::pin(process::SERVERS)?;
        let clock = Clock::new();
        let begin = clock.now();
        let mut times = Histogram::new();
        let mut index = 0;
        loop {
            let elapsed = (clock.now() - begin).as_nanos() as f64;
            while index as f64 * 1e9 / per_sec <= elapsed {
                times.record((elapsed - index as f64 * 1e9 / per_sec) as u64);
                index += 1;
            }
            if elapsed >= time.as_nanos() as f64 {
                return anyhow::Ok(times);
            }
        }
    });
    while !reader.is_finished() {
        hint::spin_loop();
    }
    reader.join().expect("reading the clock does not panic")
}

//! One measurement of a subject: its checks, and the CPU time of each process.

use super::host::Host;
use crate::interleaved::Samples;
use crate::table::Table;
use anyhow::{Context, Result};
use std::fs;
use std::time::{Duration, Instant};

/// The CPU time of the processes so far.
#[derive(Clone, Copy, Debug)]
struct Times {
    at: Instant,
    /// How often Redis has run a script.
    calls: u64,
    redis: Duration,
    /// Ratekeeper, where it is a separate process.
    ratekeeper: Duration,
    /// This process, including children it has waited for.
    own: Duration,
}

/// Measures the processes between two points in time.
pub(crate) struct Stopwatch<'a> {
    host: &'a Host,
    ratekeeper: Option<&'a crate::server::process::Process>,
    began: Times,
}

/// The results of a measurement, with times in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measurement {
    pub(crate) checks: f64,
    /// How often Redis ran a script.
    pub(crate) calls: f64,
    pub(crate) elapsed: f64,
    pub(crate) redis: f64,
    pub(crate) ratekeeper: f64,
    pub(crate) own: f64,
}

impl<'a> Stopwatch<'a> {
    pub(crate) fn start(
        host: &'a Host,
        ratekeeper: Option<&'a crate::server::process::Process>,
    ) -> Result<Stopwatch<'a>> {
        let began = read(host, ratekeeper)?;
        Ok(Stopwatch { host, ratekeeper, began })
    }

    pub(crate) fn stop(&self, checks: u64) -> Result<Measurement> {
        let (began, now) = (self.began, read(self.host, self.ratekeeper)?);
        Ok(Measurement {
            checks: checks as f64,
            calls: (now.calls - began.calls) as f64,
            elapsed: (now.at - began.at).as_secs_f64(),
            redis: (now.redis - began.redis).as_secs_f64(),
            ratekeeper: (now.ratekeeper - began.ratekeeper).as_secs_f64(),
            own: (now.own - began.own).as_secs_f64(),
        })
    }
}

fn read(host: &Host, ratekeeper: Option<&crate::server::process::Process>) -> Result<Times> {
    Ok(Times {
        calls: host.calls("evalsha")?,
        at: Instant::now(),
        redis: host.process.cpu_time()?,
        ratekeeper: ratekeeper.map_or(Ok(Duration::ZERO), crate::server::process::Process::cpu_time)?,
        own: own_time()?,
    })
}

/// The CPU time of this process, including children it has waited for.
fn own_time() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().skip(11).take(4));
    let ticks = fields.map(|fields| fields.map(|field| field.parse::<u64>().unwrap_or(0)).sum::<u64>());
    let ticks = ticks.context("/proc has no CPU time of this process")?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// What the CPU time of this process was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnTime {
    /// Ratekeeper and the tasks that call it, both in this process.
    Ratekeeper,
    /// A load generator.
    Generator,
}

/// A subject and the results of its measurements.
pub(crate) struct Outcome {
    name: String,
    own: OwnTime,
    pub(crate) per_sec: Samples,
    pub(crate) redis_us: Samples,
    ratekeeper_us: Samples,
    own_us: Samples,
    redis_busy: Samples,
    per_call: Samples,
}

impl Outcome {
    pub(crate) fn of(name: String, own: OwnTime, measurements: &[Measurement]) -> Outcome {
        let samples =
            |figure: fn(&Measurement) -> f64| Samples::new(measurements.iter().map(figure).collect());
        Outcome {
            name,
            own,
            per_sec: samples(|measurement| measurement.checks / measurement.elapsed),
            redis_us: samples(|measurement| measurement.redis * 1e6 / measurement.checks),
            ratekeeper_us: samples(|measurement| measurement.ratekeeper * 1e6 / measurement.checks),
            own_us: samples(|measurement| measurement.own * 1e6 / measurement.checks),
            redis_busy: samples(|measurement| measurement.redis / measurement.elapsed),
            per_call: samples(|measurement| measurement.checks / measurement.calls),
        }
    }

    /// Checks per second of Redis CPU time.
    pub(crate) fn per_redis_core(&self) -> f64 {
        1e6 / self.redis_us.median()
    }

    /// Checks per second of Ratekeeper CPU time.
    pub(crate) fn per_ratekeeper_core(&self) -> f64 {
        1e6 / match self.own {
            OwnTime::Ratekeeper => self.own_us.median(),
            OwnTime::Generator => self.ratekeeper_us.median(),
        }
    }

    fn row(&self) -> [String; 10] {
        let count = |number: f64| format!("{number:.0}");
        let micros = |samples: &Samples| format!("{:.2}", samples.median());
        let ((least, most), (shortest, longest)) = (self.per_sec.spread(), self.redis_us.spread());
        let (ratekeeper, generator) = match self.own {
            OwnTime::Ratekeeper => (micros(&self.own_us), "included".to_owned()),
            OwnTime::Generator if self.ratekeeper_us.median() > 0.0 => {
                (micros(&self.ratekeeper_us), micros(&self.own_us))
            }
            OwnTime::Generator => ("-".to_owned(), micros(&self.own_us)),
        };
        [
            self.name.clone(),
            count(self.per_sec.median()),
            format!("{}-{}", count(least), count(most)),
            micros(&self.redis_us),
            format!("{shortest:.2}-{longest:.2}"),
            count(self.per_redis_core()),
            format!("{:.1}", self.per_call.median()),
            format!("{:.0} %", 100.0 * self.redis_busy.median()),
            ratekeeper,
            generator,
        ]
    }
}

/// A table of the results of all subjects.
pub(crate) fn table(outcomes: &[Outcome]) -> Table {
    let heading = [
        "",
        "checks/s",
        "spread",
        "Redis us",
        "spread",
        "1/us",
        "per call",
        "busy",
        "Ratekeeper us",
        "generator us",
    ];
    let mut table = Table::new(1, heading);
    for outcome in outcomes {
        table.row(outcome.row());
    }
    table
}

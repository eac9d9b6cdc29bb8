//! Tables of the results of servers, and Ratekeeper compared with its bars.

use super::load::Plan;
use super::rounds::Figures;
use super::subject::Subject;
use crate::run::Run;
use crate::table::Table;

/// A server that used less of its core was delayed by something else: by the generator if that had less than this to
/// spare, or by another process on the machine.
const LEAST_BUSY: f64 = 0.95;
const LEAST_SPARE: f64 = 0.02;

/// A server, its load and its figures.
#[derive(Clone, Copy)]
pub(crate) struct Outcome<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) figures: &'a Figures,
    /// Checks per request.
    checks: f64,
}

impl<'a> Outcome<'a> {
    /// Checks per second.
    pub(crate) fn per_sec(&self) -> f64 {
        self.figures.per_sec.median() * self.checks
    }

    /// Checks per second of CPU time.
    pub(crate) fn per_core(&self) -> f64 {
        self.checks * 1e6 / self.figures.cpu_us.median()
    }

    /// The server's CPU time per check, in microseconds.
    pub(crate) fn cpu_us(&self) -> f64 {
        self.figures.cpu_us.median() / self.checks
    }

    fn row(&self) -> [String; 10] {
        let per_sec = |number: f64| format!("{:.0}", number * self.checks);
        let cpu_us = |time: f64| format!("{:.2}", time / self.checks);
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let figures = self.figures;
        let ((least, most), (shortest, longest)) = (figures.per_sec.spread(), figures.cpu_us.spread());
        [
            self.subject.name.clone(),
            per_sec(figures.per_sec.median()),
            per_sec(least),
            per_sec(most),
            cpu_us(figures.cpu_us.median()),
            cpu_us(shortest),
            cpu_us(longest),
            format!("{:.0}", self.per_core()),
            percent(figures.busy.median()),
            percent(figures.spare.median()),
        ]
    }
}

/// Pairs each server with its figures.
pub(crate) fn outcomes<'a>(entries: &[(&'a Subject, &Plan)], figures: &'a [Figures]) -> Vec<Outcome<'a>> {
    let outcome = |((subject, plan), figures): (&(&'a Subject, &Plan), &'a Figures)| Outcome {
        subject,
        figures,
        checks: plan.checks() as f64,
    };
    entries.iter().zip(figures).map(outcome).collect()
}

/// Prints a table of the servers' throughput in `units` per second.
pub(crate) fn show(run: &mut Run, units: &str, outcomes: &[Outcome<'_>]) {
    let units = format!("{units}/s");
    let mut table =
        Table::new(1, ["", &units, "min", "max", "CPU us", "min", "max", "1/CPU", "busy", "spare"]);
    for outcome in outcomes {
        table.row(outcome.row());
    }
    run.say(table);
}

/// Warns about figures that something else than the server has limited.
pub(crate) fn warn(run: &mut Run, outcomes: &[Outcome<'_>]) {
    for Outcome { subject, figures, .. } in outcomes {
        let name = &subject.name;
        if figures.busy.median() < LEAST_BUSY && figures.spare.median() < LEAST_SPARE {
            run.say(format_args!(
                "{name}: the generator was the bottleneck, so the throughput is a lower bound"
            ));
        } else if figures.busy.median() < LEAST_BUSY {
            run.say(format_args!(
                "{name}: it shared its core with other processes, so only its CPU time counts"
            ));
        }
    }
}

/// Ratekeeper compared with its bars.
pub(crate) struct Bars(Table);

impl Bars {
    pub(crate) fn new() -> Bars {
        Bars(Table::new(1, ["ratekeeper", "measured", "by CPU", "bar", ""]))
    }

    /// Requires at least `bar` checks per second.
    pub(crate) fn rate(&mut self, run: &mut Run, name: &str, ours: Outcome<'_>, bar: f64) {
        let (per_sec, per_core) = (ours.per_sec(), ours.per_core());
        let result = run.check_bar(per_sec >= bar).to_owned();
        let cells = [name.to_owned(), format!("{per_sec:.0}"), format!("{per_core:.0}")];
        self.0.row([&cells[..], &[format!(">= {bar}"), result]].concat());
    }

    /// Requires at least `bar` times the throughput of another server.
    pub(crate) fn ratio(
        &mut self,
        run: &mut Run,
        name: &str,
        ours: Outcome<'_>,
        other: Outcome<'_>,
        bar: f64,
    ) {
        let ratio = ours.per_sec() / other.per_sec();
        let by_cpu = other.cpu_us() / ours.cpu_us();
        let result = run.check_bar(ratio >= bar).to_owned();
        let cells = [format!("x {name}"), format!("{ratio:.2}"), format!("{by_cpu:.2}")];
        self.0.row([&cells[..], &[format!(">= {bar}"), result]].concat());
    }

    pub(crate) fn show(self, run: &mut Run) {
        run.say("");
        run.say(self.0);
    }
}

//! What servers did, in tables: each beside the others, and Ratekeeper against its bars.

use super::load::Plan;
use super::rounds::Figures;
use super::subject::Subject;
use crate::run::Run;
use crate::table::Table;

/// A server that had less of its core was held up by something else: the generator, if that had less than this to spare,
/// or whatever else ran on the machine.
const LEAST_BUSY: f64 = 0.95;
const LEAST_SPARE: f64 = 0.02;

/// A server, what it was asked, and what came of it.
#[derive(Clone, Copy)]
pub(crate) struct Outcome<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) figures: &'a Figures,
    /// How many checks each question held.
    checks: f64,
}

impl<'a> Outcome<'a> {
    /// Checks a second.
    pub(crate) fn per_sec(&self) -> f64 {
        self.figures.per_sec.median() * self.checks
    }

    /// Checks that a second of a core is enough for.
    pub(crate) fn per_core(&self) -> f64 {
        self.checks * 1e6 / self.figures.cpu_us.median()
    }

    /// The server's own time for a check, in microseconds.
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

/// What came of each server.
pub(crate) fn outcomes<'a>(entries: &[(&'a Subject, &Plan)], figures: &'a [Figures]) -> Vec<Outcome<'a>> {
    let outcome = |((subject, plan), figures): (&(&'a Subject, &Plan), &'a Figures)| Outcome {
        subject,
        figures,
        checks: plan.checks() as f64,
    };
    entries.iter().zip(figures).map(outcome).collect()
}

/// Shows what servers did, so many `units` a second, one beside the other.
pub(crate) fn show(run: &mut Run, units: &str, outcomes: &[Outcome<'_>]) {
    let units = format!("{units}/s");
    let mut table =
        Table::new(1, ["", &units, "min", "max", "CPU us", "min", "max", "1/CPU", "busy", "spare"]);
    for outcome in outcomes {
        table.row(outcome.row());
    }
    run.say(table);
}

/// Says whose figures are not its own alone.
pub(crate) fn warn(run: &mut Run, outcomes: &[Outcome<'_>]) {
    for Outcome { subject, figures, .. } in outcomes {
        let name = &subject.name;
        if figures.busy.median() < LEAST_BUSY && figures.spare.median() < LEAST_SPARE {
            run.say(format_args!("{name}: it may do more, but the generator had no time to spare"));
        } else if figures.busy.median() < LEAST_BUSY {
            run.say(format_args!("{name}: it did not have its core to itself, so only its CPU time counts"));
        }
    }
}

/// Ratekeeper against its bars.
pub(crate) struct Bars(Table);

impl Bars {
    pub(crate) fn new() -> Bars {
        Bars(Table::new(1, ["ratekeeper", "measured", "by CPU", "bar", ""]))
    }

    /// So many checks a second at least.
    pub(crate) fn rate(&mut self, run: &mut Run, name: &str, ours: Outcome<'_>, bar: f64) {
        let (per_sec, per_core) = (ours.per_sec(), ours.per_core());
        let result = run.check_bar(per_sec >= bar).to_owned();
        let cells = [name.to_owned(), format!("{per_sec:.0}"), format!("{per_core:.0}")];
        self.0.row([&cells[..], &[format!(">= {bar}"), result]].concat());
    }

    /// So many times as many checks a second as another at least.
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

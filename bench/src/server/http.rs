//! HTTP: single checks, batches and latency, compared with throttlecrab's server, nginx and two lower bounds.

use super::floor::Kind;
use super::latency;
use super::load::Tally;
use super::program::Programs;
use super::report::{self, Bars};
use super::rounds::{Figures, LoadSchedule, run_rounds};
use super::subject::http::{self as server, BATCH, BATCH_CONNECTIONS};
use super::subject::{CONNECTIONS, ServerConfig, Subject};
use crate::run::Run;
use anyhow::Result;

/// The required ratio to the throughput of throttlecrab's server.
const BAR_THROTTLECRAB: f64 = 1.3;
/// The required share of the lower bound's throughput.
const BAR_FLOOR: f64 = 0.85;
/// The required checks per second in batches.
const BAR_BATCH: f64 = 1.7e6;

/// All servers. Each is stopped until it is measured.
pub(crate) struct Servers {
    ratekeeper: Subject,
    throttlecrab: Subject,
    nginx: Subject,
    hyper: Subject,
    by_hand: Subject,
}

impl Servers {
    pub(crate) fn start(programs: &Programs) -> Result<Servers> {
        let servers = Servers {
            ratekeeper: server::ratekeeper(&programs.ratekeeper, ServerConfig::DEFAULT)?,
            throttlecrab: server::throttlecrab(&programs.throttlecrab)?,
            nginx: server::nginx(&programs.nginx)?,
            hyper: server::floor(Kind::Hyper)?,
            by_hand: server::floor(Kind::ByHand)?,
        };
        for subject in servers.all() {
            subject.verify()?;
        }
        Ok(servers)
    }

    fn all(&self) -> [&Subject; 5] {
        [&self.ratekeeper, &self.throttlecrab, &self.nginx, &self.hyper, &self.by_hand]
    }

    /// Measures requests of one check. Returns the figures of every server, in the order of `all`.
    pub(crate) fn compare(
        &self,
        run: &mut Run,
        schedule: LoadSchedule,
        tally: &mut Tally,
    ) -> Result<Vec<Figures>> {
        let entries = self.all().map(|subject| (subject, &subject.plan));
        let figures = run_rounds(&entries, schedule, tally)?;
        run.say(format_args!(
            "\nrequests: one check each, {CONNECTIONS} connections, one request in flight on each"
        ));
        let outcomes = report::outcomes(&entries, &figures);
        report::show(run, "requests", &outcomes);
        report::warn(run, &outcomes);
        let [ratekeeper, throttlecrab, _, _, by_hand] = outcomes[..] else {
            unreachable!("every server has an outcome")
        };
        let mut bars = Bars::new();
        bars.ratio(run, "throttlecrab-server", ratekeeper, throttlecrab, BAR_THROTTLECRAB);
        bars.ratio(run, "floor: written by hand", ratekeeper, by_hand, BAR_FLOOR);
        bars.show(run);
        Ok(figures)
    }

    /// Measures latency at half of the throughput that `compare` found.
    pub(crate) fn time(
        &self,
        run: &mut Run,
        figures: &[Figures],
        schedule: LoadSchedule,
        tally: &mut Tally,
    ) -> Result<()> {
        let most = |index: usize| figures[index].per_sec.median();
        let subjects = latency::Servers {
            ratekeeper: (&self.ratekeeper, most(0)),
            floor: &self.by_hand,
            others: vec![(&self.throttlecrab, most(1)), (&self.nginx, most(2))],
        };
        latency::measure(run, "requests", &subjects, schedule, tally)
    }

    /// Measures batches, compared with the lower bound that reads and answers the same batches.
    pub(crate) fn count_batches(
        &self,
        run: &mut Run,
        schedule: LoadSchedule,
        tally: &mut Tally,
    ) -> Result<()> {
        let plan = server::batches();
        let entries = [(&self.ratekeeper, &plan), (&self.by_hand, &plan)];
        let figures = run_rounds(&entries, schedule, tally)?;
        run.say(format_args!("\nbatches: {BATCH} checks each, {BATCH_CONNECTIONS} connections"));
        let outcomes = report::outcomes(&entries, &figures);
        report::show(run, "checks", &outcomes);
        report::warn(run, &outcomes);
        let mut bars = Bars::new();
        bars.rate(run, "checks/s in batches", outcomes[0], BAR_BATCH);
        bars.show(run);
        Ok(())
    }
}

//! The error of the sliding window counter against the exact sliding log.
//!
//! Both algorithms see the same arrivals, each with its own state, on a clock that is set to each arrival in turn. The
//! counter assumes that the units of the previous window were spread evenly over it. Units that came late are forgotten
//! too soon, so the counter admits too many; units that came early are kept too long, so it admits too few.

use crate::run::Run;
use crate::table::Table;
use crate::trace::{Shape, Trace};
use anyhow::{Result, ensure};
use ratekeeper::{Algorithm, Capacity, Limit, Limiter, LogSize, ManualClock, MemoryStore, Micros, Quota};
use std::collections::VecDeque;
use std::sync::Arc;

/// The smallest amount shows the effect of rounding to whole units; the largest is hardly affected by it.
const AMOUNTS: [u32; 3] = [10, 100, 1000];
const DEMANDS: [f64; 5] = [0.5, 0.9, 1.0, 1.5, 3.0];
/// One minute. Windows are aligned to the wall clock.
const WINDOW_US: u64 = 60_000_000;
/// A single window admits at most the amount, and any interval of a window's length overlaps at most two windows.
const MOST: f64 = 2.0;

/// Replays every trace at every demand.
pub(crate) fn measure(run: &mut Run) -> Result<()> {
    let (seeds, windows) = run.pace.pick((20, 300), (2, 30));
    run.say(format_args!(
        "method    {seeds} seeds (1 to {seeds}) of {windows} windows each; random traces have the demand in every \
         window,\n          a trace of bursts in each burst; `differ` is the share of requests that the algorithms decide \
         differently,\n          `most` the most units admitted in any stretch of a window's length, `in all` is what \
         was\n          admitted beyond the log (or, with a minus, short of it)"
    ));
    for amount in AMOUNTS {
        let mut table =
            Table::new(1, ["", "demand", "requests", "differ", "most: log", "most: counter", "in all"]);
        let mut most: f64 = 0.0;
        for shape in Shape::ALL {
            for demand in DEMANDS {
                let error = error(shape, amount, demand, seeds, windows)?;
                most = most.max(error.most_by_counter());
                table.row(error.row(shape, demand));
            }
        }
        run.say(format_args!("\n{amount} a minute"));
        run.say(table);
        let result = run.check_bar(most <= MOST);
        run.say(format_args!("most in any window's length: {most:.2} x the limit (bar: <= {MOST}) {result}"));
    }
    Ok(())
}

/// The results of some traces.
#[derive(Clone, Copy, Debug, Default)]
struct Error {
    amount: u32,
    requests: u64,
    differ: u64,
    log: Admitted,
    counter: Admitted,
}

/// What one algorithm admitted: in total, and at most in any interval of a window's length.
#[derive(Clone, Copy, Debug, Default)]
struct Admitted {
    total: u64,
    most: usize,
}

fn error(shape: Shape, amount: u32, demand: f64, seeds: u64, windows: u64) -> Result<Error> {
    let mut error = Error { amount, ..Error::default() };
    for seed in 1..=seeds {
        let a_window = demand * f64::from(amount);
        let trace = Trace { shape, a_window, window_us: WINDOW_US, windows, seed };
        error.replay(&trace.arrivals())?;
    }
    let most = error.log.most;
    ensure!(most <= amount as usize, "the log, which is exact, admitted {most} of {amount} at once");
    Ok(error)
}

impl Error {
    /// Runs the same arrivals through both algorithms.
    fn replay(&mut self, arrivals: &[u64]) -> Result<()> {
        // Aligned to a window of the counter.
        let begin = 1_700_000_000_000_000_u64.next_multiple_of(WINDOW_US);
        let clock = Arc::new(ManualClock::new(Micros::new(begin)));
        let limiter = |algorithm| {
            let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(10_000))?;
            anyhow::Ok(Limiter::with_store(Limit::new(algorithm, Quota::per_minute(self.amount))?, store)?)
        };
        let counter = limiter(Algorithm::SlidingWindowCounter)?;
        let log = limiter(Algorithm::SlidingWindowLog(LogSize::Standard))?;
        let (mut by_counter, mut by_log) = (VecDeque::new(), VecDeque::new());
        for arrival in arrivals {
            clock.set(Micros::new(begin + arrival));
            let answers = [counter.check_now("key").is_allowed(), log.check_now("key").is_allowed()];
            self.counter.note(answers[0], *arrival, &mut by_counter);
            self.log.note(answers[1], *arrival, &mut by_log);
            self.differ += u64::from(answers[0] != answers[1]);
        }
        self.requests += arrivals.len() as u64;
        Ok(())
    }

    fn most_by_counter(&self) -> f64 {
        self.counter.most as f64 / f64::from(self.amount)
    }

    fn row(&self, shape: Shape, demand: f64) -> [String; 7] {
        let percent = |part: f64, whole: u64| 100.0 * part / whole.max(1) as f64;
        let differ = percent(self.differ as f64, self.requests);
        let beyond = percent(self.counter.total as f64 - self.log.total as f64, self.log.total);
        [
            shape.name().to_owned(),
            format!("{demand:.1}x"),
            self.requests.to_string(),
            format!("{differ:.2} %"),
            format!("{:.2}x", self.log.most as f64 / f64::from(self.amount)),
            format!("{:.2}x", self.most_by_counter()),
            format!("{beyond:+.2} %"),
        ]
    }
}

impl Admitted {
    /// Counts a decision. `recent` holds the times of the units admitted within the last window's length.
    fn note(&mut self, allowed: bool, at: u64, recent: &mut VecDeque<u64>) {
        if allowed {
            while recent.pop_front_if(|earlier| *earlier + WINDOW_US <= at).is_some() {}
            recent.push_back(at);
            self.total += 1;
            self.most = self.most.max(recent.len());
        }
    }
}

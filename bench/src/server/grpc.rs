//! gRPC: Envoy's calls compared with throttlecrab's and with a lower bound, and checks on streams.

use super::load::Tally;
use super::program::Programs;
use super::report::{self, Bars};
use super::rounds::{LoadSchedule, run_rounds};
use super::subject::CONNECTIONS;
use super::subject::grpc::{self as server, CHECKS, STREAMS};
use crate::run::Run;
use anyhow::Result;

/// The required share of the lower bound's throughput.
const BAR_FLOOR: f64 = 0.9;
/// The required checks per second on streams.
const BAR_STREAMS: f64 = 500_000.0;

pub(crate) fn measure(
    run: &mut Run,
    programs: &Programs,
    schedule: LoadSchedule,
    tally: &mut Tally,
) -> Result<()> {
    let (ratekeeper, throttlecrab, floor) = (
        server::ratekeeper(&programs.ratekeeper)?,
        server::throttlecrab(&programs.throttlecrab)?,
        server::floor()?,
    );
    for subject in [&ratekeeper, &throttlecrab, &floor] {
        subject.verify()?;
    }
    let mut bars = Bars::new();

    run.say(format_args!(
        "\ngRPC: {CONNECTIONS} connections, one call in flight on each: Envoy's, or throttlecrab's own"
    ));
    let entries = [&ratekeeper, &throttlecrab, &floor].map(|subject| (subject, &subject.plan));
    let figures = run_rounds(&entries, schedule, tally)?;
    let calls = report::outcomes(&entries, &figures);
    report::show(run, "calls", &calls);
    report::warn(run, &calls);
    bars.ratio(run, "floor: bare tonic", calls[0], calls[2], BAR_FLOOR);

    run.say(format_args!(
        "\ngRPC: {STREAMS} connections with a stream each, {CHECKS} checks at once, the next batch when all are answered"
    ));
    let plan = server::streams();
    let entries = [(&ratekeeper, &plan), (&floor, &plan)];
    let figures = run_rounds(&entries, schedule, tally)?;
    let streams = report::outcomes(&entries, &figures);
    report::show(run, "checks", &streams);
    report::warn(run, &streams);
    bars.rate(run, "checks/s on streams", streams[0], BAR_STREAMS);
    bars.show(run);
    Ok(())
}

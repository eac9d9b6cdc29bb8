//! Memory: bytes per key, the effect of a flood of keys, and how long a sweep delays checks.

use crate::run::Run;
use crate::{flood, footprint, sweep};
use anyhow::Result;

/// The parts of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    Footprint,
    Flood,
    Sweep,
}

/// Measures one part, or all of them.
pub(crate) fn measure(run: &mut Run, only: Option<Part>) -> Result<()> {
    let million = run.pace.pick(1_000_000, 50_000);
    let wants = |part| only.is_none_or(|only| only == part);
    if wants(Part::Footprint) {
        footprint::measure(run, 10 * million)?;
    }
    if wants(Part::Flood) {
        flood::measure(run, 5 * million, 50 * million)?;
    }
    if wants(Part::Sweep) {
        sweep::measure(run, 10 * million, run.pace.pick(3, 1))?;
    }
    Ok(())
}

//! Benchmarks of Ratekeeper: compared with other limiters, with required values (bars), and with the exact sliding log.
//!
//! `cargo xtask bench NAME` runs one scenario. Every run reports its machine, commit and command. A full run saves the
//! same text in `bench/runs/`, so that every quoted figure has such a file behind it.

mod accuracy;
mod child;
mod flood;
mod floor;
mod footprint;
mod histogram;
mod inproc;
mod interleaved;
mod keys;
mod lease;
mod memory;
mod other_limiters;
mod redis;
mod rules;
mod run;
mod server;
mod several_limits;
mod subject;
mod sweep;
mod table;
mod trace;

use crate::run::{Pace, Run};
use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask bench", about = "Benchmarks of Ratekeeper")]
struct Cli {
    /// A smoke test: everything runs, but too briefly for the figures to mean anything. Missed bars do not fail it, and
    /// it saves no record.
    #[arg(long, global = true)]
    quick: bool,
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    /// Nanoseconds per check in one process, compared with governor and throttlecrab.
    Inproc {
        /// Runs only the scenarios whose name contains this text. Saves no record.
        #[arg(long)]
        only: Option<String>,
    },
    /// Bytes per key, the effect of a flood of new keys, and how long a sweep delays checks.
    Memory {
        /// Runs only this part. Saves no record.
        #[arg(long)]
        only: Option<memory::Part>,
    },
    /// The error of the sliding window counter against the exact sliding log.
    Accuracy,
    /// The cost of ten thousand rules, compared with ten.
    Rules,
    /// Throughput and latency of the server over HTTP, RESP and gRPC, compared with other servers.
    Server {
        /// Runs only this part. Saves no record.
        #[arg(long)]
        only: Option<server::Part>,
    },
    /// Throughput, Redis CPU time and latency when Redis decides, compared with one script call per check.
    Redis {
        /// Runs only this part. Saves no record.
        #[arg(long)]
        only: Option<redis::Part>,
    },
    /// The cost of checks that are decided from leased units, and how few calls Redis receives.
    Lease {
        /// Runs only this part. Saves no record.
        #[arg(long)]
        only: Option<lease::Part>,
    },
    /// One part of `memory`, in its own process.
    #[command(hide = true)]
    Child(child::Task),
    /// Pins itself to cores, then becomes a server of the scenario `server`.
    #[command(hide = true)]
    Pinned(server::process::Pinned),
    /// A server of the scenario `server` that limits nothing.
    #[command(hide = true)]
    Floor { kind: server::floor::Kind },
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let pace = |is_partial: bool| match (cli.quick, is_partial) {
        (true, _) => Pace::Quick,
        (false, true) => Pace::Partial,
        (false, false) => Pace::Full,
    };
    match cli.scenario {
        Scenario::Inproc { only } => {
            let mut run = Run::begin("inproc", pace(only.is_some()))?;
            inproc::measure(&mut run, only.as_deref())?;
            run.end()
        }
        Scenario::Memory { only } => {
            let mut run = Run::begin("memory", pace(only.is_some()))?;
            memory::measure(&mut run, only)?;
            run.end()
        }
        Scenario::Accuracy => {
            let mut run = Run::begin("accuracy", pace(false))?;
            accuracy::measure(&mut run)?;
            run.end()
        }
        Scenario::Rules => {
            let mut run = Run::begin("rules", pace(false))?;
            rules::measure(&mut run)?;
            run.end()
        }
        Scenario::Server { only } => {
            let mut run = Run::begin("server", pace(only.is_some()))?;
            server::measure(&mut run, only)?;
            run.end()
        }
        Scenario::Redis { only } => {
            let mut run = Run::begin("redis", pace(only.is_some()))?;
            redis::measure(&mut run, only)?;
            run.end()
        }
        Scenario::Lease { only } => {
            let mut run = Run::begin("lease", pace(only.is_some()))?;
            lease::measure(&mut run, only)?;
            run.end()
        }
        Scenario::Child(task) => child::work(&task).map(|()| ExitCode::SUCCESS),
        Scenario::Pinned(pinned) => match server::process::exec(&pinned)? {},
        Scenario::Floor { kind } => server::floor::serve(kind).map(|()| ExitCode::SUCCESS),
    }
}

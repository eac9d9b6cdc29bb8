//! Ratekeeper measured: beside other limiters, against its bars, and against the exact law.
//!
//! `cargo xtask bench NAME` runs one scenario. Every run says which machine, commit and command it was, and a full run
//! leaves the same text behind in `bench/runs/`: a figure quoted anywhere has such a file behind it.

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
#[command(name = "cargo xtask bench", about = "Measures Ratekeeper")]
struct Cli {
    /// A smoke test: everything runs, but so briefly that the figures mean nothing. No bar fails it and no record is
    /// kept.
    #[arg(long, global = true)]
    quick: bool,
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    /// Nanoseconds for a check, beside governor and throttlecrab.
    Inproc {
        /// Only scenarios whose name contains this: for tuning, so no record is kept.
        #[arg(long)]
        only: Option<String>,
    },
    /// Bytes for a key, what a flood of new keys does, and how long a sweep holds others up.
    Memory {
        /// Only the part of this name: for tuning, so no record is kept.
        #[arg(long)]
        only: Option<memory::Part>,
    },
    /// How far the sliding window counter is off the exact sliding log.
    Accuracy,
    /// What ten thousand rules cost, beside ten.
    Rules,
    /// What the server does a second and how long it takes, over HTTP, RESP and gRPC, beside others.
    Server {
        /// Only this part: for tuning, so no record is kept.
        #[arg(long)]
        only: Option<server::Part>,
    },
    /// What a store on Redis decides a second, what it costs Redis, and how long it takes, beside a script for each check.
    Redis {
        /// Only this part: for tuning, so no record is kept.
        #[arg(long)]
        only: Option<redis::Part>,
    },
    /// What checks cost that are answered from units that were lent, and what they spare Redis.
    Lease {
        /// Only this part: for tuning, so no record is kept.
        #[arg(long)]
        only: Option<lease::Part>,
    },
    /// One part of `memory`, in a process of its own.
    #[command(hide = true)]
    Child(child::Task),
    /// A server of `server`, on its core.
    #[command(hide = true)]
    Pinned(server::process::Pinned),
    /// A server of `server` that limits nothing.
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

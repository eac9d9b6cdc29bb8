//! A server with leased rules over RESP, beside one that has its state in its own memory.
//!
//! Neither is stopped while the other has its turn: one that was would find its store away when it goes on. Idle, they cost
//! next to nothing.

use crate::redis::host::Host;
use crate::redis::turn::{self, Outcome, Own, Turn, Watch};
use crate::run::Run;
use crate::server::load::{Idle, Load, Plan, Tally};
use crate::server::process::{GENERATOR, pin};
use crate::server::program::Program;
use crate::server::rounds::Effort;
use crate::server::subject::resp::{self as server, DEPTH};
use crate::server::subject::{CONNECTIONS, Site, Subject};
use crate::server::tcp;
use crate::server::template::KEYS;
use crate::table::Table;
use anyhow::{Context, Result, ensure};
use std::time::Duration;

/// What share of the memory store's commands must be answered from what was lent.
const BAR: f64 = 0.8;
/// What commands bring with them is leased as everything is.
const RULES: &str = "consistency: leased\nrules:\n  - id: per-key\n    limit: 1000000/s\n";

pub(crate) fn measure(run: &mut Run, redis: &Program, ratekeeper: &Program) -> Result<()> {
    let ms = Duration::from_millis;
    let effort = run.pace.pick(
        Effort { rounds: 5, warm_up: ms(1000), time: ms(3000) },
        Effort { rounds: 2, warm_up: ms(100), time: ms(300) },
    );
    let first = run.pace.pick(ms(15_000), ms(2000));
    pin(GENERATOR)?;
    let host = Host::start(redis, GENERATOR)?;
    let url = host.url();
    let site = Site { rules: RULES, store: Some(&url), ..Site::PLAIN };
    let mut servers = [server::ratekeeper(ratekeeper, Site::PLAIN)?, server::ratekeeper(ratekeeper, site)?];
    for server in &mut servers {
        // It shares its core with Redis.
        (server.subject.plan.idle, server.pipelines.idle) = (Idle::Sleep, Idle::Sleep);
        server.subject.prove()?;
        server.subject.process.resume()?;
    }
    run.say(format_args!(
        "\nRESP: one worker, and the generator and Redis on the other core; {CONNECTIONS} connections; {KEYS} keys, each as likely as\n      \
         any other, and nobody is refused; {} rounds of {:?} after {:?}, {first:?} before the first; the servers' TCP is {}",
        effort.rounds,
        effort.time,
        effort.warm_up,
        tcp()?,
    ));
    let mut tally = Tally::default();
    let mut bars = Table::new(1, ["leased", "measured", "by CPU", "bar", ""]);
    let plans = [
        ("one command at a time", servers.each_ref().map(|server| &server.subject.plan)),
        (&*format!("pipelines of {DEPTH}"), servers.each_ref().map(|server| &server.pipelines)),
    ];
    let leased = &servers[1];
    press(&host, &leased.subject, &leased.pipelines, Effort { warm_up: first, ..effort }, 0, &mut tally)?;
    for (name, plans) in plans {
        let mut turns: [Vec<Turn>; 2] = Default::default();
        for round in 0..effort.rounds {
            for ((server, plan), turns) in servers.iter().zip(plans).zip(&mut turns) {
                turns.push(press(&host, &server.subject, plan, effort, round, &mut tally)?);
            }
        }
        let [memory, leased] = [("memory", &turns[0]), ("leased", &turns[1])]
            .map(|(name, turns)| Outcome::of(name.to_owned(), Own::Generator, turns));
        let ratio = leased.per_sec.median() / memory.per_sec.median();
        let by_cpu = leased.per_ratekeeper_core() / memory.per_ratekeeper_core();
        let verdict = run.judge(ratio >= BAR).to_owned();
        let figures = [format!("{ratio:.2}"), format!("{by_cpu:.2}"), format!(">= {BAR}"), verdict];
        bars.row([&[format!("x memory, {name}")][..], &figures].concat());
        run.say(format_args!("\n{name}"));
        run.say(turn::table(&[memory, leased]));
    }
    run.say("");
    run.say(bars);
    let Tally { answers, unexpected, example } = tally;
    ensure!(
        unexpected == 0,
        "{unexpected} of {answers} answers were not as expected, the first: {}",
        example.unwrap_or_default()
    );
    Ok(())
}

fn press(
    host: &Host,
    subject: &Subject,
    plan: &Plan,
    effort: Effort,
    seed: u64,
    tally: &mut Tally,
) -> Result<Turn> {
    let mut load = Load::connect(subject.address, plan, seed).with_context(|| subject.name.clone())?;
    load.press(effort.warm_up)?;
    let watch = Watch::start(host, Some(&subject.process))?;
    let lap = load.press(effort.time)?;
    let turn = watch.stop(lap.answers * plan.checks() as u64)?;
    tally.add(load.finish()?);
    Ok(turn)
}

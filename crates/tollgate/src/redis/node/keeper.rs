//! The task that keeps a server's connections.
//!
//! While the server is there, it replaces connections as soon as they end and asks each for the time once a second, so
//! that a server which has gone quiet is noticed even if nobody calls. While the server is away, it probes: each probe
//! is a connection that is made, greeted and kept, and when all are warm, calls are let in.

use super::dial::DialError;
use super::link::{Batch, Link};
use super::reply::words;
use super::{Core, Facts, Phase, RoleCheck, load_command};
use crate::redis::breaker::Change;
use ::redis::{Cmd, RedisError, Value, cmd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};
use tollgate_core::Micros;
use tracing::{info, warn};

/// How often connections are looked after.
const WATCH: Duration = Duration::from_secs(1);
/// How soon after each other, at the soonest: connections that end as soon as they are made are not made all the time.
const PACE: Duration = Duration::from_millis(50);
/// How long a server may take to say what time it is.
const PATIENCE: Duration = Duration::from_millis(500);
/// What a node of a Cluster says when it takes no commands.
const DOWN: &[u8] = b"cluster_state:fail";
/// How often a server is asked about itself.
const ASK_FACTS: Duration = Duration::from_secs(30);

/// Keeps a server's connections for ever.
pub(super) async fn keep(core: Arc<Core>) {
    let (mut asked_facts, mut tended) = (Instant::now(), Instant::now());
    loop {
        let probe_at = core.breaker.lock().probe_at(Instant::now());
        if let Some(probe_at) = probe_at {
            sleep_until(probe_at).await;
            probe(&core).await;
            continue;
        }
        if asked_facts.elapsed() >= ASK_FACTS {
            asked_facts = Instant::now();
            ask_facts(&core).await;
        }
        // Whether something happened or time passed, everything is looked after.
        let _ = timeout(WATCH, core.wake.notified()).await;
        sleep_until(tended + PACE).await;
        tend(&core).await;
        tended = Instant::now();
    }
}

/// Makes all connections, one after the other, and lets calls in once they are warm.
async fn probe(core: &Arc<Core>) {
    if let Err(error) = come_up(core).await {
        core.breaker.lock().note_bad_probe(Instant::now());
        *core.trouble.lock() = Some(error.to_string());
        // Only the first try can find it away: later ones find it still away.
        if core.enter_phase(Phase::Down) {
            warn!(server = %core.server, "store server is away: {error}");
        }
    }
}

async fn come_up(core: &Arc<Core>) -> Result<(), DialError> {
    let mut links = Vec::new();
    while links.len() < core.terms.links {
        let link = connect(core, links.is_empty()).await?;
        links.push(Arc::new(link));
        if links.len() < core.terms.links {
            core.breaker.lock().note_good_probe(Instant::now());
        }
    }
    be_quick(core, &links[0]).await?;
    core.links.store(Arc::new(links));
    if core.breaker.lock().note_good_probe(Instant::now()) == Some(Change::Closed) {
        core.too_slow_ms.store(0, Relaxed);
        *core.trouble.lock() = None;
        if core.enter_phase(Phase::Up) {
            info!(server = %core.server, "store server is there");
        }
    }
    Ok(())
}

/// Asks a server that was too slow to be as quick as it was not: who calls it before that waits in vain, and all is as it
/// was before.
async fn be_quick(core: &Core, link: &Link) -> Result<(), DialError> {
    let patience = Duration::from_millis(core.too_slow_ms.load(Relaxed));
    if patience.is_zero() {
        return Ok(());
    }
    match timeout(patience, link.send(&Batch::new([cmd("TIME")]))).await {
        Ok(answer) => answer.map(drop).map_err(DialError::from),
        Err(_) => Err(DialError::TooSlow(patience)),
    }
}

/// Replaces connections that have ended, and asks the others for the time.
async fn tend(core: &Arc<Core>) {
    if *core.phase.borrow() != Phase::Up {
        return;
    }
    core.links.rcu(|links| links.iter().filter(|link| !link.is_closed()).cloned().collect::<Vec<_>>());
    for link in core.links.load_full().iter() {
        if let Err(why) = watch(core, link).await {
            // A connection that ended by itself is replaced below; one that is silent stands for the server.
            if !link.is_closed() {
                core.go_down(&why);
                return;
            }
        }
    }
    for _ in core.links.load().len()..core.terms.links {
        match connect(core, false).await {
            Ok(link) => {
                let link = Arc::new(link);
                core.links.rcu(|links| links.iter().chain([&link]).cloned().collect::<Vec<_>>());
            }
            Err(error) => {
                if core.links.load().iter().all(|link| link.is_closed()) {
                    core.go_down(&error.to_string());
                }
                return;
            }
        }
    }
}

async fn watch(core: &Arc<Core>, link: &Link) -> Result<(), String> {
    let mut questions = vec![cmd("TIME")];
    // Of one that nobody else makes a replica, its connections tell when somebody does.
    if core.terms.role != RoleCheck::NoReplica {
        questions.push(role_command(core));
    }
    let batch = Batch::new(questions);
    let sent = Instant::now();
    let answer = timeout(PATIENCE, link.send(&batch)).await;
    let values = answer.map_err(|_| "it doesn't answer".to_owned())?.map_err(|error| {
        // Whoever waits for an answer may hear of a connection's end before it is noted.
        link.close();
        error.to_string()
    })?;
    if let Some(time) = values.first().and_then(read_time) {
        core.note_time(sent, Instant::now(), time);
    }
    values.get(1).map_or(Ok(()), |role| check_role(core, role)).map_err(|error| error.to_string())
}

/// Makes a connection and says what it is for. The first one also brings the script, and asks the server about itself.
async fn connect(core: &Arc<Core>, is_first: bool) -> Result<Link, DialError> {
    let keeper = Arc::downgrade(core);
    let on_close = move || {
        if let Some(core) = keeper.upgrade() {
            core.wake.notify_one();
        }
    };
    let link = core.terms.dialer.dial(&core.server, on_close).await?;
    core.meter.connects.fetch_add(1, Relaxed);
    let mut name = cmd("CLIENT");
    name.arg("SETNAME").arg(env!("CARGO_PKG_NAME"));
    let mut greeting = vec![name, cmd("TIME"), role_command(core)];
    if is_first {
        greeting.push(load_command(core.terms.script));
        greeting.extend(facts_commands());
    }
    let sent = Instant::now();
    let answer = timeout(PATIENCE, link.send(&Batch::new(greeting))).await;
    let values = answer.map_err(|_| DialError::TooSlow(PATIENCE))??;
    // A server may keep names and times to itself; whether it is a master is asked of it where that matters.
    if let Some(time) = values.get(1).and_then(read_time) {
        core.note_time(sent, Instant::now(), time);
    }
    values.get(2).map_or(Ok(()), |role| check_role(core, role))?;
    if is_first {
        note_facts(core, values.get(4..).unwrap_or_default());
        match values.into_iter().nth(3) {
            Some(Value::ServerError(error)) => return Err(RedisError::from(error).into()),
            _ => core.meter.script_loads.fetch_add(1, Relaxed),
        };
    }
    Ok(link)
}

fn role_command(core: &Core) -> Cmd {
    match core.terms.role {
        RoleCheck::NoReplica | RoleCheck::Master => cmd("ROLE"),
        RoleCheck::Cluster => {
            let mut info = cmd("CLUSTER");
            info.arg("INFO");
            info
        }
    }
}

fn check_role(core: &Core, role: &Value) -> Result<(), DialError> {
    match (core.terms.role, role) {
        (RoleCheck::Cluster, Value::BulkString(info)) => {
            match info.windows(DOWN.len()).any(|words| words == DOWN) {
                true => Err(DialError::ClusterDown),
                false => Ok(()),
            }
        }
        // It may not be asked.
        (RoleCheck::Cluster, _) => Ok(()),
        (RoleCheck::Master, Value::ServerError(error)) => Err(DialError::NoRole(words(error))),
        (RoleCheck::NoReplica | RoleCheck::Master, Value::Array(parts)) => match parts.first() {
            Some(Value::BulkString(role)) if role == b"slave" => Err(DialError::Replica),
            _ => Ok(()),
        },
        // A proxy may not know the question.
        (RoleCheck::NoReplica | RoleCheck::Master, _) => Ok(()),
    }
}

/// Reads seconds and microseconds.
fn read_time(value: &Value) -> Option<Micros> {
    let Value::Array(parts) = value else { return None };
    let number = |part: &Value| match part {
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let (seconds, micros) = (number(parts.first()?)?, number(parts.get(1)?)?);
    Some(Micros::new(seconds.saturating_mul(1_000_000).saturating_add(micros)))
}

async fn ask_facts(core: &Core) {
    let Some(link) = core.pick() else { return };
    if let Ok(Ok(values)) = timeout(PATIENCE, link.send(&Batch::new(facts_commands()))).await {
        note_facts(core, &values);
    }
}

fn facts_commands() -> impl Iterator<Item = Cmd> {
    ["server", "replication", "memory"].into_iter().map(|section| {
        let mut info = cmd("INFO");
        info.arg(section);
        info
    })
}

/// Notes what a server says of itself. One that may not be asked stays unknown, which nothing depends on.
fn note_facts(core: &Core, answers: &[Value]) {
    let Some(facts) = Facts::read(answers) else { return };
    let mut known = core.facts.lock();
    let could = known.as_ref().is_some_and(Facts::can_drop_limits);
    if facts.can_drop_limits() && !could {
        let policy = &facts.eviction;
        warn!(
            server = %core.server,
            "store server drops limits when its memory is full ({policy}), and who was denied starts afresh: set \
             maxmemory-policy to noeviction"
        );
    }
    *known = Some(facts);
}

//! The task that keeps a server's connections.
//!
//! While the server is there, it replaces connections as soon as they end, and once a second asks each for the time and has
//! it try the script, so that a server which has gone quiet or refuses the script is noticed even if nobody calls. While the server is away, it probes: each probe
//! is a connection that is made, greeted and kept, and when all are warm, calls are let in.

use super::connection::{CommandBatch, RedisConnection};
use super::connector::Diagnosis;
use super::failure::{LoginContext, ServerFailure, cause, words, write_refusal};
use super::{NodeCore, NodePhase, RoleCheck, ServerInfo, load_command};
use crate::health::StoreErrorCause;
use crate::redis::breaker::BreakerChange;
use ::redis::{Cmd, ServerError, ServerErrorKind, Value, cmd};
use ratekeeper_core::Micros;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

/// How often connections are looked after.
const WATCH: Duration = Duration::from_secs(1);
/// How soon after each other, at the soonest: connections that end as soon as they are made are not made all the time.
const PACE: Duration = Duration::from_millis(50);
/// How long a server may take to say what time it is.
const PATIENCE: Duration = Duration::from_millis(500);
/// What a node of a Cluster says when it takes no commands.
const DOWN: &[u8] = b"cluster_state:fail";
/// What that means.
const CLUSTER_DOWN: &str = "it says that its cluster is down: most masters are away, or one is and \
                            cluster-require-full-coverage is yes";
/// How often a server is asked about itself.
const ASK_FACTS: Duration = Duration::from_secs(30);
/// Commands that every law needs. Without one of the others, some laws still work.
const NEEDED: [&str; 4] = ["TIME", "MGET", "PSETEX", "DEL"];

/// Keeps a server's connections for ever.
pub(super) async fn keep(core: Arc<NodeCore>) {
    let (mut asked_facts, mut tended) = (Instant::now(), Instant::now());
    let mut diagnosis = Diagnosis::default();
    loop {
        let probe_at = core.breaker.lock().probe_at(Instant::now());
        if let Some(probe_at) = probe_at {
            sleep_until(probe_at).await;
            probe(&core, &mut diagnosis).await;
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
async fn probe(core: &Arc<NodeCore>, diagnosis: &mut Diagnosis) {
    let Err(found) = come_up(core).await else {
        *diagnosis = Diagnosis::default();
        return;
    };
    core.breaker.lock().note_bad_probe(Instant::now());
    let trouble = diagnosis.find(&core.terms.dialer, &core.server, found).await;
    core.meter.note_errors(trouble.cause, 1);
    let before = core.trouble.lock().replace(trouble.clone());
    // Only the first try can find it away: later ones find it still away, unless somebody has to put something else right.
    if core.enter_phase(NodePhase::Down) {
        warn!(server = %core.server, "store server is away: {trouble}");
    } else if before.is_some_and(|before| before.cause != trouble.cause) && has_remedy(trouble.cause) {
        warn!(server = %core.server, "store server can't be used: {trouble}");
    }
}

/// Whether it stays wrong until somebody changes the URL or the server.
fn has_remedy(cause: StoreErrorCause) -> bool {
    matches!(
        cause,
        StoreErrorCause::TlsMismatch
            | StoreErrorCause::Tls
            | StoreErrorCause::Password
            | StoreErrorCause::Permission
            | StoreErrorCause::Topology
            | StoreErrorCause::Unsupported
            | StoreErrorCause::Replica
    )
}

async fn come_up(core: &Arc<NodeCore>) -> Result<(), ServerFailure> {
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
    if core.breaker.lock().note_good_probe(Instant::now()) == Some(BreakerChange::Closed) {
        core.too_slow_ms.store(0, Relaxed);
        *core.trouble.lock() = None;
        if core.enter_phase(NodePhase::Up) {
            info!(server = %core.server, "store server is there");
        }
    }
    Ok(())
}

/// Asks a server that was too slow to be as quick as it was not: who calls it before that waits in vain, and all is as it
/// was before.
async fn be_quick(core: &NodeCore, link: &RedisConnection) -> Result<(), ServerFailure> {
    let patience = Duration::from_millis(core.too_slow_ms.load(Relaxed));
    if patience.is_zero() {
        return Ok(());
    }
    match timeout(patience, link.send(&CommandBatch::new([cmd("TIME")]))).await {
        Ok(answer) => answer.map(drop).map_err(|error| core.asker().explain_connect(&error)),
        Err(_) => Err(ServerFailure::too_slow(patience)),
    }
}

/// Replaces connections that have ended, and asks the others for the time.
async fn tend(core: &Arc<NodeCore>) {
    if *core.phase.borrow() != NodePhase::Up {
        return;
    }
    core.links.rcu(|links| links.iter().filter(|link| !link.is_closed()).cloned().collect::<Vec<_>>());
    for link in core.links.load_full().iter() {
        if let Err(trouble) = watch(core, link).await {
            // A connection that ended by itself is replaced below; one that is silent stands for the server.
            if !link.is_closed() {
                core.meter.note_errors(trouble.cause, 1);
                core.go_down(trouble);
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
            Err(trouble) => {
                core.meter.note_errors(trouble.cause, 1);
                // Others may be warm still; but what this one is refused for, they will be too.
                if has_remedy(trouble.cause) || core.links.load().iter().all(|link| link.is_closed()) {
                    core.go_down(trouble);
                }
                return;
            }
        }
    }
}

async fn watch(core: &Arc<NodeCore>, link: &RedisConnection) -> Result<(), ServerFailure> {
    let mut questions = vec![cmd("TIME"), probe_command(core)];
    // Of one that nobody else makes a replica, its connections tell when somebody does.
    if core.terms.role != RoleCheck::NoReplica {
        questions.push(role_command(core));
    }
    let batch = CommandBatch::new(questions);
    let sent = Instant::now();
    let answer = timeout(PATIENCE, link.send(&batch)).await;
    let values = answer.map_err(|_| ServerFailure::too_slow(PATIENCE))?.map_err(|error| {
        // Whoever waits for an answer may hear of a connection's end before it is noted.
        link.close();
        core.asker().explain_connect(&error)
    })?;
    if let Some(time) = values.first().and_then(read_time) {
        core.note_time(sent, Instant::now(), time);
    }
    values.get(2).map_or(Ok(()), |role| check_role(core, role))?;
    values.get(1).map_or(Ok(()), |tried| check_script(core, tried))
}

/// Makes a connection and says what it is for. The first one also brings the script, and asks the server about itself.
async fn connect(core: &Arc<NodeCore>, is_first: bool) -> Result<RedisConnection, ServerFailure> {
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
        greeting.extend(facts_commands());
    }
    let sent = Instant::now();
    let values = ask(core, &link, greeting).await?;
    // A server may keep names and times to itself; whether it is a master is asked of it where that matters.
    match values.get(1) {
        Some(Value::ServerError(error)) if cause(error) == StoreErrorCause::Password => {
            return Err(core.asker().explain(error));
        }
        time => {
            if let Some(time) = time.and_then(read_time) {
                core.note_time(sent, Instant::now(), time);
            }
        }
    }
    if is_first {
        note_facts(core, values.get(3..).unwrap_or_default());
        check_mode(core)?;
    }
    values.get(2).map_or(Ok(()), |role| check_role(core, role))?;
    // Only now: a server ends the connection of somebody who is not logged in and sends as much as the script.
    let load = is_first.then(|| load_command(core.terms.script));
    let values = ask(core, &link, load.into_iter().chain([probe_command(core)])).await?;
    if is_first {
        match values.first() {
            Some(Value::ServerError(error)) => return Err(core.asker().explain(error)),
            _ => core.meter.script_loads.fetch_add(1, Relaxed),
        };
    }
    values.last().map_or(Ok(()), |tried| check_script(core, tried))?;
    Ok(link)
}

/// Asks over a connection that is being made.
async fn ask(
    core: &NodeCore,
    link: &RedisConnection,
    commands: impl IntoIterator<Item = Cmd>,
) -> Result<Vec<Value>, ServerFailure> {
    let answer = timeout(PATIENCE, link.send(&CommandBatch::new(commands))).await;
    let answer = answer.map_err(|_| ServerFailure::too_slow(PATIENCE))?;
    answer.map_err(|error| core.asker().explain_connect(&error))
}

/// Calls the script as checks do, but without arguments: it then says whether it would run.
fn probe_command(core: &NodeCore) -> Cmd {
    let mut probe = cmd("EVALSHA");
    probe.arg(core.terms.digest.as_str()).arg(1).arg(core.probe_key.lock().1.as_slice());
    probe
}

/// Reads what the script says when it is tried: which commands the user may not run, and what a write was refused for.
fn check_script(core: &NodeCore, tried: &Value) -> Result<(), ServerFailure> {
    let parts = match tried {
        Value::ServerError(error) => return check_script_error(core, error),
        Value::Array(parts) => parts,
        // Another script, which knows nothing of this.
        _ => return Ok(()),
    };
    let text = |index: usize| match parts.get(index) {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    let (missing, refused) = (text(0), text(1));
    let missing: Vec<&str> = missing.split_ascii_whitespace().collect();
    if missing.iter().any(|command| NEEDED.contains(command)) {
        return Err(core.asker().may_not_run(missing));
    }
    let code = refused.split(' ').next().unwrap_or_default();
    if code == "READONLY" {
        return Err(ServerFailure::replica(Some(&refused)));
    }
    let shortcoming = match write_refusal(code) {
        Some(cause) => {
            core.meter.note_errors(cause, 1);
            Some(LoginContext::no_writes(cause, &refused))
        }
        None if missing.is_empty() => None,
        None => Some(core.asker().may_not_run(missing)),
    };
    core.note_shortcoming(shortcoming);
    Ok(())
}

fn check_script_error(core: &NodeCore, error: &ServerError) -> Result<(), ServerFailure> {
    match (error.kind(), core.terms.role) {
        // Whoever calls it loads it.
        (Some(ServerErrorKind::NoScript), _) => Ok(()),
        // In a Cluster, slots move.
        (
            Some(
                ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::TryAgain
                | ServerErrorKind::CrossSlot
                | ServerErrorKind::ClusterDown,
            ),
            RoleCheck::Cluster,
        ) => Ok(()),
        (Some(ServerErrorKind::Moved | ServerErrorKind::ClusterDown), _) => Err(core.asker().is_a_cluster()),
        // An error of the script itself: checks tell.
        _ if cause(error) == StoreErrorCause::Other => Ok(()),
        _ => Err(core.asker().explain(error)),
    }
}

/// Whether a server is what the URL says, as far as it says what it is.
fn check_mode(core: &NodeCore) -> Result<(), ServerFailure> {
    let facts = core.facts.lock();
    match (facts.as_ref().map(|facts| facts.mode.as_str()), core.terms.role) {
        (Some("sentinel"), _) => Err(core.asker().is_a_sentinel()),
        (Some("cluster"), RoleCheck::NoReplica | RoleCheck::Master) => Err(core.asker().is_a_cluster()),
        _ => Ok(()),
    }
}

fn role_command(core: &NodeCore) -> Cmd {
    match core.terms.role {
        RoleCheck::NoReplica | RoleCheck::Master => cmd("ROLE"),
        RoleCheck::Cluster => {
            let mut info = cmd("CLUSTER");
            info.arg("INFO");
            info
        }
    }
}

fn check_role(core: &NodeCore, role: &Value) -> Result<(), ServerFailure> {
    match (core.terms.role, role) {
        (RoleCheck::Cluster, Value::BulkString(info)) => {
            match info.windows(DOWN.len()).any(|words| words == DOWN) {
                true => Err(ServerFailure::new(StoreErrorCause::ClusterDown, CLUSTER_DOWN)),
                false => Ok(()),
            }
        }
        (RoleCheck::Cluster, Value::ServerError(error)) if cause(error) == StoreErrorCause::Topology => {
            Err(core.asker().not_a_cluster())
        }
        // It may not be asked.
        (RoleCheck::Cluster, _) => Ok(()),
        (RoleCheck::Master, Value::ServerError(error)) => match cause(error) {
            StoreErrorCause::Permission => {
                let trouble = core.asker().may_not_run(["ROLE"]);
                let words = format!("{trouble}, which has to be known behind Sentinel ({})", words(error));
                Err(ServerFailure { words, ..trouble })
            }
            _ => Err(core.asker().explain(error)),
        },
        (RoleCheck::NoReplica | RoleCheck::Master, Value::Array(parts)) => match parts.first() {
            Some(Value::BulkString(role)) if role == b"slave" => Err(ServerFailure::replica(None)),
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

async fn ask_facts(core: &NodeCore) {
    let Some(link) = core.pick() else { return };
    if let Ok(Ok(values)) = timeout(PATIENCE, link.send(&CommandBatch::new(facts_commands()))).await {
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
fn note_facts(core: &NodeCore, answers: &[Value]) {
    let Some(facts) = ServerInfo::read(answers) else { return };
    let mut known = core.facts.lock();
    let could = known.as_ref().is_some_and(ServerInfo::can_drop_limits);
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

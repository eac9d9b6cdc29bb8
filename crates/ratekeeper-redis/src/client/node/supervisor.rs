//! The supervisor task of a server's connections.
//!
//! While the server is up, the task replaces connections as soon as they close. Once a second it also reads the time
//! and probes the script on each connection, so that a server that hangs or rejects the script is noticed even
//! without calls. While the server is down, the task probes it: each probe establishes a connection, sets it up and
//! keeps it. The breaker closes when all connections are open.

use super::{NodeCore, NodePhase, RoleCheck, ServerInfo};
use crate::client::breaker::BreakerChange;
use crate::client::connection::{CommandBatch, RedisConnection, command};
use crate::client::connector::{CLIENT_NAME, Diagnosis};
use crate::client::failure::{LoginContext, ServerFailure, cause, error_text, write_error_cause};
use ratekeeper::StoreErrorCause;
use ratekeeper_core::Micros;
use redis::{Cmd, ServerError, ServerErrorKind, Value, cmd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

/// Interval between two connection checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between two checks, so that connections that close at once are not re-established in a tight loop.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The line of `CLUSTER INFO` on a node that does not accept commands.
const CLUSTER_STATE_FAIL: &[u8] = b"cluster_state:fail";
/// The failure message for such a node.
const CLUSTER_DOWN_MESSAGE: &str = "the cluster is down: most masters are down, or one is and \
                            cluster-require-full-coverage is yes";
/// Interval between two reads of `INFO`.
const INFO_INTERVAL: Duration = Duration::from_secs(30);
/// Commands that every algorithm needs. Without one of the others, some algorithms still work.
const REQUIRED_COMMANDS: [&str; 4] = ["TIME", "MGET", "PSETEX", "DEL"];

/// Supervises a server's connections forever.
pub(crate) async fn supervise(core: Arc<NodeCore>) {
    let (mut info_read, mut checked) = (Instant::now(), Instant::now());
    let mut diagnosis = Diagnosis::default();
    loop {
        let probe_at = core.breaker_state.lock().probe_at(Instant::now());
        if let Some(probe_at) = probe_at {
            sleep_until(probe_at).await;
            probe(&core, &mut diagnosis).await;
            continue;
        }
        if info_read.elapsed() >= INFO_INTERVAL {
            info_read = Instant::now();
            refresh_info(&core).await;
        }
        // Check the connections both on a wake-up and at each interval.
        let _ = timeout(CHECK_INTERVAL, core.wake_supervisor.notified()).await;
        sleep_until(checked + MIN_CHECK_INTERVAL).await;
        maintain_connections(&core).await;
        checked = Instant::now();
    }
}

/// Tries to establish all connections and to close the breaker.
async fn probe(core: &Arc<NodeCore>, diagnosis: &mut Diagnosis) {
    let Err(found) = connect_all(core).await else {
        *diagnosis = Diagnosis::default();
        return;
    };
    core.breaker_state.lock().record_probe_failure(Instant::now());
    let failure = diagnosis.diagnose(&core.options.connector, &core.server, found).await;
    core.counters.record_errors(failure.cause, 1);
    let before = core.failure.lock().replace(failure.clone());
    // Logged for the first failed attempt. Later ones are logged only if the cause changes to one that needs the
    // operator.
    if core.set_phase(NodePhase::Down) {
        warn!(server = %core.server, "store server down: {failure}");
    } else if before.is_some_and(|before| before.cause != failure.cause) && needs_operator(failure.cause) {
        warn!(server = %core.server, "store server unusable: {failure}");
    }
}

/// Whether the failure persists until an operator changes the URL or the server.
fn needs_operator(cause: StoreErrorCause) -> bool {
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

async fn connect_all(core: &Arc<NodeCore>) -> Result<(), ServerFailure> {
    let mut connections = Vec::new();
    while connections.len() < core.options.bounds.connections {
        let connection = connect(core, connections.is_empty()).await?;
        connections.push(Arc::new(connection));
        if connections.len() < core.options.bounds.connections {
            core.breaker_state.lock().record_probe_success(Instant::now());
        }
    }
    check_latency(core, &connections[0]).await?;
    core.connections.store(Arc::new(connections));
    if core.breaker_state.lock().record_probe_success(Instant::now()) == Some(BreakerChange::Closed) {
        core.longest_timeout_ms.store(0, Relaxed);
        *core.failure.lock() = None;
        if core.set_phase(NodePhase::Up) {
            info!(server = %core.server, "connected to store server");
        }
    }
    Ok(())
}

/// After a timeout, requires one reply within the failed timeout before the breaker closes. Otherwise the next calls
/// would time out again.
async fn check_latency(core: &NodeCore, connection: &RedisConnection) -> Result<(), ServerFailure> {
    let failed_timeout = Duration::from_millis(core.longest_timeout_ms.load(Relaxed));
    if failed_timeout.is_zero() {
        return Ok(());
    }
    match timeout(failed_timeout, connection.send(&CommandBatch::new([command(&["TIME"])]))).await {
        Ok(reply) => reply.map(drop).map_err(|error| core.login_context().explain_connection_error(&error)),
        Err(_) => Err(ServerFailure::timeout(failed_timeout)),
    }
}

/// Checks the open connections, and replaces those that have closed.
async fn maintain_connections(core: &Arc<NodeCore>) {
    if *core.phase.borrow() != NodePhase::Up {
        return;
    }
    core.connections.rcu(|connections| {
        connections.iter().filter(|connection| !connection.is_closed()).cloned().collect::<Vec<_>>()
    });
    for connection in core.connections.load_full().iter() {
        if let Err(failure) = check_connection(core, connection).await {
            // A connection that closed is replaced below; one that hangs means that the server does.
            if !connection.is_closed() {
                core.counters.record_errors(failure.cause, 1);
                core.trip_breaker(failure);
                return;
            }
        }
    }
    for _ in core.connections.load().len()..core.options.bounds.connections {
        match connect(core, false).await {
            Ok(connection) => {
                let new = Arc::new(connection);
                core.connections
                    .rcu(|connections| connections.iter().chain([&new]).cloned().collect::<Vec<_>>());
            }
            Err(failure) => {
                core.counters.record_errors(failure.cause, 1);
                // Other connections may still be open, but a cause that needs the operator will hit them too.
                if needs_operator(failure.cause)
                    || core.connections.load().iter().all(|other| other.is_closed())
                {
                    core.trip_breaker(failure);
                }
                return;
            }
        }
    }
}

async fn check_connection(core: &Arc<NodeCore>, connection: &RedisConnection) -> Result<(), ServerFailure> {
    let mut commands = vec![command(&["TIME"]), script_probe_command(core)];
    // No Sentinel or Cluster demotes a standalone server. If an operator does, the script probe fails with READONLY.
    if core.options.role != RoleCheck::NoReplica {
        commands.push(role_command(core));
    }
    let sent = Instant::now();
    let values = connection.query(commands, core.login_context()).await.inspect_err(|failure| {
        // The pending call can fail before the connection is marked as closed.
        if failure.cause != StoreErrorCause::Timeout {
            connection.mark_closed();
        }
    })?;
    if let Some(time) = values.first().and_then(parse_time) {
        core.record_server_time(sent, Instant::now(), time);
    }
    values.get(2).map_or(Ok(()), |role| check_role(core, role))?;
    values.get(1).map_or(Ok(()), |probe| check_script_probe(core, probe))
}

/// Establishes and sets up a connection. The first one also loads the script and reads `INFO`.
async fn connect(core: &Arc<NodeCore>, is_first: bool) -> Result<RedisConnection, ServerFailure> {
    let weak = Arc::downgrade(core);
    let on_close = move || {
        if let Some(core) = weak.upgrade() {
            core.wake_supervisor.notify_one();
        }
    };
    let connection = core.options.connector.connect(&core.server, on_close).await?;
    core.counters.connects.fetch_add(1, Relaxed);
    let mut setup =
        vec![command(&["CLIENT", "SETNAME", CLIENT_NAME]), command(&["TIME"]), role_command(core)];
    if is_first {
        setup.extend(info_commands());
    }
    let sent = Instant::now();
    let values = connection.query(setup, core.login_context()).await?;
    // `CLIENT SETNAME` and `TIME` may fail, for lack of permissions. The role is checked where it matters.
    match values.get(1) {
        Some(Value::ServerError(error)) if cause(error) == StoreErrorCause::Password => {
            return Err(core.login_context().explain(error));
        }
        time => {
            if let Some(time) = time.and_then(parse_time) {
                core.record_server_time(sent, Instant::now(), time);
            }
        }
    }
    if is_first {
        record_info(core, values.get(3..).unwrap_or_default());
        check_mode(core)?;
    }
    values.get(2).map_or(Ok(()), |role| check_role(core, role))?;
    // Sent only now: a server closes an unauthenticated connection that sends as much data as the script.
    let load = is_first.then(|| command(&["SCRIPT", "LOAD", core.options.bounds.script]));
    let commands = load.into_iter().chain([script_probe_command(core)]);
    let values = connection.query(commands, core.login_context()).await?;
    if is_first {
        match values.first() {
            Some(Value::ServerError(error)) => return Err(core.login_context().explain(error)),
            _ => core.counters.script_loads.fetch_add(1, Relaxed),
        };
    }
    values.last().map_or(Ok(()), |probe| check_script_probe(core, probe))?;
    Ok(connection)
}

/// Calls the script as checks do, but without arguments: it then reports whether it would run.
fn script_probe_command(core: &NodeCore) -> Cmd {
    let mut probe = cmd("EVALSHA");
    probe.arg(core.options.digest.as_str()).arg(1).arg(core.probe_key.lock().1.as_slice());
    probe
}

/// Evaluates the script's reply to a probe: the commands that the user may not run, and the error of a write.
fn check_script_probe(core: &NodeCore, probe: &Value) -> Result<(), ServerFailure> {
    let parts = match probe {
        Value::ServerError(error) => return check_script_probe_error(core, error),
        Value::Array(parts) => parts,
        // Another script, which does not support probes.
        _ => return Ok(()),
    };
    let text = |index: usize| match parts.get(index) {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    let (missing, write_error) = (text(0), text(1));
    let missing: Vec<&str> = missing.split_ascii_whitespace().collect();
    if missing.iter().any(|command| REQUIRED_COMMANDS.contains(command)) {
        return Err(core.login_context().missing_permissions(missing));
    }
    let code = write_error.split(' ').next().unwrap_or_default();
    if code == "READONLY" {
        return Err(ServerFailure::replica(Some(&write_error)));
    }
    let warning = match write_error_cause(code) {
        Some(cause) => {
            core.counters.record_errors(cause, 1);
            Some(LoginContext::writes_rejected(cause, &write_error))
        }
        None if missing.is_empty() => None,
        None => Some(core.login_context().missing_permissions(missing)),
    };
    core.set_warning(warning);
    Ok(())
}

fn check_script_probe_error(core: &NodeCore, error: &ServerError) -> Result<(), ServerFailure> {
    match (error.kind(), core.options.role) {
        // The next call loads it.
        (Some(ServerErrorKind::NoScript), _) => Ok(()),
        // In a Cluster, slots may move at any time.
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
        (Some(ServerErrorKind::Moved | ServerErrorKind::ClusterDown), _) => {
            Err(core.login_context().unexpected_cluster())
        }
        // An error of the script itself: calls report it.
        _ if cause(error) == StoreErrorCause::Other => Ok(()),
        _ => Err(core.login_context().explain(error)),
    }
}

/// Checks that the server's mode, if it reports one, matches the URL.
fn check_mode(core: &NodeCore) -> Result<(), ServerFailure> {
    let info = core.info.lock();
    match (info.as_ref().map(|info| info.mode.as_str()), core.options.role) {
        (Some("sentinel"), _) => Err(core.login_context().unexpected_sentinel()),
        (Some("cluster"), RoleCheck::NoReplica | RoleCheck::Master) => {
            Err(core.login_context().unexpected_cluster())
        }
        _ => Ok(()),
    }
}

fn role_command(core: &NodeCore) -> Cmd {
    match core.options.role {
        RoleCheck::NoReplica | RoleCheck::Master => command(&["ROLE"]),
        RoleCheck::Cluster => command(&["CLUSTER", "INFO"]),
    }
}

fn check_role(core: &NodeCore, role: &Value) -> Result<(), ServerFailure> {
    match (core.options.role, role) {
        (RoleCheck::Cluster, Value::BulkString(info)) => {
            if info.windows(CLUSTER_STATE_FAIL.len()).any(|window| window == CLUSTER_STATE_FAIL) {
                Err(ServerFailure::new(StoreErrorCause::ClusterDown, CLUSTER_DOWN_MESSAGE))
            } else {
                Ok(())
            }
        }
        (RoleCheck::Cluster, Value::ServerError(error)) if cause(error) == StoreErrorCause::Topology => {
            Err(core.login_context().not_a_cluster())
        }
        // The user may lack the permission for `CLUSTER INFO`.
        (RoleCheck::Cluster, _) => Ok(()),
        (RoleCheck::Master, Value::ServerError(error)) => match cause(error) {
            StoreErrorCause::Permission => {
                let failure = core.login_context().missing_permissions(["ROLE"]);
                let message =
                    format!("{failure}; with Sentinel the role has to be known ({})", error_text(error));
                Err(ServerFailure { message, ..failure })
            }
            _ => Err(core.login_context().explain(error)),
        },
        (RoleCheck::NoReplica | RoleCheck::Master, Value::Array(parts)) => match parts.first() {
            Some(Value::BulkString(role)) if role == b"slave" => Err(ServerFailure::replica(None)),
            _ => Ok(()),
        },
        // A proxy may not support `ROLE`.
        (RoleCheck::NoReplica | RoleCheck::Master, _) => Ok(()),
    }
}

/// Parses the reply to `TIME`: seconds and microseconds.
fn parse_time(value: &Value) -> Option<Micros> {
    let Value::Array(parts) = value else { return None };
    let number = |part: &Value| match part {
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let (seconds, micros) = (number(parts.first()?)?, number(parts.get(1)?)?);
    Some(Micros::new(seconds.saturating_mul(1_000_000).saturating_add(micros)))
}

async fn refresh_info(core: &NodeCore) {
    let Some(connection) = core.pick_connection() else { return };
    if let Ok(values) = connection.query(info_commands(), core.login_context()).await {
        record_info(core, &values);
    }
}

fn info_commands() -> impl Iterator<Item = Cmd> {
    ["server", "replication", "memory"].into_iter().map(|section| command(&["INFO", section]))
}

/// Records the server's `INFO`. Without the permission for it the fields stay unknown, and nothing depends on them.
fn record_info(core: &NodeCore, replies: &[Value]) {
    let Some(info) = ServerInfo::parse(replies) else { return };
    let mut known = core.info.lock();
    let was_evicting = known.as_ref().is_some_and(ServerInfo::may_evict);
    if info.may_evict() && !was_evicting {
        let policy = &info.eviction_policy;
        warn!(
            server = %core.server,
            "store server evicts limit state when its memory is full ({policy}), which resets denied clients: set \
             maxmemory-policy to noeviction"
        );
    }
    *known = Some(info);
}

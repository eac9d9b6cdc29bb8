//! One store server: its connections, its circuit breaker and its health.
//!
//! A call is a batch of commands, written in one go over one of a few shared connections. It ends at its deadline,
//! whatever the server does. A call is never retried: if its reply was lost, the server may still have charged the
//! client. The exception is a command that the server did not run because it does not know the script (`NOSCRIPT`):
//! the script is loaded once for all waiting callers, and the command is sent again within the same deadline.
//!
//! Client calls never wait for a connection to be established. A supervisor task per server keeps the connections warm,
//! checks them, and probes the server while it is down; meanwhile calls fail fast.

mod call_counters;
mod errors;
mod info;
mod supervisor;

pub(crate) use call_counters::CallCounts;
pub(crate) use info::ServerInfo;

use crate::client::connection::{CommandBatch, RedisConnection};
use crate::client::connector::Connector;
use crate::client::failure::{LoginContext, ServerFailure};
use crate::client::reply::CommandReply;
use crate::client::slot::probe_key_in;

use crate::client::breaker::{Breaker, BreakerChange};
use crate::client::clock_offset::{ClockOffset, DriftChange};
use crate::client::url::ServerAddress;
use arc_swap::ArcSwap;
use call_counters::CallCounters;
use errors::{LastError, ServerWarning};
use parking_lot::Mutex;
use ratekeeper::{BreakerState, RECENT_FAILURE, StoreErrorCause};
use ratekeeper_core::{Clock, Micros, StoreFailure};
use redis::{Cmd, Value, cmd};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

/// A timeout shorter than this says little about a server or a connection, and does not count as their failure.
const MIN_FAIR_TIMEOUT: Duration = Duration::from_millis(10);
/// Minimum time between two log lines about errors that a server replied with.
const ERROR_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How servers are connected to and used, and within what bounds.
#[derive(Clone)]
pub(crate) struct ServerOptions {
    pub(crate) connector: Connector,
    /// The script that commands call; loaded on servers that do not have it.
    pub(crate) script: &'static str,
    /// SHA-1 digest of the script, as used by `EVALSHA`.
    pub(crate) digest: String,
    /// Number of connections to keep open.
    pub(crate) connections: usize,
    /// Maximum number of commands in flight.
    pub(crate) max_in_flight: usize,
    pub(crate) role: RoleCheck,
    pub(crate) clock: Arc<dyn Clock>,
}

/// How to verify a server's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoleCheck {
    /// Master or replica, since a Cluster replica redirects calls to its master; but the server must not report that
    /// the cluster is down.
    Cluster,
    /// The server must not report that it is a replica.
    NoReplica,
    /// The server must report that it is a master. This is checked repeatedly, since a failover can happen at any time.
    Master,
}

/// One store server.
pub(crate) struct RedisNode {
    core: Arc<NodeCore>,
    supervisor: AbortHandle,
}

/// State shared between a node and its supervisor task.
struct NodeCore {
    server: ServerAddress,
    options: ServerOptions,
    connections: ArcSwap<Vec<Arc<RedisConnection>>>,
    next_connection: AtomicUsize,
    in_flight: AtomicUsize,
    breaker_state: Mutex<Breaker>,
    phase: watch::Sender<NodePhase>,
    /// The longest timeout among the calls that timed out since the server was last down.
    longest_timeout_ms: AtomicU64,
    /// Wakes the supervisor task.
    wake_supervisor: Notify,
    /// Held while the script is being loaded, so that it is loaded once for all callers.
    script_load_lock: tokio::sync::Mutex<()>,
    counters: CallCounters,
    clock_offset: Mutex<ClockOffset>,
    info: Mutex<Option<ServerInfo>>,
    /// Why the server is down.
    failure: Mutex<Option<ServerFailure>>,
    warning: Mutex<ServerWarning>,
    last_error: Mutex<Option<LastError>>,
    /// The key with which the script is probed, and in a Cluster its slot, which this server serves.
    probe_key: Mutex<(Option<u16>, Vec<u8>)>,
}

/// The key with which the script is probed outside of a Cluster.
const DEFAULT_PROBE_KEY: &[u8] = b"rk1:{probe}";

/// Connection phase of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodePhase {
    /// The first connection attempt has not finished yet.
    New,
    /// Connected: calls pass.
    Up,
    /// Down: calls fail fast, and the server is probed.
    Down,
    /// Out of use: another server has replaced it, and it is never called again.
    Retired,
}

/// The outcome of one command.
#[derive(Debug)]
pub(crate) enum CommandOutcome {
    /// The reply of the server that the command was sent to.
    Value(Value),
    /// The reply of another server, to which the command was redirected.
    Redirected(Value),
    Failed(StoreFailure),
    /// Not run: its slot has moved to another server.
    Moved(String),
    /// Not run: its slot is being migrated, and its keys are on another server already.
    Ask(String),
    /// Not run: its slot is being migrated, and only some of its keys have moved. A command with fewer keys may run.
    TryAgain,
}

impl RedisNode {
    /// Creates a node that is not connected yet, and starts the supervisor task that connects it.
    pub(crate) fn start(server: ServerAddress, options: ServerOptions) -> RedisNode {
        let now = Instant::now();
        let seed = RandomState::new().hash_one(&server);
        let probes = u32::try_from(options.connections).unwrap_or(u32::MAX);
        let core = Arc::new(NodeCore {
            server,
            options,
            connections: ArcSwap::default(),
            next_connection: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            breaker_state: Mutex::new(Breaker::new(probes, now, seed)),
            phase: watch::Sender::new(NodePhase::New),
            longest_timeout_ms: AtomicU64::new(0),
            wake_supervisor: Notify::new(),
            script_load_lock: tokio::sync::Mutex::new(()),
            counters: CallCounters::default(),
            clock_offset: Mutex::new(ClockOffset::new(now)),
            info: Mutex::new(None),
            failure: Mutex::new(None),
            warning: Mutex::default(),
            last_error: Mutex::new(None),
            probe_key: Mutex::new((None, DEFAULT_PROBE_KEY.to_vec())),
        });
        let supervisor = tokio::spawn(supervisor::supervise(Arc::clone(&core))).abort_handle();
        RedisNode { core, supervisor }
    }

    /// The address of the server.
    pub(crate) fn server(&self) -> &ServerAddress {
        &self.core.server
    }

    /// The current connection phase.
    pub(crate) fn phase(&self) -> NodePhase {
        *self.core.phase.borrow()
    }

    /// A receiver that is notified of each phase change.
    pub(crate) fn phase_changes(&self) -> watch::Receiver<NodePhase> {
        self.core.phase.subscribe()
    }

    /// The state of the circuit breaker.
    pub(crate) fn breaker(&self) -> BreakerState {
        self.core.breaker_state.lock().state()
    }

    /// Counters of the calls so far.
    pub(crate) fn counts(&self) -> CallCounts {
        self.core.counters.snapshot()
    }

    /// The server's `INFO`. Returns `None` until it has been read.
    pub(crate) fn info(&self) -> Option<ServerInfo> {
        self.core.info.lock().clone()
    }

    /// Why the server is down; or, if it is up, why it rejects writes or which permissions are missing, or the error
    /// that it replied with in the last second. Returns `None` if the server is healthy.
    pub(crate) fn failure(&self) -> Option<ServerFailure> {
        if self.phase() != NodePhase::Up {
            return self.core.failure.lock().clone();
        }
        if let Some(failure) = &self.core.warning.lock().failure {
            return Some(failure.clone());
        }
        let last_error = self.core.last_error.lock();
        last_error.as_ref().filter(|last| last.at.elapsed() < RECENT_FAILURE).map(|last| last.failure.clone())
    }

    /// Whether the server accepts writes, as far as is known.
    pub(crate) fn takes_writes(&self) -> bool {
        let warning = self.core.warning.lock();
        warning.failure.as_ref().is_none_or(|failure| !failure.cause.blocks_writes_only())
    }

    /// Records that `requests` requests were not decided because the server rejected their writes with this error code.
    pub(crate) fn record_rejected_writes(&self, code: &str, requests: u32) {
        self.core.record_rejected_writes(code, requests);
    }

    /// Makes the supervisor probe the script with a key of this slot, which the server serves.
    pub(crate) fn set_probe_slot(&self, slot: u16) {
        let mut probe_key = self.core.probe_key.lock();
        if probe_key.0 != Some(slot) {
            *probe_key = (Some(slot), probe_key_in(slot));
        }
    }

    /// The number of connections established beyond the initial ones.
    pub(crate) fn reconnects(&self) -> u64 {
        self.counts().connects.saturating_sub(self.core.options.connections as u64)
    }

    /// The number of open connections, and of commands in flight.
    pub(crate) fn load(&self) -> (usize, usize) {
        (self.core.connections.load().len(), self.core.in_flight.load(Relaxed))
    }

    /// Updates the clock offset from a reply that carries the server's time.
    pub(crate) fn record_server_time(&self, sent: Instant, received: Instant, time: Micros) {
        self.core.record_server_time(sent, received, time);
    }

    /// Upper bound of the server's clock now: units that are due after it are certainly not due yet.
    pub(crate) fn clock_ceiling(&self, now: Instant) -> Option<Micros> {
        self.core.clock_offset.lock().ceiling(now)
    }

    /// How many microseconds the server's clock is ahead of this node's wall clock.
    pub(crate) fn drift_micros(&self) -> Option<i64> {
        self.core.clock_offset.lock().drift_micros()
    }

    pub(crate) async fn call(&self, batch: &CommandBatch, deadline: Instant) -> Vec<CommandOutcome> {
        self.core.call(batch, deadline).await
    }

    /// Takes the server out of use for good: further calls to it fail.
    pub(crate) fn retire(&self) {
        self.core.phase.send_replace(NodePhase::Retired);
        self.core.connections.store(Arc::default());
        self.supervisor.abort();
    }

    /// An open connection. Returns `None` if the server is not up.
    pub(crate) fn connection(&self) -> Option<Arc<RedisConnection>> {
        self.core.pick_connection()
    }
}

impl Drop for RedisNode {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "RedisNode({}, {:?})", self.core.server, self.phase())
    }
}

impl CommandOutcome {
    pub(crate) fn into_result(self) -> Result<Value, StoreFailure> {
        match self {
            CommandOutcome::Value(value) | CommandOutcome::Redirected(value) => Ok(value),
            CommandOutcome::Failed(failure) => Err(failure),
            CommandOutcome::Moved(_) | CommandOutcome::Ask(_) | CommandOutcome::TryAgain => {
                Err(StoreFailure::Unreachable)
            }
        }
    }
}

impl NodeCore {
    async fn call(&self, batch: &CommandBatch, deadline: Instant) -> Vec<CommandOutcome> {
        if batch.len() == 0 {
            return Vec::new();
        }
        let Some(_permit) = self.try_acquire(batch.len()) else {
            return self.fail_all(batch.len(), StoreFailure::Busy);
        };
        self.wait_for_first_attempt(deadline).await;
        let Some(connection) = self.pick_connection() else {
            return self.fail_all(batch.len(), StoreFailure::Unreachable);
        };
        // Read before sending: a load that happens during the call must not be mistaken for an earlier one.
        let loads = self.counters.script_loads.load(Relaxed);
        let mut replies = match self.send(&connection, batch, deadline).await {
            Ok(replies) => replies,
            Err(failure) => return self.fail_all(batch.len(), failure),
        };
        let is_unknown =
            |(index, reply): (usize, &CommandReply)| matches!(reply, CommandReply::NoScript).then_some(index);
        let unknown: Vec<usize> = replies.iter().enumerate().filter_map(is_unknown).collect();
        if !unknown.is_empty() {
            let resent =
                self.load_script_and_resend(&connection, &batch.select(&unknown), loads, deadline).await;
            for (index, reply) in unknown.into_iter().zip(resent) {
                replies[index] = reply;
            }
        }
        replies.into_iter().map(|reply| self.to_outcome(reply)).collect()
    }

    /// Waits for the first connection attempt only. Once a server is down, calls fail fast.
    async fn wait_for_first_attempt(&self, deadline: Instant) {
        if *self.phase.borrow() == NodePhase::New {
            let mut phases = self.phase.subscribe();
            // The result does not matter: the caller checks the phase again.
            let _ = timeout_at(deadline, phases.wait_for(|phase| *phase != NodePhase::New)).await;
        }
    }

    /// The next open connection, round robin. Returns `None` if the server is not up.
    fn pick_connection(&self) -> Option<Arc<RedisConnection>> {
        if *self.phase.borrow() != NodePhase::Up {
            return None;
        }
        let connections = self.connections.load();
        let turn = self.next_connection.fetch_add(1, Relaxed);
        let mut in_turn =
            (0..connections.len()).map(|step| &connections[(turn.wrapping_add(step)) % connections.len()]);
        in_turn.find(|connection| !connection.is_closed()).cloned()
    }

    async fn send(
        &self,
        connection: &Arc<RedisConnection>,
        batch: &CommandBatch,
        deadline: Instant,
    ) -> Result<Vec<CommandReply>, StoreFailure> {
        let began = Instant::now();
        // `timeout_at` polls the call once before it checks the deadline, which would send it.
        if began >= deadline {
            return Err(StoreFailure::Timeout);
        }
        self.counters.calls.fetch_add(1, Relaxed);
        self.counters.commands.fetch_add(batch.len() as u64, Relaxed);
        let reply = timeout_at(deadline, connection.send(batch)).await;
        let now = Instant::now();
        match reply {
            Ok(Ok(values)) if values.len() == batch.len() => {
                connection.record_reply();
                self.counters.record_latency(now - began);
                let replies: Vec<CommandReply> = values.into_iter().map(CommandReply::parse).collect();
                self.record_call(began, now, !replies.iter().any(CommandReply::is_server_failure));
                Ok(replies)
            }
            Ok(_) => {
                // A broken connection counts as one failure, however many calls were on it.
                if connection.mark_closed() {
                    self.record_call(began, now, false);
                }
                self.wake_supervisor.notify_one();
                Err(StoreFailure::Unreachable)
            }
            Err(_) => {
                if deadline - began >= MIN_FAIR_TIMEOUT {
                    let timeout_ms = (deadline - began).as_micros().div_ceil(1000);
                    self.longest_timeout_ms.fetch_max(u64::try_from(timeout_ms).unwrap_or(u64::MAX), Relaxed);
                    self.record_call(began, now, false);
                    if connection.record_timeout() {
                        self.drop_connection(connection);
                    }
                }
                Err(StoreFailure::Timeout)
            }
        }
    }

    /// Loads the script, unless it has been loaded since the call was sent, and resends the commands that did not run.
    async fn load_script_and_resend(
        &self,
        connection: &Arc<RedisConnection>,
        batch: &CommandBatch,
        loads: u64,
        deadline: Instant,
    ) -> Vec<CommandReply> {
        let failed =
            |failure: StoreFailure| (0..batch.len()).map(|_| CommandReply::Failed(failure)).collect();
        match timeout_at(deadline, self.load_script(connection, loads)).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return failed(failure),
            Err(_) => return failed(StoreFailure::Timeout),
        }
        self.send(connection, batch, deadline).await.unwrap_or_else(failed)
    }

    async fn load_script(&self, connection: &Arc<RedisConnection>, loads: u64) -> Result<(), StoreFailure> {
        let _loading = self.script_load_lock.lock().await;
        if self.counters.script_loads.load(Relaxed) != loads {
            return Ok(());
        }
        let load = CommandBatch::new([script_load_command(self.options.script)]);
        let values = connection.send(&load).await.map_err(|_| StoreFailure::Unreachable)?;
        match values.into_iter().next() {
            Some(Value::ServerError(error)) => {
                self.record_error(&error);
                Err(StoreFailure::StoreError)
            }
            _ => {
                self.counters.script_loads.fetch_add(1, Relaxed);
                Ok(())
            }
        }
    }

    fn to_outcome(&self, reply: CommandReply) -> CommandOutcome {
        match reply {
            CommandReply::Value(value) => CommandOutcome::Value(value),
            CommandReply::Moved(to) => {
                self.counters.redirects.fetch_add(1, Relaxed);
                CommandOutcome::Moved(to)
            }
            CommandReply::Ask(to) => {
                self.counters.redirects.fetch_add(1, Relaxed);
                CommandOutcome::Ask(to)
            }
            CommandReply::TryAgain => {
                self.counters.redirects.fetch_add(1, Relaxed);
                CommandOutcome::TryAgain
            }
            CommandReply::Failed(failure) => {
                self.counters.record_failures(failure, 1);
                CommandOutcome::Failed(failure)
            }
            CommandReply::NoScript => {
                self.counters.record_failures(StoreFailure::StoreError, 1);
                CommandOutcome::Failed(StoreFailure::StoreError)
            }
            CommandReply::ServerUnusable(error) => {
                // The server was usable when the connection was made. All other calls to it fail as well.
                let failure = self.login_context().explain(&error);
                self.counters.record_errors(failure.cause, 1);
                self.trip_breaker(failure);
                self.counters.record_failures(StoreFailure::Unreachable, 1);
                CommandOutcome::Failed(StoreFailure::Unreachable)
            }
            CommandReply::Error(error, failure) => {
                self.record_error(&error);
                self.counters.record_failures(failure, 1);
                CommandOutcome::Failed(failure)
            }
        }
    }

    fn fail_all(&self, commands: usize, failure: StoreFailure) -> Vec<CommandOutcome> {
        self.counters.record_failures(failure, commands);
        (0..commands).map(|_| CommandOutcome::Failed(failure)).collect()
    }

    /// Acquires an in-flight permit for `commands` commands. Returns `None` if too many are in flight.
    fn try_acquire(&self, commands: usize) -> Option<InFlightPermit<'_>> {
        let before = self.in_flight.fetch_add(commands, Relaxed);
        let permit = InFlightPermit { in_flight: &self.in_flight, commands };
        // A batch larger than the maximum may go alone.
        (before == 0 || before + commands <= self.options.max_in_flight).then_some(permit)
    }

    fn record_call(&self, began: Instant, now: Instant, is_good: bool) {
        let change = self.breaker_state.lock().record_call(began, now, is_good);
        if change == Some(BreakerChange::Opened) {
            let is_slow = self.longest_timeout_ms.load(Relaxed) > 0;
            let cause = if is_slow { StoreErrorCause::Timeout } else { StoreErrorCause::Unreachable };
            self.disconnect(ServerFailure::new(cause, "too many calls failed"));
        }
    }

    /// Opens the breaker because the server is known to be down.
    fn trip_breaker(&self, failure: ServerFailure) {
        let change = self.breaker_state.lock().trip(Instant::now());
        if change == Some(BreakerChange::Opened) {
            self.disconnect(failure);
        }
    }

    /// Drops all connections, logs that the server is down, and makes the supervisor start probing.
    fn disconnect(&self, failure: ServerFailure) {
        self.connections.store(Arc::default());
        let message = failure.message.clone();
        // Set before the phase, so that a reader that sees the server down also sees the cause.
        *self.failure.lock() = Some(failure);
        if !self.set_phase(NodePhase::Down) {
            return;
        }
        warn!(server = %self.server, "store server down: {message}");
        self.wake_supervisor.notify_one();
    }

    /// Sets the phase, and returns whether it changed. A retired server stays retired.
    fn set_phase(&self, phase: NodePhase) -> bool {
        self.phase.send_if_modified(|current| {
            let is_change = *current != phase && *current != NodePhase::Retired;
            if is_change {
                *current = phase;
            }
            is_change
        })
    }

    fn drop_connection(&self, connection: &Arc<RedisConnection>) {
        self.connections.rcu(|connections| {
            connections.iter().filter(|other| !Arc::ptr_eq(other, connection)).cloned().collect::<Vec<_>>()
        });
        self.wake_supervisor.notify_one();
    }

    fn login_context(&self) -> &LoginContext {
        self.options.connector.login_context()
    }

    fn record_server_time(&self, sent: Instant, received: Instant, time: Micros) {
        let wall = self.options.clock.now();
        let change = self.clock_offset.lock().record(sent, received, wall, time);
        match change {
            Some(DriftChange::Exceeded(drift)) => {
                let millis = drift / 1_000;
                warn!(
                    server = %self.server,
                    millis,
                    "clock drift between this machine and the store server: synchronize their clocks"
                );
            }
            Some(DriftChange::Cleared(drift)) => {
                let millis = drift / 1_000;
                info!(server = %self.server, millis, "clock drift between this machine and the store server is over");
            }
            None => {}
        }
    }
}

fn script_load_command(script: &str) -> Cmd {
    let mut load = cmd("SCRIPT");
    load.arg("LOAD").arg(script);
    load
}

/// Permit for commands in flight; released on drop.
struct InFlightPermit<'a> {
    in_flight: &'a AtomicUsize,
    commands: usize,
}

impl Drop for InFlightPermit<'_> {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(self.commands, Relaxed);
    }
}

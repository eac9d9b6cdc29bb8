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
mod report;
mod supervisor;
#[cfg(test)]
mod tests;

use crate::client::connection::{CommandBatch, RedisConnection, command};
use crate::client::connector::Connector;
use crate::client::failure::{LoginContext, ServerFailure};
use crate::client::reply::{CommandReply, Redirect};
use crate::client::slot::probe_key_in;

use crate::client::breaker::{Breaker, BreakerChange};
use crate::client::clock_offset::{ClockOffset, DriftChange};
use crate::client::url::ServerAddress;
use arc_swap::ArcSwap;
use call_counters::CallCounters;
use errors::{LastError, ServerWarning};
use info::ServerInfo;
use parking_lot::Mutex;
use ratekeeper::{RECENT_FAILURE, StoreErrorCause};
use ratekeeper_core::{Clock, Micros, StoreFailure};
use redis::Value;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
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
    /// SHA-1 digest of the script, as used by `EVALSHA`.
    pub(crate) digest: String,
    pub(crate) role: RoleCheck,
    pub(crate) bounds: ServerSetOptions,
}

/// What the caller decides about the use of servers.
#[derive(Clone)]
pub(crate) struct ServerSetOptions {
    /// The script that commands call by its digest; it is loaded on servers that do not have it.
    ///
    /// To probe whether a server would run it, the script is called once a second on each connection with a key and
    /// no arguments. It should then change nothing and return two strings: the commands that the user may not run,
    /// and the error with which a write would be rejected. An error of the script itself is ignored.
    pub(crate) script: &'static str,
    /// Number of connections to each server.
    pub(crate) connections: usize,
    /// Maximum number of commands in flight to each server.
    pub(crate) max_in_flight: usize,
    /// This node's wall clock, with which the servers' clocks are compared.
    pub(crate) clock: Arc<dyn Clock>,
}

impl ServerSetOptions {
    /// Options for a script, with two connections and at most 1024 commands in flight per server.
    pub(crate) fn new(script: &'static str, clock: Arc<dyn Clock>) -> ServerSetOptions {
        ServerSetOptions { script, connections: 2, max_in_flight: 1024, clock }
    }
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

/// State of a server, shared between a [`RedisNode`] and its supervisor task.
pub(crate) struct NodeCore {
    pub(crate) server: ServerAddress,
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
    pub(crate) counters: CallCounters,
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
    /// Not run: its keys are on another server.
    Redirect(Redirect),
}

impl RedisNode {
    /// Creates a node that is not connected yet, and starts the supervisor task that connects it.
    pub(crate) fn start(server: ServerAddress, options: ServerOptions) -> RedisNode {
        let now = Instant::now();
        let seed = RandomState::new().hash_one(&server);
        let probes = u32::try_from(options.bounds.connections).unwrap_or(u32::MAX);
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

    /// Takes the server out of use for good: further calls to it fail.
    pub(crate) fn retire(&self) {
        self.core.phase.send_replace(NodePhase::Retired);
        self.core.connections.store(Arc::default());
        self.supervisor.abort();
    }
}

/// A node is used through its state; the handle only keeps the supervisor running.
impl Deref for RedisNode {
    type Target = NodeCore;

    fn deref(&self) -> &NodeCore {
        &self.core
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
            CommandOutcome::Redirect(_) => Err(StoreFailure::Unreachable),
        }
    }
}

impl NodeCore {
    /// The current connection phase.
    pub(crate) fn phase(&self) -> NodePhase {
        *self.phase.borrow()
    }

    /// A receiver that is notified of each phase change.
    pub(crate) fn phase_changes(&self) -> watch::Receiver<NodePhase> {
        self.phase.subscribe()
    }

    /// Why the server is down; or, if it is up, why it rejects writes or which permissions are missing, or the error
    /// that it replied with in the last second. Returns `None` if the server is healthy.
    pub(crate) fn failure(&self) -> Option<ServerFailure> {
        if self.phase() != NodePhase::Up {
            return self.failure.lock().clone();
        }
        if let Some(failure) = &self.warning.lock().failure {
            return Some(failure.clone());
        }
        let last_error = self.last_error.lock();
        last_error.as_ref().filter(|last| last.at.elapsed() < RECENT_FAILURE).map(|last| last.failure.clone())
    }

    /// Makes the supervisor probe the script with a key of this slot, which the server serves.
    pub(crate) fn set_probe_slot(&self, slot: u16) {
        let mut probe_key = self.probe_key.lock();
        if probe_key.0 != Some(slot) {
            *probe_key = (Some(slot), probe_key_in(slot));
        }
    }

    /// The number of commands in flight.
    pub(crate) fn load(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Upper bound of the server's clock now: units that are due after it are certainly not due yet.
    pub(crate) fn clock_ceiling(&self, now: Instant) -> Option<Micros> {
        self.clock_offset.lock().ceiling(now)
    }

    /// Sends a batch, and returns the outcome of each command, by the deadline at the latest.
    pub(crate) async fn call(&self, batch: &CommandBatch, deadline: Instant) -> Vec<CommandOutcome> {
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
            let resent = self
                .load_script_and_resend(
                    &connection,
                    &batch.select(&unknown, batch.is_asking),
                    loads,
                    deadline,
                )
                .await;
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
    pub(crate) fn pick_connection(&self) -> Option<Arc<RedisConnection>> {
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
        let load = CommandBatch::new([command(&["SCRIPT", "LOAD", self.options.bounds.script])]);
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
        let failure = match reply {
            CommandReply::Value(value) => return CommandOutcome::Value(value),
            CommandReply::Redirect(redirect) => {
                self.counters.redirects.fetch_add(1, Relaxed);
                return CommandOutcome::Redirect(redirect);
            }
            CommandReply::Failed(failure) => failure,
            CommandReply::NoScript => StoreFailure::StoreError,
            CommandReply::ServerUnusable(error) => {
                // The server was usable when the connection was made. All other calls to it fail as well.
                let failure = self.login_context().explain(&error);
                self.counters.record_errors(failure.cause, 1);
                self.trip_breaker(failure);
                StoreFailure::Unreachable
            }
            CommandReply::Error(error, failure) => {
                self.record_error(&error);
                failure
            }
        };
        self.counters.record_failures(failure, 1);
        CommandOutcome::Failed(failure)
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
        (before == 0 || before + commands <= self.options.bounds.max_in_flight).then_some(permit)
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

    /// Updates the clock offset from a reply that carries the server's time.
    pub(crate) fn record_server_time(&self, sent: Instant, received: Instant, time: Micros) {
        let wall = self.options.bounds.clock.now();
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

//! Health of a store, for operators.
//!
//! An in-process store has nothing to report. A shared store runs elsewhere and may be unreachable; every node then
//! applies the failure mode of its rules, which operators need to see.

use crate::duration_histogram::DurationHistogram;
use std::time::Duration;

/// How long an unanswered request marks the store as degraded: long enough for a scraper that polls now and then to
/// see an ongoing problem, short enough for a past one to clear soon.
pub const RECENT_FAILURE: Duration = Duration::from_secs(1);

/// The health of a store that several processes share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreReport {
    /// The address of the store as written in the settings, without passwords.
    pub address: String,
    /// How its servers relate to each other.
    pub topology: Topology,
    /// The servers that hold the states.
    pub servers: Vec<ServerReport>,
    /// How many slots of a Redis Cluster have no server.
    pub uncovered_slots: usize,
    /// How long ago the store last failed to answer a request, for any reason; `None` if it never did.
    pub last_failure: Option<Duration>,
    /// How many nodes share the store, including this one. While the store is unreachable, a limit is divided among
    /// that many.
    pub live_nodes: u32,
    /// What was requested of the store, and what was decided without it.
    pub counts: StoreCounts,
}

/// How the servers of a store relate to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// A single server.
    Standalone,
    /// One primary at a time, named by sentinels.
    Sentinel,
    /// A Redis Cluster, whose servers divide the keys and announce which server has which.
    Cluster,
    /// Several independent servers.
    Sharded,
}

impl Topology {
    /// Returns the name used in metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Topology::Standalone => "standalone",
            Topology::Sentinel => "sentinel",
            Topology::Cluster => "cluster",
            Topology::Sharded => "sharded",
        }
    }
}

/// The health of one server of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerReport {
    /// The host and port.
    pub address: String,
    /// The server software and version, like `redis 7.0.15`; `None` before the first connection.
    pub software: Option<String>,
    /// The number of replicas.
    pub replicas: u32,
    /// The state of the circuit breaker.
    pub breaker: BreakerState,
    /// The current problem and its remedy: why the server is not called, why it rejects writes, or which error it
    /// answered with within the last second.
    pub problem: Option<String>,
    /// The kind of the current problem.
    pub cause: Option<StoreErrorCause>,
    /// Whether the server accepts writes, as far as known. A server that does not is still called: it answers
    /// requests that change nothing, such as those of clients with no units left.
    pub accepts_writes: bool,
    /// Whether the decision script is loaded.
    pub has_script: bool,
    /// The eviction policy, like `noeviction`; `None` if the server does not report it.
    pub eviction_policy: Option<String>,
    /// Whether the server may evict states of clients that are being denied: its memory is bounded and its policy
    /// allows eviction.
    pub may_evict: bool,
    /// The offset of the server's clock from the clock of this node; `None` before the first call.
    pub clock_drift: Option<ClockDrift>,
    /// The latency of its replies.
    pub latency: DurationHistogram,
    /// Failed calls by kind.
    pub failures: StoreFailureCounts,
    /// Error replies and failed attempts to use the server, by cause.
    pub errors: StoreErrorCounts,
    /// How many connections were made after the initial ones.
    pub reconnects: u64,
    /// How often the script was loaded.
    pub script_loads: u64,
}

/// The state of a circuit breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BreakerState {
    /// Calls pass.
    #[default]
    Closed,
    /// A probe is under way to find out whether calls can pass again.
    HalfOpen,
    /// Calls fail fast after repeated failures.
    Open,
}

impl BreakerState {
    /// Returns the name used in metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::HalfOpen => "half_open",
            BreakerState::Open => "open",
        }
    }
}

/// Why a server of a store can't be used or answers with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorCause {
    /// No connection can be made, or the connection breaks.
    Unreachable,
    /// The server does not answer in time.
    Timeout,
    /// Only one side uses TLS: the URL says `rediss://` but the server does not use TLS, or the other way round.
    TlsMismatch,
    /// The TLS handshake fails, for example because the certificate is not trusted.
    Tls,
    /// The server requires a password, or rejects the user or password in the URL.
    Password,
    /// The user has no permission to run a command or access a key.
    Permission,
    /// The server does not match the URL: it is not a Cluster or Sentinel, or it is one where a single server is
    /// expected.
    Topology,
    /// The server does not support a required command.
    Unsupported,
    /// The server is a replica.
    Replica,
    /// The Cluster is down, or a slot has no server.
    ClusterDown,
    /// The server is loading its data, or is waiting for its primary.
    Loading,
    /// The server is busy running a script.
    Busy,
    /// The server rejects writes because it is out of memory.
    OutOfMemory,
    /// The server rejects writes because it can't persist to disk.
    Persistence,
    /// The server rejects writes because it has too few replicas.
    Replicas,
    /// Any other cause.
    Other,
}

impl StoreErrorCause {
    /// All causes.
    pub const ALL: [StoreErrorCause; 16] = [
        StoreErrorCause::Unreachable,
        StoreErrorCause::Timeout,
        StoreErrorCause::TlsMismatch,
        StoreErrorCause::Tls,
        StoreErrorCause::Password,
        StoreErrorCause::Permission,
        StoreErrorCause::Topology,
        StoreErrorCause::Unsupported,
        StoreErrorCause::Replica,
        StoreErrorCause::ClusterDown,
        StoreErrorCause::Loading,
        StoreErrorCause::Busy,
        StoreErrorCause::OutOfMemory,
        StoreErrorCause::Persistence,
        StoreErrorCause::Replicas,
        StoreErrorCause::Other,
    ];

    /// Returns the name used in metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            StoreErrorCause::Unreachable => "unreachable",
            StoreErrorCause::Timeout => "timeout",
            StoreErrorCause::TlsMismatch => "tls_mismatch",
            StoreErrorCause::Tls => "tls",
            StoreErrorCause::Password => "password",
            StoreErrorCause::Permission => "permission",
            StoreErrorCause::Topology => "topology",
            StoreErrorCause::Unsupported => "unsupported",
            StoreErrorCause::Replica => "replica",
            StoreErrorCause::ClusterDown => "cluster_down",
            StoreErrorCause::Loading => "loading",
            StoreErrorCause::Busy => "busy",
            StoreErrorCause::OutOfMemory => "out_of_memory",
            StoreErrorCause::Persistence => "persistence",
            StoreErrorCause::Replicas => "replicas",
            StoreErrorCause::Other => "other",
        }
    }

    /// Returns whether the cause blocks only writes, so that requests that change nothing are still answered.
    pub const fn blocks_writes_only(self) -> bool {
        matches!(
            self,
            StoreErrorCause::OutOfMemory | StoreErrorCause::Persistence | StoreErrorCause::Replicas
        )
    }
}

/// The number of errors per cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreErrorCounts([u64; StoreErrorCause::ALL.len()]);

impl StoreErrorCounts {
    /// Creates the counts from a function of the cause.
    pub fn from_fn(count: impl Fn(StoreErrorCause) -> u64) -> StoreErrorCounts {
        StoreErrorCounts(StoreErrorCause::ALL.map(count))
    }

    /// Returns the number of errors of a cause.
    pub const fn of(&self, cause: StoreErrorCause) -> u64 {
        self.0[cause as usize]
    }
}

/// How far a clock is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockDrift {
    /// The clock is ahead by this much.
    Ahead(Duration),
    /// The clock is behind by this much.
    Behind(Duration),
}

impl ClockDrift {
    /// Returns the drift in seconds, negative if the clock is behind.
    pub fn secs(self) -> f64 {
        match self {
            ClockDrift::Ahead(by) => by.as_secs_f64(),
            ClockDrift::Behind(by) => -by.as_secs_f64(),
        }
    }
}

/// Failed calls by kind: see [`StoreFailure`](crate::StoreFailure).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreFailureCounts {
    /// The server did not answer in time.
    pub timeout: u64,
    /// The server was unreachable.
    pub unreachable: u64,
    /// Too many calls were already waiting.
    pub busy: u64,
    /// The server answered with an error.
    pub error: u64,
}

impl ServerReport {
    /// Returns the address, followed by the current problem if there is one.
    pub fn describe(&self) -> String {
        match &self.problem {
            Some(problem) => format!("{} ({problem})", self.address),
            None => self.address.clone(),
        }
    }
}

/// Counters of a store: requests sent to it and requests decided without it. A request counts once, however many
/// limits apply to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Calls to servers. Each call carries a batch of requests.
    pub batches: u64,
    /// Requests in those batches. A request whose keys are on several servers counts once for each.
    pub requests: u64,
    /// Requests that were coalesced with an identical request made at the same time.
    pub coalesced: u64,
    /// Requests denied without a call because no unit can have been refilled yet.
    pub denied_from_memory: u64,
    /// Requests decided by this node's share of the limits because the store did not answer.
    pub decided_locally: u64,
    /// The total time during which some requests were decided without the store, to a tenth of a second.
    pub degraded_time: Duration,
    /// The leases of this node.
    pub leases: LeaseCounts,
}

/// Counters of the leases that a store granted to this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Units lent.
    pub lent: u64,
    /// Units spent.
    pub spent: u64,
    /// Units returned.
    pub returned: u64,
    /// Units neither spent nor returned before the lease expired.
    pub expired: u64,
    /// Draws granted from a lease.
    pub granted: u64,
    /// Draws denied without a call because the limit was exhausted a moment ago.
    pub denied: u64,
    /// Of those, draws for which enough units may have been refilled in the meantime.
    pub denied_stale: u64,
    /// Draws that had to be sent to the store.
    pub misses: u64,
    /// Lease renewals and reports that were sent without a draw.
    pub renewals: u64,
    /// Lease renewals and reports that the store did not acknowledge.
    pub unacknowledged: u64,
    /// Draws whose key found no free entry in the lease table.
    pub table_full: u64,
    /// Keys in the lease table. Their demand is tracked, and units of them may be leased.
    pub keys: usize,
    /// The capacity of the lease table.
    pub max_keys: usize,
}

/// The lease of this node on one key, with counts since the node began to track it. A key without draws is dropped
/// after two minutes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyLease {
    /// Units that may be spent without a call.
    pub unspent: u32,
    /// The time until the lease expires; `None` if there is no lease.
    pub expires_in: Option<Duration>,
    /// Whether the store did not acknowledge the last report on the lease. The node then spends the lease until it
    /// expires and reports nothing more about it.
    pub is_unacknowledged: bool,
    /// How long the key is denied without a call because the limit was exhausted; `None` if it is not.
    pub denied_for: Option<Duration>,
    /// The units drawn on this node per second.
    pub per_second: f32,
    /// Units lent.
    pub lent: u64,
    /// Units spent.
    pub spent: u64,
    /// Units returned.
    pub returned: u64,
    /// Units neither spent nor returned before the lease expired.
    pub expired: u64,
    /// Draws. This and the next three counters wrap at 2^32.
    pub draws: u32,
    /// Draws that had to be sent to the store.
    pub misses: u32,
    /// Draws denied without a call.
    pub denied: u32,
    /// Of those, draws for which enough units may have been refilled in the meantime.
    pub denied_stale: u32,
}

impl StoreReport {
    /// Returns the servers whose circuit breaker is not closed.
    pub fn unavailable_servers(&self) -> impl Iterator<Item = &ServerReport> {
        self.servers.iter().filter(|server| server.breaker != BreakerState::Closed)
    }

    /// Returns whether a request got no answer within the last second. This can happen with all servers connected,
    /// for example if one is out of memory and answers with errors.
    pub fn failed_recently(&self) -> bool {
        self.last_failure.is_some_and(|ago| ago < RECENT_FAILURE)
    }

    /// Returns the servers that are called but reject writes.
    pub fn read_only_servers(&self) -> impl Iterator<Item = &ServerReport> {
        self.servers.iter().filter(|server| server.breaker == BreakerState::Closed && !server.accepts_writes)
    }

    /// Returns whether some requests are decided without the store: no server is known yet, a breaker is not
    /// closed, a server rejects writes, slots of a Cluster have no server, or a request got no answer within the
    /// last second.
    pub fn is_degraded(&self) -> bool {
        self.servers.is_empty()
            || self.unavailable_servers().next().is_some()
            || self.read_only_servers().next().is_some()
            || self.uncovered_slots > 0
            || self.failed_recently()
    }
}

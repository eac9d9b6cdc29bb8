//! How a store is doing, for whoever runs it.
//!
//! A store in this process has nothing to tell. One that several processes share is elsewhere, may be away, and then
//! every node enforces what its rules say for that case: somebody should see it.

use crate::duration_histogram::DurationHistogram;
use ratekeeper_core::{KeyRef, Limit, Scope};
use std::time::Duration;

/// For how long it counts that a request got no answer: whoever asks now and then should see what is going on, and what
/// is over should soon be seen to be.
pub(crate) const LATELY: Duration = Duration::from_secs(1);

/// How a store is doing.
pub trait StoreHealth {
    /// What there is to tell; nothing if the store is this process and nobody else.
    ///
    /// It may allocate and lock: it is asked by people and scrapers, not for requests.
    fn health(&self) -> Option<StoreReport> {
        None
    }

    /// What this node was lent of a key under a limit; nothing if nothing is lent or known of it.
    fn lease(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> Option<KeyLease> {
        let _ = (key, scope, limit);
        None
    }
}

/// How a store that several processes share is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreReport {
    /// Where it is, as it is written in settings, without passwords.
    pub address: String,
    /// How its servers belong together.
    pub topology: Topology,
    /// The servers that states are kept on.
    pub servers: Vec<ServerReport>,
    /// Of a Cluster, how many slots have no server.
    pub uncovered_slots: usize,
    /// How long ago it last gave a request no answer, for whatever reason; nothing if it always did.
    pub last_miss: Option<Duration>,
    /// How many nodes share it, this one included: among so many a limit is divided while it is away.
    pub live_nodes: u32,
    /// What was asked of it, and what was answered without it.
    pub counts: StoreCounts,
}

/// How the servers of a store belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// There is one.
    Standalone,
    /// One at a time, which sentinels name.
    Sentinel,
    /// Several that divide the keys and tell who has which.
    Cluster,
    /// Several that know nothing of each other.
    Sharded,
}

impl Topology {
    /// The name it goes by.
    pub const fn name(self) -> &'static str {
        match self {
            Topology::Standalone => "standalone",
            Topology::Sentinel => "sentinel",
            Topology::Cluster => "cluster",
            Topology::Sharded => "sharded",
        }
    }
}

/// How one server of a store is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReport {
    /// Its host and port.
    pub address: String,
    /// What it says it is, like `redis 7.0.15`; nothing before it was first reached.
    pub software: Option<String>,
    /// How many servers copy it.
    pub replicas: u32,
    /// Whether it is asked.
    pub breaker: BreakerState,
    /// What is wrong with it and what to do about it: why it is not asked, why it takes no writes, or which error it answered
    /// with within the last second.
    pub trouble: Option<String>,
    /// The kind of what is wrong with it.
    pub cause: Option<StoreErrorCause>,
    /// Whether it takes writes, as far as is known. A server that does not is asked all the same: it still answers requests
    /// that change nothing, such as those of clients that have nothing left.
    pub takes_writes: bool,
    /// Whether it has the script that decides.
    pub has_script: bool,
    /// What it drops when its memory is full, like `noeviction`; nothing if it does not say.
    pub eviction_policy: Option<String>,
    /// Whether it may drop states of clients that are being refused: its memory is bounded and its policy lets it.
    pub may_forget: bool,
    /// How far its clock is ahead of this node's, or behind; nothing before it was first asked.
    pub drift: Option<ClockDrift>,
    /// How long its answers took.
    pub calls: DurationHistogram,
    /// Calls that got no answer, by what went wrong.
    pub failures: StoreFailureCounts,
    /// Errors that it answered with, and attempts to use it that failed, by cause.
    pub errors: StoreErrorCounts,
    /// How many connections were made beyond those that it began with.
    pub reconnects: u64,
    /// How often the script was loaded.
    pub script_loads: u64,
}

/// Whether a server is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BreakerState {
    /// It is.
    #[default]
    Closed,
    /// It is tried whether it can be asked again.
    HalfOpen,
    /// It is not: it gave no answer too often.
    Open,
}

impl BreakerState {
    /// The name it goes by.
    pub const fn name(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::HalfOpen => "half_open",
            BreakerState::Open => "open",
        }
    }
}

/// Why a server of a store can't be used, or answers with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorCause {
    /// No connection can be made, or it ends.
    Unreachable,
    /// It does not answer in time.
    Timeout,
    /// TLS is spoken by one side only: the URL says `rediss://` and the server does not speak it, or the other way round.
    TlsMismatch,
    /// The TLS handshake fails, such as for a certificate that is not trusted.
    Tls,
    /// It wants a password, or does not accept the user or the password in the URL.
    Password,
    /// The user may not run a command or access a key.
    Permission,
    /// It is not what the URL says: no Cluster, no Sentinel, or a Cluster or Sentinel where one server is expected.
    Topology,
    /// It does not know a command that is needed.
    Unsupported,
    /// It is a replica.
    Replica,
    /// The Cluster takes no commands, or nobody serves a slot.
    ClusterDown,
    /// It is loading its data, or waits for its master.
    Loading,
    /// It is busy with a script.
    Busy,
    /// It takes no writes: it is out of memory.
    OutOfMemory,
    /// It takes no writes: it can't save to disk.
    Persistence,
    /// It takes no writes: too few replicas follow it.
    Replicas,
    /// Any other.
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

    /// The name it goes by in metrics and JSON.
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

    /// Whether it stops writes and nothing else: requests that change nothing are still answered.
    pub const fn stops_writes_only(self) -> bool {
        matches!(
            self,
            StoreErrorCause::OutOfMemory | StoreErrorCause::Persistence | StoreErrorCause::Replicas
        )
    }
}

/// How many errors there were of each cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreErrorCounts([u64; StoreErrorCause::ALL.len()]);

impl StoreErrorCounts {
    /// Counts by a function of the cause.
    pub fn count(count: impl Fn(StoreErrorCause) -> u64) -> StoreErrorCounts {
        StoreErrorCounts(StoreErrorCause::ALL.map(count))
    }

    /// How many there were of a cause.
    pub const fn of(&self, cause: StoreErrorCause) -> u64 {
        self.0[cause as usize]
    }
}

/// How far a clock is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockDrift {
    /// It is ahead by so much.
    Ahead(Duration),
    /// It is behind by so much.
    Behind(Duration),
}

impl ClockDrift {
    /// In seconds, below zero if it is behind.
    pub fn secs(self) -> f64 {
        match self {
            ClockDrift::Ahead(by) => by.as_secs_f64(),
            ClockDrift::Behind(by) => -by.as_secs_f64(),
        }
    }
}

/// Calls that got no answer: see [`StoreFailure`](crate::StoreFailure).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreFailureCounts {
    /// None came in time.
    pub timeout: u64,
    /// The server could not be reached.
    pub unreachable: u64,
    /// Too much was waiting already.
    pub busy: u64,
    /// It answered with an error.
    pub refused: u64,
}

impl ServerReport {
    /// Where it is, and what is wrong with it if anything is.
    pub fn in_words(&self) -> String {
        match &self.trouble {
            Some(trouble) => format!("{} ({trouble})", self.address),
            None => self.address.clone(),
        }
    }
}

/// What was asked of a store, and what was answered without it. A request counts once, however many limits it has to pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Calls, each of which carries many requests.
    pub batches: u64,
    /// Requests that they carried; one whose keys are on several servers counts for each.
    pub requests: u64,
    /// Requests that travelled as part of another: the same, at the same time.
    pub coalesced: u64,
    /// Requests that were refused without asking, because no unit can have come back yet.
    pub denied_from_memory: u64,
    /// Requests that this node held to its share of a limit, because the store gave no answer.
    pub local: u64,
    /// For how long some requests were answered without it, to a tenth of a second.
    pub away: Duration,
    /// What this node was lent, and what became of it.
    pub leases: LeaseCounts,
}

/// What a node was lent by a store, so that it need not ask each time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Units that were lent.
    pub lent: u64,
    /// Of those, spent.
    pub spent: u64,
    /// Given back.
    pub returned: u64,
    /// Neither, because the lease was over before.
    pub forfeited: u64,
    /// Draws that were granted from what was lent.
    pub granted: u64,
    /// Draws that were refused without asking, because there was nothing left a moment ago.
    pub refused: u64,
    /// Of those, draws for which enough may have come back meanwhile.
    pub stale: u64,
    /// Draws for which the store was asked all the same.
    pub asked: u64,
    /// Times that the store was told or asked of a lease without a draw.
    pub refills: u64,
    /// Times that it gave no answer to what it was told or asked of a lease.
    pub lost: u64,
    /// Draws for whose keys there was no room among the leases.
    pub crowded: u64,
    /// Keys whose demand is watched, and of which units may be lent.
    pub keys: usize,
    /// The most of those.
    pub max_keys: usize,
}

/// What a node was lent of one key, counted since the node began to watch it. A key that nobody draws is forgotten after
/// two minutes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyLease {
    /// Units that may be spent without asking.
    pub in_hand: u32,
    /// For how long; nothing if there is no lease.
    pub lasts: Option<Duration>,
    /// Whether the store gave no answer when it was last told of the lease. It is then spent while it lasts, and not spoken
    /// of again.
    pub is_mute: bool,
    /// For how long the key is refused without asking, because the store had nothing left; nothing if it is not.
    pub paused: Option<Duration>,
    /// How many units are drawn on this node each second.
    pub per_second: f32,
    /// Units that were lent.
    pub lent: u64,
    /// Of those, spent.
    pub spent: u64,
    /// Given back.
    pub returned: u64,
    /// Neither, because the lease was over before.
    pub forfeited: u64,
    /// Draws, up to 2^32 and then counted anew, as are the next three.
    pub draws: u32,
    /// Draws for which the store was asked.
    pub asked: u32,
    /// Draws that were refused without asking.
    pub refused: u32,
    /// Of those, draws for which enough may have come back meanwhile.
    pub stale: u32,
}

impl StoreReport {
    /// The servers that are not asked, as they gave no answer too often.
    pub fn away(&self) -> impl Iterator<Item = &ServerReport> {
        self.servers.iter().filter(|server| server.breaker != BreakerState::Closed)
    }

    /// Whether a request got no answer within the last second, be it that all servers are there: one that is out of memory
    /// is, and still refuses.
    pub fn has_missed(&self) -> bool {
        self.last_miss.is_some_and(|ago| ago < LATELY)
    }

    /// The servers that are asked but take no writes.
    pub fn read_only(&self) -> impl Iterator<Item = &ServerReport> {
        self.servers.iter().filter(|server| server.breaker == BreakerState::Closed && !server.takes_writes)
    }

    /// Whether some requests are answered without the store: a server is away or none is known yet or takes no writes, slots
    /// of a Cluster have no server, or a request got no answer within the last second.
    pub fn is_degraded(&self) -> bool {
        self.servers.is_empty()
            || self.away().next().is_some()
            || self.read_only().next().is_some()
            || self.uncovered_slots > 0
            || self.has_missed()
    }
}

//! One server: its connections, its breaker, and what is known of it.
//!
//! A call is a batch of commands that is written at once over one of a few shared connections, and ends at its deadline
//! whatever the server does. It is never sent twice: an answer that did not come may have been a charge. The exception
//! is a command that the server says it did not run, because it does not know the script: the script is loaded, once
//! for all who wait for it, and the command sent again within the same deadline.
//!
//! Clients' calls never wait for a connection to be made. A task of the server's own keeps connections warm, watches
//! over them, and probes a server that is away; until that is back, calls fail at once.

mod call_counters;
mod connection;
mod connector;
mod errors;
mod failure;
mod info;
mod reply;
mod supervisor;
mod tls;

pub use call_counters::CallCounts;
pub use info::ServerInfo;
pub use tls::StoreTlsError;

pub(super) use connection::{CommandBatch, RedisConnection};
pub(super) use connector::{Connector, Diagnosis};
pub(super) use failure::{LoginContext, ServerFailure};

use super::breaker::{Breaker, BreakerChange};
use super::clock_offset::{ClockOffset, DriftChange};
use super::cluster::slot::key_in;
use super::url::ServerAddress;
use crate::health::{BreakerState, LATELY, StoreErrorCause};
use ::redis::{Cmd, Value, cmd};
use arc_swap::ArcSwap;
use call_counters::CallCounters;
use errors::{LastError, ServerWarning};
use parking_lot::Mutex;
use ratekeeper_core::{Clock, Micros, StoreFailure};
use reply::CommandReply;
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

/// A call that was given less time than this says little about a server or a connection: it is not held against them.
const FAIR_DEADLINE: Duration = Duration::from_millis(10);
/// How often errors that a server answers with are told of, at most.
const TELL_REFUSALS: Duration = Duration::from_secs(10);

/// What a server is used for, and within what bounds.
#[derive(Clone)]
pub(super) struct ServerOptions {
    pub(super) dialer: Connector,
    /// Loaded where it is missing.
    pub(super) script: &'static str,
    /// What servers know it by.
    pub(super) digest: String,
    /// How many connections are kept.
    pub(super) links: usize,
    /// The most commands in flight at once.
    pub(super) in_flight: usize,
    pub(super) role: RoleCheck,
    pub(super) clock: Arc<dyn Clock>,
}

/// Whether a server has to be a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoleCheck {
    /// It may be either, since in a Cluster a replica sends calls on to its master; but it must not say that the cluster is
    /// down.
    Cluster,
    /// It must not say that it is a replica.
    NoReplica,
    /// It must say that it is a master, again and again: behind Sentinel that may change at any time.
    Master,
}

/// One server.
pub struct RedisNode {
    core: Arc<NodeCore>,
    keeper: AbortHandle,
}

/// What a server and the task that keeps its connections share.
struct NodeCore {
    server: ServerAddress,
    terms: ServerOptions,
    links: ArcSwap<Vec<Arc<RedisConnection>>>,
    turn: AtomicUsize,
    in_flight: AtomicUsize,
    breaker: Mutex<Breaker>,
    phase: watch::Sender<NodePhase>,
    /// How long the most patient call waited of those that timed out since the server was last away.
    too_slow_ms: AtomicU64,
    /// Wakes the keeper.
    wake: Notify,
    /// Held while the script is loaded.
    loading: tokio::sync::Mutex<()>,
    meter: CallCounters,
    skew: Mutex<ClockOffset>,
    facts: Mutex<Option<ServerInfo>>,
    /// Why it is away.
    trouble: Mutex<Option<ServerFailure>>,
    shortcoming: Mutex<ServerWarning>,
    refusal: Mutex<Option<LastError>>,
    /// The key that the script is called with to find out whether it would run: in a Cluster one of a slot that the server
    /// has.
    probe_key: Mutex<(Option<u16>, Vec<u8>)>,
}

/// The key that scripts are tried with, where any will do.
const PROBE_KEY: &[u8] = b"rk1:{probe}";

/// Whether a server can be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePhase {
    /// Nobody has tried yet.
    New,
    /// Its connections are warm.
    Up,
    /// It is away. It is tried again and again.
    Down,
    /// It is not to be called any more: another has taken its place.
    Retired,
}

/// What became of one command.
#[derive(Debug)]
pub(super) enum CommandOutcome {
    Value(Value),
    /// The answer of another server than the one that was asked.
    Elsewhere(Value),
    Failed(StoreFailure),
    /// It did not run: its slot is elsewhere now.
    Moved(String),
    /// It did not run: its slot is on its way elsewhere.
    Ask(String),
    /// It did not run: its slot is on its way elsewhere, and some of its keys are there already. A command for fewer keys
    /// may run.
    Torn,
}

impl RedisNode {
    /// A server that is not yet connected to, and a task that sets out to do so.
    pub(super) fn start(server: ServerAddress, terms: ServerOptions) -> RedisNode {
        let now = Instant::now();
        let seed = RandomState::new().hash_one(&server);
        let probes = u32::try_from(terms.links).unwrap_or(u32::MAX);
        let core = Arc::new(NodeCore {
            server,
            terms,
            links: ArcSwap::default(),
            turn: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            breaker: Mutex::new(Breaker::new(probes, now, seed)),
            phase: watch::Sender::new(NodePhase::New),
            too_slow_ms: AtomicU64::new(0),
            wake: Notify::new(),
            loading: tokio::sync::Mutex::new(()),
            meter: CallCounters::default(),
            skew: Mutex::new(ClockOffset::new(now)),
            facts: Mutex::new(None),
            trouble: Mutex::new(None),
            shortcoming: Mutex::default(),
            refusal: Mutex::new(None),
            probe_key: Mutex::new((None, PROBE_KEY.to_vec())),
        });
        let keeper = tokio::spawn(supervisor::keep(Arc::clone(&core))).abort_handle();
        RedisNode { core, keeper }
    }

    /// Where it is.
    pub fn server(&self) -> &ServerAddress {
        &self.core.server
    }

    /// Whether it can be called.
    pub fn phase(&self) -> NodePhase {
        *self.core.phase.borrow()
    }

    /// Tells whenever that changes.
    pub fn phases(&self) -> watch::Receiver<NodePhase> {
        self.core.phase.subscribe()
    }

    /// In which state its breaker is.
    pub fn breaker(&self) -> BreakerState {
        self.core.breaker.lock().state()
    }

    /// What was counted of its calls.
    pub fn counts(&self) -> CallCounts {
        self.core.meter.read()
    }

    /// What it says of itself, once it has been asked.
    pub fn facts(&self) -> Option<ServerInfo> {
        self.core.facts.lock().clone()
    }

    /// Why it is away; if it is there, why it takes no writes or lacks rights, or which error it answered with within the
    /// last second.
    pub(super) fn find_trouble(&self) -> Option<ServerFailure> {
        if self.phase() != NodePhase::Up {
            return self.core.trouble.lock().clone();
        }
        if let Some(trouble) = &self.core.shortcoming.lock().trouble {
            return Some(trouble.clone());
        }
        let refusal = self.core.refusal.lock();
        refusal
            .as_ref()
            .filter(|refusal| refusal.at.elapsed() < LATELY)
            .map(|refusal| refusal.trouble.clone())
    }

    /// The same, in words.
    pub fn trouble(&self) -> Option<String> {
        self.find_trouble().map(|trouble| trouble.words)
    }

    /// Whether it takes writes, as far as is known.
    pub fn takes_writes(&self) -> bool {
        let shortcoming = self.core.shortcoming.lock();
        shortcoming.trouble.as_ref().is_none_or(|trouble| !trouble.cause.stops_writes_only())
    }

    /// Notes that requests were not decided because their writes were refused, with this error code.
    pub(super) fn note_unwritten(&self, code: &str, requests: u32) {
        self.core.note_unwritten(code, requests);
    }

    /// Has the script be tried with a key of this slot, which the server has.
    pub(super) fn set_probe_slot(&self, slot: u16) {
        let mut probe_key = self.core.probe_key.lock();
        if probe_key.0 != Some(slot) {
            *probe_key = (Some(slot), key_in(slot));
        }
    }

    /// How many connections were made beyond those that it began with.
    pub fn reconnects(&self) -> u64 {
        self.counts().connects.saturating_sub(self.core.terms.links as u64)
    }

    /// How many connections are warm, and how many commands in flight.
    pub fn load(&self) -> (usize, usize) {
        (self.core.links.load().len(), self.core.in_flight.load(Relaxed))
    }

    /// Learns how its clock stands from a reply that carries its time.
    pub fn note_time(&self, sent: Instant, received: Instant, time: Micros) {
        self.core.note_time(sent, received, time);
    }

    /// The most that its clock can show now: nothing that is due later than that is due yet.
    pub fn clock_ceiling(&self, now: Instant) -> Option<Micros> {
        self.core.skew.lock().ceiling(now)
    }

    /// By how many microseconds its clock is ahead of this node's wall clock.
    pub fn drift_micros(&self) -> Option<i64> {
        self.core.skew.lock().drift_micros()
    }

    pub(super) async fn exchange(&self, batch: &CommandBatch, deadline: Instant) -> Vec<CommandOutcome> {
        self.core.exchange(batch, deadline).await
    }

    /// Lets go of it for good: calls that are still meant for it fail.
    pub(super) fn retire(&self) {
        self.core.phase.send_replace(NodePhase::Retired);
        self.core.links.store(Arc::default());
        self.keeper.abort();
    }

    /// A connection that is warm.
    pub(super) fn link(&self) -> Option<Arc<RedisConnection>> {
        self.core.pick()
    }
}

impl Drop for RedisNode {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Node({}, {:?})", self.core.server, self.phase())
    }
}

impl CommandOutcome {
    pub(super) fn settle(self) -> Result<Value, StoreFailure> {
        match self {
            CommandOutcome::Value(value) | CommandOutcome::Elsewhere(value) => Ok(value),
            CommandOutcome::Failed(failure) => Err(failure),
            CommandOutcome::Moved(_) | CommandOutcome::Ask(_) | CommandOutcome::Torn => {
                Err(StoreFailure::Unreachable)
            }
        }
    }
}

impl NodeCore {
    async fn exchange(&self, batch: &CommandBatch, deadline: Instant) -> Vec<CommandOutcome> {
        if batch.len() == 0 {
            return Vec::new();
        }
        let Some(_place) = self.enter(batch.len()) else { return self.fail(batch.len(), StoreFailure::Busy) };
        self.wait_until_tried(deadline).await;
        let Some(link) = self.pick() else { return self.fail(batch.len(), StoreFailure::Unreachable) };
        // Counted before it is sent, so that a load during the call is not taken for one that came before.
        let loads = self.meter.script_loads.load(Relaxed);
        let mut answers = match self.send(&link, batch, deadline).await {
            Ok(answers) => answers,
            Err(failure) => return self.fail(batch.len(), failure),
        };
        let is_unknown = |(index, answer): (usize, &CommandReply)| {
            matches!(answer, CommandReply::NoScript).then_some(index)
        };
        let unknown: Vec<usize> = answers.iter().enumerate().filter_map(is_unknown).collect();
        if !unknown.is_empty() {
            let again = self.load_and_send(&link, &batch.select(&unknown), loads, deadline).await;
            for (index, answer) in unknown.into_iter().zip(again) {
                answers[index] = answer;
            }
        }
        answers.into_iter().map(|reply| self.settle(reply)).collect()
    }

    /// Waits for the first try to connect, and no longer: a server that was away stays so for now.
    async fn wait_until_tried(&self, deadline: Instant) {
        if *self.phase.borrow() == NodePhase::New {
            let mut phases = self.phase.subscribe();
            // Whether it ends by a change or by the deadline, what follows looks for itself.
            let _ = timeout_at(deadline, phases.wait_for(|phase| *phase != NodePhase::New)).await;
        }
    }

    /// A connection, in turns, if the server is there.
    fn pick(&self) -> Option<Arc<RedisConnection>> {
        if *self.phase.borrow() != NodePhase::Up {
            return None;
        }
        let links = self.links.load();
        let turn = self.turn.fetch_add(1, Relaxed);
        let mut links_in_turn = (0..links.len()).map(|step| &links[(turn.wrapping_add(step)) % links.len()]);
        links_in_turn.find(|link| !link.is_closed()).cloned()
    }

    async fn send(
        &self,
        link: &Arc<RedisConnection>,
        batch: &CommandBatch,
        deadline: Instant,
    ) -> Result<Vec<CommandReply>, StoreFailure> {
        let began = Instant::now();
        // It would be sent at the first look, and looked at no more.
        if began >= deadline {
            return Err(StoreFailure::Timeout);
        }
        self.meter.calls.fetch_add(1, Relaxed);
        self.meter.commands.fetch_add(batch.len() as u64, Relaxed);
        let answer = timeout_at(deadline, link.send(batch)).await;
        let now = Instant::now();
        match answer {
            Ok(Ok(values)) if values.len() == batch.len() => {
                link.note_answer();
                self.meter.note_latency(now - began);
                let replies: Vec<CommandReply> = values.into_iter().map(CommandReply::read).collect();
                self.note_call(began, now, !replies.iter().any(CommandReply::is_of_ailing_server));
                Ok(replies)
            }
            Ok(_) => {
                // However many calls were on a connection when it broke, it broke once.
                if link.close() {
                    self.note_call(began, now, false);
                }
                self.wake.notify_one();
                Err(StoreFailure::Unreachable)
            }
            Err(_) => {
                if deadline - began >= FAIR_DEADLINE {
                    let patience = (deadline - began).as_micros().div_ceil(1000);
                    self.too_slow_ms.fetch_max(u64::try_from(patience).unwrap_or(u64::MAX), Relaxed);
                    self.note_call(began, now, false);
                    if link.note_silence() {
                        self.give_up(link);
                    }
                }
                Err(StoreFailure::Timeout)
            }
        }
    }

    /// Loads the script, unless somebody has since the call was sent, and sends what did not run again.
    async fn load_and_send(
        &self,
        link: &Arc<RedisConnection>,
        batch: &CommandBatch,
        loads: u64,
        deadline: Instant,
    ) -> Vec<CommandReply> {
        let failed =
            |failure: StoreFailure| (0..batch.len()).map(|_| CommandReply::Failed(failure)).collect();
        match timeout_at(deadline, self.load_script(link, loads)).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return failed(failure),
            Err(_) => return failed(StoreFailure::Timeout),
        }
        self.send(link, batch, deadline).await.unwrap_or_else(failed)
    }

    async fn load_script(&self, link: &Arc<RedisConnection>, loads: u64) -> Result<(), StoreFailure> {
        let _loading = self.loading.lock().await;
        if self.meter.script_loads.load(Relaxed) != loads {
            return Ok(());
        }
        let load = CommandBatch::new([load_command(self.terms.script)]);
        let values = link.send(&load).await.map_err(|_| StoreFailure::Unreachable)?;
        match values.into_iter().next() {
            Some(Value::ServerError(error)) => {
                self.note_error(&error);
                Err(StoreFailure::Refused)
            }
            _ => {
                self.meter.script_loads.fetch_add(1, Relaxed);
                Ok(())
            }
        }
    }

    fn settle(&self, reply: CommandReply) -> CommandOutcome {
        match reply {
            CommandReply::Value(value) => CommandOutcome::Value(value),
            CommandReply::Moved(to) => {
                self.meter.redirects.fetch_add(1, Relaxed);
                CommandOutcome::Moved(to)
            }
            CommandReply::Ask(to) => {
                self.meter.redirects.fetch_add(1, Relaxed);
                CommandOutcome::Ask(to)
            }
            CommandReply::Torn => {
                self.meter.redirects.fetch_add(1, Relaxed);
                CommandOutcome::Torn
            }
            CommandReply::Failed(failure) => {
                self.meter.note_failures(failure, 1);
                CommandOutcome::Failed(failure)
            }
            CommandReply::NoScript => {
                self.meter.note_failures(StoreFailure::Refused, 1);
                CommandOutcome::Failed(StoreFailure::Refused)
            }
            CommandReply::Unfit(error) => {
                // It was fit when the connection was made. Whatever else was sent to it fails with it.
                let trouble = self.asker().explain(&error);
                self.meter.note_errors(trouble.cause, 1);
                self.go_down(trouble);
                self.meter.note_failures(StoreFailure::Unreachable, 1);
                CommandOutcome::Failed(StoreFailure::Unreachable)
            }
            CommandReply::Error(error, failure) => {
                self.note_error(&error);
                self.meter.note_failures(failure, 1);
                CommandOutcome::Failed(failure)
            }
        }
    }

    fn fail(&self, commands: usize, failure: StoreFailure) -> Vec<CommandOutcome> {
        self.meter.note_failures(failure, commands);
        (0..commands).map(|_| CommandOutcome::Failed(failure)).collect()
    }

    /// Makes room for commands in flight, if there is any.
    fn enter(&self, commands: usize) -> Option<InFlightPermit<'_>> {
        let before = self.in_flight.fetch_add(commands, Relaxed);
        let place = InFlightPermit { in_flight: &self.in_flight, commands };
        // A batch larger than all the room there is may go alone.
        (before == 0 || before + commands <= self.terms.in_flight).then_some(place)
    }

    fn note_call(&self, began: Instant, now: Instant, is_good: bool) {
        let change = self.breaker.lock().note_call(began, now, is_good);
        if change == Some(BreakerChange::Opened) {
            let is_slow = self.too_slow_ms.load(Relaxed) > 0;
            let cause = if is_slow { StoreErrorCause::Timeout } else { StoreErrorCause::Unreachable };
            self.leave(ServerFailure::new(cause, "calls to it fail"));
        }
    }

    /// Opens the breaker because the server is known to be away.
    fn go_down(&self, trouble: ServerFailure) {
        let change = self.breaker.lock().trip(Instant::now());
        if change == Some(BreakerChange::Opened) {
            self.leave(trouble);
        }
    }

    /// Lets go of all connections, tells of it, and has the keeper begin to probe.
    fn leave(&self, trouble: ServerFailure) {
        self.links.store(Arc::default());
        let why = trouble.words.clone();
        // Before the phase, so that whoever sees that it is away can say why.
        *self.trouble.lock() = Some(trouble);
        if !self.enter_phase(NodePhase::Down) {
            return;
        }
        warn!(server = %self.server, "store server is away: {why}");
        self.wake.notify_one();
    }

    /// Notes a change, and says whether it is one. A server that has been retired stays so.
    fn enter_phase(&self, phase: NodePhase) -> bool {
        self.phase.send_if_modified(|current| {
            let is_news = *current != phase && *current != NodePhase::Retired;
            if is_news {
                *current = phase;
            }
            is_news
        })
    }

    fn give_up(&self, link: &Arc<RedisConnection>) {
        self.links
            .rcu(|links| links.iter().filter(|other| !Arc::ptr_eq(other, link)).cloned().collect::<Vec<_>>());
        self.wake.notify_one();
    }

    fn asker(&self) -> &LoginContext {
        self.terms.dialer.asker()
    }

    fn note_time(&self, sent: Instant, received: Instant, time: Micros) {
        let wall = self.terms.clock.now();
        let change = self.skew.lock().note(sent, received, wall, time);
        match change {
            Some(DriftChange::Alarming(drift)) => {
                let millis = drift / 1_000;
                warn!(server = %self.server, millis, "this machine's clock and the store's differ: set one of them right");
            }
            Some(DriftChange::Over(drift)) => {
                let millis = drift / 1_000;
                info!(server = %self.server, millis, "this machine's clock and the store's agree again");
            }
            None => {}
        }
    }
}

fn load_command(script: &str) -> Cmd {
    let mut load = cmd("SCRIPT");
    load.arg("LOAD").arg(script);
    load
}

/// Room for commands in flight, until it is dropped.
struct InFlightPermit<'a> {
    in_flight: &'a AtomicUsize,
    commands: usize,
}

impl Drop for InFlightPermit<'_> {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(self.commands, Relaxed);
    }
}

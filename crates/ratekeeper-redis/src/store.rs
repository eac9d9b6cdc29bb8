//! The store: which draws go to the servers, which are decided without them, and what applies while they are
//! down.

mod denial_cache;
mod fan_out;
pub(crate) mod heartbeat;
mod router;

use crate::batch::queue::{Batcher, SubRequest, cancel};
use crate::batch::worker::Workers;
use crate::batch::{script, stored_key};
use crate::client::node::ServerSetOptions;
use crate::client::server_set::ServerSet;
use crate::client::tls::StoreTlsError;
use crate::client::url::RedisUrl;
use crate::counters::StoreCounters;
use denial_cache::DenialCache;
use fan_out::{FanOut, release_permit, request_one};
use heartbeat::Heartbeat;
use ratekeeper::{
    Capacity, CapacityError, Clock, Draw, Draws, KeyRef, LeaseRequests, LendRequest, LendingStore, Limit,
    MemoryStats, Micros, Op, PermitId, RECENT_FAILURE, RemoteCache, RenewalOwner, Scope, State, Store,
    StoreFailure, StoreReport, SystemClock,
};
use router::Router;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval};

/// How often it is checked whether the store is down.
const OUTAGE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Options of a [`RedisStore`].
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// How long a draw waits for a reply, unless its rule says otherwise.
    pub timeout: Duration,
    /// Memory for states that the servers sent.
    pub capacity: Capacity,
}

impl Default for RedisOptions {
    /// A timeout of 50 milliseconds, and the default capacity of a memory store.
    fn default() -> RedisOptions {
        RedisOptions { timeout: Duration::from_millis(50), capacity: Capacity::DEFAULT }
    }
}

/// Why a store can't be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisError {
    /// The TLS files can't be used.
    #[error(transparent)]
    Tls(#[from] StoreTlsError),
    /// The capacity is invalid.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
}

/// State on Redis or Valkey, shared by all nodes.
///
/// The servers decide draws, by their clock, so that all nodes give the same answer. Two kinds of draws are decided
/// without them: draws of a key that was denied a moment ago and whose next unit is not due yet; and, while the
/// servers are down, draws whose options say what applies then. The store lends units: in a
/// [`Leased`](ratekeeper::Leased), it is asked only for what leases don't cover.
///
/// Of the groups of one call, those are decided last that need a second attempt: their state was written under
/// another quota, or the server's clock is days off from the estimate.
#[derive(Debug)]
pub struct RedisStore {
    router: Arc<Router>,
    /// States that the servers sent, and the states of draws that are decided on this node.
    cache: RemoteCache<Arc<SystemClock>>,
    denials: DenialCache,
    heartbeat: Arc<Heartbeat>,
    /// The task that measures how long the store is down.
    outage_task: AbortHandle,
}

impl RedisStore {
    /// Starts connecting to a store, on the current tokio runtime. Until it is connected, and whenever the
    /// connection is lost, draws are decided as their options say.
    ///
    /// # Errors
    /// If the TLS files can't be used, or the capacity is invalid. An unreachable server is not an error.
    pub fn connect(
        url: &RedisUrl,
        options: &RedisOptions,
        clock: Arc<SystemClock>,
    ) -> Result<RedisStore, RedisError> {
        let server_options = ServerSetOptions::new(script::SOURCE, Arc::<SystemClock>::clone(&clock));
        let servers = Arc::new(ServerSet::connect(url, server_options)?);
        let cache = RemoteCache::new(Arc::clone(&clock), options.capacity)?;
        let heartbeat = Arc::new(Heartbeat::start(Arc::clone(&servers)));
        let (counters, runtime) = (StoreCounters::default(), Handle::current());
        let router = Arc::new(Router::new(Workers { servers, clock, counters, runtime }, options.timeout));
        let outage_task = tokio::spawn(measure_outages(Arc::clone(&router))).abort_handle();
        Ok(RedisStore { router, cache, denials: DenialCache::new(), heartbeat, outage_task })
    }

    /// Waits until a connection to every server has been tried, but no longer than `timeout`. Returns whether all
    /// servers are up.
    pub async fn ready(&self, timeout: Duration) -> bool {
        self.router.workers.servers.wait_until_ready(timeout).await
    }

    /// Routes a group: decides it if it needs no server, and otherwise adds its parts to the fan-out.
    fn route_group(
        &self,
        draws: &mut Draws,
        group: usize,
        requests: &mut LeaseRequests,
        call: &StoreCall,
        fan_out: &mut FanOut,
    ) {
        let mut renewals = requests.take_group(group);
        match self.find_route(draws, group, call) {
            GroupRoute::Whole(batcher, slot) => {
                return fan_out.add(&batcher, SubRequest { renewals, ..SubRequest::whole(group, slot) });
            }
            GroupRoute::Decided => requests.mark_decided_from_cache(group),
            GroupRoute::Failed(failure) => fan_out.fail(group, failure),
            GroupRoute::Mixed => self.route_mixed(draws, group, fan_out),
        }
        renewals.iter_mut().for_each(cancel);
    }

    /// Decides a group if it needs no server, and otherwise returns where it is decided.
    fn find_route(&self, draws: &mut Draws, group: usize, call: &StoreCall) -> GroupRoute {
        if draws.group(group).iter().any(Draw::is_local) {
            return GroupRoute::Mixed;
        }
        let first = &draws.group(group)[0];
        let route = self.router.route(draws.key(first));
        let (batcher, slot) = match route {
            Ok(route) => route,
            Err(failure) => return GroupRoute::Failed(failure),
        };
        let is_whole = !self.router.is_spread || self.are_all_at(draws, group, &batcher, slot);
        if !is_whole {
            return GroupRoute::Mixed;
        }
        if call.may_use_denials
            && self.was_denied(draws, group, call.started_at)
            && let Some(latest) = batcher.node().clock_ceiling(call.started_at)
            && self.cache.deny_from_cache(draws, group, latest)
        {
            self.router.workers.counters.denied_from_memory.fetch_add(1, Relaxed);
            return GroupRoute::Decided;
        }
        GroupRoute::Whole(batcher, slot)
    }

    fn are_all_at(&self, draws: &Draws, group: usize, batcher: &Arc<Batcher>, slot: u16) -> bool {
        draws.group(group).iter().skip(1).all(|draw| {
            let route = self.router.route(draws.key(draw));
            route.is_ok_and(|(other, at)| Arc::ptr_eq(&other, batcher) && at == slot)
        })
    }

    /// Routes a group whose draws are decided in several places. Those of this node are decided now.
    fn route_mixed(&self, draws: &mut Draws, group: usize, fan_out: &mut FanOut) {
        self.cache.decide_local(draws, group);
        let mut parts: Vec<(Arc<Batcher>, u16, Vec<usize>)> = Vec::new();
        for (index, draw) in draws.group(group).iter().enumerate().filter(|(_, draw)| !draw.is_local()) {
            match self.router.route(draws.key(draw)) {
                Err(failure) => {
                    // Units granted here are refunded, and decided again with the rest.
                    fan_out.split(group);
                    return fan_out.fail(group, failure);
                }
                Ok((batcher, slot)) => {
                    match parts.iter_mut().find(|part| Arc::ptr_eq(&part.0, &batcher) && part.1 == slot) {
                        Some(part) => part.2.push(index),
                        None => parts.push((batcher, slot, vec![index])),
                    }
                }
            }
        }
        if parts.is_empty() {
            return;
        }
        fan_out.split(group);
        let is_look = draws.group(group).iter().any(Draw::denies_request);
        for (batcher, slot, picks) in parts {
            fan_out.add(
                &batcher,
                SubRequest { picks: Some(picks.into()), is_peek: is_look, ..SubRequest::whole(group, slot) },
            );
        }
    }

    /// Whether a key of the group was denied a moment ago.
    fn was_denied(&self, draws: &Draws, group: usize, now: Instant) -> bool {
        let hash = |draw| self.denial_hash(draws.key(draw), draw.scope());
        draws.group(group).iter().any(|draw| self.denials.contains(hash(draw), now))
    }

    fn denial_hash(&self, key: KeyRef<'_>, scope: Scope) -> u64 {
        self.denials.hash((key.bytes(), scope.0))
    }

    /// Caches the server's decision about a group.
    fn finish_group(&self, draws: &Draws, group: usize, now: Instant) {
        if draws.group_failure(group).is_some() {
            return;
        }
        self.cache.cache_replies(draws, group);
        for draw in draws.group(group).iter().filter(|draw| draw.denies_request()) {
            self.denials.insert(self.denial_hash(draws.key(draw), draw.scope()), now);
        }
    }

    /// The estimated time of the server that has the group's first key.
    fn server_time(&self, draws: &Draws, group: usize) -> Micros {
        let tag = stored_key::hash_tag(draws.key(&draws.group(group)[0]));
        let route = self.router.workers.servers.route(&tag).ok();
        let ceiling = route.and_then(|route| route.node.clock_ceiling(Instant::now()));
        ceiling.unwrap_or_else(|| self.router.workers.clock.now())
    }

    /// The timeout of a call: the shortest of the draws that are sent to a server.
    fn call_timeout(&self, draws: &Draws) -> Duration {
        let sent = draws.all().iter().filter(|draw| !draw.is_local());
        let timeout = |draw: &Draw| match draw.options().timeout_ms {
            Some(millis) => Duration::from_millis(u64::from(millis.get())),
            None => self.router.timeout,
        };
        sent.map(timeout).min().unwrap_or(self.router.timeout)
    }
}

/// One call of the store.
#[derive(Debug)]
struct StoreCall {
    started_at: Instant,
    /// Whether cached denials apply.
    may_use_denials: bool,
}

/// Where a group is decided.
enum GroupRoute {
    /// It has been decided here.
    Decided,
    /// By one server.
    Whole(Arc<Batcher>, u16),
    /// In several places.
    Mixed,
    /// By no server.
    Failed(StoreFailure),
}

impl RedisStore {
    /// Decides a call of one group, the most frequent kind. If one server decides it, this needs no fan-out.
    async fn draw_single(&self, draws: &mut Draws, requests: &mut LeaseRequests, call: &StoreCall) {
        let route = self.find_route(draws, 0, call);
        let mut renewals = requests.take_group(0);
        if let GroupRoute::Whole(batcher, slot) = route {
            let deadline = call.started_at + self.call_timeout(draws);
            request_one(&batcher, draws, SubRequest { renewals, ..SubRequest::whole(0, slot) }, deadline)
                .await;
            return self.finish_group(draws, 0, call.started_at);
        }
        renewals.iter_mut().for_each(cancel);
        match route {
            GroupRoute::Mixed => self.draw_many(draws, requests, call).await,
            GroupRoute::Failed(failure) => draws.fail_group(0, failure),
            GroupRoute::Decided | GroupRoute::Whole(..) => requests.mark_decided_from_cache(0),
        }
    }

    /// Decides all pending groups.
    async fn draw_many(&self, draws: &mut Draws, requests: &mut LeaseRequests, call: &StoreCall) {
        let mut fan_out = FanOut::default();
        for group in 0..draws.len() {
            if requests.is_pending(group) {
                self.route_group(draws, group, requests, call, &mut fan_out);
            }
        }
        if fan_out.groups().is_empty() {
            return;
        }
        fan_out.run(draws, call.started_at + self.call_timeout(draws)).await;
        // The deadline may have passed because of another server.
        for group in fan_out.refund_granted(draws, Instant::now() + self.router.timeout) {
            self.cache.revoke(draws, group);
        }
        for group in fan_out.groups() {
            self.finish_group(draws, *group, call.started_at);
        }
    }
}

impl LendingStore for RedisStore {
    async fn draw_and_lend(&self, draws: &mut Draws, requests: &mut LeaseRequests) {
        // Cached denials do not apply after a draw that refunds units.
        let may_use_denials =
            draws.len() == 1 || draws.all().iter().all(|draw| matches!(draw.op(), Op::Take(_) | Op::Peek(_)));
        let call = StoreCall { started_at: Instant::now(), may_use_denials };
        match draws.len() {
            1 => self.draw_single(draws, requests, &call).await,
            _ => self.draw_many(draws, requests, &call).await,
        }
    }

    fn lend(&self, requests: Vec<LendRequest>) {
        for request in requests {
            // The returned units may suffice for the next request, so an earlier denial must not apply to it.
            if let RenewalOwner::Key(name, _) = request.owner()
                && request.report().returned > 0
            {
                self.denials.remove(self.denial_hash(name.key.borrow(), name.scope));
            }
            self.router.send_renewal(request);
        }
    }

    /// Each draw gets this node's share of its limit.
    fn decide_failed(
        &self,
        draws: &mut Draws,
        group: usize,
        newer_state: impl Fn(KeyRef<'_>, Scope, &Limit) -> Option<State>,
    ) {
        self.router.workers.counters.record_failure();
        let (nodes, store_time) = (self.live_nodes(), self.server_time(draws, group));
        if self.cache.decide_failed(draws, group, nodes, store_time, newer_state) {
            self.router.workers.counters.decided_locally.fetch_add(1, Relaxed);
        }
    }

    fn is_up(&self) -> bool {
        self.router.workers.servers.is_up()
    }

    fn live_nodes(&self) -> u32 {
        self.heartbeat.live_nodes()
    }
}

impl Store for RedisStore {
    /// Asks the servers for every draw: leased draws are decided like exact ones.
    async fn draw(&self, draws: &mut Draws) {
        self.draw_and_lend(draws, &mut LeaseRequests::none()).await;
        for group in 0..draws.len() {
            if draws.group_failure(group).is_some() {
                self.decide_failed(draws, group, |_, _, _| None);
            }
        }
    }

    fn release(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit, permit: PermitId) {
        let mut draws = Draws::new();
        draws.push(key, scope, *limit, Op::Refund(u32::MAX), permit);
        // The permit may have been granted here while the server was down.
        self.cache.memory().release(key, scope, limit, permit);
        if let Ok((batcher, slot)) = self.router.route(key) {
            release_permit(&batcher, &draws, slot, Instant::now() + self.router.timeout);
        }
    }

    fn health(&self) -> Option<StoreReport> {
        let counters = &self.router.workers.counters;
        Some(StoreReport {
            last_failure: counters.last_failure(),
            live_nodes: self.live_nodes(),
            counts: counters.snapshot(),
            ..self.router.workers.servers.report()
        })
    }

    fn memory_stats(&self) -> Option<MemoryStats> {
        Some(self.cache.memory().stats())
    }

    async fn maintain(&self) {
        self.cache.memory().maintain().await;
    }

    async fn leave(&self) {
        self.heartbeat.leave().await;
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.outage_task.abort();
        self.router.close();
    }
}

/// Measures for how long some requests are decided without the store, for ever.
async fn measure_outages(router: Arc<Router>) {
    let mut ticks = interval(OUTAGE_CHECK_INTERVAL);
    let mut last_tick = Instant::now();
    loop {
        ticks.tick().await;
        let before = std::mem::replace(&mut last_tick, Instant::now());
        let has_failed = router.workers.counters.last_failure().is_some_and(|ago| ago < RECENT_FAILURE);
        if has_failed || !router.workers.servers.is_up() {
            router.workers.counters.add_degraded_time(last_tick.duration_since(before));
        }
    }
}

//! The store itself: what is asked of the servers, what is known without them, and what holds while they are away.

use super::batcher::{Batcher, SubRequest};
use super::denial_cache::DenialCache;
use super::fan_out::{FanOut, ask_one, release};
use super::heartbeat::Heartbeat;
use super::lease_path::CallClaims;
use super::node::StoreTlsError;
use super::router::Router;
use super::server_set::{ServerSet, ServerSetOptions, ServerSetReport};
use super::url::RedisUrl;
use super::{script, stored_key};
use crate::clock::SystemClock;
use crate::health::StoreCounts;
use crate::lease::{DrawRenewal, Leases, PendingRequest, spared};
use crate::memory::{Capacity, CapacityError, MemoryStore};
use crate::store::Store;
use ratekeeper_core::{
    Clock, Consistency, Draw, DrawOutcome, Draws, FailureMode, KeyRef, Limit, Micros, Op, PermitId, Scope,
    StoreFailure,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// How a [`RedisStore`] is to be.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// How long a draw may wait for an answer, unless its rule says otherwise.
    pub patience: Duration,
    /// How much may be remembered here of what the servers said.
    pub cap: Capacity,
    /// Of how many keys units may be taken ahead. Each takes some 250 bytes and its name, once it is drawn.
    pub leases: usize,
}

impl Default for RedisOptions {
    /// 50 milliseconds, as much as a memory store remembers, and leases of 2^18 keys.
    fn default() -> RedisOptions {
        RedisOptions { patience: Duration::from_millis(50), cap: Capacity::DEFAULT, leases: 1 << 18 }
    }
}

/// Why a store can't be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisError {
    /// The files that TLS needs are of no use.
    #[error(transparent)]
    Trust(#[from] StoreTlsError),
    /// The cap can't be kept.
    #[error(transparent)]
    Cap(#[from] CapacityError),
}

/// State on Redis or Valkey, shared by all nodes.
///
/// Draws are decided on the servers, by their clock, so that all nodes give the same answer. Three things are told without
/// them: of leased draws, what this node was lent ahead, and that there was nothing left a moment ago; that a key is
/// empty, when it was found so a moment ago and its next unit is not due yet; and, while they are away, what the draws'
/// terms say is to hold then.
///
/// Of the groups of one call, those come last that have to be asked for twice: where another quota has written the state,
/// and where the servers' clock is days from where it was thought to be.
#[derive(Debug)]
pub struct RedisStore {
    pub(super) post: Arc<Router>,
    /// What the servers said of keys, and the states of those draws that stay on this node.
    pub(super) memory: MemoryStore,
    notes: DenialCache,
    heartbeat: Arc<Heartbeat>,
    /// Looks after leases.
    caretaker: AbortHandle,
}

impl RedisStore {
    /// Sets out to connect to a store, on the tokio runtime that this is called on. Until it is connected, and whenever
    /// it is not, draws are answered as their terms say.
    ///
    /// # Errors
    /// If the files that TLS needs are of no use, or the cap can't be kept. That a server is away is no error.
    pub fn connect(url: &RedisUrl, options: &RedisOptions) -> Result<RedisStore, RedisError> {
        let fleet = Arc::new(ServerSet::connect(url, ServerSetOptions::new(script::SOURCE))?);
        let memory = MemoryStore::with(SystemClock::new(), options.cap)?;
        let heartbeat = Arc::new(Heartbeat::start(Arc::clone(&fleet)));
        let clock = Arc::new(SystemClock::new());
        let post = Arc::new(Router::new(fleet, Leases::new(options.leases), clock, options.patience));
        let caretaker = {
            let (post, heartbeat) = (Arc::clone(&post), Arc::clone(&heartbeat));
            tokio::spawn(async move { post.look_after_leases(|| heartbeat.live()).await }).abort_handle()
        };
        Ok(RedisStore { post, memory, notes: DenialCache::new(), heartbeat, caretaker })
    }

    /// Waits until every server has been tried, but no longer than `patience`. Says whether all of them are there.
    pub async fn ready(&self, patience: Duration) -> bool {
        self.post.fleet.ready(patience).await
    }

    /// Whether all servers are there.
    pub fn is_up(&self) -> bool {
        self.post.fleet.is_up()
    }

    /// How the servers stand: for logs and for people.
    pub fn describe(&self) -> ServerSetReport {
        self.post.fleet.describe()
    }

    /// What it did so far.
    pub fn counts(&self) -> StoreCounts {
        self.post.tally.read(self.post.leases.counts())
    }

    pub(super) fn last_miss(&self) -> Option<Duration> {
        self.post.tally.last_miss()
    }

    /// How many nodes share the store, this one among them.
    pub fn live_nodes(&self) -> u32 {
        self.heartbeat.live()
    }

    /// What it remembers here of what the servers said: to be swept, and counted.
    pub fn memory(&self) -> &MemoryStore {
        &self.memory
    }

    /// Gives back what this node was lent, and takes it out of the fleet's count. It goes on answering.
    pub async fn leave(&self) {
        self.post.give_back_all().await;
        self.heartbeat.leave().await;
    }

    /// Decides a group that hands have not, if it needs no server, else sorts it by the servers that have its keys.
    fn sort(
        &self,
        draws: &mut Draws,
        group: usize,
        wanted: Vec<DrawRenewal>,
        claims: &mut CallClaims<'_>,
        call: &StoreCall,
        errands: &mut FanOut,
    ) {
        match self.way(draws, group, call) {
            GroupRoute::Whole(lane, slot) => {
                return errands.add(&lane, SubRequest { wanted, ..SubRequest::whole(group, slot) });
            }
            GroupRoute::Decided => {
                claims.resolve(draws, group);
            }
            GroupRoute::Lost(failure) => errands.lose(group, failure),
            GroupRoute::Mixed => self.sort_mixed(draws, group, errands),
        }
        self.take_back(&wanted);
    }

    /// Decides a group if it needs no server, else says where it is decided.
    fn way(&self, draws: &mut Draws, group: usize, call: &StoreCall) -> GroupRoute {
        if draws.group(group).iter().any(is_here) {
            return GroupRoute::Mixed;
        }
        let first = &draws.group(group)[0];
        let place = self.post.place(draws.key(first), first.scope(), first.limit());
        let (lane, slot) = match place {
            Ok(place) => place,
            Err(failure) => return GroupRoute::Lost(failure),
        };
        let is_whole = !self.post.is_spread || self.all_at(draws, group, &lane, slot);
        if !is_whole {
            return GroupRoute::Mixed;
        }
        if call.may_know
            && self.notes.is_fresh(self.hash(draws, group), call.began)
            && let Some(latest) = lane.node().clock_ceiling(call.began)
            && self.memory.refuse_known(draws, group, latest)
        {
            self.post.tally.known.fetch_add(1, Relaxed);
            return GroupRoute::Decided;
        }
        GroupRoute::Whole(lane, slot)
    }

    fn all_at(&self, draws: &Draws, group: usize, lane: &Arc<Batcher>, slot: u16) -> bool {
        draws.group(group).iter().skip(1).all(|draw| {
            let place = self.post.place(draws.key(draw), draw.scope(), draw.limit());
            place.is_ok_and(|(other, at)| Arc::ptr_eq(&other, lane) && at == slot)
        })
    }

    /// Sorts a group whose draws are decided in several places. What is decided on this node is decided now.
    fn sort_mixed(&self, draws: &mut Draws, group: usize, errands: &mut FanOut) {
        let now = self.post.clock.now();
        self.memory.decide_here(draws, group, |_| now, is_here);
        let mut parts: Vec<(Arc<Batcher>, u16, Vec<usize>)> = Vec::new();
        for (index, draw) in draws.group(group).iter().enumerate().filter(|(_, draw)| !is_here(draw)) {
            match self.post.place(draws.key(draw), draw.scope(), draw.limit()) {
                Err(failure) => {
                    // What was granted here is given back, and decided anew with the rest.
                    errands.split(group);
                    return errands.lose(group, failure);
                }
                Ok((lane, slot)) => {
                    match parts.iter_mut().find(|part| Arc::ptr_eq(&part.0, &lane) && part.1 == slot) {
                        Some(part) => part.2.push(index),
                        None => parts.push((lane, slot, vec![index])),
                    }
                }
            }
        }
        if parts.is_empty() {
            return;
        }
        errands.split(group);
        let is_look = draws.group(group).iter().any(Draw::stops);
        for (lane, slot, picks) in parts {
            errands.add(
                &lane,
                SubRequest { picks: Some(picks.into()), is_look, ..SubRequest::whole(group, slot) },
            );
        }
    }

    /// Gives back what this node granted of a group that was refused elsewhere, and has none of its draws stand for
    /// granted: what the servers granted is on its way back.
    fn give_back_here(&self, draws: &mut Draws, group: usize) {
        let mut gifts = Draws::new();
        for draw in draws.group(group).iter().filter(|draw| is_here(draw)) {
            if let DrawOutcome::Granted(units @ 1..) = draw.answer() {
                gifts.push(draws.key(draw), draw.scope(), *draw.limit(), Op::Give(units), draw.permit());
            }
        }
        self.memory.draw_now(&mut gifts);
        for draw in draws.group_mut(group) {
            if let DrawOutcome::Granted(units) = draw.answer() {
                let outcome = spared(draw, units);
                draw.settle(|_, _, _| outcome);
            }
        }
    }

    /// What stands for a group in the notes: its first key will do, since what is known of all is looked at anyway.
    fn hash(&self, draws: &Draws, group: usize) -> u64 {
        let draw = &draws.group(group)[0];
        self.notes.hash((draws.key(draw).bytes(), draw.scope().0))
    }

    /// Remembers what was decided, and has the rest answered as the terms say. What was ordered has been noted already.
    fn conclude(
        &self,
        draws: &mut Draws,
        group: usize,
        is_ordered: bool,
        claims: &mut CallClaims<'_>,
        call: &StoreCall,
    ) {
        match draws.group_failure(group) {
            None => {
                self.memory.learn(draws, group);
                if !is_ordered {
                    self.note_answers(draws, group, call.asked_at);
                }
                self.note_returns(draws, group);
                let has_returned = claims.resolve(draws, group);
                // What was given back may do for the next request, so nobody is denied by what was said before that.
                if draws.group(group).iter().any(Draw::stops) && !has_returned {
                    self.notes.note(self.hash(draws, group), call.began);
                }
            }
            Some(_) => {
                claims.resolve(draws, group);
                self.fall_back(draws, group);
            }
        }
    }

    /// Has a group that got no answer decided by what this node knows, as far as its draws' terms say so: each is held to
    /// this node's share of its limit.
    fn fall_back(&self, draws: &mut Draws, group: usize) {
        self.post.tally.note_miss();
        let is_closed = |draw: &Draw| {
            !draw.is_shadow() && !is_here(draw) && draw.terms().on_failure == FailureMode::Closed
        };
        if draws.group(group).iter().any(is_closed) {
            return;
        }
        let is_local = |draw: &Draw| is_here(draw) || draw.terms().on_failure == FailureMode::Local;
        self.recall(draws, group);
        let (nodes, mut is_shared) = (self.heartbeat.live(), false);
        for draw in draws.group_mut(group).iter_mut().filter(|draw| !is_here(draw) && is_local(draw)) {
            draw.divide(nodes);
            is_shared = true;
        }
        let (here, elsewhere) = (self.post.clock.now(), self.latest(draws, group));
        let now = |draw: &Draw| if is_here(draw) { here } else { elsewhere };
        self.memory.decide_here(draws, group, now, is_local);
        self.post.tally.local.fetch_add(u64::from(is_shared), Relaxed);
    }

    /// Remembers of leased keys what was said when units were lent: memory heard of those only that were asked for one by
    /// one.
    fn recall(&self, draws: &Draws, group: usize) {
        for draw in draws.group(group).iter().filter(|draw| !is_here(draw)) {
            let (key, scope, limit) = (draws.key(draw), draw.scope(), draw.limit());
            let tag = self.memory.tag(key, scope, limit);
            if let Some(state) = self.post.leases.news(tag, limit) {
                self.memory.learn_state(tag, scope, limit, state, self.latest(draws, group));
            }
        }
    }

    /// The time of the server that a group's first key is on, as far as it is known.
    fn latest(&self, draws: &Draws, group: usize) -> Micros {
        let first = &draws.group(group)[0];
        let mut name = Vec::new();
        stored_key::write(draws.key(first), first.scope(), first.limit().family(), &mut name);
        let route = self.post.fleet.route(stored_key::tag(&name)).ok();
        let ceiling = route.and_then(|route| route.node.clock_ceiling(Instant::now()));
        ceiling.unwrap_or_else(|| self.post.clock.now())
    }

    /// How long a call may take: as long as the least patient of the draws that are asked of a server.
    fn patience(&self, draws: &Draws) -> Duration {
        let asked = draws.all().iter().filter(|draw| !is_here(draw));
        let patience = |draw: &Draw| match draw.terms().deadline {
            Some(millis) => Duration::from_millis(u64::from(millis.get())),
            None => self.post.patience,
        };
        asked.map(patience).min().unwrap_or(self.post.patience)
    }
}

/// One call of a store.
#[derive(Debug)]
struct StoreCall {
    began: Instant,
    /// The same by this node's clock.
    asked_at: Micros,
    /// Whether what is known of keys may be gone by.
    may_know: bool,
}

/// Where a group is decided.
enum GroupRoute {
    /// Here: it has been.
    Decided,
    /// By one server.
    Whole(Arc<Batcher>, u16),
    /// In several places.
    Mixed,
    /// Nowhere.
    Lost(StoreFailure),
}

/// Whether a draw's rule keeps it to this node.
fn is_here(draw: &Draw) -> bool {
    draw.terms().consistency == Consistency::Local
}

impl RedisStore {
    /// Decides the only group there is, which is what most calls are. If one server does, it takes no list of errands.
    async fn draw_one(
        &self,
        draws: &mut Draws,
        wanted: Vec<DrawRenewal>,
        mut claims: CallClaims<'_>,
        call: &StoreCall,
    ) {
        let is_ordered = !wanted.is_empty();
        let way = self.way(draws, 0, call);
        if let GroupRoute::Whole(lane, slot) = way {
            let deadline = call.began + self.patience(draws);
            ask_one(&lane, draws, &SubRequest { wanted, ..SubRequest::whole(0, slot) }, deadline).await;
            return self.conclude(draws, 0, is_ordered, &mut claims, call);
        }
        self.take_back(&wanted);
        match way {
            GroupRoute::Mixed => self.draw_many(draws, 0, Vec::new(), claims, call).await,
            GroupRoute::Lost(failure) => {
                draws.fail(0, failure);
                self.conclude(draws, 0, false, &mut claims, call);
            }
            GroupRoute::Decided | GroupRoute::Whole(..) => {
                claims.resolve(draws, 0);
            }
        }
    }

    /// Decides all groups from the first on that leases have not answered, with which something is wanted and claimed.
    async fn draw_many(
        &self,
        draws: &mut Draws,
        first: usize,
        wanted: Vec<DrawRenewal>,
        mut claims: CallClaims<'_>,
        call: &StoreCall,
    ) {
        let mut errands = FanOut::default();
        self.sort(draws, first, wanted, &mut claims, call, &mut errands);
        for group in first + 1..draws.len() {
            let mut out = PendingRequest::default();
            if !self.spend(draws, group, call.asked_at, &mut out) {
                claims.extend(out.claims);
                self.sort(draws, group, out.orders, &mut claims, call, &mut errands);
            }
        }
        if errands.groups().is_empty() {
            return;
        }
        errands.run(draws, call.began + self.patience(draws)).await;
        // The deadline may have passed because of another server.
        for group in errands.give_back(draws, Instant::now() + self.post.patience) {
            self.give_back_here(draws, group);
        }
        for group in errands.groups() {
            self.conclude(draws, *group, errands.is_ordered(*group), &mut claims, call);
        }
    }
}

impl Store for RedisStore {
    async fn draw(&self, draws: &mut Draws) {
        let asked_at = self.post.clock.now();
        // It takes no memory as long as it is empty, and it is as long as leases have enough.
        let mut out = PendingRequest::default();
        let spent = self.spend_all(draws, asked_at, &mut out);
        if spent == draws.len() {
            return;
        }
        let claims = CallClaims::new(&self.post, out.claims);
        // Behind one that gives something back, nobody is refused by what is known from before.
        let may_know = draws.len() == 1
            || draws.all().iter().all(|draw| matches!(draw.act(), Op::Take(_) | Op::Look(_)));
        let call = StoreCall { began: Instant::now(), asked_at, may_know };
        match draws.len() {
            1 => self.draw_one(draws, out.orders, claims, &call).await,
            _ => self.draw_many(draws, spent, out.orders, claims, &call).await,
        }
    }

    fn release(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit, permit: PermitId) {
        let mut draws = Draws::new();
        draws.push(key, scope, *limit, Op::Give(u32::MAX), permit);
        // It may have been granted here while the server was away.
        self.memory.release(key, scope, limit, permit);
        if let Ok((lane, slot)) = self.post.place(key, scope, limit) {
            release(&lane, &draws, slot, Instant::now() + self.post.patience);
        }
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.caretaker.abort();
        self.post.close();
    }
}

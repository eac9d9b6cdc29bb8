//! Decides draws from leased units where it can, and asks a store where it must.
//!
//! A request that leased units don't [cover](Leases::spend_group) goes to the store. It asks there only for the units
//! that are missing here, and carries renewals of its leases. Units that are claimed here meanwhile are put back if
//! the request is abandoned ([`CallClaims`]).
//!
//! This is the only place where leases are settled: the store answers lease requests with data, and the answers are
//! settled here, by the request that they came with or by the background task, whichever is first.

use super::lending::{
    DrawDecision, LeaseRequests, LendAnswer, LendAnswers, LendOutcome, LendRequest, LendingStore,
    RenewalOwner,
};
use super::{
    DetachedRenewal, DrawClaim, DrawRenewal, KeyName, LeasePolicy, LeaseRenewal, Leases, PendingRequest,
    counts_leased_units, is_leased,
};
use crate::health::{KeyLease, StoreCounts, StoreReport};
use crate::memory::PREFETCH_DRAWS;
use crate::memory::key_hash::{KeyHash, KeyHasher};
use crate::memory_stats::MemoryStats;
use crate::store::Store;
use ratekeeper_core::{Clock, Draw, Draws, KeyRef, Limit, MAX_DRAWS, Micros, Op, PermitId, Scope};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

/// Interval of the sweep steps.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// Number of steps in which all leases are swept.
const SWEEP_STEPS: usize = 10;
/// How long a stopping node waits for its leases to be returned.
const RETURN_TIMEOUT: Duration = Duration::from_secs(2);
/// How many leases are returned at a time: fewer than fit into the queue to a server, and few enough for it to
/// reply in time.
const RETURN_BATCH: usize = 1024;

/// Answers from leased units where it can, and asks the store `S` where it must.
///
/// Only draws with [leased consistency](crate::Consistency::Leased) are decided from leases. All others are passed to
/// the store as they are.
///
/// ```
/// use ratekeeper::{Draws, KeyRef, LeaseRequests, Leased, LendRequest, LendingStore, Limit, MemoryStore, PermitId};
/// use ratekeeper::{Limiter, LendOutcome, Scope, State, Store, SystemClock};
///
/// /// A store that never lends.
/// struct Strict(MemoryStore);
///
/// impl Store for Strict {
///     async fn draw(&self, draws: &mut Draws) {
///         self.0.draw(draws).await;
///     }
///
///     fn release(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit, permit: PermitId) {
///         self.0.release(key, scope, limit, permit);
///     }
/// }
///
/// impl LendingStore for Strict {
///     async fn draw_and_lend(&self, draws: &mut Draws, _: &mut LeaseRequests) {
///         self.0.draw(draws).await;
///     }
///
///     fn lend(&self, mut requests: Vec<LendRequest>) {
///         requests.iter_mut().for_each(|request| request.answer(LendOutcome::Unsent));
///     }
///
///     fn decide_failed(&self, _: &mut Draws, _: usize, _: impl Fn(KeyRef<'_>, Scope, &Limit) -> Option<State>) {}
///
///     fn is_up(&self) -> bool {
///         true
///     }
///
///     fn live_nodes(&self) -> u32 {
///         1
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Leased::new(Strict(MemoryStore::new()), SystemClock::new(), 1000);
/// let limiter = Limiter::with_store("100/s", store)?;
/// assert!(limiter.check("user:42").await?.is_allowed());
/// # Ok(())
/// # }
/// ```
pub struct Leased<S, C> {
    node: Arc<LeasingNode<S, C>>,
    /// The task that maintains the leases. `None` if the caller does.
    task: Option<AbortHandle>,
}

/// Options of an [unattended](Leased::unattended) store.
#[derive(Clone, Copy, Debug)]
pub struct LeaseOptions {
    /// Units of at most this many keys are leased. Each takes some 250 bytes and its name, once it is drawn.
    pub max_keys: usize,
    /// The seed of the key hashes, so that a simulation can be repeated. `None` makes them unpredictable, which a
    /// node needs whose clients choose the keys.
    pub hash_seed: Option<u64>,
    /// How many units to lease, and when.
    pub policy: LeasePolicy,
}

/// What the store shares with its background task.
struct LeasingNode<S, C> {
    store: S,
    leases: Leases,
    clock: C,
    key_hasher: KeyHasher,
    answers: Arc<LendAnswers>,
}

impl<S: LendingStore, C: Clock + Send + Sync + 'static> Leased<S, C> {
    /// Leases units of at most `max_keys` keys from a store. Each takes some 250 bytes and its name, once it is drawn.
    /// Starts a background task on the current tokio runtime.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub fn new(store: S, clock: C, max_keys: usize) -> Leased<S, C> {
        let options = LeaseOptions { max_keys, hash_seed: None, policy: LeasePolicy::DEFAULT };
        let mut leased = Leased::unattended(store, clock, options);
        leased.task = Some(tokio::spawn(maintain_leases(Arc::clone(&leased.node))).abort_handle());
        leased
    }

    /// Like [`Leased::new`], but starts no background task: the caller [settles](Leased::settle) answers when they
    /// arrive, and [sweeps](Leased::sweep) about once a second.
    pub fn unattended(store: S, clock: C, options: LeaseOptions) -> Leased<S, C> {
        let node = Arc::new(LeasingNode {
            store,
            leases: Leases::new(options.max_keys, options.policy),
            clock,
            key_hasher: options.hash_seed.map_or_else(KeyHasher::random, KeyHasher::with_seed),
            answers: Arc::default(),
        });
        Leased { node, task: None }
    }

    /// Returns idle units, extends leases that end soon, and removes the entries of keys that are no longer drawn.
    pub fn sweep(&self) {
        self.node.sweep(self.node.leases.shards());
    }

    /// Applies the answers to lease requests that no draw has waited for.
    pub fn settle(&self) {
        self.node.settle_answers();
    }

    /// Returns the store that lends the units.
    pub fn store(&self) -> &S {
        &self.node.store
    }

    /// Returns the counters of the store, including those of the leases.
    pub fn counts(&self) -> StoreCounts {
        let counts = self.node.store.health().map(|report| report.counts).unwrap_or_default();
        StoreCounts { leases: self.node.leases.counts(), ..counts }
    }
}

impl<S: LendingStore, C: Clock + Send + Sync + 'static> Store for Leased<S, C> {
    async fn draw(&self, draws: &mut Draws) {
        let now = self.node.clock.now();
        // An empty `PendingRequest` takes no memory, and it stays empty while leases suffice.
        let mut out = PendingRequest::default();
        let spent = self.node.spend_leading_groups(draws, now, &mut out);
        if spent < draws.len() {
            self.node.draw_from_store(draws, spent, out, now).await;
        }
    }

    fn release(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit, permit: PermitId) {
        self.node.store.release(key, scope, limit, permit);
    }

    fn health(&self) -> Option<StoreReport> {
        let mut report = self.node.store.health()?;
        report.counts.leases = self.node.leases.counts();
        Some(report)
    }

    fn key_lease(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> Option<KeyLease> {
        let node = &self.node;
        node.leases.describe(node.key_hash(key, scope, limit), limit, node.clock.now())
    }

    fn memory_stats(&self) -> Option<MemoryStats> {
        self.node.store.memory_stats()
    }

    async fn maintain(&self) {
        self.node.store.maintain().await;
    }

    /// Returns all leases, and then leaves the store.
    async fn leave(&self) {
        self.node.return_all_leases().await;
        self.node.store.leave().await;
    }
}

impl<S, C> Drop for Leased<S, C> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl<S: fmt::Debug, C> fmt::Debug for Leased<S, C> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Leased").field(&self.node.store).finish()
    }
}

/// Maintains the leases and settles the answers that no request settles, for ever.
async fn maintain_leases<S: LendingStore, C: Clock + Send + Sync>(node: Arc<LeasingNode<S, C>>) {
    let mut ticks = interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let next_tick = async {
            ticks.tick().await;
            true
        };
        let next_answer = async {
            node.answers.next().await;
            false
        };
        if either(next_tick, next_answer).await {
            node.sweep(node.leases.shards().div_ceil(SWEEP_STEPS));
        }
        node.settle_answers();
    }
}

/// Waits for the first of two futures, and returns its output.
async fn either<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    std::future::poll_fn(|context| match one.as_mut().poll(context) {
        std::task::Poll::Ready(output) => std::task::Poll::Ready(output),
        std::task::Poll::Pending => other.as_mut().poll(context),
    })
    .await
}

impl<S: LendingStore, C: Clock> LeasingNode<S, C> {
    /// Has the store decide all groups from `first` on that leases don't decide. `out` is what belongs to the first.
    async fn draw_from_store(&self, draws: &mut Draws, first: usize, mut out: PendingRequest, now: Micros) {
        let mut requests = LeaseRequests::starting_at(first);
        let mut claims = CallClaims { node: self, claims: Vec::new() };
        self.add_request(first, &mut out, &mut requests, &mut claims);
        for group in first + 1..draws.len() {
            if self.spend_group(draws, group, now, &mut out) {
                requests.mark_decided(group);
            } else {
                self.add_request(group, &mut out, &mut requests, &mut claims);
            }
        }
        let renewed = requests.renewed_draws();
        self.store.draw_and_lend(draws, &mut requests).await;
        self.settle_answers();
        for group in first..draws.len() {
            if requests.is_pending(group) {
                self.finish_group(draws, group, &renewed, &requests, &mut claims, now);
            }
        }
    }

    /// Adds what belongs to a group that the store decides.
    fn add_request(
        &self,
        group: usize,
        out: &mut PendingRequest,
        requests: &mut LeaseRequests,
        claims: &mut CallClaims<'_, S, C>,
    ) {
        claims.claims.append(&mut out.claims);
        for DrawRenewal { draw, renewal } in out.renewals.drain(..) {
            requests.push(LendRequest::new(renewal, RenewalOwner::Draw { group, draw }, &self.answers));
        }
    }

    /// Records the store's decision about a group, or lets the store decide on this node if there is none. `renewed`
    /// are the draws whose decisions come with the answers to their lease requests, each by its group and its index
    /// there. `sent_at` is a time before the draws were sent.
    fn finish_group(
        &self,
        draws: &mut Draws,
        group: usize,
        renewed: &[(usize, usize)],
        requests: &LeaseRequests,
        claims: &mut CallClaims<'_, S, C>,
        sent_at: Micros,
    ) {
        if draws.group_failure(group).is_some() {
            claims.resolve(draws, group);
            let newer_state = |key: KeyRef<'_>, scope: Scope, limit: &Limit| {
                self.leases.take_new_state(self.key_hash(key, scope, limit), limit)
            };
            return self.store.decide_failed(draws, group, newer_state);
        }
        if !requests.is_decided_from_cache(group) {
            self.record_decisions(draws, group, renewed, sent_at);
        }
        claims.resolve(draws, group);
    }

    /// Records the store's decisions about draws that carried no lease request, and that it has more units of a key,
    /// because some were refunded or the key was reset.
    fn record_decisions(&self, draws: &Draws, group: usize, renewed: &[(usize, usize)], sent_at: Micros) {
        for (index, draw) in draws.group(group).iter().enumerate() {
            let is_renewed = renewed.contains(&(group, index));
            let hash = || self.key_hash(draws.key(draw), draw.scope(), draw.limit());
            if is_leased(draw) && !is_renewed {
                let amount = draw.op().amount();
                self.leases.record_decision(hash(), draw.limit(), amount, draw.result(), sent_at);
            }
            if matches!(draw.op(), Op::Refund(_) | Op::Reset) {
                self.leases.clear_denial(hash());
            }
        }
    }

    /// Decides groups from leases, starting with the first, and returns how many were decided. Collects the
    /// renewals and claims of the next one.
    ///
    /// The memory that many groups need is prefetched before the first is decided, so that a batch waits for
    /// memory once.
    #[inline]
    fn spend_leading_groups(&self, draws: &mut Draws, now: Micros, out: &mut PendingRequest) -> usize {
        match draws.len() {
            1 => usize::from(self.spend_group(draws, 0, now, out)),
            _ => self.spend_batch(draws, now, out),
        }
    }

    fn spend_batch(&self, draws: &mut Draws, now: Micros, out: &mut PendingRequest) -> usize {
        let mut hashes = [KeyHash::NONE; PREFETCH_DRAWS + MAX_DRAWS];
        let mut first = 0;
        loop {
            let (mut end, mut hashed) = (first, 0);
            while end < draws.len()
                && hashed < PREFETCH_DRAWS
                && draws.group(end).iter().any(counts_leased_units)
            {
                hashed += self.key_hasher.hash_group(draws, end, &mut hashes[hashed..]);
                end += 1;
            }
            if end == first {
                return first;
            }
            let mut hashes = &hashes[..hashed];
            self.leases.prefetch(hashes);
            for group in first..end {
                let (own, others) = hashes.split_at(draws.group(group).len());
                if !self.spend_hashed(draws, group, own, now, out) {
                    return group;
                }
                hashes = others;
            }
            first = end;
        }
    }

    /// Decides a group from leases, and returns `true` if they suffice. Otherwise collects its renewals and
    /// claims.
    fn spend_group(&self, draws: &mut Draws, group: usize, now: Micros, out: &mut PendingRequest) -> bool {
        match draws.group(group) {
            [draw] if is_leased(draw) => {
                let hash = self.key_hash(draws.key(draw), draw.scope(), draw.limit());
                self.spend_hashed(draws, group, &[hash], now, out)
            }
            all => {
                all.iter().any(counts_leased_units) && {
                    let mut hashes = [KeyHash::NONE; MAX_DRAWS];
                    let hashed = self.key_hasher.hash_group(draws, group, &mut hashes);
                    self.spend_hashed(draws, group, &hashes[..hashed], now, out)
                }
            }
        }
    }

    #[inline]
    fn spend_hashed(
        &self,
        draws: &mut Draws,
        group: usize,
        hashes: &[KeyHash],
        now: Micros,
        out: &mut PendingRequest,
    ) -> bool {
        let is_decided = match hashes {
            [hash] if is_leased(&draws.group(group)[0]) => {
                self.leases.spend_single(draws, group, *hash, now, out)
            }
            hashes => self.leases.spend_group(draws, group, hashes, now, out),
        };
        if is_decided && !out.renewals.is_empty() {
            let renewals = out.renewals.drain(..);
            let detach = |of: DrawRenewal| self.detach(draws, &draws.group(group)[of.draw], of.renewal);
            self.send(renewals.map(detach).collect());
        }
        is_decided
    }

    /// A renewal for the key of a draw that was granted from the lease.
    fn detach(&self, draws: &Draws, draw: &Draw, renewal: LeaseRenewal) -> DetachedRenewal {
        let name = self.leases.key_name(renewal.hash);
        let name =
            name.unwrap_or_else(|| Arc::new(KeyName { key: draws.key(draw).to_key(), scope: draw.scope() }));
        DetachedRenewal { renewal, limit: *draw.limit(), name }
    }

    /// Sends renewals on their own, without waiting for the answers.
    fn send(&self, renewals: Vec<DetachedRenewal>) {
        let request = |detached: DetachedRenewal| {
            let DetachedRenewal { renewal, limit, name } = detached;
            LendRequest::new(renewal, RenewalOwner::Key(name, limit), &self.answers)
        };
        if !renewals.is_empty() {
            self.store.lend(renewals.into_iter().map(request).collect());
        }
    }

    /// Settles all lease requests that have been answered.
    fn settle_answers(&self) {
        self.answers.settle_with(|LendAnswer { renewal, outcome }| match outcome {
            LendOutcome::Unsent => self.leases.cancel_renewal(&renewal),
            LendOutcome::Unanswered => self.leases.mark_unacked(&renewal),
            LendOutcome::Lent { reply, decision } => {
                // The draw's result is from before the grant, so it is recorded first.
                if let Some(decision) = decision {
                    let DrawDecision { limit, amount, result } = &decision;
                    self.leases.record_decision(renewal.hash, limit, *amount, result, renewal.created_at());
                }
                // A stopping node returns the units that it has just been granted.
                let returned = self.leases.apply_reply(&renewal, reply, self.clock.now());
                self.send(returned.into_iter().collect());
            }
        });
    }

    /// Sweeps the next `shards` shards of the leases.
    fn sweep(&self, shards: usize) {
        self.leases.set_store_down(!self.store.is_up());
        self.leases.set_node_count(self.store.live_nodes());
        let mut renewals = Vec::new();
        self.leases.sweep(shards, self.clock.now(), &mut renewals);
        self.send(renewals);
    }

    /// Returns all leases and stops spending. Waits for the store's answers, up to a timeout.
    async fn return_all_leases(&self) {
        let mut renewals = Vec::new();
        self.leases.drain(self.clock.now(), &mut renewals);
        let deadline = Instant::now() + RETURN_TIMEOUT;
        while !renewals.is_empty() {
            self.send(renewals.drain(..renewals.len().min(RETURN_BATCH)).collect());
            // Delivered or lost, there is nothing more to do.
            let _ = timeout_at(deadline, self.answers.all_settled()).await;
        }
    }

    #[inline]
    fn key_hash(&self, key: KeyRef<'_>, scope: Scope, limit: &Limit) -> KeyHash {
        self.key_hasher.key_hash(key, limit).in_scope(scope)
    }
}

/// The claims of the groups of one call. Claims that are not resolved when this is dropped are put back, because
/// the request was abandoned.
struct CallClaims<'a, S, C> {
    node: &'a LeasingNode<S, C>,
    claims: Vec<DrawClaim>,
}

impl<S: LendingStore, C: Clock> CallClaims<'_, S, C> {
    /// Resolves the claims of a group after the store's decision or failure.
    fn resolve(&mut self, draws: &mut Draws, group: usize) {
        if self.claims.is_empty() {
            return;
        }
        let claims: Vec<_> = self.claims.extract_if(.., |claim| claim.group() == group).collect();
        let mut renewals = Vec::new();
        self.node.leases.resolve_claims(draws, group, &claims, self.node.clock.now(), &mut renewals);
        self.node.send(renewals);
    }
}

impl<S, C> Drop for CallClaims<'_, S, C> {
    fn drop(&mut self) {
        if !self.claims.is_empty() {
            self.node.leases.cancel_claims(&self.claims);
        }
    }
}

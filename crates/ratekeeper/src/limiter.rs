//! The limiter: the same limits for every key.

use crate::limits::{IntoLimits, LimitsError};
use crate::memory::MemoryStore;
use crate::permit::{Permit, PermitIds};
use crate::store::Store;
use ratekeeper_core::{
    Algorithm, Amount, Clock, Decision, Draw, DrawOptions, Draws, Key, KeyRef, Leak, Limit, Op, PermitId,
    Scope, Span, StoreFailure,
};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Holds every key to the same limits.
///
/// A clone shares the same state: hand clones to threads and tasks.
///
/// ```
/// use ratekeeper::Limiter;
///
/// let limiter = Limiter::new(["3/s", "1000/h"])?;
/// for _ in 0..3 {
///     assert!(limiter.check_now("user:42").is_allowed());
/// }
/// let decision = limiter.check_now("user:42");
/// assert!(!decision.is_allowed());
/// assert_eq!(decision.index(), Some(0), "the first limit, 3/s, binds");
/// assert!(decision.retry_after().expect("it can be allowed later").as_millis() <= 334);
/// # Ok::<(), ratekeeper::LimitsError>(())
/// ```
#[derive(Debug)]
pub struct Limiter<S = MemoryStore> {
    shared: Arc<LimiterInner<S>>,
}

#[derive(Debug)]
pub(crate) struct LimiterInner<S> {
    pub(crate) limits: Box<[Limit]>,
    terms: DrawOptions,
    pub(crate) store: S,
    permits: PermitIds,
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Limiter<S> {
        Limiter { shared: Arc::clone(&self.shared) }
    }
}

/// Who asks, and for how much. Text or a [`Key`] alone asks for one unit.
///
/// ```
/// use ratekeeper::{Key, Limiter, Request};
///
/// let limiter = Limiter::new("1000/min")?;
/// let key = Key::new(["tenant:7", "/v1/chat"])?;
/// assert_eq!(limiter.check_now(Request::from(&key).cost(250)).remaining(), 750);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct KeyedRequest<'a> {
    key: KeyRef<'a>,
    cost: u32,
}

impl KeyedRequest<'_> {
    /// The same request at another cost. A cost of 0 is always allowed and takes nothing.
    #[must_use]
    pub fn cost(self, cost: u32) -> Self {
        KeyedRequest { cost, ..self }
    }
}

impl<'a, K: Into<KeyRef<'a>>> From<K> for KeyedRequest<'a> {
    #[inline]
    fn from(key: K) -> KeyedRequest<'a> {
        KeyedRequest { key: key.into(), cost: 1 }
    }
}

impl Limiter {
    /// A limiter with its state in this process, for up to a million keys.
    ///
    /// # Errors
    /// If the limits can't be read or honoured; the error says what to write instead.
    pub fn new(limits: impl IntoLimits) -> Result<Limiter, LimitsError> {
        Limiter::with_store(limits, MemoryStore::new())
    }
}

/// What the memory store can do at once.
impl<C: Clock> Limiter<MemoryStore<C>> {
    /// Takes the request's cost from every limit, or nothing from any. A place under a concurrency limit is then held
    /// until it lapses: [`hold_now`](Self::hold_now) gives a permit that frees it.
    #[inline]
    pub fn check_now<'a>(&self, request: impl Into<KeyedRequest<'a>>) -> Decision {
        let request = request.into();
        let ask = Amount::exactly(request.cost);
        let store = &self.shared.store;
        let [limit] = &*self.shared.limits else {
            return self.act_now(request.key, Op::Take(ask), self.shared.next_permit());
        };
        match store.take_known(request.key, Scope(0), limit, ask) {
            Ok(outcome) => Decision::of_one(limit, ask, outcome),
            Err(now) => {
                let permit = self.shared.next_permit();
                Decision::of_one(
                    limit,
                    ask,
                    store.take_unknown(request.key, Scope(0), limit, ask, permit, now),
                )
            }
        }
    }

    /// Says what [`check_now`](Self::check_now) would, and takes nothing.
    pub fn peek_now<'a>(&self, request: impl Into<KeyedRequest<'a>>) -> Decision {
        let request = request.into();
        self.act_now(request.key, Op::Look(Amount::exactly(request.cost)), PermitId::default())
    }

    /// Gives the request's cost back to every limit, at most as much as is out. What is held under a concurrency limit
    /// is given back by dropping its [`Permit`].
    pub fn refund_now<'a>(&self, request: impl Into<KeyedRequest<'a>>) -> Decision {
        let request = request.into();
        self.act_now(request.key, Op::Give(request.cost), PermitId::default())
    }

    /// Forgets everything under a key.
    pub fn reset_now<'a>(&self, key: impl Into<KeyRef<'a>>) {
        self.act_now(key.into(), Op::Clear, PermitId::default());
    }

    /// Takes places under the limiter's concurrency limits (and units under its others), to be held until the permit
    /// is dropped.
    ///
    /// ```
    /// use ratekeeper::{Law, Limit, Limiter, Quota};
    ///
    /// // At most two at the same time; a permit that is never released lapses after a minute.
    /// let limiter = Limiter::new(Limit::new(Law::Concurrency, Quota::per_minute(2))?)?;
    /// let first = limiter.hold_now("user:42").expect("a place is free");
    /// let second = limiter.hold_now("user:42").expect("another place is free");
    /// assert!(limiter.hold_now("user:42").is_err());
    /// drop(first);
    /// assert!(limiter.hold_now("user:42").is_ok());
    /// # Ok::<(), ratekeeper::LimitsError>(())
    /// ```
    ///
    /// # Errors
    /// With what was decided, if a limit refuses.
    pub fn hold_now<'a>(
        &self,
        request: impl Into<KeyedRequest<'a>>,
    ) -> Result<Permit<MemoryStore<C>>, Box<Decision>> {
        let request = request.into();
        let permit = self.shared.next_permit();
        let decision = self.act_now(request.key, Op::Take(Amount::exactly(request.cost)), permit);
        match decision.is_allowed() {
            true => Ok(Permit::new(Arc::clone(&self.shared), request.key, permit, decision)),
            false => Err(Box::new(decision)),
        }
    }

    fn act_now(&self, key: KeyRef<'_>, act: Op, permit: PermitId) -> Decision {
        SPARE.with_borrow_mut(|draws| {
            self.shared.plan(key, act, permit, draws);
            self.shared.store.draw_now(draws);
            Decision::of(draws.all())
        })
    }
}

/// What every store can do.
impl<S: Store> Limiter<S> {
    /// A limiter with its state in `store`.
    ///
    /// # Errors
    /// If the limits can't be read or honoured; the error says what to write instead.
    pub fn with_store(limits: impl IntoLimits, store: S) -> Result<Limiter<S>, LimitsError> {
        Limiter::with_terms(limits, store, DrawOptions::default())
    }

    /// The same on other terms: how exact it is among nodes that share the store, how long that has to answer, and what
    /// holds if it does not. Where that is that a request passes or is refused whatever the limits say, methods give the
    /// store's error, and it is up to the caller to do so.
    ///
    /// ```
    /// use ratekeeper::{Limiter, MemoryStore, Terms};
    ///
    /// let limiter = Limiter::with_terms("100/min", MemoryStore::new(), Terms::EXACT)?;
    /// assert!(limiter.check_now("user:42").is_allowed());
    /// # Ok::<(), ratekeeper::LimitsError>(())
    /// ```
    ///
    /// # Errors
    /// If the limits can't be read or honoured; the error says what to write instead.
    pub fn with_terms(
        limits: impl IntoLimits,
        store: S,
        terms: DrawOptions,
    ) -> Result<Limiter<S>, LimitsError> {
        let limits = limits.into_limits()?.into_boxed_slice();
        Ok(Limiter { shared: Arc::new(LimiterInner { limits, terms, store, permits: PermitIds::random() }) })
    }

    /// The limits it enforces, in the order that [`Decision::index`] counts.
    pub fn limits(&self) -> &[Limit] {
        &self.shared.limits
    }

    /// The store it keeps its state in.
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Takes the request's cost from every limit, or nothing from any. While a shared store is away, it is decided by this
    /// node's share of the limits.
    ///
    /// # Errors
    /// If the store gives no answer, and nothing to go by without one. The request may have been charged.
    pub async fn check<'a>(&self, request: impl Into<KeyedRequest<'a>>) -> Result<Decision, StoreFailure> {
        let request = request.into();
        self.act(request.key, Op::Take(Amount::exactly(request.cost)), self.shared.next_permit()).await
    }

    /// Says what [`check`](Self::check) would, and takes nothing.
    ///
    /// # Errors
    /// If the store gives no answer.
    pub async fn peek<'a>(&self, request: impl Into<KeyedRequest<'a>>) -> Result<Decision, StoreFailure> {
        let request = request.into();
        self.act(request.key, Op::Look(Amount::exactly(request.cost)), PermitId::default()).await
    }

    /// Gives the request's cost back to every limit, at most as much as is out.
    ///
    /// # Errors
    /// If the store gives no answer. The units may have been given back.
    pub async fn refund<'a>(&self, request: impl Into<KeyedRequest<'a>>) -> Result<Decision, StoreFailure> {
        let request = request.into();
        self.act(request.key, Op::Give(request.cost), PermitId::default()).await
    }

    /// Forgets everything under a key.
    ///
    /// # Errors
    /// If the store gives no answer. The key may have been forgotten.
    pub async fn reset<'a>(&self, key: impl Into<KeyRef<'a>>) -> Result<(), StoreFailure> {
        self.act(key.into(), Op::Clear, PermitId::default()).await.map(drop)
    }

    /// Takes places to be held until the permit is dropped: [`hold_now`](Limiter::hold_now) for any store.
    ///
    /// # Errors
    /// With what was decided, if a limit refuses; or with the store's error.
    pub async fn hold<'a>(&self, request: impl Into<KeyedRequest<'a>>) -> Result<Permit<S>, AcquireError> {
        let request = request.into();
        let permit = self.shared.next_permit();
        let decision = self.act(request.key, Op::Take(Amount::exactly(request.cost)), permit).await?;
        match decision.is_allowed() {
            true => Ok(Permit::new(Arc::clone(&self.shared), request.key, permit, decision)),
            false => Err(AcquireError::Refused(Box::new(decision))),
        }
    }

    /// Waits until the request is allowed, for at most `patience`; a queue's delay is waited out too.
    ///
    /// If it could not be allowed in time, it fails at once and nothing is taken: it never waits in vain. Who gives up
    /// on a queue's delay (by dropping the future) keeps its place there. Needs a tokio runtime with its timer on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use ratekeeper::Limiter;
    ///
    /// let limiter = Limiter::new("1000/s burst 1")?;
    /// limiter.acquire("user:42", Duration::from_secs(1)).await?;
    /// limiter.acquire("user:42", Duration::from_secs(1)).await?; // about a millisecond later
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// With what was decided, if the wait would be too long or is in vain; if it is called outside of a Tokio runtime;
    /// or with the store's error.
    pub async fn acquire<'a>(
        &self,
        request: impl Into<KeyedRequest<'a>>,
        patience: Duration,
    ) -> Result<Decision, AcquireError> {
        // Tokio's timer panics without a runtime, and after a limit granted units it would be too late to say so.
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(AcquireError::NoRuntime);
        }
        let request = request.into();
        let begun = Instant::now();
        loop {
            let left = patience.saturating_sub(begun.elapsed());
            let ask = Amount::exactly(request.cost).within(Span::from(left));
            let decision = self.act(request.key, Op::Take(ask), self.shared.next_permit()).await?;
            if decision.is_allowed() {
                // The timer would make a millisecond of no time at all.
                if !decision.delay().is_zero() {
                    sleep(decision.delay()).await;
                }
                return Ok(decision);
            }
            match decision.retry_after().filter(|_| needed(&decision) <= left) {
                Some(wait) => sleep(wait).await,
                None => return Err(AcquireError::Refused(Box::new(decision))),
            }
        }
    }

    async fn act(&self, key: KeyRef<'_>, act: Op, permit: PermitId) -> Result<Decision, StoreFailure> {
        let is_gift = matches!(act, Op::Give(_) | Op::Clear);
        let mut draws = SPARE.take();
        self.shared.plan(key, act, permit, &mut draws);
        self.shared.store.draw(&mut draws).await;
        let decision = match draws.failure(0..draws.all().len()) {
            // While the store is away, a check may have been decided by this node; what is given back it has not heard of.
            Some(failure) if is_gift || !draws.all().iter().all(Draw::is_decided) => Err(failure),
            _ => Ok(Decision::of(draws.all())),
        };
        SPARE.replace(draws);
        decision
    }
}

impl<S> LimiterInner<S> {
    fn plan(&self, key: KeyRef<'_>, act: Op, permit: PermitId, draws: &mut Draws) {
        draws.clear();
        let mut limits = (0..).map(Scope).zip(&self.limits);
        if let Some((scope, limit)) = limits.next() {
            draws.push(key, scope, *limit, act, permit);
            draws.set_terms(self.terms);
        }
        for (scope, limit) in limits {
            draws.push_again(scope, *limit, act, permit);
            draws.set_terms(self.terms);
        }
    }

    fn next_permit(&self) -> PermitId {
        match self.limits.iter().any(|limit| limit.law() == Algorithm::Concurrency) {
            true => self.permits.next(),
            false => PermitId::default(),
        }
    }
}

impl<S: Store> LimiterInner<S> {
    /// Frees a permit's places.
    pub(crate) fn release(&self, key: &Key, permit: PermitId) {
        let limits = (0..).map(Scope).zip(&self.limits);
        for (scope, limit) in limits.filter(|(_, limit)| limit.law() == Algorithm::Concurrency) {
            self.store.release(key.borrow(), scope, limit, permit);
        }
    }
}

/// How long a refused request takes at least until it may go on: until there is room for it, or through a queue to the
/// end of all that is before it, since waiting for room there is waiting all the same.
fn needed(decision: &Decision) -> Duration {
    match decision.limit().map(Limit::law) {
        Some(Algorithm::LeakyBucket(Leak::Queue)) => decision.reset_after(),
        _ => decision.retry_after().unwrap_or(Duration::MAX),
    }
}

thread_local! {
    /// A buffer for each thread, so that a warm limiter allocates nothing.
    static SPARE: RefCell<Draws> = const { RefCell::new(Draws::new()) };
}

/// Why a wait ended without leave.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// A limit refused, and would still have at the end of the wait.
    #[error("refused by {}", .0.limit().map_or_else(|| "no limit".to_owned(), ToString::to_string))]
    Refused(Box<Decision>),
    /// It was called outside of a Tokio runtime, whose timer it waits with. Nothing was taken.
    #[error("acquire waits with Tokio's timer: call it within a Tokio runtime, or use check_now")]
    NoRuntime,
    /// The store gave no answer.
    #[error(transparent)]
    Store(#[from] StoreFailure),
}

//! The limiter: the same limits for every key.

mod permit;

pub use permit::Permit;

use crate::limits::{IntoLimits, LimitsError};
use crate::memory::MemoryStore;
use crate::store::Store;
use permit::PermitIds;
use ratekeeper_core::{
    Algorithm, Amount, Clock, Decision, Draw, DrawOptions, Draws, Key, KeyRef, Leak, Limit, Op, PermitId,
    Scope, Span, StoreFailure,
};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A rate limiter that applies the same limits to every key.
///
/// Clones are cheap and share the same state: pass them to threads and tasks.
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
/// assert!(decision.retry_after().expect("a retry can succeed").as_millis() <= 334);
/// # Ok::<(), ratekeeper::LimitsError>(())
/// ```
#[derive(Debug)]
pub struct Limiter<S = MemoryStore> {
    inner: Arc<LimiterInner<S>>,
}

#[derive(Debug)]
pub(crate) struct LimiterInner<S> {
    pub(crate) limits: Box<[Limit]>,
    options: DrawOptions,
    pub(crate) store: S,
    permit_ids: PermitIds,
    /// Whether one of the limits is a concurrency limit.
    has_permits: bool,
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Limiter<S> {
        Limiter { inner: Arc::clone(&self.inner) }
    }
}

/// A key and a cost. A `&str` or [`Key`] converts into a request for one unit.
///
/// ```
/// use ratekeeper::{Key, KeyedRequest, Limiter};
///
/// let limiter = Limiter::new("1000/min")?;
/// let key = Key::new(["tenant:7", "/v1/chat"])?;
/// assert_eq!(limiter.check_now(KeyedRequest::from(&key).cost(250)).remaining(), 750);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct KeyedRequest<'a> {
    key: KeyRef<'a>,
    cost: u32,
}

impl KeyedRequest<'_> {
    /// Returns the same request with another cost. A cost of 0 is always allowed and takes nothing.
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
    /// Creates a limiter with in-process state for up to a million keys.
    ///
    /// # Errors
    /// Returns an error if the limits are invalid; the message says what to write instead.
    pub fn new(limits: impl IntoLimits) -> Result<Limiter, LimitsError> {
        Limiter::with_store(limits, MemoryStore::new())
    }
}

/// Synchronous methods of the memory store.
impl<C: Clock> Limiter<MemoryStore<C>> {
    /// Takes the cost of the request from every limit, or nothing from any if one of them denies. Slots under a
    /// concurrency limit are then held until they expire; use [`take_permit_now`](Self::take_permit_now) to release
    /// them.
    #[inline]
    pub fn check_now<'a>(&self, request: impl Into<KeyedRequest<'a>>) -> Decision {
        let request = request.into();
        let amount = Amount::exactly(request.cost);
        let store = &self.inner.store;
        let [limit] = &*self.inner.limits else {
            return self.execute_now(request.key, Op::Take(amount), self.inner.next_permit_id());
        };
        let permit = self.inner.next_permit_id();
        let result = store.take_now(request.key, Scope(0), limit, amount, permit);
        Decision::from_single(limit, amount, result)
    }

    /// Returns the decision that [`check_now`](Self::check_now) would make, without taking units.
    pub fn peek_now<'a>(&self, request: impl Into<KeyedRequest<'a>>) -> Decision {
        let request = request.into();
        self.execute_now(request.key, Op::Peek(Amount::exactly(request.cost)), PermitId::default())
    }

    /// Refunds the cost of the request to every limit, at most the units in use. Slots under a concurrency limit
    /// are released by dropping the [`Permit`] instead.
    pub fn refund_now<'a>(&self, request: impl Into<KeyedRequest<'a>>) -> Decision {
        let request = request.into();
        self.execute_now(request.key, Op::Refund(request.cost), PermitId::default())
    }

    /// Deletes the state of a key.
    pub fn reset_now<'a>(&self, key: impl Into<KeyRef<'a>>) {
        self.execute_now(key.into(), Op::Reset, PermitId::default());
    }

    /// Takes slots under the concurrency limits, and units under the other limits. Dropping the permit releases the
    /// slots.
    ///
    /// ```
    /// use ratekeeper::{Algorithm, Limit, Limiter, Quota};
    ///
    /// // At most two at the same time; a permit that is never released expires after a minute.
    /// let limiter = Limiter::new(Limit::new(Algorithm::Concurrency, Quota::per_minute(2))?)?;
    /// let first = limiter.take_permit_now("user:42").expect("a slot is free");
    /// let second = limiter.take_permit_now("user:42").expect("another slot is free");
    /// assert!(limiter.take_permit_now("user:42").is_err());
    /// drop(first);
    /// assert!(limiter.take_permit_now("user:42").is_ok());
    /// # Ok::<(), ratekeeper::LimitsError>(())
    /// ```
    ///
    /// # Errors
    /// Returns the decision if a limit denies.
    pub fn take_permit_now<'a>(
        &self,
        request: impl Into<KeyedRequest<'a>>,
    ) -> Result<Permit<MemoryStore<C>>, Box<Decision>> {
        let request = request.into();
        let permit = self.inner.next_permit_id();
        let decision = self.execute_now(request.key, Op::Take(Amount::exactly(request.cost)), permit);
        if decision.is_allowed() {
            Ok(Permit::new(Arc::clone(&self.inner), request.key, permit, decision))
        } else {
            Err(Box::new(decision))
        }
    }

    fn execute_now(&self, key: KeyRef<'_>, op: Op, permit: PermitId) -> Decision {
        SCRATCH_DRAWS.with_borrow_mut(|draws| {
            self.inner.fill_draws(key, op, permit, draws);
            self.inner.store.draw_now(draws);
            Decision::from_group(draws.all())
        })
    }
}

/// Asynchronous methods, for every store.
impl<S: Store> Limiter<S> {
    /// Creates a limiter with its state in `store`.
    ///
    /// # Errors
    /// Returns an error if the limits are invalid; the message says what to write instead.
    pub fn with_store(limits: impl IntoLimits, store: S) -> Result<Limiter<S>, LimitsError> {
        Limiter::with_options(limits, store, DrawOptions::default())
    }

    /// Creates a limiter with options: how exact it is across nodes that share the store, the timeout of the store,
    /// and what happens if the store does not answer. With [`FailureMode::Open`](crate::FailureMode::Open) or
    /// [`FailureMode::Closed`](crate::FailureMode::Closed) the methods return the error of the store, and the
    /// caller decides.
    ///
    /// ```
    /// use ratekeeper::{DrawOptions, Limiter, MemoryStore};
    ///
    /// let limiter = Limiter::with_options("100/min", MemoryStore::new(), DrawOptions::EXACT)?;
    /// assert!(limiter.check_now("user:42").is_allowed());
    /// # Ok::<(), ratekeeper::LimitsError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the limits are invalid; the message says what to write instead.
    pub fn with_options(
        limits: impl IntoLimits,
        store: S,
        options: DrawOptions,
    ) -> Result<Limiter<S>, LimitsError> {
        let limits = limits.into_limits()?.into_boxed_slice();
        let has_permits = limits.iter().any(|limit| limit.algorithm() == Algorithm::Concurrency);
        let permit_ids = PermitIds::random();
        Ok(Limiter { inner: Arc::new(LimiterInner { limits, options, store, permit_ids, has_permits }) })
    }

    /// Returns the limits, in the order that [`Decision::index`] counts.
    pub fn limits(&self) -> &[Limit] {
        &self.inner.limits
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// Takes the cost of the request from every limit, or nothing from any if one of them denies. With the default
    /// options, this node enforces its share of the limits while a shared store is unreachable.
    ///
    /// # Errors
    /// Returns an error if the store does not answer and the options don't say to decide locally. The request may
    /// have been charged.
    pub async fn check<'a>(&self, request: impl Into<KeyedRequest<'a>>) -> Result<Decision, StoreFailure> {
        let request = request.into();
        self.execute(request.key, Op::Take(Amount::exactly(request.cost)), self.inner.next_permit_id()).await
    }

    /// Returns the decision that [`check`](Self::check) would make, without taking units.
    ///
    /// # Errors
    /// Returns an error if the store does not answer.
    pub async fn peek<'a>(&self, request: impl Into<KeyedRequest<'a>>) -> Result<Decision, StoreFailure> {
        let request = request.into();
        self.execute(request.key, Op::Peek(Amount::exactly(request.cost)), PermitId::default()).await
    }

    /// Refunds the cost of the request to every limit, at most the units in use.
    ///
    /// # Errors
    /// Returns an error if the store does not answer. The units may have been returned.
    pub async fn refund<'a>(&self, request: impl Into<KeyedRequest<'a>>) -> Result<Decision, StoreFailure> {
        let request = request.into();
        self.execute(request.key, Op::Refund(request.cost), PermitId::default()).await
    }

    /// Deletes the state of a key.
    ///
    /// # Errors
    /// Returns an error if the store does not answer. The state may have been deleted.
    pub async fn reset<'a>(&self, key: impl Into<KeyRef<'a>>) -> Result<(), StoreFailure> {
        self.execute(key.into(), Op::Reset, PermitId::default()).await.map(drop)
    }

    /// Takes a permit: [`take_permit_now`](Limiter::take_permit_now) for any store.
    ///
    /// # Errors
    /// Returns the decision if a limit denies, or the error of the store.
    pub async fn take_permit<'a>(
        &self,
        request: impl Into<KeyedRequest<'a>>,
    ) -> Result<Permit<S>, AcquireError> {
        let request = request.into();
        let permit = self.inner.next_permit_id();
        let decision = self.execute(request.key, Op::Take(Amount::exactly(request.cost)), permit).await?;
        if decision.is_allowed() {
            Ok(Permit::new(Arc::clone(&self.inner), request.key, permit, decision))
        } else {
            Err(AcquireError::Denied(Box::new(decision)))
        }
    }

    /// Waits until the request is allowed, for at most `timeout`. A queueing delay is waited out too.
    ///
    /// If the request can't be allowed in time, this fails at once and takes nothing. A caller that drops the
    /// future during a queueing delay keeps its place in the queue. Requires a Tokio runtime with its timer
    /// enabled.
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
    /// Returns the decision if the wait would exceed the timeout or the request can never be allowed; an error if
    /// called outside of a Tokio runtime; or the error of the store.
    pub async fn acquire<'a>(
        &self,
        request: impl Into<KeyedRequest<'a>>,
        timeout: Duration,
    ) -> Result<Decision, AcquireError> {
        // Tokio's timer panics without a runtime. Checked first, since failing after units were granted would lose
        // them.
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(AcquireError::NoRuntime);
        }
        let request = request.into();
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let amount = Amount::exactly(request.cost).with_max_delay(Span::from(left));
            let decision = self.execute(request.key, Op::Take(amount), self.inner.next_permit_id()).await?;
            if decision.is_allowed() {
                // The timer would turn a zero delay into a millisecond.
                if !decision.delay().is_zero() {
                    sleep(decision.delay()).await;
                }
                return Ok(decision);
            }
            match decision.retry_after().filter(|_| min_wait(&decision) <= left) {
                Some(wait) => sleep(wait).await,
                None => return Err(AcquireError::Denied(Box::new(decision))),
            }
        }
    }

    async fn execute(&self, key: KeyRef<'_>, op: Op, permit: PermitId) -> Result<Decision, StoreFailure> {
        let is_refund_or_reset = matches!(op, Op::Refund(_) | Op::Reset);
        let mut draws = SCRATCH_DRAWS.take();
        self.inner.fill_draws(key, op, permit, &mut draws);
        self.inner.store.draw(&mut draws).await;
        let decision = match draws.failure_in(0..draws.all().len()) {
            // While the store is unreachable, this node may have decided a check itself; a refund or reset did not
            // reach the store.
            Some(failure) if is_refund_or_reset || !draws.all().iter().all(Draw::is_decided) => Err(failure),
            _ => Ok(Decision::from_group(draws.all())),
        };
        SCRATCH_DRAWS.replace(draws);
        decision
    }
}

impl<S> LimiterInner<S> {
    fn fill_draws(&self, key: KeyRef<'_>, op: Op, permit: PermitId, draws: &mut Draws) {
        draws.clear();
        let mut limits = (0..).map(Scope).zip(&self.limits);
        if let Some((scope, limit)) = limits.next() {
            draws.push(key, scope, *limit, op, permit);
            draws.set_options(self.options);
        }
        for (scope, limit) in limits {
            draws.push_same_key(scope, *limit, op, permit);
            draws.set_options(self.options);
        }
    }

    fn next_permit_id(&self) -> PermitId {
        if self.has_permits { self.permit_ids.next() } else { PermitId::default() }
    }
}

impl<S: Store> LimiterInner<S> {
    /// Frees the slots of a permit.
    pub(crate) fn release(&self, key: &Key, permit: PermitId) {
        let limits = (0..).map(Scope).zip(&self.limits);
        for (scope, limit) in limits.filter(|(_, limit)| limit.algorithm() == Algorithm::Concurrency) {
            self.store.release(key.borrow(), scope, limit, permit);
        }
    }
}

/// Returns the shortest time until a denied request may proceed: until it fits or, in a queue, until everything
/// before it is served, because a request that got into the queue would wait that long anyway.
fn min_wait(decision: &Decision) -> Duration {
    match decision.limit().map(Limit::algorithm) {
        Some(Algorithm::LeakyBucket(Leak::Queue)) => decision.reset_after(),
        _ => decision.retry_after().unwrap_or(Duration::MAX),
    }
}

thread_local! {
    /// One buffer per thread, so that a warm limiter allocates nothing.
    static SCRATCH_DRAWS: RefCell<Draws> = const { RefCell::new(Draws::new()) };
}

/// Why [`Limiter::acquire`] or [`Limiter::take_permit`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// A limit denied the request and, for `acquire`, would still deny it at the end of the timeout.
    #[error("denied by {}", .0.limit().map_or_else(|| "no limit".to_owned(), ToString::to_string))]
    Denied(Box<Decision>),
    /// `acquire` was called outside of a Tokio runtime, whose timer it needs. Nothing was taken.
    #[error("acquire waits with Tokio's timer: call it within a Tokio runtime, or use check_now")]
    NoRuntime,
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreFailure),
}

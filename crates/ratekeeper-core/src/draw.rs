//! Draws: the requests to a store, as plain data.
//!
//! A request makes a *group* of draws, which is decided all or nothing: if one limit denies, no units are taken
//! from the others. One [`Draws`] buffer carries any number of groups, so that a store can decide many requests in
//! one call. The buffer is meant to be reused: once warm, it allocates nothing.

use crate::draw_options::{Consistency, DrawOptions};
use crate::key::{KeyRef, KeyShape, Scope, encode_parts};
use crate::limit::Limit;
use crate::op::{Amount, Op, PermitId};
use crate::state::State;
use crate::status::{DrawOutcome, DrawResult, Forecast, LimitStatus};
use crate::time::Micros;
use std::ops::Range;

/// The maximum number of draws per request.
pub const MAX_DRAWS: usize = 16;

/// One draw: one limit that one request must pass.
#[derive(Clone, Debug)]
pub struct Draw {
    key: (usize, usize, KeyShape),
    scope: Scope,
    limit: Limit,
    op: Op,
    permit: PermitId,
    options: DrawOptions,
    result: DrawResult,
}

impl Draw {
    /// Returns the scope, which distinguishes the limits of one key.
    #[inline]
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Returns the limit to draw from.
    #[inline]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns the operation.
    #[inline]
    pub fn op(&self) -> Op {
        self.op
    }

    /// Returns the permit that holds the units under a concurrency limit.
    #[inline]
    pub fn permit(&self) -> PermitId {
        self.permit
    }

    /// Returns the options of the draw.
    #[inline]
    pub fn options(&self) -> DrawOptions {
        self.options
    }

    /// Returns whether this is a shadow draw: it takes units if the request is allowed, but never denies the
    /// request.
    #[inline]
    pub fn is_shadow(&self) -> bool {
        self.options.is_shadow
    }

    /// Returns whether the draw is decided on this node, even if the store is shared.
    #[inline]
    pub fn is_local(&self) -> bool {
        self.options.consistency == Consistency::Local
    }

    /// Returns whether the limit denied the draw.
    #[inline]
    pub fn is_denied(&self) -> bool {
        self.result.is_denied()
    }

    /// Returns whether the limit denied the draw and thereby the request; never for a shadow draw.
    #[inline]
    pub fn denies_request(&self) -> bool {
        !self.options.is_shadow && self.is_denied()
    }

    /// Returns whether a store has decided the draw.
    #[inline]
    pub fn is_decided(&self) -> bool {
        self.result.decided_at() != Micros::EPOCH
    }

    /// Returns the status of the limit. Before a store has decided the draw, its outcome is
    /// [`DrawOutcome::WouldGrant`].
    pub fn status(&self) -> LimitStatus {
        LimitStatus { limit: self.limit, amount: self.op.amount(), result: self.result }
    }

    /// Returns the time of the decision, by the clock of the store.
    #[inline]
    pub fn decided_at(&self) -> Micros {
        self.result.decided_at()
    }

    /// Returns the forecast of the limit.
    #[inline]
    pub fn forecast(&self) -> Forecast {
        self.result.forecast(&self.limit, self.op.amount())
    }

    /// Returns the result of the decision.
    #[inline]
    pub fn result(&self) -> &DrawResult {
        &self.result
    }

    /// Returns the outcome of the draw.
    #[inline]
    pub fn outcome(&self) -> DrawOutcome {
        self.result.outcome()
    }

    /// Returns whether both draws use the same stored key bytes and algorithm family, so that a hash computed for
    /// one holds for the other.
    #[inline]
    pub fn has_same_hash_as(&self, other: &Draw) -> bool {
        self.key == other.key && self.limit.family() == other.limit.family()
    }

    /// Replaces the limit by one of `nodes` [shares](Limit::share) of it. A store calls this before it decides the
    /// draw on its own.
    pub fn use_share(&mut self, nodes: u32) {
        self.limit = self.limit.share(nodes);
    }

    /// Changes how many units the draw takes or peeks at. A store that holds some of the units calls this to
    /// request only the rest from another store. Refunds and resets stay as they are.
    pub fn set_units(&mut self, units: u32) {
        self.op = match self.op {
            Op::Take(_) => Op::Take(Amount::exactly(units)),
            Op::Peek(_) => Op::Peek(Amount::exactly(units)),
            op => op,
        };
    }

    /// Copies the decision that another store made on the same draw, including its limit, which may be a share
    /// there.
    pub fn copy_decision(&mut self, decided: &Draw) {
        (self.limit, self.result) = (decided.limit, decided.result);
    }

    /// Sets the result to the return value of `decide`. For stores.
    #[inline]
    pub fn decide_with(&mut self, decide: impl FnOnce(&Limit, Op, PermitId) -> DrawResult) {
        self.result = decide(&self.limit, self.op, self.permit);
    }

    /// Turns a grant of `units` units that have been refunded since into one that was not made. For stores.
    pub fn revoke(&mut self, units: u32) {
        let (limit, now) = (&self.limit, self.decided_at());
        self.result = match self.result.state() {
            Some(state) => {
                DrawResult::from_state(DrawOutcome::WouldGrant, now, limit.refund(state, now, units))
            }
            None => {
                let forecast = self.forecast();
                let remaining = forecast.remaining.saturating_add(units).min(limit.capacity());
                DrawResult::from_forecast(DrawOutcome::WouldGrant, now, Forecast { remaining, ..forecast })
            }
        };
    }
}

/// A reusable buffer of draws, arranged in groups.
#[derive(Clone, Debug, Default)]
pub struct Draws {
    keys: Vec<u8>,
    draws: Vec<Draw>,
    /// The index of the first draw of each group.
    groups: Vec<usize>,
    /// The draws of groups that the store did not answer, and why. Almost always empty.
    failures: Vec<(Range<usize>, StoreFailure)>,
}

/// Why a store did not decide a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreFailure {
    /// The store did not answer in time. The request may or may not have been charged; it is not retried, as that
    /// could charge twice.
    #[error("the store did not answer in time")]
    Timeout,
    /// The store could not be reached. The request was not charged, unless the connection broke after the store
    /// executed it.
    #[error("the store is unreachable")]
    Unreachable,
    /// Too many requests are waiting for the store. The request was not charged.
    #[error("too many requests are waiting for the store")]
    Busy,
    /// The store answered with an error, for example because it is out of memory.
    #[error("the store answered with an error")]
    StoreError,
    /// The in-process store has no memory left to count the request, not even approximately. The request was not
    /// charged.
    #[error("the store has no memory left to count the request")]
    Full,
}

impl Draws {
    /// Creates an empty buffer. It allocates when it is first filled.
    pub const fn new() -> Draws {
        Draws { keys: Vec::new(), draws: Vec::new(), groups: Vec::new(), failures: Vec::new() }
    }

    /// Removes all draws and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.draws.clear();
        self.groups.clear();
        self.failures.clear();
    }

    /// Removes the draws from index `len` on. The draw at `len` must have been pushed with its own key, not with
    /// [`push_same_key`](Draws::push_same_key).
    pub fn truncate(&mut self, len: usize) {
        if let Some(first) = self.draws.get(len) {
            self.keys.truncate(first.key.0);
            self.draws.truncate(len);
            let groups = self.groups.partition_point(|start| *start < len);
            self.groups.truncate(groups);
        }
    }

    /// Returns whether the current group has [`MAX_DRAWS`] draws.
    #[inline]
    pub fn is_group_full(&self) -> bool {
        self.groups.last().is_some_and(|start| self.draws.len() - start == MAX_DRAWS)
    }

    /// Begins the group of the next request.
    pub fn begin_group(&mut self) {
        self.groups.push(self.draws.len());
    }

    /// Adds a draw to the current group, or to a first one.
    ///
    /// # Panics
    /// Panics if the group already has [`MAX_DRAWS`] draws. Callers bound the number of limits beforehand.
    pub fn push(&mut self, key: KeyRef<'_>, scope: Scope, limit: Limit, op: Op, permit: PermitId) {
        let start = self.keys.len();
        self.keys.extend_from_slice(key.bytes());
        self.push_draw((start, self.keys.len(), key.shape()), scope, limit, op, permit);
    }

    /// Adds a draw under the key of the last draw, which is neither copied nor hashed again.
    ///
    /// # Panics
    /// Panics if there is no last draw, or if the group already has [`MAX_DRAWS`] draws.
    pub fn push_same_key(&mut self, scope: Scope, limit: Limit, op: Op, permit: PermitId) {
        let key = self.draws.last().expect("push_same_key follows a push").key;
        self.push_draw(key, scope, limit, op, permit);
    }

    fn push_draw(
        &mut self,
        key: (usize, usize, KeyShape),
        scope: Scope,
        limit: Limit,
        op: Op,
        permit: PermitId,
    ) {
        if self.groups.is_empty() {
            self.begin_group();
        }
        let start = self.groups.last().copied().unwrap_or(0);
        assert!(self.draws.len() - start < MAX_DRAWS, "a request may make at most {MAX_DRAWS} draws");
        let result = DrawResult::from_state(DrawOutcome::WouldGrant, Micros::EPOCH, State::default());
        self.draws.push(Draw { key, scope, limit, op, permit, options: DrawOptions::default(), result });
    }

    /// Adds a draw under a key made of `parts`, without building a [`Key`](crate::Key) first. Only the first 65 535
    /// bytes of each part of a composite key count.
    ///
    /// # Panics
    /// Panics if the group already has [`MAX_DRAWS`] draws, or if there is no part.
    pub fn push_parts<'a>(
        &mut self,
        parts: impl IntoIterator<Item = &'a str>,
        scope: Scope,
        limit: Limit,
        op: Op,
        permit: PermitId,
    ) {
        let start = self.keys.len();
        let shape = encode_parts(parts.into_iter(), &mut self.keys);
        self.push_draw((start, self.keys.len(), shape), scope, limit, op, permit);
    }

    /// Begins a group with copies of draws of a group in another buffer: those at the indexes `picks`, or all if
    /// `picks` is `None`. If `is_peek` is set, the copies only peek.
    ///
    /// # Panics
    /// Panics if the group or one of the draws does not exist.
    pub fn begin_group_from(&mut self, other: &Draws, group: usize, picks: Option<&[usize]>, is_peek: bool) {
        self.begin_group();
        let group = other.group(group);
        let mut add = |draw: &Draw| {
            let start = self.keys.len();
            self.keys.extend_from_slice(&other.keys[draw.key.0..draw.key.1]);
            let result = DrawResult::from_state(DrawOutcome::WouldGrant, Micros::EPOCH, State::default());
            let op = if is_peek { draw.op.to_peek() } else { draw.op };
            self.draws.push(Draw { key: (start, self.keys.len(), draw.key.2), op, result, ..draw.clone() });
        };
        match picks {
            None => group.iter().for_each(add),
            Some(picks) => picks.iter().for_each(|index| add(&group[*index])),
        }
    }

    /// Sets the options of the draw added last.
    #[inline]
    pub fn set_options(&mut self, options: DrawOptions) {
        if let Some(draw) = self.draws.last_mut() {
            draw.options = options;
        }
    }

    /// Returns the number of groups.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Returns whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns the draws of one group.
    ///
    /// # Panics
    /// Panics if the group does not exist.
    pub fn group(&self, index: usize) -> &[Draw] {
        &self.draws[self.group_range(index)]
    }

    fn group_range(&self, index: usize) -> Range<usize> {
        self.groups[index]..self.groups.get(index + 1).copied().unwrap_or(self.draws.len())
    }

    /// Returns the draws of all groups.
    pub fn all(&self) -> &[Draw] {
        &self.draws
    }

    /// Returns the key of a draw in this buffer.
    #[inline]
    pub fn key(&self, draw: &Draw) -> KeyRef<'_> {
        KeyRef::from_bytes(&self.keys[draw.key.0..draw.key.1], draw.key.2)
    }

    /// Returns the draws of one group for a store to decide.
    ///
    /// # Panics
    /// Panics if the group does not exist.
    pub fn group_mut(&mut self, index: usize) -> &mut [Draw] {
        let range = self.group_range(index);
        &mut self.draws[range]
    }

    /// Records that the store did not answer a group. For stores. Draws with
    /// [`FailureMode::Local`](crate::FailureMode::Local) may then be decided locally.
    ///
    /// # Panics
    /// Panics if the group does not exist.
    pub fn fail_group(&mut self, index: usize, failure: StoreFailure) {
        self.failures.push((self.group_range(index), failure));
    }

    /// Returns why the store did not decide the group, or `None` if it did.
    ///
    /// # Panics
    /// Panics if the group does not exist.
    pub fn group_failure(&self, index: usize) -> Option<StoreFailure> {
        self.failure_in(self.group_range(index))
    }

    /// Returns why the store did not decide one of these draws, or `None` if it decided all of them.
    #[inline]
    pub fn failure_in(&self, draws: Range<usize>) -> Option<StoreFailure> {
        let overlaps = |range: &Range<usize>| range.start < draws.end && draws.start < range.end;
        self.failures.iter().find(|(range, _)| overlaps(range)).map(|(_, failure)| *failure)
    }
}

//! Draws: work for a store, as plain data.
//!
//! A request makes a *group* of draws, decided all or nothing: a request that one limit refuses takes nothing from the
//! others. One [`Draws`] carries any number of groups, so that a store may decide many requests in one call. The
//! buffer is made to be kept and filled again: once warm, it allocates nothing.

use crate::draw_options::DrawOptions;
use crate::key::{KeyRef, KeyShape, Scope, encode_parts};
use crate::limit::Limit;
use crate::op::{Amount, Op, PermitId};
use crate::state::State;
use crate::status::{DrawOutcome, DrawResult, Forecast, LimitStatus};
use crate::time::Micros;
use std::ops::Range;

/// The most draws that one request may make.
pub const MAX_DRAWS: usize = 16;

/// One limit that one request must pass.
#[derive(Clone, Debug)]
pub struct Draw {
    key: (usize, usize, KeyShape),
    scope: Scope,
    limit: Limit,
    act: Op,
    permit: PermitId,
    terms: DrawOptions,
    outcome: DrawResult,
}

impl Draw {
    /// Which of the key's limits it is.
    #[inline]
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// The limit to draw from.
    #[inline]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// What to do.
    #[inline]
    pub fn act(&self) -> Op {
        self.act
    }

    /// Who holds the place, under a concurrency limit.
    #[inline]
    pub fn permit(&self) -> PermitId {
        self.permit
    }

    /// On what terms it is made.
    #[inline]
    pub fn terms(&self) -> DrawOptions {
        self.terms
    }

    /// Whether it refuses nobody: it takes its units with the others, but its own refusal stops none of them.
    #[inline]
    pub fn is_shadow(&self) -> bool {
        self.terms.is_shadow
    }

    /// Whether its limit refused.
    #[inline]
    pub fn is_refused(&self) -> bool {
        self.outcome.is_refused()
    }

    /// Whether its limit refused, and the request with it.
    #[inline]
    pub fn stops(&self) -> bool {
        !self.terms.is_shadow && self.is_refused()
    }

    /// Whether a store has decided it.
    #[inline]
    pub fn is_decided(&self) -> bool {
        self.outcome.now() != Micros::EPOCH
    }

    /// What the limit said. Until a store has decided the draw, that it was spared.
    pub fn reading(&self) -> LimitStatus {
        LimitStatus { limit: self.limit, ask: self.act.ask(), outcome: self.outcome }
    }

    /// The store's time when it was decided.
    #[inline]
    pub fn now(&self) -> Micros {
        self.outcome.now()
    }

    /// What the limit says is to come.
    #[inline]
    pub fn outlook(&self) -> Forecast {
        self.outcome.outlook(&self.limit, self.act.ask())
    }

    /// What was decided.
    #[inline]
    pub fn outcome(&self) -> &DrawResult {
        &self.outcome
    }

    /// What the limit answered.
    #[inline]
    pub fn answer(&self) -> DrawOutcome {
        self.outcome.answer()
    }

    /// Whether a hash of its key and law family is also one of the other's.
    #[inline]
    pub fn shares_hash(&self, other: &Draw) -> bool {
        self.key == other.key && self.limit.family() == other.limit.family()
    }

    /// Has it held to one of `nodes` [shares](Limit::share) of its limit: for stores, before they decide it by themselves.
    pub fn divide(&mut self, nodes: u32) {
        self.limit = self.limit.share(nodes);
    }

    /// Changes how many units it takes or looks for: for stores that have some of them at hand, and ask another store for the
    /// rest only. Acts that ask for nothing stay as they are.
    pub fn set_units(&mut self, units: u32) {
        self.act = match self.act {
            Op::Take(_) => Op::Take(Amount::exactly(units)),
            Op::Look(_) => Op::Look(Amount::exactly(units)),
            act => act,
        };
    }

    /// Has it be as another store decided it: its limit too, which may be a share there.
    pub fn settle_as(&mut self, decided: &Draw) {
        (self.limit, self.outcome) = (decided.limit, decided.outcome);
    }

    /// Notes what `decide` makes of it: for stores.
    #[inline]
    pub fn settle(&mut self, decide: impl FnOnce(&Limit, Op, PermitId) -> DrawResult) {
        self.outcome = decide(&self.limit, self.act, self.permit);
    }
}

/// A reusable buffer of draws in groups.
#[derive(Clone, Debug, Default)]
pub struct Draws {
    keys: Vec<u8>,
    draws: Vec<Draw>,
    /// Where each group begins.
    groups: Vec<usize>,
    /// The draws of groups that the store gave no answer to, and why; nearly always there are none.
    failures: Vec<(Range<usize>, StoreFailure)>,
}

/// Why a store did not decide a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreFailure {
    /// It may or may not have been charged. It is not tried again: that could charge twice.
    #[error("the store gave no answer in time")]
    Timeout,
    /// It was not charged, unless the connection broke with the answer on its way.
    #[error("the store can't be reached")]
    Unreachable,
    /// It was not charged: too much is waiting for the store already.
    #[error("too much is waiting for the store")]
    Busy,
    /// The store answered with an error, and is out of memory, say.
    #[error("the store answered with an error")]
    Refused,
    /// It was not charged: the store is this process, and has no room left to count it, not even roughly.
    #[error("there is no room left to count it")]
    Full,
}

impl Draws {
    /// An empty buffer. It allocates when it is first filled.
    pub const fn new() -> Draws {
        Draws { keys: Vec::new(), draws: Vec::new(), groups: Vec::new(), failures: Vec::new() }
    }

    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.draws.clear();
        self.groups.clear();
        self.failures.clear();
    }

    /// Takes draws off it again, from the one at `len` on, which was pushed with a key of its own.
    pub fn cut(&mut self, len: usize) {
        if let Some(first) = self.draws.get(len) {
            self.keys.truncate(first.key.0);
            self.draws.truncate(len);
            let groups = self.groups.partition_point(|start| *start < len);
            self.groups.truncate(groups);
        }
    }

    /// Whether the group begun last can have no more draws.
    #[inline]
    pub fn is_group_full(&self) -> bool {
        self.groups.last().is_some_and(|start| self.draws.len() - start == MAX_DRAWS)
    }

    /// Begins the next request's group.
    pub fn begin(&mut self) {
        self.groups.push(self.draws.len());
    }

    /// Adds a draw to the group begun last, or to a first one.
    ///
    /// # Panics
    /// If the group has [`MAX_DRAWS`] already: whoever compiles limits into draws bounds them first.
    pub fn push(&mut self, key: KeyRef<'_>, scope: Scope, limit: Limit, act: Op, permit: PermitId) {
        let start = self.keys.len();
        self.keys.extend_from_slice(key.bytes());
        self.add((start, self.keys.len(), key.shape()), scope, limit, act, permit);
    }

    /// Adds a draw under the same key as the last one, which is neither copied nor hashed again.
    ///
    /// # Panics
    /// If there is no last draw, or if the group has [`MAX_DRAWS`] already.
    pub fn push_again(&mut self, scope: Scope, limit: Limit, act: Op, permit: PermitId) {
        let key = self.draws.last().expect("a draw was pushed before").key;
        self.add(key, scope, limit, act, permit);
    }

    fn add(&mut self, key: (usize, usize, KeyShape), scope: Scope, limit: Limit, act: Op, permit: PermitId) {
        if self.groups.is_empty() {
            self.begin();
        }
        let begun = self.groups.last().copied().unwrap_or(0);
        assert!(self.draws.len() - begun < MAX_DRAWS, "a request may make at most {MAX_DRAWS} draws");
        let outcome = DrawResult::of_state(DrawOutcome::Spared, Micros::EPOCH, State::default());
        self.draws.push(Draw { key, scope, limit, act, permit, terms: DrawOptions::default(), outcome });
    }

    /// Adds a draw under a key of these parts, which need not be a [`Key`](crate::Key) before: one part is text as it
    /// stands, several are told apart by their lengths. Of a part, the first 65 535 bytes count.
    ///
    /// # Panics
    /// If the group has [`MAX_DRAWS`] already, or if there is no part.
    pub fn push_parts<'a>(
        &mut self,
        parts: impl IntoIterator<Item = &'a str>,
        scope: Scope,
        limit: Limit,
        act: Op,
        permit: PermitId,
    ) {
        let start = self.keys.len();
        let shape = encode_parts(parts.into_iter(), &mut self.keys);
        self.add((start, self.keys.len(), shape), scope, limit, act, permit);
    }

    /// Begins a group with some of the draws of a group in another buffer: all, where nothing is picked. If it is a look,
    /// they take nothing.
    ///
    /// # Panics
    /// If there is no such group, or no such draw in it.
    pub fn begin_with(&mut self, other: &Draws, group: usize, picks: Option<&[usize]>, is_look: bool) {
        self.begin();
        let group = other.group(group);
        let mut add = |draw: &Draw| {
            let start = self.keys.len();
            self.keys.extend_from_slice(&other.keys[draw.key.0..draw.key.1]);
            let outcome = DrawResult::of_state(DrawOutcome::Spared, Micros::EPOCH, State::default());
            let act = if is_look { draw.act.look() } else { draw.act };
            self.draws.push(Draw { key: (start, self.keys.len(), draw.key.2), act, outcome, ..draw.clone() });
        };
        match picks {
            None => group.iter().for_each(add),
            Some(picks) => picks.iter().for_each(|index| add(&group[*index])),
        }
    }

    /// Sets the terms of the draw added last.
    #[inline]
    pub fn set_terms(&mut self, terms: DrawOptions) {
        if let Some(draw) = self.draws.last_mut() {
            draw.terms = terms;
        }
    }

    /// How many groups there are.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The draws of one group.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn group(&self, index: usize) -> &[Draw] {
        &self.draws[self.range(index)]
    }

    fn range(&self, index: usize) -> Range<usize> {
        self.groups[index]..self.groups.get(index + 1).copied().unwrap_or(self.draws.len())
    }

    /// All draws, whatever their group.
    pub fn all(&self) -> &[Draw] {
        &self.draws
    }

    /// The key of a draw in this buffer.
    #[inline]
    pub fn key(&self, draw: &Draw) -> KeyRef<'_> {
        KeyRef::of(&self.keys[draw.key.0..draw.key.1], draw.key.2)
    }

    /// The draws of one group, to be decided: for stores.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn group_mut(&mut self, index: usize) -> &mut [Draw] {
        let range = self.range(index);
        &mut self.draws[range]
    }

    /// Notes that a group got no answer: for stores. Draws whose terms say so may then be decided locally.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn fail(&mut self, index: usize, failure: StoreFailure) {
        self.failures.push((self.range(index), failure));
    }

    /// Why a group was not decided by the store; nothing if it was.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn group_failure(&self, index: usize) -> Option<StoreFailure> {
        self.failure(self.range(index))
    }

    /// Why one of these draws was not decided by the store; nothing if all were.
    #[inline]
    pub fn failure(&self, draws: Range<usize>) -> Option<StoreFailure> {
        let is_among = |range: &Range<usize>| range.start < draws.end && draws.start < range.end;
        self.failures.iter().find(|(range, _)| is_among(range)).map(|(_, failure)| *failure)
    }
}

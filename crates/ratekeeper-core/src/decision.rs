//! What the client hears.

use crate::draw::Draw;
use crate::limit::Limit;
use crate::op::Amount;
use crate::status::{DrawResult, Forecast, LimitStatus, Retry};
use crate::time::{Micros, Span};
use std::time::Duration;

/// What the client hears: allowed or not, how much is left, when to come back.
///
/// Where several limits had a say, the one that binds speaks: of those that refused, the one to wait for longest; if
/// none did, the one with the least left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    allowed: bool,
    delay: Span,
    /// Which limit binds, and what it said.
    index: usize,
    reading: Option<LimitStatus>,
}

impl Decision {
    /// Allowed, for want of a limit.
    pub const UNLIMITED: Decision = Decision { allowed: true, delay: Span::ZERO, index: 0, reading: None };

    /// Refused, whatever is left: nothing to wait for.
    pub const REFUSED: Decision = Decision { allowed: false, delay: Span::ZERO, index: 0, reading: None };

    /// What the only limit of a request said.
    #[inline(always)]
    pub fn of_one(limit: &Limit, ask: Amount, outcome: DrawResult) -> Decision {
        let reading = Some(LimitStatus { limit: *limit, ask, outcome });
        Decision { allowed: !outcome.is_refused(), delay: Span::ZERO, index: 0, reading }
    }

    /// What the limits of a request said together. Shadows have no say.
    pub fn of(group: &[Draw]) -> Decision {
        let (allowed, binding) = Decision::weigh(group);
        let Some(index) = binding else { return Decision::UNLIMITED };
        let delays = group.iter().filter(|draw| !draw.is_shadow()).map(|draw| draw.outlook().delay);
        // What binds tells its own delay.
        let delay = if group.len() > 1 { delays.max().unwrap_or(Span::ZERO) } else { Span::ZERO };
        Decision { allowed, delay, index, reading: Some(group[index].reading()) }
    }

    /// Whether a request may go on, and which of its draws binds; nothing if none has a say.
    #[inline]
    pub fn weigh(group: &[Draw]) -> (bool, Option<usize>) {
        match group {
            [draw] if !draw.is_shadow() => (!draw.stops(), Some(0)),
            group => Decision::weigh_several(group),
        }
    }

    /// Which draw binds of those that were decided, where others were not: the store gave no answer to them.
    pub fn weigh_decided(group: &[Draw]) -> Option<usize> {
        Decision::binding(group, Draw::is_decided)
    }

    fn weigh_several(group: &[Draw]) -> (bool, Option<usize>) {
        (!group.iter().any(Draw::stops), Decision::binding(group, |_| true))
    }

    fn binding(group: &[Draw], has_a_say: impl Fn(&Draw) -> bool) -> Option<usize> {
        let allowed = !group.iter().any(Draw::stops);
        let mut binding: Option<(usize, Forecast)> = None;
        for (index, draw) in group.iter().enumerate().filter(|(_, draw)| !draw.is_shadow() && has_a_say(draw))
        {
            let outlook = draw.outlook();
            // The first of equals binds: a limit written first is the one that is named.
            let binds = binding.is_none_or(|(_, other)| match allowed {
                true => outlook.remaining < other.remaining,
                false => outlook.retry > other.retry,
            });
            if binds {
                binding = Some((index, outlook));
            }
        }
        binding.map(|(index, _)| index)
    }

    /// Whether the request may go on, perhaps after a [`delay`](Decision::delay).
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// The limit that binds; nothing if none applied.
    pub fn limit(&self) -> Option<&Limit> {
        self.reading().map(LimitStatus::limit)
    }

    /// Which of the request's limits binds, counted from 0.
    pub fn index(&self) -> Option<usize> {
        self.reading().map(|_| self.index)
    }

    /// What the binding limit said.
    pub fn reading(&self) -> Option<&LimitStatus> {
        self.reading.as_ref()
    }

    /// How many units the binding limit has left.
    pub fn remaining(&self) -> u32 {
        let without_limit = if self.allowed { u32::MAX } else { 0 };
        self.reading().map_or(without_limit, LimitStatus::remaining)
    }

    /// How long to wait before going on: a queue's turn.
    pub fn delay(&self) -> Duration {
        let own = self.reading().map_or(Span::ZERO, LimitStatus::delay);
        own.max(self.delay).into()
    }

    /// When to come back, if it was refused.
    pub fn retry(&self) -> Option<Retry> {
        self.reading().and_then(LimitStatus::retry)
    }

    /// How long to wait before coming back; nothing if it was allowed, or if it can never be.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.retry() {
            Some(Retry::After(span)) => Some(span.into()),
            Some(Retry::Never) | None => None,
        }
    }

    /// How long until the binding limit has everything back, if nobody draws.
    pub fn reset_after(&self) -> Duration {
        self.reading().map_or(Duration::ZERO, |reading| reading.reset().into())
    }

    /// The instant at which the binding limit has everything back, by the store's clock.
    pub fn reset_at(&self) -> Option<Micros> {
        self.reading().map(|reading| reading.now().plus(reading.reset()))
    }
}

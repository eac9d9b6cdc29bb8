//! The decision on one request, as the client receives it.

use crate::draw::Draw;
use crate::limit::Limit;
use crate::op::Amount;
use crate::status::{DrawResult, Forecast, LimitStatus, Retry};
use crate::time::{Micros, Span};
use std::time::Duration;

/// The decision on one request: whether it is allowed, how many units are left, and when to retry.
///
/// If several limits apply, the decision describes the binding one: among limits that deny, the one with the
/// longest wait; if all allow, the one with the fewest units left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    allowed: bool,
    delay: Span,
    /// The position of the binding limit among the draws of the request.
    index: usize,
    status: Option<LimitStatus>,
}

/// The binding draw of a request, and the forecast of its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindingDraw {
    /// The position of the draw in its group.
    pub index: usize,
    /// The forecast. Its delay is the longest of all limits of the request.
    pub forecast: Forecast,
}

impl BindingDraw {
    /// Returns the binding draw of a group, or `None` if all its draws are shadows. Computes the forecast of each limit
    /// once.
    #[inline]
    pub fn among(group: &[Draw]) -> Option<BindingDraw> {
        match group {
            [draw] if !draw.is_shadow() => Some(BindingDraw { index: 0, forecast: draw.forecast() }),
            group => BindingDraw::find(group, |_| true),
        }
    }

    /// Returns the binding draw among those that were decided, for a group that the store answered only in part.
    pub fn among_decided(group: &[Draw]) -> Option<BindingDraw> {
        BindingDraw::find(group, Draw::is_decided)
    }

    fn find(group: &[Draw], is_candidate: impl Fn(&Draw) -> bool) -> Option<BindingDraw> {
        let is_allowed = !group.iter().any(Draw::denies_request);
        let mut binding: Option<BindingDraw> = None;
        let mut delay = Span::ZERO;
        for (index, draw) in
            group.iter().enumerate().filter(|(_, draw)| !draw.is_shadow() && is_candidate(draw))
        {
            let forecast = draw.forecast();
            delay = delay.max(forecast.delay);
            // On a tie the first one binds, so that the limit written first is the one reported.
            let binds = binding.is_none_or(|BindingDraw { forecast: other, .. }| {
                if is_allowed { forecast.remaining < other.remaining } else { forecast.retry > other.retry }
            });
            if binds {
                binding = Some(BindingDraw { index, forecast });
            }
        }
        binding.map(|BindingDraw { index, forecast }| BindingDraw {
            index,
            forecast: Forecast { delay, ..forecast },
        })
    }
}

impl Decision {
    /// The request is allowed because no limit applies to it.
    pub const UNLIMITED: Decision = Decision { allowed: true, delay: Span::ZERO, index: 0, status: None };

    /// The request is denied regardless of any limit, such as by a deny list. There is no time to retry at.
    pub const DENIED: Decision = Decision { allowed: false, delay: Span::ZERO, index: 0, status: None };

    /// Returns the decision on a request with a single limit.
    #[inline(always)]
    pub fn from_single(limit: &Limit, amount: Amount, result: DrawResult) -> Decision {
        let status = Some(LimitStatus { limit: *limit, amount, result });
        Decision { allowed: !result.is_denied(), delay: Span::ZERO, index: 0, status }
    }

    /// Returns the decision on a request from all of its draws. Shadow draws have no influence.
    pub fn from_group(group: &[Draw]) -> Decision {
        match group {
            // A single limit computes its forecast only if it is asked for.
            [draw] if !draw.is_shadow() => Decision {
                allowed: !draw.denies_request(),
                delay: Span::ZERO,
                index: 0,
                status: Some(draw.status()),
            },
            group => BindingDraw::among(group).map_or(Decision::UNLIMITED, |binding| Decision {
                allowed: !group.iter().any(Draw::denies_request),
                delay: binding.forecast.delay,
                index: binding.index,
                status: Some(group[binding.index].status()),
            }),
        }
    }

    /// Returns whether the request is allowed, possibly after a [`delay`](Decision::delay).
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns the binding limit, or `None` if no limit applied.
    pub fn limit(&self) -> Option<&Limit> {
        self.status().map(LimitStatus::limit)
    }

    /// Returns the position of the binding limit among the limits of the request, from 0, or `None` if no limit
    /// applied.
    pub fn index(&self) -> Option<usize> {
        self.status().map(|_| self.index)
    }

    /// Returns the status of the binding limit, or `None` if no limit applied.
    pub fn status(&self) -> Option<&LimitStatus> {
        self.status.as_ref()
    }

    /// Returns how many units the binding limit has left. Without a limit this is [`u32::MAX`] if allowed, 0 if
    /// denied.
    pub fn remaining(&self) -> u32 {
        let without_limit = if self.allowed { u32::MAX } else { 0 };
        self.status().map_or(without_limit, LimitStatus::remaining)
    }

    /// Returns how long an allowed request must wait for its turn in a queue: the longest delay of all its limits.
    pub fn delay(&self) -> Duration {
        let own = self.status().map_or(Span::ZERO, LimitStatus::delay);
        own.max(self.delay).into()
    }

    /// Returns when a denied request may be retried, or `None` if no limit denied it.
    pub fn retry(&self) -> Option<Retry> {
        self.status().and_then(LimitStatus::retry)
    }

    /// Returns how long to wait before a retry, or `None` if the request was allowed or can never be allowed.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.retry() {
            Some(Retry::After(span)) => Some(span.into()),
            Some(Retry::Never) | None => None,
        }
    }

    /// Returns how long until the binding limit is at full capacity again, if no other request draws from it.
    pub fn reset_after(&self) -> Duration {
        self.status().map_or(Duration::ZERO, |status| status.reset().into())
    }

    /// Returns the time at which the binding limit is at full capacity again, by the clock of the store.
    pub fn reset_at(&self) -> Option<Micros> {
        self.status().map(|status| status.decided_at().plus(status.reset()))
    }
}

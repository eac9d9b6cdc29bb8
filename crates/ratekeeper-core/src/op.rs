//! The operations that a draw can perform on a limit.

use crate::time::Span;

/// The operation of a draw: take units, peek, refund units, or reset the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Take units if the limit allows it.
    Take(Amount),
    /// Report what [`Op::Take`] would report, without taking units.
    Peek(Amount),
    /// Return units that were taken and not used, at most as many as are in use. Under a concurrency limit this
    /// releases the permit of the draw, regardless of the number.
    Refund(u32),
    /// Delete the state of the key, as if it had never been drawn from.
    Reset,
}

impl Op {
    /// Returns the operation that peeks at the same amount. A refund or reset becomes a peek at zero units.
    pub const fn to_peek(self) -> Op {
        Op::Peek(self.amount())
    }

    /// Returns the amount requested; zero for a refund or reset.
    pub const fn amount(self) -> Amount {
        match self {
            Op::Take(amount) | Op::Peek(amount) => amount,
            Op::Refund(_) | Op::Reset => Amount::ZERO,
        }
    }
}

/// How many units a draw requests, and the longest queueing delay it accepts.
///
/// A check requests exactly its cost, a lease any number between two bounds, a peek zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    at_least: u32,
    at_most: u32,
    max_delay: Span,
}

impl Amount {
    /// Zero units: a draw that takes nothing.
    pub const ZERO: Amount = Amount::exactly(0);

    /// Requests exactly `units`, or nothing.
    #[inline]
    pub const fn exactly(units: u32) -> Amount {
        Amount { at_least: units, at_most: units, max_delay: Span::MAX }
    }

    /// Requests as many units as are available between the two bounds. If `at_most` is below `at_least`, both are
    /// `at_least`.
    pub const fn between(at_least: u32, at_most: u32) -> Amount {
        let at_most = if at_most < at_least { at_least } else { at_most };
        Amount { at_least, at_most, max_delay: Span::MAX }
    }

    /// Returns the same amount, denied if a queue would delay it by more than `max_delay`.
    pub const fn with_max_delay(self, max_delay: Span) -> Amount {
        Amount { max_delay, ..self }
    }

    /// Returns the fewest units to grant; if fewer are left, the draw is denied.
    #[inline]
    pub const fn at_least(&self) -> u32 {
        self.at_least
    }

    /// Returns the most units to grant.
    #[inline]
    pub const fn at_most(&self) -> u32 {
        self.at_most
    }

    /// Returns the longest queueing delay to accept. The default is [`Span::MAX`].
    #[inline]
    pub const fn max_delay(&self) -> Span {
        self.max_delay
    }
}

/// Identifies one holder of a concurrency limit, so that a release never frees the slots of another holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PermitId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_keeps_its_bounds_and_delay() {
        let bounds = |amount: Amount| (amount.at_least(), amount.at_most());
        assert_eq!(bounds(Amount::exactly(3)), (3, 3));
        assert_eq!(bounds(Amount::between(2, 5)), (2, 5));
        assert_eq!(bounds(Amount::between(5, 2)), (5, 5));
        assert_eq!(bounds(Amount::between(4, 4)), (4, 4));
        assert_eq!(Amount::exactly(3).max_delay(), Span::MAX);
        assert_eq!(Amount::exactly(3).with_max_delay(Span::SECOND).max_delay(), Span::SECOND);
        assert_eq!(bounds(Amount::between(2, 5).with_max_delay(Span::SECOND)), (2, 5));
    }

    #[test]
    fn a_peek_requests_the_same_amount_and_takes_nothing() {
        assert_eq!(Op::Take(Amount::exactly(3)).to_peek(), Op::Peek(Amount::exactly(3)));
        assert_eq!(Op::Refund(3).to_peek(), Op::Peek(Amount::ZERO));
        assert_eq!(Op::Reset.amount(), Amount::ZERO);
    }
}

//! What a draw wants of a limit.

use crate::time::Span;

/// What to do under a key: take units, only look, give some back, or start afresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Take units if the limit allows.
    Take(Amount),
    /// Say what taking would have said, and take nothing.
    Look(Amount),
    /// Give back so many units that were taken and not used; never more than were out. Under a concurrency limit
    /// this releases the draw's permit, whatever its size.
    Give(u32),
    /// Forget everything under the key, as if it had never been seen.
    Clear,
}

impl Op {
    /// The same, without taking: everything else would change what it looks at, so it looks for nothing.
    pub const fn look(self) -> Op {
        Op::Look(self.ask())
    }

    /// What it asks for.
    pub const fn ask(self) -> Amount {
        match self {
            Op::Take(ask) | Op::Look(ask) => ask,
            Op::Give(_) | Op::Clear => Amount::PEEK,
        }
    }
}

/// Between how many and how many units, and how long one is ready to wait in a queue.
///
/// A check asks for exactly its cost, a lease for anything between two bounds, a peek for nothing at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    at_least: u32,
    at_most: u32,
    patience: Span,
}

impl Amount {
    /// Nothing: looks without taking.
    pub const PEEK: Amount = Amount::exactly(0);

    /// Just so many, or none.
    #[inline]
    pub const fn exactly(units: u32) -> Amount {
        Amount { at_least: units, at_most: units, patience: Span::MAX }
    }

    /// As many as there are between the two. If they are the wrong way round, both are the larger.
    pub const fn between(at_least: u32, at_most: u32) -> Amount {
        let at_most = if at_most < at_least { at_least } else { at_most };
        Amount { at_least, at_most, patience: Span::MAX }
    }

    /// The same, refused if a queue would delay it by more than `patience`.
    pub const fn within(self, patience: Span) -> Amount {
        Amount { patience, ..self }
    }

    /// The fewest units worth having.
    #[inline]
    pub const fn at_least(&self) -> u32 {
        self.at_least
    }

    /// The most units of use.
    #[inline]
    pub const fn at_most(&self) -> u32 {
        self.at_most
    }

    /// The longest delay worth having.
    #[inline]
    pub const fn patience(&self) -> Span {
        self.patience
    }
}

/// Names one holder of a concurrency limit, so that a release can't free somebody else's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PermitId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ask_keeps_what_it_was_made_of() {
        let bounds = |ask: Amount| (ask.at_least(), ask.at_most());
        assert_eq!(bounds(Amount::exactly(3)), (3, 3));
        assert_eq!(bounds(Amount::between(2, 5)), (2, 5));
        assert_eq!(bounds(Amount::between(5, 2)), (5, 5));
        assert_eq!(bounds(Amount::between(4, 4)), (4, 4));
        assert_eq!(Amount::exactly(3).patience(), Span::MAX);
        assert_eq!(Amount::exactly(3).within(Span::SECOND).patience(), Span::SECOND);
        assert_eq!(bounds(Amount::between(2, 5).within(Span::SECOND)), (2, 5));
    }

    #[test]
    fn looking_asks_for_the_same_and_takes_nothing() {
        assert_eq!(Op::Take(Amount::exactly(3)).look(), Op::Look(Amount::exactly(3)));
        assert_eq!(Op::Give(3).look(), Op::Look(Amount::PEEK));
        assert_eq!(Op::Clear.ask(), Amount::PEEK);
    }
}

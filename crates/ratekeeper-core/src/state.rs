//! The fixed-size state that a limit keeps for a key between two draws.

use crate::time::MAX_EXACT;

/// The state that a limit keeps for a key: two numbers below 2^53, whose meaning depends on the algorithm.
///
/// An expired state is equivalent to no state, so a store may drop it. See
/// [`Limit::is_expired`](crate::Limit::is_expired).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State(u64, u64);

impl State {
    /// Creates a state from two numbers below 2^53.
    #[inline]
    pub fn new(first: u64, second: u64) -> State {
        debug_assert!(
            first <= MAX_EXACT && second <= MAX_EXACT,
            "an algorithm stored a number that a double can't hold"
        );
        State(first & MAX_EXACT, second & MAX_EXACT)
    }

    /// Returns the two numbers.
    #[inline]
    pub fn numbers(self) -> (u64, u64) {
        (self.0, self.1)
    }
}

//! What a limit remembers of a key between two draws.

use crate::time::EXACT;

/// What a limit remembers of a key: two numbers below 2^53, whose meaning is the law's alone.
///
/// A state that has drained says the same as no state, so whoever keeps it may drop it then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State(u64, u64);

impl State {
    /// A state of two numbers below 2^53.
    #[inline]
    pub fn new(first: u64, second: u64) -> State {
        debug_assert!(first <= EXACT && second <= EXACT, "a law stored a number that a double can't hold");
        State(first & EXACT, second & EXACT)
    }

    /// Its two numbers.
    #[inline]
    pub fn numbers(self) -> (u64, u64) {
        (self.0, self.1)
    }
}

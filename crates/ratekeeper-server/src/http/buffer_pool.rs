//! Large buffers that every thread keeps for whoever needs one next.
//!
//! A batch comes and goes in buffers of a hundred kilobytes and more. Connections don't keep such, for they may be idle
//! for long, and to have the system map and clear one for every batch cost a sixth of the batch.

use std::cell::RefCell;

/// The most buffers that a thread keeps: some for what comes and for what goes.
const MAX_KEPT: usize = 4;
/// The largest that is worth keeping, and the least.
const MAX_KEPT_BYTES: usize = 1 << 20;
const MIN_KEPT_BYTES: usize = 64 * 1024;

thread_local! {
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer that somebody gave back, with room for so many bytes at least. What it holds has no meaning.
pub(super) fn take(bytes: usize) -> Option<Vec<u8>> {
    KEPT.with_borrow_mut(|kept| {
        let index = kept.iter().position(|buffer| buffer.capacity() >= bytes)?;
        Some(kept.swap_remove(index))
    })
}

/// Gives a buffer back.
pub(super) fn give(buffer: Vec<u8>) {
    if !(MIN_KEPT_BYTES..=MAX_KEPT_BYTES).contains(&buffer.capacity()) {
        return;
    }
    KEPT.with_borrow_mut(|kept| {
        if kept.len() < MAX_KEPT {
            kept.push(buffer);
        } else if let Some(least) = kept.iter_mut().min_by_key(|kept| kept.capacity())
            && least.capacity() < buffer.capacity()
        {
            *least = buffer;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_had_again() {
        let buffer = vec![1; 100_000];
        let address = buffer.as_ptr();
        give(buffer);
        assert_eq!(take(200_000), None, "it is too small");
        assert_eq!(take(90_000).map(|buffer| buffer.as_ptr()), Some(address));
        assert_eq!(take(0), None);
    }

    #[test]
    fn a_few_are_kept_and_none_that_is_too_small_or_too_large() {
        give(vec![0; MIN_KEPT_BYTES - 1]);
        give(vec![0; MAX_KEPT_BYTES + 1]);
        assert_eq!(take(0), None);
        for bytes in [70_000, 80_000, 90_000, 100_000, 110_000, 60_000] {
            give(vec![0; bytes]);
        }
        let mut kept: Vec<_> = std::iter::from_fn(|| take(0)).map(|buffer| buffer.len()).collect();
        kept.sort_unstable();
        assert_eq!(kept, [80_000, 90_000, 100_000, 110_000], "the largest ones");
    }
}

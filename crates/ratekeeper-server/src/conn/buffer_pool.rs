//! A thread-local pool of large buffers.
//!
//! A batch is read and answered in buffers of a hundred kilobytes and more. Connections do not keep such buffers, since
//! they may be idle for long, and having the system map and clear new ones cost a sixth of the time of a batch.

use std::cell::RefCell;

/// The most buffers in a thread's pool: a few for requests and a few for responses.
const MAX_POOLED: usize = 4;
/// The sizes of buffers that are worth keeping.
const MAX_POOLED_BYTES: usize = 1 << 20;
const MIN_POOLED_BYTES: usize = 64 * 1024;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Takes a buffer with a capacity of at least `bytes` from the pool; its content is arbitrary. Returns `None` if the
/// pool has none.
pub(crate) fn take(bytes: usize) -> Option<Vec<u8>> {
    POOL.with_borrow_mut(|kept| {
        let index = kept.iter().position(|buffer| buffer.capacity() >= bytes)?;
        Some(kept.swap_remove(index))
    })
}

/// Puts a buffer into the pool. If the pool is full, it replaces the smallest one, if that is smaller.
pub(crate) fn put(buffer: Vec<u8>) {
    if !(MIN_POOLED_BYTES..=MAX_POOLED_BYTES).contains(&buffer.capacity()) {
        return;
    }
    POOL.with_borrow_mut(|kept| {
        if kept.len() < MAX_POOLED {
            kept.push(buffer);
        } else if let Some(smallest) = kept.iter_mut().min_by_key(|kept| kept.capacity())
            && smallest.capacity() < buffer.capacity()
        {
            *smallest = buffer;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pooled_buffer_is_reused() {
        let buffer = vec![1; 100_000];
        let address = buffer.as_ptr();
        put(buffer);
        assert_eq!(take(200_000), None, "it is too small");
        assert_eq!(take(90_000).map(|buffer| buffer.as_ptr()), Some(address));
        assert_eq!(take(0), None);
    }

    #[test]
    fn the_pool_keeps_few_buffers_and_none_too_small_or_too_large() {
        put(vec![0; MIN_POOLED_BYTES - 1]);
        put(vec![0; MAX_POOLED_BYTES + 1]);
        assert_eq!(take(0), None);
        for bytes in [70_000, 80_000, 90_000, 100_000, 110_000, 60_000] {
            put(vec![0; bytes]);
        }
        let mut kept: Vec<_> = std::iter::from_fn(|| take(0)).map(|buffer| buffer.len()).collect();
        kept.sort_unstable();
        assert_eq!(kept, [80_000, 90_000, 100_000, 110_000], "the largest ones");
    }
}

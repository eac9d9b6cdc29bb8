//! Locks. Under `--cfg shuttle`, ones whose schedule the test controls.
//!
//! They spin because they are held for some ten nanoseconds at a time. Unlocking is a plain store, whereas a lock that
//! parks its waiters must check atomically whether there are any, which is measurable when threads contend for one key.
//! A waiter yields to a holder that was descheduled.

#[cfg(not(shuttle))]
pub(crate) type Mutex<T> = spin::mutex::SpinMutex<T, SpinWait>;
#[cfg(not(shuttle))]
pub(crate) type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T, SpinWait>;
/// The version of a shard.
#[cfg(not(shuttle))]
pub(super) type VersionWord = std::sync::atomic::AtomicU64;

/// Waits for a lock: spins a few turns, then yields the thread.
#[cfg(not(shuttle))]
#[derive(Debug)]
pub(crate) struct SpinWait;

#[cfg(not(shuttle))]
impl spin::RelaxStrategy for SpinWait {
    #[inline]
    fn relax() {
        relax();
    }
}

/// Waits a turn for a lock: spins, then yields the thread.
#[cfg(not(shuttle))]
#[cold]
pub(super) fn relax() {
    for _ in 0..16 {
        std::hint::spin_loop();
    }
    std::thread::yield_now();
}

/// A point between two accesses to an entry, at which a test may run another thread.
#[cfg(not(shuttle))]
#[inline(always)]
pub(super) fn interleave() {}

#[cfg(shuttle)]
pub(crate) use shuttle::sync::MutexGuard;
#[cfg(shuttle)]
pub(super) use shuttle::sync::atomic::AtomicU64 as VersionWord;
#[cfg(shuttle)]
pub(super) use shuttle::thread::{yield_now as relax, yield_now as interleave};

/// `shuttle`'s mutex with `parking_lot`'s API: no poisoning, since a failed schedule ends the test anyway.
#[cfg(shuttle)]
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

#[cfg(shuttle)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }
}

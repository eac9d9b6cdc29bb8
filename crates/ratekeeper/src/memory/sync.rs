//! The shard lock. Under `--cfg shuttle`, a mutex whose schedule the test controls.
//!
//! It is a spin lock because it is held for some ten nanoseconds at a time. Unlocking is a plain store, whereas a lock
//! that parks its waiters must check atomically whether there are any, which is measurable when threads contend for one
//! key. A waiter yields to a holder that was descheduled.

#[cfg(not(shuttle))]
pub(crate) type Mutex<T> = spin::mutex::SpinMutex<T, SpinWait>;
#[cfg(not(shuttle))]
pub(crate) type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T, SpinWait>;

/// Waits for a lock: spins a few turns, then yields the thread.
#[cfg(not(shuttle))]
#[derive(Debug)]
pub(crate) struct SpinWait;

#[cfg(not(shuttle))]
impl spin::RelaxStrategy for SpinWait {
    #[inline]
    fn relax() {
        for _ in 0..16 {
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}

#[cfg(shuttle)]
pub(crate) use shuttle::sync::MutexGuard;

/// `shuttle`'s mutex with `parking_lot`'s API: no poisoning, since a failed schedule ends the test anyway.
#[cfg(shuttle)]
#[derive(Debug)]
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

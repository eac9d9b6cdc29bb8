//! The lock that guards a shard; under `--cfg shuttle`, one whose schedule a test chooses.
//!
//! It is held for some ten nanoseconds at a time, so a waiter spins and lets the holder finish; releasing it is a plain
//! store, where a lock that can park its waiters has to ask, atomically, whether there are any, which threads that fight
//! for one key feel. A holder that was descheduled is waited for by yielding.

#[cfg(not(shuttle))]
pub(crate) type Mutex<T> = spin::mutex::SpinMutex<T, SpinWait>;
#[cfg(not(shuttle))]
pub(crate) type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T, SpinWait>;

/// How to wait for a shard: a few turns on the spot, then let somebody else run.
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

/// `shuttle`'s mutex with `parking_lot`'s face: no poison, since a failed schedule ends the test anyway.
#[cfg(shuttle)]
#[derive(Debug)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

#[cfg(shuttle)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread panicked while it held the lock")
    }
}

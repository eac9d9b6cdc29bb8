//! The limiters that Ratekeeper is compared with, each configured as its manual recommends.

use crate::subject::{Allowance, Subject};
use anyhow::{Context, Result};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use throttlecrab::{AdaptiveStore, PeriodicStore, Store};

/// governor's keyed limiter, by default on a `DashMap` with a quanta clock. A key must be a `String`.
pub(crate) struct Governor(DefaultKeyedRateLimiter<String>);

impl Governor {
    pub(crate) fn new(allowance: Allowance) -> Result<Governor> {
        let interval = Duration::from_secs(allowance.per_secs.into()) / allowance.amount;
        let burst = NonZeroU32::new(allowance.burst).context("a burst is at least 1")?;
        let quota = Quota::with_period(interval).context("a period is longer than zero")?.allow_burst(burst);
        Ok(Governor(RateLimiter::dashmap(quota)))
    }
}

impl Subject for Governor {
    fn name(&self, _: usize) -> String {
        "governor".to_owned()
    }

    fn held(&self) -> Option<usize> {
        Some(self.0.len())
    }

    fn charge(&self, key: &String, cost: u32) -> bool {
        NonZeroU32::new(cost).is_some_and(|cost| matches!(self.0.check_key_n(key, cost), Ok(Ok(()))))
    }

    fn check_all(&self, keys: &[String], _: usize) -> usize {
        keys.iter().filter(|key| self.0.check_key(key).is_ok()).count()
    }
}

/// throttlecrab's library with one of its stores.
///
/// A check needs exclusive access to the limiter. Its manual shows a mutex for threads, and its server keeps the
/// limiter in one task. Here, several threads lock the mutex for each check, and a single thread locks it once per
/// chunk, which is as good as owning the limiter. The caller passes the time; its manual shows `SystemTime::now()`.
pub(crate) struct Throttlecrab<S: Store> {
    limiter: Mutex<throttlecrab::RateLimiter<S>>,
    allowance: Allowance,
    store: &'static str,
}

impl Throttlecrab<AdaptiveStore> {
    /// With the store of its quick start, sized for the expected keys; otherwise it scans all its keys at every check
    /// once its table is three quarters full.
    pub(crate) fn adaptive(allowance: Allowance, keys: u64) -> Throttlecrab<AdaptiveStore> {
        let store = AdaptiveStore::builder().capacity(keys as usize).build();
        Throttlecrab {
            limiter: Mutex::new(throttlecrab::RateLimiter::new(store)),
            allowance,
            store: "adaptive",
        }
    }
}

impl Throttlecrab<PeriodicStore> {
    /// With the store that its manual recommends for a steady load.
    pub(crate) fn periodic(allowance: Allowance, keys: u64) -> Throttlecrab<PeriodicStore> {
        let store = PeriodicStore::builder().capacity(keys as usize).build();
        Throttlecrab {
            limiter: Mutex::new(throttlecrab::RateLimiter::new(store)),
            allowance,
            store: "periodic",
        }
    }
}

impl<S: Store> Throttlecrab<S> {
    fn check(
        &self,
        limiter: &mut throttlecrab::RateLimiter<S>,
        key: &str,
        cost: u32,
        now: SystemTime,
    ) -> bool {
        let Allowance { amount, per_secs, burst } = self.allowance;
        let result = limiter.rate_limit(key, burst.into(), amount.into(), per_secs.into(), cost.into(), now);
        matches!(result, Ok((true, _)))
    }
}

impl<S: Store + Send> Subject for Throttlecrab<S> {
    fn name(&self, threads: usize) -> String {
        let mutex = if threads > 1 { " (mutex)" } else { "" };
        format!("throttlecrab {}{mutex}", self.store)
    }

    fn charge(&self, key: &String, cost: u32) -> bool {
        let now = SystemTime::now();
        self.check(&mut self.limiter.lock().unwrap_or_else(PoisonError::into_inner), key, cost, now)
    }

    fn check_all(&self, keys: &[String], threads: usize) -> usize {
        if threads > 1 {
            return keys.iter().filter(|key| self.charge(key, 1)).count();
        }
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        keys.iter().filter(|key| self.check(&mut limiter, key, 1, SystemTime::now())).count()
    }
}

//! Ratekeeper with several requests in one call, and with several limits in one request.

use crate::subject::{Allowance, Ratekeeper, Subject, roomy};
use anyhow::{Context, Result};
use ratekeeper::{
    Amount, DrawOutcome, Draws, KeyedRequest, Limit, Limiter, ManualClock, MemoryStore, Op, PermitId,
};
use ratekeeper::{Scope, Span, SystemClock};
use std::cell::RefCell;
use std::sync::Arc;

/// Requests per batch.
const BATCH: usize = 16;

thread_local! {
    /// Refilled for each batch, as the documentation recommends, so that nothing is allocated.
    static DRAWS: RefCell<Draws> = const { RefCell::new(Draws::new()) };
}

/// 16 requests per call, including the cost of filling the buffer.
pub(crate) struct Batch {
    single: Ratekeeper,
    limit: Limit,
}

impl Batch {
    pub(crate) fn new(allowance: Allowance, keys: u64) -> Result<Batch> {
        let single = Ratekeeper::new(allowance, roomy(keys))?;
        let limit = *single.limiter().limits().first().context("a limiter has a limit")?;
        Ok(Batch { single, limit })
    }

    fn check_batch(&self, keys: &[String], draws: &mut Draws) -> usize {
        draws.clear();
        for key in keys {
            draws.begin_group();
            draws.push(
                key.into(),
                Scope::default(),
                self.limit,
                Op::Take(Amount::exactly(1)),
                PermitId::default(),
            );
        }
        self.single.limiter().store().draw_now(draws);
        draws.all().iter().filter(|draw| draw.outcome() != DrawOutcome::Denied).count()
    }
}

impl Subject for Batch {
    fn name(&self, _: usize) -> String {
        format!("batch of {BATCH}")
    }

    fn charge(&self, key: &String, cost: u32) -> bool {
        self.single.charge(key, cost)
    }

    fn check_all(&self, keys: &[String], _: usize) -> usize {
        DRAWS.with_borrow_mut(|draws| keys.chunks(BATCH).map(|batch| self.check_batch(batch, draws)).sum())
    }
}

/// Three quotas, as for a second, an hour and a day; large enough that all three always grant.
fn three() -> [Allowance; 3] {
    [1, 2, 3].map(|times| Allowance { amount: times * Allowance::PLENTY.amount, ..Allowance::PLENTY })
}

/// One check of three limits.
pub(crate) struct ThreeLimits(Limiter);

impl ThreeLimits {
    pub(crate) fn new(keys: u64) -> Result<ThreeLimits> {
        // Every limit has its own state per key.
        let store = MemoryStore::with(SystemClock::new(), roomy(3 * keys))?;
        let quotas = three().map(|allowance| allowance.quota());
        Ok(ThreeLimits(Limiter::with_store(quotas.each_ref().map(String::as_str), store)?))
    }
}

/// Whether two limits of one key keep separate counts. If they did not, three limits would not be three.
pub(crate) fn have_separate_counts() -> Result<bool> {
    let clock = Arc::new(ManualClock::default());
    let store = MemoryStore::with(Arc::clone(&clock), roomy(1))?;
    let limiter = Limiter::with_store(["3/s", "5/h"], store)?;
    let admitted = || (0..9).filter(|_| limiter.check_now("key").is_allowed()).count();
    let before = admitted();
    clock.advance(Span::secs(2));
    Ok((before, admitted()) == (3, 2))
}

impl Subject for ThreeLimits {
    fn name(&self, _: usize) -> String {
        "three limits in one check".to_owned()
    }

    fn held(&self) -> Option<usize> {
        Some(self.0.store().stats().keys / 3)
    }

    fn charge(&self, key: &String, cost: u32) -> bool {
        self.0.check_now(KeyedRequest::from(key).cost(cost)).is_allowed()
    }

    fn check_all(&self, keys: &[String], _: usize) -> usize {
        keys.iter().filter(|key| self.0.check_now(*key).is_allowed()).count()
    }
}

/// Three checks in a row, each of one limit.
pub(crate) struct ThreeChecks([Ratekeeper; 3]);

impl ThreeChecks {
    pub(crate) fn new(keys: u64) -> Result<ThreeChecks> {
        let [first, second, third] = three().map(|allowance| Ratekeeper::new(allowance, roomy(keys)));
        Ok(ThreeChecks([first?, second?, third?]))
    }
}

impl Subject for ThreeChecks {
    fn name(&self, _: usize) -> String {
        "three checks of one limit".to_owned()
    }

    fn charge(&self, key: &String, cost: u32) -> bool {
        self.0.iter().all(|single| single.charge(key, cost))
    }

    fn check_all(&self, keys: &[String], _: usize) -> usize {
        keys.iter()
            .filter(|key| self.0.iter().all(|single| single.limiter().check_now(*key).is_allowed()))
            .count()
    }
}

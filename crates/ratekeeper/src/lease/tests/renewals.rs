//! When a node renews, backs off, and returns units.

use super::*;

impl LeaseFixture {
    fn unspent(&self) -> u32 {
        self.leases.describe(HASH, &self.limit, self.now).map_or(0, |lease| lease.unspent)
    }

    /// Spends one unit after the other until a renewal is created. `None` if a draw goes to the store or is
    /// denied.
    fn spend_until_renewal(&mut self, every: Span) -> Option<LeaseRenewal> {
        loop {
            self.advance(every);
            match self.spend(1) {
                SpendOutcome::Spent(SpentUnits { renewal: None, .. }) => {}
                SpendOutcome::Spent(SpentUnits { renewal, .. }) => return renewal,
                _ => return None,
            }
        }
    }
}

#[test]
fn a_lease_that_was_large_enough_is_checked_again() {
    let mut fixture = fixture("bucket 10000/s");
    keep_busy(&mut fixture);
    let renewal = fixture.spend_until_renewal(Span::millis(1)).expect("a renewal is created in time");
    fixture.complete_renewal(&renewal);
    // The key becomes quiet: when a renewal is due, it has more units than it needs. Then it is busy again.
    let unspent = fixture.unspent();
    assert!(unspent > 500);
    fixture.advance(Span::secs(30));
    let SpendOutcome::Spent(SpentUnits { renewal: None, .. }) = fixture.spend(unspent - 40) else {
        panic!("the key needs no more units")
    };
    assert!(
        fixture.spend_until_renewal(Span::millis(1)).is_some(),
        "a renewal is created before the lease is used up"
    );
}

#[test]
fn a_cancelled_renewal_is_created_again_in_time() {
    let mut fixture = fixture("bucket 10000/s");
    keep_busy(&mut fixture);
    let renewal = fixture.spend_until_renewal(Span::millis(1)).expect("a renewal is created in time");
    fixture.leases.cancel_renewal(&renewal);
    let unspent = fixture.unspent();
    assert!(unspent > 2);
    assert!(fixture.spend_until_renewal(Span::millis(1)).is_some(), "{unspent} units were unspent");
}

#[test]
fn idle_units_are_returned_under_the_keys_name() {
    let mut fixture = fixture("bucket 400/min");
    let units = fixture.acquire_lease();
    assert!(units * 64 > 400, "enough to be worth returning");
    let sweep = |fixture: &LeaseFixture| {
        let mut out = Vec::new();
        fixture.leases.sweep(fixture.leases.shards(), fixture.now, &mut out);
        out
    };
    assert!(sweep(&fixture).is_empty());
    fixture.advance(Span::secs(6));
    let renewals: Vec<DetachedRenewal> = sweep(&fixture);
    let [renewal] = &renewals[..] else { panic!("one key is idle: {renewals:?}") };
    assert_eq!((renewal.name.key.to_string().as_str(), renewal.name.scope), ("client", Scope(1)));
    assert_eq!((renewal.renewal.hash, renewal.limit), (HASH, fixture.limit));
    assert_eq!((renewal.renewal.report.kept, renewal.renewal.report.returned), (0, units));
    assert!(fixture.spend_leased(1).is_none());
    fixture.complete_renewal(&renewal.renewal);
    assert_eq!(fixture.lent_units(), 0);
    assert_eq!(fixture.leases.counts().returned, u64::from(units));
    fixture.advance(Span::secs(121));
    assert!(sweep(&fixture).is_empty());
    assert_eq!(fixture.leases.counts().keys, 0, "the idle key is removed");
}

#[test]
fn a_lease_in_use_is_renewed_before_it_ends() {
    let mut fixture = fixture("bucket 400/min");
    let units = fixture.acquire_lease();
    assert!(fixture.spend_leased(4).is_some());
    let mut out = Vec::new();
    for _ in 0..42 {
        assert!(out.is_empty() && fixture.spend_leased(0).is_some());
        fixture.advance(Span::secs(1));
        fixture.leases.sweep(fixture.leases.shards(), fixture.now, &mut out);
    }
    let [DetachedRenewal { renewal, .. }] = &out[..] else { panic!("the lease ends soon: {out:?}") };
    assert_eq!((renewal.report.spent, renewal.report.kept, renewal.report.returned), (4, units - 4, 0));
}

#[test]
fn an_exhausted_key_is_denied_without_asking_the_store_for_a_while() {
    let mut fixture = fixture("bucket 1000/s");
    for _ in 0..200 {
        if let SpendOutcome::Miss { renewal: Some(renewal), .. }
        | SpendOutcome::Spent(SpentUnits { renewal: Some(renewal), .. }) = fixture.spend(1)
        {
            fixture.complete_renewal(&renewal);
        }
        fixture.advance(Span::millis(1));
    }
    // Other nodes have taken everything.
    let at = fixture.now.plus(STORE_AHEAD);
    let all = fixture.limit.step_leased(fixture.stored, at, Amount::between(0, u32::MAX)).0;
    fixture.stored.state = Some(all.state);
    fixture.spend_all();
    let renewal = fixture.expect_renewal(1);
    let step = fixture.limit.step_leased(fixture.stored, at, Amount::exactly(1)).0;
    let result = DrawResult::from_state(step.outcome(), at, fixture.folded_state());
    assert!(result.is_denied());
    fixture.leases.record_decision(HASH, &fixture.limit, Amount::exactly(1), &result, fixture.now);
    assert_eq!(fixture.complete_renewal(&renewal).units, 0);
    let wait = |fixture: &LeaseFixture, units: u32| {
        let SpendOutcome::Denied(result) = fixture.spend(units) else { panic!("the store has nothing left") };
        let forecast = LimitStatus::new(&fixture.limit, Amount::exactly(units), result).forecast();
        assert!(forecast.remaining < units, "{forecast:?}");
        let Some(Retry::After(wait)) = forecast.retry else { panic!("{forecast:?}") };
        wait
    };
    // The node keeps to what it has told the first client.
    let first = wait(&fixture, 1);
    let end = fixture.now.plus(first);
    assert!(first >= Span::millis(10) && first <= Span::SECOND, "{first:?}");
    while fixture.now.plus(Span::millis(1)) < end {
        fixture.advance(Span::millis(1));
        assert!(fixture.now.plus(wait(&fixture, 5)) >= end);
    }
    fixture.now = end;
    let renewal = fixture.expect_renewal(5);
    assert!(renewal.request.short_horizon > 0);
    let (granted, refilled) = (fixture.complete_renewal(&renewal).units, first.get() / 1_000);
    assert!(u64::from(granted) > 0 && u64::from(granted) <= refilled / 2, "{granted} of {refilled}");
}

#[test]
fn a_used_up_window_is_not_requested_until_it_ends() {
    let mut fixture = fixture("window 1000/s");
    let end = fixture.now.plus(Span::SECOND);
    for _ in 0..100 {
        if let SpendOutcome::Miss { renewal: Some(renewal), .. }
        | SpendOutcome::Spent(SpentUnits { renewal: Some(renewal), .. }) = fixture.spend(2)
        {
            fixture.complete_renewal(&renewal);
        }
        fixture.advance(Span::millis(1));
    }
    // Other nodes have taken the rest, and this node learns that from its next renewal.
    let at = fixture.now.plus(STORE_AHEAD);
    fixture.stored.state =
        Some(fixture.limit.step(fixture.stored.state, at, Amount::between(0, u32::MAX)).state);
    let renewal = fixture.spend_until_renewal(Span::micros(100)).expect("a renewal is created in time");
    assert_eq!(fixture.complete_renewal(&renewal).units, 0);
    assert!(fixture.spend_until_renewal(Span::micros(100)).is_none(), "the store has nothing left");
    assert!(fixture.now < end && matches!(fixture.spend(1), SpendOutcome::Denied(_)));
    // Nothing is known about a new window: while units of it are requested, no draw is denied.
    fixture.now = end.plus(Span::millis(1));
    fixture.expect_renewal(1);
    assert_eq!(fixture.spend(1), SpendOutcome::MISS);
}

#[test]
fn a_small_limit_is_never_leased() {
    let mut fixture = fixture("bucket 10/min");
    for _ in 0..100 {
        assert_eq!(fixture.spend(1), SpendOutcome::MISS);
        fixture.advance(Span::millis(1));
    }
    fixture.limit =
        Limit::new(Algorithm::SlidingWindowLog(ratekeeper_core::LogSize::Standard), "10/s".parse().unwrap())
            .unwrap();
    assert_eq!(fixture.spend_key(KeyHash { fingerprint: 1, shard_bits: 1 }, "log", 1), SpendOutcome::MISS);
    assert_eq!(fixture.leases.counts().keys, 1, "an algorithm without leases needs no entry");
}

#[test]
fn a_new_key_is_not_leased_if_its_set_is_full() {
    let mut fixture = fixture("bucket 60000/min");
    fixture.leases = Leases::new(8, LeasePolicy::DEFAULT);
    let hash = |mark: u64| KeyHash { fingerprint: mark, shard_bits: 0 };
    for mark in 1..=8 {
        assert_eq!(fixture.spend_key(hash(mark), "k", 1), SpendOutcome::MISS);
    }
    for mark in 2..=9 {
        // The first key was drawn only once, and is evicted for the ninth.
        match fixture.spend_key(hash(mark), "k", 1) {
            SpendOutcome::Miss { renewal: Some(renewal), .. } => drop(fixture.complete_renewal(&renewal)),
            other => assert_eq!((other, mark), (SpendOutcome::MISS, 9)),
        }
    }
    let SpendOutcome::Miss { renewal: Some(renewal), .. } = fixture.spend_key(hash(9), "k", 1) else {
        panic!("the key has an entry")
    };
    fixture.complete_renewal(&renewal);
    assert_eq!(fixture.spend_key(hash(1), "k", 1), SpendOutcome::MISS);
    assert_eq!(fixture.spend_key(hash(1), "k", 1), SpendOutcome::MISS, "all slots hold leases");
    let counts = fixture.leases.counts();
    assert_eq!((counts.keys, counts.max_keys, counts.table_full), (8, 8, 2));
    fixture.advance(Span::secs(60));
    assert_eq!(fixture.spend_key(hash(1), "k", 1), SpendOutcome::MISS);
    assert!(
        matches!(fixture.spend_key(hash(1), "k", 1), SpendOutcome::Miss { renewal: Some(_), .. }),
        "the leases have expired"
    );
}

#[test]
fn a_very_long_key_is_leased_and_not_stored() {
    let mut fixture = fixture("bucket 400/min");
    let key = "k".repeat(MAX_KEY_BYTES);
    fixture.spend_key(HASH, &key, 1);
    let SpendOutcome::Miss { renewal: Some(renewal), .. } = fixture.spend_key(HASH, &key, 1) else {
        panic!("the key is leased")
    };
    assert!(fixture.complete_renewal(&renewal).units * 64 > 400);
    let mut out = Vec::new();
    for _ in 0..2 {
        fixture.leases.sweep(fixture.leases.shards(), fixture.now, &mut out);
        fixture.advance(Span::secs(6));
    }
    fixture.leases.drain(fixture.now, &mut out);
    assert!(out.is_empty());
    assert!(fixture.leases.counts().expired > 0);
}

#[test]
fn a_warm_key_is_spent_without_allocating() {
    let mut fixture = fixture("bucket 6000000/min");
    busy_lease(&mut fixture);
    let allocations = allocation_counter::measure(|| {
        for _ in 0..1_000 {
            if let SpendOutcome::Miss { renewal: Some(renewal), .. }
            | SpendOutcome::Spent(SpentUnits { renewal: Some(renewal), .. }) = fixture.spend(1)
            {
                let reply = fixture.store_reply(&renewal);
                fixture.leases.apply_reply(&renewal, reply, fixture.now);
            }
        }
    });
    assert_eq!(allocations.count_total, 0);
}

#[test]
fn one_key_does_not_fill_the_queue_to_the_store() {
    let mut fixture = fixture("bucket 1000000/s");
    let misses = |fixture: &LeaseFixture| {
        (0..5_000).filter(|_| matches!(fixture.spend(1), SpendOutcome::Miss { .. })).count()
    };
    assert_eq!(misses(&fixture), 1024, "within one period");
    fixture.advance(Span::millis(9));
    assert_eq!(misses(&fixture), 0);
    fixture.advance(Span::millis(1));
    assert_eq!(misses(&fixture), 1024, "and again in the next");
    fixture.leases.set_store_down(true);
    assert_eq!(misses(&fixture), 5_000, "a store that is down is not overloaded");
}

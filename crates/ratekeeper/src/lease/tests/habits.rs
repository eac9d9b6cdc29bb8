//! What a node does of its own accord: when it asks, when it does not, what it renews and what it gives back.

use super::*;

impl LeaseFixture {
    fn in_hand(&self) -> u32 {
        self.leases.describe(TAG, &self.limit, self.now).map_or(0, |lease| lease.in_hand)
    }

    /// Spends one unit after the other until more is asked for.
    fn spend_until_asked(&mut self, every: Span) -> Option<LeaseRenewal> {
        loop {
            self.pass(every);
            match self.spend(1) {
                SpendOutcome::Spent(SpentUnits { order: None, .. }) => {}
                SpendOutcome::Spent(SpentUnits { order, .. }) => return order,
                _ => return None,
            }
        }
    }
}

#[test]
fn a_hand_that_was_large_enough_is_looked_at_again() {
    let mut world = world("bucket 10000/s");
    keep_busy(&mut world);
    let order = world.spend_until_asked(Span::millis(1)).expect("it asks in time");
    world.settle(&order);
    // The key becomes quiet: when it is time to ask, more is in hand than it needs. Then it is busy again.
    let hand = world.in_hand();
    assert!(hand > 1_000);
    world.pass(Span::secs(30));
    let SpendOutcome::Spent(SpentUnits { order: None, .. }) = world.spend(hand - 40) else {
        panic!("it needs no more")
    };
    assert!(world.spend_until_asked(Span::millis(1)).is_some(), "it asks before nothing is in hand");
}

#[test]
fn what_could_not_be_asked_for_is_asked_for_again_in_time() {
    let mut world = world("bucket 10000/s");
    keep_busy(&mut world);
    let order = world.spend_until_asked(Span::millis(1)).expect("it asks in time");
    world.leases.settle_unsent(&order);
    let hand = world.in_hand();
    assert!(hand > 2);
    assert!(world.spend_until_asked(Span::millis(1)).is_some(), "{hand} were in hand");
}

#[test]
fn what_lies_idle_is_given_back_by_name() {
    let mut world = world("bucket 400/min");
    let units = world.lease();
    assert!(units * 64 > 400, "enough to be worth it");
    let sweep = |world: &LeaseFixture| {
        let mut out = Vec::new();
        world.leases.sweep(world.leases.shards(), world.now, &mut out);
        out
    };
    assert!(sweep(&world).is_empty());
    world.pass(Span::secs(6));
    let errands: Vec<DetachedRenewal> = sweep(&world);
    let [errand] = &errands[..] else { panic!("one key is idle: {errands:?}") };
    assert_eq!((errand.name.key.to_string().as_str(), errand.name.scope), ("somebody", Scope(1)));
    assert_eq!((errand.order.tag, errand.limit), (TAG, world.limit));
    assert_eq!((errand.order.report.kept, errand.order.report.back), (0, units));
    assert!(world.spent(1).is_none());
    world.settle(&errand.order);
    assert_eq!(world.lent(), 0);
    assert_eq!(world.leases.counts().returned, u64::from(units));
    world.pass(Span::secs(121));
    assert!(sweep(&world).is_empty());
    assert_eq!(world.leases.counts().keys, 0, "and then it is forgotten");
}

#[test]
fn a_lease_in_use_is_renewed_before_it_ends() {
    let mut world = world("bucket 400/min");
    let units = world.lease();
    assert!(world.spent(4).is_some());
    let mut out = Vec::new();
    for _ in 0..42 {
        assert!(out.is_empty() && world.spent(0).is_some());
        world.pass(Span::secs(1));
        world.leases.sweep(world.leases.shards(), world.now, &mut out);
    }
    let [DetachedRenewal { order, .. }] = &out[..] else { panic!("it ends soon: {out:?}") };
    assert_eq!((order.report.spent, order.report.kept, order.report.back), (4, units - 4, 0));
}

#[test]
fn a_key_of_which_nothing_is_left_is_refused_without_asking_for_a_while() {
    let mut world = world("bucket 1000/s");
    for _ in 0..200 {
        if let SpendOutcome::Ask { order: Some(order), .. }
        | SpendOutcome::Spent(SpentUnits { order: Some(order), .. }) = world.spend(1)
        {
            world.settle(&order);
        }
        world.pass(Span::millis(1));
    }
    // Others have taken everything.
    let at = world.now.plus(AHEAD);
    let all = world.limit.step_beside(world.held, at, Amount::between(0, u32::MAX)).0;
    world.held.state = Some(all.state);
    world.spend_all();
    let order = world.ask(1);
    let refused = world.limit.step_beside(world.held, at, Amount::exactly(1)).0;
    let outcome = DrawResult::of_state(refused.answer(), at, world.folded());
    assert!(outcome.is_refused());
    world.leases.note(TAG, &world.limit, Amount::exactly(1), &outcome, world.now);
    assert_eq!(world.settle(&order).units, 0);
    for _ in 0..50 {
        assert!(matches!(world.spend(1), SpendOutcome::Paused(_)), "it asks in vain");
        world.pass(Span::millis(1));
    }
    let SpendOutcome::Paused(outcome) = world.spend(5) else { panic!("it asks in vain") };
    let outlook = LimitStatus::new(&world.limit, Amount::exactly(5), outcome).outlook();
    assert_eq!((outlook.remaining, outlook.retry), (4, Some(Retry::After(Span::millis(50)))));
    world.pass(Span::millis(50));
    let order = world.ask(5);
    assert!(order.wish.soon > 0);
    assert_eq!(world.settle(&order).units, 50, "half of what has come meanwhile");
}

#[test]
fn a_window_that_is_used_up_is_not_asked_for_until_it_is_over() {
    let mut world = world("window 1000/s");
    let end = world.now.plus(Span::SECOND);
    for _ in 0..100 {
        if let SpendOutcome::Ask { order: Some(order), .. }
        | SpendOutcome::Spent(SpentUnits { order: Some(order), .. }) = world.spend(2)
        {
            world.settle(&order);
        }
        world.pass(Span::millis(1));
    }
    // Others have taken the rest, and this node hears of that when it asks for more.
    let at = world.now.plus(AHEAD);
    world.held.state = Some(world.limit.step(world.held.state, at, Amount::between(0, u32::MAX)).state);
    let order = world.spend_until_asked(Span::micros(100)).expect("it asks in time");
    assert_eq!(world.settle(&order).units, 0);
    assert!(world.spend_until_asked(Span::micros(100)).is_none(), "there is nothing to be had");
    assert!(world.now < end && matches!(world.spend(1), SpendOutcome::Paused(_)));
    // A new window is as good as any: while it is asked for, nobody is refused.
    world.now = end.plus(Span::millis(1));
    world.ask(1);
    assert_eq!(world.spend(1), SpendOutcome::ASK);
}

#[test]
fn a_small_limit_is_never_leased() {
    let mut world = world("bucket 10/min");
    for _ in 0..100 {
        assert_eq!(world.spend(1), SpendOutcome::ASK);
        world.pass(Span::millis(1));
    }
    world.limit =
        Limit::new(Algorithm::SlidingWindowLog(ratekeeper_core::LogSize::Modest), "10/s".parse().unwrap())
            .unwrap();
    assert_eq!(world.spend_of(KeyHash { mark: 1, spread: 1 }, "log", 1), SpendOutcome::ASK);
    assert_eq!(world.leases.counts().keys, 1, "a law that can't lend needs no cell");
}

#[test]
fn a_newcomer_in_a_crowd_does_without() {
    let mut world = world("bucket 60000/min");
    world.leases = Leases::new(8);
    let tag = |mark: u64| KeyHash { mark, spread: 0 };
    for mark in 1..=8 {
        assert_eq!(world.spend_of(tag(mark), "k", 1), SpendOutcome::ASK);
    }
    for mark in 2..=9 {
        // The first key has come once only, and makes room for the ninth.
        match world.spend_of(tag(mark), "k", 1) {
            SpendOutcome::Ask { order: Some(order), .. } => drop(world.settle(&order)),
            other => assert_eq!((other, mark), (SpendOutcome::ASK, 9)),
        }
    }
    let SpendOutcome::Ask { order: Some(order), .. } = world.spend_of(tag(9), "k", 1) else {
        panic!("it has a place")
    };
    world.settle(&order);
    assert_eq!(world.spend_of(tag(1), "k", 1), SpendOutcome::ASK);
    assert_eq!(world.spend_of(tag(1), "k", 1), SpendOutcome::ASK, "all places hold leases");
    let counts = world.leases.counts();
    assert_eq!((counts.keys, counts.max_keys, counts.crowded), (8, 8, 2));
    world.pass(Span::secs(60));
    assert_eq!(world.spend_of(tag(1), "k", 1), SpendOutcome::ASK);
    assert!(
        matches!(world.spend_of(tag(1), "k", 1), SpendOutcome::Ask { order: Some(_), .. }),
        "they are over"
    );
}

#[test]
fn a_very_long_key_is_leased_and_not_kept() {
    let mut world = world("bucket 400/min");
    let key = "k".repeat(MAX_KEY_BYTES);
    world.spend_of(TAG, &key, 1);
    let SpendOutcome::Ask { order: Some(order), .. } = world.spend_of(TAG, &key, 1) else {
        panic!("it is leased")
    };
    assert!(world.settle(&order).units * 64 > 400);
    let mut out = Vec::new();
    for _ in 0..2 {
        world.leases.sweep(world.leases.shards(), world.now, &mut out);
        world.pass(Span::secs(6));
    }
    world.leases.drain(world.now, &mut out);
    assert!(out.is_empty());
    assert!(world.leases.counts().forfeited > 0);
}

#[test]
fn a_warm_key_is_spent_without_allocating() {
    let mut world = world("bucket 6000000/min");
    busy_lease(&mut world);
    let counted = allocation_counter::measure(|| {
        for _ in 0..1_000 {
            if let SpendOutcome::Ask { order: Some(order), .. }
            | SpendOutcome::Spent(SpentUnits { order: Some(order), .. }) = world.spend(1)
            {
                let told = world.lend(&order);
                world.leases.settle(&order, told, world.now);
            }
        }
    });
    assert_eq!(counted.count_total, 0);
}

#[test]
fn one_key_does_not_fill_the_way_to_the_store() {
    let mut world = world("bucket 1000000/s");
    let asks = |world: &LeaseFixture| {
        (0..5_000).filter(|_| matches!(world.spend(1), SpendOutcome::Ask { .. })).count()
    };
    assert_eq!(asks(&world), 1024, "within a moment");
    world.pass(Span::millis(9));
    assert_eq!(asks(&world), 0);
    world.pass(Span::millis(1));
    assert_eq!(asks(&world), 1024, "and then in the next");
    world.leases.set_away(true);
    assert_eq!(asks(&world), 5_000, "a store that is away is not held up");
}

//! The rules of a lease, one by one, with a store at hand that does what it is told.

mod habits;

use super::claim::ReleaseReason;
use super::{DetachedRenewal, LeaseKey, LeaseRenewal, LeaseReply, Leases, SpendOutcome, SpentUnits};
use crate::memory::key_hash::KeyHash;
use ratekeeper_core::{
    Algorithm, Align, Amount, DrawOutcome, DrawResult, LeaseGrant, LeasedState, Limit, LimitStatus,
    MAX_KEY_BYTES, Micros, Retry, Scope, Span, State, TERM, Zone,
};

const TAG: KeyHash = KeyHash { mark: 7 << 60, spread: 0 };
/// The store's clock is as far ahead of the node's.
const AHEAD: Span = Span::secs(1_000);
/// The middle of a term by the store's clock.
const NOON: Micros = Micros::new(1_000_000 * TERM.get() + TERM.get() / 2 - AHEAD.get());

struct LeaseFixture {
    leases: Leases,
    limit: Limit,
    held: LeasedState,
    now: Micros,
}

fn world(limit: &str) -> LeaseFixture {
    let (law, quota) = limit.split_once(' ').unwrap();
    let law = match law {
        "bucket" => Algorithm::TokenBucket,
        "window" => Algorithm::FixedWindow(Align::Wall(Zone::UTC)),
        _ => Algorithm::SlidingWindowCounter,
    };
    let limit = Limit::new(law, quota.parse().unwrap()).unwrap();
    LeaseFixture { leases: Leases::new(64), limit, held: LeasedState::default(), now: NOON }
}

impl LeaseFixture {
    fn pass(&mut self, span: Span) {
        self.now = self.now.plus(span);
    }

    fn spend(&self, units: u32) -> SpendOutcome {
        self.spend_of(TAG, "somebody", units)
    }

    fn spend_of(&self, tag: KeyHash, key: &str, units: u32) -> SpendOutcome {
        let whose = LeaseKey { tag, key: key.into(), scope: Scope(1) };
        self.leases.spend(&whose, &self.limit, units, self.now)
    }

    /// Spends units if they are in hand, and asks nobody.
    fn spent(&self, units: u32) -> Option<SpentUnits> {
        match self.spend(units) {
            SpendOutcome::Spent(spent) => {
                spent.order.inspect(|order| self.leases.settle_unsent(order));
                Some(spent)
            }
            SpendOutcome::Ask { order, claim } => {
                order.inspect(|order| self.leases.settle_unsent(order));
                claim.inspect(|claim| self.leases.put_back_claim(claim));
                None
            }
            SpendOutcome::Paused(_) => None,
        }
    }

    fn ask(&self, units: u32) -> LeaseRenewal {
        match self.spend(units) {
            SpendOutcome::Ask { order: Some(order), claim } => {
                claim.inspect(|claim| self.leases.put_back_claim(claim));
                order
            }
            other => panic!("it should have asked: {other:?}"),
        }
    }

    /// What the store does with an order when it arrives.
    fn lend(&mut self, order: &LeaseRenewal) -> LeaseReply {
        let at = self.now.plus(AHEAD);
        let (held, loan) = self.limit.lend(self.held, at, order.report, order.wish);
        self.held = held;
        LeaseReply { loan, seen: Some(self.folded()), at }
    }

    /// What the store says of a key: what is lent counts as taken.
    fn folded(&self) -> State {
        let free = Amount::between(0, self.lent());
        self.limit.step(self.held.state, self.now.plus(AHEAD), free).state
    }

    fn settle(&mut self, order: &LeaseRenewal) -> LeaseGrant {
        let told = self.lend(order);
        assert!(self.leases.settle(order, told, self.now).is_none());
        told.loan
    }

    /// Draws until something is in hand, and says how much.
    fn lease(&mut self) -> u32 {
        assert_eq!(self.spend(1), SpendOutcome::ASK, "nothing is known of a key that comes first");
        let order = self.ask(1);
        assert_eq!(order.report.units(), 0);
        self.settle(&order).units
    }

    /// The state of a key of which nothing is left.
    fn full(&self) -> State {
        let all = Amount::exactly(self.limit.capacity());
        self.limit.step(None, self.now.plus(AHEAD), all).state
    }

    /// Spends one by one, and says how many there were.
    fn spend_all(&self) -> u32 {
        (0..).take_while(|_| self.spent(1).is_some()).last().map_or(0, |last| last + 1)
    }

    fn lent(&self) -> u32 {
        self.held.lent.units()
    }
}

#[test]
fn a_unit_is_spent_only_after_the_store_has_lent_it() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    assert!(units > 10);
    assert_eq!(world.spend_all(), units);
    assert_eq!(world.lent(), units);
}

#[test]
fn while_an_order_is_on_its_way_what_was_kept_is_spent_and_told_of_later() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    assert!(world.spent(units - 3).is_some());
    let order = world.ask(5);
    assert_eq!((order.report.spent, order.report.kept, order.report.back), (units - 3, 3, 0));
    assert!(world.spent(2).is_some());
    let SpendOutcome::Ask { order: None, claim: Some(claim) } = world.spend(5) else {
        panic!("one order at a time")
    };
    world.leases.put_back_claim(&claim);
    let more = world.settle(&order).units;
    assert_eq!(world.lent(), more + 3);
    assert_eq!(world.spend_all(), more + 1);
    assert_eq!(world.ask(1).report.spent, more + 3);
}

#[test]
fn nothing_is_spent_at_the_deadline_which_counts_from_the_question() {
    let mut world = world("bucket 60000/min");
    world.spend(1);
    let order = world.ask(1);
    let asked_at = world.now;
    world.pass(Span::secs(2));
    let told = world.lend(&order);
    world.pass(Span::secs(3));
    world.leases.settle(&order, told, world.now);
    let lasts = told.loan.until.since(told.at);
    let ends = asked_at.plus(lasts).less(Span::micros(lasts.get() / 64));
    world.now = ends.less(Span::micros(1));
    assert!(world.spent(1).is_some());
    world.now = ends;
    assert!(world.spent(1).is_none());
    assert_eq!(world.leases.counts().forfeited, u64::from(told.loan.units) - 1);
}

#[test]
fn a_lease_that_is_over_is_not_told_of() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    assert!(world.spent(2).is_some());
    world.pass(Span::secs(60));
    assert_eq!(world.ask(1).report.units(), 0);
    assert_eq!(world.leases.counts().forfeited, u64::from(units - 2));
}

#[test]
fn a_loan_that_comes_after_its_deadline_is_void() {
    let mut world = world("bucket 60000/min");
    world.spend(1);
    let order = world.ask(1);
    let told = world.lend(&order);
    world.pass(Span::secs(60));
    world.leases.settle(&order, told, world.now);
    assert!(world.spent(1).is_none());
    assert_eq!(world.leases.counts().forfeited, u64::from(told.loan.units));
}

#[test]
fn what_was_kept_is_renewed_although_its_deadline_passed_on_the_way() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    world.pass(Span::secs(43));
    let order = world.ask(units + 1);
    let told = world.lend(&order);
    assert!(told.loan.is_known);
    world.pass(Span::secs(2));
    assert_eq!(world.spend(1), SpendOutcome::ASK, "it does not know that yet");
    world.leases.settle(&order, told, world.now);
    assert_eq!(world.spend_all(), units + told.loan.units);
}

#[test]
fn what_was_kept_too_long_is_void() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    world.pass(Span::secs(40));
    let order = world.ask(units + 1);
    assert_eq!(order.report.kept, units);
    // The question takes its time: the lease has lapsed when it arrives.
    world.pass(Span::secs(10));
    let loan = world.settle(&order);
    assert!(!loan.is_known);
    assert_eq!(world.spend_all(), loan.units);
    assert_eq!(world.ask(1).report.spent, loan.units);
}

#[test]
fn a_lease_without_an_answer_is_spent_and_never_spoken_of_again() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    assert!(world.spent(units - 5).is_some());
    let order = world.ask(6);
    assert_eq!(order.report.kept, 5);
    let told = world.lend(&order);
    world.leases.settle_lost(&order);
    assert!(world.spent(2).is_some());
    assert!(world.leases.settle(&order, told, world.now).is_none(), "an answer that comes after all is void");
    let mut out = Vec::new();
    world.pass(Span::secs(10));
    world.leases.sweep(world.leases.shards(), world.now, &mut out);
    assert!(out.is_empty(), "it is not given back either");
    let order = world.ask(4);
    assert_eq!(order.report.units(), 0, "what is left of it is too little, and is left to lapse");
    let fresh = world.settle(&order).units;
    assert_eq!(world.spend_all(), fresh);
    assert_eq!(world.leases.counts().lost, 1);
}

#[test]
fn an_order_is_settled_once() {
    let mut world = world("bucket 60000/min");
    world.spend(1);
    let order = world.ask(1);
    let told = world.lend(&order);
    world.leases.settle(&order, told, world.now);
    world.leases.settle(&order, told, world.now);
    world.leases.settle_unsent(&order);
    world.leases.settle_lost(&order);
    assert_eq!(world.spend_all(), told.loan.units);
    assert_eq!(world.leases.counts().forfeited, u64::from(told.loan.units), "the second time");
    assert!(world.ask(1).report.spent == told.loan.units, "it is not mute");
}

#[test]
fn an_order_that_was_not_sent_was_not_made() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    assert!(world.spent(units - 5).is_some());
    let order = world.ask(6);
    assert!(world.spent(1).is_some());
    world.leases.settle_unsent(&order);
    let order = world.ask(6);
    assert_eq!((order.report.spent, order.report.kept), (units - 4, 4));
}

#[test]
fn what_is_put_back_can_be_spent_again() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    let spent = world.spent(units).unwrap();
    world.leases.put_back(TAG, units, spent.receipt);
    assert_eq!(world.spend_all(), units);
    assert_eq!(world.leases.counts().spent, u64::from(units));
}

/// What this node was lent counts as used at the store, which would deny it to the very node that has it.
#[test]
fn the_store_is_asked_for_what_is_missing_here_only() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    let SpendOutcome::Ask { order: Some(order), claim: Some(claim) } = world.spend(units + 7) else {
        panic!("seven are missing")
    };
    assert_eq!(claim.units, units);
    assert!(world.spent(1).is_none(), "what is claimed is not spent by others");
    assert_eq!((order.report.spent, order.report.kept, order.report.back), (0, units, 0), "nor given back");
    let more = world.settle(&order).units;
    world.leases.commit(&claim, &world.limit, world.now);
    assert_eq!(world.spend_all(), more, "what was claimed is spent");
    assert_eq!(world.ask(1).report.spent, units + more, "and told of");
}

#[test]
fn what_was_claimed_is_put_back_though_the_lease_was_spoken_of_meanwhile() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    let SpendOutcome::Ask { order: Some(order), claim: Some(claim) } = world.spend(units + 7) else {
        panic!("seven are missing")
    };
    let more = world.settle(&order).units;
    world.leases.put_back_claim(&claim);
    assert_eq!(world.spend_all(), units + more);
    assert_eq!(world.leases.counts().forfeited, 0);
}

/// Several nodes may each have too little for a request, and together enough.
#[test]
fn what_was_claimed_in_vain_is_given_back_to_the_store() {
    let mut world = world("window 10000/h");
    let units = world.lease();
    let SpendOutcome::Ask { order, claim: Some(claim) } = world.spend(units + 7) else {
        panic!("seven are missing")
    };
    if let Some(order) = order {
        world.settle(&order);
    }
    let mut errands = Vec::new();
    world.leases.release(&claim, &world.limit, ReleaseReason::Denied, world.now, &mut errands);
    let back = errands.iter().map(|errand| errand.order.report.back).sum::<u32>();
    assert!(errands.len() == 1 && back >= units, "{back} of {units}: {errands:?}");
    assert!(world.spent(1).is_none(), "nothing is left here");
}

#[test]
fn what_was_claimed_of_a_lease_that_is_over_is_forfeited() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    let SpendOutcome::Ask { order: Some(order), claim: Some(claim) } = world.spend(units + 7) else {
        panic!("seven are missing")
    };
    world.leases.settle_unsent(&order);
    world.pass(Span::secs(300));
    assert!(world.spent(1).is_none(), "the lease is over");
    world.leases.put_back_claim(&claim);
    assert!(world.spent(1).is_none());
    assert_eq!(world.leases.counts().forfeited, u64::from(units));
}

#[test]
fn a_request_that_can_never_be_granted_claims_nothing() {
    let mut world = world("bucket 60000/min");
    world.lease();
    assert!(matches!(world.spend(60_001), SpendOutcome::Ask { claim: None, .. }));
}

#[test]
fn a_key_of_which_units_came_back_is_asked_for_at_once() {
    let mut world = world("window 1000/h");
    let order = {
        assert_eq!(world.spend(1), SpendOutcome::ASK);
        world.ask(1)
    };
    world.settle(&order);
    let refused = DrawResult::of_state(DrawOutcome::Refused, world.now.plus(AHEAD), world.full());
    while !matches!(world.spend(1), SpendOutcome::Paused(_)) {
        world.leases.note(TAG, &world.limit, Amount::exactly(1), &refused, world.now);
    }
    world.leases.resume(TAG);
    assert!(matches!(world.spend(1), SpendOutcome::Ask { .. }), "it is no longer refused without asking");
}

#[test]
fn what_was_told_of_is_not_put_back() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    let spent = world.spent(units).unwrap();
    let order = world.ask(1);
    assert_eq!(order.report.spent, units);
    world.leases.put_back(TAG, units, spent.receipt);
    let more = world.settle(&order).units;
    assert_eq!(world.spend_all(), more);
    assert_eq!(world.leases.counts().forfeited, u64::from(units));
}

#[test]
fn what_had_the_next_order_made_can_be_put_back() {
    let mut world = world("bucket 6000000/min");
    let units = busy_lease(&mut world);
    let order = loop {
        let SpendOutcome::Spent(spent) = world.spend(1) else { panic!("it asks in time") };
        if let Some(order) = spent.order {
            world.leases.put_back(TAG, 1, spent.receipt);
            break order;
        }
    };
    assert!(order.report.kept < units && order.wish.later > 0);
    let more = world.settle(&order).units;
    assert_eq!(world.spend_all(), order.report.kept + more);
}

/// Draws a key a thousand times a second for a while.
fn keep_busy(world: &mut LeaseFixture) {
    for _ in 0..2_000 {
        if let SpendOutcome::Ask { order: Some(order), .. }
        | SpendOutcome::Spent(SpentUnits { order: Some(order), .. }) = world.spend(1)
        {
            world.settle(&order);
        }
        world.pass(Span::millis(1));
    }
}

/// A lease of a key that is drawn a thousand times a second.
fn busy_lease(world: &mut LeaseFixture) -> u32 {
    keep_busy(world);
    let order = world.ask(1 << 20);
    order.report.kept + world.settle(&order).units
}

#[test]
fn another_quota_ends_the_lease() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    world.limit = Limit::new(Algorithm::TokenBucket, "50000/min".parse().unwrap()).unwrap();
    let order = world.ask(1);
    assert_eq!(order.report.units(), 0);
    assert_eq!(world.leases.counts().forfeited, u64::from(units));
    let more = world.settle(&order).units;
    assert_eq!(world.spend_all(), more);
}

#[test]
fn an_answer_under_another_quota_is_void() {
    let mut world = world("bucket 60000/min");
    world.spend(1);
    let order = world.ask(1);
    let told = world.lend(&order);
    world.limit = Limit::new(Algorithm::TokenBucket, "50000/min".parse().unwrap()).unwrap();
    world.spend(1);
    world.leases.settle(&order, told, world.now);
    assert!(!matches!(world.spend(1), SpendOutcome::Spent(_)));
}

#[test]
fn a_clock_that_is_set_back_lengthens_no_lease() {
    let mut world = world("bucket 60000/min");
    world.lease();
    assert!(world.spent(1).is_some());
    world.pass(Span::secs(20));
    assert!(world.spent(1).is_some());
    world.now = NOON;
    assert!(world.spent(1).is_some(), "twenty of its 44 seconds have passed");
    world.pass(Span::secs(24));
    assert!(world.spent(1).is_some());
    world.pass(Span::secs(1));
    assert!(world.spent(1).is_none());
}

#[test]
fn a_draw_of_nothing_takes_nothing_and_makes_no_order() {
    let mut world = world("bucket 60000/min");
    assert_eq!(world.spend(0), SpendOutcome::ASK);
    assert_eq!(world.leases.counts().keys, 0);
    let units = world.lease();
    for _ in 0..100 {
        assert_eq!(world.spent(0).unwrap().outcome.answer(), DrawOutcome::Granted(0));
    }
    assert_eq!(world.spend_all(), units);
    assert!(world.spent(0).is_some(), "nothing can always be had");
    world.pass(Span::secs(60));
    assert_eq!(world.spend(0), SpendOutcome::ASK);
}

#[test]
fn the_largest_numbers_do_no_harm() {
    let mut world = world("bucket 4294967295/min");
    assert_eq!(world.spend(1 << 20), SpendOutcome::ASK);
    let order = world.ask(1 << 20);
    let units = world.settle(&order).units;
    assert!(units > 1 << 20);
    assert!(world.spent(u32::MAX).is_none());
    assert!(world.spent(units).is_some());
    world.leases.set_nodes(u32::MAX);
    world.now = Micros::MAX;
    assert!(world.spent(1).is_none());
}

#[test]
fn a_node_that_stops_gives_everything_back_and_spends_no_more() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    assert!(world.spent(1).is_some());
    let mut out = Vec::new();
    world.leases.drain(world.now, &mut out);
    assert!(world.spent(1).is_none() && world.spent(0).is_none());
    let [DetachedRenewal { order, .. }] = &out[..] else { panic!("{out:?}") };
    assert_eq!((order.report.spent, order.report.back), (1, units - 1));
    world.settle(order);
    assert_eq!(world.lent(), 0);
    assert_eq!(world.spend(1), SpendOutcome::ASK);
}

#[test]
fn what_a_stopping_node_can_not_give_back_is_counted() {
    for is_sent in [true, false] {
        let mut world = world("bucket 60000/min");
        let units = world.lease();
        assert!(world.spent(1).is_some());
        let mut out = Vec::new();
        world.leases.drain(world.now, &mut out);
        let [DetachedRenewal { order, .. }] = &out[..] else { panic!("{out:?}") };
        match is_sent {
            true => world.leases.settle_lost(order),
            false => world.leases.settle_unsent(order),
        }
        assert_eq!(world.leases.counts().forfeited, u64::from(units - 1));
        assert!(world.spent(1).is_none());
    }
}

#[test]
fn what_a_stopping_node_is_being_lent_is_given_back_when_it_comes() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    assert!(world.spent(units - 1).is_some());
    let order = world.ask(2);
    let mut out = Vec::new();
    world.leases.drain(world.now, &mut out);
    assert!(out.is_empty() && world.spent(1).is_none());
    let told = world.lend(&order);
    let errand = world.leases.settle(&order, told, world.now).expect("it is given back");
    assert_eq!(errand.order.report.back, told.loan.units + 1);
    let told = world.lend(&errand.order);
    assert!(world.leases.settle(&errand.order, told, world.now).is_none());
    assert_eq!(world.lent(), 0);
}

#[test]
fn a_window_takes_its_leases_with_it() {
    for law in ["window", "sliding"] {
        let mut world = world(&format!("{law} 60000/min"));
        let units = world.lease();
        assert!(units > 10 && world.spent(1).is_some());
        world.pass(Span::secs(60));
        let order = world.ask(1);
        assert_eq!(order.report.units(), 0, "{law}");
        let fresh = world.settle(&order).units;
        assert_eq!(world.spend_all(), fresh, "{law}");
    }
}

#[test]
fn an_answer_from_hand_says_what_is_left_at_the_store_and_here() {
    let mut world = world("bucket 60000/min");
    let units = world.lease();
    let left = |spent: SpentUnits, world: &LeaseFixture| {
        LimitStatus::new(&world.limit, Amount::exactly(1), spent.outcome).remaining()
    };
    assert_eq!(left(world.spent(1).unwrap(), &world), 59_999);
    assert_eq!(left(world.spent(units - 2).unwrap(), &world), 60_001 - units);
    let told = world.spent(1).unwrap().outcome;
    assert_eq!(told.now(), world.now.plus(AHEAD), "as of the store's time");
}

#[test]
fn an_answer_from_hand_promises_no_more_than_can_be_had() {
    let mut world = world("bucket 60000/min");
    world.lease();
    // Long enough for all that was lent to flow back, if what is lent did.
    world.pass(Span::millis(900));
    for spent in 1..=5 {
        let told = world.spent(1).expect("it is in hand");
        assert_eq!(
            LimitStatus::new(&world.limit, Amount::exactly(1), told.outcome).remaining(),
            60_000 - spent
        );
    }
}

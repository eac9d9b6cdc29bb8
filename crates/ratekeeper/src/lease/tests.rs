//! The rules of the lease protocol, one by one, against a store that the test controls.

mod renewals;

use super::claim::ReleaseReason;
use super::{
    DetachedRenewal, LeaseKey, LeasePolicy, LeaseRenewal, LeaseReply, Leases, SpendOutcome, SpentUnits,
};
use crate::memory::key_hash::KeyHash;
use ratekeeper_core::{
    Algorithm, Align, Amount, DrawOutcome, DrawResult, LEASE_TERM, LeaseGrant, LeasedState, Limit,
    LimitStatus, MAX_KEY_BYTES, Micros, Retry, Scope, Span, State, Zone,
};

const HASH: KeyHash = KeyHash { fingerprint: 7 << 60, shard_bits: 0 };
/// How far the store's clock is ahead of the node's.
const STORE_AHEAD: Span = Span::secs(1_000);
/// The middle of a term by the store's clock.
const MID_TERM: Micros = Micros::new(1_000_000 * LEASE_TERM.get() + LEASE_TERM.get() / 2 - STORE_AHEAD.get());

struct LeaseFixture {
    leases: Leases,
    limit: Limit,
    stored: LeasedState,
    now: Micros,
}

fn fixture(limit: &str) -> LeaseFixture {
    let (algorithm, quota) = limit.split_once(' ').unwrap();
    let algorithm = match algorithm {
        "bucket" => Algorithm::TokenBucket,
        "window" => Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
        _ => Algorithm::SlidingWindowCounter,
    };
    let limit = Limit::new(algorithm, quota.parse().unwrap()).unwrap();
    LeaseFixture {
        leases: Leases::new(64, LeasePolicy::DEFAULT),
        limit,
        stored: LeasedState::default(),
        now: MID_TERM,
    }
}

impl LeaseFixture {
    fn advance(&mut self, span: Span) {
        self.now = self.now.plus(span);
    }

    fn spend(&self, units: u32) -> SpendOutcome {
        self.spend_key(HASH, "client", units)
    }

    fn spend_key(&self, hash: KeyHash, key: &str, units: u32) -> SpendOutcome {
        let lease_key = LeaseKey { hash, key: key.into(), scope: Scope(1) };
        self.leases.spend(&lease_key, &self.limit, units, self.now)
    }

    /// Spends leased units if there are enough, and sends nothing to the store.
    fn spend_leased(&self, units: u32) -> Option<SpentUnits> {
        match self.spend(units) {
            SpendOutcome::Spent(spent) => {
                spent.renewal.inspect(|renewal| self.leases.cancel_renewal(renewal));
                Some(spent)
            }
            SpendOutcome::Miss { renewal, claim } => {
                renewal.inspect(|renewal| self.leases.cancel_renewal(renewal));
                claim.inspect(|claim| self.leases.cancel_claim(claim));
                None
            }
            SpendOutcome::Denied(_) => None,
        }
    }

    fn expect_renewal(&self, units: u32) -> LeaseRenewal {
        match self.spend(units) {
            SpendOutcome::Miss { renewal: Some(renewal), claim } => {
                claim.inspect(|claim| self.leases.cancel_claim(claim));
                renewal
            }
            other => panic!("expected a miss with a renewal: {other:?}"),
        }
    }

    /// Applies a renewal at the store.
    fn store_reply(&mut self, renewal: &LeaseRenewal) -> LeaseReply {
        let at = self.now.plus(STORE_AHEAD);
        let (stored, grant) = self.limit.grant_lease(self.stored, at, renewal.report, renewal.request);
        self.stored = stored;
        LeaseReply { grant, state: Some(self.folded_state()), store_time: at }
    }

    /// The state that the store sends: leased units count as taken.
    fn folded_state(&self) -> State {
        let amount = Amount::between(0, self.lent_units());
        self.limit.step(self.stored.state, self.now.plus(STORE_AHEAD), amount).state
    }

    fn complete_renewal(&mut self, renewal: &LeaseRenewal) -> LeaseGrant {
        let reply = self.store_reply(renewal);
        assert!(self.leases.apply_reply(renewal, reply, self.now).is_none());
        reply.grant
    }

    /// Draws until units are leased, and returns how many.
    fn acquire_lease(&mut self) -> u32 {
        assert_eq!(self.spend(1), SpendOutcome::MISS, "nothing is known about a new key");
        let renewal = self.expect_renewal(1);
        assert_eq!(renewal.report.total(), 0);
        self.complete_renewal(&renewal).units
    }

    /// The state of a key that has no units left.
    fn used_up_state(&self) -> State {
        let all = Amount::exactly(self.limit.capacity());
        self.limit.step(None, self.now.plus(STORE_AHEAD), all).state
    }

    /// Spends one unit after the other, and returns how many there were.
    fn spend_all(&self) -> u32 {
        (0..).take_while(|_| self.spend_leased(1).is_some()).last().map_or(0, |last| last + 1)
    }

    fn lent_units(&self) -> u32 {
        self.stored.lent.total()
    }
}

#[test]
fn a_unit_is_spent_only_after_the_store_has_granted_it() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    assert!(units > 10);
    assert_eq!(fixture.spend_all(), units);
    assert_eq!(fixture.lent_units(), units);
}

#[test]
fn kept_units_are_spent_during_a_renewal_and_reported_later() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    assert!(fixture.spend_leased(units - 3).is_some());
    let renewal = fixture.expect_renewal(5);
    assert_eq!((renewal.report.spent, renewal.report.kept, renewal.report.returned), (units - 3, 3, 0));
    assert!(fixture.spend_leased(2).is_some());
    let SpendOutcome::Miss { renewal: None, claim: Some(claim) } = fixture.spend(5) else {
        panic!("one renewal at a time")
    };
    fixture.leases.cancel_claim(&claim);
    let more = fixture.complete_renewal(&renewal).units;
    assert_eq!(fixture.lent_units(), more + 3);
    assert_eq!(fixture.spend_all(), more + 1);
    assert_eq!(fixture.expect_renewal(1).report.spent, more + 3);
}

#[test]
fn nothing_is_spent_at_the_deadline_which_counts_from_the_renewal() {
    let mut fixture = fixture("bucket 60000/min");
    fixture.spend(1);
    let renewal = fixture.expect_renewal(1);
    let asked_at = fixture.now;
    fixture.advance(Span::secs(2));
    let reply = fixture.store_reply(&renewal);
    fixture.advance(Span::secs(3));
    fixture.leases.apply_reply(&renewal, reply, fixture.now);
    let lasts = reply.grant.expires_at.since(reply.store_time);
    let ends = asked_at.plus(lasts).minus(Span::micros(lasts.get() / 64));
    fixture.now = ends.minus(Span::micros(1));
    assert!(fixture.spend_leased(1).is_some());
    fixture.now = ends;
    assert!(fixture.spend_leased(1).is_none());
    assert_eq!(fixture.leases.counts().expired, u64::from(reply.grant.units) - 1);
}

#[test]
fn an_expired_lease_is_not_reported() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    assert!(fixture.spend_leased(2).is_some());
    fixture.advance(Span::secs(60));
    assert_eq!(fixture.expect_renewal(1).report.total(), 0);
    assert_eq!(fixture.leases.counts().expired, u64::from(units - 2));
}

#[test]
fn a_grant_that_arrives_after_its_deadline_is_void() {
    let mut fixture = fixture("bucket 60000/min");
    fixture.spend(1);
    let renewal = fixture.expect_renewal(1);
    let reply = fixture.store_reply(&renewal);
    fixture.advance(Span::secs(60));
    fixture.leases.apply_reply(&renewal, reply, fixture.now);
    assert!(fixture.spend_leased(1).is_none());
    assert_eq!(fixture.leases.counts().expired, u64::from(reply.grant.units));
}

#[test]
fn kept_units_are_renewed_although_their_deadline_passed_in_flight() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    fixture.advance(Span::secs(43));
    let renewal = fixture.expect_renewal(units + 1);
    let reply = fixture.store_reply(&renewal);
    assert!(reply.grant.is_report_accepted);
    fixture.advance(Span::secs(2));
    assert_eq!(fixture.spend(1), SpendOutcome::MISS, "the node does not know that yet");
    fixture.leases.apply_reply(&renewal, reply, fixture.now);
    assert_eq!(fixture.spend_all(), units + reply.grant.units);
}

#[test]
fn units_kept_too_long_are_void() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    fixture.advance(Span::secs(40));
    let renewal = fixture.expect_renewal(units + 1);
    assert_eq!(renewal.report.kept, units);
    // The renewal is delayed: the lease has expired when it arrives.
    fixture.advance(Span::secs(10));
    let grant = fixture.complete_renewal(&renewal);
    assert!(!grant.is_report_accepted);
    assert_eq!(fixture.spend_all(), grant.units);
    assert_eq!(fixture.expect_renewal(1).report.spent, grant.units);
}

#[test]
fn an_unacknowledged_lease_is_spent_and_never_reported_again() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    assert!(fixture.spend_leased(units - 5).is_some());
    let renewal = fixture.expect_renewal(6);
    assert_eq!(renewal.report.kept, 5);
    let reply = fixture.store_reply(&renewal);
    fixture.leases.mark_unacked(&renewal);
    assert!(fixture.spend_leased(2).is_some());
    assert!(fixture.leases.apply_reply(&renewal, reply, fixture.now).is_none(), "a late reply is ignored");
    let mut out = Vec::new();
    fixture.advance(Span::secs(10));
    fixture.leases.sweep(fixture.leases.shards(), fixture.now, &mut out);
    assert!(out.is_empty(), "an unacknowledged lease is not returned either");
    let renewal = fixture.expect_renewal(4);
    assert_eq!(renewal.report.total(), 0, "the rest of the lease is too small and expires");
    let fresh = fixture.complete_renewal(&renewal).units;
    assert_eq!(fixture.spend_all(), fresh);
    assert_eq!(fixture.leases.counts().unacknowledged, 1);
}

#[test]
fn a_renewal_is_completed_once() {
    let mut fixture = fixture("bucket 60000/min");
    fixture.spend(1);
    let renewal = fixture.expect_renewal(1);
    let reply = fixture.store_reply(&renewal);
    fixture.leases.apply_reply(&renewal, reply, fixture.now);
    fixture.leases.apply_reply(&renewal, reply, fixture.now);
    fixture.leases.cancel_renewal(&renewal);
    fixture.leases.mark_unacked(&renewal);
    assert_eq!(fixture.spend_all(), reply.grant.units);
    assert_eq!(fixture.leases.counts().expired, u64::from(reply.grant.units), "the second grant");
    assert!(fixture.expect_renewal(1).report.spent == reply.grant.units, "the lease is acknowledged");
}

#[test]
fn a_cancelled_renewal_has_no_effect() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    assert!(fixture.spend_leased(units - 5).is_some());
    let renewal = fixture.expect_renewal(6);
    assert!(fixture.spend_leased(1).is_some());
    fixture.leases.cancel_renewal(&renewal);
    let renewal = fixture.expect_renewal(6);
    assert_eq!((renewal.report.spent, renewal.report.kept), (units - 4, 4));
}

#[test]
fn an_undone_spend_can_be_spent_again() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    let spent = fixture.spend_leased(units).unwrap();
    fixture.leases.undo_spend(HASH, units, spent.receipt);
    assert_eq!(fixture.spend_all(), units);
    assert_eq!(fixture.leases.counts().spent, u64::from(units));
}

/// Units leased to this node count as used at the store, which would deny them to the very node that holds them.
#[test]
fn the_store_is_asked_only_for_the_missing_units() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    let SpendOutcome::Miss { renewal: Some(renewal), claim: Some(claim) } = fixture.spend(units + 7) else {
        panic!("seven units are missing")
    };
    assert_eq!(claim.units, units);
    assert!(fixture.spend_leased(1).is_none(), "claimed units are not spent by other requests");
    assert_eq!(
        (renewal.report.spent, renewal.report.kept, renewal.report.returned),
        (0, units, 0),
        "nor returned"
    );
    let more = fixture.complete_renewal(&renewal).units;
    fixture.leases.commit(&claim, &fixture.limit, fixture.now);
    assert_eq!(fixture.spend_all(), more, "the claimed units are spent");
    assert_eq!(fixture.expect_renewal(1).report.spent, units + more, "and reported");
}

#[test]
fn a_claim_is_put_back_though_the_lease_was_renewed_meanwhile() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    let SpendOutcome::Miss { renewal: Some(renewal), claim: Some(claim) } = fixture.spend(units + 7) else {
        panic!("seven units are missing")
    };
    let more = fixture.complete_renewal(&renewal).units;
    fixture.leases.cancel_claim(&claim);
    assert_eq!(fixture.spend_all(), units + more);
    assert_eq!(fixture.leases.counts().expired, 0);
}

/// Several nodes may each have too few units for a request, and together enough.
#[test]
fn a_claim_for_a_denied_request_is_returned_to_the_store() {
    let mut fixture = fixture("window 10000/h");
    let units = fixture.acquire_lease();
    let SpendOutcome::Miss { renewal, claim: Some(claim) } = fixture.spend(units + 7) else {
        panic!("seven units are missing")
    };
    if let Some(renewal) = renewal {
        fixture.complete_renewal(&renewal);
    }
    let mut renewals = Vec::new();
    fixture.leases.release(&claim, &fixture.limit, ReleaseReason::Denied, fixture.now, &mut renewals);
    let back = renewals.iter().map(|renewal| renewal.renewal.report.returned).sum::<u32>();
    assert!(renewals.len() == 1 && back >= units, "{back} of {units}: {renewals:?}");
    assert!(fixture.spend_leased(1).is_none(), "no unit is left here");
}

#[test]
fn a_claim_on_an_expired_lease_expires() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    let SpendOutcome::Miss { renewal: Some(renewal), claim: Some(claim) } = fixture.spend(units + 7) else {
        panic!("seven units are missing")
    };
    fixture.leases.cancel_renewal(&renewal);
    fixture.advance(Span::secs(300));
    assert!(fixture.spend_leased(1).is_none(), "the lease has expired");
    fixture.leases.cancel_claim(&claim);
    assert!(fixture.spend_leased(1).is_none());
    assert_eq!(fixture.leases.counts().expired, u64::from(units));
}

#[test]
fn a_request_that_can_never_be_granted_claims_nothing() {
    let mut fixture = fixture("bucket 60000/min");
    fixture.acquire_lease();
    assert!(matches!(fixture.spend(60_001), SpendOutcome::Miss { claim: None, .. }));
}

#[test]
fn the_store_is_asked_at_once_after_a_refund() {
    let mut fixture = fixture("window 1000/h");
    let renewal = {
        assert_eq!(fixture.spend(1), SpendOutcome::MISS);
        fixture.expect_renewal(1)
    };
    fixture.complete_renewal(&renewal);
    let denied =
        DrawResult::from_state(DrawOutcome::Denied, fixture.now.plus(STORE_AHEAD), fixture.used_up_state());
    while !matches!(fixture.spend(1), SpendOutcome::Denied(_)) {
        fixture.leases.record_decision(HASH, &fixture.limit, Amount::exactly(1), &denied, fixture.now);
    }
    fixture.leases.clear_denial(HASH);
    assert!(matches!(fixture.spend(1), SpendOutcome::Miss { .. }), "the store is asked again");
}

#[test]
fn a_reported_spend_is_not_undone() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    let spent = fixture.spend_leased(units).unwrap();
    let renewal = fixture.expect_renewal(1);
    assert_eq!(renewal.report.spent, units);
    fixture.leases.undo_spend(HASH, units, spent.receipt);
    let more = fixture.complete_renewal(&renewal).units;
    assert_eq!(fixture.spend_all(), more);
    assert_eq!(fixture.leases.counts().expired, u64::from(units));
}

#[test]
fn a_spend_that_triggered_a_renewal_can_be_undone() {
    let mut fixture = fixture("bucket 6000000/min");
    let units = busy_lease(&mut fixture);
    let renewal = loop {
        let SpendOutcome::Spent(spent) = fixture.spend(1) else { panic!("renewals are created in time") };
        if let Some(renewal) = spent.renewal {
            fixture.leases.undo_spend(HASH, 1, spent.receipt);
            break renewal;
        }
    };
    assert!(renewal.report.kept < units && renewal.request.long_horizon > 0);
    let more = fixture.complete_renewal(&renewal).units;
    assert_eq!(fixture.spend_all(), renewal.report.kept + more);
}

/// Draws a key a thousand times a second for a while.
fn keep_busy(fixture: &mut LeaseFixture) {
    for _ in 0..2_000 {
        if let SpendOutcome::Miss { renewal: Some(renewal), .. }
        | SpendOutcome::Spent(SpentUnits { renewal: Some(renewal), .. }) = fixture.spend(1)
        {
            fixture.complete_renewal(&renewal);
        }
        fixture.advance(Span::millis(1));
    }
}

/// Leases units of a key that is drawn a thousand times a second.
fn busy_lease(fixture: &mut LeaseFixture) -> u32 {
    keep_busy(fixture);
    let renewal = fixture.expect_renewal(1 << 20);
    renewal.report.kept + fixture.complete_renewal(&renewal).units
}

#[test]
fn another_quota_ends_the_lease() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    fixture.limit = Limit::new(Algorithm::TokenBucket, "50000/min".parse().unwrap()).unwrap();
    let renewal = fixture.expect_renewal(1);
    assert_eq!(renewal.report.total(), 0);
    assert_eq!(fixture.leases.counts().expired, u64::from(units));
    let more = fixture.complete_renewal(&renewal).units;
    assert_eq!(fixture.spend_all(), more);
}

#[test]
fn a_reply_under_another_quota_is_ignored() {
    let mut fixture = fixture("bucket 60000/min");
    fixture.spend(1);
    let renewal = fixture.expect_renewal(1);
    let reply = fixture.store_reply(&renewal);
    fixture.limit = Limit::new(Algorithm::TokenBucket, "50000/min".parse().unwrap()).unwrap();
    fixture.spend(1);
    fixture.leases.apply_reply(&renewal, reply, fixture.now);
    assert!(!matches!(fixture.spend(1), SpendOutcome::Spent(_)));
}

#[test]
fn a_clock_set_back_extends_no_lease() {
    let mut fixture = fixture("bucket 60000/min");
    fixture.acquire_lease();
    assert!(fixture.spend_leased(1).is_some());
    fixture.advance(Span::secs(20));
    assert!(fixture.spend_leased(1).is_some());
    fixture.now = MID_TERM;
    assert!(fixture.spend_leased(1).is_some(), "twenty of its 44 seconds have passed");
    fixture.advance(Span::secs(24));
    assert!(fixture.spend_leased(1).is_some());
    fixture.advance(Span::secs(1));
    assert!(fixture.spend_leased(1).is_none());
}

#[test]
fn a_draw_of_zero_units_creates_no_renewal() {
    let mut fixture = fixture("bucket 60000/min");
    assert_eq!(fixture.spend(0), SpendOutcome::MISS);
    assert_eq!(fixture.leases.counts().keys, 0);
    let units = fixture.acquire_lease();
    for _ in 0..100 {
        assert_eq!(fixture.spend_leased(0).unwrap().result.outcome(), DrawOutcome::Granted(0));
    }
    assert_eq!(fixture.spend_all(), units);
    assert!(fixture.spend_leased(0).is_some(), "zero units can always be granted");
    fixture.advance(Span::secs(60));
    assert_eq!(fixture.spend(0), SpendOutcome::MISS);
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let mut fixture = fixture("bucket 4294967295/min");
    assert_eq!(fixture.spend(1 << 20), SpendOutcome::MISS);
    let renewal = fixture.expect_renewal(1 << 20);
    let units = fixture.complete_renewal(&renewal).units;
    assert!(units > 1 << 20);
    assert!(fixture.spend_leased(u32::MAX).is_none());
    assert!(fixture.spend_leased(units).is_some());
    fixture.leases.set_node_count(u32::MAX);
    fixture.now = Micros::MAX;
    assert!(fixture.spend_leased(1).is_none());
}

#[test]
fn a_draining_node_returns_all_units_and_spends_no_more() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    assert!(fixture.spend_leased(1).is_some());
    let mut out = Vec::new();
    fixture.leases.drain(fixture.now, &mut out);
    assert!(fixture.spend_leased(1).is_none() && fixture.spend_leased(0).is_none());
    let [DetachedRenewal { renewal, .. }] = &out[..] else { panic!("{out:?}") };
    assert_eq!((renewal.report.spent, renewal.report.returned), (1, units - 1));
    fixture.complete_renewal(renewal);
    assert_eq!(fixture.lent_units(), 0);
    assert_eq!(fixture.spend(1), SpendOutcome::MISS);
}

#[test]
fn units_that_a_draining_node_cannot_return_are_counted() {
    for is_sent in [true, false] {
        let mut fixture = fixture("bucket 60000/min");
        let units = fixture.acquire_lease();
        assert!(fixture.spend_leased(1).is_some());
        let mut out = Vec::new();
        fixture.leases.drain(fixture.now, &mut out);
        let [DetachedRenewal { renewal, .. }] = &out[..] else { panic!("{out:?}") };
        if is_sent {
            fixture.leases.mark_unacked(renewal);
        } else {
            fixture.leases.cancel_renewal(renewal);
        }
        assert_eq!(fixture.leases.counts().expired, u64::from(units - 1));
        assert!(fixture.spend_leased(1).is_none());
    }
}

#[test]
fn a_grant_that_reaches_a_draining_node_is_returned() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    assert!(fixture.spend_leased(units - 1).is_some());
    let renewal = fixture.expect_renewal(2);
    let mut out = Vec::new();
    fixture.leases.drain(fixture.now, &mut out);
    assert!(out.is_empty() && fixture.spend_leased(1).is_none());
    let reply = fixture.store_reply(&renewal);
    let return_renewal =
        fixture.leases.apply_reply(&renewal, reply, fixture.now).expect("the units are returned");
    assert_eq!(return_renewal.renewal.report.returned, reply.grant.units + 1);
    let reply = fixture.store_reply(&return_renewal.renewal);
    assert!(fixture.leases.apply_reply(&return_renewal.renewal, reply, fixture.now).is_none());
    assert_eq!(fixture.lent_units(), 0);
}

#[test]
fn leases_end_with_their_window() {
    for algorithm in ["window", "sliding"] {
        let mut fixture = fixture(&format!("{algorithm} 60000/min"));
        let units = fixture.acquire_lease();
        assert!(units > 10 && fixture.spend_leased(1).is_some());
        fixture.advance(Span::secs(60));
        let renewal = fixture.expect_renewal(1);
        assert_eq!(renewal.report.total(), 0, "{algorithm}");
        let fresh = fixture.complete_renewal(&renewal).units;
        assert_eq!(fixture.spend_all(), fresh, "{algorithm}");
    }
}

#[test]
fn a_result_from_the_lease_counts_what_is_left_at_the_store_and_here() {
    let mut fixture = fixture("bucket 60000/min");
    let units = fixture.acquire_lease();
    let left = |spent: SpentUnits, fixture: &LeaseFixture| {
        LimitStatus::new(&fixture.limit, Amount::exactly(1), spent.result).remaining()
    };
    assert_eq!(left(fixture.spend_leased(1).unwrap(), &fixture), 59_999);
    assert_eq!(left(fixture.spend_leased(units - 2).unwrap(), &fixture), 60_001 - units);
    let reply = fixture.spend_leased(1).unwrap().result;
    assert_eq!(reply.decided_at(), fixture.now.plus(STORE_AHEAD), "at the store's time");
}

#[test]
fn a_result_from_the_lease_promises_no_more_than_is_left() {
    let mut fixture = fixture("bucket 60000/min");
    fixture.acquire_lease();
    // Long enough to refill all leased units, if leased units were refilled.
    fixture.advance(Span::millis(900));
    for spent in 1..=5 {
        let reply = fixture.spend_leased(1).expect("the unit is leased");
        assert_eq!(
            LimitStatus::new(&fixture.limit, Amount::exactly(1), reply.result).remaining(),
            60_000 - spent
        );
    }
}

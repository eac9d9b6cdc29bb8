//! Pitfalls of leases in the script, one test each.

use super::START;
use super::embedded::EmbeddedLua;
use super::fake::FakeValueKind;
use super::renewals::key_owner;
use super::run_with_renewals;
use crate::batch::codec::{GrantedLease, RenewalResult, ScriptCall};
use ratekeeper::RenewalOwner;
use ratekeeper_core::Key;
use ratekeeper_core::{
    Algorithm, Align, Amount, DrawOutcome, Draws, LEASE_TERM, Leak, LeaseReport, LeaseRequest, Limit, Micros,
    Op, PermitId, Retry, Scope, Span, Zone,
};
use ratekeeper_testkit::EngineReply;

/// A script store with its own clock and one key.
struct LendingFixture {
    script: EmbeddedLua,
    now: Micros,
}

impl LendingFixture {
    /// Creates a store at the beginning of a lease term.
    fn new() -> LendingFixture {
        let since_term_start = START.get() % LEASE_TERM.get();
        LendingFixture { script: EmbeddedLua::new(Some(0)), now: START.minus(Span::micros(since_term_start)) }
    }

    fn advance(&mut self, span: Span) {
        self.now = self.now.plus(span);
    }

    /// Makes one call with these draws and one renewal.
    fn call(
        &mut self,
        draws: &Draws,
        limit: &Limit,
        report: LeaseReport,
        request: LeaseRequest,
    ) -> (Vec<EngineReply>, RenewalResult) {
        let now = self.now;
        let (decided_groups, _, results) = run_with_renewals(
            &mut |call: &ScriptCall, draws: &Draws| self.script.run(call, draws, now.get()),
            draws,
            &vec![1; draws.len()],
            now,
            |call, draws| call.push_renewal(draws, &k_owner(limit), report, request),
        );
        let replies = decided_groups
            .iter()
            .map(|decided| EngineReply::from(&decided.requests[0].group(decided.group)[0]));
        (replies.collect(), results[0])
    }

    fn renew(&mut self, limit: &Limit, report: LeaseReport, units: u32) -> GrantedLease {
        match self.call(&Draws::new(), limit, report, request_up_to(units)).1 {
            RenewalResult::Granted(lease) => lease,
            RenewalResult::Stuck => panic!("the renewal under {limit} was rejected"),
        }
    }

    fn lend(&mut self, limit: &Limit, units: u32) -> GrantedLease {
        self.renew(limit, LeaseReport::default(), units)
    }

    fn apply(&mut self, limit: &Limit, op: Op) -> EngineReply {
        let draws = draws(limit, op);
        let now = self.now;
        let mut engine = |call: &ScriptCall, draws: &Draws| self.script.run(call, draws, now.get());
        let decided_groups = super::run_until_decided(&mut engine, &draws, &[1], now);
        EngineReply::from(&decided_groups[0].requests[0].group(0)[0])
    }

    fn take(&mut self, limit: &Limit, units: u32) -> DrawOutcome {
        self.apply(limit, Op::Take(Amount::exactly(units))).outcome
    }

    fn remaining(&mut self, limit: &Limit) -> u32 {
        self.apply(limit, Op::Peek(Amount::ZERO)).remaining
    }

    /// The stored value and its time to live. Returns `None` if there is none.
    fn stored(&self) -> Option<(Vec<u8>, Span)> {
        let fake = self.script.fake.borrow();
        let value = fake.values.values().next()?;
        let FakeValueKind::Text(text) = &value.data else { panic!("{value:?}") };
        let expires_ms = value.expires_ms.expect("every key has a time to live");
        Some((text.clone(), Span::millis(expires_ms - fake.now_micros / 1000)))
    }
}

fn limit(algorithm: Algorithm, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().unwrap()).unwrap()
}

fn draws(limit: &Limit, op: Op) -> Draws {
    let mut draws = Draws::new();
    draws.push("k".into(), Scope(0), *limit, op, PermitId(0));
    draws
}

/// A request for `units` units, or for all that are left.
fn request_up_to(units: u32) -> LeaseRequest {
    LeaseRequest { short_horizon: 0, long_horizon: units, long_horizon_divisor: 1 }
}

fn lending_limits() -> Vec<Limit> {
    let algorithms = [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow(Align::FirstHit),
        Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
        Algorithm::SlidingWindowCounter,
    ];
    let meter = limit(Algorithm::LeakyBucket(Leak::Meter), "1/h burst 10");
    algorithms.map(|algorithm| limit(algorithm, "10/h")).into_iter().chain([meter]).collect()
}

#[test]
fn lent_units_count_against_the_limit() {
    for limit in lending_limits() {
        let mut store = LendingFixture::new();
        assert_eq!(store.lend(&limit, 6).units, 6);
        assert_eq!((store.remaining(&limit), store.take(&limit, 5)), (4, DrawOutcome::Denied), "{limit}");
        assert_eq!((store.take(&limit, 3), store.remaining(&limit)), (DrawOutcome::Granted(3), 1), "{limit}");
        assert_eq!(store.lend(&limit, 6).units, 1, "{limit}");
        assert_eq!((store.lend(&limit, 6).units, store.take(&limit, 1)), (0, DrawOutcome::Denied), "{limit}");
    }
}

#[test]
fn returned_units_can_be_drawn_in_the_same_call_and_draws_come_before_grants() {
    for limit in lending_limits() {
        let mut store = LendingFixture::new();
        let lease = store.lend(&limit, 10);
        let report = LeaseReport { term: lease.term, spent: 1, kept: 2, returned: 7 };
        let take = draws(&limit, Op::Take(Amount::exactly(5)));
        let (replies, result) = store.call(&take, &limit, report, request_up_to(9));
        assert_eq!(replies[0].outcome, DrawOutcome::Granted(5), "{limit}");
        let RenewalResult::Granted(renewed) = result else { panic!("{limit}") };
        assert_eq!(
            (renewed.units, renewed.is_report_accepted, renewed.term),
            (2, true, lease.term),
            "{limit}"
        );
        assert_eq!(store.remaining(&limit), 0, "{limit}");
    }
}

#[test]
fn equal_requests_in_one_group_do_not_draw_lent_units() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "10/h"));
    store.lend(&limit, 4);
    let (draws, now) = (draws(&limit, Op::Take(Amount::exactly(2))), store.now);
    let decided_groups = super::run_until_decided(
        &mut |call: &ScriptCall, draws: &Draws| store.script.run(call, draws, now.get()),
        &draws,
        &[5],
        now,
    );
    let answers = decided_groups[0].requests.iter().map(|own| EngineReply::from(&own.group(0)[0]));
    let answers: Vec<_> = answers.map(|reply| (reply.outcome, reply.remaining)).collect();
    let (granted, denied) = (DrawOutcome::Granted(2), DrawOutcome::Denied);
    assert_eq!(answers, [(granted, 4), (granted, 2), (granted, 0), (denied, 0), (denied, 0)]);
}

/// Otherwise the burst and the leased units could be spent at once.
#[test]
fn a_bucket_does_not_refill_units_that_are_lent() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "10/s burst 10"));
    store.lend(&limit, 8);
    for _ in 0..3 {
        store.advance(Span::secs(9));
        assert_eq!(store.remaining(&limit), 2);
        assert_eq!(store.take(&limit, 3), DrawOutcome::Denied);
    }
}

#[test]
fn an_expired_lease_becomes_a_debt_at_the_end_of_its_term() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "60/min burst 10"));
    store.advance(Span::secs(5));
    let lease = store.lend(&limit, 8);
    assert_eq!(lease.time_left, Span::secs(55), "until the end of the next term");
    store.advance(Span::micros(lease.time_left.get() - 1));
    assert_eq!(store.remaining(&limit), 2);
    store.advance(Span::micros(1));
    let reply = store.apply(&limit, Op::Take(Amount::exactly(4)));
    assert_eq!((reply.remaining, reply.retry), (2, Some(Retry::After(Span::secs(2)))));
    store.advance(Span::secs(2));
    assert_eq!(store.take(&limit, 4), DrawOutcome::Granted(4));
}

#[test]
fn a_report_of_an_expired_lease_is_unknown_and_changes_nothing() {
    for limit in lending_limits() {
        let mut store = LendingFixture::new();
        let lease = store.lend(&limit, 4);
        store.advance(lease.time_left);
        store.take(&limit, 1);
        let before = store.stored();
        let report = LeaseReport { term: lease.term, spent: 1, kept: 1, returned: 2 };
        let late = store.renew(&limit, report, 0);
        assert!(!late.is_report_accepted && late.units == 0 && late.term > lease.term, "{limit}: {late:?}");
        assert_eq!(store.stored(), before, "{limit}");
    }
}

#[test]
fn kept_units_are_lent_anew() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "60/min burst 10"));
    let lease = store.lend(&limit, 8);
    store.advance(LEASE_TERM);
    let report = LeaseReport { term: lease.term, spent: 5, kept: 3, returned: 0 };
    let renewed = store.renew(&limit, report, 0);
    assert_eq!(
        (renewed.is_report_accepted, renewed.term, renewed.time_left),
        (true, lease.term + 1, Span::secs(60))
    );
    // The five spent units are refilled, the three kept ones stay lent until they expire.
    store.advance(Span::secs(59));
    assert_eq!(store.remaining(&limit), 7);
}

/// Otherwise units lent after the step would expire together with those lent before it.
#[test]
fn no_term_starts_twice_when_the_clock_steps_back() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "60/min burst 10"));
    let lease = store.lend(&limit, 4);
    store.now = store.now.minus(Span::secs(4));
    let earlier = store.lend(&limit, 2);
    assert_eq!((earlier.units, earlier.term, earlier.time_left), (2, lease.term, Span::secs(64)));
    store.advance(Span::secs(4));
    let report = LeaseReport { term: lease.term, spent: 6, kept: 0, returned: 0 };
    assert!(store.renew(&limit, report, 0).is_report_accepted);
    assert_eq!(store.remaining(&limit), 4);
}

#[test]
fn a_reset_of_a_bucket_keeps_lent_units() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "10/h"));
    let lease = store.lend(&limit, 4);
    store.take(&limit, 6);
    assert_eq!(store.apply(&limit, Op::Reset).remaining, 6);
    assert_eq!(store.apply(&limit, Op::Refund(9)).remaining, 6, "a refund does not return lent units");
    let report = LeaseReport { term: lease.term, spent: 0, kept: 0, returned: 4 };
    assert!(store.renew(&limit, report, 0).is_report_accepted);
    assert_eq!((store.remaining(&limit), store.stored()), (10, None));
}

#[test]
fn a_stored_value_outlives_the_lease_and_its_debt() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "60/min burst 10"));
    store.lend(&limit, 8);
    let (_, ttl) = store.stored().unwrap();
    assert_eq!(ttl, Span::secs(30 + 30 + 8 + 1), "two terms, the refill of eight units, and the slack");
    store.take(&limit, 2);
    assert_eq!(store.stored().unwrap().1, ttl, "the drawn units are refilled before that");
    store.advance(LEASE_TERM);
    store.take(&limit, 1);
    assert_eq!(store.stored().unwrap().1, Span::secs(30 + 8 + 1));
    store.advance(LEASE_TERM);
    assert_eq!(store.remaining(&limit), 2);
    store.advance(Span::secs(9));
    store.remaining(&limit);
    assert!(store.stored().is_some(), "the last millisecond of its time to live");
    store.advance(Span::millis(1));
    store.remaining(&limit);
    assert_eq!(store.stored(), None);
}

#[test]
fn a_value_shrinks_again_once_nothing_is_lent() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "10/h"));
    store.take(&limit, 3);
    let (plain, _) = store.stored().unwrap();
    let lease = store.lend(&limit, 4);
    assert_eq!(store.stored().unwrap().0.len(), plain.len() + 8);
    let report = LeaseReport { term: lease.term, spent: 0, kept: 0, returned: 4 };
    store.renew(&limit, report, 0);
    assert_eq!(store.stored().unwrap().0, plain);
    // The same after the lease has expired and a unit is drawn.
    store.lend(&limit, 4);
    store.advance(Span::secs(60));
    store.take(&limit, 1);
    assert_eq!(store.stored().unwrap().0.len(), plain.len());
}

#[test]
fn lent_units_stay_lent_under_another_quota() {
    let (mut store, wide) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "100/h"));
    let lease = store.lend(&wide, 30);
    let narrow = limit(Algorithm::TokenBucket, "40/h");
    assert_eq!(
        store.call(&Draws::new(), &narrow, LeaseReport::default(), request_up_to(1)).1,
        RenewalResult::Stuck
    );
    assert_eq!(store.remaining(&narrow), 40 - 30, "70 were left, but only 10 fit beside the lent units");
    store.take(&narrow, 4);
    store.advance(Span::SECOND);
    let report = LeaseReport { term: lease.term, spent: 0, kept: 0, returned: 30 };
    assert!(store.renew(&narrow, report, 0).is_report_accepted);
    assert_eq!(store.remaining(&narrow), 36);
}

/// The owner of a renewal of the key `k`.
fn k_owner(limit: &Limit) -> RenewalOwner {
    key_owner(Key::new(["k"]).unwrap(), limit)
}

/// The store's clock is outside the calendar windows that were sent.
#[test]
fn a_renewal_outside_its_calendar_is_rejected() {
    let (months, script) =
        (limit(Algorithm::FixedWindow(Align::WallClock(Zone::UTC)), "5/month"), EmbeddedLua::new(Some(0)));
    let mut call = ScriptCall::default();
    for (guess, is_rejected) in [(START, false), (START.plus(Span::YEAR), true)] {
        call.reset(guess);
        let draws = Draws::new();
        call.push_renewal(&draws, &k_owner(&months), LeaseReport::default(), request_up_to(2));
        let bytes = script.run(&call, &draws, START.get());
        let mut reply = call.read_reply(&bytes).unwrap();
        let results: Vec<_> = reply.renewal_results().map(Result::unwrap).collect();
        assert_eq!(matches!(results[..], [RenewalResult::Stuck]), is_rejected, "{results:?}");
        assert_eq!(script.fake.borrow().values.len(), usize::from(!is_rejected));
        script.fake.borrow_mut().values.clear();
    }
}

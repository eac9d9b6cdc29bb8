//! What a store that lends units ahead could get wrong, one test each.

use super::START;
use super::embedded::Embedded;
use super::fake::FakeValueKind;
use super::settle_beside;
use crate::redis::script_call::{GrantedLease, RenewalResult, ScriptCall};
use ratekeeper_core::{
    Algorithm, Align, Amount, DrawOutcome, Draws, Leak, LeaseReport, LeaseRequest, Limit, Micros, Op,
    PermitId, Retry, Scope, Span, TERM, Zone,
};
use ratekeeper_testkit::EngineReply;

/// A store that the script keeps, with a clock of its own, and one key in it.
struct LendingFixture {
    script: Embedded,
    now: Micros,
}

impl LendingFixture {
    /// At the beginning of a term.
    fn new() -> LendingFixture {
        let into_the_term = START.get() % TERM.get();
        LendingFixture { script: Embedded::new(Some(0)), now: START.less(Span::micros(into_the_term)) }
    }

    fn wait(&mut self, span: Span) {
        self.now = self.now.plus(span);
    }

    /// One call with these draws and one order.
    fn call(
        &mut self,
        draws: &Draws,
        limit: &Limit,
        report: LeaseReport,
        wish: LeaseRequest,
    ) -> (Vec<EngineReply>, RenewalResult) {
        let now = self.now;
        let (settled, _, loans) = settle_beside(
            &mut |parcel: &ScriptCall| self.script.run(parcel, now.get()),
            draws,
            &vec![1; draws.len()],
            now,
            |parcel| parcel.lend("k".into(), Scope(0), limit, report, wish),
        );
        let replies =
            settled.iter().map(|settled| EngineReply::from(&settled.requests[0].group(settled.group)[0]));
        (replies.collect(), loans[0])
    }

    fn order(&mut self, limit: &Limit, report: LeaseReport, units: u32) -> GrantedLease {
        match self.call(&Draws::new(), limit, report, all(units)).1 {
            RenewalResult::Loaned(loaned) => loaned,
            RenewalResult::Stuck => panic!("{limit} is stuck"),
        }
    }

    fn lend(&mut self, limit: &Limit, units: u32) -> GrantedLease {
        self.order(limit, LeaseReport::default(), units)
    }

    fn act(&mut self, limit: &Limit, act: Op) -> EngineReply {
        let draws = draws(limit, act);
        let now = self.now;
        let mut engine = |parcel: &ScriptCall| self.script.run(parcel, now.get());
        let settled = super::settle(&mut engine, &draws, &[1], now);
        EngineReply::from(&settled[0].requests[0].group(0)[0])
    }

    fn take(&mut self, limit: &Limit, units: u32) -> DrawOutcome {
        self.act(limit, Op::Take(Amount::exactly(units))).answer
    }

    fn left(&mut self, limit: &Limit) -> u32 {
        self.act(limit, Op::Look(Amount::PEEK)).remaining
    }

    /// What is kept, and for how long.
    fn kept(&self) -> Option<(Vec<u8>, Span)> {
        let fake = self.script.fake.borrow();
        let kept = fake.kept.values().next()?;
        let FakeValueKind::Text(value) = &kept.data else { panic!("{kept:?}") };
        let lapses_ms = kept.lapses_ms.expect("everything has a time to live");
        Some((value.clone(), Span::millis(lapses_ms - fake.now_micros / 1000)))
    }
}

fn limit(law: Algorithm, quota: &str) -> Limit {
    Limit::new(law, quota.parse().unwrap()).unwrap()
}

fn draws(limit: &Limit, act: Op) -> Draws {
    let mut draws = Draws::new();
    draws.push("k".into(), Scope(0), *limit, act, PermitId(0));
    draws
}

/// So many units, if there are as many.
fn all(units: u32) -> LeaseRequest {
    LeaseRequest { soon: 0, later: units, one_of: 1 }
}

fn lenders() -> Vec<Limit> {
    let laws = [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow(Align::FirstHit),
        Algorithm::FixedWindow(Align::Wall(Zone::UTC)),
        Algorithm::SlidingWindowCounter,
    ];
    let meter = limit(Algorithm::LeakyBucket(Leak::Meter), "1/h burst 10");
    laws.map(|law| limit(law, "10/h")).into_iter().chain([meter]).collect()
}

#[test]
fn what_is_lent_takes_up_room() {
    for limit in lenders() {
        let mut store = LendingFixture::new();
        assert_eq!(store.lend(&limit, 6).units, 6);
        assert_eq!((store.left(&limit), store.take(&limit, 5)), (4, DrawOutcome::Refused), "{limit}");
        assert_eq!((store.take(&limit, 3), store.left(&limit)), (DrawOutcome::Granted(3), 1), "{limit}");
        assert_eq!(store.lend(&limit, 6).units, 1, "{limit}");
        assert_eq!(
            (store.lend(&limit, 6).units, store.take(&limit, 1)),
            (0, DrawOutcome::Refused),
            "{limit}"
        );
    }
}

#[test]
fn what_is_given_back_can_be_drawn_in_the_same_call_and_draws_come_before_loans() {
    for limit in lenders() {
        let mut store = LendingFixture::new();
        let loan = store.lend(&limit, 10);
        let report = LeaseReport { term: loan.term, spent: 1, kept: 2, back: 7 };
        let take = draws(&limit, Op::Take(Amount::exactly(5)));
        let (replies, lending) = store.call(&take, &limit, report, all(9));
        assert_eq!(replies[0].answer, DrawOutcome::Granted(5), "{limit}");
        let RenewalResult::Loaned(loaned) = lending else { panic!("{limit}") };
        assert_eq!((loaned.units, loaned.is_known, loaned.term), (2, true, loan.term), "{limit}");
        assert_eq!(store.left(&limit), 0, "{limit}");
    }
}

#[test]
fn requests_that_are_alike_leave_what_is_lent() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "10/h"));
    store.lend(&limit, 4);
    let (draws, now) = (draws(&limit, Op::Take(Amount::exactly(2))), store.now);
    let settled =
        super::settle(&mut |parcel: &ScriptCall| store.script.run(parcel, now.get()), &draws, &[5], now);
    let answers = settled[0].requests.iter().map(|own| EngineReply::from(&own.group(0)[0]));
    let answers: Vec<_> = answers.map(|reply| (reply.answer, reply.remaining)).collect();
    let (granted, refused) = (DrawOutcome::Granted(2), DrawOutcome::Refused);
    assert_eq!(answers, [(granted, 4), (granted, 2), (granted, 0), (refused, 0), (refused, 0)]);
}

/// Else burst and lease could come at once.
#[test]
fn a_bucket_does_not_fill_up_behind_a_lease() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "10/s burst 10"));
    store.lend(&limit, 8);
    for _ in 0..3 {
        store.wait(Span::secs(9));
        assert_eq!(store.left(&limit), 2);
        assert_eq!(store.take(&limit, 3), DrawOutcome::Refused);
    }
}

#[test]
fn a_lapsed_lease_is_a_debt_from_the_end_of_its_term_on() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "60/min burst 10"));
    store.wait(Span::secs(5));
    let loan = store.lend(&limit, 8);
    assert_eq!(loan.left, Span::secs(55), "until the next term ends");
    store.wait(Span::micros(loan.left.get() - 1));
    assert_eq!(store.left(&limit), 2);
    store.wait(Span::micros(1));
    let told = store.act(&limit, Op::Take(Amount::exactly(4)));
    assert_eq!((told.remaining, told.retry), (2, Some(Retry::After(Span::secs(2)))));
    store.wait(Span::secs(2));
    assert_eq!(store.take(&limit, 4), DrawOutcome::Granted(4));
}

#[test]
fn a_report_of_a_lapsed_lease_is_unknown_and_changes_nothing() {
    for limit in lenders() {
        let mut store = LendingFixture::new();
        let loan = store.lend(&limit, 4);
        store.wait(loan.left);
        store.take(&limit, 1);
        let before = store.kept();
        let report = LeaseReport { term: loan.term, spent: 1, kept: 1, back: 2 };
        let late = store.order(&limit, report, 0);
        assert!(!late.is_known && late.units == 0 && late.term > loan.term, "{limit}: {late:?}");
        assert_eq!(store.kept(), before, "{limit}");
    }
}

#[test]
fn what_is_kept_is_lent_anew() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "60/min burst 10"));
    let loan = store.lend(&limit, 8);
    store.wait(TERM);
    let report = LeaseReport { term: loan.term, spent: 5, kept: 3, back: 0 };
    let anew = store.order(&limit, report, 0);
    assert_eq!((anew.is_known, anew.term, anew.left), (true, loan.term + 1, Span::secs(60)));
    // The five that were spent are paid back, the three stay lent until they lapse.
    store.wait(Span::secs(59));
    assert_eq!(store.left(&limit), 7);
}

/// Else what is lent then would lapse with what was lent before it.
#[test]
fn no_term_begins_again_when_the_clock_steps_back() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "60/min burst 10"));
    let loan = store.lend(&limit, 4);
    store.now = store.now.less(Span::secs(4));
    let behind = store.lend(&limit, 2);
    assert_eq!((behind.units, behind.term, behind.left), (2, loan.term, Span::secs(64)));
    store.wait(Span::secs(4));
    let report = LeaseReport { term: loan.term, spent: 6, kept: 0, back: 0 };
    assert!(store.order(&limit, report, 0).is_known);
    assert_eq!(store.left(&limit), 4);
}

#[test]
fn a_reset_of_a_bucket_keeps_what_is_lent() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "10/h"));
    let loan = store.lend(&limit, 4);
    store.take(&limit, 6);
    assert_eq!(store.act(&limit, Op::Clear).remaining, 6);
    assert_eq!(store.act(&limit, Op::Give(9)).remaining, 6, "nor is it given back by others");
    let report = LeaseReport { term: loan.term, spent: 0, kept: 0, back: 4 };
    assert!(store.order(&limit, report, 0).is_known);
    assert_eq!((store.left(&limit), store.kept()), (10, None));
}

#[test]
fn what_is_kept_outlives_the_lease_and_its_debt() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "60/min burst 10"));
    store.lend(&limit, 8);
    let (_, ttl) = store.kept().unwrap();
    assert_eq!(ttl, Span::secs(30 + 30 + 8 + 1), "two terms, eight units, and the slack");
    store.take(&limit, 2);
    assert_eq!(store.kept().unwrap().1, ttl, "what is drawn is paid back before");
    store.wait(TERM);
    store.take(&limit, 1);
    assert_eq!(store.kept().unwrap().1, Span::secs(30 + 8 + 1));
    store.wait(TERM);
    assert_eq!(store.left(&limit), 2);
    store.wait(Span::secs(9));
    store.left(&limit);
    assert!(store.kept().is_some(), "for its last millisecond");
    store.wait(Span::millis(1));
    store.left(&limit);
    assert_eq!(store.kept(), None);
}

#[test]
fn a_value_is_as_short_as_before_once_nothing_is_lent() {
    let (mut store, limit) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "10/h"));
    store.take(&limit, 3);
    let (plain, _) = store.kept().unwrap();
    let loan = store.lend(&limit, 4);
    assert_eq!(store.kept().unwrap().0.len(), plain.len() + 8);
    let report = LeaseReport { term: loan.term, spent: 0, kept: 0, back: 4 };
    store.order(&limit, report, 0);
    assert_eq!(store.kept().unwrap().0, plain);
    // So it is when the lease lapses and somebody draws.
    store.lend(&limit, 4);
    store.wait(Span::secs(60));
    store.take(&limit, 1);
    assert_eq!(store.kept().unwrap().0.len(), plain.len());
}

#[test]
fn what_is_lent_stays_lent_under_another_quota() {
    let (mut store, wide) = (LendingFixture::new(), limit(Algorithm::TokenBucket, "100/h"));
    let loan = store.lend(&wide, 30);
    let narrow = limit(Algorithm::TokenBucket, "40/h");
    assert_eq!(store.call(&Draws::new(), &narrow, LeaseReport::default(), all(1)).1, RenewalResult::Stuck);
    assert_eq!(store.left(&narrow), 40 - 30, "70 were left, and 10 is the most beside what is lent");
    store.take(&narrow, 4);
    store.wait(Span::SECOND);
    let report = LeaseReport { term: loan.term, spent: 0, kept: 0, back: 30 };
    assert!(store.order(&narrow, report, 0).is_known);
    assert_eq!(store.left(&narrow), 36);
}

/// The store's clock is in no window that was sent along.
#[test]
fn an_order_outside_of_its_calendar_is_stuck() {
    let (months, script) =
        (limit(Algorithm::FixedWindow(Align::Wall(Zone::UTC)), "5/month"), Embedded::new(Some(0)));
    let mut parcel = ScriptCall::new();
    for (guess, is_stuck) in [(START, false), (START.plus(Span::YEAR), true)] {
        parcel.start(guess);
        parcel.lend("k".into(), Scope(0), &months, LeaseReport::default(), all(2));
        let bytes = script.run(&parcel, START.get());
        let mut reply = parcel.read(&bytes).unwrap();
        let loans: Vec<_> = reply.loans().map(Result::unwrap).collect();
        assert_eq!(matches!(loans[..], [RenewalResult::Stuck]), is_stuck, "{loans:?}");
        assert_eq!(script.fake.borrow().kept.len(), usize::from(!is_stuck));
        script.fake.borrow_mut().kept.clear();
    }
}

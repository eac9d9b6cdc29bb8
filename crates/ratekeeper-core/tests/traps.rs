//! Mistakes that published limiters make, each held off by name.

use ratekeeper_core::{
    Algorithm, Align, Amount, Leak, Limit, LogSize, MOST_BACK, Micros, Op, PermitId, Retry, Span, State, Zone,
};
use ratekeeper_testkit::{Cell, KeyEngine};

const START: Micros = Micros::new(1_700_000_000_000_000);

fn limit(law: Algorithm, quota: &str) -> Limit {
    Limit::new(law, quota.parse().expect("the quota can be read")).expect("the law takes the quota")
}

fn take(cell: &mut Cell, limit: &Limit, at: Span, units: u32) -> bool {
    cell.act(START.plus(at), limit, Op::Take(Amount::exactly(units)), PermitId(0)).retry.is_none()
}

/// Every law that a request can be checked against, under the same rate.
fn laws() -> Vec<Limit> {
    let laws = [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket(Leak::Meter),
        Algorithm::FixedWindow(Align::Wall(Zone::UTC)),
        Algorithm::FixedWindow(Align::FirstHit),
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog(LogSize::Modest),
        Algorithm::Concurrency,
    ];
    laws.iter().map(|law| limit(*law, "10/s")).collect()
}

/// Trap: saving the time of the last refill on a denial without the tokens it brought.
#[test]
fn a_hammering_client_still_refills() {
    let limit = limit(Algorithm::TokenBucket, "1/s");
    let mut cell = Cell::default();
    assert!(take(&mut cell, &limit, Span::ZERO, 1));
    for millis in 1..1000 {
        assert!(!take(&mut cell, &limit, Span::millis(millis), 1));
    }
    assert!(take(&mut cell, &limit, Span::SECOND, 1));
}

/// Trap: refilling whole units and dropping the remainder.
#[test]
fn no_fraction_of_a_unit_is_lost_however_often_one_asks() {
    let limit = limit(Algorithm::TokenBucket, "3/s burst 1");
    let mut cell = Cell::default();
    let granted =
        (0..3_000_000).step_by(7).filter(|micros| take(&mut cell, &limit, Span::micros(*micros), 1)).count();
    assert_eq!(
        granted, 9,
        "one at once and three a second for just under three seconds, less what the step missed"
    );
}

/// Trap: a time to live that is an instant, or that runs out before the state does.
#[test]
fn the_time_to_live_is_a_span_that_outlasts_every_state() {
    for limit in laws() {
        let mut cell = Cell::default();
        let reply = cell.act(START, &limit, Op::Take(Amount::between(1, u32::MAX)), PermitId(0));
        assert!(reply.reset <= limit.ttl(), "{limit}");
        assert!(limit.ttl() <= Span::secs(3), "{limit}: {}", limit.ttl());
    }
    let month = limit(Algorithm::FixedWindow(Align::Wall(Zone::UTC)), "1/month");
    assert!(month.ttl() >= Span::secs(31 * 86_400 + 3_600));
}

/// Trap: comparing what is used with the limit before adding a cost above 1.
#[test]
fn a_cost_that_does_not_fit_beside_what_is_used_is_refused() {
    for limit in laws().iter().filter(|limit| limit.capacity() == 10) {
        let mut cell = Cell::default();
        assert!(take(&mut cell, limit, Span::ZERO, 9), "{limit}");
        assert!(!take(&mut cell, limit, Span::ZERO, 2), "{limit}");
        assert!(take(&mut cell, limit, Span::ZERO, 1), "{limit}");
        assert!(!take(&mut cell, limit, Span::ZERO, 1), "{limit}");
    }
}

/// Trap: members of a log named by their time alone, so that two in one microsecond collapse.
#[test]
fn units_of_one_microsecond_are_all_counted() {
    let limit = limit(Algorithm::SlidingWindowLog(LogSize::Modest), "3/s");
    let mut cell = Cell::default();
    for expected in [true, true, true, false] {
        assert_eq!(take(&mut cell, &limit, Span::ZERO, 1), expected);
    }
}

/// Trap: a bucket that refills past its burst while nobody asks.
#[test]
fn an_idle_bucket_is_full_and_no_fuller() {
    for quota in ["10/s", "10/s burst 3", "10000000/s", "1/month"] {
        let limit = limit(Algorithm::TokenBucket, quota);
        let mut cell = Cell::default();
        assert!(take(&mut cell, &limit, Span::ZERO, limit.capacity()));
        let years = Span::micros(100 * Span::YEAR.get());
        assert!(take(&mut cell, &limit, years, limit.capacity()));
        assert!(!take(&mut cell, &limit, years, 1));
    }
}

/// Trap: `Retry-After` floored to 0.
#[test]
fn a_wait_is_never_worded_as_no_wait() {
    assert_eq!(Span::micros(1).secs_up(), 1);
    assert_eq!(Span::micros(1_000_001).secs_up(), 2);
}

/// Trap: a clock that steps back lends time, or takes it.
#[test]
fn a_clock_that_steps_back_neither_lends_nor_takes() {
    for limit in laws() {
        let mut cell = Cell::default();
        let hour = Span::HOUR;
        assert!(take(&mut cell, &limit, hour, limit.capacity()), "{limit}");
        for back in [MOST_BACK.get(), 3_000_000, 1] {
            let back = Span::micros(hour.get() - back);
            assert!(!take(&mut cell, &limit, back, 1), "{limit} lent");
        }
        assert!(take(&mut cell, &limit, Span::secs(3602), limit.capacity()), "{limit} took");
    }
}

/// Trap: a clock that was set right, an hour back, stops all refills for an hour.
#[test]
fn a_clock_that_is_set_back_stops_no_refill_and_lends_one_burst_at_most() {
    for limit in laws().iter().filter(|limit| limit.law() != Algorithm::Concurrency) {
        let (mut cell, mut granted) = (Cell::default(), 0);
        assert!(take(&mut cell, limit, Span::HOUR, limit.capacity()), "{limit}");
        for millis in 0..3000 {
            granted += u32::from(take(&mut cell, limit, Span::millis(millis), 1));
        }
        let steady = 30;
        assert!(granted >= steady - 2 * limit.capacity(), "{limit} stopped: {granted} in three seconds");
        assert!(
            granted <= steady + limit.capacity(),
            "{limit} lent more than a burst: {granted} in three seconds"
        );
    }
}

/// A permit is freed by whoever holds it: a clock that is set back keeps only those longer that nobody gives back.
#[test]
fn a_clock_that_is_set_back_frees_no_place_that_is_held() {
    let limit = limit(Algorithm::Concurrency, "1/s");
    let mut cell = Cell::default();
    assert!(take(&mut cell, &limit, Span::HOUR, 1));
    assert!(!take(&mut cell, &limit, Span::secs(2), 1));
    cell.act(START.plus(Span::secs(2)), &limit, Op::Give(1), PermitId(0));
    assert!(take(&mut cell, &limit, Span::secs(2), 1));
}

/// Trap: after a change of quota the old rate goes on for as long as somebody hammers.
#[test]
fn a_new_rate_takes_hold_even_if_the_first_draw_is_refused() {
    let (slow, fast) =
        (limit(Algorithm::TokenBucket, "1/day"), limit(Algorithm::TokenBucket, "10/s burst 1"));
    let mut cell = Cell::default();
    assert!(take(&mut cell, &slow, Span::ZERO, 1));
    for millis in 1..=100 {
        assert!(!take(&mut cell, &fast, Span::millis(millis), 1));
    }
    assert!(take(&mut cell, &fast, Span::millis(101), 1));
}

#[test]
fn a_change_of_quota_keeps_the_tokens_that_are_left() {
    let left = |before: &str, taken, after: &str| {
        let (before, after) = (limit(Algorithm::TokenBucket, before), limit(Algorithm::TokenBucket, after));
        let mut cell = Cell::default();
        assert!(take(&mut cell, &before, Span::ZERO, taken));
        cell.act(START, &after, Op::Look(Amount::PEEK), PermitId(0)).remaining
    };
    assert_eq!(left("100/h", 60, "1000/h"), 40);
    assert_eq!(left("100/h", 60, "30/h"), 30);
    assert_eq!(left("100/h", 60, "7/s burst 100"), 40);
    assert_eq!(left("100/h", 100, "1000/h"), 0);
    assert_eq!(left("100/h", 0, "1000/h"), 1000, "who took nothing has everything");
}

#[test]
fn a_change_of_quota_keeps_what_a_window_has_used() {
    for law in [
        Algorithm::FixedWindow(Align::FirstHit),
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog(LogSize::Modest),
    ] {
        let (before, after) = (limit(law, "100/h"), limit(law, "1000/h"));
        let mut cell = Cell::default();
        assert!(take(&mut cell, &before, Span::ZERO, 60));
        let reply = cell.act(START, &after, Op::Look(Amount::PEEK), PermitId(0));
        assert_eq!(reply.remaining, 940, "{after}");
    }
}

#[test]
fn a_state_of_another_law_is_no_state() {
    let (bucket, window) =
        (limit(Algorithm::TokenBucket, "10/s"), limit(Algorithm::SlidingWindowCounter, "10/s"));
    let state = bucket.step(None, START, Amount::exactly(5)).state;
    assert_eq!(window.adopt(state, &bucket, START), None);
    assert_eq!(limit(Algorithm::LeakyBucket(Leak::Meter), "10/s").adopt(state, &bucket, START), None);
}

/// A limit that keeps a roll has no state to step, and the other way round: nothing is granted by mistake.
#[test]
fn the_wrong_kind_of_memory_grants_nothing() {
    let (log, bucket) =
        (limit(Algorithm::SlidingWindowLog(LogSize::Modest), "10/s"), limit(Algorithm::TokenBucket, "10/s"));
    let places = limit(Algorithm::Concurrency, "10/s");
    assert_eq!(log.step(None, START, Amount::exactly(1)).granted, None);
    assert_eq!(bucket.step_roll(&mut log.new_roll(), START, Amount::exactly(1), PermitId(0)), None);
    assert_eq!(log.step_roll(&mut places.new_roll(), START, Amount::exactly(1), PermitId(0)), None);
    assert!(log.is_drained(State::default(), START));
}

/// A queue that the clock stepped back in still says when its turn comes, neither early nor late.
#[test]
fn a_clock_that_steps_back_keeps_a_queue_in_order() {
    let limit = limit(Algorithm::LeakyBucket(Leak::Queue), "10/s burst 5");
    let mut cell = Cell::default();
    assert!(take(&mut cell, &limit, Span::SECOND, 3));
    let mut wait = |at: u64, patience: u64| {
        let ask = Amount::exactly(1).within(Span::millis(patience));
        cell.act(START.plus(Span::millis(at)), &limit, Op::Look(ask), PermitId(0)).retry
    };
    assert_eq!(wait(900, 350), Some(Retry::After(Span::millis(50))));
    assert_eq!(wait(950, 350), None);
    assert_eq!(wait(900, 250), Some(Retry::After(Span::millis(150))));
}

/// A lower quota takes hold at once: what was used beyond it does not outlast the windows it was used in.
#[test]
fn a_lowered_window_is_full_and_no_fuller() {
    let (before, after) =
        (limit(Algorithm::SlidingWindowCounter, "100/h"), limit(Algorithm::SlidingWindowCounter, "10/h"));
    let into_the_window = START.get() % Span::HOUR.get();
    let at = |halves: u64| START.plus(Span::micros(halves * Span::HOUR.get() / 2 - into_the_window));
    let left = |cell: &mut Cell, now| cell.act(now, &after, Op::Look(Amount::PEEK), PermitId(0)).remaining;
    let mut cell = Cell::default();
    cell.act(at(2), &before, Op::Take(Amount::exactly(100)), PermitId(0));
    assert_eq!(left(&mut cell, at(3)), 0);
    assert_eq!(left(&mut cell, at(5)), 5, "half of the ten that a full window holds");
    let mut cell = Cell::default();
    cell.act(at(2), &before, Op::Take(Amount::exactly(100)), PermitId(0));
    assert_eq!(left(&mut cell, at(5)), 5, "the same, if the change comes in the window after");
}

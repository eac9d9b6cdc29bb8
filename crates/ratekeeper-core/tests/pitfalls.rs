//! Bugs found in published rate limiters, each with a test that rules it out.

use ratekeeper_core::{
    Algorithm, Align, Amount, Leak, Limit, LogSize, MAX_CLOCK_STEP_BACK, Micros, Op, PermitId, Retry, Span,
    State, Zone,
};
use ratekeeper_testkit::{KeyEngine, SingleKeyStore};

const START: Micros = Micros::new(1_700_000_000_000_000);

fn limit(algorithm: Algorithm, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().expect("the quota is valid"))
        .expect("the algorithm supports the quota")
}

fn take(cell: &mut SingleKeyStore, limit: &Limit, at: Span, units: u32) -> bool {
    cell.apply(START.plus(at), limit, Op::Take(Amount::exactly(units)), PermitId(0)).retry.is_none()
}

/// Every algorithm except the queue, at the same rate.
fn all_limits() -> Vec<Limit> {
    let algorithms = [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket(Leak::Meter),
        Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
        Algorithm::FixedWindow(Align::FirstHit),
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog(LogSize::Standard),
        Algorithm::Concurrency,
    ];
    algorithms.iter().map(|algorithm| limit(*algorithm, "10/s")).collect()
}

/// Trap: saving the time of the last refill on a denial without the tokens it brought.
#[test]
fn a_hammering_client_still_refills() {
    let limit = limit(Algorithm::TokenBucket, "1/s");
    let mut cell = SingleKeyStore::default();
    assert!(take(&mut cell, &limit, Span::ZERO, 1));
    for millis in 1..1000 {
        assert!(!take(&mut cell, &limit, Span::millis(millis), 1));
    }
    assert!(take(&mut cell, &limit, Span::SECOND, 1));
}

/// Trap: refilling whole units and dropping the remainder.
#[test]
fn frequent_draws_lose_no_fraction_of_a_unit() {
    let limit = limit(Algorithm::TokenBucket, "3/s burst 1");
    let mut cell = SingleKeyStore::default();
    let granted =
        (0..3_000_000).step_by(7).filter(|micros| take(&mut cell, &limit, Span::micros(*micros), 1)).count();
    assert_eq!(
        granted, 9,
        "one at once and three a second for just under three seconds, minus what the step of 7 us misses"
    );
}

/// Trap: a time to live that is an instant, or that runs out before the state does.
#[test]
fn the_ttl_is_a_span_that_outlasts_every_state() {
    for limit in all_limits() {
        let mut cell = SingleKeyStore::default();
        let reply = cell.apply(START, &limit, Op::Take(Amount::between(1, u32::MAX)), PermitId(0));
        assert!(reply.reset <= limit.ttl(), "{limit}");
        assert!(limit.ttl() <= Span::secs(3), "{limit}: {}", limit.ttl());
    }
    let month = limit(Algorithm::FixedWindow(Align::WallClock(Zone::UTC)), "1/month");
    assert!(month.ttl() >= Span::secs(31 * 86_400 + 3_600));
}

/// Trap: comparing the units used with the limit before adding a cost above 1.
#[test]
fn a_cost_that_does_not_fit_is_denied() {
    for limit in all_limits().iter().filter(|limit| limit.capacity() == 10) {
        let mut cell = SingleKeyStore::default();
        assert!(take(&mut cell, limit, Span::ZERO, 9), "{limit}");
        assert!(!take(&mut cell, limit, Span::ZERO, 2), "{limit}");
        assert!(take(&mut cell, limit, Span::ZERO, 1), "{limit}");
        assert!(!take(&mut cell, limit, Span::ZERO, 1), "{limit}");
    }
}

/// Trap: log entries identified by their time alone, so that two in one microsecond collapse.
#[test]
fn all_units_of_one_microsecond_are_counted() {
    let limit = limit(Algorithm::SlidingWindowLog(LogSize::Standard), "3/s");
    let mut cell = SingleKeyStore::default();
    for expected in [true, true, true, false] {
        assert_eq!(take(&mut cell, &limit, Span::ZERO, 1), expected);
    }
}

/// Trap: a bucket that refills beyond its burst while idle.
#[test]
fn an_idle_bucket_never_exceeds_its_burst() {
    for quota in ["10/s", "10/s burst 3", "10000000/s", "1/month"] {
        let limit = limit(Algorithm::TokenBucket, quota);
        let mut cell = SingleKeyStore::default();
        assert!(take(&mut cell, &limit, Span::ZERO, limit.capacity()));
        let years = Span::micros(100 * Span::YEAR.get());
        assert!(take(&mut cell, &limit, years, limit.capacity()));
        assert!(!take(&mut cell, &limit, years, 1));
    }
}

/// Trap: `Retry-After` rounded down to 0.
#[test]
fn retry_after_is_never_rounded_down_to_zero() {
    assert_eq!(Span::micros(1).secs_ceil(), 1);
    assert_eq!(Span::micros(1_000_001).secs_ceil(), 2);
}

/// Trap: a clock that steps back adds or removes units.
#[test]
fn a_small_clock_step_back_neither_adds_nor_removes_units() {
    for limit in all_limits() {
        let mut cell = SingleKeyStore::default();
        let hour = Span::HOUR;
        assert!(take(&mut cell, &limit, hour, limit.capacity()), "{limit}");
        for back in [MAX_CLOCK_STEP_BACK.get(), 3_000_000, 1] {
            let back = Span::micros(hour.get() - back);
            assert!(!take(&mut cell, &limit, back, 1), "{limit} added units");
        }
        assert!(take(&mut cell, &limit, Span::secs(3602), limit.capacity()), "{limit} removed units");
    }
}

/// Trap: a clock that is corrected by an hour backwards stops all refills for an hour.
#[test]
fn a_clock_set_back_keeps_refilling_and_adds_at_most_one_burst() {
    for limit in all_limits().iter().filter(|limit| limit.algorithm() != Algorithm::Concurrency) {
        let (mut cell, mut granted) = (SingleKeyStore::default(), 0);
        assert!(take(&mut cell, limit, Span::HOUR, limit.capacity()), "{limit}");
        for millis in 0..3000 {
            granted += u32::from(take(&mut cell, limit, Span::millis(millis), 1));
        }
        let steady = 30;
        assert!(
            granted >= steady - 2 * limit.capacity(),
            "{limit} stopped refilling: {granted} in three seconds"
        );
        assert!(
            granted <= steady + limit.capacity(),
            "{limit} added more than a burst: {granted} in three seconds"
        );
    }
}

/// Trap: a draw of zero units sees a state that counts from the new time on, and does not have it written.
#[test]
fn a_state_rebased_after_a_clock_was_set_back_is_written_even_if_nothing_is_granted() {
    let now = Micros::new(1_700_000_000_000_000);
    for limit in all_limits().iter().filter(|limit| !limit.uses_list_state()) {
        let ahead = limit.step(None, now.plus(Span::HOUR), Amount::exactly(1)).state;
        let step = limit.step(Some(ahead), now, Amount::ZERO);
        assert!(step.needs_write && step.state != ahead, "{limit}: {step:?}");
    }
}

/// Permits are released by their holders: a clock that is set back only delays the expiry of those that are never
/// released.
#[test]
fn a_clock_set_back_frees_no_held_slot() {
    let limit = limit(Algorithm::Concurrency, "1/s");
    let mut cell = SingleKeyStore::default();
    assert!(take(&mut cell, &limit, Span::HOUR, 1));
    assert!(!take(&mut cell, &limit, Span::secs(2), 1));
    cell.apply(START.plus(Span::secs(2)), &limit, Op::Refund(1), PermitId(0));
    assert!(take(&mut cell, &limit, Span::secs(2), 1));
}

/// Trap: after a change of quota the old rate persists for as long as a client keeps sending requests.
#[test]
fn a_new_rate_applies_even_if_the_first_draw_is_denied() {
    let (slow, fast) =
        (limit(Algorithm::TokenBucket, "1/day"), limit(Algorithm::TokenBucket, "10/s burst 1"));
    let mut cell = SingleKeyStore::default();
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
        let mut cell = SingleKeyStore::default();
        assert!(take(&mut cell, &before, Span::ZERO, taken));
        cell.apply(START, &after, Op::Peek(Amount::ZERO), PermitId(0)).remaining
    };
    assert_eq!(left("100/h", 60, "1000/h"), 40);
    assert_eq!(left("100/h", 60, "30/h"), 30);
    assert_eq!(left("100/h", 60, "7/s burst 100"), 40);
    assert_eq!(left("100/h", 100, "1000/h"), 0);
    assert_eq!(left("100/h", 0, "1000/h"), 1000, "an unused key has the full capacity");
}

#[test]
fn a_change_of_quota_keeps_the_used_units_of_a_window() {
    for algorithm in [
        Algorithm::FixedWindow(Align::FirstHit),
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog(LogSize::Standard),
    ] {
        let (before, after) = (limit(algorithm, "100/h"), limit(algorithm, "1000/h"));
        let mut cell = SingleKeyStore::default();
        assert!(take(&mut cell, &before, Span::ZERO, 60));
        let reply = cell.apply(START, &after, Op::Peek(Amount::ZERO), PermitId(0));
        assert_eq!(reply.remaining, 940, "{after}");
    }
}

#[test]
fn a_state_of_another_algorithm_is_ignored() {
    let (bucket, window) =
        (limit(Algorithm::TokenBucket, "10/s"), limit(Algorithm::SlidingWindowCounter, "10/s"));
    let state = bucket.step(None, START, Amount::exactly(5)).state;
    assert_eq!(window.adopt(state, &bucket, START), None);
    assert_eq!(limit(Algorithm::LeakyBucket(Leak::Meter), "10/s").adopt(state, &bucket, START), None);
}

/// A limit with a list state has no fixed-size state, and the other way round: neither grants anything by mistake.
#[test]
fn the_wrong_kind_of_state_grants_nothing() {
    let (log, bucket) = (
        limit(Algorithm::SlidingWindowLog(LogSize::Standard), "10/s"),
        limit(Algorithm::TokenBucket, "10/s"),
    );
    let slots = limit(Algorithm::Concurrency, "10/s");
    assert_eq!(log.step(None, START, Amount::exactly(1)).granted, None);
    assert_eq!(bucket.step_list(&mut log.new_list(), START, Amount::exactly(1), PermitId(0)), None);
    assert_eq!(log.step_list(&mut slots.new_list(), START, Amount::exactly(1), PermitId(0)), None);
    assert!(log.is_expired(State::default(), START));
}

/// A queue still predicts the exact time of a turn after the clock steps back.
#[test]
fn a_clock_that_steps_back_keeps_a_queue_in_order() {
    let limit = limit(Algorithm::LeakyBucket(Leak::Queue), "10/s burst 5");
    let mut cell = SingleKeyStore::default();
    assert!(take(&mut cell, &limit, Span::SECOND, 3));
    let mut retry = |at: u64, max_delay: u64| {
        let amount = Amount::exactly(1).with_max_delay(Span::millis(max_delay));
        cell.apply(START.plus(Span::millis(at)), &limit, Op::Peek(amount), PermitId(0)).retry
    };
    assert_eq!(retry(900, 350), Some(Retry::After(Span::millis(50))));
    assert_eq!(retry(950, 350), None);
    assert_eq!(retry(900, 250), Some(Retry::After(Span::millis(150))));
}

/// A lower quota applies at once: units used beyond it don't count for longer than the windows they were used in.
#[test]
fn a_lowered_quota_applies_to_the_counted_windows() {
    let (before, after) =
        (limit(Algorithm::SlidingWindowCounter, "100/h"), limit(Algorithm::SlidingWindowCounter, "10/h"));
    let into_the_window = START.get() % Span::HOUR.get();
    let at = |halves: u64| START.plus(Span::micros(halves * Span::HOUR.get() / 2 - into_the_window));
    let left = |cell: &mut SingleKeyStore, now| {
        cell.apply(now, &after, Op::Peek(Amount::ZERO), PermitId(0)).remaining
    };
    let mut cell = SingleKeyStore::default();
    cell.apply(at(2), &before, Op::Take(Amount::exactly(100)), PermitId(0));
    assert_eq!(left(&mut cell, at(3)), 0);
    assert_eq!(left(&mut cell, at(5)), 5, "half of the ten units of a full window");
    let mut cell = SingleKeyStore::default();
    cell.apply(at(2), &before, Op::Take(Amount::exactly(100)), PermitId(0));
    assert_eq!(left(&mut cell, at(5)), 5, "the same if the quota changes one window later");
}

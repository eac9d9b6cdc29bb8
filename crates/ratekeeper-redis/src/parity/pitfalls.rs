//! Known pitfalls of rate-limiting scripts, one test each.

use super::embedded::EmbeddedLua;
use super::fake::{FakeValue, FakeValueKind};
use super::{START, run_until_decided};
use crate::batch::codec::{GroupResult, ScriptCall};
use ratekeeper_core::{
    Algorithm, Align, Amount, DrawOutcome, Draws, Key, Leak, Limit, LogSize, Micros, Op, PermitId, Retry,
    Scope, Span, Zone,
};
use ratekeeper_testkit::{EngineReply, KeyEngine, SingleKeyStore};

/// A script store with its own clock.
struct TrapFixture {
    script: EmbeddedLua,
    now: Micros,
}

impl TrapFixture {
    fn new() -> TrapFixture {
        TrapFixture { script: EmbeddedLua::new(Some(0)), now: START }
    }

    fn advance(&mut self, span: Span) {
        self.now = self.now.plus(span);
    }

    fn apply(&mut self, key: &Key, limit: &Limit, op: Op, permit: u64) -> EngineReply {
        let mut draws = Draws::new();
        draws.push(key.borrow(), Scope(0), *limit, op, PermitId(permit));
        // The caller's clock is years off, which must not matter.
        let guess = self.now.minus(Span::micros(3 * Span::YEAR.get()));
        let now = self.now.get();
        let decided_groups = run_until_decided(
            &mut |call: &ScriptCall, draws: &Draws| self.script.run(call, draws, now),
            &draws,
            &[1],
            guess,
        );
        EngineReply::from(&decided_groups[0].requests[0].group(0)[0])
    }

    fn take(&mut self, limit: &Limit, units: u32) -> EngineReply {
        self.apply(&key(["k"]), limit, Op::Take(Amount::exactly(units)), 0)
    }

    fn is_granted(&mut self, limit: &Limit, units: u32) -> bool {
        self.take(limit, units).outcome == DrawOutcome::Granted(units)
    }

    /// The time to live of each key, in milliseconds.
    fn ttls_ms(&self) -> Vec<u64> {
        let fake = self.script.fake.borrow();
        let now_ms = fake.now_micros / 1000;
        fake.values
            .values()
            .map(|value| value.expires_ms.expect("every key has a time to live") - now_ms)
            .collect()
    }
}

fn key<const N: usize>(parts: [&str; N]) -> Key {
    Key::new(parts).unwrap()
}

fn limit(algorithm: Algorithm, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().unwrap()).unwrap()
}

fn one_limit_per_algorithm() -> Vec<Limit> {
    let algorithms = [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket(Leak::Queue),
        Algorithm::FixedWindow(Align::FirstHit),
        Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog(LogSize::Standard),
        Algorithm::Concurrency,
    ];
    algorithms.map(|algorithm| limit(algorithm, "5/s")).into()
}

/// Pitfall: a denial stores the current time without the units refilled until then.
#[test]
fn a_client_that_retries_constantly_still_gets_its_refill() {
    let (mut store, limit) = (TrapFixture::new(), limit(Algorithm::TokenBucket, "10/s burst 1"));
    assert!(store.is_granted(&limit, 1));
    for _ in 0..99 {
        store.advance(Span::millis(1));
        assert!(!store.is_granted(&limit, 1));
    }
    store.advance(Span::millis(1));
    assert!(store.is_granted(&limit, 1));
}

/// Pitfall: the refill is rounded down to whole units and the rest is lost.
#[test]
fn no_fraction_of_a_unit_is_lost_however_often_a_client_asks() {
    let (mut store, limit) = (TrapFixture::new(), limit(Algorithm::TokenBucket, "7/s"));
    assert!(store.is_granted(&limit, 7));
    let mut granted = 0;
    for _ in 0..1000 {
        store.advance(Span::millis(1));
        granted += u32::from(store.is_granted(&limit, 1));
    }
    assert_eq!(granted, 7);
}

/// Pitfalls: the time to live is written as a point in time, or a denial writes a key without one.
#[test]
fn every_key_expires_once_it_has_drained() {
    for limit in one_limit_per_algorithm() {
        let mut store = TrapFixture::new();
        for _ in 0..7 {
            store.take(&limit, 1);
            store.advance(Span::millis(1));
        }
        assert!(!store.is_granted(&limit, 1), "{limit}");
        let ttls_ms = store.ttls_ms();
        assert!(ttls_ms.iter().all(|ttl_ms| (1000..=3001).contains(ttl_ms)), "{limit}: {ttls_ms:?}");
        store.advance(Span::secs(4));
        store.apply(&key(["k"]), &limit, Op::Peek(Amount::ZERO), 0);
        assert_eq!(store.ttls_ms(), Vec::<u64>::new(), "{limit}");
    }
}

/// Pitfall: a denial creates a key.
#[test]
fn denials_and_peeks_create_no_keys() {
    for limit in one_limit_per_algorithm() {
        let mut store = TrapFixture::new();
        assert_eq!(store.take(&limit, 6).retry, Some(Retry::Never), "{limit}");
        store.apply(&key(["k"]), &limit, Op::Peek(Amount::exactly(1)), 0);
        store.apply(&key(["k"]), &limit, Op::Refund(3), 0);
        store.take(&limit, 0);
        assert_eq!(store.ttls_ms(), Vec::<u64>::new(), "{limit}");
    }
}

/// Pitfall: the usage is compared with the limit before the cost is added.
#[test]
fn a_cost_that_no_longer_fits_is_denied_as_a_whole() {
    for limit in one_limit_per_algorithm() {
        let mut store = TrapFixture::new();
        assert!(store.is_granted(&limit, 4));
        assert!(!store.is_granted(&limit, 2), "{limit}");
        assert!(store.is_granted(&limit, 1), "{limit}");
        assert!(!store.is_granted(&limit, 1), "{limit}");
    }
}

/// Pitfall: log entries are named after their time, so that two in the same microsecond count as one.
#[test]
fn units_in_the_same_microsecond_all_count() {
    for limit in one_limit_per_algorithm() {
        let mut store = TrapFixture::new();
        // Even the same permit in the same microsecond.
        let granted = (0..9).filter(|_| store.is_granted(&limit, 1)).count();
        assert_eq!(granted, 5, "{limit}");
    }
}

/// Pitfall: an idle bucket refills beyond its capacity.
#[test]
fn an_idle_bucket_is_full_and_no_fuller() {
    let limit = limit(Algorithm::TokenBucket, "10/s burst 3");
    for idle in [Span::millis(300), Span::millis(900), Span::secs(2), Span::YEAR] {
        let mut store = TrapFixture::new();
        assert!(store.is_granted(&limit, 2));
        store.advance(idle);
        assert!(!store.is_granted(&limit, 4));
        assert!(store.is_granted(&limit, 3), "after {idle}");
        assert!(!store.is_granted(&limit, 1), "after {idle}");
    }
}

/// Pitfall: the retry time is rounded down.
#[test]
fn a_retry_succeeds_at_the_announced_time_and_not_a_microsecond_earlier() {
    for limit in one_limit_per_algorithm() {
        let mut store = TrapFixture::new();
        assert!(store.is_granted(&limit, 5));
        let Some(Retry::After(span)) = store.take(&limit, 3).retry else { panic!("{limit}") };
        store.advance(Span::micros(span.get() - 1));
        assert!(!store.is_granted(&limit, 3), "{limit}");
        store.advance(Span::micros(1));
        assert!(store.is_granted(&limit, 3), "{limit}");
    }
}

/// Pitfall: key parts are joined by an unescaped separator, so that keys collide.
#[test]
fn similar_keys_are_counted_separately() {
    let (mut store, limit) = (TrapFixture::new(), limit(Algorithm::TokenBucket, "1/day"));
    let keys = [
        key(["a:b"]),
        key(["a", "b"]),
        key(["a", "b", ""]),
        key(["", "a", "b"]),
        key(["a%3Ab"]),
        key(["a}:b"]),
    ];
    for key in &keys {
        assert_eq!(
            store.apply(key, &limit, Op::Take(Amount::exactly(1)), 0).outcome,
            DrawOutcome::Granted(1),
            "{key}"
        );
    }
    assert_eq!(store.ttls_ms().len(), keys.len());
}

/// Pitfall: a release frees a permit of another holder, or the same permit twice.
#[test]
fn a_release_frees_only_its_own_permit_and_only_once() {
    let (mut store, limit) = (TrapFixture::new(), limit(Algorithm::Concurrency, "2/min"));
    let mut act = |op, permit| store.apply(&key(["k"]), &limit, op, permit);
    let take = Op::Take(Amount::exactly(1));
    assert_eq!(act(take, 1).remaining, 1);
    assert_eq!(act(take, 2).remaining, 0);
    assert_eq!(act(Op::Refund(u32::MAX), 3).remaining, 0, "a holder without a permit frees nothing");
    assert_eq!(act(Op::Refund(u32::MAX), 1).remaining, 1);
    assert_eq!(act(Op::Refund(u32::MAX), 1).remaining, 1, "a second release frees nothing");
}

/// A foreign value that is no state counts as none. A key of another type fails only its own group.
#[test]
fn foreign_values_do_not_affect_other_keys() {
    let (bucket, log) =
        (limit(Algorithm::TokenBucket, "5/s"), limit(Algorithm::SlidingWindowLog(LogSize::Standard), "5/s"));
    let mut store = TrapFixture::new();
    let write = |store: &TrapFixture, name: &str, data| {
        let value = FakeValue { data, expires_ms: None };
        store.script.fake.borrow_mut().values.insert(name.into(), value);
    };
    write(&store, "rk1:{k}:b", FakeValueKind::Text(b"hello".to_vec()));
    assert_eq!(store.take(&bucket, 5).remaining, 0);
    assert_eq!(store.take(&bucket, 5).outcome, DrawOutcome::Denied);

    write(&store, "rk1:{long}:b", FakeValueKind::Text(vec![b'x'; 300]));
    write(&store, "rk1:{text}:g", FakeValueKind::Text(b"hello".to_vec()));
    write(&store, "rk1:{list}:g", FakeValueKind::List([b"a".to_vec(), b"b".to_vec()].into()));
    let (mut draws, mut call) = (Draws::new(), ScriptCall::default());
    for (key, limit) in [("long", bucket), ("text", log), ("fine", log), ("list", log), ("fine", bucket)] {
        draws.begin_group();
        draws.push(key.into(), Scope(0), limit, Op::Take(Amount::exactly(1)), PermitId(0));
    }
    call.reset(START);
    (0..draws.len()).for_each(|group| call.push(&draws, group, 1, None));
    let bytes = store.script.run(&call, &draws, START.get());
    let is_decided: Vec<_> = call
        .read_reply(&bytes)
        .unwrap()
        .map(|result| matches!(result, Ok(GroupResult::Decided(_))))
        .collect();
    assert_eq!(is_decided, [false, false, true, false, true]);
}

/// Runs operations at these milliseconds through the script and the algorithms, which must agree. Returns the last
/// reply.
fn last_agreed_reply(ops: &[(u64, &Limit, Op)]) -> EngineReply {
    let (mut store, mut cell) =
        (TrapFixture { script: EmbeddedLua::new(None), now: START }, SingleKeyStore::default());
    let since_second_start = START.get() % Span::SECOND.get();
    let mut last = None;
    for (millis, limit, op) in ops {
        store.now = START.plus(Span::micros(millis * 1000 + Span::SECOND.get() - since_second_start));
        let reply = store.apply(&key(["k"]), limit, *op, 0);
        assert_eq!(reply, cell.apply(store.now, limit, *op, PermitId(0)), "{limit} at {millis} ms");
        last = Some(reply);
    }
    last.expect("there is at least one operation")
}

/// Pitfall: after the clock steps back, units used in later windows are granted again.
#[test]
fn a_clock_that_steps_back_stays_in_the_latest_window() {
    let (take, slides) = (Op::Take(Amount::exactly(5)), limit(Algorithm::SlidingWindowCounter, "10/s"));
    let two = Op::Take(Amount::exactly(2));
    let reply = last_agreed_reply(&[
        (0, &slides, take),
        (10, &slides, take),
        (1500, &slides, take),
        (700, &slides, two),
    ]);
    assert_eq!((reply.outcome, reply.remaining), (DrawOutcome::Denied, 0));
}

/// Pitfall: after the clock steps back, entries that a log had dropped count again.
#[test]
fn a_clock_that_steps_back_does_not_lengthen_a_log() {
    let algorithm = Algorithm::SlidingWindowLog(LogSize::Standard);
    let (long, short, take) =
        (limit(algorithm, "7/s"), limit(algorithm, "7 per 300ms"), Op::Take(Amount::exactly(1)));
    let reply =
        last_agreed_reply(&[(0, &long, take), (900, &long, take), (200, &short, Op::Peek(Amount::ZERO))]);
    assert_eq!(reply.remaining, 6);
}

#[test]
fn a_queue_wait_exactly_as_long_as_allowed_is_granted() {
    let queue = limit(Algorithm::LeakyBucket(Leak::Queue), "10/s burst 5");
    let take = |wait_ms| Op::Take(Amount::exactly(1).with_max_delay(Span::millis(wait_ms)));
    assert_eq!(
        last_agreed_reply(&[(0, &queue, take(0)), (0, &queue, take(100))]).outcome,
        DrawOutcome::Granted(1)
    );
    assert_eq!(
        last_agreed_reply(&[(0, &queue, take(0)), (0, &queue, take(99))]).outcome,
        DrawOutcome::Denied
    );
}

/// Pitfall: the caller's calendar decides, although its clock may be wrong. Instead the script reports that its time is
/// outside all windows that were sent, and gets the right ones.
#[test]
fn the_calendar_follows_the_clock_of_the_store() {
    let days = limit(Algorithm::FixedWindow(Align::WallClock("Europe/Berlin".parse().unwrap())), "5/day");
    let (mut store, mut cell) = (TrapFixture::new(), SingleKeyStore::default());
    let hours = (0..400).flat_map(|hour| [hour, hour]);
    for hour in hours {
        // Half a year, so that daylight saving time changes on the way, and never on the full hour.
        store.now = START.plus(Span::micros(hour * 11 * Span::HOUR.get()));
        let op = Op::Take(Amount::exactly(2));
        let reply = store.apply(&key(["k"]), &days, op, 0);
        assert_eq!(reply, cell.apply(store.now, &days, op, PermitId(0)), "after {hour} times 11 hours");
    }
}

#[test]
fn a_group_outside_its_calendar_is_not_decided() {
    let months = limit(Algorithm::FixedWindow(Align::WallClock(Zone::UTC)), "5/month");
    let (mut draws, mut call, script) = (Draws::new(), ScriptCall::default(), EmbeddedLua::new(Some(0)));
    draws.push("k".into(), Scope(0), months, Op::Take(Amount::exactly(1)), PermitId(0));
    for (guess, is_decided) in [
        (START, true),
        (START.plus(Span::DAY), true),
        (START.minus(Span::DAY), true),
        (START.plus(Span::YEAR), false),
        (START.minus(Span::YEAR), false),
    ] {
        script.fake.borrow_mut().values.clear();
        call.reset(guess);
        call.push(&draws, 0, 1, None);
        let bytes = script.run(&call, &draws, START.get());
        let result = call.read_reply(&bytes).unwrap().next();
        assert_eq!(matches!(result, Some(Ok(GroupResult::Decided(_)))), is_decided, "{guess:?}");
        assert_eq!(matches!(result, Some(Ok(GroupResult::Retry(_)))), !is_decided, "{guess:?}");
        assert_eq!(script.fake.borrow().values.len(), usize::from(is_decided));
    }
}

/// Pitfall: after a refund of the newest units, an expired unit is retained for a prior quota, together with its header.
#[test]
fn a_log_retains_nothing_for_a_prior_quota_once_its_newest_unit_has_expired() {
    let log = |quota| limit(Algorithm::SlidingWindowLog(LogSize::Standard), quota);
    let (long, short) = (log("30 per 1s"), log("30 per 300ms"));
    let mut store = TrapFixture::new();
    assert!(store.is_granted(&long, 1));
    store.advance(Span::millis(180));
    assert!(store.is_granted(&long, 3));
    store.apply(&key(["k"]), &short, Op::Refund(3), 0);
    store.advance(Span::millis(920));
    assert!(store.is_granted(&short, 5));
    let fake = store.script.fake.borrow();
    let FakeValueKind::List(entries) = &fake.values[&b"rk1:{k}:g"[..]].data else {
        panic!("a log is a list")
    };
    assert_eq!(entries.iter().map(Vec::len).collect::<Vec<_>>(), [7, 18], "a plain header and one entry");
}

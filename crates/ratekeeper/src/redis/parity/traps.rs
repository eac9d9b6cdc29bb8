//! What scripts of this kind are known to get wrong, one test each.

use super::embedded::Embedded;
use super::fake::{FakeValue, FakeValueKind};
use super::{START, settle};
use crate::redis::script_call::{GroupResult, ScriptCall};
use ratekeeper_core::{
    Algorithm, Align, Amount, DrawOutcome, Draws, Key, Leak, Limit, LogSize, Micros, Op, PermitId, Retry,
    Scope, Span, Zone,
};
use ratekeeper_testkit::{Cell, EngineReply, KeyEngine};

/// A store that the script keeps, with a clock of its own.
struct TrapFixture {
    script: Embedded,
    now: Micros,
}

impl TrapFixture {
    fn new() -> TrapFixture {
        TrapFixture { script: Embedded::new(Some(0)), now: START }
    }

    fn wait(&mut self, span: Span) {
        self.now = self.now.plus(span);
    }

    fn act(&mut self, key: &Key, limit: &Limit, act: Op, permit: u64) -> EngineReply {
        let mut draws = Draws::new();
        draws.push(key.borrow(), Scope(0), *limit, act, PermitId(permit));
        // Whoever sends the parcel has a clock that is years off: nobody asks it for the time.
        let guess = self.now.less(Span::micros(3 * Span::YEAR.get()));
        let now = self.now.get();
        let settled = settle(&mut |parcel: &ScriptCall| self.script.run(parcel, now), &draws, &[1], guess);
        EngineReply::from(&settled[0].requests[0].group(0)[0])
    }

    fn take(&mut self, limit: &Limit, units: u32) -> EngineReply {
        self.act(&key(["k"]), limit, Op::Take(Amount::exactly(units)), 0)
    }

    fn is_granted(&mut self, limit: &Limit, units: u32) -> bool {
        self.take(limit, units).answer == DrawOutcome::Granted(units)
    }

    /// For how many milliseconds what is kept stays; nothing if there is nothing.
    fn ttls_ms(&self) -> Vec<u64> {
        let fake = self.script.fake.borrow();
        let now_ms = fake.now_micros / 1000;
        fake.kept
            .values()
            .map(|kept| kept.lapses_ms.expect("everything has a time to live") - now_ms)
            .collect()
    }
}

fn key<const N: usize>(parts: [&str; N]) -> Key {
    Key::new(parts).unwrap()
}

fn limit(law: Algorithm, quota: &str) -> Limit {
    Limit::new(law, quota.parse().unwrap()).unwrap()
}

fn one_of_each() -> Vec<Limit> {
    let laws = [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket(Leak::Queue),
        Algorithm::FixedWindow(Align::FirstHit),
        Algorithm::FixedWindow(Align::Wall(Zone::UTC)),
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog(LogSize::Modest),
        Algorithm::Concurrency,
    ];
    laws.map(|law| limit(law, "5/s")).into()
}

/// Trap: a refusal notes the time and not what was refilled until then.
#[test]
fn a_client_that_hammers_is_served_all_the_same() {
    let (mut store, limit) = (TrapFixture::new(), limit(Algorithm::TokenBucket, "10/s burst 1"));
    assert!(store.is_granted(&limit, 1));
    for _ in 0..99 {
        store.wait(Span::millis(1));
        assert!(!store.is_granted(&limit, 1));
    }
    store.wait(Span::millis(1));
    assert!(store.is_granted(&limit, 1));
}

/// Trap: the refill is counted in whole units and the rest is dropped.
#[test]
fn no_fraction_of_a_unit_is_lost_however_often_one_asks() {
    let (mut store, limit) = (TrapFixture::new(), limit(Algorithm::TokenBucket, "7/s"));
    assert!(store.is_granted(&limit, 7));
    let mut granted = 0;
    for _ in 0..1000 {
        store.wait(Span::millis(1));
        granted += u32::from(store.is_granted(&limit, 1));
    }
    assert_eq!(granted, 7);
}

/// Traps: the time to live is a point in time, or what is written on refusal has none.
#[test]
fn everything_goes_once_it_has_drained() {
    for limit in one_of_each() {
        let mut store = TrapFixture::new();
        for _ in 0..7 {
            store.take(&limit, 1);
            store.wait(Span::millis(1));
        }
        assert!(!store.is_granted(&limit, 1), "{limit}");
        let ttls_ms = store.ttls_ms();
        assert!(ttls_ms.iter().all(|ttl_ms| (1000..=3001).contains(ttl_ms)), "{limit}: {ttls_ms:?}");
        store.wait(Span::secs(4));
        store.act(&key(["k"]), &limit, Op::Look(Amount::PEEK), 0);
        assert_eq!(store.ttls_ms(), Vec::<u64>::new(), "{limit}");
    }
}

/// Trap: a refusal leaves something behind.
#[test]
fn who_was_only_refused_or_looked_at_leaves_nothing() {
    for limit in one_of_each() {
        let mut store = TrapFixture::new();
        assert_eq!(store.take(&limit, 6).retry, Some(Retry::Never), "{limit}");
        store.act(&key(["k"]), &limit, Op::Look(Amount::exactly(1)), 0);
        store.act(&key(["k"]), &limit, Op::Give(3), 0);
        store.take(&limit, 0);
        assert_eq!(store.ttls_ms(), Vec::<u64>::new(), "{limit}");
    }
}

/// Trap: what is used is compared with the limit before the cost is added.
#[test]
fn a_cost_that_no_longer_fits_is_refused_whole() {
    for limit in one_of_each() {
        let mut store = TrapFixture::new();
        assert!(store.is_granted(&limit, 4));
        assert!(!store.is_granted(&limit, 2), "{limit}");
        assert!(store.is_granted(&limit, 1), "{limit}");
        assert!(!store.is_granted(&limit, 1), "{limit}");
    }
}

/// Trap: the members of a log are named after the time, so that two of one microsecond are one.
#[test]
fn units_of_one_microsecond_count_each() {
    for limit in one_of_each() {
        let mut store = TrapFixture::new();
        // Even the same permit in the same microsecond.
        let granted = (0..9).filter(|_| store.is_granted(&limit, 1)).count();
        assert_eq!(granted, 5, "{limit}");
    }
}

/// Trap: a bucket that nobody drew from for long holds more than it can.
#[test]
fn an_idle_bucket_is_full_and_no_fuller() {
    let limit = limit(Algorithm::TokenBucket, "10/s burst 3");
    for idle in [Span::millis(300), Span::millis(900), Span::secs(2), Span::YEAR] {
        let mut store = TrapFixture::new();
        assert!(store.is_granted(&limit, 2));
        store.wait(idle);
        assert!(!store.is_granted(&limit, 4));
        assert!(store.is_granted(&limit, 3), "after {idle}");
        assert!(!store.is_granted(&limit, 1), "after {idle}");
    }
}

/// Trap: the time to come back is rounded down to now.
#[test]
fn who_comes_back_when_told_is_served_and_not_a_microsecond_earlier() {
    for limit in one_of_each() {
        let mut store = TrapFixture::new();
        assert!(store.is_granted(&limit, 5));
        let Some(Retry::After(span)) = store.take(&limit, 3).retry else { panic!("{limit}") };
        store.wait(Span::micros(span.get() - 1));
        assert!(!store.is_granted(&limit, 3), "{limit}");
        store.wait(Span::micros(1));
        assert!(store.is_granted(&limit, 3), "{limit}");
    }
}

/// Trap: parts are joined by a bare separator, so that two keys meet.
#[test]
fn keys_that_read_alike_are_counted_apart() {
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
            store.act(key, &limit, Op::Take(Amount::exactly(1)), 0).answer,
            DrawOutcome::Granted(1),
            "{key}"
        );
    }
    assert_eq!(store.ttls_ms().len(), keys.len());
}

/// Trap: a release frees somebody else's place, or the same place twice.
#[test]
fn a_release_frees_its_own_place_once() {
    let (mut store, limit) = (TrapFixture::new(), limit(Algorithm::Concurrency, "2/min"));
    let mut act = |act, permit| store.act(&key(["k"]), &limit, act, permit);
    let take = Op::Take(Amount::exactly(1));
    assert_eq!(act(take, 1).remaining, 1);
    assert_eq!(act(take, 2).remaining, 0);
    assert_eq!(act(Op::Give(u32::MAX), 3).remaining, 0, "who holds nothing frees nothing");
    assert_eq!(act(Op::Give(u32::MAX), 1).remaining, 1);
    assert_eq!(act(Op::Give(u32::MAX), 1).remaining, 1, "twice is once");
}

/// What is no state is taken for none; what is of another kind is left alone, and its neighbours are served.
#[test]
fn what_others_left_under_a_name_harms_nobody_else() {
    let (bucket, log) =
        (limit(Algorithm::TokenBucket, "5/s"), limit(Algorithm::SlidingWindowLog(LogSize::Modest), "5/s"));
    let mut store = TrapFixture::new();
    let leave = |store: &TrapFixture, name: &str, data| {
        let kept = FakeValue { data, lapses_ms: None };
        store.script.fake.borrow_mut().kept.insert(name.into(), kept);
    };
    leave(&store, "rk1:{k}:b", FakeValueKind::Text(b"hello".to_vec()));
    assert_eq!(store.take(&bucket, 5).remaining, 0);
    assert_eq!(store.take(&bucket, 5).answer, DrawOutcome::Refused);

    leave(&store, "rk1:{long}:b", FakeValueKind::Text(vec![b'x'; 300]));
    leave(&store, "rk1:{text}:g", FakeValueKind::Text(b"hello".to_vec()));
    leave(&store, "rk1:{list}:g", FakeValueKind::List([b"a".to_vec(), b"b".to_vec()].into()));
    let (mut draws, mut parcel) = (Draws::new(), ScriptCall::new());
    for (key, limit) in [("long", bucket), ("text", log), ("fine", log), ("list", log), ("fine", bucket)] {
        draws.begin();
        draws.push(key.into(), Scope(0), limit, Op::Take(Amount::exactly(1)), PermitId(0));
    }
    parcel.start(START);
    (0..draws.len()).for_each(|group| parcel.add(&draws, group, 1));
    let bytes = store.script.run(&parcel, START.get());
    let is_decided: Vec<_> =
        parcel.read(&bytes).unwrap().map(|fate| matches!(fate, Ok(GroupResult::Decided(_)))).collect();
    assert_eq!(is_decided, [false, false, true, false, true]);
}

/// Runs acts at these milliseconds through the script and the laws, which must agree, and says what the last was told.
fn agreed(acts: &[(u64, &Limit, Op)]) -> EngineReply {
    let (mut store, mut cell) = (TrapFixture { script: Embedded::new(None), now: START }, Cell::default());
    let into_the_second = START.get() % Span::SECOND.get();
    let mut last = None;
    for (millis, limit, act) in acts {
        store.now = START.plus(Span::micros(millis * 1000 + Span::SECOND.get() - into_the_second));
        let said = store.act(&key(["k"]), limit, *act, 0);
        assert_eq!(said, cell.act(store.now, limit, *act, PermitId(0)), "{limit} at {millis} ms");
        last = Some(said);
    }
    last.expect("there was an act")
}

/// Trap: a clock that steps back lends what the windows reached before had used.
#[test]
fn a_clock_that_steps_back_stays_in_the_window_it_had_reached() {
    let (take, slides) = (Op::Take(Amount::exactly(5)), limit(Algorithm::SlidingWindowCounter, "10/s"));
    let two = Op::Take(Amount::exactly(2));
    let told = agreed(&[(0, &slides, take), (10, &slides, take), (1500, &slides, take), (700, &slides, two)]);
    assert_eq!((told.answer, told.remaining), (DrawOutcome::Refused, 0));
}

/// Trap: a clock that steps back brings back what a log had let go.
#[test]
fn a_clock_that_steps_back_does_not_lengthen_a_log() {
    let law = Algorithm::SlidingWindowLog(LogSize::Modest);
    let (long, short, take) = (limit(law, "7/s"), limit(law, "7 per 300ms"), Op::Take(Amount::exactly(1)));
    let told = agreed(&[(0, &long, take), (900, &long, take), (200, &short, Op::Look(Amount::PEEK))]);
    assert_eq!(told.remaining, 6);
}

#[test]
fn a_patience_that_just_lasts_is_enough() {
    let queue = limit(Algorithm::LeakyBucket(Leak::Queue), "10/s burst 5");
    let take = |patience_ms| Op::Take(Amount::exactly(1).within(Span::millis(patience_ms)));
    assert_eq!(agreed(&[(0, &queue, take(0)), (0, &queue, take(100))]).answer, DrawOutcome::Granted(1));
    assert_eq!(agreed(&[(0, &queue, take(0)), (0, &queue, take(99))]).answer, DrawOutcome::Refused);
}

/// Trap: the calendar of the caller decides, whose clock may be anywhere. The script says that it is in no window it was
/// told of, and is told of the right ones.
#[test]
fn the_day_is_that_of_the_store() {
    let days = limit(Algorithm::FixedWindow(Align::Wall("Europe/Berlin".parse().unwrap())), "5/day");
    let (mut store, mut cell) = (TrapFixture::new(), Cell::default());
    let hours = (0..400).flat_map(|hour| [hour, hour]);
    for hour in hours {
        // Half a year, so that the clocks change on the way, and never on the full hour.
        store.now = START.plus(Span::micros(hour * 11 * Span::HOUR.get()));
        let act = Op::Take(Amount::exactly(2));
        let said = store.act(&key(["k"]), &days, act, 0);
        assert_eq!(said, cell.act(store.now, &days, act, PermitId(0)), "after {hour} times 11 hours");
    }
}

#[test]
fn a_group_outside_of_its_calendar_is_left_alone() {
    let months = limit(Algorithm::FixedWindow(Align::Wall(Zone::UTC)), "5/month");
    let (mut draws, mut parcel, script) = (Draws::new(), ScriptCall::new(), Embedded::new(Some(0)));
    draws.push("k".into(), Scope(0), months, Op::Take(Amount::exactly(1)), PermitId(0));
    for (guess, is_known) in [
        (START, true),
        (START.plus(Span::DAY), true),
        (START.less(Span::DAY), true),
        (START.plus(Span::YEAR), false),
        (START.less(Span::YEAR), false),
    ] {
        script.fake.borrow_mut().kept.clear();
        parcel.start(guess);
        parcel.add(&draws, 0, 1);
        let bytes = script.run(&parcel, START.get());
        let fate = parcel.read(&bytes).unwrap().next();
        assert_eq!(matches!(fate, Some(Ok(GroupResult::Decided(_)))), is_known, "{guess:?}");
        assert_eq!(matches!(fate, Some(Ok(GroupResult::Again(_)))), !is_known, "{guess:?}");
        assert_eq!(script.fake.borrow().kept.len(), usize::from(is_known));
    }
}

//! The script and the laws, held together.
//!
//! Random requests run through the laws in Rust and through the very script, in a Lua of our own whose clock the test
//! sets: the answers must be the same, and so must every byte that is kept, and for how long.

mod embedded;
mod fake;
mod lent;
mod orders;
mod servers;
mod suite;
mod traps;
mod twin;
mod unwritable;

use super::script_call::{GroupResult, Readopt, RenewalResult, ScriptCall};
use embedded::Embedded;
use fake::FakeValueKind;
use orders::{Ledger, RandomRenewal};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use ratekeeper_core::{
    Algorithm, Align, Amount, DrawOptions, DrawResult, Draws, Leak, Limit, LogSize, Micros, Op, PermitId,
    Scope, Span, Zone,
};
use ratekeeper_testkit::EngineReply as Told;
use std::collections::HashMap;
use twin::Twin;

const START: Micros = Micros::new(1_700_000_000_123_457);

const KEYS: [&str; 2] = ["a", "b"];

/// One draw of a random request.
#[derive(Clone, Debug)]
struct RandomDraw {
    key: usize,
    limit: usize,
    act: Op,
    permit: u64,
    is_shadow: bool,
}

/// Some requests that travel together, after the clock has moved.
#[derive(Clone, Debug)]
struct RandomTurn {
    forward: u64,
    back: u64,
    /// Each with how often it is made at once.
    groups: Vec<(Vec<RandomDraw>, u32)>,
    /// What nodes say of units that they were lent, and wish to be lent.
    orders: Vec<RandomRenewal>,
}

/// Per law two limits of different quotas; a change of rules is a draw from the other one.
fn limits() -> Vec<Limit> {
    let limit = |law, quota: &str| Limit::new(law, quota.parse().unwrap()).unwrap();
    let berlin = "Europe/Berlin".parse().unwrap();
    let wall = Algorithm::FixedWindow(Align::Wall(Zone::UTC));
    vec![
        limit(Algorithm::TokenBucket, "10/s burst 4"),
        limit(Algorithm::TokenBucket, "7/s burst 9"),
        limit(Algorithm::LeakyBucket(Leak::Meter), "20/s burst 3"),
        limit(Algorithm::LeakyBucket(Leak::Queue), "11/s burst 5"),
        limit(Algorithm::FixedWindow(Align::FirstHit), "5/s"),
        limit(wall, "9 per 2s"),
        limit(Algorithm::FixedWindow(Align::Wall(berlin)), "12/day"),
        limit(Algorithm::SlidingWindowCounter, "6/s"),
        limit(Algorithm::SlidingWindowCounter, "300 per 700ms"),
        limit(Algorithm::SlidingWindowLog(LogSize::Modest), "7/s"),
        limit(Algorithm::SlidingWindowLog(LogSize::Modest), "30 per 300ms"),
        limit(Algorithm::Concurrency, "8/s"),
        limit(Algorithm::Concurrency, "5 per 200ms"),
        limit(Algorithm::TokenBucket, "4294967295/month burst 100"),
        limit(wall, "3/month"),
        limit(Algorithm::TokenBucket, "100/min"),
    ]
}

/// Those of which units are lent, and a queue that may take one over: what is lent matters for a minute, and keys meet often.
fn lending_limits() -> Vec<Limit> {
    let limit = |law, quota: &str| Limit::new(law, quota.parse().unwrap()).unwrap();
    vec![
        limit(Algorithm::TokenBucket, "100/min"),
        limit(Algorithm::TokenBucket, "10/s burst 40"),
        // Ticks of a tenth of a second, and of 100 seconds, which is more than a term.
        limit(Algorithm::TokenBucket, "4294967295/month burst 4000000000"),
        limit(Algorithm::TokenBucket, "4294967291/year"),
        limit(Algorithm::LeakyBucket(Leak::Meter), "1/s burst 30"),
        limit(Algorithm::LeakyBucket(Leak::Queue), "11/s burst 5"),
        limit(Algorithm::FixedWindow(Align::FirstHit), "50/min"),
        limit(Algorithm::FixedWindow(Align::Wall(Zone::UTC)), "12/day"),
        limit(Algorithm::SlidingWindowCounter, "60/min"),
    ]
}

fn turns(limits: &[Limit], steps: ClockSteps) -> impl Strategy<Value = Vec<RandomTurn>> {
    let units = prop_oneof![8 => 0..4_u32, 1 => 4..40_u32, 1 => Just(u32::MAX)];
    let ask = (units.clone(), 0..12_u32, 0..3_000_000_u64).prop_map(|(units, more, patience)| match more {
        0 => Amount::between(units, units.saturating_add(5)),
        1 => Amount::exactly(units).within(Span::micros(patience)),
        2 => Amount::between(units / 2, units).within(Span::micros(patience / 10)),
        _ => Amount::exactly(units),
    });
    let act = prop_oneof![
        12 => ask.clone().prop_map(Op::Take),
        2 => ask.prop_map(Op::Look),
        2 => units.prop_map(Op::Give),
        1 => Just(Op::Clear),
    ];
    let wish = (0..2_usize, 0..limits.len(), act, 0..5_u64, proptest::bool::weighted(0.15));
    let wish = wish.prop_map(|(key, limit, act, permit, is_shadow)| RandomDraw {
        key,
        limit,
        act,
        permit,
        is_shadow,
    });
    let group = (vec(wish, 1..4), prop_oneof![4 => Just(1_u32), 1 => 2..7_u32]);
    let second = match steps {
        ClockSteps::Seconds => 1_000_000_u64,
        ClockSteps::Terms => 15_000_000,
    };
    let forward = prop_oneof![
        3 => Just(0_u64), 4 => 0..second * 3 / 10, 2 => 0..second * 3,
        1 => select(vec![1_000_000_u64, 30_000_000, 86_400_000_000]),
    ];
    let back = prop_oneof![9 => Just(0_u64), 1 => 0..second * 5 / 2];
    let turn = (forward, back, vec(group, 1..6), orders::orders(limits));
    let turn = turn.prop_map(|(forward, back, groups, orders)| RandomTurn { forward, back, groups, orders });
    vec(turn, 1..25)
}

/// How far the clock moves from one turn to the next.
#[derive(Clone, Copy)]
enum ClockSteps {
    /// So far that the limits of a second refill.
    Seconds,
    /// So far that leases lapse.
    Terms,
}

/// Adds a request's draws. A group is of one kind, and no key is under two quotas of a law in the same turn: `bound` has
/// the limit that each key and family is under.
fn fill(
    draws: &mut Draws,
    group: &[RandomDraw],
    limits: &[Limit],
    bound: &mut HashMap<(usize, usize), Limit>,
) {
    draws.begin();
    let is_take = matches!(group[0].act, Op::Take(_));
    for wish in group {
        let limit = limits[wish.limit];
        let is_own_kind = std::mem::discriminant(&group[0].act) == std::mem::discriminant(&wish.act);
        if *bound.entry((wish.key, limit.family())).or_insert(limit) == limit && is_own_kind {
            draws.push(KEYS[wish.key].into(), Scope(0), limit, wish.act, PermitId(wish.permit));
            draws.set_terms(DrawOptions { is_shadow: wish.is_shadow && is_take, ..DrawOptions::default() });
        }
    }
}

/// What an outcome says to a client: a drained state and none say the same.
fn told(limit: &Limit, ask: Amount, outcome: DrawResult) -> Told {
    Told::from(&ratekeeper_core::LimitStatus::new(limit, ask, outcome))
}

/// A group that was decided.
struct SettledGroup {
    group: usize,
    /// When Rust saw what another limit had written, if that was in the way.
    seen: Option<Micros>,
    /// What each of its requests was told.
    requests: Vec<Draws>,
}

/// Sends groups through the script until all are decided. Says in which order they were.
fn settle(
    engine: &mut impl FnMut(&ScriptCall) -> Vec<u8>,
    draws: &Draws,
    times: &[u32],
    guess: Micros,
) -> Vec<SettledGroup> {
    settle_beside(engine, draws, times, guess, |_| ()).0
}

/// The same with orders, which `order` adds to the first call. Says as well when that was, and what became of them.
fn settle_beside(
    engine: &mut impl FnMut(&ScriptCall) -> Vec<u8>,
    draws: &Draws,
    times: &[u32],
    mut guess: Micros,
    order: impl FnOnce(&mut ScriptCall),
) -> (Vec<SettledGroup>, Micros, Vec<RenewalResult>) {
    let (mut settled, mut first, mut order) = (Vec::new(), None, Some(order));
    let mut waiting: Vec<(usize, Option<Readopt>)> = (0..draws.len()).map(|group| (group, None)).collect();
    let mut parcel = ScriptCall::new();
    for _ in 0..4 {
        parcel.start(guess);
        for (group, again) in &waiting {
            match again {
                None => parcel.add(draws, *group, times[*group]),
                Some(again) => parcel.add_again(draws, *group, times[*group], again),
            }
        }
        if let Some(order) = order.take() {
            order(&mut parcel);
        }
        let bytes = engine(&parcel);
        let mut reply = parcel.read(&bytes).unwrap();
        guess = reply.now();
        let mut left = Vec::new();
        for ((group, again), fate) in waiting.iter().zip(reply.by_ref()) {
            match fate.unwrap() {
                GroupResult::Decided(decided) => {
                    assert_eq!(decided.times(), times[*group]);
                    let requests = (0..times[*group]).map(|request| {
                        let mut own = draws.clone();
                        decided.settle(request, own.group_mut(*group));
                        own
                    });
                    let seen = again.as_ref().map(Readopt::now);
                    settled.push(SettledGroup { group: *group, seen, requests: requests.collect() });
                }
                GroupResult::Again(again) => left.push((*group, Some(again))),
                GroupResult::Broken => panic!("group {group} is broken"),
                GroupResult::Unwritten(code) => panic!("group {group} can't be written: {code}"),
            }
        }
        let loans = reply.loans().map(Result::unwrap).collect::<Vec<_>>();
        let (now, loans) = first.get_or_insert((guess, loans));
        waiting = left;
        if waiting.is_empty() {
            return (settled, *now, std::mem::take(loans));
        }
    }
    panic!("{waiting:?} still wait");
}

/// Puts the counts of a log's beginning to nought: they may begin at any number, but must go on from there.
fn normalized(data: &FakeValueKind) -> FakeValueKind {
    let FakeValueKind::List(list) = data else { return data.clone() };
    let number = |bytes: &[u8]| bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let mut list = list.clone();
    let mut expected = None;
    for entry in list.iter_mut().skip(1) {
        let (before, run) = (number(&entry[7..14]), number(&entry[14..]));
        assert!(
            expected.is_none_or(|expected| expected == before),
            "the counts of a log go on without a gap"
        );
        expected = Some(before + run);
        entry[7..14].fill(0);
    }
    FakeValueKind::List(list)
}

/// Fills a buffer with a turn's requests, and says how often each is made.
fn fill_turn(draws: &mut Draws, turn: &RandomTurn, limits: &[Limit]) -> Vec<u32> {
    draws.clear();
    let (mut times, mut bound) = (Vec::new(), HashMap::new());
    for (group, wanted) in &turn.groups {
        fill(draws, group, limits, &mut bound);
        // A group has at least one draw.
        if draws.group(draws.len() - 1).is_empty() {
            draws.push("c".into(), Scope(9), limits[0], Op::Take(Amount::exactly(1)), PermitId(0));
        }
        times.push(if ScriptCall::may_repeat(draws, draws.len() - 1) { *wanted } else { 1 });
    }
    times
}

/// Compares what a turn's requests were told with what they should have been, in the order in which they were decided.
fn compare(twin: &mut Twin, draws: &Draws, settled: &[SettledGroup]) -> Result<(), TestCaseError> {
    for SettledGroup { group, seen, requests } in settled {
        let now = requests[0].group(*group)[0].now();
        for (request, own) in requests.iter().enumerate() {
            let expected = twin.decide(draws, *group, seen.unwrap_or(now), now);
            for (draw, expected) in own.group(*group).iter().zip(expected) {
                let (limit, ask) = (draw.limit(), draw.act().ask());
                let (said, expected) = (told(limit, ask, *draw.outcome()), told(limit, ask, expected));
                if said != expected || draw.now() != now {
                    return Err(TestCaseError::fail(format!(
                        "request {request} of {} of group {group} at {now:?}: {limit} {:?}\n  script {said:?}\n  twin   \
                         {expected:?}",
                        requests.len(),
                        draw.act(),
                    )));
                }
            }
        }
    }
    Ok(())
}

/// The same with orders: reports are taken note of before the first call's draws, and units are lent after them.
fn compare_beside(
    twin: &mut Twin,
    draws: &Draws,
    settled: &[SettledGroup],
    now: Micros,
    orders: &[orders::SentRandomRenewal],
    loans: &[RenewalResult],
) -> Result<(), TestCaseError> {
    let (first, others) = settled.split_at(settled.partition_point(|settled| settled.seen.is_none()));
    let noted: Vec<_> = orders.iter().map(|order| twin.note(order, now)).collect();
    compare(twin, draws, first)?;
    for ((order, noted), loan) in orders.iter().zip(noted).zip(loans) {
        let expected = twin.lend(order, noted, now);
        if *loan != expected {
            let difference = format!("{order:?} at {now:?}\n  script {loan:?}\n  twin   {expected:?}");
            return Err(TestCaseError::fail(difference));
        }
    }
    compare(twin, draws, others)
}

fn run_turns(turns: &[RandomTurn], limits: &[Limit]) -> Result<(), TestCaseError> {
    let engine = Embedded::new(Some(0));
    let (mut twin, mut now, mut draws) = (Twin::default(), START, Draws::new());
    let mut ledger = Ledger::default();
    for turn in turns {
        now = now.plus(Span::micros(turn.forward)).less(Span::micros(turn.back));
        let times = fill_turn(&mut draws, turn, limits);
        twin.forget_lapsed(now);
        let orders = ledger.word(&turn.orders, limits);
        let (settled, at, loans) = settle_beside(
            &mut |parcel: &ScriptCall| engine.run(parcel, now.get()),
            &draws,
            &times,
            now,
            |parcel| orders::add(&orders, parcel),
        );
        compare_beside(&mut twin, &draws, &settled, at, &orders, &loans)?;
        ledger.note(&turn.orders, &loans);
        let mut fake = engine.fake.borrow().clone();
        for kept in fake.kept.values_mut() {
            kept.data = normalized(&kept.data);
        }
        if let Some(difference) = twin.differs_from(&fake) {
            return Err(TestCaseError::fail(format!("after {turn:?} at {now:?}: {difference}")));
        }
    }
    Ok(())
}

#[test]
fn the_script_equals_the_laws_under_all_of_them_at_once() {
    try_turns(&limits(), ClockSteps::Seconds);
}

#[test]
fn the_script_equals_the_laws_where_units_are_lent() {
    try_turns(&lending_limits(), ClockSteps::Terms);
}

fn try_turns(limits: &[Limit], steps: ClockSteps) {
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    if let Err(error) = runner.run(&turns(limits, steps), |turns| run_turns(&turns, limits)) {
        panic!("{error}");
    }
}

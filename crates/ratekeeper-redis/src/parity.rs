//! Parity tests of the Lua script and the algorithms in Rust.
//!
//! Random requests run through the algorithms in Rust and through the real script, in an embedded Lua whose clock the
//! test controls. The decisions must be equal, and so must every stored byte and its time to live.

mod embedded;
mod fake;
mod leases;
mod pitfalls;
mod renewals;
mod servers;
mod suite;
mod twin;
mod unwritable;

use crate::batch::codec::{GroupResult, Readopt, RenewalResult, ScriptCall};
use embedded::EmbeddedLua;
use fake::FakeValueKind;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use ratekeeper_core::{
    Algorithm, Align, Amount, DrawOptions, DrawResult, Draws, Leak, Limit, LogSize, Micros, Op, PermitId,
    Scope, Span, Zone,
};
use ratekeeper_testkit::EngineReply;
use renewals::{GrantedTerms, RandomRenewal};
use std::collections::HashMap;
use twin::Twin;

const START: Micros = Micros::new(1_700_000_000_123_457);

const KEYS: [&str; 2] = ["a", "b"];

/// One draw of a random request.
#[derive(Clone, Debug)]
struct RandomDraw {
    key: usize,
    limit: usize,
    op: Op,
    permit: u64,
    is_shadow: bool,
}

/// Requests of one script call, after the clock has moved.
#[derive(Clone, Debug)]
struct RandomTurn {
    forward: u64,
    back: u64,
    /// Draws of each group, and how many equal requests it stands for.
    groups: Vec<(Vec<RandomDraw>, u32)>,
    /// Lease reports and requests of nodes.
    renewals: Vec<RandomRenewal>,
}

/// Two limits with different quotas per algorithm; a draw from the other one simulates a change of rules.
fn limits() -> Vec<Limit> {
    let limit = |algorithm, quota: &str| Limit::new(algorithm, quota.parse().unwrap()).unwrap();
    let berlin = "Europe/Berlin".parse().unwrap();
    let wall = Algorithm::FixedWindow(Align::WallClock(Zone::UTC));
    vec![
        limit(Algorithm::TokenBucket, "10/s burst 4"),
        limit(Algorithm::TokenBucket, "7/s burst 9"),
        limit(Algorithm::LeakyBucket(Leak::Meter), "20/s burst 3"),
        limit(Algorithm::LeakyBucket(Leak::Queue), "11/s burst 5"),
        limit(Algorithm::FixedWindow(Align::FirstHit), "5/s"),
        limit(wall, "9 per 2s"),
        limit(Algorithm::FixedWindow(Align::WallClock(berlin)), "12/day"),
        limit(Algorithm::SlidingWindowCounter, "6/s"),
        limit(Algorithm::SlidingWindowCounter, "300 per 700ms"),
        limit(Algorithm::SlidingWindowLog(LogSize::Standard), "7/s"),
        limit(Algorithm::SlidingWindowLog(LogSize::Standard), "30 per 300ms"),
        limit(Algorithm::Concurrency, "8/s"),
        limit(Algorithm::Concurrency, "5 per 200ms"),
        limit(Algorithm::TokenBucket, "4294967295/month burst 100"),
        limit(wall, "3/month"),
        limit(Algorithm::TokenBucket, "100/min"),
    ]
}

/// Limits that can lend units, and a queue that may adopt their state. Leases matter for a minute, and keys are
/// shared often.
fn lending_limits() -> Vec<Limit> {
    let limit = |algorithm, quota: &str| Limit::new(algorithm, quota.parse().unwrap()).unwrap();
    vec![
        limit(Algorithm::TokenBucket, "100/min"),
        limit(Algorithm::TokenBucket, "10/s burst 40"),
        // Ticks of a tenth of a second, and of 100 seconds, which is longer than a lease term.
        limit(Algorithm::TokenBucket, "4294967295/month burst 4000000000"),
        limit(Algorithm::TokenBucket, "4294967291/year"),
        limit(Algorithm::LeakyBucket(Leak::Meter), "1/s burst 30"),
        limit(Algorithm::LeakyBucket(Leak::Queue), "11/s burst 5"),
        limit(Algorithm::FixedWindow(Align::FirstHit), "50/min"),
        limit(Algorithm::FixedWindow(Align::WallClock(Zone::UTC)), "12/day"),
        limit(Algorithm::SlidingWindowCounter, "60/min"),
    ]
}

/// Limits that refill within the milliseconds that a test takes.
fn quick_limits() -> Vec<Limit> {
    let limit = |algorithm, quota: &str| Limit::new(algorithm, quota.parse().unwrap()).unwrap();
    let wall = Algorithm::FixedWindow(Align::WallClock(Zone::UTC));
    vec![
        limit(Algorithm::TokenBucket, "2000/s burst 4"),
        limit(Algorithm::TokenBucket, "700/s burst 9"),
        limit(Algorithm::LeakyBucket(Leak::Meter), "3000/s burst 3"),
        limit(Algorithm::LeakyBucket(Leak::Queue), "1100/s burst 5"),
        limit(Algorithm::FixedWindow(Align::FirstHit), "5 per 10ms"),
        limit(wall, "9 per 20ms"),
        limit(Algorithm::FixedWindow(Align::WallClock("Europe/Berlin".parse().unwrap())), "12/day"),
        limit(Algorithm::SlidingWindowCounter, "6 per 10ms"),
        limit(Algorithm::SlidingWindowCounter, "300 per 15ms"),
        limit(Algorithm::SlidingWindowLog(LogSize::Standard), "7 per 10ms"),
        limit(Algorithm::SlidingWindowLog(LogSize::Standard), "30 per 4ms"),
        limit(Algorithm::Concurrency, "8 per 10ms"),
        limit(Algorithm::Concurrency, "5 per 3ms"),
        limit(wall, "3/month"),
    ]
}

fn turns(limits: &[Limit], steps: ClockSteps) -> impl Strategy<Value = Vec<RandomTurn>> {
    let units = prop_oneof![8 => 0..4_u32, 1 => 4..40_u32, 1 => Just(u32::MAX)];
    let amount = (units.clone(), 0..12_u32, 0..3_000_000_u64).prop_map(|(units, kind, wait)| match kind {
        0 => Amount::between(units, units.saturating_add(5)),
        1 => Amount::exactly(units).with_max_delay(Span::micros(wait)),
        2 => Amount::between(units / 2, units).with_max_delay(Span::micros(wait / 10)),
        _ => Amount::exactly(units),
    });
    let op = prop_oneof![
        12 => amount.clone().prop_map(Op::Take),
        2 => amount.prop_map(Op::Peek),
        2 => units.prop_map(Op::Refund),
        1 => Just(Op::Reset),
    ];
    let draw = (0..2_usize, 0..limits.len(), op, 0..5_u64, proptest::bool::weighted(0.15));
    let draw =
        draw.prop_map(|(key, limit, op, permit, is_shadow)| RandomDraw { key, limit, op, permit, is_shadow });
    let group = (vec(draw, 1..4), prop_oneof![4 => Just(1_u32), 1 => 2..7_u32]);
    let unit = match steps {
        ClockSteps::Seconds | ClockSteps::Forward => 1_000_000_u64,
        ClockSteps::LeaseTerms => 15_000_000,
    };
    let forward = prop_oneof![
        3 => Just(0_u64), 4 => 0..unit * 3 / 10, 2 => 0..unit * 3,
        1 => select(vec![1_000_000_u64, 30_000_000, 86_400_000_000]),
    ];
    let most_back = match steps {
        ClockSteps::Forward => 0,
        ClockSteps::Seconds | ClockSteps::LeaseTerms => unit * 5 / 2,
    };
    let back = prop_oneof![9 => Just(0_u64), 1 => 0..=most_back];
    let turn = (forward, back, vec(group, 1..6), renewals::random_renewals(limits));
    let turn =
        turn.prop_map(|(forward, back, groups, renewals)| RandomTurn { forward, back, groups, renewals });
    vec(turn, 1..25)
}

/// How far the clock moves between two turns.
#[derive(Clone, Copy)]
enum ClockSteps {
    /// Far enough to refill limits per second.
    Seconds,
    /// The same, and never back.
    Forward,
    /// Far enough for leases to expire.
    LeaseTerms,
}

/// Adds a request's draws. All draws of a group have the same operation, and a key has only one quota per algorithm
/// in the same turn: `bound` maps each key and algorithm family to its limit.
fn push_group(
    draws: &mut Draws,
    group: &[RandomDraw],
    limits: &[Limit],
    bound: &mut HashMap<(usize, usize), Limit>,
) {
    draws.begin_group();
    let is_take = matches!(group[0].op, Op::Take(_));
    for draw in group {
        let limit = limits[draw.limit];
        let is_same_op = std::mem::discriminant(&group[0].op) == std::mem::discriminant(&draw.op);
        if *bound.entry((draw.key, limit.family())).or_insert(limit) == limit && is_same_op {
            draws.push(KEYS[draw.key].into(), Scope(0), limit, draw.op, PermitId(draw.permit));
            draws.set_options(DrawOptions { is_shadow: draw.is_shadow && is_take, ..DrawOptions::default() });
        }
    }
}

/// The client-visible reply of a result: a drained state and no state give the same reply.
fn reply_to(limit: &Limit, amount: Amount, outcome: DrawResult) -> EngineReply {
    EngineReply::from(&ratekeeper_core::LimitStatus::new(limit, amount, outcome))
}

/// A decided group.
struct GroupDecisions {
    group: usize,
    /// When Rust read the state that another limit had written. `None` if there was none to adopt.
    adopted_at: Option<Micros>,
    /// The draws of each of its requests, with their results.
    requests: Vec<Draws>,
}

/// Runs groups through the script until all are decided. Returns them in the order of their decisions.
fn run_until_decided(
    engine: &mut impl FnMut(&ScriptCall, &Draws) -> Vec<u8>,
    draws: &Draws,
    times: &[u32],
    guess: Micros,
) -> Vec<GroupDecisions> {
    run_with_renewals(engine, draws, times, guess, |_, _| ()).0
}

/// Like [`run_until_decided`], with renewals, which `add_renewals` adds to the first call. Also returns the time of
/// that call and the result of each renewal.
fn run_with_renewals(
    engine: &mut impl FnMut(&ScriptCall, &Draws) -> Vec<u8>,
    draws: &Draws,
    times: &[u32],
    mut guess: Micros,
    add_renewals: impl FnOnce(&mut ScriptCall, &Draws),
) -> (Vec<GroupDecisions>, Micros, Vec<RenewalResult>) {
    let (mut decided_groups, mut first, mut add_renewals) = (Vec::new(), None, Some(add_renewals));
    let mut waiting: Vec<(usize, Option<Readopt>)> = (0..draws.len()).map(|group| (group, None)).collect();
    let mut call = ScriptCall::default();
    for _ in 0..4 {
        call.reset(guess);
        for (group, readopt) in &waiting {
            call.push(draws, *group, times[*group], readopt.as_ref());
        }
        if let Some(add_renewals) = add_renewals.take() {
            add_renewals(&mut call, draws);
        }
        let bytes = engine(&call, draws);
        let mut reply = call.read_reply(&bytes).unwrap();
        guess = reply.now();
        let mut undecided = Vec::new();
        for ((group, readopt), result) in waiting.iter().zip(reply.by_ref()) {
            match result.unwrap() {
                GroupResult::Decided(decided) => {
                    assert_eq!(decided.times(), times[*group]);
                    let requests = (0..times[*group]).map(|request| {
                        let mut own = draws.clone();
                        decided.apply(request, own.group_mut(*group));
                        own
                    });
                    let adopted_at = readopt.as_ref().map(Readopt::now);
                    decided_groups.push(GroupDecisions {
                        group: *group,
                        adopted_at,
                        requests: requests.collect(),
                    });
                }
                GroupResult::Retry(readopt) => undecided.push((*group, Some(readopt))),
                GroupResult::Broken => panic!("the state of group {group} is unreadable"),
                GroupResult::Unwritten(code) => panic!("the write of group {group} was rejected: {code}"),
            }
        }
        let renewals = reply.renewal_results().map(Result::unwrap).collect::<Vec<_>>();
        let (now, renewals) = first.get_or_insert((guess, renewals));
        waiting = undecided;
        if waiting.is_empty() {
            return (decided_groups, *now, std::mem::take(renewals));
        }
    }
    panic!("{waiting:?} are still undecided");
}

/// Sets the running counts of a log's entries to zero: they may start at any number, but must be consecutive.
fn normalize_log(data: &FakeValueKind) -> FakeValueKind {
    let FakeValueKind::List(list) = data else { return data.clone() };
    let number = |bytes: &[u8]| bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let mut list = list.clone();
    let mut expected = None;
    for entry in list.iter_mut().skip(1) {
        let (before, run) = (number(&entry[7..14]), number(&entry[14..]));
        assert!(expected.is_none_or(|expected| expected == before), "the counts of a log are consecutive");
        expected = Some(before + run);
        entry[7..14].fill(0);
    }
    FakeValueKind::List(list)
}

/// Fills a buffer with a turn's requests, and returns how many equal requests each group stands for.
fn push_turn(draws: &mut Draws, turn: &RandomTurn, limits: &[Limit]) -> Vec<u32> {
    draws.clear();
    let (mut times, mut bound) = (Vec::new(), HashMap::new());
    for (group, repeats) in &turn.groups {
        push_group(draws, group, limits, &mut bound);
        // A group needs at least one draw.
        if draws.group(draws.len() - 1).is_empty() {
            draws.push("c".into(), Scope(9), limits[0], Op::Take(Amount::exactly(1)), PermitId(0));
        }
        times.push(if ScriptCall::can_coalesce(draws, draws.len() - 1) { *repeats } else { 1 });
    }
    times
}

/// Compares the results of a turn's requests with those of the twin, in the order of their decisions.
fn compare(twin: &mut Twin, draws: &Draws, decided_groups: &[GroupDecisions]) -> Result<(), TestCaseError> {
    for GroupDecisions { group, adopted_at, requests } in decided_groups {
        let now = requests[0].group(*group)[0].decided_at();
        twin.remove_expired(now);
        for (request, own) in requests.iter().enumerate() {
            let expected = twin.decide(draws, *group, adopted_at.unwrap_or(now), now);
            for (draw, expected) in own.group(*group).iter().zip(expected) {
                let (limit, amount) = (draw.limit(), draw.op().amount());
                let (actual, expected) =
                    (reply_to(limit, amount, *draw.result()), reply_to(limit, amount, expected));
                if actual != expected || draw.decided_at() != now {
                    return Err(TestCaseError::fail(format!(
                        "request {request} of {} of group {group} at {now:?}: {limit} {:?}\n  script {actual:?}\n  \
                         twin   {expected:?}",
                        requests.len(),
                        draw.op(),
                    )));
                }
            }
        }
    }
    Ok(())
}

/// Like [`compare`], with renewals: reports are applied before the draws of the first call, and units are lent after
/// them.
fn compare_with_renewals(
    twin: &mut Twin,
    draws: &Draws,
    decided_groups: &[GroupDecisions],
    now: Micros,
    renewals: &[renewals::SentRandomRenewal],
    results: &[RenewalResult],
) -> Result<(), TestCaseError> {
    let (first, others) =
        decided_groups.split_at(decided_groups.partition_point(|group| group.adopted_at.is_none()));
    let reported: Vec<_> = renewals.iter().map(|renewal| twin.apply_report(renewal, now)).collect();
    compare(twin, draws, first)?;
    for ((renewal, reported), result) in renewals.iter().zip(reported).zip(results) {
        let expected = twin.grant(renewal, reported, now);
        if *result != expected {
            let difference = format!("{renewal:?} at {now:?}\n  script {result:?}\n  twin   {expected:?}");
            return Err(TestCaseError::fail(difference));
        }
    }
    compare(twin, draws, others)
}

/// Runs turns through the script and the twin, and compares replies and stored values. The clock moves by `call_time`
/// from one script call to the next.
fn run_turns(turns: &[RandomTurn], limits: &[Limit], call_time: Span) -> Result<(), TestCaseError> {
    let engine = EmbeddedLua::new(Some(0));
    let (mut twin, mut now, mut draws) = (Twin::default(), START, Draws::new());
    let mut ledger = GrantedTerms::default();
    for turn in turns {
        now = now.plus(Span::micros(turn.forward)).minus(Span::micros(turn.back));
        let times = push_turn(&mut draws, turn, limits);
        twin.remove_expired(now);
        let sent = match call_time {
            Span::ZERO => turn.renewals.clone(),
            _ => renewals::undisputed(&turn.renewals, &draws, limits),
        };
        let renewals = ledger.with_terms(&sent, limits);
        let guess = now;
        let mut run_script = |call: &ScriptCall, draws: &Draws| {
            let reply = engine.run(call, draws, now.get());
            now = now.plus(call_time);
            reply
        };
        let (decided_groups, at, results) =
            run_with_renewals(&mut run_script, &draws, &times, guess, |call, draws| {
                renewals::add_all(&renewals, call, draws);
            });
        compare_with_renewals(&mut twin, &draws, &decided_groups, at, &renewals, &results)?;
        ledger.record(&sent, &results);
        let mut fake = engine.fake.borrow().clone();
        for value in fake.values.values_mut() {
            value.data = normalize_log(&value.data);
        }
        if let Some(difference) = twin.difference(&fake) {
            return Err(TestCaseError::fail(format!("after {turn:?} at {now:?}: {difference}")));
        }
    }
    Ok(())
}

#[test]
fn the_script_equals_all_algorithms_at_once() {
    check_random_turns(&limits(), ClockSteps::Seconds, Span::ZERO);
}

#[test]
fn the_script_equals_the_algorithms_that_lend_units() {
    check_random_turns(&lending_limits(), ClockSteps::LeaseTerms, Span::ZERO);
}

#[test]
fn an_adopted_state_that_drains_before_the_script_runs_is_kept_for_the_slack() {
    check_random_turns(&quick_limits(), ClockSteps::Forward, Span::millis(2));
}

fn check_random_turns(limits: &[Limit], steps: ClockSteps, call_time: Span) {
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    if let Err(error) = runner.run(&turns(limits, steps), |turns| run_turns(&turns, limits, call_time)) {
        panic!("{error}");
    }
}

//! A server that takes no writes: who need not be written gets the server's answer, everybody else is told, and nothing is
//! done by half.

use super::embedded::Embedded;
use super::{ClockSteps, RandomTurn, START, fill_turn, limits, told, turns};
use crate::redis::script_call::{GroupResult, ScriptCall};
use proptest::prelude::{Strategy, any};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use ratekeeper_core::{
    Algorithm, Amount, Draw, DrawOutcome, Draws, Limit, LimitParams, LogSize, Micros, Op, PermitId, Scope,
    Span,
};

const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const MISCONF: &str =
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist";

/// What became of a group.
#[derive(Debug, PartialEq)]
enum UnwritableOutcome {
    /// What each of its requests was told, and whether one was granted units.
    Decided(Vec<String>, bool),
    Unwritten(String),
    Other,
}

/// Sends groups in one call, and says what became of each.
fn send(
    engine: &Embedded,
    draws: &Draws,
    groups: &[usize],
    times: &[u32],
    now: Micros,
) -> Vec<UnwritableOutcome> {
    let mut parcel = ScriptCall::new();
    parcel.start(now);
    for group in groups {
        parcel.add(draws, *group, times[*group]);
    }
    let bytes = engine.run(&parcel, now.get());
    let mut reply = parcel.read(&bytes).unwrap();
    let became = groups.iter().zip(reply.by_ref()).map(|(group, fate)| match fate.unwrap() {
        GroupResult::Decided(decided) => {
            let (mut said, mut has_granted) = (Vec::new(), false);
            for request in 0..times[*group] {
                let mut own = draws.clone();
                decided.settle(request, own.group_mut(*group));
                let group = own.group(*group);
                has_granted |= group.iter().any(|draw| matches!(draw.answer(), DrawOutcome::Granted(1..)));
                said.extend(
                    group
                        .iter()
                        .map(|draw| format!("{:?}", told(draw.limit(), draw.act().ask(), *draw.outcome()))),
                );
            }
            UnwritableOutcome::Decided(said, has_granted)
        }
        GroupResult::Unwritten(code) => UnwritableOutcome::Unwritten(code.to_owned()),
        GroupResult::Again(_) | GroupResult::Broken => UnwritableOutcome::Other,
    });
    became.collect()
}

/// Whether it may be told something else: it names a list or set twice, of which the second draw does not see what the first
/// would take, gives back what nobody has, or takes places: with writes, those of the same permit are given back with it.
fn may_be_cautious(draws: &Draws, group: usize) -> bool {
    let group = draws.group(group);
    let gives = |draw: &Draw| {
        matches!(draw.act(), Op::Give(_) | Op::Clear)
            || matches!(draw.limit().figures(), LimitParams::Concurrency { .. })
    };
    let is_same = |one: &Draw, other: &Draw| {
        one.limit().keeps_roll() && one.limit() == other.limit() && draws.key(one) == draws.key(other)
    };
    group
        .iter()
        .enumerate()
        .any(|(index, draw)| gives(draw) || group[..index].iter().any(|other| is_same(draw, other)))
}

/// Every other turn finds a server that takes no writes. What it says must be what the same server would say to each group
/// alone if it took them, unless that would have changed something; and nothing may have changed.
fn check(turns: &[(RandomTurn, bool)], limits: &[Limit], refusal: &'static str) -> Result<(), TestCaseError> {
    let (engine, copy) = (Embedded::new(Some(0)), Embedded::new(Some(0)));
    let (mut now, mut draws) = (START, Draws::new());
    for (turn, is_refused) in turns {
        now = now.plus(Span::micros(turn.forward)).less(Span::micros(turn.back));
        let times = fill_turn(&mut draws, turn, limits);
        let groups: Vec<usize> = (0..draws.len()).collect();
        if !is_refused {
            send(&engine, &draws, &groups, &times, now);
            continue;
        }
        engine.fake.borrow_mut().now_micros = now.get();
        engine.fake.borrow_mut().forget_lapsed();
        let before = engine.fake.borrow().clone();
        engine.fake.borrow_mut().refuses = Some(refusal);
        let became = send(&engine, &draws, &groups, &times, now);
        engine.fake.borrow_mut().refuses = None;
        let fail = |text: String| Err(TestCaseError::fail(format!("{text}\n{turn:?} at {now:?}")));
        // Without memory, units of lists and sets can be given back all the same.
        if engine.fake.borrow().kept != before.kept && refusal == MISCONF {
            return fail("something was written".to_owned());
        }
        if refusal == OOM && engine.fake.borrow().has_written {
            continue;
        }
        for (group, became) in groups.iter().zip(became) {
            *copy.fake.borrow_mut() = before.clone();
            let alone = send(&copy, &draws, &[*group], &times, now).remove(0);
            let is_changed = copy.fake.borrow().kept != before.kept;
            let is_right = match (&became, &alone) {
                (UnwritableOutcome::Unwritten(code), _) => {
                    refusal.starts_with(code.as_str()) && (is_changed || may_be_cautious(&draws, *group))
                }
                (UnwritableOutcome::Decided(_, is_granted), _) if may_be_cautious(&draws, *group) => {
                    !is_granted
                }
                (_, UnwritableOutcome::Decided(_, true)) => false,
                (became, alone) => became == alone,
            };
            if !is_right {
                return fail(format!("group {group}: {became:?}, and with writes {alone:?}"));
            }
        }
    }
    Ok(())
}

fn try_turns(refusal: &'static str) {
    let limits = limits();
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    // Terms are so long that the clock is also set back too far to be waited for.
    for steps in [ClockSteps::Seconds, ClockSteps::Terms] {
        let turns = turns(&limits, steps).prop_flat_map(|turns| {
            let count = turns.len();
            proptest::collection::vec(any::<bool>(), count)
                .prop_map(move |refused| turns.clone().into_iter().zip(refused).collect::<Vec<_>>())
        });
        if let Err(error) = runner.run(&turns, |turns| check(&turns, &limits, refusal)) {
            panic!("{error}");
        }
    }
}

#[test]
fn a_server_that_takes_no_writes_answers_whom_it_need_not_write() {
    try_turns(MISCONF);
}

#[test]
fn a_server_without_memory_answers_whom_it_need_not_write() {
    try_turns(OOM);
}

fn limit(law: Algorithm, quota: &str) -> Limit {
    Limit::new(law, quota.parse().unwrap()).unwrap()
}

#[test]
fn a_request_that_one_limit_denies_needs_no_write_of_the_others() {
    for law in [Algorithm::TokenBucket, Algorithm::SlidingWindowLog(LogSize::Modest)] {
        let (engine, many, one) = (Embedded::new(Some(0)), limit(law, "100/h"), limit(law, "1/h"));
        let mut draws = Draws::new();
        draws.begin();
        for (scope, limit) in [(0, many), (1, one)] {
            draws.push("k".into(), Scope(scope), limit, Op::Take(Amount::exactly(1)), PermitId(0));
        }
        let first = send(&engine, &draws, &[0], &[1], START);
        assert!(matches!(first[0], UnwritableOutcome::Decided(_, true)), "{first:?}");
        engine.fake.borrow_mut().refuses = Some(OOM);
        let denied = send(&engine, &draws, &[0], &[1], START);
        assert!(matches!(denied[0], UnwritableOutcome::Decided(_, false)), "{denied:?}");
    }
}

fn ask(engine: &Embedded, limit: Limit, act: Op, now: Micros) -> UnwritableOutcome {
    let mut draws = Draws::new();
    draws.push("k".into(), Scope(0), limit, act, PermitId(0));
    send(engine, &draws, &[0], &[1], now).remove(0)
}

/// A log is neither moved nor aged where nothing can be written, and is read as if it were.
#[test]
fn a_log_of_a_time_far_ahead_is_read_as_if_it_were_moved() {
    let log = limit(Algorithm::SlidingWindowLog(LogSize::Modest), "2/min");
    let (engine, copy) = (Embedded::new(None), Embedded::new(None));
    for seconds in [0, 30] {
        let took = ask(&engine, log, Op::Take(Amount::exactly(1)), START.plus(Span::secs(seconds)));
        assert!(matches!(took, UnwritableOutcome::Decided(_, true)), "{took:?}");
    }
    // The newest unit is then of this instant, and the other of half a minute ago.
    let now = START.less(Span::HOUR);
    *copy.fake.borrow_mut() = engine.fake.borrow().clone();
    engine.fake.borrow_mut().refuses = Some(MISCONF);
    for act in [Op::Take(Amount::exactly(1)), Op::Look(Amount::exactly(2)), Op::Look(Amount::exactly(0))] {
        let told = ask(&engine, log, act, now);
        assert!(matches!(told, UnwritableOutcome::Decided(_, false)), "{told:?}");
        assert_eq!(told, ask(&copy, log, act, now), "{act:?}");
    }
    let later = now.plus(Span::secs(31));
    let told = ask(&engine, log, Op::Take(Amount::exactly(1)), later);
    assert!(
        matches!(told, UnwritableOutcome::Decided(_, false)),
        "it counts from now on until it is moved: {told:?}"
    );
}

/// Trap: a key of which only another quota has used something has no state under the current one, and yet there is something
/// to clear.
#[test]
fn what_another_quota_has_left_is_not_cleared_by_a_server_that_takes_no_writes() {
    let (hourly, quick) =
        (limit(Algorithm::TokenBucket, "5/h"), limit(Algorithm::TokenBucket, "100/s burst 100"));
    let engine = Embedded::new(Some(0));
    let take = |limit, now| {
        let mut draws = Draws::new();
        draws.push("k".into(), Scope(0), limit, Op::Take(Amount::exactly(5)), PermitId(0));
        let mut run = |parcel: &ScriptCall| engine.run(parcel, now);
        super::settle(&mut run, &draws, &[1], Micros::new(now)).remove(0).requests.remove(0).all()[0].answer()
    };
    assert_eq!(take(hourly, START.get()), DrawOutcome::Granted(5));
    assert_eq!(take(quick, START.get()), DrawOutcome::Refused, "nothing is left to carry over");
    // By then the quick one has drained.
    let now = START.plus(Span::secs(60));
    engine.fake.borrow_mut().refuses = Some(MISCONF);
    let told = ask(&engine, quick, Op::Clear, now);
    assert_eq!(told, UnwritableOutcome::Unwritten("MISCONF".to_owned()));
    engine.fake.borrow_mut().refuses = None;
    let before = engine.fake.borrow().clone();
    assert_eq!(take(hourly, now.get()), DrawOutcome::Refused);
    *engine.fake.borrow_mut() = before;
    assert!(matches!(ask(&engine, quick, Op::Clear, now), UnwritableOutcome::Decided(..)));
    assert_eq!(take(hourly, now.get()), DrawOutcome::Granted(5));
}

/// A permit that is given back makes room, which a server without memory is glad of.
#[test]
fn a_permit_can_be_given_back_to_a_server_without_memory() {
    let (engine, places) = (Embedded::new(Some(0)), limit(Algorithm::Concurrency, "2/min"));
    let ask = |act, permit| {
        let mut draws = Draws::new();
        draws.push("k".into(), Scope(0), places, act, PermitId(permit));
        send(&engine, &draws, &[0], &[1], START).remove(0)
    };
    for permit in [1, 2] {
        assert!(matches!(ask(Op::Take(Amount::exactly(1)), permit), UnwritableOutcome::Decided(_, true)));
    }
    engine.fake.borrow_mut().refuses = Some(OOM);
    assert!(matches!(ask(Op::Give(1), 1), UnwritableOutcome::Decided(..)));
    assert!(
        matches!(ask(Op::Take(Amount::exactly(1)), 3), UnwritableOutcome::Unwritten(code) if code == "OOM")
    );
    engine.fake.borrow_mut().refuses = None;
    assert!(
        matches!(ask(Op::Take(Amount::exactly(1)), 3), UnwritableOutcome::Decided(_, true)),
        "a place was free"
    );
    assert!(
        matches!(ask(Op::Take(Amount::exactly(1)), 4), UnwritableOutcome::Decided(_, false)),
        "and no other"
    );
}

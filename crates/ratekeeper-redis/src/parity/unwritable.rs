//! A server that rejects writes: requests that need no write are still decided, the others are reported as unwritten,
//! and none is applied in part.

use super::embedded::EmbeddedLua;
use super::{ClockSteps, RandomTurn, START, limits, push_turn, reply_to, turns};
use crate::batch::codec::{GroupResult, ScriptCall};
use proptest::prelude::{Strategy, any};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use ratekeeper_core::{
    Algorithm, Amount, Draw, DrawOutcome, Draws, Limit, LimitParams, LogSize, Micros, Op, PermitId, Scope,
    Span,
};

const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const MISCONF: &str =
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist";

/// The result of a group.
#[derive(Debug, PartialEq)]
enum UnwritableOutcome {
    /// The replies to its requests, and whether one was granted units.
    Decided(Vec<String>, bool),
    Unwritten(String),
    Other,
}

/// Sends groups in one call, and returns the result of each.
fn send(
    engine: &EmbeddedLua,
    draws: &Draws,
    groups: &[usize],
    times: &[u32],
    now: Micros,
) -> Vec<UnwritableOutcome> {
    let mut call = ScriptCall::default();
    call.reset(now);
    for group in groups {
        call.push(draws, *group, times[*group], None);
    }
    let bytes = engine.run(&call, draws, now.get());
    let mut reply = call.read_reply(&bytes).unwrap();
    let results = groups.iter().zip(reply.by_ref()).map(|(group, result)| match result.unwrap() {
        GroupResult::Decided(decided) => {
            let (mut replies, mut has_granted) = (Vec::new(), false);
            for request in 0..times[*group] {
                let mut own = draws.clone();
                decided.apply(request, own.group_mut(*group));
                let group = own.group(*group);
                has_granted |= group.iter().any(|draw| matches!(draw.outcome(), DrawOutcome::Granted(1..)));
                replies.extend(
                    group.iter().map(|draw| {
                        format!("{:?}", reply_to(draw.limit(), draw.op().amount(), *draw.result()))
                    }),
                );
            }
            UnwritableOutcome::Decided(replies, has_granted)
        }
        GroupResult::Unwritten(code) => UnwritableOutcome::Unwritten(code.to_owned()),
        GroupResult::Retry(_) | GroupResult::Broken => UnwritableOutcome::Other,
    });
    results.collect()
}

/// Whether the result of a group may differ from that with writes.
///
/// That is so if it draws twice from a list or set, since the second draw does not see what the first would take; if it
/// returns units that are not held; or if it takes permits: with writes, a release also returns the others of the same
/// permit.
fn may_differ_without_writes(draws: &Draws, group: usize) -> bool {
    let group = draws.group(group);
    let gives = |draw: &Draw| {
        matches!(draw.op(), Op::Refund(_) | Op::Reset)
            || matches!(draw.limit().params(), LimitParams::Concurrency { .. })
    };
    let is_same = |one: &Draw, other: &Draw| {
        one.limit().uses_list_state() && one.limit() == other.limit() && draws.key(one) == draws.key(other)
    };
    group
        .iter()
        .enumerate()
        .any(|(index, draw)| gives(draw) || group[..index].iter().any(|other| is_same(draw, other)))
}

/// In some turns the server rejects writes. The result of each group must then be the one that the group would get
/// alone with writes, unless that would change the store; and the store must not change.
fn check(turns: &[(RandomTurn, bool)], limits: &[Limit], error: &'static str) -> Result<(), TestCaseError> {
    let (engine, copy) = (EmbeddedLua::new(Some(0)), EmbeddedLua::new(Some(0)));
    let (mut now, mut draws) = (START, Draws::new());
    for (turn, rejects_writes) in turns {
        now = now.plus(Span::micros(turn.forward)).minus(Span::micros(turn.back));
        let times = push_turn(&mut draws, turn, limits);
        let groups: Vec<usize> = (0..draws.len()).collect();
        if !rejects_writes {
            send(&engine, &draws, &groups, &times, now);
            continue;
        }
        engine.fake.borrow_mut().now_micros = now.get();
        engine.fake.borrow_mut().remove_expired();
        let before = engine.fake.borrow().clone();
        engine.fake.borrow_mut().write_error = Some(error);
        let results = send(&engine, &draws, &groups, &times, now);
        engine.fake.borrow_mut().write_error = None;
        let fail = |text: String| Err(TestCaseError::fail(format!("{text}\n{turn:?} at {now:?}")));
        // Without memory, units of lists and sets can still be returned.
        if engine.fake.borrow().values != before.values && error == MISCONF {
            return fail("the store changed".to_owned());
        }
        if error == OOM && engine.fake.borrow().has_written {
            continue;
        }
        for (group, result) in groups.iter().zip(results) {
            *copy.fake.borrow_mut() = before.clone();
            let alone = send(&copy, &draws, &[*group], &times, now).remove(0);
            let is_changed = copy.fake.borrow().values != before.values;
            let is_right = match (&result, &alone) {
                (UnwritableOutcome::Unwritten(code), _) => {
                    error.starts_with(code.as_str())
                        && (is_changed || may_differ_without_writes(&draws, *group))
                }
                (UnwritableOutcome::Decided(_, is_granted), _)
                    if may_differ_without_writes(&draws, *group) =>
                {
                    !is_granted
                }
                (_, UnwritableOutcome::Decided(_, true)) => false,
                (result, alone) => result == alone,
            };
            if !is_right {
                return fail(format!("group {group}: {result:?}, but with writes {alone:?}"));
            }
        }
    }
    Ok(())
}

fn check_random_turns_without_writes(write_error: &'static str) {
    let limits = limits();
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    // With steps of lease terms, the clock is also set back further than the script waits for.
    for steps in [ClockSteps::Seconds, ClockSteps::LeaseTerms] {
        let turns = turns(&limits, steps).prop_flat_map(|turns| {
            let count = turns.len();
            proptest::collection::vec(any::<bool>(), count)
                .prop_map(move |rejects| turns.clone().into_iter().zip(rejects).collect::<Vec<_>>())
        });
        if let Err(error) = runner.run(&turns, |turns| check(&turns, &limits, write_error)) {
            panic!("{error}");
        }
    }
}

#[test]
fn a_server_that_rejects_writes_decides_requests_that_need_none() {
    check_random_turns_without_writes(MISCONF);
}

#[test]
fn a_server_without_memory_decides_requests_that_need_no_write() {
    check_random_turns_without_writes(OOM);
}

fn limit(algorithm: Algorithm, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().unwrap()).unwrap()
}

#[test]
fn a_request_denied_by_one_limit_needs_no_write_for_the_others() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::SlidingWindowLog(LogSize::Standard)] {
        let (engine, many, one) =
            (EmbeddedLua::new(Some(0)), limit(algorithm, "100/h"), limit(algorithm, "1/h"));
        let mut draws = Draws::new();
        draws.begin_group();
        for (scope, limit) in [(0, many), (1, one)] {
            draws.push("k".into(), Scope(scope), limit, Op::Take(Amount::exactly(1)), PermitId(0));
        }
        let first = send(&engine, &draws, &[0], &[1], START);
        assert!(matches!(first[0], UnwritableOutcome::Decided(_, true)), "{first:?}");
        engine.fake.borrow_mut().write_error = Some(OOM);
        let denied = send(&engine, &draws, &[0], &[1], START);
        assert!(matches!(denied[0], UnwritableOutcome::Decided(_, false)), "{denied:?}");
    }
}

fn apply_one(engine: &EmbeddedLua, limit: Limit, op: Op, now: Micros) -> UnwritableOutcome {
    let mut draws = Draws::new();
    draws.push("k".into(), Scope(0), limit, op, PermitId(0));
    send(engine, &draws, &[0], &[1], now).remove(0)
}

/// Without writes, a log is neither rebased nor trimmed, but is read as if it were.
#[test]
fn a_log_from_the_far_future_is_read_as_if_it_were_rebased() {
    let log = limit(Algorithm::SlidingWindowLog(LogSize::Standard), "2/min");
    let (engine, copy) = (EmbeddedLua::new(None), EmbeddedLua::new(None));
    for seconds in [0, 30] {
        let took = apply_one(&engine, log, Op::Take(Amount::exactly(1)), START.plus(Span::secs(seconds)));
        assert!(matches!(took, UnwritableOutcome::Decided(_, true)), "{took:?}");
    }
    // After rebasing, the newest unit is from now, and the other from half a minute ago.
    let now = START.minus(Span::HOUR);
    *copy.fake.borrow_mut() = engine.fake.borrow().clone();
    engine.fake.borrow_mut().write_error = Some(MISCONF);
    for op in [Op::Take(Amount::exactly(1)), Op::Peek(Amount::exactly(2)), Op::Peek(Amount::exactly(0))] {
        let reply = apply_one(&engine, log, op, now);
        assert!(matches!(reply, UnwritableOutcome::Decided(_, false)), "{reply:?}");
        assert_eq!(reply, apply_one(&copy, log, op, now), "{op:?}");
    }
    let later = now.plus(Span::secs(31));
    let reply = apply_one(&engine, log, Op::Take(Amount::exactly(1)), later);
    assert!(
        matches!(reply, UnwritableOutcome::Decided(_, false)),
        "it counts from now until it is rebased: {reply:?}"
    );
}

/// Pitfall: a key used only under another quota has no state under the current one, but still has something to clear.
#[test]
fn prior_states_are_not_cleared_without_writes() {
    let (hourly, quick) =
        (limit(Algorithm::TokenBucket, "5/h"), limit(Algorithm::TokenBucket, "100/s burst 100"));
    let engine = EmbeddedLua::new(Some(0));
    let take = |limit, now| {
        let mut draws = Draws::new();
        draws.push("k".into(), Scope(0), limit, Op::Take(Amount::exactly(5)), PermitId(0));
        let mut run = |call: &ScriptCall, draws: &Draws| engine.run(call, draws, now);
        super::run_until_decided(&mut run, &draws, &[1], Micros::new(now)).remove(0).requests.remove(0).all()
            [0]
        .outcome()
    };
    assert_eq!(take(hourly, START.get()), DrawOutcome::Granted(5));
    assert_eq!(take(quick, START.get()), DrawOutcome::Denied, "nothing is left to adopt");
    // By then the state of the quick limit has drained.
    let now = START.plus(Span::secs(60));
    engine.fake.borrow_mut().write_error = Some(MISCONF);
    let reply = apply_one(&engine, quick, Op::Reset, now);
    assert_eq!(reply, UnwritableOutcome::Unwritten("MISCONF".to_owned()));
    engine.fake.borrow_mut().write_error = None;
    let before = engine.fake.borrow().clone();
    assert_eq!(take(hourly, now.get()), DrawOutcome::Denied);
    *engine.fake.borrow_mut() = before;
    assert!(matches!(apply_one(&engine, quick, Op::Reset, now), UnwritableOutcome::Decided(..)));
    assert_eq!(take(hourly, now.get()), DrawOutcome::Granted(5));
}

/// A release frees memory, so a server without memory accepts it.
#[test]
fn a_permit_can_be_released_on_a_server_without_memory() {
    let (engine, permits) = (EmbeddedLua::new(Some(0)), limit(Algorithm::Concurrency, "2/min"));
    let ask = |op, permit| {
        let mut draws = Draws::new();
        draws.push("k".into(), Scope(0), permits, op, PermitId(permit));
        send(&engine, &draws, &[0], &[1], START).remove(0)
    };
    for permit in [1, 2] {
        assert!(matches!(ask(Op::Take(Amount::exactly(1)), permit), UnwritableOutcome::Decided(_, true)));
    }
    engine.fake.borrow_mut().write_error = Some(OOM);
    assert!(matches!(ask(Op::Refund(1), 1), UnwritableOutcome::Decided(..)));
    assert!(
        matches!(ask(Op::Take(Amount::exactly(1)), 3), UnwritableOutcome::Unwritten(code) if code == "OOM")
    );
    engine.fake.borrow_mut().write_error = None;
    assert!(
        matches!(ask(Op::Take(Amount::exactly(1)), 3), UnwritableOutcome::Decided(_, true)),
        "one permit was free"
    );
    assert!(
        matches!(ask(Op::Take(Amount::exactly(1)), 4), UnwritableOutcome::Decided(_, false)),
        "and only one"
    );
}

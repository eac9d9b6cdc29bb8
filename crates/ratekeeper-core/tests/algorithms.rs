//! Every algorithm against its slow, simple model, over random traces: any quota, any cost, any clock.

use ratekeeper_core::{Algorithm, Amount, Draws, Limit, Micros, Op, PermitId, Retry, Span};
use ratekeeper_testkit::suite::{self, SuiteCases};
use ratekeeper_testkit::{Engine, EngineReply, KeyEngine, KeyEngines, SingleKeyStore, test_each_algorithm};

/// Runs random traces through the algorithm and its model side by side.
fn equals_its_model(algorithm: Algorithm) {
    suite::check_traces(algorithm, Span::MAX, SuiteCases::Many, |_| ForecastChecker::default());
}

test_each_algorithm!(equals_its_model);

#[test]
fn a_request_takes_from_all_its_limits_or_from_none() {
    suite::check_requests(SuiteCases::Many, KeyEngines::of_algorithms);
}

/// Runs an algorithm on one state and checks that every predicted retry and reset time is exact to the microsecond.
#[derive(Default)]
struct ForecastChecker(SingleKeyStore);

impl Engine for ForecastChecker {
    fn decide(&mut self, now: Micros, draws: &Draws) -> Vec<EngineReply> {
        let apply = |draw: &ratekeeper_core::Draw| self.act(now, draw.limit(), draw.op(), draw.permit());
        draws.all().iter().map(apply).collect()
    }
}

impl ForecastChecker {
    fn act(&mut self, now: Micros, limit: &Limit, op: Op, permit: PermitId) -> EngineReply {
        let reply = self.0.apply(now, limit, op, permit);
        let amount = match op {
            Op::Take(amount) | Op::Peek(amount) => amount,
            Op::Refund(_) | Op::Reset => return reply,
        };
        let denied_at =
            |at: Micros| self.0.clone().apply(at, limit, Op::Peek(amount), permit).retry.is_some();
        let reset_at = |at: Micros| self.0.clone().apply(at, limit, Op::Peek(Amount::ZERO), permit).reset;
        let just_before = |span: Span| now.plus(Span::micros(span.get() - 1));
        let wrong = match reply.retry {
            Some(Retry::After(Span::ZERO)) => Some("denied with a retry time of zero"),
            Some(Retry::After(span)) if denied_at(now.plus(span)) => {
                Some("denied at the predicted retry time")
            }
            Some(Retry::After(span)) if !denied_at(just_before(span)) => Some("the retry time is too late"),
            Some(Retry::Never) if amount.at_least() <= limit.capacity() => Some("never, though it can fit"),
            _ if reset_at(now.plus(reply.reset)) != Span::ZERO => Some("not full at the reset time"),
            _ if !reply.reset.is_zero() && reset_at(just_before(reply.reset)).is_zero() => {
                Some("full before the reset time")
            }
            _ => None,
        };
        assert_eq!(wrong, None, "{limit} {op:?} at {now:?}: {reply:?}");
        reply
    }
}

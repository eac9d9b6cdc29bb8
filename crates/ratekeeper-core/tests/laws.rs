//! Every law against its slow, obvious model, over random traces: any quota, any cost, any clock.

use ratekeeper_core::{Algorithm, Amount, Draws, Limit, Micros, Op, PermitId, Retry, Span};
use ratekeeper_testkit::suite::{self, SuiteCases};
use ratekeeper_testkit::{Cell, Engine, EngineReply, KeyEngine, KeyEngines, test_each_law};

/// Runs random traces through the law and the model side by side.
fn equals_its_model(law: Algorithm) {
    suite::check_traces(law, Span::MAX, SuiteCases::Many, |_| Promises::default());
}

test_each_law!(equals_its_model);

#[test]
fn a_request_takes_from_all_its_limits_or_from_none() {
    suite::check_requests(SuiteCases::Many, KeyEngines::of_cells);
}

/// The laws around one state, which also checks that each reply's promises hold to the microsecond.
#[derive(Default)]
struct Promises(Cell);

impl Engine for Promises {
    fn decide(&mut self, now: Micros, draws: &Draws) -> Vec<EngineReply> {
        let act = |draw: &ratekeeper_core::Draw| self.act(now, draw.limit(), draw.act(), draw.permit());
        draws.all().iter().map(act).collect()
    }
}

impl Promises {
    fn act(&mut self, now: Micros, limit: &Limit, act: Op, permit: PermitId) -> EngineReply {
        let reply = self.0.act(now, limit, act, permit);
        let ask = match act {
            Op::Take(ask) | Op::Look(ask) => ask,
            Op::Give(_) | Op::Clear => return reply,
        };
        let refused_at = |at: Micros| self.0.clone().act(at, limit, Op::Look(ask), permit).retry.is_some();
        let reset_at = |at: Micros| self.0.clone().act(at, limit, Op::Look(Amount::PEEK), permit).reset;
        let just_before = |span: Span| now.plus(Span::micros(span.get() - 1));
        let broken = match reply.retry {
            Some(Retry::After(Span::ZERO)) => Some("refused with nothing to wait for"),
            Some(Retry::After(span)) if refused_at(now.plus(span)) => {
                Some("came back as told and was refused")
            }
            Some(Retry::After(span)) if !refused_at(just_before(span)) => Some("was told to wait too long"),
            Some(Retry::Never) if ask.at_least() <= limit.capacity() => Some("never, though it can fit"),
            _ if reset_at(now.plus(reply.reset)) != Span::ZERO => Some("not full when it should be"),
            _ if !reply.reset.is_zero() && reset_at(just_before(reply.reset)).is_zero() => {
                Some("full too early")
            }
            _ => None,
        };
        assert_eq!(broken, None, "{limit} {act:?} at {now:?}: {reply:?}");
        reply
    }
}

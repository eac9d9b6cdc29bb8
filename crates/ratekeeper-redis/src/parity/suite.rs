//! Runs the script through the test suite for all engines.

use super::embedded::EmbeddedLua;
use super::run_until_decided;
use crate::batch::codec::ScriptCall;
use ratekeeper_core::{Algorithm, Draws, Micros, Span};
use ratekeeper_testkit::suite::{self, SuiteCases};
use ratekeeper_testkit::{Engine, EngineReply, test_each_algorithm};

/// How many milliseconds longer than on a server keys are kept.
const DAY_MS: u64 = 86_400_000;

/// An embedded Lua without any keys. It is reused, since creating one takes as long as twenty draws.
struct FreshLua<'a>(&'a EmbeddedLua);

impl FreshLua<'_> {
    fn new(lua: &EmbeddedLua) -> FreshLua<'_> {
        lua.fake.borrow_mut().values.clear();
        FreshLua(lua)
    }
}

impl Engine for FreshLua<'_> {
    fn decide(&mut self, now: Micros, draws: &Draws) -> Vec<EngineReply> {
        let mut decided = draws.clone();
        let times = vec![1; draws.len()];
        for result in run_until_decided(
            &mut |call: &ScriptCall, draws: &Draws| self.0.run(call, draws, now.get()),
            draws,
            &times,
            now,
        ) {
            let group = result.requests[0].group(result.group);
            for (own, draw) in decided.group_mut(result.group).iter_mut().zip(group) {
                own.copy_decision(draw);
            }
        }
        EngineReply::from_draws(&decided)
    }
}

#[test]
fn scenarios() {
    let lua = EmbeddedLua::new(Some(0));
    suite::check_scenarios(|| FreshLua::new(&lua));
}

/// The models never expire state, even if the clock steps back. So keys are kept here as well: forever, or, for
/// algorithms that truncate the time in a state, a day longer than on a server.
fn traces(algorithm: Algorithm) {
    let is_truncated = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket(_));
    let (grace_ms, back) =
        if is_truncated { (Some(DAY_MS), Span::HOUR) } else { (None, Span::micros(9 * Span::YEAR.get())) };
    let lua = EmbeddedLua::new(grace_ms);
    suite::check_traces(algorithm, back, SuiteCases::Many, |_| FreshLua::new(&lua));
}

test_each_algorithm!(traces);

#[test]
fn a_request_takes_from_all_its_limits_or_from_none() {
    let lua = EmbeddedLua::new(Some(0));
    suite::check_requests(SuiteCases::Many, || FreshLua::new(&lua));
}

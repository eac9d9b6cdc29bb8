//! The script under the suite that every engine passes.

use super::embedded::Embedded;
use super::settle;
use crate::redis::script_call::ScriptCall;
use ratekeeper_core::{Algorithm, Draws, Micros, Span};
use ratekeeper_testkit::suite::{self, SuiteCases};
use ratekeeper_testkit::{Engine, EngineReply, test_each_law};

/// For how much longer than a server would keep it something is kept, in milliseconds.
const DAY_MS: u64 = 86_400_000;

/// A Lua that has seen nobody yet; making one anew takes as long as twenty draws.
struct FreshLua<'a>(&'a Embedded);

impl FreshLua<'_> {
    fn new(lua: &Embedded) -> FreshLua<'_> {
        lua.fake.borrow_mut().kept.clear();
        FreshLua(lua)
    }
}

impl Engine for FreshLua<'_> {
    fn decide(&mut self, now: Micros, draws: &Draws) -> Vec<EngineReply> {
        let mut decided = draws.clone();
        let times = vec![1; draws.len()];
        for settled in settle(&mut |parcel: &ScriptCall| self.0.run(parcel, now.get()), draws, &times, now) {
            let group = settled.requests[0].group(settled.group);
            for (own, draw) in decided.group_mut(settled.group).iter_mut().zip(group) {
                own.settle_as(draw);
            }
        }
        EngineReply::all(&decided)
    }
}

#[test]
fn scenarios() {
    let lua = Embedded::new(Some(0));
    suite::check_scenarios(|| FreshLua::new(&lua));
}

/// The models forget nothing, even if the clock steps back, so keys stay here as well: for ever, or, where the time in a
/// state is cut short, for a day longer than a server keeps them.
fn traces(law: Algorithm) {
    let is_cut_short = matches!(law, Algorithm::TokenBucket | Algorithm::LeakyBucket(_));
    let (grace_ms, back) =
        if is_cut_short { (Some(DAY_MS), Span::HOUR) } else { (None, Span::micros(9 * Span::YEAR.get())) };
    let lua = Embedded::new(grace_ms);
    suite::check_traces(law, back, SuiteCases::Many, |_| FreshLua::new(&lua));
}

test_each_law!(traces);

#[test]
fn a_request_takes_from_all_its_limits_or_from_none() {
    let lua = Embedded::new(Some(0));
    suite::check_requests(SuiteCases::Many, || FreshLua::new(&lua));
}

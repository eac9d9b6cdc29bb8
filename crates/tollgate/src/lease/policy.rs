//! How much to take ahead, when to ask for more, and when not to ask at all.
//!
//! What is lent is missing elsewhere until it is spent, and under a bucket it does not flow back before it is told of.
//! Both cost little as long as all that is out is a small part of what is left. So a node takes what it needs for a
//! stretch of time in which all nodes together draw no more than a part of what is left. Far from the limit that
//! stretch is long and quiet keys are answered from hand; near the limit it shrinks, until each draw is decided by the
//! store. Past the limit there is nothing to be had: then a node asks once in a while, and refuses in between.

use super::demand::Demand;
use tollgate_core::{Law, Limit, Span, Wish};

/// The longest stretch for which units are taken ahead. Leases last for 30 to 60 seconds.
const LONGEST: f32 = 45.0;
/// How long before the hand is empty more is asked for: many times as long as an answer takes.
const AHEAD: f32 = 0.060;
/// The longest that a key is refused without asking, and which part of the time that its burst takes to come back.
const LONGEST_PAUSE: Span = Span::SECOND;
const PAUSES_A_WINDOW: u64 = 8;
/// From how many refusals on that it spares a pause is worth it.
const SPARED: f32 = 2.0;
/// The part of what is left that all nodes may have in hand, at most, and the burst from which on they may. Between
/// nearly always and now and then empty, a bucket of `c` units refuses 1 of `2 × c`; if a part of it is out, as much as
/// if it were smaller by that. A small one can't spare any.
const PART: f32 = 0.25;
const WIDE: f32 = 2_000.0;

/// What a node would like to be lent of a key.
pub(super) fn wish(limit: &Limit, demand: &Demand, left: u32, is_scarce: bool, nodes: u32) -> Wish {
    let (here, everywhere) = (demand.here(), demand.everywhere(nodes));
    let part = (float(limit.capacity()) / WIDE).min(PART);
    let stretch = (part * float(left) / everywhere.max(f32::MIN_POSITIVE)).min(LONGEST);
    let soon = if is_scarce { here * seconds(pause(limit)) } else { 0.0 };
    Wish { soon: units(soon), later: units(here * stretch), one_of: nodes.saturating_mul(4) }
}

/// With how little in hand it is time to ask for more.
pub(super) fn low(demand: &Demand, hand: u32) -> u32 {
    units(demand.here() * AHEAD).min(hand / 4)
}

/// For how long it is not worth asking for a key of which nothing is left.
pub(super) fn pause(limit: &Limit) -> Span {
    Span::micros(limit.window().get() / PAUSES_A_WINDOW).min(LONGEST_PAUSE)
}

/// For how long not to ask after a refusal that says when to come back. A fixed window has nothing before it ends, and
/// everything then.
pub(super) fn pause_for(limit: &Limit, wait: Span) -> Span {
    match limit.law() {
        Law::FixedWindow(_) => wait.min(LONGEST_PAUSE),
        _ => wait.min(LONGEST_PAUSE).max(pause(limit)),
    }
}

/// Whether there is too little within reach to go on spending for a while, of a key that is drawn so often that a pause
/// is worth it.
pub(super) fn is_scarce(limit: &Limit, demand: &Demand, within_reach: u32) -> bool {
    is_busy(limit, demand) && float(within_reach) < demand.here() * seconds(pause(limit)) / 2.0
}

/// Whether what is lent lapses after a while; else it does when the window ends, and can't be renewed.
pub(super) fn lends_for_terms(limit: &Limit) -> bool {
    matches!(limit.law(), Law::TokenBucket | Law::LeakyBucket(_))
}

/// Whether a key is drawn so often that a pause of its limit is worth it.
pub(super) fn is_busy(limit: &Limit, demand: &Demand) -> bool {
    demand.here() * seconds(pause(limit)) >= SPARED
}

#[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
pub(super) fn seconds(span: Span) -> f32 {
    span.get() as f32 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
fn float(units: u32) -> f32 {
    units as f32
}

/// Whole units; what is beyond all bounds is all there are.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float stops at its bounds"
)]
fn units(units: f32) -> u32 {
    units as u32
}

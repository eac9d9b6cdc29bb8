//! How much to take ahead, when to ask for more, and when not to ask at all.
//!
//! What is lent is missing elsewhere until it is spent. Under a bucket it does not flow back before it is told of, and
//! what is left of it when a window ends is lost. All of that costs little while what is out is a small part of what is
//! left. So a node takes what it needs for a stretch of time in which all nodes together draw no more than a part of what
//! is left. Far from the limit that stretch is long, and quiet keys are answered from hand; near the limit it shrinks,
//! until each draw is decided by the store. Past the limit there is hardly anything to be had: then a busy node asks once
//! in a while, takes its part of what has come meanwhile, and refuses in between. Nothing is lost by that: what nobody
//! asked for is still there.
//!
//! Windows forgive less. What is in hand at the end of one is lost, and so is what has come by then and nobody asked for. So
//! a node takes less and asks more often as the end comes nearer. A sliding window that is drawn just as fast as it allows is
//! the hardest: hardly anything is left to lend, and whoever is refused in vain does not come again within the window. There
//! each draw is decided by the store, unless so many are refused anyway that others take their place.

use super::demand::Demand;
use tollgate_core::{Law, Limit, Micros, Span, State, Wish};

/// The longest stretch for which units are taken ahead. Leases last for 30 to 60 seconds.
const LONGEST: f32 = 45.0;
/// How long before the hand is empty more is asked for: many times as long as an answer takes.
const AHEAD: f32 = 0.060;
/// Past the limit, a node asks once for so many draws, but not more or less often than this, and in any case so many times
/// while the whole burst comes back: the fewer if most of what is drawn is refused.
const DRAWS_A_PAUSE: f32 = 200.0;
const PAUSES: (f32, f32) = (0.020, 1.0);
const PAUSES_A_WINDOW: (f32, f32) = (8.0, 10.0);
/// From how many draws on it is worth a pause.
const WORTH_A_PAUSE: f32 = 2.0;
/// The part of what is left that all nodes may have in hand: far from the limit, and near it. A bucket of `c` units that
/// is drawn just as fast as it fills refuses 1 of `2 × c`, and if a part of it is out, as many as if it were smaller by
/// that part. So a small one can't spare any; one of this size, or larger, can spare the whole part.
const PARTS: (f32, f32) = (0.25, 0.125);
const LARGE: f32 = 500.0;
/// From which part of the limit on demand is near it.
const NEAR: f32 = 0.8;
/// In a window, only what is in hand when it ends is lost. So near the limit a node takes for this part of what is left of
/// it, in time, and if it is short in units too: the last part, which is too short to be taken ahead for, comes after a few
/// such steps. What is in one node's hand is missing at the others, but in a short window not for long.
const PART_OF_WINDOW: f32 = 0.5;
const SHORT: Span = Span::secs(10);
/// What is taken for this part of a short window is hardly missed even if little is left. Nor does it make a difference to a
/// window of so many units, in which chance makes a greater one.
const BRIEF: f32 = 0.04;
const BRIEF_AT: f32 = 10_000.0;
/// With less than this left of a window nothing is lent: it would have lapsed, with what is kept clear of a lease's end, as
/// soon as it came.
const LEAST_WINDOW: Span = Span::millis(3);
/// From how many draws a second on a window's key costs the store enough for that to matter more than the last unit.
const BUSY: f32 = 800.0;
/// The part of what is left of a window for which not to ask. What has come by its end and was not asked for is lost.
const PAUSE_OF_WINDOW: f32 = 0.25;

/// What is known of a key when it is decided how much to take.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// How many units are left.
    pub(super) left: u32,
    /// For how long the window lasts, if there are windows.
    pub(super) lasts: Option<Span>,
    /// Whether the store had too little when it was asked last.
    pub(super) is_scarce: bool,
    pub(super) nodes: u32,
}

/// What a node would like to have in hand.
pub(super) fn wish(limit: &Limit, demand: &Demand, view: View) -> Wish {
    if view.lasts.is_some_and(|lasts| lasts < LEAST_WINDOW) {
        return Wish::default();
    }
    let here = demand.here();
    let stretch = stretch(limit, demand.everywhere(view.nodes), view);
    let lasts = view.lasts.map_or(LONGEST, |lasts| seconds(lasts) * PART_OF_WINDOW);
    let moment = pause_seconds(limit, demand).min(lasts);
    if has_windows(limit) && view.is_scarce && is_made_up(limit, demand) {
        // It is gone in no time, and what nobody takes is lost with the window: so all that is left will do.
        let all = units(here * moment);
        return Wish { soon: all, later: all, one_of: 1 };
    }
    let soon = match (view.is_scarce, demand.is_mostly_refused()) {
        // It is gone in no time.
        (_, true) => here * moment,
        (true, false) => (here * moment).min(float(limit.capacity()) * part(limit, PARTS.1)),
        // It is gone before the window ends.
        (false, false) if is_short(limit) && here > BUSY => here * stretch.max(brief(limit).min(lasts)),
        (false, false) => here * moment.min(stretch),
    };
    Wish { soon: units(soon), later: units(here * stretch), one_of: view.nodes.saturating_mul(4) }
}

/// For how many seconds to take ahead, if all nodes draw so fast.
fn stretch(limit: &Limit, everywhere: f32, view: View) -> f32 {
    let left = float(view.left);
    let lasts = view.lasts.map_or(LONGEST, seconds).min(LONGEST);
    let rate = float(limit.capacity()) / seconds(limit.window());
    let will_do = match limit.law() {
        Law::FixedWindow(_) => everywhere * lasts < NEAR * left,
        _ => everywhere < NEAR * rate,
    };
    let (part, longest) = match (will_do, view.lasts) {
        (true, _) => (PARTS.0, lasts),
        (false, None) => (PARTS.1, lasts),
        (false, Some(_)) if is_short(limit) => (PART_OF_WINDOW, lasts * PART_OF_WINDOW),
        (false, Some(_)) => (PARTS.1, lasts * PART_OF_WINDOW),
    };
    (self::part(limit, part) * left / everywhere.max(f32::MIN_POSITIVE)).min(longest)
}

/// The part that a limit of its size can spare.
fn part(limit: &Limit, part: f32) -> f32 {
    part * (float(limit.capacity()) / LARGE).min(1.0)
}

/// For how many seconds a window can spare units though little is left.
fn brief(limit: &Limit) -> f32 {
    BRIEF * seconds(limit.window()) * (float(limit.capacity()) / BRIEF_AT).min(1.0)
}

/// With how little in hand it is time to ask for more.
pub(super) fn low(demand: &Demand, hand: u32) -> u32 {
    units(demand.here() * AHEAD).min(hand / 4)
}

/// For how long not to ask for a key of which too little was left, if it is drawn so often that it is worth it.
pub(super) fn pause(limit: &Limit, demand: &Demand, lasts: Option<Span>) -> Option<Span> {
    let pause = pause_seconds(limit, demand);
    if !is_made_up(limit, demand) || demand.here() * pause < WORTH_A_PAUSE {
        return None;
    }
    let lasts = lasts.map_or(f32::INFINITY, |lasts| seconds(lasts) * PAUSE_OF_WINDOW);
    Some(span(pause.min(lasts)))
}

/// Whether what is refused while nobody asks is made up for. What comes meanwhile is still there afterwards. In a window
/// that is no use unless more is wanted than comes: only then it is spent before the window ends.
fn is_made_up(limit: &Limit, demand: &Demand) -> bool {
    !has_windows(limit) || demand.is_mostly_refused()
}

/// The same after a refusal that says when to come back. A fixed window has nothing before it ends, and everything then.
pub(super) fn pause_until_due(
    limit: &Limit,
    demand: &Demand,
    lasts: Option<Span>,
    wait: Span,
) -> Option<Span> {
    let wait = wait.min(span(PAUSES.1));
    match limit.law() {
        Law::FixedWindow(_) => (demand.here() * seconds(wait) >= WORTH_A_PAUSE).then_some(wait),
        _ => Some(wait.max(pause(limit, demand, lasts)?)),
    }
}

/// Whether hardly more is left than comes back in a pause: what nodes that take turns leave each other.
pub(super) fn is_scarce(limit: &Limit, left: u32, pause: Span) -> bool {
    let rate = float(limit.capacity()) / seconds(limit.window());
    float(left) < 1.25 * rate * seconds(pause) + 1.0
}

fn pause_seconds(limit: &Limit, demand: &Demand) -> f32 {
    let pause = (DRAWS_A_PAUSE / demand.here().max(f32::MIN_POSITIVE)).clamp(PAUSES.0, PAUSES.1);
    let pauses = if demand.is_mostly_refused() { PAUSES_A_WINDOW.0 } else { PAUSES_A_WINDOW.1 };
    pause.min(seconds(limit.window()) / pauses)
}

/// Whether what is lent lapses with a window, so that it can't be renewed.
pub(super) fn has_windows(limit: &Limit) -> bool {
    matches!(limit.law(), Law::FixedWindow(_) | Law::SlidingWindowCounter)
}

/// Whether what is in hand is spent or lapses in no time.
fn is_short(limit: &Limit) -> bool {
    has_windows(limit) && limit.window() < SHORT
}

/// How long the window lasts that a state is of at the store's time `at`; nothing if the law has none.
pub(super) fn window_left(limit: &Limit, seen: Option<State>, at: Micros) -> Option<Span> {
    match limit.law() {
        Law::FixedWindow(_) => {
            let ends = seen.map(|seen| Micros::new(limit.parts_of(seen)[0])).filter(|ends| *ends > at);
            Some(ends.or_else(|| limit.window_end(at))?.since(at))
        }
        Law::SlidingWindowCounter => {
            let per = limit.quota().per().get();
            Some(Span::micros(per - at.get() % per))
        }
        _ => None,
    }
}

pub(super) fn seconds(span: Span) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
    let micros = span.get() as f32;
    micros / 1e6
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float stops at its bounds"
)]
fn span(seconds: f32) -> Span {
    Span::micros((seconds * 1e6) as u64)
}

#[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
pub(super) fn float(units: u32) -> f32 {
    units as f32
}

/// Whole units; what is beyond all bounds is all there are.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float stops at its bounds"
)]
pub(super) fn units(units: f32) -> u32 {
    units as u32
}

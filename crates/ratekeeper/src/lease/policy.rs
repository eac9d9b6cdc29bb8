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
//! [Windows](window) forgive less: what nobody has spent when one ends is lost. So a node takes less and asks more often as the
//! end comes nearer. A sliding window that is drawn just as fast as it allows is the hardest: hardly anything is left to lend,
//! and whoever is refused in vain does not come again within the window. There each draw is decided by the store, unless
//! so many are refused anyway that others take their place.

mod window;

use super::demand::Demand;
use ratekeeper_core::{Algorithm, LeaseRequest, Limit, Span};
pub(super) use window::{WindowView, counted, has_windows, is_over};

/// The longest stretch for which units are taken ahead. Leases last for 30 to 60 seconds.
const LONGEST: f32 = 45.0;
/// How long before the hand is empty more is asked for: many times as long as an answer takes. But not with more than the first
/// of these parts of it in hand, unless answers take so long that there would not be time for so many of them; and with the
/// second at the latest, because a store that was held up for a moment should not be waited for.
const AHEAD: f32 = 0.060;
const LAST_PARTS: (u32, u32) = (8, 16);
const TRIPS_AHEAD: f32 = 2.0;
/// From how many units on they are much, and with what part of them in hand the first keys ask.
const MUCH: u32 = 256;
const EARLIEST: f32 = 0.25;
/// Answers that take longer are not reckoned with.
const LONGEST_TRIP: Span = Span::millis(50);
/// Past the limit, a node asks once for so many draws, but not more or less often than this, and in any case so many times
/// while the whole burst comes back: the fewer if most of what is drawn is refused.
const DRAWS_A_PAUSE: f32 = 400.0;
const PAUSES: (f32, f32) = (0.025, 1.0);
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
/// With how much left, in terms of what comes in a pause, a key becomes scarce, if it can spare that, and how much it takes for
/// it to be scarce no longer.
const SCARCE: (f32, f32) = (0.5, 1.25);

/// What is known of a key when it is decided how much to take.
#[derive(Clone, Copy, Debug)]
pub(super) struct PolicyInput {
    /// How many units are left.
    pub(super) left: u32,
    /// The window, if there are windows.
    pub(super) window: Option<WindowView>,
    /// Whether the store had too little when it was asked last.
    pub(super) is_scarce: bool,
    pub(super) nodes: u32,
}

/// For how many seconds units may be taken ahead.
#[derive(Clone, Copy, Debug)]
struct Horizon {
    /// As long as what is lent can be spent.
    useful: f32,
    /// As long as enough is left for all nodes.
    stretch: f32,
    /// As long as one would not ask again.
    moment: f32,
}

/// What a node would like to have in hand.
pub(super) fn wish(limit: &Limit, demand: &Demand, view: PolicyInput) -> LeaseRequest {
    let useful = view.window.map_or(Some(LONGEST), |window| window.useful(limit));
    let Some(useful) = useful else { return LeaseRequest::default() };
    let here = demand.here();
    let stretch = stretch(limit, demand, view, useful);
    let lasts = if has_windows(limit) { useful * window::part(limit, demand) } else { useful };
    let moment = pause_seconds(limit, demand).min(lasts);
    if let Some(window) = view.window
        && let Some(all) = all_of(window, limit, demand, view.is_scarce, Horizon { useful, stretch, moment })
    {
        // It is gone in no time, and what nobody takes is lost with the window: so all that is left will do.
        let all = draws(here * all, demand);
        return LeaseRequest { soon: all, later: all, one_of: 1 };
    }
    let soon = match (view.is_scarce, demand.is_mostly_refused()) {
        // It is gone in no time.
        (_, true) => here * moment,
        (true, false) => (here * moment).min(float(limit.capacity()) * part(limit, demand, PARTS.1)),
        // It is gone before the window ends.
        (false, false) if window::is_short(limit) && window::is_busy(demand) => {
            here * stretch.max(window::brief(limit, demand).min(lasts))
        }
        (false, false) => here * moment.min(stretch),
    };
    LeaseRequest {
        soon: draws(soon, demand),
        later: draws(here * stretch, demand),
        one_of: view.nodes.saturating_mul(4),
    }
}

/// As many whole draws as there are in so many units, in units.
fn draws(wished: f32, demand: &Demand) -> u32 {
    units((wished / demand.cost()).floor() * demand.cost())
}

/// For how many seconds a node takes all that it needs, if much more is drawn than a window allows; none, if the store is to
/// decide each draw.
fn all_of(
    window: WindowView,
    limit: &Limit,
    demand: &Demand,
    is_scarce: bool,
    reach: Horizon,
) -> Option<f32> {
    if is_scarce && demand.is_mostly_refused() {
        return Some(reach.moment);
    }
    let all = match limit.law() {
        // Everything is gone long before it ends.
        Algorithm::FixedWindow(_) => reach.moment.max(reach.stretch),
        // What comes while it is spent must be made up for too.
        _ => pause(limit, demand, Some(window))
            .map_or(0.0, |pause| window.until_asked(pause).min(reach.useful / 2.0)),
    };
    window::is_overdrawn(limit, demand).then_some(all)
}

/// For how many seconds to take ahead, if what is lent can be spent for so long.
fn stretch(limit: &Limit, demand: &Demand, view: PolicyInput, useful: f32) -> f32 {
    let everywhere = demand.everywhere(view.nodes);
    let (left, useful) = (float(view.left), useful.min(LONGEST));
    let will_do = match limit.law() {
        Algorithm::FixedWindow(_) => everywhere * useful < NEAR * left,
        _ => everywhere < NEAR * rate(limit),
    };
    let (part, longest) = match (will_do, has_windows(limit)) {
        (true, _) => (PARTS.0, useful),
        (false, false) => (PARTS.1, useful),
        (false, true) if window::is_short(limit) => {
            (window::part(limit, demand), useful * window::part(limit, demand))
        }
        (false, true) => (PARTS.1, useful * window::part(limit, demand)),
    };
    (self::part(limit, demand, part) * left / everywhere.max(f32::MIN_POSITIVE)).min(longest)
}

/// The part that a limit can spare that has room for so many draws.
fn part(limit: &Limit, demand: &Demand, part: f32) -> f32 {
    part * (float(limit.capacity()) / demand.cost() / LARGE).min(1.0)
}

/// How many units come back each second.
fn rate(limit: &Limit) -> f32 {
    float(limit.capacity()) / seconds(limit.window())
}

/// With how little in hand it is time to ask for more. Keys that have much in hand ask the earlier the greater their `whim` is:
/// those that were lent at once would else all ask at once again.
pub(super) fn low(demand: &Demand, hand: u32, trip: Span, whim: u8) -> u32 {
    let in_time = units(demand.here() * seconds(trip) * TRIPS_AHEAD).min(hand / 2);
    let low = units(demand.here() * AHEAD).clamp(hand / LAST_PARTS.1, hand / LAST_PARTS.0).max(in_time);
    if hand < MUCH {
        low
    } else {
        low.max(units(float(hand) * EARLIEST * f32::from(whim) / f32::from(u8::MAX)))
    }
}

/// For how long not to ask for a key of which too little was left, if it is drawn so often that it is worth it.
pub(super) fn pause(limit: &Limit, demand: &Demand, window: Option<WindowView>) -> Option<Span> {
    let bearable = window.map_or(f32::INFINITY, |window| window.bearable(limit, demand));
    let pause = pause_seconds(limit, demand).min(bearable);
    (demand.draws_here() * pause >= WORTH_A_PAUSE).then(|| span(pause))
}

/// The same after a refusal that says when to come back. A fixed window has nothing before it ends, and everything then.
pub(super) fn pause_until_due(
    limit: &Limit,
    demand: &Demand,
    window: Option<WindowView>,
    wait: Span,
) -> Option<Span> {
    match limit.law() {
        Algorithm::FixedWindow(_) => pause_until_over(demand, wait),
        _ => Some(wait.min(span(PAUSES.1)).max(pause(limit, demand, window)?)),
    }
}

/// The same after a loan of the last units of a fixed window.
pub(super) fn pause_when_used_up(limit: &Limit, demand: &Demand, window: Option<WindowView>) -> Option<Span> {
    match limit.law() {
        Algorithm::FixedWindow(_) => pause_until_over(demand, window?.lasts()),
        _ => None,
    }
}

fn pause_until_over(demand: &Demand, lasts: Span) -> Option<Span> {
    let pause = lasts.min(span(PAUSES.1));
    (demand.draws_here() * seconds(pause) >= WORTH_A_PAUSE).then_some(pause)
}

/// Whether hardly more is left than comes back in a pause: what nodes that take turns leave each other. It is so for all nodes
/// alike. If only those paused that the store has refused, the others would be lent what those leave, never be refused, and
/// ask for nearly each draw.
pub(super) fn is_scarce(limit: &Limit, demand: &Demand, left: u32, pause: Span, was_scarce: bool) -> bool {
    let (left, comes) = (float(left), rate(limit) * seconds(pause));
    let is_little = left < SCARCE.1 * comes + 1.0;
    match limit.law() {
        _ if was_scarce => is_little,
        Algorithm::FixedWindow(_) => false,
        Algorithm::SlidingWindowCounter => is_little && window::is_overdrawn(limit, demand),
        _ => left < part(limit, demand, SCARCE.0) * comes,
    }
}

fn pause_seconds(limit: &Limit, demand: &Demand) -> f32 {
    let pause = (DRAWS_A_PAUSE / demand.draws_here().max(f32::MIN_POSITIVE)).clamp(PAUSES.0, PAUSES.1);
    let pauses = if demand.is_mostly_refused() { PAUSES_A_WINDOW.0 } else { PAUSES_A_WINDOW.1 };
    pause.min(seconds(limit.window()) / pauses)
}

/// How long answers take, after one that took so long: a slow one is believed at once, a quick one by and by.
pub(super) fn smooth(before: Span, latest: Span) -> Span {
    latest.max(Span::micros((3 * before.get() + latest.get()) / 4)).min(LONGEST_TRIP)
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

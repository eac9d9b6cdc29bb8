//! Lease sizing: how many units to request, when to renew, and when to back off.
//!
//! Leased units are unavailable to other nodes until they are spent. Leased units of a bucket are not refilled
//! before they are reported, and leased units that are left when a window ends are lost. That costs little while
//! the leased units are a small part of what is left. So a node requests units for a time in which all nodes
//! together draw no more than a part of what is left. Far from the limit that time is long, and even quiet keys
//! are served from leases. Near the limit it shrinks, until the store decides each draw. Beyond the limit there
//! is hardly anything left: a busy node then requests units once per back-off, takes its share of what was
//! refilled in the meantime, and denies in between. Nothing is lost by that, because refilled units stay at the
//! store.
//!
//! [Windows](window) are less forgiving: units that are not spent when a window ends are lost. So a node requests
//! less, and more often, towards the end. A sliding window that is drawn exactly as fast as it allows is the
//! hardest case: there is hardly anything left to lease, and a falsely denied request is not made up for within
//! the window. There the store decides each draw, unless so many draws are denied anyway that others take the
//! place of the falsely denied ones.

mod window;

use super::demand::Demand;
use super::estimate::{float, seconds, span, whole_units};
use ratekeeper_core::{Algorithm, LeaseRequest, Limit, Span};
pub(super) use window::{WindowView, counted_units, has_windows, is_window_over};

/// The shortest time by which a lease ends before the store's deadline, because clocks may run at different speeds.
pub(super) const MIN_MARGIN: Span = Span::millis(2);
/// A lease that would last shorter than this is not used.
pub(super) const MIN_USEFUL_LEASE: Span = Span::micros(500);
/// The longest time for which units are requested, in seconds. Leases last for 30 to 60 seconds.
const MAX_HORIZON_SECONDS: f32 = 45.0;
/// A lease is renewed when less than this many seconds of demand are left, which is many round trips.
const RENEW_AHEAD_SECONDS: f32 = 0.060;
/// The renewal threshold is at most the first fraction of the lease, unless [`RENEW_AHEAD_ROUND_TRIPS`] need more,
/// and at least the second: a store that stalls for a moment should not be waited for.
const RENEW_DIVISORS: (u32, u32) = (8, 16);
const RENEW_AHEAD_ROUND_TRIPS: f32 = 2.0;
/// Leases of at least this many units are renewed earlier by their jitter.
const JITTER_MIN_UNITS: u32 = 256;
/// The share of the lease at which the keys with the greatest jitter renew.
const JITTER_MAX_SHARE: f32 = 0.25;
/// Longer round trips count as this long.
const MAX_ROUND_TRIP: Span = Span::millis(50);
/// Beyond the limit, a node requests units once per this many draws.
const DRAWS_PER_BACKOFF: f32 = 400.0;
/// The shortest and the longest back-off, in seconds.
const BACKOFF_SECONDS: (f32, f32) = (0.025, 1.0);
/// At least this many back-offs fit into the time in which the whole burst is refilled: fewer if most draws are denied.
const BACKOFFS_PER_WINDOW: (f32, f32) = (8.0, 10.0);
/// A back-off must save at least this many requests to the store.
const MIN_BACKOFF_DRAWS: f32 = 2.0;
/// The share of what is left that all nodes together may lease, far from the limit and near it. A bucket of `c` units
/// that is drawn exactly as fast as it refills denies 1 draw in `2 × c`. If a share of it is leased, it denies as many
/// as if it were smaller by that share.
const LEASED_SHARES: (f32, f32) = (0.25, 0.125);
/// A limit of this many draws or more can spare the whole share, a smaller one proportionally less.
const LARGE_LIMIT_DRAWS: f32 = 500.0;
/// Demand is near the limit from this share of it on.
const NEAR_LIMIT_SHARE: f32 = 0.8;
/// A key becomes exhausted if less is left than the first share of what is refilled during a back-off, as far as
/// its capacity can spare that. It stays exhausted below the second.
const EXHAUSTED_SHARES: (f32, f32) = (0.5, 1.25);

/// What lease sizing knows about a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct PolicyInput {
    /// Units left at the store.
    pub(super) remaining: u32,
    /// The current window. `None` for an algorithm without windows.
    pub(super) window: Option<WindowView>,
    /// Whether the store had too few units left at the last renewal.
    pub(super) is_exhausted: bool,
    pub(super) nodes: u32,
}

/// For how many seconds of demand units may be requested.
#[derive(Clone, Copy, Debug)]
struct Horizon {
    /// As long as leased units can be spent.
    usable: f32,
    /// As long as all nodes together draw no more than a part of what is left.
    fair: f32,
    /// As long as a back-off.
    backoff: f32,
}

/// The units that a node should hold.
pub(super) fn lease_request(limit: &Limit, demand: &Demand, input: PolicyInput) -> LeaseRequest {
    let usable = input.window.map_or(Some(MAX_HORIZON_SECONDS), |window| window.usable_seconds(limit));
    let Some(usable) = usable else { return LeaseRequest::default() };
    let local_rate = demand.local_rate();
    let fair = fair_seconds(limit, demand, input, usable);
    let usable_share = if has_windows(limit) { usable * window::time_share(limit, demand) } else { usable };
    let backoff = backoff_seconds(limit, demand).min(usable_share);
    if let Some(window) = input.window
        && let Some(seconds) =
            full_demand_seconds(window, limit, demand, input.is_exhausted, Horizon { usable, fair, backoff })
    {
        // The units are spent almost at once, and units that no node takes are lost with the window: so the
        // request may take all that is left.
        let all = whole_draws(local_rate * seconds, demand);
        return LeaseRequest { short_horizon: all, long_horizon: all, long_horizon_divisor: 1 };
    }
    let soon = match (input.is_exhausted, demand.is_mostly_denied()) {
        // The units are spent almost at once.
        (_, true) => local_rate * backoff,
        (true, false) => {
            (local_rate * backoff).min(float(limit.capacity()) * spare_share(limit, demand, LEASED_SHARES.1))
        }
        // The units are spent before the window ends.
        (false, false) if window::is_short_window(limit) && window::is_busy(demand) => {
            local_rate * fair.max(window::brief_seconds(limit, demand).min(usable_share))
        }
        (false, false) => local_rate * backoff.min(fair),
    };
    LeaseRequest {
        short_horizon: whole_draws(soon, demand),
        long_horizon: whole_draws(local_rate * fair, demand),
        long_horizon_divisor: input.nodes.saturating_mul(4),
    }
}

/// Rounds a number of units down to whole draws.
fn whole_draws(wanted: f32, demand: &Demand) -> u32 {
    whole_units((wanted / demand.mean_cost()).floor() * demand.mean_cost())
}

/// For how many seconds of demand a node requests all units that it needs, if demand is far above what a window
/// allows. Zero if the store should decide each draw. `None` if demand is not that high.
fn full_demand_seconds(
    window: WindowView,
    limit: &Limit,
    demand: &Demand,
    is_exhausted: bool,
    horizon: Horizon,
) -> Option<f32> {
    if is_exhausted && demand.is_mostly_denied() {
        return Some(horizon.backoff);
    }
    let all = match limit.algorithm() {
        // All units are used long before the window ends.
        Algorithm::FixedWindow(_) => horizon.backoff.max(horizon.fair),
        // What is refilled in the meantime must be made up for too.
        _ => backoff(limit, demand, Some(window))
            .map_or(0.0, |backoff| window.until_next_reply(backoff).min(horizon.usable / 2.0)),
    };
    window::is_overdrawn(limit, demand).then_some(all)
}

/// For how many seconds of demand to request units, if they can be spent for `usable` seconds.
fn fair_seconds(limit: &Limit, demand: &Demand, input: PolicyInput, usable: f32) -> f32 {
    let global_rate = demand.global_rate(input.nodes);
    let (left, usable) = (float(input.remaining), usable.min(MAX_HORIZON_SECONDS));
    let is_far_from_limit = match limit.algorithm() {
        Algorithm::FixedWindow(_) => global_rate * usable < NEAR_LIMIT_SHARE * left,
        _ => global_rate < NEAR_LIMIT_SHARE * refill_rate(limit),
    };
    let (share, longest) = match (is_far_from_limit, has_windows(limit)) {
        (true, _) => (LEASED_SHARES.0, usable),
        (false, false) => (LEASED_SHARES.1, usable),
        (false, true) if window::is_short_window(limit) => {
            (window::time_share(limit, demand), usable * window::time_share(limit, demand))
        }
        (false, true) => (LEASED_SHARES.1, usable * window::time_share(limit, demand)),
    };
    (self::spare_share(limit, demand, share) * left / global_rate.max(f32::MIN_POSITIVE)).min(longest)
}

/// The share that a limit of this capacity can spare.
fn spare_share(limit: &Limit, demand: &Demand, share: f32) -> f32 {
    share * (float(limit.capacity()) / demand.mean_cost() / LARGE_LIMIT_DRAWS).min(1.0)
}

/// Units refilled per second.
fn refill_rate(limit: &Limit) -> f32 {
    float(limit.capacity()) / seconds(limit.window())
}

/// The number of unspent units below which a lease is renewed. Large leases are renewed earlier the greater their
/// `jitter`: otherwise leases that were granted together would be renewed together.
pub(super) fn renew_threshold(demand: &Demand, unspent: u32, round_trip: Span, jitter: u8) -> u32 {
    let in_flight =
        whole_units(demand.local_rate() * seconds(round_trip) * RENEW_AHEAD_ROUND_TRIPS).min(unspent / 2);
    let threshold = whole_units(demand.local_rate() * RENEW_AHEAD_SECONDS)
        .clamp(unspent / RENEW_DIVISORS.1, unspent / RENEW_DIVISORS.0)
        .max(in_flight);
    if unspent < JITTER_MIN_UNITS {
        threshold
    } else {
        threshold.max(whole_units(float(unspent) * JITTER_MAX_SHARE * f32::from(jitter) / f32::from(u8::MAX)))
    }
}

/// How long not to request units of an exhausted key. `None` if it is drawn too seldom for a back-off to pay off.
pub(super) fn backoff(limit: &Limit, demand: &Demand, window: Option<WindowView>) -> Option<Span> {
    let max_backoff = window.map_or(f32::INFINITY, |window| window.max_backoff(limit, demand));
    let backoff = backoff_seconds(limit, demand).min(max_backoff);
    (demand.local_draw_rate() * backoff >= MIN_BACKOFF_DRAWS).then(|| span(backoff))
}

/// The back-off after a denial that says when to retry. A fixed window has nothing left until it ends, and
/// everything then.
pub(super) fn backoff_until_retry(
    limit: &Limit,
    demand: &Demand,
    window: Option<WindowView>,
    wait: Span,
) -> Option<Span> {
    match limit.algorithm() {
        Algorithm::FixedWindow(_) => backoff_until_window_end(demand, wait),
        _ => Some(wait.min(span(BACKOFF_SECONDS.1)).max(backoff(limit, demand, window)?)),
    }
}

/// The back-off after a grant of the last units of a fixed window. `None` for other algorithms.
pub(super) fn backoff_when_used_up(
    limit: &Limit,
    demand: &Demand,
    window: Option<WindowView>,
) -> Option<Span> {
    match limit.algorithm() {
        Algorithm::FixedWindow(_) => backoff_until_window_end(demand, window?.time_left()),
        _ => None,
    }
}

fn backoff_until_window_end(demand: &Demand, time_left: Span) -> Option<Span> {
    let backoff = time_left.min(span(BACKOFF_SECONDS.1));
    (demand.local_draw_rate() * seconds(backoff) >= MIN_BACKOFF_DRAWS).then_some(backoff)
}

/// Whether hardly more is left than is refilled during a back-off, which is what nodes that take turns leave each
/// other. The answer is the same for all nodes. If only those nodes backed off that the store has denied, the
/// others would be granted what those leave, never be denied, and send almost every draw to the store.
pub(super) fn is_exhausted(
    limit: &Limit,
    demand: &Demand,
    left: u32,
    backoff: Span,
    was_exhausted: bool,
) -> bool {
    let (left, refilled) = (float(left), refill_rate(limit) * seconds(backoff));
    let is_low = left < EXHAUSTED_SHARES.1 * refilled + 1.0;
    match limit.algorithm() {
        _ if was_exhausted => is_low,
        Algorithm::FixedWindow(_) => false,
        Algorithm::SlidingWindowCounter => is_low && window::is_overdrawn(limit, demand),
        _ => left < spare_share(limit, demand, EXHAUSTED_SHARES.0) * refilled,
    }
}

fn backoff_seconds(limit: &Limit, demand: &Demand) -> f32 {
    let backoff = (DRAWS_PER_BACKOFF / demand.local_draw_rate().max(f32::MIN_POSITIVE))
        .clamp(BACKOFF_SECONDS.0, BACKOFF_SECONDS.1);
    let backoffs = if demand.is_mostly_denied() { BACKOFFS_PER_WINDOW.0 } else { BACKOFFS_PER_WINDOW.1 };
    backoff.min(seconds(limit.window()) / backoffs)
}

/// Smooths the round-trip time: a slow reply counts at once, a fast one gradually.
pub(super) fn smooth_round_trip(before: Span, latest: Span) -> Span {
    latest.max(Span::micros((3 * before.get() + latest.get()) / 4)).min(MAX_ROUND_TRIP)
}

//! How many units to lease, and when: the parameters and the three formulas that they enter.
//!
//! `ALGORITHMS.md`, *Lease sizes*, derives them. In short: leased units are unavailable to other nodes until they are
//! spent, and those that a window's end finds unspent are lost; a small lease costs store calls. So a lease is the
//! largest that
//!
//! - is this node's part of a *share* of what is left, and
//! - is spent in time for certain, if the units may run out at all.
//!
//! Beyond the limit hardly anything is left. Then nodes take turns: each asks once per *back-off*, takes what was
//! refilled meanwhile, and denies in between. Nothing is lost by that, because refilled units stay at the store.
//!
//! [`Demand`] is formula (a), [`KeyOutlook::lease_request`] is (b), and [`KeyOutlook::backoff_seconds`] and
//! [`KeyOutlook::renew_threshold`] are (c).

use super::demand::Demand;
use super::estimate::{float, seconds, span, whole_units};
use super::parameters::LeasePolicy;
use super::window::{WindowView, has_windows};
use ratekeeper_core::{Algorithm, LeaseRequest, Limit, Span};

/// A back-off that saves fewer draws than this is none: the call that ends it costs as much.
const MIN_DRAWS_SAVED: f32 = 2.0;
/// A renewal is sent when the units last for this many more round trips, so that its reply comes in time.
const RENEW_AHEAD_ROUND_TRIPS: f32 = 2.0;
/// Units that a back-off of a sliding window leaves over must be spent this many round trips before the window ends:
/// one for the request, one for its draws, and one because the round trip is an estimate.
const RECOVERY_ROUND_TRIPS: f32 = 3.0;

/// What the formulas know about a key at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyOutlook<'a> {
    pub(super) policy: &'a LeasePolicy,
    pub(super) limit: &'a Limit,
    pub(super) demand: &'a Demand,
    /// Units left at the store.
    pub(super) remaining: u32,
    /// The current window. `None` for an algorithm without windows.
    pub(super) window: Option<WindowView>,
    /// Whether the store had too few units left when it was last asked.
    pub(super) is_exhausted: bool,
    pub(super) nodes: u32,
}

impl KeyOutlook<'_> {
    /// The units that this node should hold. Zero if the store should decide each draw.
    pub(super) fn lease_request(&self) -> LeaseRequest {
        let usable = match self.window {
            None => Some(self.policy.max_horizon_seconds),
            Some(window) => window.usable_seconds(self.limit),
        };
        let Some(usable) = usable.map(|usable| usable.min(self.policy.max_horizon_seconds)) else {
            return LeaseRequest::default();
        };
        // The time in which all nodes together draw the share that may be leased.
        let fair = (self.idle_share() * float(self.remaining) / self.global_rate()).min(usable);
        if has_windows(self.limit) { self.window_request(usable, fair) } else { self.bucket_request(fair) }
    }

    /// A bucket never loses units, so a node may take all that it spends until the next back-off ends.
    fn bucket_request(&self, fair: f32) -> LeaseRequest {
        let rate = self.demand.local_rate();
        let soon = match self.backoff_seconds() {
            None => 0.0,
            Some(backoff) if self.is_exhausted => {
                (rate * backoff).min(float(self.limit.capacity()) * self.idle_share())
            }
            Some(backoff) => rate * fair.min(backoff),
        };
        LeaseRequest {
            short_horizon: self.whole_draws(soon),
            long_horizon: self.whole_draws(rate * fair),
            long_horizon_divisor: self.nodes.saturating_mul(4),
        }
    }

    /// A window loses the units that are unspent when it ends.
    fn window_request(&self, usable: f32, fair: f32) -> LeaseRequest {
        let rate = self.demand.local_rate();
        let global_draws = self.global_rate() / self.demand.mean_cost() * usable;
        let doubt = self.doubt(global_draws);
        let drawn = self.global_rate() * usable;
        let (is_plenty, is_short) = match self.limit.algorithm() {
            Algorithm::FixedWindow(_) => {
                let left = float(self.remaining);
                (drawn * (1.0 + doubt) < left, drawn * (1.0 - doubt) > left)
            }
            _ => (self.global_rate() * (1.0 + doubt) < self.refill_rate(), self.is_exhausted),
        };
        if is_plenty {
            return self.same_horizons(rate * fair, self.nodes.saturating_mul(4));
        }
        // What is spent before the window ends, if there are as few draws as there may be.
        let certain = usable * (1.0 - self.doubt(self.demand.local_draw_rate() * usable)).max(0.0);
        let fair = fair.min(self.policy.max_backoff_seconds).min(certain);
        if !is_short {
            return self.same_horizons(rate * fair, self.nodes.saturating_mul(4));
        }
        // All units will be used long before the window ends, whichever node takes them.
        let until_reply = match self.limit.algorithm() {
            Algorithm::FixedWindow(_) => 0.0,
            _ => self.window.map_or(0.0, WindowView::round_trip_seconds),
        };
        let turn = self.backoff_seconds().unwrap_or(0.0) + until_reply;
        self.same_horizons(rate * fair.max(turn.min(certain)), 1)
    }

    fn same_horizons(&self, units: f32, divisor: u32) -> LeaseRequest {
        let units = self.whole_draws(units);
        LeaseRequest { short_horizon: units, long_horizon: units, long_horizon_divisor: divisor }
    }

    /// The share of the units that may be idle at any time: leased and unspent, or refilled and uncollected.
    fn idle_share(&self) -> f32 {
        let most = match has_windows(self.limit) {
            true => self.policy.max_window_share,
            false => self.policy.max_bucket_share,
        };
        (2.0 * self.policy.false_denial_share * self.capacity_draws()).min(most)
    }

    /// By which share a number of future draws may differ from what the measured rate predicts: the rate is the mean of
    /// a limited number of draws, and their number itself varies.
    fn doubt(&self, draws: f32) -> f32 {
        let measured = self.demand.measured_draws().max(1.0);
        self.policy.deviations * (1.0 / measured + 1.0 / draws.max(f32::MIN_POSITIVE)).sqrt()
    }

    /// How long not to ask the store for an exhausted key. `None` if it is drawn too seldom for that to pay off.
    pub(super) fn backoff_seconds(&self) -> Option<f32> {
        let policy = self.policy;
        let rate = self.demand.local_draw_rate().max(f32::MIN_POSITIVE);
        let affordable = match self.window {
            Some(window) if self.limit.algorithm() == Algorithm::SlidingWindowCounter => {
                self.recoverable_seconds(window)
            }
            _ => f32::INFINITY,
        };
        let backoff = (policy.draws_per_backoff / rate)
            .clamp(policy.min_backoff_seconds, policy.max_backoff_seconds)
            .min(policy.max_bucket_share * seconds(self.limit.window()))
            .min(affordable);
        (rate * backoff >= MIN_DRAWS_SAVED).then_some(backoff)
    }

    /// The longest back-off whose uncollected units are spent before the window ends, by draws that would otherwise be
    /// denied.
    fn recoverable_seconds(&self, window: WindowView) -> f32 {
        let (denied, round_trip) = (self.demand.denied_share(), window.round_trip_seconds());
        // What becomes available in this time may be lost.
        let negligible =
            self.policy.false_denial_share * seconds(self.limit.window()) / (1.0 - denied) - round_trip;
        // The standard deviation of a share among some draws is at most half of the root of their number.
        let draws = self.demand.local_draw_rate() * window.seconds_left();
        let certain = (denied - self.random_share() - 0.5 / draws.max(f32::MIN_POSITIVE).sqrt()).max(0.0);
        let recovery = (window.seconds_left() - RECOVERY_ROUND_TRIPS * round_trip).max(0.0);
        negligible.max(certain * recovery - round_trip)
    }

    /// The back-off after a denial that says when to retry. A fixed window has nothing left until it ends, and
    /// everything then.
    pub(super) fn backoff_until_retry(&self, wait: Span) -> Option<Span> {
        match self.limit.algorithm() {
            Algorithm::FixedWindow(_) => self.backoff_until_window_end(wait),
            _ => Some(wait.min(span(self.policy.max_backoff_seconds)).max(span(self.backoff_seconds()?))),
        }
    }

    /// The back-off after a grant of the last units of a fixed window. `None` for other algorithms.
    pub(super) fn backoff_when_used_up(&self) -> Option<Span> {
        match (self.limit.algorithm(), self.window) {
            (Algorithm::FixedWindow(_), Some(window)) if self.remaining == 0 => {
                self.backoff_until_window_end(span(window.seconds_left()))
            }
            _ => None,
        }
    }

    fn backoff_until_window_end(&self, time_left: Span) -> Option<Span> {
        let backoff = seconds(time_left).min(self.policy.max_backoff_seconds);
        (self.demand.local_draw_rate() * backoff >= MIN_DRAWS_SAVED).then(|| span(backoff))
    }

    /// Whether hardly more is left than is refilled during a back-off, which is what nodes that take turns leave each
    /// other. The answer is the same for all nodes. If only those nodes backed off that the store has denied, the
    /// others would be granted what those leave, never be denied, and send almost every draw to the store.
    pub(super) fn is_exhausted_for(&self, backoff_seconds: f32) -> bool {
        let is_low = float(self.remaining) < self.refill_rate() * backoff_seconds + 1.0;
        match self.limit.algorithm() {
            // Nothing is refilled before the window ends.
            Algorithm::FixedWindow(_) => false,
            Algorithm::SlidingWindowCounter => is_low && self.is_overdrawn(),
            _ => is_low,
        }
    }

    /// Whether more is denied than random variation of the demand explains.
    fn is_overdrawn(&self) -> bool {
        self.demand.denied_share() > self.random_share()
    }

    /// The share of draws that a window may deny although the demand does not exceed it on average.
    fn random_share(&self) -> f32 {
        self.policy.deviations / self.capacity_draws().sqrt()
    }

    /// The number of unspent units below which a lease is renewed. `jitter` is 0 to 255 and depends on the key.
    pub(super) fn renew_threshold(&self, unspent: u32, round_trip: Span, jitter: u8) -> u32 {
        let in_flight = self.demand.local_rate() * seconds(round_trip) * RENEW_AHEAD_ROUND_TRIPS;
        let share = self.policy.renew_share * (1.0 + f32::from(jitter) / f32::from(u8::MAX));
        whole_units(in_flight.min(float(unspent) / 2.0).max(float(unspent) * share))
    }

    fn global_rate(&self) -> f32 {
        self.demand.global_rate(self.nodes).max(f32::MIN_POSITIVE)
    }

    /// Units refilled per second.
    fn refill_rate(&self) -> f32 {
        float(self.limit.capacity()) / seconds(self.limit.window())
    }

    /// How many draws the limit allows at once.
    fn capacity_draws(&self) -> f32 {
        float(self.limit.capacity()) / self.demand.mean_cost()
    }

    /// Rounds units down to whole draws: less than one is of no use.
    fn whole_draws(&self, units: f32) -> u32 {
        let cost = self.demand.mean_cost();
        whole_units((units / cost).floor() * cost)
    }
}

#[cfg(test)]
mod tests;

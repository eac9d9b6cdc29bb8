//! Per-key lease state: unspent units, and what has been reported to the store.
//!
//! An entry is in one of three phases. It is *ready* for a renewal. It is *renewing* while a renewal is in
//! flight, and goes on spending the units that it reported as kept. Or its lease is *unacknowledged*, because a
//! renewal got no reply. The serial number changes with each renewal and each reply, and receipts of another
//! serial number are void.

use super::cold_fields::{Backoff, ColdFields, LeasePhase, StoreSupply};
use super::counters::{KeyCounters, LeaseCounters};
use super::demand::{Demand, remaining};
use super::estimate::{seconds, smooth_round_trip, span, whole_units};
use super::hot::{HotFields, PackedHot};
use super::parameters::LeasePolicy;
use super::policy::KeyOutlook;
use super::window::{MIN_MARGIN, MIN_USEFUL_LEASE, WindowView, has_windows, is_window_over};
use super::{
    DetachedRenewal, KeyName, LeaseKey, LeaseRenewal, LeaseReply, MAX_STORED_KEY_BYTES, SpendOutcome,
    SpendReceipt, SpentUnits,
};
use crate::health::KeyLease;
use crate::memory::key_hash::KeyHash;
use ratekeeper_core::{
    Amount, DrawOutcome, DrawResult, Forecast, LEASE_TERM, LeaseReport, LeaseRequest, Limit, LimitStatus,
    Micros, Retry, Span, State,
};
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// A lease ends early by this fraction of its length, because clocks may run at different speeds, but at least by
/// [`MIN_MARGIN`].
const MARGIN_DIVISOR: u64 = 64;
/// A lease is returned if its key was not drawn for this long.
const IDLE_TIMEOUT: Span = Span::secs(5);
/// A lease is worth returning or renewing if it has more than this fraction of the limit's capacity.
const SIGNIFICANT_DIVISOR: u64 = 64;
/// How long before its deadline a lease is renewed, if that is worthwhile: units that expire are unavailable
/// until they have been refilled. All leases of a term end together, so the renewals are spread over this range.
const RENEW_BEFORE_DEADLINE: (Span, Span) = (Span::secs(3), Span::secs(13));
/// A bucket counts as full if it lacks less than this fraction of its capacity.
const FULL_TOLERANCE_DIVISOR: u64 = 256;
/// An entry without a lease is removed if its key was not drawn for this long.
const ENTRY_IDLE_TIMEOUT: Span = Span::secs(120);

/// The most draws of one key that go to the store within [`MISS_PERIOD`]. A key that is drawn a million times a
/// second would otherwise fill the queue to the store whenever its lease is used up, and delay all other keys. A
/// new key's demand is known after some hundred draws.
const MAX_MISSES: u32 = 1024;
/// The period over which misses are counted.
const MISS_PERIOD: Span = Span::millis(10);
/// A state that is older than the last one by less than this was sent by a delayed reply. If it is older by more,
/// the store's clock was set back.
const MAX_REPLY_DELAY: Span = Span::secs(2);
/// The shortest `retry after` of a draw that is denied without asking the store.
const MIN_RETRY_AFTER: Span = Span::millis(1);

/// Per-key jitter (0–255) that spreads renewals.
fn jitter(hash: KeyHash) -> u8 {
    hash.fingerprint.to_le_bytes()[0]
}

/// How long before its deadline the lease of a key is renewed.
fn renewal_lead(hash: KeyHash) -> Span {
    let (latest, earliest) = (RENEW_BEFORE_DEADLINE.0.get(), RENEW_BEFORE_DEADLINE.1.get());
    Span::micros(latest + (earliest - latest) * u64::from(jitter(hash)) / u64::from(u8::MAX))
}

/// Why a renewal is created.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RenewalCause {
    /// A draw goes to the store anyway.
    Draw,
    /// Few units are left.
    Low,
    /// The deadline is near.
    Expiring,
}

/// A locked entry, with the counters of its shard. Writes the changed fields back when dropped.
pub(super) struct EntryGuard<'a> {
    pub(super) hot: HotFields,
    pub(super) packed: &'a PackedHot,
    pub(super) cold: &'a mut ColdFields,
    pub(super) policy: &'a LeasePolicy,
    pub(super) counters: &'a mut LeaseCounters,
}

impl Drop for EntryGuard<'_> {
    fn drop(&mut self) {
        self.hot.write(self.packed);
    }
}

impl EntryGuard<'_> {
    /// Resets the entry for the limit in this slot of the limit table.
    pub(super) fn reset(&mut self, limit_slot: u32, now: Micros) {
        self.hot = HotFields { limit_slot, serial: self.hot.serial.wrapping_add(1), ..HotFields::default() };
        *self.cold = ColdFields {
            demand: Demand::new(now),
            active_at: now,
            misses_since: now,
            name: self.cold.name.take(),
            lease_id: self.hot.serial,
            ..ColdFields::default()
        };
    }

    /// Changes the phase, and the serial number with it.
    fn set_phase(&mut self, phase: LeasePhase) {
        self.cold.phase = phase;
        self.hot.serial = self.hot.serial.wrapping_add(1);
    }

    /// Counts a draw that the store decides.
    pub(super) fn count_draw(&mut self, units: u32) {
        self.hot.count_draw(units);
    }

    /// Counts a draw that is sent to the store.
    pub(super) fn count_miss(&mut self) {
        self.counters.misses += 1;
        self.cold.misses = self.cold.misses.saturating_add(1);
        self.cold.counters.misses = self.cold.counters.misses.wrapping_add(1);
    }

    /// Whether too many draws of this key were sent to the store lately.
    fn has_too_many_misses(&mut self, now: Micros) -> bool {
        if now.since(self.cold.misses_since) >= MISS_PERIOD {
            (self.cold.misses, self.cold.misses_since) = (0, now);
        }
        self.cold.misses >= MAX_MISSES
    }

    /// Resets the miss count, because a store that is down can't be overloaded.
    pub(super) fn reset_misses(&mut self) {
        self.cold.misses = 0;
    }

    /// Counts units that can be neither spent nor returned.
    pub(super) fn count_expired(&mut self, units: u32) {
        self.counters.expired += u64::from(units);
        self.cold.counters.expired += u64::from(units);
    }

    /// Spends leased units if there are enough. Otherwise denies the draw, if the store is known to have too few
    /// units left, or sends it to the store. Creates renewals in time.
    pub(super) fn spend(
        &mut self,
        limit: &Limit,
        lease_key: &LeaseKey<'_>,
        units: u32,
        nodes: u32,
        now: Micros,
    ) -> SpendOutcome {
        if now >= self.hot.deadline && !self.cold.is_renewing() {
            self.expire();
        }
        if now < self.hot.deadline && units <= self.hot.unspent {
            // The renewal is created first, so that the units spent below are not part of its report and the
            // spend can be undone.
            let renewal = self.make_renewal(RenewalCause::Low, limit, lease_key, nodes, now);
            self.counters.renewals += u64::from(renewal.is_some());
            self.counters.count_spend(units);
            let result = self.hot.spend(limit, units, now);
            return SpendOutcome::Spent(SpentUnits {
                result,
                receipt: SpendReceipt(self.hot.serial),
                renewal,
            });
        }
        self.hot.count_draw(units);
        // The store decides only about the units that are missing here.
        let missing = units - self.unspent(now).min(units);
        if self.cold.supply.denies(missing, self.cold.is_renewing(), now) {
            self.cold.demand.add_denied(units);
            return SpendOutcome::Denied(self.deny(limit, units, now));
        }
        if self.has_too_many_misses(now) {
            // This says nothing about how many units are left, so it does not count as denied demand.
            return SpendOutcome::Denied(self.deny(limit, units, now));
        }
        self.count_miss();
        let claim = self.claim(limit, lease_key.hash, units, now);
        if self.cold.phase == LeasePhase::Unacked {
            // Too few units are left, and an unacknowledged lease can't be renewed.
            self.expire();
        }
        SpendOutcome::Miss {
            renewal: self.make_renewal(RenewalCause::Draw, limit, lease_key, nodes, now),
            claim,
        }
    }

    /// Units that may be spent now.
    pub(super) fn unspent(&self, now: Micros) -> u32 {
        if now < self.hot.deadline { self.hot.unspent } else { 0 }
    }

    /// Removes a draw that another limit denied from the demand for this one.
    pub(super) fn cancel_draw(&mut self, units: u32) {
        self.cold.demand.cancel_draw(units);
    }

    /// The key's state at the store's time, as far as it is known here: unspent units count as left. `None` if
    /// the store has not sent a state yet.
    pub(super) fn known_state(&self, limit: &Limit, now: Micros) -> Option<(Micros, State)> {
        self.cold.store_state_at?;
        let (at, unspent) = (self.hot.store_time(now), self.unspent(now));
        Some((at, limit.refund_unspent(self.hot.store_state, at, unspent, self.hot.unreported)))
    }

    /// Stops denying without asking the store, which is known to have more units than it said.
    pub(super) fn clear_denial(&mut self) {
        self.cold.supply = StoreSupply::Ample;
    }

    /// Creates a renewal if there are units to request or, where a request is sent anyway, units to report.
    /// Returns `None` if a renewal is in flight.
    fn make_renewal(
        &mut self,
        cause: RenewalCause,
        limit: &Limit,
        lease_key: &LeaseKey<'_>,
        nodes: u32,
        now: Micros,
    ) -> Option<LeaseRenewal> {
        // Until there is a reply, or if the store has nothing left, all units may be spent.
        self.hot.renew_below = 0;
        if self.cold.phase != LeasePhase::Ready {
            return None;
        }
        let request = self.lease_request(limit, nodes, now);
        let has_request = request != LeaseRequest::default();
        let has_report = self.hot.has_lease(now) && cause != RenewalCause::Low;
        if !has_request && !has_report {
            // Either there are enough units, or the store has none left.
            self.hot.renew_below = if self.cold.supply.is_exhausted() { 0 } else { self.hot.unspent / 2 };
            return None;
        }
        if has_request && self.cold.name.is_none() && lease_key.key.bytes().len() <= MAX_STORED_KEY_BYTES {
            self.cold.name = Some(Arc::new(KeyName { key: lease_key.key.to_key(), scope: lease_key.scope }));
        }
        Some(self.start_renewal(lease_key.hash, self.hot.unspent, request, now))
    }

    /// The units to request beyond the unspent ones. Zero if there is nothing to request.
    fn lease_request(&mut self, limit: &Limit, nodes: u32, now: Micros) -> LeaseRequest {
        self.cold.demand.update(self.policy, self.hot.draw_counters, limit.capacity(), now);
        let at = self.hot.store_time(now);
        let state = self.cold.store_state_at.map(|_| self.hot.store_state);
        if is_window_over(limit, state, at) {
            self.cold.supply = StoreSupply::Ample;
        }
        let remaining = self.estimated_remaining(limit, nodes, at);
        let request = self.outlook(limit, (state, at), remaining, nodes).lease_request();
        let (soon, later) = (
            request.short_horizon.saturating_sub(self.hot.unspent),
            request.long_horizon.saturating_sub(self.hot.unspent),
        );
        if soon == 0 && later == 0 {
            LeaseRequest::default()
        } else {
            LeaseRequest { short_horizon: soon, long_horizon: later, ..request }
        }
    }

    /// What lease sizing has to know, at the store's time and state.
    fn outlook<'b>(
        &'b self,
        limit: &'b Limit,
        (state, at): (Option<State>, Micros),
        remaining: u32,
        nodes: u32,
    ) -> KeyOutlook<'b> {
        KeyOutlook {
            policy: self.policy,
            limit,
            demand: &self.cold.demand,
            remaining,
            window: WindowView::of(limit, state, at, self.cold.round_trip),
            is_exhausted: self.cold.supply.is_exhausted(),
            nodes,
        }
    }

    /// Estimated units left at the store: other nodes draw too.
    fn estimated_remaining(&self, limit: &Limit, nodes: u32, at: Micros) -> u32 {
        let Some(seen_at) = self.cold.store_state_at else { return limit.capacity() };
        let drawn = self.cold.demand.global_rate(nodes) * seconds(at.since(seen_at));
        remaining(limit, self.hot.store_state, at).saturating_sub(whole_units(drawn))
    }

    /// Creates a renewal, which reports each unit of the lease as spent, kept or returned. `kept` of the unspent
    /// units are kept, the others are returned. Nothing more is reported until there is a reply.
    fn start_renewal(
        &mut self,
        hash: KeyHash,
        kept: u32,
        request: LeaseRequest,
        now: Micros,
    ) -> LeaseRenewal {
        let report = if now < self.hot.deadline {
            // Claimed units may be put back, so they are reported as kept.
            LeaseReport {
                term: self.cold.term,
                spent: self.hot.unreported,
                kept: kept.saturating_add(self.cold.claimed),
                returned: self.hot.unspent - kept,
            }
        } else {
            LeaseReport::default()
        };
        self.hot.unreported = 0;
        self.hot.unspent = if now < self.hot.deadline { kept } else { 0 };
        self.set_phase(LeasePhase::Renewing);
        LeaseRenewal { hash, report, request, created_at: now, serial: self.hot.serial }
    }

    /// Applies the store's reply: takes over the granted units.
    pub(super) fn apply_reply(
        &mut self,
        limit: &Limit,
        renewal: &LeaseRenewal,
        reply: &LeaseReply,
        now: Micros,
    ) {
        self.set_phase(LeasePhase::Ready);
        self.counters.returned += u64::from(renewal.report.returned);
        self.cold.counters.returned += u64::from(renewal.report.returned);
        self.cold.counters.lent += u64::from(reply.grant.units);
        if !reply.grant.is_report_accepted {
            // The kept units expired before the report reached the store, and with them those spent since.
            self.expire();
        }
        self.cold.round_trip = smooth_round_trip(self.cold.round_trip, now.since(renewal.created_at));
        let duration = reply.grant.expires_at.since(reply.store_time);
        let margin = Span::micros(duration.get() / MARGIN_DIVISOR).max(MIN_MARGIN);
        self.hot.deadline = renewal.created_at.plus(duration).minus(margin);
        self.cold.term = reply.grant.term;
        self.hot.unspent = self.hot.unspent.saturating_add(reply.grant.units);
        if self.hot.deadline < now.plus(MIN_USEFUL_LEASE) {
            self.expire();
        }
        let state = match reply.state {
            Some(state) => state,
            None => {
                self.cold.demand.add_grant(reply.grant.units);
                limit
                    .step(Some(self.hot.store_state), reply.store_time, Amount::exactly(reply.grant.units))
                    .state
            }
        };
        self.update_state(limit, state, reply.store_time, renewal.created_at);
        self.plan_next_renewal(limit, renewal, reply);
    }

    /// Decides when to request units next: when few are left or, if the store granted less than is needed until
    /// then, after a back-off.
    fn plan_next_renewal(&mut self, limit: &Limit, renewal: &LeaseRenewal, reply: &LeaseReply) {
        let state = self.hot.store_state;
        let left = remaining(limit, state, reply.store_time);
        let outlook = self.outlook(limit, (Some(state), reply.store_time), left, 1);
        let back_off = |wait| Backoff { until: renewal.created_at.plus(wait), allowed: 0 };
        let is_short = reply.grant.units < renewal.request.short_horizon;
        let exhausted = outlook.backoff_seconds().filter(|backoff| outlook.is_exhausted_for(*backoff));
        let supply = match (outlook.backoff_when_used_up(), exhausted) {
            (Some(wait), _) => StoreSupply::Exhausted(back_off(wait)),
            (None, Some(wait)) if is_short => StoreSupply::Exhausted(back_off(span(wait))),
            // It got all that it asked for, so it need not wait.
            (None, Some(_)) => StoreSupply::LOW,
            (None, None) => StoreSupply::Ample,
        };
        let is_waiting = supply.denied_until() > Micros::EPOCH;
        let threshold = outlook.renew_threshold(self.hot.unspent, self.cold.round_trip, jitter(renewal.hash));
        self.hot.renew_below = if is_waiting { 0 } else { threshold };
        self.cold.supply = supply;
    }

    /// Records the store's decision about a draw.
    pub(super) fn record_decision(
        &mut self,
        limit: &Limit,
        amount: Amount,
        result: &DrawResult,
        sent_at: Micros,
    ) {
        let Some(state) = result.state() else { return };
        self.update_state(limit, state, result.decided_at(), sent_at);
        if !result.is_denied() {
            return;
        }
        self.cold.demand.add_denied(amount.at_least());
        let forecast = LimitStatus::new(limit, amount, *result).forecast();
        let outlook = self.outlook(limit, (Some(state), result.decided_at()), forecast.remaining, 1);
        if let Some(Retry::After(wait)) = forecast.retry
            && let Some(backoff) = outlook.backoff_until_retry(wait)
        {
            let backoff = Backoff { until: sent_at.plus(backoff), allowed: forecast.remaining };
            self.cold.supply = StoreSupply::Exhausted(backoff);
        }
    }

    /// Takes over the store's state, unless a newer one is known: the result of a draw arrives after the grant of
    /// a renewal that was sent with it. Of two states with the same time, the one with fewer units left is the
    /// newer one.
    fn update_state(&mut self, limit: &Limit, state: State, at: Micros, sent_at: Micros) {
        if let Some(before) = self.cold.store_state_at {
            let is_late = match at.cmp(&before) {
                Ordering::Less => before.since(at) < MAX_REPLY_DELAY,
                Ordering::Equal => remaining(limit, state, at) > remaining(limit, self.hot.store_state, at),
                Ordering::Greater => false,
            };
            if is_late {
                return;
            }
            if before <= at {
                let states = ((self.hot.store_state, before), (state, at));
                self.cold.demand.observe_store(self.policy, limit, states.0, states.1);
            }
        }
        self.cold.store_state_at = Some(at);
        self.cold.has_new_state = true;
        self.hot.store_state = state;
        self.hot.store_offset = at.get().cast_signed() - sent_at.get().cast_signed();
    }

    /// The result of a draw that is denied without asking the store. It tells the client to retry when the store
    /// will be asked again.
    fn deny(&mut self, limit: &Limit, units: u32, now: Micros) -> DrawResult {
        let at = self.hot.store_time(now);
        let known_state = self.known_state(limit, now).map_or(self.hot.store_state, |(_, state)| state);
        let denied = DrawResult::from_state(DrawOutcome::Denied, at, known_state);
        let forecast = LimitStatus::new(limit, Amount::exactly(units), denied).forecast();
        let retry = match forecast.retry {
            Some(Retry::After(wait)) => {
                Some(Retry::After(wait.max(self.cold.supply.denied_until().since(now)).max(MIN_RETRY_AFTER)))
            }
            retry => retry,
        };
        let is_stale = forecast.remaining >= units;
        self.counters.denied += 1;
        self.counters.denied_stale += u64::from(is_stale);
        let counters = &mut self.cold.counters;
        counters.denied = counters.denied.wrapping_add(1);
        counters.denied_stale = counters.denied_stale.wrapping_add(u32::from(is_stale));
        // Refilled units are available, but too few for this draw.
        let remaining = forecast.remaining.min(units.saturating_sub(1));
        DrawResult::from_forecast(DrawOutcome::Denied, at, Forecast { remaining, retry, ..forecast })
    }

    /// Marks the lease as unacknowledged: it is spent until its deadline and never reported again.
    pub(super) fn mark_unacked(&mut self) {
        self.counters.unacknowledged += 1;
        self.set_phase(LeasePhase::Unacked);
    }

    /// Cancels a renewal that was not sent.
    pub(super) fn cancel_renewal(&mut self, renewal: &LeaseRenewal) {
        self.set_phase(LeasePhase::Ready);
        self.hot.unreported = self.hot.unreported.saturating_add(renewal.report.spent);
        self.hot.unspent = self.hot.unspent.saturating_add(renewal.report.returned);
        self.hot.renew_below = self.hot.unspent / 2;
    }

    /// Undoes a spend of a moment ago.
    pub(super) fn undo_spend(&mut self, units: u32) {
        let units = units.min(self.hot.unreported);
        self.hot.unreported -= units;
        self.hot.unspent = self.hot.unspent.saturating_add(units);
    }

    /// Ends the lease: unspent units expire, and earlier receipts and claims are void.
    pub(super) fn expire(&mut self) {
        self.count_expired(self.hot.unspent);
        (self.hot.unspent, self.hot.unreported, self.hot.renew_below) = (0, 0, 0);
        self.hot.deadline = Micros::EPOCH;
        self.set_phase(LeasePhase::Ready);
        (self.cold.claimed, self.cold.lease_id) = (0, self.hot.serial);
    }

    /// Returns idle units, and renews a lease that ends soon: keys that are not drawn have no other occasion for
    /// either.
    pub(super) fn sweep(
        &mut self,
        limit: &Limit,
        hash: KeyHash,
        nodes: u32,
        now: Micros,
    ) -> Option<DetachedRenewal> {
        if self.cold.is_renewing() {
            // The sender must report the result of the renewal. If it was dropped, the lease must not wait for
            // ever.
            if now.since(self.cold.last_request_at()) > LEASE_TERM {
                self.mark_unacked();
            }
            return None;
        }
        if now >= self.hot.deadline {
            self.expire();
            return None;
        }
        if self.cold.swept_draws != self.hot.draw_counters.draws {
            (self.cold.swept_draws, self.cold.active_at) = (self.hot.draw_counters.draws, now);
        }
        let is_idle = now.since(self.cold.active_at) >= IDLE_TIMEOUT;
        let is_significant =
            |units: u32| u64::from(units) * SIGNIFICANT_DIVISOR > u64::from(limit.capacity());
        if is_idle && is_significant(self.hot.unspent) {
            return self.return_units(limit, hash, now);
        }
        let is_ending = !has_windows(limit) && self.hot.deadline.since(now) < renewal_lead(hash);
        let leased = self.hot.unspent.saturating_add(self.hot.unreported);
        let is_worth_renewing =
            is_significant(leased) || self.hot.unspent > 0 && self.is_in_demand(limit, leased, now);
        if !is_ending || !is_worth_renewing {
            return None;
        }
        let name = Arc::clone(self.cold.name.as_ref()?);
        let lease_key = LeaseKey { hash, key: name.key.borrow(), scope: name.scope };
        let renewal = self.make_renewal(RenewalCause::Expiring, limit, &lease_key, nodes, now)?;
        Some(DetachedRenewal { renewal, limit: *limit, name: Arc::clone(&name) })
    }

    /// Whether a key is or was drawn faster than it refills. Then units that expire are lost. A bucket that is
    /// almost full refills before the units are needed.
    fn is_in_demand(&self, limit: &Limit, leased: u32, now: Micros) -> bool {
        let left = remaining(limit, self.hot.store_state, self.hot.store_time(now)).saturating_add(leased);
        u64::from(left) + u64::from(limit.capacity()) / FULL_TOLERANCE_DIVISOR < u64::from(limit.capacity())
    }

    /// Creates a renewal that returns all unspent units. `None` if nothing is leased, the key's name is unknown, or
    /// the lease is unacknowledged or being renewed.
    pub(super) fn return_units(
        &mut self,
        limit: &Limit,
        hash: KeyHash,
        now: Micros,
    ) -> Option<DetachedRenewal> {
        if self.cold.phase != LeasePhase::Ready || !self.hot.has_lease(now) {
            return None;
        }
        let name = Arc::clone(self.cold.name.as_ref()?);
        self.counters.renewals += 1;
        Some(DetachedRenewal {
            renewal: self.start_renewal(hash, 0, LeaseRequest::default(), now),
            limit: *limit,
            name,
        })
    }

    /// Stops spending. Unspent units expire unless a renewal is in flight: they are returned when its reply
    /// arrives.
    pub(super) fn close(&mut self) {
        if self.cold.is_renewing() {
            self.hot.deadline = Micros::EPOCH;
        } else {
            self.expire();
        }
    }

    /// Takes the store's last state for a local decision. `None` if it was already taken.
    pub(super) fn take_new_state(&mut self) -> Option<State> {
        std::mem::take(&mut self.cold.has_new_state).then_some(self.hot.store_state)
    }

    /// Describes the lease for the admin API.
    pub(super) fn describe(&self, now: Micros) -> KeyLease {
        let until = |end: Micros| (end > now).then(|| Duration::from_micros(end.since(now).get()));
        let KeyCounters { lent, returned, expired, misses, denied, denied_stale } = self.cold.counters;
        let claimed = u64::from(self.cold.claimed);
        KeyLease {
            unspent: self.unspent(now),
            expires_in: until(self.hot.deadline).filter(|_| self.hot.has_lease(now)),
            is_unacknowledged: self.cold.phase == LeasePhase::Unacked,
            denied_for: until(self.cold.supply.denied_until()),
            per_second: self.cold.demand.local_rate(),
            lent,
            spent: lent.saturating_sub(returned + expired + u64::from(self.hot.unspent) + claimed),
            returned,
            expired,
            draws: self.hot.draw_counters.draws,
            misses,
            denied,
            denied_stale,
        }
    }

    /// Whether the entry can be removed without losing anything.
    pub(super) fn is_removable(&self, now: Micros) -> bool {
        let last = self.cold.active_at.max(self.cold.last_request_at());
        !self.cold.is_renewing() && !self.hot.has_lease(now) && now.since(last) > ENTRY_IDLE_TIMEOUT
    }
}

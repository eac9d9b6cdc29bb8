//! Requests that are answered from leased units, in full or in part.
//!
//! A request is a group of draws. If each has enough units here, it is answered. Else it goes to the store as a whole, which
//! decides it all or nothing, but each draw asks there for the units that are [missing](super::claim) here only: for
//! none at all, where its limit has enough. Orders that leases make on the way go along.

use super::claim::ReleaseReason;
use super::{Claim, DetachedRenewal, LeaseKey, LeaseRenewal, Leases, SpendOutcome};
use crate::memory::key_hash::KeyHash;
use ratekeeper_core::{Consistency, Draw, DrawOutcome, DrawResult, Draws, Forecast, MAX_DRAWS, Micros, Op};

/// What a request that goes to the store takes along, and what waits here for its answer.
#[derive(Debug, Default)]
pub(crate) struct PendingRequest {
    pub(crate) orders: Vec<DrawRenewal>,
    pub(crate) claims: Vec<DrawClaim>,
}

/// An order that goes along with a draw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawRenewal {
    /// Which of its group's draws.
    pub(crate) draw: usize,
    pub(crate) order: LeaseRenewal,
}

/// Units of one draw that the store is not asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawClaim {
    group: usize,
    draw: usize,
    kind: GroupKind,
}

#[derive(Clone, Copy, Debug)]
enum GroupKind {
    /// They are taken from here.
    Take(Claim),
    /// They are looked for, and there are so many here.
    Look { units: u32, unspent: u32 },
}

impl DrawClaim {
    /// The group of the draw.
    pub(crate) fn group(&self) -> usize {
        self.group
    }

    /// By how much the draw was lowered.
    fn units(&self) -> u32 {
        match self.kind {
            GroupKind::Take(claim) => claim.units,
            GroupKind::Look { units, .. } => units,
        }
    }
}

/// Whether a draw may be answered from leased units.
pub(crate) fn is_leased(draw: &Draw) -> bool {
    matches!(draw.act(), Op::Take(_)) && is_lendable(draw)
}

/// Whether leased units count for a draw: one that [is leased](is_leased), or looks at what one could take.
pub(crate) fn is_lendable(draw: &Draw) -> bool {
    let (Op::Take(ask) | Op::Look(ask)) = draw.act() else { return false };
    draw.terms().consistency == Consistency::Leased
        && ask.at_least() == ask.at_most()
        && draw.limit().can_lend()
}

impl Leases {
    /// Answers a group of one draw, which [is leased](is_leased), if it can be. Else lowers it by what is claimed here, and
    /// it is to be sent to the store. In both cases `out` has what is to be sent too.
    #[inline]
    pub(crate) fn spend_one(
        &self,
        draws: &mut Draws,
        group: usize,
        tag: KeyHash,
        now: Micros,
        out: &mut PendingRequest,
    ) -> bool {
        let (order, outcome) = match self.spend_draw(draws, &draws.group(group)[0], tag, now) {
            SpendOutcome::Spent(spent) => (spent.order, Some(spent.outcome)),
            SpendOutcome::Paused(outcome) => (None, Some(outcome)),
            SpendOutcome::Ask { order, claim } => {
                if let Some(claim) = claim {
                    lower(draws, DrawClaim { group, draw: 0, kind: GroupKind::Take(claim) }, out);
                }
                (order, None)
            }
        };
        if let Some(order) = order {
            out.orders.push(DrawRenewal { draw: 0, order });
        }
        match outcome {
            Some(outcome) => draws.group_mut(group)[0].settle(|_, _, _| outcome),
            None => return false,
        }
        true
    }

    /// Like [`Leases::spend_one`], for a group of any draws.
    pub(crate) fn spend_together(
        &self,
        draws: &mut Draws,
        group: usize,
        tags: &[KeyHash],
        now: Micros,
        out: &mut PendingRequest,
    ) -> bool {
        let mut spends = [None; MAX_DRAWS];
        let (mut must_ask, mut is_denied) = (false, false);
        for (index, (draw, tag)) in draws.group(group).iter().zip(tags).enumerate() {
            if !is_leased(draw) {
                must_ask = true;
                continue;
            }
            let spend = self.spend_draw(draws, draw, *tag, now);
            let order = match spend {
                SpendOutcome::Ask { order, .. } => {
                    must_ask = true;
                    order
                }
                SpendOutcome::Spent(spent) => spent.order,
                SpendOutcome::Paused(_) => {
                    is_denied |= !draw.is_shadow();
                    None
                }
            };
            out.orders.extend(order.map(|order| DrawRenewal { draw: index, order }));
            spends[index] = Some(spend);
        }
        if must_ask {
            self.claim_for(draws, group, tags, &spends, now, out);
            return false;
        }
        for (index, spend) in spends.iter().enumerate().take(tags.len()) {
            let draw = &mut draws.group_mut(group)[index];
            match spend {
                Some(SpendOutcome::Spent(spent)) => {
                    draw.settle(|_, _, _| spent.outcome);
                    if is_denied {
                        let units = draw.act().ask().at_least();
                        self.put_back(tags[index], units, spent.receipt);
                        let outcome = spared(draw, units);
                        draw.settle(|_, _, _| outcome);
                    }
                }
                Some(SpendOutcome::Paused(outcome)) => draw.settle(|_, _, _| *outcome),
                Some(SpendOutcome::Ask { .. }) | None => {}
            }
        }
        true
    }

    /// Lowers the draws of a group that goes to the store by what there is here.
    fn claim_for(
        &self,
        draws: &mut Draws,
        group: usize,
        tags: &[KeyHash],
        spends: &[Option<SpendOutcome>; MAX_DRAWS],
        now: Micros,
        out: &mut PendingRequest,
    ) {
        for (index, (tag, spend)) in tags.iter().zip(spends).enumerate() {
            let draw = &draws.group(group)[index];
            let units = draw.act().ask().at_least();
            let kind = match spend {
                Some(SpendOutcome::Spent(spent)) => {
                    Some(GroupKind::Take(self.claim_spent(*tag, units, spent.receipt)))
                }
                Some(SpendOutcome::Ask { claim, .. }) => claim.map(GroupKind::Take),
                Some(SpendOutcome::Paused(_)) => {
                    self.claim(*tag, draw.limit(), units, now).map(GroupKind::Take)
                }
                None if is_lendable(draw) => {
                    let unspent = self.unspent(*tag, draw.limit(), now);
                    (unspent > 0).then_some(GroupKind::Look { units: units.min(unspent), unspent })
                }
                None => None,
            };
            if let Some(kind) = kind {
                lower(draws, DrawClaim { group, draw: index, kind }, out);
            }
        }
    }

    /// Settles what was claimed for a group that the store has answered, or has not. From then on its draws are as they were
    /// made, and those that the store answered say what is left there and here. Orders to be sent go to `out`.
    pub(crate) fn resolve(
        &self,
        draws: &mut Draws,
        group: usize,
        claims: &[DrawClaim],
        now: Micros,
        out: &mut Vec<DetachedRenewal>,
    ) {
        let is_failed = draws.group_failure(group).is_some();
        let is_denied = draws.group(group).iter().any(Draw::stops);
        for claim in claims {
            let draw = &mut draws.group_mut(group)[claim.draw];
            let units = draw.act().ask().at_least() + claim.units();
            draw.set_units(units);
            let is_refused = draw.is_refused();
            let known = match &claim.kind {
                GroupKind::Look { unspent, .. } => draw
                    .outcome()
                    .state()
                    .map(|state| (draw.now(), draw.limit().give_unspent(state, draw.now(), *unspent, 0))),
                GroupKind::Take(claim) if is_failed || is_denied || is_refused => {
                    let why = match (is_failed, is_refused) {
                        (true, _) => ReleaseReason::Unanswered,
                        (false, true) => ReleaseReason::Denied,
                        (false, false) => ReleaseReason::DeniedByOther,
                    };
                    self.release(claim, draw.limit(), why, now, out)
                }
                GroupKind::Take(claim) => self.commit(claim, draw.limit(), now),
            };
            if is_failed {
                continue;
            }
            let answer = match draw.answer() {
                DrawOutcome::Granted(_) if !is_denied => DrawOutcome::Granted(units),
                DrawOutcome::Granted(_) | DrawOutcome::Spared => DrawOutcome::Spared,
                DrawOutcome::Refused => DrawOutcome::Refused,
            };
            let known = known.or_else(|| draw.outcome().state().map(|state| (draw.now(), state)));
            if let Some((at, state)) = known {
                draw.settle(|_, _, _| DrawResult::of_state(answer, at, state));
            }
        }
    }

    /// Puts back what was claimed for requests that were given up.
    pub(crate) fn abandon(&self, claims: &[DrawClaim]) {
        for claim in claims {
            if let GroupKind::Take(claim) = &claim.kind {
                self.put_back_claim(claim);
            }
        }
    }

    #[inline(always)]
    fn spend_draw(&self, draws: &Draws, draw: &Draw, tag: KeyHash, now: Micros) -> SpendOutcome {
        let whose = LeaseKey { tag, key: draws.key(draw), scope: draw.scope() };
        self.spend(&whose, draw.limit(), draw.act().ask().at_least(), now)
    }
}

fn lower(draws: &mut Draws, claim: DrawClaim, out: &mut PendingRequest) {
    let draw = &mut draws.group_mut(claim.group)[claim.draw];
    draw.set_units(draw.act().ask().at_least() - claim.units());
    out.claims.push(claim);
}

/// What a draw that was granted says once its units are given back.
pub(crate) fn spared(draw: &Draw, units: u32) -> DrawResult {
    let (limit, now) = (draw.limit(), draw.now());
    match draw.outcome().state() {
        Some(state) => DrawResult::of_state(DrawOutcome::Spared, now, limit.give(state, now, units)),
        None => {
            let outlook = draw.outlook();
            let remaining = outlook.remaining.saturating_add(units).min(limit.capacity());
            DrawResult::of_outlook(DrawOutcome::Spared, now, Forecast { remaining, ..outlook })
        }
    }
}

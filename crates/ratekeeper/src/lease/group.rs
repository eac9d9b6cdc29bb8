//! Requests that are served from leases, in full or in part.
//!
//! A request is a group of draws. If each draw has enough leased units, the request is decided here. Otherwise
//! the whole request goes to the store, which decides it all or nothing. Each draw then asks the store only for
//! the units that are [missing](super::claim) here: for none, if its limit has enough. Renewals that are due are
//! sent with the request.

use super::claim::ReleaseReason;
use super::{Claim, DetachedRenewal, LeaseKey, LeaseRenewal, Leases, SpendOutcome};
use crate::memory::key_hash::KeyHash;
use ratekeeper_core::{Consistency, Draw, DrawOutcome, DrawResult, Draws, MAX_DRAWS, Micros, Op};

/// What belongs to a request that goes to the store: renewals that are sent with it, and claims that wait for its
/// decision.
#[derive(Debug, Default)]
pub(crate) struct PendingRequest {
    pub(crate) renewals: Vec<DrawRenewal>,
    pub(crate) claims: Vec<DrawClaim>,
}

/// A renewal that is sent with a draw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawRenewal {
    /// Index of the draw in its group.
    pub(crate) draw: usize,
    pub(crate) renewal: LeaseRenewal,
}

/// Units of one draw that the store is not asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawClaim {
    group: usize,
    draw: usize,
    kind: ClaimKind,
}

/// How leased units count for a draw.
#[derive(Clone, Copy, Debug)]
enum ClaimKind {
    /// Units that are claimed here.
    Take(Claim),
    /// A check of what could be taken, which takes nothing.
    Peek {
        /// By how many units the draw was reduced.
        units: u32,
        /// Leased units that are unspent here.
        unspent: u32,
    },
}

impl DrawClaim {
    /// The group of the draw.
    pub(crate) fn group(&self) -> usize {
        self.group
    }

    /// By how many units the draw was reduced.
    fn units(&self) -> u32 {
        match self.kind {
            ClaimKind::Take(claim) => claim.units,
            ClaimKind::Peek { units, .. } => units,
        }
    }
}

/// Whether a draw may be granted from leased units.
pub(crate) fn is_leased(draw: &Draw) -> bool {
    matches!(draw.op(), Op::Take(_)) && counts_leased_units(draw)
}

/// Whether leased units count for a draw: it [is leased](is_leased), or checks what such a draw could take.
pub(crate) fn counts_leased_units(draw: &Draw) -> bool {
    let (Op::Take(ask) | Op::Peek(ask)) = draw.op() else { return false };
    draw.options().consistency == Consistency::Leased
        && ask.at_least() == ask.at_most()
        && draw.limit().is_leasable()
}

impl Leases {
    /// Decides a group of one draw, which [is leased](is_leased), and returns `true` if the lease suffices.
    /// Otherwise reduces the draw by the claimed units and returns `false`: it has to go to the store. In both
    /// cases, renewals to send are added to `out`.
    #[inline]
    pub(crate) fn spend_single(
        &self,
        draws: &mut Draws,
        group: usize,
        hash: KeyHash,
        now: Micros,
        out: &mut PendingRequest,
    ) -> bool {
        let (renewal, result) = match self.spend_draw(draws, &draws.group(group)[0], hash, now) {
            SpendOutcome::Spent(spent) => (spent.renewal, Some(spent.result)),
            SpendOutcome::Denied(result) => (None, Some(result)),
            SpendOutcome::Miss { renewal, claim } => {
                if let Some(claim) = claim {
                    reduce_draw(draws, DrawClaim { group, draw: 0, kind: ClaimKind::Take(claim) }, out);
                }
                (renewal, None)
            }
        };
        if let Some(renewal) = renewal {
            out.renewals.push(DrawRenewal { draw: 0, renewal });
        }
        match result {
            Some(result) => draws.group_mut(group)[0].decide_with(|_, _, _| result),
            None => return false,
        }
        true
    }

    /// Like [`Leases::spend_single`], for a group of any draws.
    pub(crate) fn spend_group(
        &self,
        draws: &mut Draws,
        group: usize,
        hashes: &[KeyHash],
        now: Micros,
        out: &mut PendingRequest,
    ) -> bool {
        let mut spends = [None; MAX_DRAWS];
        let (mut must_ask_store, mut is_denied) = (false, false);
        for (index, (draw, hash)) in draws.group(group).iter().zip(hashes).enumerate() {
            if !is_leased(draw) {
                must_ask_store = true;
                continue;
            }
            let spend = self.spend_draw(draws, draw, *hash, now);
            let renewal = match spend {
                SpendOutcome::Miss { renewal, .. } => {
                    must_ask_store = true;
                    renewal
                }
                SpendOutcome::Spent(spent) => spent.renewal,
                SpendOutcome::Denied(_) => {
                    is_denied |= !draw.is_shadow();
                    None
                }
            };
            out.renewals.extend(renewal.map(|renewal| DrawRenewal { draw: index, renewal }));
            spends[index] = Some(spend);
        }
        if must_ask_store {
            self.claim_group(draws, group, hashes, &spends, now, out);
            return false;
        }
        for (index, spend) in spends.iter().enumerate().take(hashes.len()) {
            let draw = &mut draws.group_mut(group)[index];
            match spend {
                Some(SpendOutcome::Spent(spent)) => {
                    draw.decide_with(|_, _, _| spent.result);
                    if is_denied {
                        let units = draw.op().amount().at_least();
                        self.undo_spend(hashes[index], units, spent.receipt);
                        draw.revoke(units);
                    }
                }
                Some(SpendOutcome::Denied(result)) => draw.decide_with(|_, _, _| *result),
                Some(SpendOutcome::Miss { .. }) | None => {}
            }
        }
        true
    }

    /// Reduces the draws of a group that goes to the store by the units that are leased here.
    fn claim_group(
        &self,
        draws: &mut Draws,
        group: usize,
        hashes: &[KeyHash],
        spends: &[Option<SpendOutcome>; MAX_DRAWS],
        now: Micros,
        out: &mut PendingRequest,
    ) {
        for (index, (hash, spend)) in hashes.iter().zip(spends).enumerate() {
            let draw = &draws.group(group)[index];
            let units = draw.op().amount().at_least();
            let kind = match spend {
                Some(SpendOutcome::Spent(spent)) => {
                    Some(ClaimKind::Take(self.claim_spent(*hash, units, spent.receipt)))
                }
                Some(SpendOutcome::Miss { claim, .. }) => claim.map(ClaimKind::Take),
                Some(SpendOutcome::Denied(_)) => {
                    self.claim(*hash, draw.limit(), units, now).map(ClaimKind::Take)
                }
                None if counts_leased_units(draw) => {
                    let unspent = self.unspent(*hash, draw.limit(), now);
                    (unspent > 0).then_some(ClaimKind::Peek { units: units.min(unspent), unspent })
                }
                None => None,
            };
            if let Some(kind) = kind {
                reduce_draw(draws, DrawClaim { group, draw: index, kind }, out);
            }
        }
    }

    /// Resolves the claims of a group after the store's decision or failure. Restores the units of its draws, and
    /// adds what is left here to the results of those that the store decided. Renewals to send are added to
    /// `out`.
    pub(crate) fn resolve_claims(
        &self,
        draws: &mut Draws,
        group: usize,
        claims: &[DrawClaim],
        now: Micros,
        out: &mut Vec<DetachedRenewal>,
    ) {
        let is_failed = draws.group_failure(group).is_some();
        let is_denied = draws.group(group).iter().any(Draw::denies_request);
        for claim in claims {
            let draw = &mut draws.group_mut(group)[claim.draw];
            let units = draw.op().amount().at_least() + claim.units();
            draw.set_units(units);
            let is_draw_denied = draw.is_denied();
            let known = match &claim.kind {
                ClaimKind::Peek { unspent, .. } => draw.result().state().map(|state| {
                    (draw.decided_at(), draw.limit().refund_unspent(state, draw.decided_at(), *unspent, 0))
                }),
                ClaimKind::Take(claim) if is_failed || is_denied || is_draw_denied => {
                    let reason = match (is_failed, is_draw_denied) {
                        (true, _) => ReleaseReason::NoReply,
                        (false, true) => ReleaseReason::Denied,
                        (false, false) => ReleaseReason::DeniedByOther,
                    };
                    self.release(claim, draw.limit(), reason, now, out)
                }
                ClaimKind::Take(claim) => self.commit(claim, draw.limit(), now),
            };
            if is_failed {
                continue;
            }
            let outcome = match draw.outcome() {
                DrawOutcome::Granted(_) if !is_denied => DrawOutcome::Granted(units),
                DrawOutcome::Granted(_) | DrawOutcome::WouldGrant => DrawOutcome::WouldGrant,
                DrawOutcome::Denied => DrawOutcome::Denied,
            };
            let known = known.or_else(|| draw.result().state().map(|state| (draw.decided_at(), state)));
            if let Some((at, state)) = known {
                draw.decide_with(|_, _, _| DrawResult::from_state(outcome, at, state));
            }
        }
    }

    /// Puts back the claims of abandoned requests.
    pub(crate) fn cancel_claims(&self, claims: &[DrawClaim]) {
        for claim in claims {
            if let ClaimKind::Take(claim) = &claim.kind {
                self.cancel_claim(claim);
            }
        }
    }

    #[inline(always)]
    fn spend_draw(&self, draws: &Draws, draw: &Draw, hash: KeyHash, now: Micros) -> SpendOutcome {
        let lease_key = LeaseKey { hash, key: draws.key(draw), scope: draw.scope() };
        self.spend(&lease_key, draw.limit(), draw.op().amount().at_least(), now)
    }
}

fn reduce_draw(draws: &mut Draws, claim: DrawClaim, out: &mut PendingRequest) {
    let draw = &mut draws.group_mut(claim.group)[claim.draw];
    draw.set_units(draw.op().amount().at_least() - claim.units());
    out.claims.push(claim);
}

//! What is to be asked of which server.
//!
//! The keys of one client are on one server, so nearly every group is asked of one. Where its keys are on several, each
//! is asked for its part at the same time, and what some of them granted is given back if another refuses: others may
//! find that little less for as long as it takes. Draws that their rule keeps to this node are decided here, first.

use super::batcher::{Batcher, PendingReply, SubRequest};
use ratekeeper_core::{Draw, DrawOutcome, Draws, Op, PermitId, StoreFailure};
use std::slice;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How long after the deadline it is still waited for word of what was decided before it.
const GRACE: Duration = Duration::from_millis(2);

/// What is to be asked of one server.
#[derive(Debug)]
pub(super) struct ServerRequest {
    lane: Arc<Batcher>,
    parts: Vec<SubRequest>,
    ticket: Option<Result<PendingReply, StoreFailure>>,
}

/// What is to be asked of all servers, on behalf of one call.
#[derive(Debug, Default)]
pub(super) struct FanOut {
    errands: Vec<ServerRequest>,
    /// Parts for which there is no server to ask.
    lost: Vec<(usize, StoreFailure)>,
    /// The groups that are asked of several, or in part of this node.
    split: Vec<usize>,
    /// All groups that are asked of somebody, in order; and those with which something is ordered.
    groups: Vec<usize>,
    ordered: Vec<usize>,
}

impl FanOut {
    /// The groups that are asked of somebody.
    pub(super) fn groups(&self) -> &[usize] {
        &self.groups
    }

    /// Has a part of a group asked of a server.
    pub(super) fn add(&mut self, lane: &Arc<Batcher>, part: SubRequest) {
        self.enter(part.group);
        if !part.wanted.is_empty() {
            self.ordered.push(part.group);
        }
        match self.errands.iter_mut().find(|errand| Arc::ptr_eq(&errand.lane, lane)) {
            Some(errand) => errand.parts.push(part),
            None => {
                self.errands.push(ServerRequest { lane: Arc::clone(lane), parts: vec![part], ticket: None })
            }
        }
    }

    /// Notes that a group has a part for which there is no server to ask.
    pub(super) fn lose(&mut self, group: usize, failure: StoreFailure) {
        self.enter(group);
        self.lost.push((group, failure));
    }

    fn enter(&mut self, group: usize) {
        if self.groups.last() != Some(&group) {
            self.groups.push(group);
        }
    }

    /// Whether something was ordered along with a group.
    pub(super) fn is_ordered(&self, group: usize) -> bool {
        self.ordered.binary_search(&group).is_ok()
    }

    /// Notes that a group is decided in several places.
    pub(super) fn split(&mut self, group: usize) {
        self.split.push(group);
    }

    /// Asks all servers at once and notes in each draw what was decided; or in its group, that it got no answer.
    pub(super) async fn run(&mut self, draws: &mut Draws, deadline: Instant) {
        for errand in &mut self.errands {
            errand.ticket = Some(errand.lane.submit(draws, &errand.parts, deadline));
        }
        for errand in &mut self.errands {
            let ticket = errand.ticket.take().unwrap_or(Err(StoreFailure::Unreachable));
            let decided = wait(ticket, deadline).await;
            for (index, part) in errand.parts.iter().enumerate() {
                match &decided {
                    Ok((decided, first)) => take_over(draws, part, decided, first + index),
                    Err(failure) => draws.fail(part.group, *failure),
                }
            }
        }
        for (group, failure) in self.lost.drain(..) {
            draws.fail(group, failure);
        }
    }

    /// Gives back what was granted of groups that were refused elsewhere, or got no answer there. Gives the parts of
    /// those that were decided on this node, which are given back there.
    pub(super) fn give_back(&self, draws: &Draws, deadline: Instant) -> Vec<usize> {
        let mut undone = Vec::new();
        for group in self.split.iter().copied() {
            let is_refused = draws.group(group).iter().any(Draw::stops);
            if !is_refused && draws.group_failure(group).is_none() {
                continue;
            }
            undone.push(group);
            for errand in &self.errands {
                for part in errand.parts.iter().filter(|part| part.group == group) {
                    errand.return_units(draws, part, deadline);
                }
            }
        }
        undone
    }
}

impl ServerRequest {
    /// Has granted units given back, without waiting for it.
    fn return_units(&self, draws: &Draws, part: &SubRequest, deadline: Instant) {
        let mut gifts = Draws::new();
        let group = draws.group(part.group);
        let picked = |index: usize| part.picks.as_ref().is_none_or(|picks| picks.contains(&index));
        for (_, draw) in group.iter().enumerate().filter(|(index, _)| picked(*index)) {
            if let DrawOutcome::Granted(units @ 1..) = draw.answer() {
                gifts.push(draws.key(draw), draw.scope(), *draw.limit(), Op::Give(units), draw.permit());
            }
        }
        if !gifts.is_empty() {
            // If it can't be given back, it is lost to the client for as long as it takes to come back by itself.
            let _ = self.lane.submit(&gifts, &[SubRequest::whole(0, part.slot)], deadline);
        }
    }
}

/// Asks one server for one part of a group, which may be all of it.
pub(super) async fn ask_one(lane: &Batcher, draws: &mut Draws, part: &SubRequest, deadline: Instant) {
    let ticket = lane.submit(draws, slice::from_ref(part), deadline);
    match wait(ticket, deadline).await {
        Ok((decided, first)) => take_over(draws, part, &decided, first),
        Err(failure) => draws.fail(part.group, failure),
    }
}

/// Waits for all that travelled together, and which group of it is the first that was asked for.
async fn wait(
    ticket: Result<PendingReply, StoreFailure>,
    deadline: Instant,
) -> Result<(Arc<Draws>, usize), StoreFailure> {
    let PendingReply { decided, first } = ticket?;
    match timeout_at(deadline + GRACE, decided).await {
        Ok(Ok(decided)) => Ok((decided, first)),
        Ok(Err(_)) => Err(StoreFailure::Unreachable),
        Err(_) => Err(StoreFailure::Timeout),
    }
}

/// Has a part of a group be as it was decided in another buffer.
fn take_over(draws: &mut Draws, part: &SubRequest, decided: &Draws, group: usize) {
    if let Some(failure) = decided.group_failure(group) {
        draws.fail(part.group, failure);
        return;
    }
    let (own, decided) = (draws.group_mut(part.group), decided.group(group));
    match &part.picks {
        None => {
            for (draw, decided) in own.iter_mut().zip(decided) {
                draw.settle_as(decided);
            }
        }
        Some(picks) => {
            for (index, decided) in picks.iter().zip(decided) {
                own[*index].settle_as(decided);
            }
        }
    }
}

/// Has a permit's places given back, without waiting for it.
pub(super) fn release(lane: &Batcher, draws: &Draws, slot: u16, deadline: Instant) {
    debug_assert!(draws.all().iter().all(|draw| draw.permit() != PermitId::default()), "a permit has a name");
    // If the word is lost, the permit lapses by itself.
    let _ = lane.submit(draws, &[SubRequest::whole(0, slot)], deadline);
}

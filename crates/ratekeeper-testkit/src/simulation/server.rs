//! The simulated server: the state of each key under each of its limits.

use ratekeeper::LeaseReply;
use ratekeeper_core::{
    Amount, DrawOutcome, DrawResult, LeaseReport, LeaseRequest, LeasedState, Limit, Micros, State,
};

/// The most limits of a request.
pub const MAX_LIMITS: usize = 3;
/// A value for each limit.
pub(super) type PerLimit<T> = [T; MAX_LIMITS];
/// What a node reports about a key's lease, and what it asks for.
pub(super) type Renewal = (LeaseReport, LeaseRequest);

/// The simulated server.
#[derive(Debug)]
pub(super) struct SimServer {
    limits: Vec<Limit>,
    keys: Vec<PerLimit<LeasedState>>,
}

/// The server's reply, for each limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimReply {
    /// The results of the request's draws. `None` if there were none.
    pub(super) results: Option<PerLimit<DrawResult>>,
    /// The replies to renewals.
    pub(super) lease_replies: PerLimit<Option<LeaseReply>>,
}

impl SimReply {
    /// Whether the request was granted.
    pub(super) fn is_granted(&self, limits: usize) -> bool {
        self.results.is_some_and(|results| !results[..limits].iter().any(DrawResult::is_denied))
    }
}

impl SimServer {
    pub(super) fn new(limits: &[Limit], keys: usize) -> SimServer {
        SimServer { limits: limits.to_vec(), keys: vec![PerLimit::default(); keys] }
    }

    /// Applies the reports of renewals, then decides the request all or nothing, then grants leases: returned
    /// units can be drawn at once, and draws take precedence over leases.
    pub(super) fn handle(
        &mut self,
        key: usize,
        units: Option<PerLimit<u32>>,
        renewals: &PerLimit<Option<Renewal>>,
        now: Micros,
    ) -> SimReply {
        let stored = &mut self.keys[key];
        let mut accepted = [None; MAX_LIMITS];
        for (index, limit) in self.limits.iter().enumerate() {
            if let Some((report, _)) = renewals[index] {
                let (after, grant) = limit.grant_lease(stored[index], now, report, LeaseRequest::default());
                (stored[index], accepted[index]) = (after, Some(grant.is_report_accepted));
            }
        }
        let results = units.map(|units| decide(&self.limits, stored, units, now));
        let mut lease_replies = [None; MAX_LIMITS];
        for (index, limit) in self.limits.iter().enumerate() {
            if let (Some((_, request)), Some(is_report_accepted)) = (renewals[index], accepted[index]) {
                let (after, mut grant) =
                    limit.grant_lease(stored[index], now, LeaseReport::default(), request);
                stored[index] = after;
                grant.is_report_accepted = is_report_accepted;
                lease_replies[index] =
                    Some(LeaseReply { grant, state: Some(folded_state(limit, after, now)), store_time: now });
            }
        }
        SimReply { results, lease_replies }
    }
}

fn decide(
    limits: &[Limit],
    stored: &mut PerLimit<LeasedState>,
    units: PerLimit<u32>,
    now: Micros,
) -> PerLimit<DrawResult> {
    let mut after = *stored;
    let mut outcomes = [DrawOutcome::WouldGrant; MAX_LIMITS];
    for (index, limit) in limits.iter().enumerate() {
        let (step, lent) = limit.step_leased(stored[index], now, Amount::exactly(units[index]));
        if step.needs_write {
            after[index] = LeasedState { state: Some(step.state), lent };
        }
        outcomes[index] = step.outcome();
    }
    if !outcomes.contains(&DrawOutcome::Denied) {
        *stored = after;
    }
    let result = |index: usize| match limits.get(index) {
        Some(limit) => DrawResult::from_state(outcomes[index], now, folded_state(limit, stored[index], now)),
        None => DrawResult::from_state(outcomes[index], now, State::default()),
    };
    std::array::from_fn(result)
}

/// A key's state with its leased units counted as taken.
fn folded_state(limit: &Limit, stored: LeasedState, now: Micros) -> State {
    limit.step(stored.state, now, Amount::between(0, stored.lent.total())).state
}

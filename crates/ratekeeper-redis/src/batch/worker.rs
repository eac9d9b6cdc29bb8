//! The tasks that send the batches of one server.

use super::coalesce::{CoalescedGroup, Coalescer};
use super::codec::{GrantedLease, GroupResult, Readopt, RenewalResult, ScriptCall, ScriptReplyError};
use super::queue::{Batch, Batcher, MAX_CALL_DRAWS, MAX_IN_FLIGHT, SentRenewal, cancel};
use crate::client::node::{CommandOutcome, RedisNode};
use crate::client::reply::Redirect;
use crate::client::server_set::ServerSet;
use crate::counters::StoreCounters;
use foldhash::fast::RandomState;
use ratekeeper::{DrawDecision, LeaseReply, LendOutcome, RenewalOwner, SystemClock};
use ratekeeper_core::{Clock, Draws, LeaseGrant, Micros, StoreFailure};
use redis::{Cmd, Value};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// The most calls that are pipelined. A larger batch is sent in several steps, and steps for which there is no
/// time left are not sent.
const MAX_PIPELINED_CALLS: usize = 16;
/// The most attempts for a group. It is sent again if the script found a state that was written under another
/// quota, which has to be converted here first. While two versions of the rules are in force, several nodes may
/// write in turn.
const MAX_ATTEMPTS: usize = 4;

/// What the workers of all servers share.
#[derive(Debug)]
pub(crate) struct Workers {
    pub(crate) servers: Arc<ServerSet>,
    pub(crate) clock: Arc<SystemClock>,
    pub(crate) counters: StoreCounters,
    /// Where the workers run, whichever runtime submits draws.
    pub(crate) runtime: Handle,
}

impl Workers {
    /// Starts a batcher for a server.
    pub(crate) fn start(self: &Arc<Workers>, node: &Arc<RedisNode>) -> Arc<Batcher> {
        let batcher = Batcher::new(Arc::clone(node));
        for _ in 0..MAX_IN_FLIGHT {
            self.runtime.spawn(run_worker(Arc::clone(self), Arc::clone(&batcher)));
        }
        batcher
    }
}

/// A batch that is in flight until this is dropped.
struct InFlight<'a>(&'a Arc<Workers>, &'a Arc<Batcher>);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let InFlight(workers, batcher) = self;
        batcher.finish();
        // After a panic, another worker takes over.
        if std::thread::panicking() {
            workers.runtime.spawn(run_worker(Arc::clone(workers), Arc::clone(batcher)));
        }
    }
}

async fn run_worker(workers: Arc<Workers>, batcher: Arc<Batcher>) {
    let mut worker = BatchWorker::default();
    while let Some(mut batch) = batcher.next_batch().await {
        let in_flight = InFlight(&workers, &batcher);
        worker.send_batch(&workers, batcher.node(), &mut batch).await;
        drop(in_flight);
        batch.answer();
        batcher.recycle(batch);
    }
}

/// Sends batches, with buffers that are reused.
#[derive(Debug, Default)]
struct BatchWorker {
    coalescer: Coalescer,
    groups: Vec<CoalescedGroup>,
    calls: Vec<FilledCall>,
    /// For each slot, the call that is being filled.
    open_calls: HashMap<u16, usize, RandomState>,
}

/// A script call, and what it was filled with.
#[derive(Debug, Default)]
struct FilledCall {
    script: ScriptCall,
    /// The indices of its coalesced groups.
    groups: Vec<usize>,
    /// The indices of its renewals in the batch.
    renewals: Vec<usize>,
}

impl BatchWorker {
    /// Sends a batch: all its draws are decided or marked as failed.
    async fn send_batch(&mut self, workers: &Workers, node: &RedisNode, batch: &mut Batch) {
        let Some(deadline) = batch.deadline else { return };
        self.coalescer.coalesce(batch.draws(), &batch.slots, &mut self.groups);
        workers.counters.record_batch(batch.draws().len(), self.groups.len());
        for attempt in 0..MAX_ATTEMPTS {
            let now = node.clock_ceiling(Instant::now()).unwrap_or_else(|| workers.clock.now());
            let used = self.encode_calls(now, batch, attempt == 0);
            let mut left = Vec::new();
            for first in (0..used).step_by(MAX_PIPELINED_CALLS) {
                let sending = first..used.min(first + MAX_PIPELINED_CALLS);
                let calls = self.calls[sending.clone()].iter();
                let commands = calls.map(|call| command(&call.script, batch.draws())).collect();
                let sent = Instant::now();
                let outcomes = workers.servers.call(node, commands, deadline).await;
                let received = Instant::now();
                if let Some(time) = self.apply_replies(node, sending, outcomes, batch, &mut left) {
                    node.record_server_time(sent, received, time);
                }
            }
            // Calls of different slots were filled alternately.
            left.sort_unstable();
            let mut indices = 0..;
            self.groups.retain(|_| indices.next().is_some_and(|index| left.binary_search(&index).is_ok()));
            if self.groups.is_empty() {
                return;
            }
        }
        for coalesced in &self.groups {
            self.fail(batch.draws_mut(), coalesced, StoreFailure::Busy);
        }
    }

    /// Encodes all coalesced groups into calls, and the renewals if this is the first attempt. Returns the number
    /// of calls. Keys of different slots are sent in different calls, and so are groups that are sent in their
    /// own call.
    fn encode_calls(&mut self, now: Micros, batch: &Batch, is_first: bool) -> usize {
        let (draws, mut used) = (batch.draws(), 0);
        self.open_calls.clear();
        for group in 0..self.groups.len() {
            let CoalescedGroup { first, times, slot, is_isolated, ref retry, .. } = self.groups[group];
            let now = retry.as_ref().map_or(now, Readopt::now);
            let index = self.open_call(slot, draws.group(first).len(), is_isolated, now, &mut used);
            let call = &mut self.calls[index];
            call.script.push(draws, first, times, self.groups[group].retry.as_ref());
            call.groups.push(group);
        }
        for (number, SentRenewal { request, owner, slot }) in
            batch.renewals.iter().enumerate().filter(|_| is_first)
        {
            let index = self.open_call(*slot, 1, false, now, &mut used);
            let call = &mut self.calls[index];
            call.script.push_renewal(draws, owner, request.report(), request.request());
            call.renewals.push(number);
        }
        used
    }

    /// The call to append `size` draws of a slot to.
    fn open_call(
        &mut self,
        slot: u16,
        size: usize,
        is_isolated: bool,
        now: Micros,
        used: &mut usize,
    ) -> usize {
        let fits = |open: &usize| {
            let call = &self.calls[*open];
            call.script.draw_count() + call.renewals.len() + size <= MAX_CALL_DRAWS
        };
        let open = self.open_calls.get(&slot).copied().filter(|_| !is_isolated);
        if let Some(open) = open.filter(fits) {
            return open;
        }
        let index = *used;
        if index == self.calls.len() {
            self.calls.push(FilledCall::default());
        }
        let call = &mut self.calls[index];
        call.script.reset(now);
        call.groups.clear();
        call.renewals.clear();
        if !is_isolated {
            self.open_calls.insert(slot, index);
        }
        *used += 1;
        index
    }

    /// Applies the replies to some calls, and collects in `left` the coalesced groups that have to be sent again.
    /// Returns the time of the worker's own server, if it replied.
    fn apply_replies(
        &mut self,
        node: &RedisNode,
        sent: Range<usize>,
        outcomes: Vec<CommandOutcome>,
        batch: &mut Batch,
        left: &mut Vec<usize>,
    ) -> Option<Micros> {
        let ((draws, renewals), mut time) = (batch.parts_mut(), None);
        for (outcome, call) in outcomes.into_iter().zip(&self.calls[sent]) {
            let is_own = matches!(outcome, CommandOutcome::Value(_));
            if matches!(outcome, CommandOutcome::Redirect(Redirect::TryAgain)) && call.groups.len() > 1 {
                // Each group by itself may well be on one server.
                call.renewals.iter().for_each(|index| cancel(&mut renewals[*index].request));
                call.groups.iter().for_each(|index| self.groups[*index].is_isolated = true);
                left.extend(&call.groups);
                continue;
            }
            let outcome = outcome.into_result();
            let reply = outcome.as_ref().map_err(|failure| *failure).and_then(|value| match value {
                Value::BulkString(bytes) => {
                    call.script.read_reply(bytes).map_err(|_| StoreFailure::StoreError)
                }
                _ => Err(StoreFailure::StoreError),
            });
            let mut reply = match reply {
                Ok(reply) => reply,
                Err(failure) => {
                    call.groups.iter().for_each(|index| self.fail(draws, &self.groups[*index], failure));
                    // The server may or may not have applied them.
                    for index in &call.renewals {
                        renewals[*index].request.answer(LendOutcome::Unanswered);
                    }
                    continue;
                }
            };
            time = if is_own { Some(reply.now()) } else { time };
            for index in &call.groups {
                match reply.next() {
                    Some(Ok(GroupResult::Decided(decided))) => {
                        for (request, group) in (0..).zip(self.coalescer.members(&self.groups[*index])) {
                            decided.apply(request, draws.group_mut(group));
                        }
                        continue;
                    }
                    Some(Ok(GroupResult::Retry(retry))) => {
                        self.groups[*index].retry = Some(retry);
                        left.push(*index);
                        continue;
                    }
                    Some(Ok(GroupResult::Unwritten(code))) if is_own => {
                        node.record_rejected_writes(code, self.groups[*index].times);
                    }
                    Some(Ok(GroupResult::Unwritten(_) | GroupResult::Broken) | Err(_)) | None => {}
                }
                self.fail(draws, &self.groups[*index], StoreFailure::StoreError);
            }
            let at = reply.now();
            for (index, result) in call.renewals.iter().zip(reply.renewal_results()) {
                let SentRenewal { request, owner, .. } = &mut renewals[*index];
                let decision = match owner {
                    RenewalOwner::Draw { group, draw } => DrawDecision::of(&draws.group(*group)[*draw]),
                    RenewalOwner::Key(..) => None,
                };
                request.answer(lend_outcome(result, at, decision));
            }
        }
        time
    }

    /// Marks all members of a coalesced group as failed.
    fn fail(&self, draws: &mut Draws, coalesced: &CoalescedGroup, failure: StoreFailure) {
        for group in self.coalescer.members(coalesced) {
            draws.fail_group(group, failure);
        }
    }
}

/// The answer to a lease request, from the script's result at the server's time `at`.
fn lend_outcome(
    result: Result<RenewalResult, ScriptReplyError>,
    at: Micros,
    decision: Option<DrawDecision>,
) -> LendOutcome {
    let GrantedLease { units, term, time_left, is_report_accepted, state } = match result {
        Ok(RenewalResult::Granted(granted)) => granted,
        Ok(RenewalResult::Stuck) => return LendOutcome::Unsent,
        Err(_) => return LendOutcome::Unanswered,
    };
    let grant = LeaseGrant { units, term, expires_at: at.plus(time_left), is_report_accepted };
    LendOutcome::Lent { reply: LeaseReply { grant, state, store_time: at }, decision }
}

fn command(script_call: &ScriptCall, draws: &Draws) -> Cmd {
    let (arguments, bytes) = script_call.size_hint();
    let mut command = Cmd::with_capacity(arguments, bytes);
    script_call.write(draws, &mut command);
    command
}

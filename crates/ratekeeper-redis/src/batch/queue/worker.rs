//! The task that sends the batches of one server.

use super::{
    Batch, Batcher, MAX_ATTEMPTS, MAX_CALL_DRAWS, MAX_PIPELINED_CALLS, SentBatch, SentRenewal, cancel,
};
use crate::batch::coalesce::{CoalescedGroup, Coalescer};
use crate::batch::codec::{GrantedLease, GroupResult, Readopt, RenewalResult, ScriptCall, ScriptReplyError};
use crate::client::node::CommandOutcome;
use foldhash::fast::RandomState;
use ratekeeper::{DrawDecision, LeaseReply, LendOutcome, RenewalOwner};
use ratekeeper_core::{Clock, Draws, LeaseGrant, Micros, StoreFailure};
use redis::{Cmd, Value};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use tokio::time::Instant;

/// A batch that is in flight until this is dropped.
struct InFlight<'a>(&'a Arc<Batcher>);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().in_flight -= 1;
        // After a panic, another worker takes over.
        if std::thread::panicking() {
            self.0.runtime.spawn(run_worker(Arc::clone(self.0)));
        }
    }
}

pub(crate) async fn run_worker(batcher: Arc<Batcher>) {
    let mut worker = BatchWorker::default();
    while let Some(mut batch) = batcher.next_batch().await {
        let in_flight = InFlight(&batcher);
        worker.send_batch(&batcher, &mut batch).await;
        drop(in_flight);
        let Batch { draws, slots, mut waiters, mut renewals, deadline: _ } = batch;
        // Those that no call has carried are answered by being dropped.
        renewals.clear();
        let decided = Arc::new(draws);
        for waiter in waiters.drain(..) {
            // The waiter may have timed out.
            let _ = waiter.send(Arc::clone(&decided));
        }
        batcher.recycle(SentBatch { decided, slots, waiters, renewals });
    }
}

/// Sends batches, with buffers that are reused.
#[derive(Debug, Default)]
struct BatchWorker {
    coalescer: Coalescer,
    groups: Vec<CoalescedGroup>,
    calls: Vec<ScriptCall>,
    /// For each call, the indices of its coalesced groups.
    call_groups: Vec<Vec<usize>>,
    /// For each call, the indices of its renewals.
    call_renewals: Vec<Vec<usize>>,
    /// For each slot, the call that is being filled.
    open_calls: HashMap<u16, usize, RandomState>,
}

impl BatchWorker {
    /// Sends a batch: all its draws are decided or marked as failed.
    async fn send_batch(&mut self, batcher: &Batcher, batch: &mut Batch) {
        let Some(deadline) = batch.deadline else { return };
        self.coalescer.coalesce(&batch.draws, &batch.slots, &mut self.groups);
        batcher.counters.record_batch(batch.draws.len(), self.groups.len());
        for attempt in 0..MAX_ATTEMPTS {
            let used = self.encode_calls(batcher, batch, attempt == 0);
            let mut left = Vec::new();
            for first in (0..used).step_by(MAX_PIPELINED_CALLS) {
                let sending = first..used.min(first + MAX_PIPELINED_CALLS);
                let calls: Vec<_> = self.calls[sending.clone()].iter().map(command).collect();
                let sent = Instant::now();
                let outcomes = batcher.servers.call(&batcher.node, calls, deadline).await;
                let received = Instant::now();
                if let Some(time) = self.apply_replies(batcher, sending, outcomes, batch, &mut left) {
                    batcher.node.record_server_time(sent, received, time);
                }
            }
            // Calls of different slots were filled alternately.
            left.sort_unstable();
            self.retain_groups(&left);
            if self.groups.is_empty() {
                return;
            }
        }
        for coalesced in &self.groups {
            for group in self.coalescer.members(coalesced) {
                batch.draws.fail_group(group, StoreFailure::Busy);
            }
        }
    }

    /// Encodes all coalesced groups into calls, and the renewals if this is the first attempt. Returns the number
    /// of calls. Keys of different slots are sent in different calls, and so are groups that are sent in their
    /// own call.
    fn encode_calls(&mut self, batcher: &Batcher, batch: &Batch, is_first: bool) -> usize {
        let now = batcher.node.clock_ceiling(Instant::now()).unwrap_or_else(|| batcher.clock.now());
        let (draws, mut used) = (&batch.draws, 0);
        self.open_calls.clear();
        for group in 0..self.groups.len() {
            let coalesced = &self.groups[group];
            let (slot, is_isolated, size) =
                (coalesced.slot, coalesced.is_isolated, draws.group(coalesced.first).len());
            let now = coalesced.retry.as_ref().map_or(now, Readopt::now);
            let index = self.open_call(slot, size, is_isolated, now, &mut used);
            let (coalesced, call) = (&self.groups[group], &mut self.calls[index]);
            match &coalesced.retry {
                None => call.push(draws, coalesced.first, coalesced.times),
                Some(retry) => call.push_retry(draws, coalesced.first, coalesced.times, retry),
            }
            self.call_groups[index].push(group);
        }
        for (number, SentRenewal { request, draw, slot }) in
            batch.renewals.iter().enumerate().filter(|_| is_first)
        {
            let index = self.open_call(*slot, 1, false, now, &mut used);
            let call = &mut self.calls[index];
            match (request.owner(), draw.map(|draw| &draws.all()[draw])) {
                (RenewalOwner::Key(name, limit), _) => {
                    let key = name.key.borrow();
                    call.push_renewal(key, name.scope, limit, request.report(), request.request());
                }
                (RenewalOwner::Draw { .. }, Some(draw)) => {
                    let (key, limit) = (draws.key(draw), draw.limit());
                    call.push_renewal(key, draw.scope(), limit, request.report(), request.request());
                }
                (RenewalOwner::Draw { .. }, None) => continue,
            }
            self.call_renewals[index].push(number);
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
        let open = self.open_calls.get(&slot).copied().filter(|_| !is_isolated);
        let fits = |open: &usize| {
            self.calls[*open].draw_count() + self.call_renewals[*open].len() + size <= MAX_CALL_DRAWS
        };
        if let Some(open) = open.filter(fits) {
            return open;
        }
        let index = *used;
        if index == self.calls.len() {
            self.calls.push(ScriptCall::new());
            self.call_groups.push(Vec::new());
            self.call_renewals.push(Vec::new());
        }
        self.calls[index].reset(now);
        self.call_groups[index].clear();
        self.call_renewals[index].clear();
        if !is_isolated {
            self.open_calls.insert(slot, index);
        }
        *used += 1;
        index
    }

    /// Applies the replies to some calls, and collects in `left` the coalesced groups that have to be sent again.
    /// Returns the time of the batcher's own server, if it replied.
    fn apply_replies(
        &mut self,
        batcher: &Batcher,
        sent: Range<usize>,
        outcomes: Vec<CommandOutcome>,
        batch: &mut Batch,
        left: &mut Vec<usize>,
    ) -> Option<Micros> {
        let (draws, mut time) = (&mut batch.draws, None);
        let contents = self.call_groups[sent.clone()].iter().zip(&self.call_renewals[sent.clone()]);
        for (outcome, (call, (groups, renewals))) in
            outcomes.into_iter().zip(self.calls[sent].iter().zip(contents))
        {
            let is_own = matches!(outcome, CommandOutcome::Value(_));
            if matches!(outcome, CommandOutcome::TryAgain) && groups.len() > 1 {
                // Each group by itself may well be on one server.
                renewals.iter().for_each(|sent| cancel(&mut batch.renewals[*sent].request));
                for index in groups {
                    self.groups[*index].is_isolated = true;
                    left.push(*index);
                }
                continue;
            }
            let outcome = outcome.into_result();
            let read = match &outcome {
                Ok(Value::BulkString(bytes)) => call.read_reply(bytes).map_err(|_| StoreFailure::StoreError),
                Ok(_) => Err(StoreFailure::StoreError),
                Err(failure) => Err(*failure),
            };
            let mut reply = match read {
                Ok(reply) => {
                    time = if is_own { Some(reply.now()) } else { time };
                    Ok(reply)
                }
                Err(failure) => Err(failure),
            };
            for index in groups {
                let coalesced = &mut self.groups[*index];
                let result = match &mut reply {
                    Ok(reply) => match reply.next() {
                        Some(Ok(result)) => Ok(result),
                        Some(Err(_)) | None => Err(StoreFailure::StoreError),
                    },
                    Err(failure) => Err(*failure),
                };
                match result {
                    Ok(GroupResult::Decided(decided)) => {
                        for (request, group) in (0..).zip(self.coalescer.members(coalesced)) {
                            decided.apply(request, draws.group_mut(group));
                        }
                    }
                    Ok(GroupResult::Retry(retry)) => {
                        coalesced.retry = Some(retry);
                        left.push(*index);
                    }
                    Ok(GroupResult::Broken) => {
                        fail_groups(draws, self.coalescer.members(coalesced), StoreFailure::StoreError);
                    }
                    Ok(GroupResult::Unwritten(code)) => {
                        if is_own {
                            batcher.node.record_rejected_writes(code, coalesced.times);
                        }
                        fail_groups(draws, self.coalescer.members(coalesced), StoreFailure::StoreError);
                    }
                    Err(failure) => fail_groups(draws, self.coalescer.members(coalesced), failure),
                }
            }
            match &mut reply {
                Ok(reply) => {
                    let at = reply.now();
                    for (sent, result) in renewals.iter().zip(reply.renewal_results()) {
                        let SentRenewal { request, draw, .. } = &mut batch.renewals[*sent];
                        let decision = draw.and_then(|draw| DrawDecision::of(&draws.all()[draw]));
                        request.answer(lend_outcome(result, at, decision));
                    }
                }
                // The server may or may not have applied them.
                Err(_) => {
                    for sent in renewals {
                        batch.renewals[*sent].request.answer(LendOutcome::Unanswered);
                    }
                }
            }
        }
        time
    }

    /// Keeps only these coalesced groups. `left` is sorted.
    fn retain_groups(&mut self, left: &[usize]) {
        let mut index = 0;
        self.groups.retain(|_| {
            let is_left = left.binary_search(&index).is_ok();
            index += 1;
            is_left
        });
    }
}

fn fail_groups(draws: &mut Draws, groups: impl Iterator<Item = usize>, failure: StoreFailure) {
    for group in groups {
        draws.fail_group(group, failure);
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

fn command(script_call: &ScriptCall) -> Cmd {
    let (arguments, bytes) = script_call.size_hint();
    let mut command = Cmd::with_capacity(arguments, bytes);
    script_call.write(&mut command);
    command
}

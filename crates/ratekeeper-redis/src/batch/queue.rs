//! Batches draws for one server.
//!
//! Draws that wait are sent together. An idle server gets a batch at once, however small. While two calls are in
//! flight, further draws are collected until they fill a call. So a server under load gets a few large calls
//! instead of many small ones, none of which occupies it for long, and it has the next one at hand when it has
//! finished the last. The queue is bounded: beyond that, draws fail at once.

mod worker;

use crate::client::node::RedisNode;
use crate::client::server_set::ServerSet;
use crate::counters::StoreCounters;
use crate::store::router::Router;
use parking_lot::Mutex;
use ratekeeper::{LendOutcome, LendRequest, RenewalOwner, SystemClock};
use ratekeeper_core::{Draws, StoreFailure};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use worker::run_worker;

/// The most batches in flight. They are a few milliseconds of work for the server.
const MAX_IN_FLIGHT: usize = 8;
/// With fewer batches than this in flight, a batch is sent however small it is: while the server works on one,
/// the next is in flight.
const EAGER_IN_FLIGHT: usize = 2;
/// The most draws of one call, so that it does not occupy the server for long. A batch of this many draws is
/// full.
const MAX_CALL_DRAWS: usize = 48;
/// The most calls that are pipelined. A larger batch is sent in several steps, and steps for which there is no
/// time left are not sent.
const MAX_PIPELINED_CALLS: usize = 16;
/// The most queued draws, unless they were submitted together.
const MAX_QUEUED_DRAWS: usize = 8192;
/// The most attempts for a group. It is sent again if the script found a state that was written under another
/// quota, which has to be converted here first. While two versions of the rules are in force, several nodes may
/// write in turn.
const MAX_ATTEMPTS: usize = 4;

/// The send queue of one server, and its workers.
#[derive(Debug)]
pub(crate) struct Batcher {
    servers: Arc<ServerSet>,
    node: Arc<RedisNode>,
    clock: Arc<SystemClock>,
    /// Where the workers run, whichever runtime submits draws.
    runtime: Handle,
    queue: Mutex<BatchQueue>,
    /// Wakes a worker.
    wake: Notify,
    is_closed: AtomicBool,
    counters: Arc<StoreCounters>,
}

/// Batches that wait for a worker.
#[derive(Debug, Default)]
struct BatchQueue {
    /// All but the last are full.
    batches: VecDeque<Batch>,
    /// The number of queued draws.
    queued_draws: usize,
    in_flight: usize,
    /// Sent batches: the memory of one is reused when all waiters have read it.
    reusable: Vec<SentBatch>,
}

/// The buffers of a sent batch.
#[derive(Debug)]
struct SentBatch {
    decided: Arc<Draws>,
    slots: Vec<u16>,
    waiters: Vec<oneshot::Sender<Arc<Draws>>>,
    renewals: Vec<SentRenewal>,
}

/// Draws and renewals that are sent together.
#[derive(Debug, Default)]
struct Batch {
    draws: Draws,
    /// For each group, the Cluster slot of its keys.
    slots: Vec<u16>,
    waiters: Vec<oneshot::Sender<Arc<Draws>>>,
    renewals: Vec<SentRenewal>,
    /// The latest deadline of the waiters.
    deadline: Option<Instant>,
}

/// A lease request of a batch.
#[derive(Debug)]
struct SentRenewal {
    request: LendRequest,
    /// The index in the batch of the draw that it belongs to. `None` if it is sent on its own.
    draw: Option<usize>,
    slot: u16,
}

/// Some draws of a group, for one server.
#[derive(Debug)]
pub(crate) struct SubRequest {
    pub(crate) group: usize,
    /// The indices of the draws. `None` for all draws of the group.
    pub(crate) picks: Option<Box<[usize]>>,
    pub(crate) slot: u16,
    /// Whether the draws take nothing, because another draw of the group was already denied.
    pub(crate) is_peek: bool,
    /// Lease requests to send along, if the part is the whole group.
    pub(crate) renewals: Vec<LendRequest>,
}

impl SubRequest {
    /// All draws of a group.
    pub(crate) fn whole(group: usize, slot: u16) -> SubRequest {
        SubRequest { group, picks: None, slot, is_peek: false, renewals: Vec::new() }
    }

    /// The number of draws.
    fn draw_count(&self, draws: &Draws) -> usize {
        self.picks.as_ref().map_or_else(|| draws.group(self.group).len(), |picks| picks.len())
    }
}

/// The reply to submitted draws.
#[derive(Debug)]
pub(crate) struct PendingReply {
    /// All draws of the batch, decided or failed.
    pub(crate) decided: oneshot::Receiver<Arc<Draws>>,
    /// The index of the first submitted group in the batch.
    pub(crate) first_group: usize,
}

impl Batcher {
    /// Creates the batcher of a server, and starts its workers.
    pub(crate) fn start(router: &Router, node: Arc<RedisNode>, runtime: Handle) -> Arc<Batcher> {
        let batcher = Arc::new(Batcher {
            servers: Arc::clone(&router.servers),
            node,
            clock: Arc::clone(&router.clock),
            runtime,
            queue: Mutex::default(),
            wake: Notify::new(),
            is_closed: AtomicBool::new(false),
            counters: Arc::clone(&router.counters),
        });
        for _ in 0..MAX_IN_FLIGHT {
            batcher.runtime.spawn(run_worker(Arc::clone(&batcher)));
        }
        batcher
    }

    /// The server.
    pub(crate) fn node(&self) -> &Arc<RedisNode> {
        &self.node
    }

    /// Queues parts of a buffer's groups.
    pub(crate) fn submit(
        &self,
        draws: &Draws,
        parts: &mut [SubRequest],
        deadline: Instant,
    ) -> Result<PendingReply, StoreFailure> {
        let (sender, decided) = oneshot::channel();
        let size = parts.iter().map(|part| part.draw_count(draws)).sum();
        let mut queue = self.queue.lock();
        if queue.queued_draws > 0 && queue.queued_draws + size > MAX_QUEUED_DRAWS {
            drop(queue);
            parts.iter_mut().flat_map(|part| &mut part.renewals).for_each(cancel);
            return Err(StoreFailure::Busy);
        }
        let (can_send, batch) = queue.open_batch(size);
        let first = batch.draws.len();
        for part in parts {
            let before = batch.draws.all().len();
            batch.draws.begin_group_from(draws, part.group, part.picks.as_deref(), part.is_peek);
            batch.slots.push(part.slot);
            let sent = |request: LendRequest| {
                let draw = match request.owner() {
                    RenewalOwner::Draw { draw, .. } => Some(before + draw),
                    RenewalOwner::Key(..) => None,
                };
                SentRenewal { request, draw, slot: part.slot }
            };
            batch.renewals.extend(part.renewals.drain(..).map(sent));
        }
        batch.waiters.push(sender);
        batch.deadline = batch.deadline.max(Some(deadline));
        let is_full = batch.is_full();
        queue.queued_draws += size;
        drop(queue);
        if can_send || is_full {
            self.wake.notify_one();
        }
        Ok(PendingReply { decided, first_group: first })
    }

    /// Queues a lease request that is sent on its own.
    pub(crate) fn submit_renewal(&self, mut request: LendRequest, slot: u16, deadline: Instant) {
        let mut queue = self.queue.lock();
        if queue.queued_draws >= MAX_QUEUED_DRAWS {
            drop(queue);
            return cancel(&mut request);
        }
        let (can_send, batch) = queue.open_batch(1);
        batch.renewals.push(SentRenewal { request, draw: None, slot });
        batch.deadline = batch.deadline.max(Some(deadline));
        let is_full = batch.is_full();
        queue.queued_draws += 1;
        drop(queue);
        if can_send || is_full {
            self.wake.notify_one();
        }
    }

    /// Closes the batcher. Queued batches are still sent, and then the workers end.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.wake.notify_waiters();
        // For a worker that is about to wait.
        self.wake.notify_one();
    }

    /// Waits for a batch to send. `None` once the batcher is closed.
    ///
    /// A batch that is not full is sent when no task is left that would add to it at once: as long as it grows,
    /// the worker yields to other tasks.
    async fn next_batch(&self) -> Option<Batch> {
        let mut seen = 0;
        loop {
            let (waiting, batch) = self.queue.lock().take_ready(seen);
            if batch.is_some() {
                return batch;
            }
            if waiting > seen {
                seen = waiting;
                tokio::task::yield_now().await;
                continue;
            }
            if self.is_closed.load(Relaxed) {
                self.wake.notify_one();
                return None;
            }
            self.wake.notified().await;
            seen = 0;
        }
    }

    /// Recycles the buffers of a batch.
    fn recycle(&self, sent: SentBatch) {
        let mut queue = self.queue.lock();
        if queue.reusable.len() < MAX_IN_FLIGHT {
            queue.reusable.push(sent);
        }
    }
}

impl BatchQueue {
    /// The batch to append `size` draws to, and whether it is new and may be sent at once. More draws than fit
    /// into one call get their own batch, so that no other request waits for them.
    fn open_batch(&mut self, size: usize) -> (bool, &mut Batch) {
        let is_new = size > MAX_CALL_DRAWS || self.batches.back().is_none_or(Batch::is_full);
        if is_new {
            let unused = self.reusable.iter().position(|sent| Arc::strong_count(&sent.decided) == 1);
            let batch = unused.and_then(|unused| Batch::reuse(self.reusable.swap_remove(unused)));
            self.batches.push_back(batch.unwrap_or_default());
        }
        let can_send = is_new && self.in_flight < EAGER_IN_FLIGHT;
        (can_send, self.batches.back_mut().expect("a batch was pushed if there was none"))
    }

    /// Takes the next batch if it is full, or if it has not grown beyond `seen` draws and few batches are in
    /// flight. Also returns its number of draws. The caller holds an [`InFlight`] until it is done.
    fn take_ready(&mut self, seen: usize) -> (usize, Option<Batch>) {
        let Some(next) = self.batches.front() else { return (0, None) };
        let size = next.size();
        if !next.is_full() && self.in_flight >= EAGER_IN_FLIGHT {
            return (0, None);
        }
        if !next.is_full() && size > seen {
            return (size, None);
        }
        self.queued_draws -= size;
        self.in_flight += 1;
        (size, self.batches.pop_front())
    }
}

impl Batch {
    /// An empty batch in the memory of one that is no longer read. `None` if it is still read.
    fn reuse(sent: SentBatch) -> Option<Batch> {
        let SentBatch { decided, mut slots, mut waiters, mut renewals } = sent;
        let mut draws = Arc::into_inner(decided)?;
        draws.clear();
        slots.clear();
        waiters.clear();
        renewals.clear();
        Some(Batch { draws, slots, waiters, renewals, deadline: None })
    }

    fn is_full(&self) -> bool {
        self.size() >= MAX_CALL_DRAWS
    }

    /// The number of draws and of renewals that are sent on their own.
    fn size(&self) -> usize {
        let alone = self.renewals.iter().filter(|renewal| renewal.draw.is_none());
        self.draws.all().len() + alone.count()
    }
}

/// Answers that a lease request was not sent.
pub(crate) fn cancel(request: &mut LendRequest) {
    request.answer(LendOutcome::Unsent);
}

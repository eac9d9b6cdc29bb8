//! Batches draws for one server.
//!
//! Draws that wait are sent together. An idle server gets a batch at once, however small. While two calls are in
//! flight, further draws are collected until they fill a call. So a server under load gets a few large calls
//! instead of many small ones, none of which occupies it for long, and it has the next one at hand when it has
//! finished the last. The queue is bounded: beyond that, draws fail at once.

use crate::client::node::RedisNode;
use parking_lot::Mutex;
use ratekeeper::{LendOutcome, LendRequest, RenewalOwner};
use ratekeeper_core::{Draws, StoreFailure};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// The most batches in flight. They are a few milliseconds of work for the server.
pub(super) const MAX_IN_FLIGHT: usize = 8;
/// With fewer batches than this in flight, a batch is sent however small it is: while the server works on one,
/// the next is in flight.
const EAGER_IN_FLIGHT: usize = 2;
/// The most draws of one call, so that it does not occupy the server for long. A batch of this many draws is
/// full.
pub(super) const MAX_CALL_DRAWS: usize = 48;
/// The most queued draws, unless they were submitted together.
const MAX_QUEUED_DRAWS: usize = 8192;
/// The send queue of one server.
#[derive(Debug)]
pub(crate) struct Batcher {
    node: Arc<RedisNode>,
    queue: Mutex<BatchQueue>,
    /// Wakes a worker.
    wake: Notify,
    is_closed: AtomicBool,
}

/// Batches that wait for a worker.
#[derive(Debug, Default)]
struct BatchQueue {
    /// All but the last are full.
    batches: VecDeque<Batch>,
    /// The number of queued draws.
    queued_draws: usize,
    in_flight: usize,
    /// Answered batches: the memory of one is reused when all waiters have read it.
    reusable: Vec<Batch>,
}

/// Draws and renewals that are sent together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Shared with the waiters once the batch is decided.
    draws: Arc<Draws>,
    /// For each group, the Cluster slot of its keys.
    pub(crate) slots: Vec<u16>,
    waiters: Vec<oneshot::Sender<Arc<Draws>>>,
    pub(crate) renewals: Vec<SentRenewal>,
    /// The latest deadline of the waiters.
    pub(crate) deadline: Option<Instant>,
}

/// A lease request of a batch.
#[derive(Debug)]
pub(crate) struct SentRenewal {
    pub(crate) request: LendRequest,
    /// Its key and limit. A draw is one of the batch.
    pub(crate) owner: RenewalOwner,
    pub(crate) slot: u16,
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
    /// An empty queue. Its workers are started by [`Workers`](super::worker::Workers).
    pub(super) fn new(node: Arc<RedisNode>) -> Arc<Batcher> {
        Arc::new(Batcher {
            node,
            queue: Mutex::default(),
            wake: Notify::new(),
            is_closed: AtomicBool::new(false),
        })
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
        let size = parts.iter().map(|part| part.draw_count(draws)).sum();
        let pending = self.enqueue(size, deadline, |batch| {
            let (sender, decided) = oneshot::channel();
            batch.waiters.push(sender);
            let first_group = batch.draws.len();
            parts.iter_mut().for_each(|part| batch.push(draws, part));
            PendingReply { decided, first_group }
        });
        pending.ok_or_else(|| {
            parts.iter_mut().flat_map(|part| &mut part.renewals).for_each(cancel);
            StoreFailure::Busy
        })
    }

    /// Queues a lease request that is sent on its own.
    pub(crate) fn submit_renewal(&self, request: LendRequest, slot: u16, deadline: Instant) {
        let mut request = Some(request);
        self.enqueue(1, deadline, |batch| {
            let sent = |request: LendRequest| SentRenewal { owner: request.owner().clone(), request, slot };
            batch.renewals.extend(request.take().map(sent));
        });
        request.iter_mut().for_each(cancel);
    }

    /// Adds `size` draws and renewals to a batch. Returns `None`, and adds nothing, if the queue is full.
    fn enqueue<T>(&self, size: usize, deadline: Instant, fill: impl FnOnce(&mut Batch) -> T) -> Option<T> {
        let mut queue = self.queue.lock();
        if queue.queued_draws > 0 && queue.queued_draws + size > MAX_QUEUED_DRAWS {
            return None;
        }
        let (can_send, batch) = queue.open_batch(size);
        let filled = fill(batch);
        batch.deadline = batch.deadline.max(Some(deadline));
        let is_full = batch.is_full();
        queue.queued_draws += size;
        drop(queue);
        if can_send || is_full {
            self.wake.notify_one();
        }
        Some(filled)
    }

    /// Closes the batcher. Queued batches are still sent, and then the workers end.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.wake.notify_waiters();
        // For a worker that is about to wait.
        self.wake.notify_one();
    }

    /// Waits for a batch to send, which is in flight until [`Batcher::finish`]. `None` once the batcher is closed.
    ///
    /// A batch that is not full is sent when no task is left that would add to it at once: as long as it grows,
    /// the worker yields to other tasks.
    pub(super) async fn next_batch(&self) -> Option<Batch> {
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

    /// Ends the flight of a batch.
    pub(super) fn finish(&self) {
        self.queue.lock().in_flight -= 1;
    }

    /// Recycles the buffers of a batch.
    pub(super) fn recycle(&self, sent: Batch) {
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
            let unused = self.reusable.iter_mut().position(|sent| Arc::get_mut(&mut sent.draws).is_some());
            let mut batch = unused.map(|unused| self.reusable.swap_remove(unused)).unwrap_or_default();
            batch.draws_mut().clear();
            self.batches.push_back(batch);
        }
        let can_send = is_new && self.in_flight < EAGER_IN_FLIGHT;
        (can_send, self.batches.back_mut().expect("a batch was pushed if there was none"))
    }

    /// Takes the next batch if it is full, or if it has not grown beyond `seen` draws and few batches are in
    /// flight. Also returns its number of draws.
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
    /// Adds a part of a group.
    fn push(&mut self, draws: &Draws, part: &mut SubRequest) {
        let group = self.draws.len();
        self.draws_mut().begin_group_from(draws, part.group, part.picks.as_deref(), part.is_peek);
        self.slots.push(part.slot);
        self.renewals.extend(part.renewals.drain(..).map(|request| {
            let owner = match request.owner().clone() {
                RenewalOwner::Draw { draw, .. } => RenewalOwner::Draw { group, draw },
                key @ RenewalOwner::Key(..) => key,
            };
            SentRenewal { request, owner, slot: part.slot }
        }));
    }

    pub(super) fn draws(&self) -> &Draws {
        &self.draws
    }

    pub(super) fn draws_mut(&mut self) -> &mut Draws {
        self.parts_mut().0
    }

    /// The draws, and the renewals that travel with them.
    pub(super) fn parts_mut(&mut self) -> (&mut Draws, &mut [SentRenewal]) {
        let draws = Arc::get_mut(&mut self.draws).expect("draws are shared only once they are decided");
        (draws, &mut self.renewals)
    }

    /// Passes the decided draws to those who wait for them, and leaves the batch empty but for the draws.
    pub(super) fn answer(&mut self) {
        // Those that no call has carried are answered by being dropped.
        self.renewals.clear();
        self.slots.clear();
        self.deadline = None;
        for waiter in self.waiters.drain(..) {
            // The waiter may have timed out.
            let _ = waiter.send(Arc::clone(&self.draws));
        }
    }

    fn is_full(&self) -> bool {
        self.size() >= MAX_CALL_DRAWS
    }

    /// The number of draws and of renewals that are sent on their own.
    fn size(&self) -> usize {
        let alone = self.renewals.iter().filter(|renewal| matches!(renewal.owner, RenewalOwner::Key(..)));
        self.draws.all().len() + alone.count()
    }
}

/// Answers that a lease request was not sent.
pub(crate) fn cancel(request: &mut LendRequest) {
    request.answer(LendOutcome::Unsent);
}

//! Draws on their way to one server.
//!
//! Draws that wait travel together. A server that is idle is asked at once, with what there is; while two calls are in
//! flight, further draws collect until they make a call that is worth it. So a server under load is asked a few large
//! questions instead of many small ones, none of which holds it up for long, and has the next one at hand when it is
//! done with the last. What waits is bounded: beyond that, draws fail at once.

use super::coalesce::{CoalescedGroup, Coalescer};
use super::counters::StoreCounters;
use super::node::{CommandOutcome, RedisNode};
use super::router::Router;
use super::script_call::{GrantedLease, GroupResult, Readopt, RenewalResult, ScriptCall, ScriptReplyError};
use super::server_set::ServerSet;
use crate::clock::SystemClock;
use crate::lease::{DetachedRenewal, DrawRenewal, KeyName, LeaseRenewal, LeaseReply, Leases};
use ::redis::{Cmd, Value};
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use ratekeeper_core::{Clock, Draws, LeaseGrant, Limit, Micros, StoreFailure};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// How many loads may be in flight at all. The server has work for a few milliseconds then.
const IN_FLIGHT: usize = 8;
/// With fewer than this many in flight, a load goes however small it is: while the server works on one, the next is on its
/// way.
const EAGER: usize = 2;
/// The most draws of one call, so that it does not hold the server up for long; with so many, a load is full.
const CALL_DRAWS: usize = 48;
/// The most calls that are sent without waiting for an answer to the first: a large batch goes bit by bit, and those bits
/// for which there is no time left are not sent.
const CALLS: usize = 16;
/// The most draws that may wait, unless they came together.
const WAITING_DRAWS: usize = 8192;
/// How long a node that is about to stop waits for its last word to arrive.
const LAST_WORD: Duration = Duration::from_millis(500);
/// How often a group is sent again because something was in its way that was looked at here: a state that another quota
/// wrote. While two versions of the rules are in force, several nodes may write in turn.
const TRIES: usize = 4;

/// Draws on their way to one server.
#[derive(Debug)]
pub(super) struct Batcher {
    fleet: Arc<ServerSet>,
    node: Arc<RedisNode>,
    leases: Arc<Leases>,
    clock: Arc<SystemClock>,
    /// Where its couriers run, wherever draws come from.
    runtime: Handle,
    queue: Mutex<BatchQueue>,
    /// Wakes a courier.
    wake: Notify,
    is_closed: AtomicBool,
    tally: Arc<StoreCounters>,
}

/// What waits for a courier.
#[derive(Debug, Default)]
struct BatchQueue {
    /// All but the last are full.
    loads: VecDeque<Batch>,
    /// How many draws they have together.
    draws: usize,
    in_flight: usize,
    /// Loads that were carried: once those who waited for one have looked at it, its memory is used again.
    spent: Vec<SentBatch>,
}

/// A load that was carried.
#[derive(Debug)]
struct SentBatch {
    decided: Arc<Draws>,
    slots: Vec<u16>,
    waiters: Vec<oneshot::Sender<Arc<Draws>>>,
    orders: Vec<SentRenewal>,
}

/// What travels together.
#[derive(Debug, Default)]
struct Batch {
    draws: Draws,
    /// For each group, the slot of its keys.
    slots: Vec<u16>,
    waiters: Vec<oneshot::Sender<Arc<Draws>>>,
    orders: Vec<SentRenewal>,
    /// When the last of those who wait gives up.
    deadline: Option<Instant>,
}

/// An order on its way.
#[derive(Debug)]
struct SentRenewal {
    order: LeaseRenewal,
    of: RenewalOwner,
    slot: u16,
}

/// Whose order it is.
#[derive(Debug)]
enum RenewalOwner {
    /// That of the draw at this place of the load.
    Draw(usize),
    Name(Arc<KeyName>, Limit),
}

/// Some draws of a group, for one server.
#[derive(Clone, Debug)]
pub(super) struct SubRequest {
    pub(super) group: usize,
    /// Which of its draws; nothing for all of them.
    pub(super) picks: Option<Box<[usize]>>,
    pub(super) slot: u16,
    /// Whether they are only looked at: another draw of the group was refused already.
    pub(super) is_look: bool,
    /// What is ordered along with them, if they are all of the group.
    pub(super) wanted: Vec<DrawRenewal>,
}

impl SubRequest {
    /// A group as it is.
    pub(super) fn whole(group: usize, slot: u16) -> SubRequest {
        SubRequest { group, picks: None, slot, is_look: false, wanted: Vec::new() }
    }

    /// How many draws it has.
    fn size(&self, draws: &Draws) -> usize {
        self.picks.as_ref().map_or_else(|| draws.group(self.group).len(), |picks| picks.len())
    }
}

/// What those wait for who have submitted draws.
#[derive(Debug)]
pub(super) struct PendingReply {
    /// All draws that travelled together, decided or failed.
    pub(super) decided: oneshot::Receiver<Arc<Draws>>,
    /// Which of the groups there is the first of theirs.
    pub(super) first: usize,
}

impl Batcher {
    /// A lane to a server, with its couriers on their way.
    pub(super) fn start(post: &Router, node: Arc<RedisNode>, runtime: Handle) -> Arc<Batcher> {
        let lane = Arc::new(Batcher {
            fleet: Arc::clone(&post.fleet),
            node,
            leases: Arc::clone(&post.leases),
            clock: Arc::clone(&post.clock),
            runtime,
            queue: Mutex::default(),
            wake: Notify::new(),
            is_closed: AtomicBool::new(false),
            tally: Arc::clone(&post.tally),
        });
        for _ in 0..IN_FLIGHT {
            lane.runtime.spawn(carry(Arc::clone(&lane)));
        }
        lane
    }

    /// The server it leads to.
    pub(super) fn node(&self) -> &Arc<RedisNode> {
        &self.node
    }

    /// Puts parts of a buffer's groups on the lane.
    pub(super) fn submit(
        &self,
        draws: &Draws,
        parts: &[SubRequest],
        deadline: Instant,
    ) -> Result<PendingReply, StoreFailure> {
        let (tell, decided) = oneshot::channel();
        let size = parts.iter().map(|part| part.size(draws)).sum();
        let mut queue = self.queue.lock();
        if queue.draws > 0 && queue.draws + size > WAITING_DRAWS {
            drop(queue);
            for wanted in parts.iter().flat_map(|part| &part.wanted) {
                self.leases.settle_unsent(&wanted.order);
            }
            return Err(StoreFailure::Busy);
        }
        let (is_worth_it, load) = queue.open(size);
        let first = load.draws.len();
        for part in parts {
            let before = load.draws.all().len();
            load.draws.begin_with(draws, part.group, part.picks.as_deref(), part.is_look);
            load.slots.push(part.slot);
            load.orders.extend(part.wanted.iter().map(|wanted| SentRenewal {
                order: wanted.order,
                of: RenewalOwner::Draw(before + wanted.draw),
                slot: part.slot,
            }));
        }
        load.waiters.push(tell);
        load.deadline = load.deadline.max(Some(deadline));
        let is_full = load.is_full();
        queue.draws += size;
        drop(queue);
        if is_worth_it || is_full {
            self.wake.notify_one();
        }
        Ok(PendingReply { decided, first })
    }

    /// Puts an order on the lane that goes its own way.
    pub(super) fn order(
        &self,
        errand: DetachedRenewal,
        slot: u16,
        deadline: Instant,
    ) -> Result<PendingReply, StoreFailure> {
        let DetachedRenewal { order, limit, name } = errand;
        let (tell, decided) = oneshot::channel();
        let mut queue = self.queue.lock();
        if queue.draws >= WAITING_DRAWS {
            drop(queue);
            self.leases.settle_unsent(&order);
            return Err(StoreFailure::Busy);
        }
        let (is_worth_it, load) = queue.open(1);
        load.orders.push(SentRenewal { order, of: RenewalOwner::Name(name, limit), slot });
        load.waiters.push(tell);
        load.deadline = load.deadline.max(Some(deadline));
        let is_full = load.is_full();
        queue.draws += 1;
        drop(queue);
        if is_worth_it || is_full {
            self.wake.notify_one();
        }
        Ok(PendingReply { decided, first: 0 })
    }

    /// Ends it: what waits is still carried, and then its couriers go.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.wake.notify_waiters();
        // For one that was about to wait.
        self.wake.notify_one();
    }

    /// Waits for something to carry; nothing once it is closed.
    ///
    /// A load that is not full goes when there is nobody left who would add to it at once: as long as it grows, others
    /// have their turn.
    async fn next(&self) -> Option<Batch> {
        let mut seen = 0;
        loop {
            let (waiting, load) = self.queue.lock().take(seen);
            if load.is_some() {
                return load;
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

    /// Takes note of what became of an order, at the server's time `at`.
    fn settle(
        &self,
        carried: &SentRenewal,
        lending: Result<RenewalResult, ScriptReplyError>,
        draws: &Draws,
        at: Micros,
    ) {
        let SentRenewal { order, of, slot } = carried;
        let loaned = match lending {
            Ok(RenewalResult::Loaned(loaned)) => loaned,
            Ok(RenewalResult::Stuck) => return self.leases.settle_unsent(order),
            Err(_) => return self.leases.settle_lost(order),
        };
        // What the draw heard was so before anything was lent.
        if let RenewalOwner::Draw(draw) = of {
            let draw = &draws.all()[*draw];
            if draw.is_decided() {
                self.leases.note(order.tag, draw.limit(), draw.act().ask(), draw.outcome(), order.asked_at());
            }
        }
        let GrantedLease { units, term, left, is_known, seen } = loaned;
        let loan = LeaseGrant { units, term, until: at.plus(left), is_known };
        let errand = self.leases.settle(order, LeaseReply { loan, seen, at }, self.clock.now());
        if let Some(errand) = errand {
            // This node is about to stop, and gives back what it has just been lent.
            let patience = Instant::now() + LAST_WORD;
            let _ = self.order(errand, *slot, patience);
        }
    }

    /// Takes back what a load was carried in.
    fn take_back(&self, spent: SentBatch) {
        let mut queue = self.queue.lock();
        if queue.spent.len() < IN_FLIGHT {
            queue.spent.push(spent);
        }
    }
}

impl BatchQueue {
    /// A load that takes so much more, and whether it is a new one that could go as soon as there is something in it. What is
    /// more than one call travels by itself, so that nobody else waits for it.
    fn open(&mut self, size: usize) -> (bool, &mut Batch) {
        let is_new = size > CALL_DRAWS || self.loads.back().is_none_or(Batch::is_full);
        if is_new {
            let unused = self.spent.iter().position(|spent| Arc::strong_count(&spent.decided) == 1);
            let load = unused.and_then(|unused| Batch::renew(self.spent.swap_remove(unused)));
            self.loads.push_back(load.unwrap_or_default());
        }
        let could_go = is_new && self.in_flight < EAGER;
        (could_go, self.loads.back_mut().expect("there is a load now, if there was none before"))
    }

    /// The next load, if it is full, or if it has no more draws than were `seen` and there is little in flight; and how
    /// many draws it has. Whoever takes it says when it is [done](InFlight).
    fn take(&mut self, seen: usize) -> (usize, Option<Batch>) {
        let Some(next) = self.loads.front() else { return (0, None) };
        let size = next.size();
        if !next.is_full() && self.in_flight >= EAGER {
            return (0, None);
        }
        if !next.is_full() && size > seen {
            return (size, None);
        }
        self.draws -= size;
        self.in_flight += 1;
        (size, self.loads.pop_front())
    }
}

impl Batch {
    /// An empty one, in the memory of one that nobody looks at any more.
    fn renew(spent: SentBatch) -> Option<Batch> {
        let SentBatch { decided, mut slots, mut waiters, mut orders } = spent;
        let mut draws = Arc::into_inner(decided)?;
        draws.clear();
        slots.clear();
        waiters.clear();
        orders.clear();
        Some(Batch { draws, slots, waiters, orders, deadline: None })
    }

    fn is_full(&self) -> bool {
        self.size() >= CALL_DRAWS
    }

    /// How many draws it has, and orders that go their own way.
    fn size(&self) -> usize {
        let alone = self.orders.iter().filter(|carried| matches!(carried.of, RenewalOwner::Name(..)));
        self.draws.all().len() + alone.count()
    }
}

/// A load that is in flight until this is dropped.
struct InFlight<'a>(&'a Arc<Batcher>);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().in_flight -= 1;
        // Whatever made it panic, the next load may be carried.
        if std::thread::panicking() {
            self.0.runtime.spawn(carry(Arc::clone(self.0)));
        }
    }
}

async fn carry(lane: Arc<Batcher>) {
    let mut courier = BatchWorker::default();
    while let Some(mut load) = lane.next().await {
        let on_the_way = InFlight(&lane);
        courier.deliver(&lane, &mut load).await;
        drop(on_the_way);
        let Batch { draws, slots, mut waiters, orders, deadline: _ } = load;
        let decided = Arc::new(draws);
        for waiter in waiters.drain(..) {
            // Whoever gave up does not want to know.
            let _ = waiter.send(Arc::clone(&decided));
        }
        lane.take_back(SentBatch { decided, slots, waiters, orders });
    }
}

/// Carries loads, with buffers that are kept.
#[derive(Debug, Default)]
struct BatchWorker {
    binder: Coalescer,
    bundles: Vec<CoalescedGroup>,
    parcels: Vec<ScriptCall>,
    /// For each parcel, which bundles it carries, and which orders.
    carried: Vec<Vec<usize>>,
    orders: Vec<Vec<usize>>,
    /// For each slot, the parcel that is being filled.
    open: HashMap<u16, usize, RandomState>,
}

impl BatchWorker {
    /// Has all draws of a load decided, or noted as failed.
    async fn deliver(&mut self, lane: &Batcher, load: &mut Batch) {
        let Some(deadline) = load.deadline else { return };
        self.binder.bind(&load.draws, &load.slots, &mut self.bundles);
        lane.tally.note_load(load.draws.len(), self.bundles.len());
        for attempt in 0..TRIES {
            let used = self.pack(lane, load, attempt == 0);
            let mut left = Vec::new();
            for first in (0..used).step_by(CALLS) {
                let sending = first..used.min(first + CALLS);
                let calls: Vec<_> = self.parcels[sending.clone()].iter().map(call).collect();
                let sent = Instant::now();
                let answers = lane.fleet.exchange(&lane.node, calls, deadline).await;
                let received = Instant::now();
                if let Some(time) = self.unpack(lane, sending, answers, load, &mut left) {
                    lane.node.note_time(sent, received, time);
                }
            }
            // Parcels of different slots were filled in turns.
            left.sort_unstable();
            self.keep(&left);
            if self.bundles.is_empty() {
                return;
            }
        }
        for bundle in &self.bundles {
            for group in self.binder.members(bundle) {
                load.draws.fail(group, StoreFailure::Busy);
            }
        }
    }

    /// Puts all bundles into parcels, and orders if it is the first time, and says how many parcels those are. Keys of
    /// different slots travel apart, and so does what stood in each other's way.
    fn pack(&mut self, lane: &Batcher, load: &Batch, is_first: bool) -> usize {
        let now = lane.node.clock_ceiling(Instant::now()).unwrap_or_else(|| lane.clock.now());
        let (draws, mut used) = (&load.draws, 0);
        self.open.clear();
        for index in 0..self.bundles.len() {
            let bundle = &self.bundles[index];
            let (slot, is_apart, size) = (bundle.slot, bundle.is_apart, draws.group(bundle.first).len());
            let now = bundle.again.as_ref().map_or(now, Readopt::now);
            let place = self.place(slot, size, is_apart, now, &mut used);
            let (bundle, parcel) = (&self.bundles[index], &mut self.parcels[place]);
            match &bundle.again {
                None => parcel.add(draws, bundle.first, bundle.times),
                Some(again) => parcel.add_again(draws, bundle.first, bundle.times, again),
            }
            self.carried[place].push(index);
        }
        for (index, SentRenewal { order, of, slot }) in load.orders.iter().enumerate().filter(|_| is_first) {
            let place = self.place(*slot, 1, false, now, &mut used);
            let (report, wish, parcel) = (order.report, order.wish, &mut self.parcels[place]);
            match of {
                RenewalOwner::Name(name, limit) => {
                    parcel.lend(name.key.borrow(), name.scope, limit, report, wish)
                }
                RenewalOwner::Draw(draw) => {
                    let draw = &draws.all()[*draw];
                    parcel.lend(draws.key(draw), draw.scope(), draw.limit(), report, wish);
                }
            }
            self.orders[place].push(index);
        }
        used
    }

    /// The parcel that takes so many more draws of a slot.
    fn place(&mut self, slot: u16, size: usize, is_apart: bool, now: Micros, used: &mut usize) -> usize {
        let open = self.open.get(&slot).copied().filter(|_| !is_apart);
        let fits =
            |open: &usize| self.parcels[*open].draw_count() + self.orders[*open].len() + size <= CALL_DRAWS;
        if let Some(open) = open.filter(fits) {
            return open;
        }
        let place = *used;
        if place == self.parcels.len() {
            self.parcels.push(ScriptCall::new());
            self.carried.push(Vec::new());
            self.orders.push(Vec::new());
        }
        self.parcels[place].start(now);
        self.carried[place].clear();
        self.orders[place].clear();
        if !is_apart {
            self.open.insert(slot, place);
        }
        *used += 1;
        place
    }

    /// Notes what was decided of some parcels, and which bundles are left to be sent again. Gives the time by the lane's own
    /// server, if it said so.
    fn unpack(
        &mut self,
        lane: &Batcher,
        sent: Range<usize>,
        answers: Vec<CommandOutcome>,
        load: &mut Batch,
        left: &mut Vec<usize>,
    ) -> Option<Micros> {
        let (draws, mut time) = (&mut load.draws, None);
        let carried = self.carried[sent.clone()].iter().zip(&self.orders[sent.clone()]);
        for (answer, (parcel, (carried, ordered))) in
            answers.into_iter().zip(self.parcels[sent].iter().zip(carried))
        {
            let ordered = ordered.iter().map(|order| &load.orders[*order]);
            let is_own = matches!(answer, CommandOutcome::Value(_));
            if matches!(answer, CommandOutcome::Torn) && carried.len() > 1 {
                // Each by itself may well be on one server.
                ordered.for_each(|carried| lane.leases.settle_unsent(&carried.order));
                for index in carried {
                    self.bundles[*index].is_apart = true;
                    left.push(*index);
                }
                continue;
            }
            let answer = answer.settle();
            let read = match &answer {
                Ok(Value::BulkString(bytes)) => parcel.read(bytes).map_err(|_| StoreFailure::Refused),
                Ok(_) => Err(StoreFailure::Refused),
                Err(failure) => Err(*failure),
            };
            let mut fates = match read {
                Ok(reply) => {
                    time = if is_own { Some(reply.now()) } else { time };
                    Ok(reply)
                }
                Err(failure) => Err(failure),
            };
            for index in carried {
                let bundle = &mut self.bundles[*index];
                let fate = match &mut fates {
                    Ok(reply) => match reply.next() {
                        Some(Ok(fate)) => Ok(fate),
                        Some(Err(_)) | None => Err(StoreFailure::Refused),
                    },
                    Err(failure) => Err(*failure),
                };
                match fate {
                    Ok(GroupResult::Decided(decided)) => {
                        for (request, group) in (0..).zip(self.binder.members(bundle)) {
                            decided.settle(request, draws.group_mut(group));
                        }
                    }
                    Ok(GroupResult::Again(again)) => {
                        bundle.again = Some(again);
                        left.push(*index);
                    }
                    Ok(GroupResult::Broken) => {
                        fail(draws, self.binder.members(bundle), StoreFailure::Refused)
                    }
                    Ok(GroupResult::Unwritten(code)) => {
                        if is_own {
                            lane.node.note_unwritten(code, bundle.times);
                        }
                        fail(draws, self.binder.members(bundle), StoreFailure::Refused);
                    }
                    Err(failure) => fail(draws, self.binder.members(bundle), failure),
                }
            }
            match &mut fates {
                Ok(reply) => {
                    let at = reply.now();
                    for (carried, lending) in ordered.zip(reply.loans()) {
                        lane.settle(carried, lending, draws, at);
                    }
                }
                // Whether the server has heard of them, nobody knows.
                Err(_) => ordered.for_each(|carried| lane.leases.settle_lost(&carried.order)),
            }
        }
        time
    }

    /// Keeps these bundles alone, which are in order.
    fn keep(&mut self, left: &[usize]) {
        let mut index = 0;
        self.bundles.retain(|_| {
            let is_left = left.binary_search(&index).is_ok();
            index += 1;
            is_left
        });
    }
}

fn fail(draws: &mut Draws, groups: impl Iterator<Item = usize>, failure: StoreFailure) {
    for group in groups {
        draws.fail(group, failure);
    }
}

fn call(parcel: &ScriptCall) -> Cmd {
    let (words, bytes) = parcel.size();
    let mut call = Cmd::with_capacity(words, bytes);
    parcel.write(&mut call);
    call
}

//! Draws on their way to one server.
//!
//! Draws that wait travel together. A server that is idle is asked at once, with what there is; while two calls are in
//! flight, further draws collect until they make a call that is worth it. So a server under load is asked a few large
//! questions instead of many small ones, none of which holds it up for long, and has the next one at hand when it is
//! done with the last. What waits is bounded: beyond that, draws fail at once.

use super::bundle::{Binder, Bundle};
use super::fleet::Fleet;
use super::node::{Answer, Node};
use super::tally::Tally;
use super::wire::{Again, Fate, Parcel};
use ::redis::{Cmd, Value};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tollgate_core::{Clock, Draws, Failure, Micros};

/// How many loads may be in flight at all. The server has work for two milliseconds then.
const IN_FLIGHT: usize = 8;
/// With fewer than this many in flight, a load goes however small it is: while the server works on one, the next is on its
/// way.
const EAGER: usize = 2;
/// The most draws of one call, which then takes the server less than 300 microseconds; with so many, a load is full.
const CALL_DRAWS: usize = 48;
/// The most draws that may wait.
const WAITING_DRAWS: usize = 8192;
/// How often a group is sent again because something was in its way that was looked at here: a state that another quota
/// wrote. While two versions of the rules are in force, several nodes may write in turn.
const TRIES: usize = 4;

/// Draws on their way to one server.
#[derive(Debug)]
pub(super) struct Lane {
    fleet: Arc<Fleet>,
    node: Arc<Node>,
    clock: Arc<dyn Clock>,
    queue: Mutex<Queue>,
    /// Wakes a courier.
    wake: Notify,
    is_closed: AtomicBool,
    tally: Arc<Tally>,
}

/// What waits for a courier.
#[derive(Debug, Default)]
struct Queue {
    /// All but the last are full.
    loads: VecDeque<Load>,
    /// How many draws they have together.
    draws: usize,
    in_flight: usize,
    /// Loads that were carried: once those who waited for one have looked at it, its memory is used again.
    spent: Vec<Arc<Draws>>,
}

/// What travels together.
#[derive(Debug, Default)]
struct Load {
    draws: Draws,
    /// For each group, the slot of its keys.
    slots: Vec<u16>,
    waiters: Vec<oneshot::Sender<Arc<Draws>>>,
    /// When the last of those who wait gives up.
    deadline: Option<Instant>,
}

/// Some draws of a group, for one server.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) group: usize,
    /// Which of its draws; nothing for all of them.
    pub(super) picks: Option<Box<[usize]>>,
    pub(super) slot: u16,
    /// Whether they are only looked at: another draw of the group was refused already.
    pub(super) is_look: bool,
}

impl Part {
    /// A group as it is.
    pub(super) fn whole(group: usize, slot: u16) -> Part {
        Part { group, picks: None, slot, is_look: false }
    }
}

/// What those wait for who have submitted draws.
#[derive(Debug)]
pub(super) struct Ticket {
    /// All draws that travelled together, decided or failed.
    pub(super) decided: oneshot::Receiver<Arc<Draws>>,
    /// Which of the groups there is the first of theirs.
    pub(super) first: usize,
}

impl Lane {
    /// A lane to a server, with its couriers on their way, on the tokio runtime that this is called on.
    pub(super) fn start(
        fleet: Arc<Fleet>,
        node: Arc<Node>,
        clock: Arc<dyn Clock>,
        tally: Arc<Tally>,
    ) -> Arc<Lane> {
        let lane = Arc::new(Lane {
            fleet,
            node,
            clock,
            queue: Mutex::default(),
            wake: Notify::new(),
            is_closed: AtomicBool::new(false),
            tally,
        });
        for _ in 0..IN_FLIGHT {
            tokio::spawn(carry(Arc::clone(&lane)));
        }
        lane
    }

    /// The server it leads to.
    pub(super) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Puts parts of a buffer's groups on the lane.
    pub(super) fn submit(&self, draws: &Draws, parts: &[Part], deadline: Instant) -> Result<Ticket, Failure> {
        let (tell, decided) = oneshot::channel();
        let mut queue = self.queue.lock();
        if queue.draws >= WAITING_DRAWS {
            return Err(Failure::Busy);
        }
        let (is_worth_it, load) = queue.open();
        let (first, before) = (load.draws.len(), load.draws.all().len());
        for part in parts {
            load.draws.begin_with(draws, part.group, part.picks.as_deref(), part.is_look);
            load.slots.push(part.slot);
        }
        load.waiters.push(tell);
        load.deadline = load.deadline.max(Some(deadline));
        let (is_full, added) = (load.is_full(), load.draws.all().len() - before);
        queue.draws += added;
        drop(queue);
        if is_worth_it || is_full {
            self.wake.notify_one();
        }
        Ok(Ticket { decided, first })
    }

    /// Ends it: what waits is still carried, and then its couriers go.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.wake.notify_waiters();
        // For one that was about to wait.
        self.wake.notify_one();
    }

    /// Waits for something to carry; nothing once it is closed.
    async fn next(&self) -> Option<Load> {
        loop {
            if let Some(load) = self.queue.lock().take() {
                return Some(load);
            }
            if self.is_closed.load(Relaxed) {
                self.wake.notify_one();
                return None;
            }
            self.wake.notified().await;
        }
    }

    /// Notes that a load was carried.
    fn done(&self, decided: Arc<Draws>) {
        let mut queue = self.queue.lock();
        queue.in_flight -= 1;
        if queue.spent.len() < IN_FLIGHT {
            queue.spent.push(decided);
        }
    }
}

impl Queue {
    /// A load that takes more, and whether it is a new one that could go as soon as there is something in it.
    fn open(&mut self) -> (bool, &mut Load) {
        let is_new = self.loads.back().is_none_or(Load::is_full);
        if is_new {
            let unused = self.spent.iter_mut().position(|draws| Arc::get_mut(draws).is_some());
            let draws = unused.and_then(|unused| Arc::into_inner(self.spent.swap_remove(unused)));
            self.loads.push_back(Load::new(draws.unwrap_or_default()));
        }
        let could_go = is_new && self.in_flight < EAGER;
        (could_go, self.loads.back_mut().expect("there is a load now, if there was none before"))
    }

    /// The next load, if it is full or there is little in flight. Whoever takes it says when it is [done](Lane::done).
    fn take(&mut self) -> Option<Load> {
        let is_full = self.loads.front()?.is_full();
        if !is_full && self.in_flight >= EAGER {
            return None;
        }
        let load = self.loads.pop_front()?;
        self.draws -= load.draws.all().len();
        self.in_flight += 1;
        Some(load)
    }
}

impl Load {
    fn new(mut draws: Draws) -> Load {
        draws.clear();
        Load { draws, ..Load::default() }
    }

    fn is_full(&self) -> bool {
        self.draws.all().len() >= CALL_DRAWS
    }
}

async fn carry(lane: Arc<Lane>) {
    let mut courier = Courier::default();
    while let Some(mut load) = lane.next().await {
        courier.deliver(&lane, &mut load).await;
        let decided = Arc::new(load.draws);
        for waiter in load.waiters {
            // Whoever gave up does not want to know.
            let _ = waiter.send(Arc::clone(&decided));
        }
        lane.done(decided);
    }
}

/// Carries loads, with buffers that are kept.
#[derive(Debug, Default)]
struct Courier {
    binder: Binder,
    bundles: Vec<Bundle>,
    parcels: Vec<Parcel>,
    /// For each parcel, which bundles it carries.
    carried: Vec<Vec<usize>>,
    /// For each slot, the parcel that is being filled.
    open: HashMap<u16, usize>,
}

impl Courier {
    /// Has all draws of a load decided, or noted as failed.
    async fn deliver(&mut self, lane: &Lane, load: &mut Load) {
        let Some(deadline) = load.deadline else { return };
        self.binder.bind(&load.draws, &load.slots, &mut self.bundles);
        lane.tally.note_load(load.draws.len(), self.bundles.len());
        for _ in 0..TRIES {
            let used = self.pack(lane, &load.draws);
            let calls: Vec<_> = self.parcels[..used].iter().map(call).collect();
            let sent = Instant::now();
            let answers = lane.fleet.exchange(&lane.node, calls, deadline).await;
            let received = Instant::now();
            let left =
                self.unpack(answers, &mut load.draws, |time| lane.node.note_time(sent, received, time));
            self.keep(&left);
            if self.bundles.is_empty() {
                return;
            }
        }
        for bundle in &self.bundles {
            for group in self.binder.members(bundle) {
                load.draws.fail(group, Failure::Busy);
            }
        }
    }

    /// Puts all bundles into parcels and says how many those are. Keys of different slots travel apart, and so does what
    /// stood in each other's way.
    fn pack(&mut self, lane: &Lane, draws: &Draws) -> usize {
        let now = lane.node.clock_ceiling(Instant::now()).unwrap_or_else(|| lane.clock.now());
        let mut used = 0;
        self.open.clear();
        for (index, bundle) in self.bundles.iter().enumerate() {
            let size = draws.group(bundle.first).len();
            let open = self.open.get(&bundle.slot).copied().filter(|_| !bundle.is_apart);
            let open = open.filter(|open| self.parcels[*open].draw_count() + size <= CALL_DRAWS);
            let place = open.unwrap_or_else(|| {
                if used == self.parcels.len() {
                    self.parcels.push(Parcel::new());
                    self.carried.push(Vec::new());
                }
                self.parcels[used].start(bundle.again.as_ref().map_or(now, Again::now));
                self.carried[used].clear();
                if !bundle.is_apart {
                    self.open.insert(bundle.slot, used);
                }
                used += 1;
                used - 1
            });
            match &bundle.again {
                None => self.parcels[place].add(draws, bundle.first, bundle.times),
                Some(again) => self.parcels[place].add_again(draws, bundle.first, bundle.times, again),
            }
            self.carried[place].push(index);
        }
        used
    }

    /// Notes what was decided, and gives the bundles that must be sent again, in order.
    fn unpack(
        &mut self,
        answers: Vec<Answer>,
        draws: &mut Draws,
        note_time: impl FnOnce(Micros),
    ) -> Vec<usize> {
        let (mut left, mut time) = (Vec::new(), None);
        for ((answer, parcel), carried) in answers.into_iter().zip(&self.parcels).zip(&self.carried) {
            if matches!(answer, Answer::Torn) && carried.len() > 1 {
                // Each by itself may well be on one server.
                for index in carried {
                    self.bundles[*index].is_apart = true;
                    left.push(*index);
                }
                continue;
            }
            let answer = answer.settle();
            let read = match &answer {
                Ok(Value::BulkString(bytes)) => parcel.read(bytes).map_err(|_| Failure::Refused),
                Ok(_) => Err(Failure::Refused),
                Err(failure) => Err(*failure),
            };
            let mut fates = match read {
                Ok(reply) => {
                    time = Some(reply.now());
                    Ok(reply)
                }
                Err(failure) => Err(failure),
            };
            for index in carried {
                let bundle = &mut self.bundles[*index];
                let fate = match &mut fates {
                    Ok(reply) => match reply.next() {
                        Some(Ok(fate)) => Ok(fate),
                        Some(Err(_)) | None => Err(Failure::Refused),
                    },
                    Err(failure) => Err(*failure),
                };
                match fate {
                    Ok(Fate::Decided(decided)) => {
                        for (request, group) in (0..).zip(self.binder.members(bundle)) {
                            decided.settle(request, draws.group_mut(group));
                        }
                    }
                    Ok(Fate::Again(again)) => {
                        bundle.again = Some(again);
                        left.push(*index);
                    }
                    Ok(Fate::Broken) => fail(draws, self.binder.members(bundle), Failure::Refused),
                    Err(failure) => fail(draws, self.binder.members(bundle), failure),
                }
            }
        }
        if let Some(time) = time {
            note_time(time);
        }
        // Parcels of different slots were filled in turns.
        left.sort_unstable();
        left
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

fn fail(draws: &mut Draws, groups: impl Iterator<Item = usize>, failure: Failure) {
    for group in groups {
        draws.fail(group, failure);
    }
}

fn call(parcel: &Parcel) -> Cmd {
    let mut call = Cmd::new();
    parcel.write(&mut call);
    call
}

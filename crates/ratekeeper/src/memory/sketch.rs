//! Counting keys for which the table has no room: in cells that several keys share.
//!
//! At the cap, a key that may not be forgotten and can't be kept is counted here. A *region* is a count-min sketch of one limit in
//! one scope: [`ROWS`] rows of cells, each cell a state of that limit. A key has one cell in every row. Each of its cells is an
//! upper bound of what the key has used, so a key is decided by the least used of them, and what it then has used is merged
//! into all ([`Limit::merge`]). So a key may be denied too early, because others share its cells, and never too late.
//!
//! Nothing is ever taken out of a cell: it drains as its limit does. A region is dropped once all its cells have drained.
//! Regions have a fixed size, and their number is bounded, in total and for each scope: a flood on one rule fills the region of
//! that rule and no other.

use parking_lot::{Mutex, RwLock};
use ratekeeper_core::{Amount, DrawOutcome, DrawResult, Limit, LimitStatus, Micros, Scope, State};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Cells of a key. Four make it rare that all are shared with a busy key before a region is as full as it can be of use.
const ROWS: usize = 4;
/// The most regions: so many limits may be flooded with keys at the same time.
pub(super) const REGIONS: usize = 32;
/// The most of them in one scope, so that limits that come with requests leave enough to rules.
const SCOPE_REGIONS: usize = 8;
const FEWEST_CELLS: usize = 256;
const MOST_CELLS: usize = 1 << 16;
/// A region has a cell for so many keys of the table.
const KEYS_A_CELL: usize = 64;

/// The regions of a store.
#[derive(Debug)]
pub(super) struct Sketch {
    /// Cells of each region.
    cells: usize,
    regions: RwLock<Vec<Region>>,
    /// How many there are, to be read without the lock.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Region {
    scope: Scope,
    limit: Limit,
    cells: Mutex<RegionCells>,
}

#[derive(Debug)]
struct RegionCells {
    states: Box<[[u64; 2]]>,
    /// When all of them will have drained.
    busy_until: Micros,
}

impl Sketch {
    /// Cells of each region of a store for so many keys: a power of two.
    pub(super) fn cells_for(keys: usize) -> usize {
        (keys / KEYS_A_CELL).next_power_of_two().clamp(FEWEST_CELLS, MOST_CELLS)
    }

    /// The most bytes of a sketch whose regions have so many cells.
    pub(super) fn bytes(cells: usize) -> usize {
        REGIONS * cells * size_of::<[u64; 2]>()
    }

    pub(super) fn new(cells: usize) -> Sketch {
        Sketch { cells, regions: RwLock::default(), count: AtomicUsize::new(0) }
    }

    /// How many regions there are.
    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// At most what a key has used of a limit; `None` if nothing.
    ///
    /// What was counted under other limits of the scope is adopted, as it is for a key in the table.
    #[inline]
    pub(super) fn estimate(&self, scope: Scope, limit: &Limit, mark: u64, now: Micros) -> Option<State> {
        if self.count() == 0 { None } else { self.estimate_in_regions(scope, limit, mark, now) }
    }

    #[cold]
    fn estimate_in_regions(&self, scope: Scope, limit: &Limit, mark: u64, now: Micros) -> Option<State> {
        let regions = self.regions.read();
        let own = regions.iter().filter(|region| region.scope == scope);
        let estimates = own.filter_map(|region| {
            let least = region.least(mark, now)?;
            if region.limit == *limit { Some(least) } else { limit.adopt(least, &region.limit, now) }
        });
        estimates.reduce(|one, other| limit.merge(one, other, now))
    }

    /// Counts that a key has used as much of a limit as `state` says. Returns `false` if there is no region for the limit.
    #[must_use]
    pub(super) fn charge(&self, scope: Scope, limit: &Limit, mark: u64, state: State, now: Micros) -> bool {
        let is_own = |region: &&Region| region.scope == scope && region.limit == *limit;
        if let Some(region) = self.regions.read().iter().find(is_own) {
            region.charge(mark, state, now);
            return true;
        }
        let mut regions = self.regions.write();
        regions.retain(|region| region.is_busy(now));
        let held = regions.iter().filter(|region| region.scope == scope).count();
        let is_known = regions.iter().any(|region| is_own(&region));
        if !is_known && regions.len() < REGIONS && held < SCOPE_REGIONS {
            regions.extend(Region::new(scope, *limit, self.cells));
        }
        self.count.store(regions.len(), Relaxed);
        let region = regions.iter().find(is_own);
        region.inspect(|region| region.charge(mark, state, now)).is_some()
    }

    /// Drops the regions that have drained.
    pub(super) fn sweep(&self, now: Micros) {
        if self.count() > 0 {
            let mut regions = self.regions.write();
            regions.retain(|region| region.is_busy(now));
            self.count.store(regions.len(), Relaxed);
        }
    }
}

impl Region {
    /// An empty region. Returns `None` if there is no memory for it.
    fn new(scope: Scope, limit: Limit, cells: usize) -> Option<Region> {
        let states = bytemuck::allocation::try_zeroed_slice_box(cells).ok()?;
        Some(Region { scope, limit, cells: Mutex::new(RegionCells { states, busy_until: Micros::EPOCH }) })
    }

    fn is_busy(&self, now: Micros) -> bool {
        now < self.cells.lock().busy_until
    }

    /// The least used of a key's cells; `None` if it has drained.
    fn least(&self, mark: u64, now: Micros) -> Option<State> {
        let cells = self.cells.lock();
        let states = places(mark, cells.states.len()).map(|place| {
            let [first, second] = cells.states[place];
            State::new(first, second)
        });
        let least = states.into_iter().min_by_key(|state| self.limit.fill(*state, now));
        least.filter(|state| !self.limit.is_drained(*state, now))
    }

    fn charge(&self, mark: u64, state: State, now: Micros) {
        let mut cells = self.cells.lock();
        for place in places(mark, cells.states.len()) {
            let [first, second] = cells.states[place];
            let (first, second) = self.limit.merge(State::new(first, second), state, now).numbers();
            cells.states[place] = [first, second];
            let outcome = DrawResult::of_state(DrawOutcome::Spared, now, State::new(first, second));
            let drained_in = LimitStatus::new(&self.limit, Amount::PEEK, outcome).reset();
            cells.busy_until = cells.busy_until.max(now.plus(drained_in));
        }
    }
}

/// Where a key's cells are, one in each row. Marks are secret hashes: nobody outside can have two keys meet.
fn places(mark: u64, cells: usize) -> [usize; ROWS] {
    let width = cells / ROWS;
    let mut mixed = mark;
    std::array::from_fn(|row| {
        // A step of splitmix64: each row has a hash of its own.
        mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut hash = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let slot = usize::try_from((hash ^ hash >> 31) & (width as u64 - 1)).unwrap_or(0);
        row * width + slot
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper_core::{Algorithm, Align, Leak, Span, Zone};
    use std::collections::HashMap;

    const START: Micros = Micros::new(1_700_000_000_000_000);

    /// However many keys share cells, and whatever the law: no key is granted more than it would be alone.
    #[test]
    fn a_key_is_never_granted_more_than_its_limit_allows() {
        let laws = [
            (Algorithm::TokenBucket, "5/min burst 7"),
            (Algorithm::LeakyBucket(Leak::Meter), "5/min burst 3"),
            (Algorithm::FixedWindow(Align::Wall(Zone::UTC)), "5/min"),
            (Algorithm::FixedWindow(Align::FirstHit), "5/min"),
            (Algorithm::SlidingWindowCounter, "5/min"),
        ];
        for (law, quota) in laws {
            let limit = Limit::new(law, quota.parse().unwrap()).unwrap();
            let sketch = Sketch::new(FEWEST_CELLS);
            let mut alone: HashMap<u64, State> = HashMap::new();
            let (mut random, mut now, mut granted) = (7_u64, START, 0);
            for _ in 0..200_000 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let mark = (random >> 33) % 300;
                now = now.plus(Span::micros((random >> 20) % 100_000));
                let ask = Amount::exactly(1 + ((random >> 55) % 3) as u32);
                let step = limit.step(sketch.estimate(Scope(1), &limit, mark, now), now, ask);
                if step.granted.is_none() {
                    continue;
                }
                assert!(sketch.charge(Scope(1), &limit, mark, limit.prolong(step.state, now), now));
                let exact = limit.step(alone.get(&mark).copied(), now, ask);
                assert!(exact.granted.is_some(), "{law:?}: key {mark} was granted too much");
                alone.insert(mark, exact.state);
                granted += 1;
            }
            assert!(granted > 1000, "{law:?}: {granted}");
        }
    }

    #[test]
    fn a_region_goes_when_it_has_drained_and_no_scope_has_them_all() {
        let limit =
            |amount: u32| Limit::new(Algorithm::TokenBucket, format!("{amount}/h").parse().unwrap()).unwrap();
        let sketch = Sketch::new(FEWEST_CELLS);
        let charge = |scope: u64, amount: u32, now: Micros| {
            let limit = limit(amount);
            sketch.charge(Scope(scope), &limit, 9, limit.step(None, now, Amount::exactly(amount)).state, now)
        };
        let taken = (1..100).filter(|amount| charge(1, *amount, START)).count();
        assert_eq!(taken, SCOPE_REGIONS);
        let others = (2..100).filter(|scope| charge(*scope, 5, START)).count();
        assert_eq!(others, REGIONS - SCOPE_REGIONS);
        assert!(charge(1, 3, START), "one that is there is charged again");
        assert!(
            sketch.estimate(Scope(1), &limit(99), 9, START).is_some(),
            "another limit of the scope adopts it"
        );
        assert_eq!(sketch.estimate(Scope(200), &limit(5), 9, START), None);
        let later = START.plus(Span::HOUR);
        sketch.sweep(later);
        assert_eq!((sketch.count(), sketch.estimate(Scope(2), &limit(5), 9, later)), (0, None));
        assert!(charge(200, 5, later));
    }
}

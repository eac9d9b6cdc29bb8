//! A count-min sketch for keys that do not fit into the table: several keys share a cell.
//!
//! At capacity, a key that may not be evicted and can't be kept in the table is counted here. A *region* is the sketch
//! of one limit in one scope: [`ROWS`] rows of cells, each cell a state of that limit. A key has one cell in every row.
//! Each of its cells is an upper bound of what the key has used, so a key is decided by its least used cell, and the
//! resulting state is merged into all of them ([`Limit::merge`]). So a key may be denied too early, because others
//! share its cells, but never too late.
//!
//! Nothing is ever removed from a cell: it drains as its limit does. A region is dropped once all its cells have
//! drained. Regions have a fixed size, and their number is bounded in total and per scope: a flood on one rule fills
//! the region of that rule and no other.

use parking_lot::{Mutex, RwLock};
use ratekeeper_core::{Amount, DrawOutcome, DrawResult, Limit, LimitStatus, Micros, Scope, State};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Cells per key. With four it is rare that all are shared with a busy key before the region is too full to be of use.
const ROWS: usize = 4;
/// The maximum number of regions, and so of limits that can be flooded with keys at the same time.
pub(super) const MAX_REGIONS: usize = 32;
/// The maximum number of regions per scope, so that inline limits leave enough for rules.
const MAX_SCOPE_REGIONS: usize = 8;
const MIN_CELLS: usize = 256;
const MAX_CELLS: usize = 1 << 16;
/// Keys of the table per cell of a region.
const KEYS_PER_CELL: usize = 64;

/// The sketch of a store: its regions.
#[derive(Debug)]
pub(super) struct Sketch {
    /// Cells per region.
    cells: usize,
    regions: RwLock<Vec<Region>>,
    /// The number of regions, readable without the lock.
    count: AtomicUsize,
}

/// The sketch of one limit in one scope.
#[derive(Debug)]
struct Region {
    scope: Scope,
    limit: Limit,
    cells: Mutex<RegionCells>,
}

#[derive(Debug)]
struct RegionCells {
    states: Box<[[u64; 2]]>,
    /// When all cells will have drained.
    busy_until: Micros,
}

impl Sketch {
    /// Cells per region of a store for `keys` keys: a power of two.
    pub(super) fn cells_for(keys: usize) -> usize {
        (keys / KEYS_PER_CELL).next_power_of_two().clamp(MIN_CELLS, MAX_CELLS)
    }

    /// The maximum size in bytes of a sketch with `cells` cells per region.
    pub(super) fn bytes(cells: usize) -> usize {
        MAX_REGIONS * cells * size_of::<[u64; 2]>()
    }

    pub(super) fn new(cells: usize) -> Sketch {
        Sketch { cells, regions: RwLock::default(), count: AtomicUsize::new(0) }
    }

    /// The number of regions.
    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// An upper bound of what a key has used of a limit. Returns `None` if it has used nothing.
    ///
    /// States counted under other limits of the scope are adopted, as for a key in the table.
    #[inline]
    pub(super) fn estimate(
        &self,
        scope: Scope,
        limit: &Limit,
        fingerprint: u64,
        now: Micros,
    ) -> Option<State> {
        if self.count() == 0 { None } else { self.estimate_in_regions(scope, limit, fingerprint, now) }
    }

    #[cold]
    fn estimate_in_regions(
        &self,
        scope: Scope,
        limit: &Limit,
        fingerprint: u64,
        now: Micros,
    ) -> Option<State> {
        let regions = self.regions.read();
        let own = regions.iter().filter(|region| region.scope == scope);
        let estimates = own.filter_map(|region| {
            let least = region.least_used(fingerprint, now)?;
            if region.limit == *limit { Some(least) } else { limit.adopt(least, &region.limit, now) }
        });
        estimates.reduce(|one, other| limit.merge(one, other, now))
    }

    /// Merges the state of a key into its cells. Returns `false` if the limit has no region and none can be added.
    #[must_use]
    pub(super) fn charge(
        &self,
        scope: Scope,
        limit: &Limit,
        fingerprint: u64,
        state: State,
        now: Micros,
    ) -> bool {
        let is_own = |region: &&Region| region.scope == scope && region.limit == *limit;
        if let Some(region) = self.regions.read().iter().find(is_own) {
            region.charge(fingerprint, state, now);
            return true;
        }
        let mut regions = self.regions.write();
        regions.retain(|region| region.is_busy(now));
        let of_scope = regions.iter().filter(|region| region.scope == scope).count();
        let is_known = regions.iter().any(|region| is_own(&region));
        if !is_known && regions.len() < MAX_REGIONS && of_scope < MAX_SCOPE_REGIONS {
            regions.extend(Region::new(scope, *limit, self.cells));
        }
        self.count.store(regions.len(), Relaxed);
        let region = regions.iter().find(is_own);
        region.inspect(|region| region.charge(fingerprint, state, now)).is_some()
    }

    /// Drops drained regions.
    pub(super) fn sweep(&self, now: Micros) {
        if self.count() > 0 {
            let mut regions = self.regions.write();
            regions.retain(|region| region.is_busy(now));
            self.count.store(regions.len(), Relaxed);
        }
    }
}

impl Region {
    /// Creates an empty region. Returns `None` if it can't be allocated.
    fn new(scope: Scope, limit: Limit, cells: usize) -> Option<Region> {
        let states = bytemuck::allocation::try_zeroed_slice_box(cells).ok()?;
        Some(Region { scope, limit, cells: Mutex::new(RegionCells { states, busy_until: Micros::EPOCH }) })
    }

    fn is_busy(&self, now: Micros) -> bool {
        now < self.cells.lock().busy_until
    }

    /// The least used of a key's cells. Returns `None` if it has drained.
    fn least_used(&self, fingerprint: u64, now: Micros) -> Option<State> {
        let cells = self.cells.lock();
        let states = cell_indices(fingerprint, cells.states.len()).map(|index| {
            let [first, second] = cells.states[index];
            State::new(first, second)
        });
        let least = states.into_iter().min_by_key(|state| self.limit.fill_per_mille(*state, now));
        least.filter(|state| !self.limit.is_expired(*state, now))
    }

    fn charge(&self, fingerprint: u64, state: State, now: Micros) {
        let mut cells = self.cells.lock();
        for index in cell_indices(fingerprint, cells.states.len()) {
            let [first, second] = cells.states[index];
            let (first, second) = self.limit.merge(State::new(first, second), state, now).numbers();
            cells.states[index] = [first, second];
            let result = DrawResult::from_state(DrawOutcome::WouldGrant, now, State::new(first, second));
            let drained_in = LimitStatus::new(&self.limit, Amount::ZERO, result).reset();
            cells.busy_until = cells.busy_until.max(now.plus(drained_in));
        }
    }
}

/// The indices of a key's cells, one in each row. Fingerprints are secret hashes, so an attacker can't make keys
/// collide.
fn cell_indices(fingerprint: u64, cells: usize) -> [usize; ROWS] {
    let width = cells / ROWS;
    let mut mixed = fingerprint;
    std::array::from_fn(|row| {
        // One step of splitmix64: an independent hash for each row.
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

    /// However many keys share cells, and whatever the algorithm, no key is granted more than it would be alone.
    #[test]
    fn a_key_is_never_granted_more_than_its_limit_allows() {
        let algorithms = [
            (Algorithm::TokenBucket, "5/min burst 7"),
            (Algorithm::LeakyBucket(Leak::Meter), "5/min burst 3"),
            (Algorithm::FixedWindow(Align::WallClock(Zone::UTC)), "5/min"),
            (Algorithm::FixedWindow(Align::FirstHit), "5/min"),
            (Algorithm::SlidingWindowCounter, "5/min"),
        ];
        for (algorithm, quota) in algorithms {
            let limit = Limit::new(algorithm, quota.parse().unwrap()).unwrap();
            let sketch = Sketch::new(MIN_CELLS);
            let mut alone: HashMap<u64, State> = HashMap::new();
            let (mut random, mut now, mut granted) = (7_u64, START, 0);
            for _ in 0..200_000 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let fingerprint = (random >> 33) % 300;
                now = now.plus(Span::micros((random >> 20) % 100_000));
                let amount = Amount::exactly(1 + ((random >> 55) % 3) as u32);
                let step = limit.step(sketch.estimate(Scope(1), &limit, fingerprint, now), now, amount);
                if step.granted.is_none() {
                    continue;
                }
                assert!(sketch.charge(
                    Scope(1),
                    &limit,
                    fingerprint,
                    limit.extend_window(step.state, now),
                    now
                ));
                let exact = limit.step(alone.get(&fingerprint).copied(), now, amount);
                assert!(exact.granted.is_some(), "{algorithm:?}: key {fingerprint} was granted too much");
                alone.insert(fingerprint, exact.state);
                granted += 1;
            }
            assert!(granted > 1000, "{algorithm:?}: {granted}");
        }
    }

    #[test]
    fn drained_regions_are_dropped_and_regions_are_bounded_per_scope() {
        let limit =
            |amount: u32| Limit::new(Algorithm::TokenBucket, format!("{amount}/h").parse().unwrap()).unwrap();
        let sketch = Sketch::new(MIN_CELLS);
        let charge = |scope: u64, amount: u32, now: Micros| {
            let limit = limit(amount);
            sketch.charge(Scope(scope), &limit, 9, limit.step(None, now, Amount::exactly(amount)).state, now)
        };
        let taken = (1..100).filter(|amount| charge(1, *amount, START)).count();
        assert_eq!(taken, MAX_SCOPE_REGIONS);
        let others = (2..100).filter(|scope| charge(*scope, 5, START)).count();
        assert_eq!(others, MAX_REGIONS - MAX_SCOPE_REGIONS);
        assert!(charge(1, 3, START), "an existing region is charged again");
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

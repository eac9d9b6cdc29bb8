//! How much a memory store may hold.

use super::sketch::Sketch;
use super::table::TableGeometry;

/// How much a memory store may hold: so many keys, and perhaps so many bytes, whichever is reached first.
///
/// The cap is divided among the store's shards, and keys fall on them by chance: the fullest shard is full when the
/// store as a whole has reached some 95 % of its cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    keys: usize,
    bytes: usize,
}

impl Capacity {
    /// A million keys, which take 30 MB.
    pub const DEFAULT: Capacity = Capacity::keys(1_000_000);

    /// At most so many keys.
    pub const fn keys(keys: usize) -> Capacity {
        Capacity { keys, bytes: usize::MAX }
    }

    /// And at most so many bytes for their table, and for the cells that keys share once it is full.
    pub const fn and_bytes(self, bytes: usize) -> Capacity {
        Capacity { bytes, ..self }
    }

    /// The largest table within both bounds.
    pub(super) fn geometry(self) -> Result<TableGeometry, CapacityError> {
        if self.keys == 0 {
            return Err(CapacityError::NoKeys);
        }
        // A larger table than the address space is refused when it is asked for.
        let mut keys = self.keys.min(usize::MAX >> 10);
        while bytes(&TableGeometry::for_keys(keys)) > self.bytes {
            // A sixty-fourth less each time: the bound is met within 2 %.
            keys -= keys.div_ceil(64);
            if keys == 0 {
                return Err(CapacityError::NoRoom { least: bytes(&TableGeometry::for_keys(1)) });
            }
        }
        Ok(TableGeometry::for_keys(keys))
    }
}

/// The most memory that a store of this geometry takes for states: in the table, and in the sketch.
pub(super) fn bytes(geometry: &TableGeometry) -> usize {
    geometry.bytes() + Sketch::bytes(Sketch::cells_for(geometry.shards * geometry.keys))
}

impl Default for Capacity {
    fn default() -> Capacity {
        Capacity::DEFAULT
    }
}

/// Why a store of that cap can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CapacityError {
    /// No keys at all.
    #[error("a cap of 0 keys remembers nobody: allow at least 1 key; a million take 30 MB")]
    NoKeys,
    /// Too few bytes.
    #[error(
        "the cap in bytes leaves no room for a single key: allow at least {least} bytes; a million keys take 30 MB"
    )]
    NoRoom {
        /// The least that will do.
        least: usize,
    },
    /// Too many bytes.
    #[error("the system won't lend {bytes} bytes for the table: allow fewer keys; a million take 30 MB")]
    TooLarge {
        /// What was asked for.
        bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryStore, SystemClock};

    #[test]
    fn both_bounds_hold_and_little_is_wasted() {
        for keys in [1, 2, 15, 16, 255, 1000, 4097, 100_000, 1_000_000, 10_000_000, 123_456_789] {
            let geometry = Capacity::keys(keys).geometry().unwrap();
            assert!(geometry.shards * geometry.keys <= keys, "{keys}: {geometry:?}");
            assert!(geometry.shards * geometry.keys * 100 >= keys * 93, "{keys}: {geometry:?}");
        }
        for bytes in [1 << 20, 50 << 20, 500 << 20] {
            let geometry = Capacity::keys(usize::MAX).and_bytes(bytes).geometry().unwrap();
            assert!(super::bytes(&geometry) <= bytes);
            assert!(super::bytes(&geometry) * 100 >= bytes * 93, "{bytes}: {geometry:?}");
        }
        assert!(Capacity::DEFAULT.geometry().unwrap().bytes() < 35_000_000);
        let large = super::bytes(&Capacity::keys(10_000_000).geometry().unwrap());
        assert!(large < 340_000_000, "ten million keys take {large} bytes at the most");
    }

    #[test]
    fn an_impossible_cap_says_what_is_possible() {
        let store = |cap| MemoryStore::with(SystemClock::new(), cap).map(drop);
        assert_eq!(store(Capacity::keys(0)), Err(CapacityError::NoKeys));
        assert!(matches!(store(Capacity::keys(5).and_bytes(10)), Err(CapacityError::NoRoom { .. })));
        assert!(matches!(store(Capacity::keys(usize::MAX)), Err(CapacityError::TooLarge { .. })));
    }
}

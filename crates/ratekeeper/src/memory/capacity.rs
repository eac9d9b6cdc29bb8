//! The capacity of a memory store.

use super::geometry::TableGeometry;
use super::sketch::Sketch;

/// The capacity of a memory store: a number of keys, and optionally of bytes, whichever is reached first.
///
/// The capacity is divided among the store's shards, and keys are distributed by their hash: the fullest shard is full
/// when the store as a whole has reached some 95 % of its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    keys: usize,
    bytes: usize,
}

impl Capacity {
    /// A million keys, which take 30 MB.
    pub const DEFAULT: Capacity = Capacity::keys(1_000_000);

    /// At most `keys` keys.
    pub const fn keys(keys: usize) -> Capacity {
        Capacity { keys, bytes: usize::MAX }
    }

    /// Also bounds the memory for the table and the sketch to `bytes`.
    pub const fn and_bytes(self, bytes: usize) -> Capacity {
        Capacity { bytes, ..self }
    }

    /// The largest table within both bounds.
    pub(super) fn geometry(self) -> Result<TableGeometry, CapacityError> {
        if self.keys == 0 {
            return Err(CapacityError::ZeroKeys);
        }
        // A table larger than the address space fails later, when it is allocated.
        let mut keys = self.keys.min(usize::MAX >> 10);
        while bytes(&TableGeometry::for_keys(keys)) > self.bytes {
            // Shrinks by 1/64 each time, so the result is within 2 % of the bound.
            keys -= keys.div_ceil(64);
            if keys == 0 {
                return Err(CapacityError::TooSmall { least: bytes(&TableGeometry::for_keys(1)) });
            }
        }
        Ok(TableGeometry::for_keys(keys))
    }
}

/// The maximum memory for states of a store with this geometry: the table and the sketch.
pub(super) fn bytes(geometry: &TableGeometry) -> usize {
    geometry.bytes() + Sketch::bytes(Sketch::cells_for(geometry.shards * geometry.keys))
}

impl Default for Capacity {
    fn default() -> Capacity {
        Capacity::DEFAULT
    }
}

/// Why a [`Capacity`] is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CapacityError {
    /// The capacity is 0 keys.
    #[error("a capacity of 0 keys can't hold any state: allow at least 1 key; a million take 30 MB")]
    ZeroKeys,
    /// The bound in bytes is too small for one key.
    #[error(
        "the capacity in bytes is too small for a single key: allow at least {least} bytes; a million keys take 30 MB"
    )]
    TooSmall {
        /// The smallest valid bound.
        least: usize,
    },
    /// The table can't be allocated.
    #[error("cannot allocate {bytes} bytes for the table: allow fewer keys; a million take 30 MB")]
    TooLarge {
        /// The size of the table.
        bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryStore, SystemClock};

    #[test]
    fn geometry_stays_within_both_bounds_and_wastes_little() {
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
        assert!(large < 340_000_000, "ten million keys take up to {large} bytes");
    }

    #[test]
    fn an_invalid_capacity_is_rejected() {
        let store = |capacity| MemoryStore::with(SystemClock::new(), capacity).map(drop);
        assert_eq!(store(Capacity::keys(0)), Err(CapacityError::ZeroKeys));
        assert!(matches!(store(Capacity::keys(5).and_bytes(10)), Err(CapacityError::TooSmall { .. })));
        assert!(matches!(store(Capacity::keys(usize::MAX)), Err(CapacityError::TooLarge { .. })));
    }
}

//! One share of what several nodes divide among them.

/// What one of `nodes` has of `units`: rounded down, so that all have no more than there is, but never nothing, since a
/// limit of nothing would refuse everybody.
pub(crate) fn portion(units: u32, nodes: u32) -> u32 {
    (units / nodes.max(1)).max(1)
}

/// How a state passes from a limit divided among some nodes to the same limit divided among others; 1 is the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareChange {
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl ShareChange {
    /// Whether both are divided alike.
    pub(crate) fn is_level(self) -> bool {
        self.from == self.to
    }

    /// What becomes of so many units of one share, rounded down.
    pub(crate) fn down(self, units: u32) -> u32 {
        let passed = u64::from(units) * u64::from(self.from) / u64::from(self.to);
        u32::try_from(passed).unwrap_or(u32::MAX)
    }

    /// What becomes of so many units of one share, rounded up.
    pub(crate) fn up(self, units: u32) -> u32 {
        let passed = (u64::from(units) * u64::from(self.from)).div_ceil(u64::from(self.to));
        u32::try_from(passed).unwrap_or(u32::MAX)
    }
}

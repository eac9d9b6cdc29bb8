//! Division of a limit among several nodes.

/// Returns the share of `units` for one of `nodes`: rounded down, so that all shares together don't exceed the
/// total, but at least 1, because a limit of 0 would deny everything.
pub(crate) fn share_of(units: u32, nodes: u32) -> u32 {
    (units / nodes.max(1)).max(1)
}

/// A change in the number of shares that a limit is divided into; 1 is the whole limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareChange {
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl ShareChange {
    /// Returns whether the number of shares stays the same.
    pub(crate) fn is_unchanged(self) -> bool {
        self.from == self.to
    }

    /// Converts units of one old share into units of one new share, rounded down.
    pub(crate) fn scale_down(self, units: u32) -> u32 {
        let scaled = u64::from(units) * u64::from(self.from) / u64::from(self.to);
        u32::try_from(scaled).unwrap_or(u32::MAX)
    }

    /// Converts units of one old share into units of one new share, rounded up.
    pub(crate) fn scale_up(self, units: u32) -> u32 {
        let scaled = (u64::from(units) * u64::from(self.from)).div_ceil(u64::from(self.to));
        u32::try_from(scaled).unwrap_or(u32::MAX)
    }
}

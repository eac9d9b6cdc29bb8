//! Use of this process's memory for states.

/// Usage and eviction counters of a [`MemoryStore`](crate::MemoryStore).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The number of states in the table: one for each pair of key and limit.
    pub keys: usize,
    /// The maximum of `keys`.
    pub max_keys: usize,
    /// The number of list states: sliding logs and permit lists, which are kept beside the table.
    pub list_states: usize,
    /// The number of entries in list states: runs of units admitted at the same time, and permits.
    pub list_entries: usize,
    /// The maximum of `list_entries`.
    pub max_list_entries: usize,
    /// The maximum memory for states in bytes: the table, and the sketch that is used once the table is full.
    pub max_bytes: usize,
    /// States evicted at capacity before they had drained, each with less than half of its limit used.
    pub evicted: u64,
    /// States moved to the sketch at capacity.
    pub moved_to_sketch: u64,
    /// States dropped because their scope had too many limits and theirs was among the least recently written.
    pub retired: u64,
    /// Draws decided by the sketch, whose cells are shared by several keys. They may be denied too early, never too
    /// late.
    pub sketch_decisions: u64,
    /// Draws that could not be counted at all and were answered by their failure mode.
    pub uncounted: u64,
    /// Whether the sketch decided a draw within the last ten seconds.
    pub is_sketching: bool,
    /// Whether a draw could not be counted at all within the last ten seconds.
    pub is_full: bool,
    /// The number of limits in use, counted per scope.
    pub limits: usize,
    /// The maximum of `limits`.
    pub max_limits: usize,
    /// Limits dropped because their scope had too many.
    pub limits_retired: u64,
}

impl MemoryStats {
    /// Returns a warning if memory for counters is full, or was within the last ten seconds.
    pub fn warning(&self) -> Option<&'static str> {
        match (self.is_full, self.is_sketching) {
            (true, _) => Some("full: some checks can't be counted, and on_store_failure decides"),
            (false, true) => Some("full: new keys of busy rules share counters, and may be denied too early"),
            (false, false) => None,
        }
    }
}

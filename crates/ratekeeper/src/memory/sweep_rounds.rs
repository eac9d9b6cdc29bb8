//! Visits all shards in rounds, from any number of threads.

use super::sync::Mutex;

/// The next shard to visit, and the number visited in this round.
#[derive(Debug)]
pub(crate) struct SweepRounds {
    progress: Mutex<SweepProgress>,
    shards: usize,
}

#[derive(Debug)]
struct SweepProgress {
    started: usize,
    done: usize,
}

impl SweepRounds {
    pub(crate) fn new(shards: usize) -> SweepRounds {
        SweepRounds { progress: Mutex::new(SweepProgress { started: 0, done: 0 }), shards }
    }

    /// Visits up to `visits` of the next shards, one after the other, and calls `end` when all shards of a round have
    /// been visited. Several threads may call this at the same time: each shard is visited once per round, and a round
    /// ends before the next begins.
    pub(crate) fn advance(&self, visits: usize, mut visit: impl FnMut(usize), mut end: impl FnMut()) {
        for _ in 0..visits.min(self.shards) {
            let next = {
                let mut progress = self.progress.lock();
                // Other threads are still visiting the last shards of the round.
                if progress.started == self.shards {
                    return;
                }
                progress.started += 1;
                progress.started - 1
            };
            visit(next);
            let is_over = {
                let mut progress = self.progress.lock();
                progress.done += 1;
                progress.done == self.shards
            };
            if is_over {
                end();
                *self.progress.lock() = SweepProgress { started: 0, done: 0 };
            }
        }
    }
}

//! Visiting all shards in rounds, by whoever sweeps.

use super::sync::Mutex;

/// Which shard is visited next, and how many of this round were.
#[derive(Debug)]
pub(crate) struct SweepRounds {
    progress: Mutex<SweepProgress>,
    shards: usize,
}

#[derive(Debug)]
struct SweepProgress {
    begun: usize,
    done: usize,
}

impl SweepRounds {
    pub(crate) fn new(shards: usize) -> SweepRounds {
        SweepRounds { progress: Mutex::new(SweepProgress { begun: 0, done: 0 }), shards }
    }

    /// Has up to `visits` of the next shards visited, one after the other, and `end` called when all of a round have been. Several
    /// threads may call this at the same time; each shard is visited once a round, and a round ends before the next begins.
    pub(crate) fn go_on(&self, visits: usize, mut visit: impl FnMut(usize), mut end: impl FnMut()) {
        for _ in 0..visits.min(self.shards) {
            let next = {
                let mut progress = self.progress.lock();
                // Another thread is still at the last ones of the round.
                if progress.begun == self.shards {
                    return;
                }
                progress.begun += 1;
                progress.begun - 1
            };
            visit(next);
            let is_over = {
                let mut progress = self.progress.lock();
                progress.done += 1;
                progress.done == self.shards
            };
            if is_over {
                end();
                *self.progress.lock() = SweepProgress { begun: 0, done: 0 };
            }
        }
    }
}

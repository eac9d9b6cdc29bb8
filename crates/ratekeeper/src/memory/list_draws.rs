//! Draws from limits whose algorithm keeps a list per key.
//!
//! At the bound of a shard's lists, drained lists are dropped first. If that is not enough, the newest unit of a known
//! log takes over the entry of the unit before it, which then counts for as long as the new one. A log that is not
//! known is replaced by a [stand-in bucket](stand_in_bucket), which is counted in the [sketch](super::sketch). Permits
//! can be neither merged nor counted approximately: their draws are answered by their failure mode.

use super::MemoryStore;
use super::decide::{DrawTarget, UndoStep};
use super::shard::ShardGuard;
use ratekeeper_core::{
    Algorithm, Amount, Clock, DrawOutcome, DrawResult, Limit, LimitStatus, ListState, Micros, Op, PermitId,
    Quota,
};

impl<C: Clock> MemoryStore<C> {
    /// Decides a draw of a limit whose algorithm keeps a list.
    #[cold]
    pub(super) fn apply_to_list(
        &self,
        shard: &ShardGuard<'_>,
        target: &DrawTarget<'_>,
        op: Op,
        permit: PermitId,
        now: Micros,
    ) -> (DrawResult, UndoStep) {
        let DrawTarget { key_hash, scope, limit, .. } = *target;
        let bound = shard.geometry.keys;
        let mut lists = shard.lists();
        let (written_under, mut list) =
            lists.remove(key_hash.fingerprint).unwrap_or_else(|| (*limit, limit.new_list()));
        limit.adopt_list(&mut list, &written_under, now);
        limit.expire_list(&mut list, now);
        let before = list.entries();
        if before == 0
            && let Some(decided) = self.apply_to_stand_in(target, op, false, now)
        {
            return decided;
        }
        let mut undo = UndoStep::Nothing;
        let result = match op {
            Op::Take(amount) => {
                let granted = limit.step_list(&mut list, now, amount, permit);
                if let Some(units) = granted.filter(|units| *units > 0) {
                    undo = UndoStep::ReturnUnits(units);
                }
                limit.list_result(
                    &list,
                    now,
                    amount,
                    granted.map_or(DrawOutcome::Denied, DrawOutcome::Granted),
                )
            }
            Op::Peek(amount) => limit.peek_list(&list, now, amount),
            Op::Refund(units) => {
                limit.refund_list(&mut list, units, permit);
                // A log's time never runs behind its newest unit. Without that unit it may be earlier, so units that
                // had expired may count again.
                limit.expire_list(&mut list, now);
                limit.peek_list(&list, now, Amount::ZERO)
            }
            Op::Reset => {
                list = limit.new_list();
                limit.peek_list(&list, now, Amount::ZERO)
            }
        };
        if let (UndoStep::ReturnUnits(units), Op::Take(amount)) = (undo, op)
            && list.entries() > before
            && !lists.fits_after_sweep(list.entries(), scope, bound, now)
            && !join_newest(&mut list)
        {
            limit.refund_list(&mut list, units, permit);
            lists.insert(key_hash.fingerprint, scope, *limit, list);
            let decided = self.apply_to_stand_in(target, op, true, now);
            return decided.unwrap_or_else(|| self.take_uncounted(target, amount, now));
        }
        lists.insert(key_hash.fingerprint, scope, *limit, list);
        (result, undo)
    }

    /// Decides a draw by the stand-in bucket of its limit, if it `must` be or the key is counted there already. Returns
    /// `None` otherwise, or if the limit has no stand-in.
    fn apply_to_stand_in(
        &self,
        target: &DrawTarget<'_>,
        op: Op,
        must: bool,
        now: Micros,
    ) -> Option<(DrawResult, UndoStep)> {
        let (Op::Take(amount) | Op::Peek(amount)) = op else { return None };
        if !must && self.sketch.count() == 0 {
            return None;
        }
        let limit = stand_in_bucket(target.limit)?;
        let state = self.sketch.estimate(target.scope, &limit, target.key_hash.fingerprint, now);
        if !must && state.is_none() {
            return None;
        }
        let (result, undo) = match op {
            Op::Take(_) => self.take_from_sketch(&DrawTarget { limit: &limit, ..*target }, None, amount, now),
            _ => (self.peek(&limit, state, amount, now), UndoStep::Nothing),
        };
        // The draw's own limit can't interpret the state of the stand-in.
        let forecast = LimitStatus::new(&limit, amount, result).forecast();
        Some((DrawResult::from_forecast(result.outcome(), now, forecast), undo))
    }
}

/// [Joins](ratekeeper_core::Log::join_newest) the newest runs of a log. Returns `false` if there are none, or the list
/// is not a log.
fn join_newest(list: &mut ListState) -> bool {
    match list {
        ListState::Log(log) => log.merge_newest_runs(),
        ListState::Holders(_) => false,
    }
}

/// A token bucket that never grants more than a sliding log does: all units but one at once, and then one per period.
/// Within any period that adds up to the log's amount. The bucket has not drained before the last unit is a period old,
/// so a key that returns to its own log starts with an empty one. Returns `None` for a concurrency limit, and for a log
/// whose stand-in would take too long to drain.
fn stand_in_bucket(limit: &Limit) -> Option<Limit> {
    let Algorithm::SlidingWindowLog(_) = limit.algorithm() else { return None };
    let burst = (limit.capacity() - 1).max(1);
    let quota = Quota::new(1, limit.quota().per()).ok()?.with_burst(burst).ok()?;
    Limit::new(Algorithm::TokenBucket, quota).ok()
}

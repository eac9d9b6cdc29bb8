//! The five integers of a decision, as redis-cell has them.
//!
//! Whether it was limited; the limit; what is left of it; how many seconds to wait, -1 if it was allowed or never will
//! be; in how many seconds everything is back. Seconds are rounded up.

use super::reply::Reply;
use tollgate::{Binding, Retry, Verdict};

#[inline]
pub(super) fn write(verdict: &Verdict<'_>, reply: &mut Reply<'_>) {
    let limited = i64::from(!verdict.is_allowed());
    let [limit, remaining, retry_after, reset_after] = match verdict.binding() {
        Some(Binding { limit, outlook, .. }) => {
            let retry_after = match outlook.retry {
                // At least one: a client that is told 0 comes back at once and is refused again.
                Some(Retry::After(wait)) => seconds(wait.secs_up().max(1)),
                Some(Retry::Never) | None => -1,
            };
            let (limit, remaining) = (i64::from(limit.capacity()), i64::from(outlook.remaining));
            [limit, remaining, retry_after, seconds(outlook.reset.secs_up())]
        }
        // Without a limit there is no bound to tell; on the deny list nothing is left, ever.
        None if verdict.is_allowed() => [-1, -1, -1, 0],
        None => [0, 0, -1, 0],
    };
    reply.out.extend_from_slice(b"*5\r\n");
    for figure in [limited, limit, remaining, retry_after, reset_after] {
        reply.integer(figure);
    }
}

fn seconds(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

//! Serving until told to stop.

use crate::http::{Http, Phase};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tollgate::{Clock, Limiter, MemoryStore};

/// The most connections at once, each of which takes some tens of kilobytes even if it is sent requests and never read
/// from. Whoever comes on top waits in the system's queue.
const MAX_CONNECTIONS: u32 = 10_000;
/// How long a stop waits for requests that have begun. Orchestrators kill after 30 seconds.
const DRAIN: Duration = Duration::from_secs(10);
/// How long the server waits before it accepts again when the system has nothing left to accept with.
const RESPITE: Duration = Duration::from_millis(100);
/// How long it takes until every key has been looked at and the drained ones are gone.
const SWEEP: Duration = Duration::from_secs(10);
/// How often at most the broom is taken up.
const STROKES: u32 = 500;

/// Answers requests on `listener` from `limiter`, until `stop`.
///
/// Once `stop` is done, nobody else is let in, requests that have begun are finished, and idle connections are closed.
/// What is not finished ten seconds later is cut off. Dropping the returned future cuts off everything at once.
pub async fn serve<C: Clock>(
    listener: TcpListener,
    limiter: Limiter<MemoryStore<C>>,
    stop: impl Future<Output = ()>,
) {
    tokio::select! {
        () = answer(listener, &limiter, stop) => {}
        () = sweep(limiter.store()) => {}
    }
}

async fn answer<C: Clock>(
    listener: TcpListener,
    limiter: &Limiter<MemoryStore<C>>,
    stop: impl Future<Output = ()>,
) {
    let http = Http::new();
    let seats = Arc::new(Semaphore::new(MAX_CONNECTIONS as usize));
    let (phase, _) = watch::channel(Phase::Open);
    let mut stop = pin!(stop);
    loop {
        let (stream, seat) = tokio::select! {
            biased;
            () = stop.as_mut() => break,
            accepted = accept(&listener, &seats) => accepted,
        };
        let (http, limiter, phase) = (http.clone(), limiter.clone(), phase.subscribe());
        tokio::spawn(async move {
            http.attend(stream, limiter, phase).await;
            drop(seat);
        });
    }
    drop(listener);
    phase.send_replace(Phase::Draining);
    // Every connection has a seat: once all seats can be had, nobody is left.
    if timeout(DRAIN, seats.acquire_many(MAX_CONNECTIONS)).await.is_err() {
        let open = MAX_CONNECTIONS as usize - seats.available_permits();
        tracing::warn!(open, "connections were cut off: their requests were not done in time");
    }
}

/// Waits for a seat, and then for somebody to take it.
async fn accept(listener: &TcpListener, seats: &Arc<Semaphore>) -> (TcpStream, OwnedSemaphorePermit) {
    let seat = Arc::clone(seats).acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // It can only fail for a client that has left already, and reading will tell.
                let _ = stream.set_nodelay(true);
                return (stream, seat);
            }
            Err(error) if has_left(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection: if files have run out, raise `ulimit -n`");
                sleep(RESPITE).await;
            }
        }
    }
}

/// Whether it is only this client who gave up while it was waiting to be let in.
fn has_left(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionReset)
}

/// Has the store drop drained keys for ever, a few shards at a time: no request waits behind more than one of them.
async fn sweep<C: Clock>(store: &MemoryStore<C>) {
    let shards = store.shards();
    let strokes = u32::try_from(shards).unwrap_or(u32::MAX).clamp(1, STROKES);
    let mut beat = interval(SWEEP / strokes);
    // After a pause, one stroke and not all those missed.
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        store.sweep(shards.div_ceil(strokes as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::{Cap, ManualClock, Micros, Span};

    #[tokio::test(start_paused = true)]
    async fn every_drained_key_is_gone_after_one_sweep() {
        for keys in [1, 1000, 10_000_000] {
            let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_000_000)));
            let store = MemoryStore::with(Arc::clone(&clock), Cap::keys(keys)).unwrap();
            let limiter = Limiter::with_store("1/s", store).unwrap();
            for key in 0..keys.min(1000) {
                assert!(limiter.check_now(&key.to_string()).is_allowed());
            }
            clock.advance(Span::SECOND);
            assert!(timeout(SWEEP, sweep(limiter.store())).await.is_err(), "a sweep never ends by itself");
            assert_eq!(limiter.store().stats().keys, 0, "of {keys}");
        }
    }
}

//! Waiting for leave: until a deadline, in a queue that shapes, and for a place that somebody gives up.
//!
//! Run it with `cargo run -p ratekeeper --example waiting`.

#![expect(clippy::print_stdout, reason = "an example shows what happens")]

use ratekeeper::{Algorithm, Leak, Limit, Limiter, Quota};
use std::error::Error;
use std::time::Duration;
use tokio::time::{Instant, sleep};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    until_a_deadline().await?;
    in_a_queue().await?;
    for_a_place().await
}

/// `acquire` sleeps until the request is allowed, or fails at once where that would take too long.
async fn until_a_deadline() -> Result<(), Box<dyn Error>> {
    let (limiter, begun) = (Limiter::new("10/s burst 2")?, Instant::now());
    for mail in 1..=4 {
        limiter.acquire("smtp", Duration::from_secs(1)).await?;
        println!("mail {mail} sent after {} ms", begun.elapsed().as_millis());
    }
    if let Err(error) = limiter.acquire("smtp", Duration::from_millis(5)).await {
        println!("mail 5, which can't wait 5 ms, is {error}");
    }
    Ok(())
}

/// A leaky queue gives everyone a turn, first come first served: a burst goes in, a steady stream comes out.
async fn in_a_queue() -> Result<(), Box<dyn Error>> {
    let limit = Limit::new(Algorithm::LeakyBucket(Leak::Queue), "20/s burst 5".parse()?)?;
    let (limiter, begun) = (Limiter::new(limit)?, Instant::now());
    let jobs = (1..=5).map(|job| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let turn = limiter.acquire("printer", Duration::from_secs(1)).await;
            println!("job {job}: its turn after {} ms", begun.elapsed().as_millis());
            turn.map(drop)
        })
    });
    for job in jobs.collect::<Vec<_>>() {
        job.await??;
    }
    Ok(())
}

/// A permit frees its place when it is dropped; one whose holder died would lapse after the limit's minute.
async fn for_a_place() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(Limit::new(Algorithm::Concurrency, Quota::per_minute(1))?)?;
    let permit = limiter.hold("database").await?;
    println!("one query runs; a second is let in: {}", limiter.hold("database").await.is_ok());
    let query = tokio::spawn(async move {
        sleep(Duration::from_millis(50)).await;
        drop(permit);
    });
    query.await?;
    println!("it is done; a second is let in: {}", limiter.hold("database").await.is_ok());
    Ok(())
}

//! Waiting: with a timeout, in a queue that shapes traffic, and for a concurrency permit.
//!
//! Run it with `cargo run -p ratekeeper --example waiting`.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use ratekeeper::{Algorithm, Leak, Limit, Limiter, Quota};
use std::error::Error;
use std::time::Duration;
use tokio::time::{Instant, sleep};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    with_a_timeout().await?;
    in_a_queue().await?;
    for_a_permit().await
}

/// `acquire` sleeps until the request is allowed, or fails at once if that would take longer than the timeout.
async fn with_a_timeout() -> Result<(), Box<dyn Error>> {
    let (limiter, start) = (Limiter::new("10/s burst 2")?, Instant::now());
    for mail in 1..=4 {
        limiter.acquire("smtp", Duration::from_secs(1)).await?;
        println!("mail {mail} sent after {} ms", start.elapsed().as_millis());
    }
    if let Err(error) = limiter.acquire("smtp", Duration::from_millis(5)).await {
        println!("mail 5, with a timeout of 5 ms, is {error}");
    }
    Ok(())
}

/// A leaky bucket as a queue serves requests first come first served: a burst goes in, a steady stream comes out.
async fn in_a_queue() -> Result<(), Box<dyn Error>> {
    let limit = Limit::new(Algorithm::LeakyBucket(Leak::Queue), "20/s burst 5".parse()?)?;
    let (limiter, start) = (Limiter::new(limit)?, Instant::now());
    let jobs = (1..=5).map(|job| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let turn = limiter.acquire("printer", Duration::from_secs(1)).await;
            println!("job {job} starts after {} ms", start.elapsed().as_millis());
            turn.map(drop)
        })
    });
    for job in jobs.collect::<Vec<_>>() {
        job.await??;
    }
    Ok(())
}

/// A permit frees its slot when it is dropped; if its holder dies, it expires after the period of the limit, one
/// minute.
async fn for_a_permit() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(Limit::new(Algorithm::Concurrency, Quota::per_minute(1))?)?;
    let permit = limiter.take_permit("database").await?;
    println!("one query runs; a second gets a permit: {}", limiter.take_permit("database").await.is_ok());
    let query = tokio::spawn(async move {
        sleep(Duration::from_millis(50)).await;
        drop(permit);
    });
    query.await?;
    println!("it is done; a second gets a permit: {}", limiter.take_permit("database").await.is_ok());
    Ok(())
}

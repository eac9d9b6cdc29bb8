//! One quota, one key: what an allowed and a denied decision contain, and that the retry time is exact.
//!
//! Run it with `cargo run -p ratekeeper --example quickstart`.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use ratekeeper::{Decision, Limiter, LimitsError};
use std::time::Duration;

fn main() -> Result<(), LimitsError> {
    // Three at once, then one every half second. The default algorithm is the token bucket.
    let limiter = Limiter::new("2/s burst 3")?;
    println!("the limit of user:42 is {}", limiter.limits()[0]);

    for request in 1..=3 {
        println!("request {request}: {}", describe(&limiter.check_now("user:42")));
    }
    let denied = limiter.check_now("user:42");
    println!("request 4: {}", describe(&denied));
    println!("first request of user:7: {}", describe(&limiter.check_now("user:7")));

    // The retry time is exact: not too early, so this is allowed; not too late, so no time is wasted.
    if let Some(wait) = denied.retry_after() {
        sleep(wait);
        println!("request 5, {} ms later: {}", wait.as_millis(), describe(&limiter.check_now("user:42")));
    }
    Ok(())
}

/// Formats a decision for people.
fn describe(decision: &Decision) -> String {
    match (decision.is_allowed(), decision.retry_after()) {
        (true, _) => format!("allowed, {} left", decision.remaining()),
        (false, Some(wait)) => format!(
            "denied, retry in {} ms; full capacity in {} ms",
            wait.as_millis(),
            decision.reset_after().as_millis()
        ),
        (false, None) => "denied, and a retry won't help: the cost exceeds the capacity".to_owned(),
    }
}

#[expect(clippy::disallowed_methods, reason = "a single thread with nothing else to do")]
fn sleep(wait: Duration) {
    std::thread::sleep(wait);
}

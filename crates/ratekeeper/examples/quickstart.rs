//! One quota, one key: what an allowance says, what a denial says, and that its word can be relied on.
//!
//! Run it with `cargo run -p ratekeeper --example quickstart`.

#![expect(clippy::print_stdout, reason = "an example shows what happens")]

use ratekeeper::{Decision, Limiter, LimitsError};
use std::time::Duration;

fn main() -> Result<(), LimitsError> {
    // Three at once, then one every half second: a token bucket, since nothing else is said.
    let limiter = Limiter::new("2/s burst 3")?;
    println!("user:42 is held to {}", limiter.limits()[0]);

    for request in 1..=3 {
        println!("request {request}: {}", words(&limiter.check_now("user:42")));
    }
    let denied = limiter.check_now("user:42");
    println!("request 4: {}", words(&denied));
    println!("user:7, who has asked for nothing yet: {}", words(&limiter.check_now("user:7")));

    // The wait is exact: not early, so this is allowed; not late, so nothing was wasted.
    if let Some(wait) = denied.retry_after() {
        sleep(wait);
        println!("request 5, {} ms later: {}", wait.as_millis(), words(&limiter.check_now("user:42")));
    }
    Ok(())
}

/// What a decision says, for people.
fn words(decision: &Decision) -> String {
    match (decision.is_allowed(), decision.retry_after()) {
        (true, _) => format!("allowed, {} left", decision.remaining()),
        (false, Some(wait)) => format!(
            "denied, come back in {} ms; everything is back in {} ms",
            wait.as_millis(),
            decision.reset_after().as_millis()
        ),
        (false, None) => "denied, and waiting won't help: it asks for more than there ever is".to_owned(),
    }
}

#[expect(clippy::disallowed_methods, reason = "one thread, which has nothing else to do")]
fn sleep(wait: Duration) {
    std::thread::sleep(wait);
}

//! Several limits and laws in one check: all or nothing, with costs, a peek, a refund and a reset.
//!
//! Run it with `cargo run -p ratekeeper --example many_limits`.

#![expect(clippy::print_stdout, reason = "an example shows what happens")]

use ratekeeper::{Algorithm, Align, Decision, Key, KeyedRequest, Limit, Limiter, Quota, Retry};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let berlin = "Europe/Berlin".parse()?;
    let limiter = Limiter::new(vec![
        // Five at once and then one every three seconds; about six in any hour; forty from midnight to midnight.
        Limit::new(Algorithm::TokenBucket, "20/min burst 5".parse()?)?,
        Limit::new(Algorithm::SlidingWindowCounter, Quota::per_hour(6))?,
        Limit::new(Algorithm::FixedWindow(Align::Wall(berlin)), "40/day".parse()?)?,
    ])?;
    // A key of two parts: no spelling of one tenant's name can meet another's.
    let key = Key::new(["tenant:7", "/v1/chat"])?;
    let cost = |units: u32| KeyedRequest::from(&key).cost(units);

    tell("a fresh key", &limiter.peek_now(&key));
    tell("take 4", &limiter.check_now(cost(4)));
    // The bucket refuses, so nothing is taken from the hour or the day either.
    tell("take 2", &limiter.check_now(cost(2)));
    // The job turned out smaller than it looked: a unit goes back, to every limit.
    tell("refund 1", &limiter.refund_now(cost(1)));
    tell("take 2", &limiter.check_now(cost(2)));
    // Now two of them refuse, and the one to wait for longest speaks.
    tell("take 2", &limiter.check_now(cost(2)));
    tell("take 0", &limiter.check_now(cost(0)));
    // More than the bucket ever holds: no wait is long enough, and the answer says so.
    tell("take 6", &limiter.check_now(cost(6)));
    limiter.reset_now(&key);
    tell("after a reset", &limiter.peek_now(&key));
    Ok(())
}

/// Prints a decision and the limit that binds: the tightest, or after a denial the one to wait for.
fn tell(what: &str, decision: &Decision) {
    let said = match decision.retry() {
        None => format!("allowed, {} left", decision.remaining()),
        Some(Retry::After(wait)) => format!("denied, come back in {} s", wait.secs_up()),
        Some(Retry::Never) => "denied, and never to be allowed".to_owned(),
    };
    let binding = decision.limit().map_or_else(String::new, ToString::to_string);
    println!("{what:14} {said:32} by {binding}");
}

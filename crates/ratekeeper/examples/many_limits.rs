//! Several limits and algorithms in one check: all or nothing, with costs, a peek, a refund and a reset.
//!
//! Run it with `cargo run -p ratekeeper --example many_limits`.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use ratekeeper::{Algorithm, Align, Decision, Key, KeyedRequest, Limit, Limiter, Quota, Retry};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let berlin = "Europe/Berlin".parse()?;
    let limiter = Limiter::new(vec![
        // 5 at once, then one every 3 seconds; about 6 per hour; 40 per calendar day in Berlin.
        Limit::new(Algorithm::TokenBucket, "20/min burst 5".parse()?)?,
        Limit::new(Algorithm::SlidingWindowCounter, Quota::per_hour(6))?,
        Limit::new(Algorithm::FixedWindow(Align::WallClock(berlin)), "40/day".parse()?)?,
    ])?;
    // A key of two parts: whatever characters a tenant name contains, it never collides with another key.
    let key = Key::new(["tenant:7", "/v1/chat"])?;
    let cost = |units: u32| KeyedRequest::from(&key).cost(units);

    print_decision("a new key", &limiter.peek_now(&key));
    print_decision("take 4", &limiter.check_now(cost(4)));
    // The bucket denies, so nothing is taken from the hour or the day either.
    print_decision("take 2", &limiter.check_now(cost(2)));
    // The job turned out smaller than expected: one unit is returned to every limit.
    print_decision("refund 1", &limiter.refund_now(cost(1)));
    print_decision("take 2", &limiter.check_now(cost(2)));
    // Now two limits deny, and the decision names the one with the longest wait.
    print_decision("take 2", &limiter.check_now(cost(2)));
    print_decision("take 0", &limiter.check_now(cost(0)));
    // More than the bucket ever holds: no wait is long enough, and the decision says so.
    print_decision("take 6", &limiter.check_now(cost(6)));
    limiter.reset_now(&key);
    print_decision("after a reset", &limiter.peek_now(&key));
    Ok(())
}

/// Prints a decision and its binding limit: the one with the fewest units left or, after a denial, the longest
/// wait.
fn print_decision(what: &str, decision: &Decision) {
    let text = match decision.retry() {
        None => format!("allowed, {} left", decision.remaining()),
        Some(Retry::After(wait)) => format!("denied, retry in {} s", wait.secs_ceil()),
        Some(Retry::Never) => "denied, can never be allowed".to_owned(),
    };
    let binding = decision.limit().map_or_else(String::new, ToString::to_string);
    println!("{what:14} {text:32} by {binding}");
}

//! What each law says, line by line. The laws and their models both have to say it.

use tollgate_core::{Align, Law, Leak, Limit, LogSize, Zone};

fn check(law: Law, quota: &str, scenario: &str) {
    let limit =
        Limit::new(law, quota.parse().expect("the quota can be read")).expect("the law takes the quota");
    tollgate_testkit::check(&limit, scenario, &mut []);
}

#[test]
fn burst_then_steady() {
    check(
        Law::TokenBucket,
        "10/s burst 3",
        "
          0ms  take 1  allow, 2 left
          0ms  take 2  allow, 0 left
          1ms  take 1  deny, retry in 99ms
         99ms  take 1  deny, retry in 1ms
        100ms  take 1  allow, 0 left
        200ms  take 2  deny, retry in 100ms
        300ms  take 2  allow, 0 left
    ",
    );
}

#[test]
fn a_cost_that_can_never_fit_is_never() {
    check(
        Law::TokenBucket,
        "10/s burst 3",
        "
        0ms  take 4           deny, never
        0ms  take 4294967295  deny, never
        0ms  take 3           allow, 0 left
        0ms  take 0           allow, 0 left
        0ms  take 4           deny, never
    ",
    );
    check(Law::LeakyBucket(Leak::Meter), "10/s", "0ms take 2 deny, never");
    check(Law::LeakyBucket(Leak::Queue), "10/s burst 5", "0ms take 6 deny, never");
    check(Law::FixedWindow(Align::FirstHit), "5/s", "0ms take 6 deny, never");
    check(Law::SlidingWindowCounter, "5/s", "0ms take 6 deny, never");
    check(Law::SlidingWindowLog(LogSize::Modest), "5/s", "0ms take 6 deny, never");
    check(Law::Concurrency, "5/s", "0ms take 6 deny, never");
}

#[test]
fn odd_rates_are_exact() {
    // The seventh unit comes at exactly one second, though a seventh of a second is no whole number of anything.
    check(
        Law::TokenBucket,
        "7/s burst 2",
        "
             0us  take 2  allow, 0 left
             0us  take 1  deny, retry in 142858us
        142857us  take 1  deny, retry in 1us
        142858us  take 1  allow, 0 left
        285715us  take 1  allow, 0 left
        428572us  take 1  allow, 0 left
        571429us  take 1  allow, 0 left
        714286us  take 1  allow, 0 left
        857143us  take 1  allow, 0 left
        999999us  take 1  deny, retry in 1us
           1s     take 1  allow, 0 left
    ",
    );
    check(
        Law::TokenBucket,
        "10000000/s burst 20",
        "
        0us  take 20  allow, 0 left
        0us  take 1   deny, retry in 1us
        1us  take 10  allow, 0 left
        1us  take 11  deny, retry in 2us
        3us  look 20  allow, 20 left
    ",
    );
    check(
        Law::TokenBucket,
        "1/month",
        "
        0s          take 1  allow, 0 left
        2591999s    take 1  deny, retry in 1s
        2592000s    take 1  allow, 0 left
    ",
    );
}

#[test]
fn refund_and_reset() {
    check(
        Law::TokenBucket,
        "10/s burst 3",
        "
          0ms  take 3    allow, 0 left
          0ms  give 2    allow, 2 left
          0ms  give 9    allow, 3 left
          0ms  take 3    allow, 0 left
         50ms  take 1    deny, retry in 50ms
         50ms  clear     allow, 3 left
         50ms  take 3    allow, 0 left
         50ms  look 1    deny, retry in 100ms
    ",
    );
    check(
        Law::SlidingWindowCounter,
        "10/s",
        "
         0ms  take 10  allow, 0 left
      1500ms  look 6   deny, retry in 100ms
      1500ms  take 5   allow, 0 left
      1500ms  give 6   allow, 5 left
    ",
    );
}

#[test]
fn a_meter_takes_units_one_by_one() {
    check(
        Law::LeakyBucket(Leak::Meter),
        "10/s",
        "
          0ms  take 1  allow, 0 left
         50ms  take 1  deny, retry in 50ms
        100ms  take 1  allow, 0 left
    ",
    );
}

#[test]
fn a_queue_delays_in_order_and_has_an_end() {
    check(
        Law::LeakyBucket(Leak::Queue),
        "10/s burst 3",
        "
          0ms  take 1  allow, 2 left
          0ms  take 1  allow after 100ms, 1 left
          0ms  take 1  allow after 200ms, 0 left
          0ms  take 1  deny, retry in 100ms
         50ms  take 1  deny, retry in 50ms
        100ms  take 1  allow after 200ms, 0 left
        400ms  take 1  allow, 2 left
    ",
    );
}

#[test]
fn windows_on_the_wall_clock() {
    check(
        Law::FixedWindow(Align::Wall(Zone::UTC)),
        "2/min",
        "
        59s  take 1  allow, 1 left
        59s  take 1  allow, 0 left
        59s  take 1  deny, retry in 1s
        60s  take 2  allow, 0 left
        61s  take 1  deny, retry in 59s
    ",
    );
    // The scenario begins on Monday, 1 January 2024.
    check(
        Law::FixedWindow(Align::Wall(Zone::UTC)),
        "1/week",
        "
        6d  take 1  allow, 0 left
        6d  take 1  deny, retry in 1 day
        7d  take 1  allow, 0 left
    ",
    );
    check(
        Law::FixedWindow(Align::Wall(Zone::UTC)),
        "1/month",
        "
        30d  take 1  allow, 0 left
        30d  take 1  deny, retry in 1 day
        31d  take 1  allow, 0 left
        31d  take 1  deny, retry in 29 days
    ",
    );
}

#[test]
fn windows_from_the_first_hit() {
    check(
        Law::FixedWindow(Align::FirstHit),
        "2/min",
        "
         59s  take 1  allow, 1 left
        118s  take 1  allow, 0 left
        118s  take 1  deny, retry in 1s
        119s  take 1  allow, 1 left
        130s  take 1  allow, 0 left
        178s  take 1  deny, retry in 1s
    ",
    );
}

#[test]
fn a_sliding_counter_fades_the_window_before() {
    check(
        Law::SlidingWindowCounter,
        "10/s",
        "
         900ms  take 10  allow, 0 left
        1000ms  take 1   deny, retry in 100ms
        1100ms  take 1   allow, 0 left
        1500ms  take 4   allow, 0 left
        1999ms  take 5   deny, retry in 1ms
        2s      take 5   allow, 0 left
        2s      take 6   deny, retry in 1200ms
    ",
    );
}

#[test]
fn a_sliding_log_forgets_each_unit_in_its_time() {
    check(
        Law::SlidingWindowLog(LogSize::Modest),
        "3/s",
        "
           0ms  take 1  allow, 2 left
         500ms  take 2  allow, 0 left
         999ms  take 1  deny, retry in 1ms
        1000ms  take 1  allow, 0 left
        1000ms  take 2  deny, retry in 500ms
        1500ms  take 2  allow, 0 left
        2000ms  look 3  deny, retry in 500ms
    ",
    );
}

#[test]
fn permits_lapse_by_themselves() {
    check(
        Law::Concurrency,
        "2/min",
        "
         0s  take 1  allow, 1 left
        10s  take 1  allow, 0 left
        20s  take 1  deny, retry in 40s
        60s  take 1  allow, 0 left
        60s  take 2  deny, retry in 1min
    ",
    );
}

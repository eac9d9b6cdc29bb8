//! The formulas, with any parameters.

use super::super::demand::DrawCounters;
use super::*;
use ratekeeper_core::{Align, Micros, Zone};

const POLICY: LeasePolicy = LeasePolicy::DEFAULT;
const ROUND_TRIP: Span = Span::millis(1);

/// A key of which `drawn` units are drawn each second, one at a time, and `denied` of them denied.
fn demand(drawn: u32, denied: u32) -> Demand {
    let mut demand = Demand::new(Micros::EPOCH);
    for second in 1..=40_u32 {
        demand.add_denied(denied);
        let counters = DrawCounters { draws: drawn * second, units: drawn * second };
        demand.update(&POLICY, counters, drawn, Micros::new(u64::from(second) * 1_000_000));
    }
    demand
}

fn limit(algorithm: Algorithm, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().unwrap()).unwrap()
}

fn fixed_window(quota: &str) -> Limit {
    limit(Algorithm::FixedWindow(Align::WallClock(Zone::UTC)), quota)
}

fn outlook<'a>(limit: &'a Limit, demand: &'a Demand, remaining: u32) -> KeyOutlook<'a> {
    KeyOutlook { policy: &POLICY, limit, demand, remaining, window: None, is_exhausted: false, nodes: 1 }
}

/// The window of a limit per second, `micros` before its end.
fn ending_in(limit: &Limit, micros: u64) -> Option<WindowView> {
    WindowView::of(limit, None, Micros::new(1_000_000_000 - micros), ROUND_TRIP)
}

#[test]
fn nodes_together_lease_a_share_of_what_is_left() {
    let (limit, demand) = (limit(Algorithm::TokenBucket, "100000/s"), demand(1_000, 0));
    for remaining in [1_000, 10_000, 100_000] {
        for nodes in [1, 2, 16] {
            let request = KeyOutlook { nodes, ..outlook(&limit, &demand, remaining) }.lease_request();
            let all = request.long_horizon * nodes;
            let share = POLICY.max_bucket_share * float(remaining);
            assert!((float(all) - share).abs() <= float(nodes) + share / 100.0, "{all} of {remaining}");
        }
    }
}

#[test]
fn a_small_limit_is_not_leased_and_a_larger_one_more() {
    let demand = demand(10, 0);
    let quotas = ["10/min", "100/min", "1000/min", "10000/min", "100000/min"];
    let leased = quotas.map(|quota| {
        let limit = limit(Algorithm::TokenBucket, quota);
        outlook(&limit, &demand, limit.capacity()).lease_request().long_horizon
    });
    assert_eq!(leased[0], 0);
    assert!(leased.is_sorted() && leased[2] > 0, "{leased:?}");
}

/// A node of which as few draws arrive as three standard deviations make likely spends its lease all the same.
#[test]
fn a_lease_near_the_limit_is_spent_before_the_window_ends() {
    let (limit, demand) = (fixed_window("1000/s"), demand(1_000, 0));
    for micros in [900_000, 500_000, 100_000, 50_000, 10_000, 3_000] {
        let expected = 1_000.0 * seconds(Span::micros(micros));
        for remaining in [0.5, 0.9, 1.0].map(|share| whole_units(expected * share)) {
            let outlook =
                KeyOutlook { window: ending_in(&limit, micros), ..outlook(&limit, &demand, remaining) };
            let units = float(outlook.lease_request().short_horizon);
            let fewest = expected - POLICY.deviations * expected.sqrt();
            assert!(units <= fewest.max(0.0), "{units} units {micros} µs before the end");
        }
    }
}

#[test]
fn a_window_with_units_to_spare_is_leased_in_one_piece() {
    let (limit, demand) = (fixed_window("10000/s"), demand(1_000, 0));
    let outlook = KeyOutlook { window: ending_in(&limit, 900_000), ..outlook(&limit, &demand, 9_000) };
    let units = outlook.lease_request().short_horizon;
    assert!((850..=900).contains(&units), "{units} units for 0.9 s");
}

#[test]
fn nothing_is_leased_in_the_last_moments_of_a_window() {
    let (limit, demand) = (fixed_window("10000/s"), demand(1_000, 0));
    for micros in [3_000, 1_000, 1] {
        let outlook = KeyOutlook { window: ending_in(&limit, micros), ..outlook(&limit, &demand, 9_000) };
        assert_eq!(outlook.lease_request(), LeaseRequest::default());
    }
}

#[test]
fn a_back_off_has_its_bounds_and_leaves_no_more_than_the_idle_share() {
    for drawn in [1, 10, 100, 1_000, 10_000, 1_000_000] {
        for quota in ["10/s", "1000/s", "1000/min", "1000/day"] {
            let (limit, demand) = (limit(Algorithm::TokenBucket, quota), demand(drawn, drawn / 2));
            let Some(backoff) = outlook(&limit, &demand, 0).backoff_seconds() else {
                assert!(drawn < 100, "a busy key is exhausted");
                continue;
            };
            assert!(backoff <= POLICY.max_backoff_seconds);
            assert!(backoff <= POLICY.max_bucket_share * seconds(limit.window()) * 1.001);
            assert!(float(drawn) * backoff >= MIN_DRAWS_SAVED * 0.99, "{drawn} draws/s, {backoff} s");
        }
    }
}

#[test]
fn back_offs_get_shorter_towards_the_end_of_a_window() {
    let limit = limit(Algorithm::SlidingWindowCounter, "1000/s");
    let demand = demand(1_350, 450);
    let backoffs = [999_000, 100_000, 30_000, 5_000, 1_000, 100, 1].map(|micros| {
        let outlook = KeyOutlook { window: ending_in(&limit, micros), ..outlook(&limit, &demand, 0) };
        let backoff = outlook.backoff_seconds().unwrap_or(0.0);
        assert!(backoff < seconds(Span::micros(micros)) / 3.0, "{backoff} s of {micros} µs");
        backoff
    });
    assert!(backoffs[0] > 0.05 && backoffs.is_sorted_by(|before, after| before >= after), "{backoffs:?}");
}

#[test]
fn a_renewal_is_sent_in_time_and_not_for_all_keys_at_once() {
    let (limit, demand) = (limit(Algorithm::TokenBucket, "100000/s"), demand(1_000, 0));
    let outlook = outlook(&limit, &demand, 100_000);
    let threshold = |unspent, round_trip, jitter| outlook.renew_threshold(unspent, round_trip, jitter);
    assert!(threshold(1_000, ROUND_TRIP, 0) < threshold(1_000, ROUND_TRIP, 255));
    assert!(threshold(1_000, Span::millis(50), 0) >= 95, "what is drawn in two round trips");
    assert!(threshold(10, Span::millis(50), 0) <= 5, "half of a small lease is spent first");
}

//! That parcels are small, cost nothing to fill again, and believe nobody.

use super::{GroupResult, ScriptCall};
use proptest::prelude::{any, prop_assert, proptest};
use ratekeeper_core::{
    Algorithm, Align, Amount, Draws, LeaseReport, LeaseRequest, Limit, LogSize, Micros, Op, PermitId, Scope,
    Span, Zone,
};

const NOW: Micros = Micros::new(1_700_000_000_123_457);

fn limit(law: Algorithm, quota: &str) -> Limit {
    Limit::new(law, quota.parse().unwrap()).unwrap()
}

fn mixed() -> Draws {
    let berlin: Zone = "Europe/Berlin".parse().unwrap();
    let limits = [
        limit(Algorithm::TokenBucket, "100/min"),
        limit(Algorithm::FixedWindow(Align::Wall(berlin)), "100/month"),
        limit(Algorithm::SlidingWindowLog(LogSize::Modest), "5/s"),
        limit(Algorithm::Concurrency, "5/s"),
    ];
    let mut draws = Draws::new();
    for request in 0..60 {
        draws.begin();
        for limit in &limits[..1 + request % 4] {
            let act = Op::Take(Amount::exactly(1));
            draws.push(format!("user:{}", request % 17).as_str().into(), Scope(0), *limit, act, PermitId(7));
        }
    }
    draws
}

fn fill(parcel: &mut ScriptCall, draws: &Draws) {
    parcel.start(NOW);
    for group in 0..draws.len() {
        parcel.add(draws, group, 1);
    }
}

#[test]
fn a_key_and_a_limit_travel_once() {
    let (mut parcel, draws) = (ScriptCall::new(), mixed());
    fill(&mut parcel, &draws);
    assert_eq!((parcel.len(), parcel.draw_count()), (60, draws.all().len()));
    let names: Vec<_> = parcel.key_names().collect();
    let distinct: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!((names.len(), names.len()), (parcel.key_count(), distinct.len()));
    assert!(parcel.arguments().next().unwrap().len() < 300);
    assert_eq!(parcel.tag(), b"user:0");
    let mut call = redis::Cmd::new();
    parcel.write(&mut call);
    assert_eq!(call.args_iter().count(), 3 + names.len() + 2);
}

fn order(parcel: &mut ScriptCall, key: &str, limit: &Limit) {
    let report = LeaseReport { term: 7, spent: 1, kept: 2, back: 3 };
    let wish = LeaseRequest { soon: 4, later: 5, one_of: 6 };
    parcel.lend(key.into(), Scope(0), limit, report, wish);
}

#[test]
fn a_warm_parcel_is_filled_without_allocating() {
    let (mut parcel, draws, limit) = (ScriptCall::new(), mixed(), limit(Algorithm::TokenBucket, "100/min"));
    let fill = |parcel: &mut ScriptCall| {
        fill(parcel, &draws);
        order(parcel, "user:3", &limit);
    };
    fill(&mut parcel);
    let again = allocation_counter::measure(|| fill(&mut parcel));
    assert_eq!(again.count_total, 0);
}

#[test]
fn orders_are_an_argument_of_their_own_and_share_the_keys() {
    let (mut parcel, draws, limit) = (ScriptCall::new(), mixed(), limit(Algorithm::TokenBucket, "100/min"));
    fill(&mut parcel, &draws);
    let (keys, limits) = (parcel.key_count(), parcel.arguments().next().unwrap().to_vec());
    assert_eq!(parcel.arguments().count(), 2, "without an order there is no third");
    order(&mut parcel, "user:3", &limit);
    assert_eq!((parcel.key_count(), parcel.arguments().count()), (keys, 3));
    assert_eq!(parcel.arguments().next(), Some(&limits[..]), "both are known already");
    order(&mut parcel, "somebody else", &limit);
    assert_eq!((parcel.key_count(), parcel.arguments().count()), (keys + 1, 3));
    assert_eq!(parcel.arguments().last().map(<[u8]>::len), Some(2 * 35));
}

#[test]
fn only_requests_that_are_alike_may_travel_as_one() {
    let bucket = limit(Algorithm::TokenBucket, "100/min");
    let queue = limit(Algorithm::LeakyBucket(ratekeeper_core::Leak::Queue), "100/min");
    let take = Op::Take(Amount::exactly(2));
    let may_repeat = |wishes: &[(&str, Limit, Op)]| {
        let mut draws = Draws::new();
        for (key, limit, act) in wishes {
            draws.push((*key).into(), Scope(0), *limit, *act, PermitId(0));
        }
        ScriptCall::may_repeat(&draws, 0)
    };
    assert!(may_repeat(&[("a", bucket, take), ("b", bucket, take), ("a", queue, take)]));
    assert!(!may_repeat(&[("a", bucket, take), ("a", bucket, take)]), "one key twice");
    assert!(!may_repeat(&[("a", bucket, Op::Take(Amount::between(1, 2)))]), "a range");
    assert!(!may_repeat(&[("a", bucket, Op::Give(1))]), "no take");
    assert!(
        !may_repeat(&[("a", queue, Op::Take(Amount::exactly(1).within(Span::SECOND)))]),
        "a patience that ends"
    );
    assert!(
        may_repeat(&[("a", bucket, Op::Take(Amount::exactly(1).within(Span::SECOND)))]),
        "nobody waits for a token"
    );
    assert!(!may_repeat(&[("a", limit(Algorithm::Concurrency, "5/s"), take)]), "a permit each");
}

proptest! {
    /// Whatever a server may say: it is read, or it is an error.
    #[test]
    fn no_reply_does_harm(bytes in proptest::collection::vec(any::<u8>(), 0..400), codes in any::<bool>()) {
        let (mut parcel, mut draws) = (ScriptCall::new(), mixed());
        fill(&mut parcel, &draws);
        for key in ["user:3", "user:4"] {
            order(&mut parcel, key, &limit(Algorithm::TokenBucket, "100/min"));
        }
        let bytes: Vec<u8> = bytes.into_iter().map(|byte| if codes { byte % 36 } else { byte }).collect();
        let Ok(mut reply) = parcel.read(&bytes) else { return Ok(()) };
        let mut groups = 0;
        for (group, fate) in reply.by_ref().enumerate() {
            groups += 1;
            if let Ok(GroupResult::Decided(decided)) = fate {
                decided.settle(0, draws.group_mut(group));
            }
        }
        prop_assert!(groups == 60);
        prop_assert!(reply.loans().count() == 2);
    }
}

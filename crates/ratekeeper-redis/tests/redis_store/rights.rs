//! An ACL user with exactly the permissions that the docs list.

use super::{TestRequest, connected, limit_of};
use ratekeeper::{
    Algorithm, Align, Amount, DrawOptions, Draws, KeyRef, Leak, LogSize, Op, PermitId, Scope, Store, Zone,
};
use ratekeeper_testkit::servers::{Brand, RedisServer};

#[tokio::test]
async fn the_documented_permissions_suffice_for_every_algorithm() {
    let docs = include_str!("../../../../docs/stores.md");
    let user = docs.lines().find_map(|line| line.strip_prefix("user ratekeeper ")).unwrap();
    let server =
        RedisServer::setup(Brand::Redis).user("ratekeeper", &user.replace("PASSWORD", "s3cret")).start();
    // In a separate database, as the docs recommend.
    let store = connected(&format!("redis://ratekeeper:s3cret@{}/3", server.address())).await;
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket(Leak::Meter),
        Algorithm::LeakyBucket(Leak::Queue),
        Algorithm::FixedWindow(Align::FirstHit),
        Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog(LogSize::Standard),
    ] {
        let keys = [("alice", limit_of(algorithm, "3/day"))];
        for op in [Op::Take(Amount::exactly(1)), Op::Take(Amount::exactly(1)), Op::Refund(1), Op::Reset] {
            let request = TestRequest { keys: &keys, op, options: DrawOptions::default() };
            request.check(&store).await;
        }
    }
    let concurrency = limit_of(Algorithm::Concurrency, "1/day");
    for (op, permit) in
        [(Op::Take(Amount::exactly(1)), 1), (Op::Take(Amount::exactly(1)), 2), (Op::Refund(1), 1)]
    {
        let mut draws = Draws::new();
        draws.push(KeyRef::from("alice"), Scope(0), concurrency, op, PermitId(permit));
        store.draw(&mut draws).await;
        assert_eq!(draws.failure_in(0..1), None, "{op:?}");
        assert_eq!(draws.all()[0].denies_request(), permit == 2, "{op:?}");
    }
    let description = store.store().health().unwrap().servers.remove(0);
    assert_eq!(description.eviction_policy.as_deref(), Some("noeviction"));
    store.leave().await;
    let denied = server.command(&["ACL", "LOG"]);
    assert_eq!(denied.array().len(), 0, "{denied:?}");
}

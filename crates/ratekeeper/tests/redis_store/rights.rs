//! A user who may do no more than the docs say.

use super::{Asked, connected, limit_of};
use ratekeeper::{
    Algorithm, Align, Amount, DrawOptions, Draws, KeyRef, Leak, LogSize, Op, PermitId, Scope, Store, Zone,
};
use ratekeeper_testkit::servers::{Brand, RedisServer};

#[tokio::test]
async fn the_rights_that_the_docs_name_are_enough_for_every_law() {
    let docs = include_str!("../../../../docs/stores.md");
    let user = docs.lines().find_map(|line| line.strip_prefix("user ratekeeper ")).unwrap();
    let server =
        RedisServer::setup(Brand::Redis).user("ratekeeper", &user.replace("PASSWORD", "s3cret")).start();
    // In a database of its own, as the docs advise.
    let store = connected(&format!("redis://ratekeeper:s3cret@{}/3", server.address())).await;
    for law in [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket(Leak::Meter),
        Algorithm::LeakyBucket(Leak::Queue),
        Algorithm::FixedWindow(Align::FirstHit),
        Algorithm::FixedWindow(Align::Wall(Zone::UTC)),
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog(LogSize::Modest),
    ] {
        let keys = [("alice", limit_of(law, "3/day"))];
        for act in [Op::Take(Amount::exactly(1)), Op::Take(Amount::exactly(1)), Op::Give(1), Op::Clear] {
            let asked = Asked { keys: &keys, act, terms: DrawOptions::default() };
            asked.told_by(&store).await;
        }
    }
    let places = limit_of(Algorithm::Concurrency, "1/day");
    for (act, permit) in
        [(Op::Take(Amount::exactly(1)), 1), (Op::Take(Amount::exactly(1)), 2), (Op::Give(1), 1)]
    {
        let mut draws = Draws::new();
        draws.push(KeyRef::from("alice"), Scope(0), places, act, PermitId(permit));
        store.draw(&mut draws).await;
        assert_eq!(draws.failure(0..1), None, "{act:?}");
        assert_eq!(draws.all()[0].stops(), permit == 2, "{act:?}");
    }
    let server_says = store.describe().servers.remove(0);
    assert_eq!(server_says.eviction_policy.as_deref(), Some("noeviction"));
    store.leave().await;
    let denied = server.command(&["ACL", "LOG"]);
    assert_eq!(denied.array().len(), 0, "{denied:?}");
}

//! `redis+sharded://`: keys spread over independent servers.

use super::{AMPLE_TIMEOUT, connected, take, until_phase};
use crate::client::node::NodePhase;
use crate::client::server_set::ServerSet;
use ratekeeper::StoreFailure;
use ratekeeper_testkit::servers::RedisServer;
use std::collections::HashMap;

const KEYS: usize = 300;

fn url(servers: &[RedisServer]) -> String {
    let addresses: Vec<String> = servers.iter().map(RedisServer::address).collect();
    format!("redis+sharded://{}", addresses.join(","))
}

fn placement(server_set: &ServerSet) -> HashMap<String, String> {
    let keys = (0..KEYS).map(|key| format!("user:{key}"));
    keys.map(|key| {
        let place = server_set.route(key.as_bytes()).unwrap().node.server.to_string();
        (key, place)
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_shard_affects_its_keys_only_and_a_new_one_takes_only_its_share() {
    let mut servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
    let server_set = connected(&url(&servers)).await;
    let before = placement(&server_set);
    for key in before.keys() {
        assert_eq!(take(&server_set, key, AMPLE_TIMEOUT).await, Ok(1));
    }
    for server in &servers {
        let share = before.values().filter(|place| **place == server.address()).count();
        assert_eq!(server.command(&["DBSIZE"]).integer(), i64::try_from(share).unwrap());
        assert!(share > KEYS / 6, "{share}");
    }

    servers[1].kill();
    let dead = servers[1].address();
    let node = server_set.nodes().into_iter().find(|node| node.server.to_string() == dead).unwrap();
    until_phase(&node, NodePhase::Down).await;
    for (key, place) in &before {
        let expected = if *place == dead { Err(StoreFailure::Unreachable) } else { Ok(2) };
        assert_eq!(take(&server_set, key, AMPLE_TIMEOUT).await, expected, "{key} on {place}");
    }
    servers[1].restart();
    until_phase(&node, NodePhase::Up).await;

    servers.push(RedisServer::start());
    let (grown, new) = (connected(&url(&servers)).await, servers[3].address());
    let after = placement(&grown);
    let moved = before.iter().filter(|(key, place)| after[*key] != **place).count();
    let taken = after.values().filter(|place| **place == new).count();
    assert_eq!(moved, taken);
    assert!((KEYS / 8..KEYS * 3 / 8).contains(&taken), "{taken}");
}

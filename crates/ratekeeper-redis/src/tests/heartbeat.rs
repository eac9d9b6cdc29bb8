//! Heartbeats: each node counts the live nodes.

use super::{connected, eventually};
use crate::client::node::NodePhase;
use crate::store::heartbeat::Heartbeat;
use ratekeeper_testkit::servers::RedisServer;
use std::sync::Arc;

async fn until_live(heartbeat: &Heartbeat, nodes: u32) {
    eventually(&format!("{nodes} nodes are counted"), async {
        while heartbeat.live_nodes() != nodes {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_counted_and_the_last_count_stands_while_the_store_is_down() {
    let mut server = RedisServer::start();
    let server_set = Arc::new(connected(&server.url()).await);
    let [first, second, third] = [(); 3].map(|()| Heartbeat::start(Arc::clone(&server_set)));
    until_live(&first, 3).await;
    // One deregisters, and is gone at the next heartbeat.
    second.leave().await;
    until_live(&first, 2).await;
    // One dies, and its heartbeat expires.
    drop(third);
    until_live(&first, 1).await;
    assert!(server.command(&["PTTL", "{rk1:nodes}"]).integer() > 0);
    let fourth = Heartbeat::start(Arc::clone(&server_set));
    until_live(&first, 2).await;
    server.kill();
    super::until_phase(&super::only_node(&server_set), NodePhase::Down).await;
    assert_eq!(first.live_nodes(), 2);
    fourth.leave().await;
    assert_eq!(first.live_nodes(), 2);
    server.restart();
    until_live(&first, 1).await;
}

//! Hosts of a virtual network that are disconnected.

use ratekeeper_testkit::TEST_TIMEOUT;
use ratekeeper_testkit::servers::{Brand, Network, RedisServer, RespClient, RespReply};
use std::io::ErrorKind;
use std::time::Duration;

#[test]
fn a_disconnected_host_is_silent() {
    let mut network = match Network::new() {
        Ok(network) => network,
        // Without the rights to create networks only the error is checked, which says what is missing.
        Err(why) => {
            return assert!(why.contains("root's rights") || why.contains("need the program"), "{why}");
        }
    };
    let (near, far) = (network.add_host().unwrap(), network.add_host().unwrap());
    assert_ne!(near.address(), far.address());
    let server = RedisServer::setup(Brand::Redis).on_host(&near).start();
    assert!(server.address().starts_with(near.address()));
    let mut client = RespClient::connect_tcp(&server.address()).unwrap();
    client.call(&["SET", "a", "1"]).unwrap().expect_ok();

    near.disconnect().unwrap();
    client.set_timeout(Duration::from_millis(200)).unwrap();
    assert_eq!(client.call(&["INCR", "a"]).unwrap_err().kind(), ErrorKind::WouldBlock);
    // The guard still reaches the server, which has not got the client's command.
    assert_eq!(server.command(&["GET", "a"]).integer(), 1);
    near.reconnect().unwrap();
    client.set_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(client.read().unwrap(), RespReply::Integer(2));

    // Hosts reach each other, and only the far one is disconnected.
    let replica = RedisServer::setup(Brand::Redis)
        .on_host(&far)
        .set("replicaof", &format!("{} {}", near.address(), server.port()))
        .start();
    ratekeeper_testkit::wait_for(TEST_TIMEOUT, "a replica on another host is in sync", || {
        (replica.info("master_link_status") == "up").then_some(())
    });
    far.disconnect().unwrap();
    client.call(&["SET", "b", "1"]).unwrap().expect_ok();
    assert_eq!(client.call(&["WAIT", "1", "200"]).unwrap().integer(), 0);
    far.reconnect().unwrap();
    assert_eq!(client.call(&["WAIT", "1", "20000"]).unwrap().integer(), 1);

    // Isolated from each other, both are still reachable from this machine.
    near.isolate_from(&far).unwrap();
    client.call(&["SET", "b", "2"]).unwrap().expect_ok();
    assert_eq!(client.call(&["WAIT", "1", "200"]).unwrap().integer(), 0);
    let mut other = RespClient::connect_tcp(&replica.address()).unwrap();
    assert_eq!(other.call(&["GET", "b"]).unwrap().integer(), 1);
    near.end_isolation_from(&far).unwrap();
    assert_eq!(client.call(&["WAIT", "1", "20000"]).unwrap().integer(), 1);
}

//! Islands that are cut off.

use ratekeeper_testkit::PATIENCE;
use ratekeeper_testkit::servers::{Brand, Network, RedisServer, RespClient, RespReply};
use std::io::ErrorKind;
use std::time::Duration;

#[test]
fn an_island_is_silent_while_it_is_cut_off() {
    let mut network = match Network::new() {
        Ok(network) => network,
        // Where nobody may lay networks there is nothing to try, but it is told what is missing.
        Err(why) => {
            return assert!(why.contains("root's rights") || why.contains("need the program"), "{why}");
        }
    };
    let (near, far) = (network.island().unwrap(), network.island().unwrap());
    assert_ne!(near.address(), far.address());
    let server = RedisServer::setup(Brand::Redis).on(&near).start();
    assert!(server.address().starts_with(near.address()));
    let mut client = RespClient::tcp(&server.address()).unwrap();
    client.ask(&["SET", "a", "1"]).unwrap().done();

    near.cut().unwrap();
    client.set_patience(Duration::from_millis(200)).unwrap();
    assert_eq!(client.ask(&["INCR", "a"]).unwrap_err().kind(), ErrorKind::WouldBlock);
    // The guard is heard all the same, and the server has not heard the client.
    assert_eq!(server.command(&["GET", "a"]).integer(), 1);
    near.join().unwrap();
    client.set_patience(PATIENCE).unwrap();
    assert_eq!(client.read().unwrap(), RespReply::Integer(2));

    // Islands reach each other, and the far one alone is cut off.
    let replica = RedisServer::setup(Brand::Redis)
        .on(&far)
        .set("replicaof", &format!("{} {}", near.address(), server.port()))
        .start();
    ratekeeper_testkit::within(PATIENCE, "a replica on another island follows", || {
        (replica.info("master_link_status") == "up").then_some(())
    });
    far.cut().unwrap();
    client.ask(&["SET", "b", "1"]).unwrap().done();
    assert_eq!(client.ask(&["WAIT", "1", "200"]).unwrap().integer(), 0);
    far.join().unwrap();
    assert_eq!(client.ask(&["WAIT", "1", "20000"]).unwrap().integer(), 1);

    // Parted from each other, both still hear the rest of the world.
    near.part_from(&far).unwrap();
    client.ask(&["SET", "b", "2"]).unwrap().done();
    assert_eq!(client.ask(&["WAIT", "1", "200"]).unwrap().integer(), 0);
    let mut other = RespClient::tcp(&replica.address()).unwrap();
    assert_eq!(other.ask(&["GET", "b"]).unwrap().integer(), 1);
    near.meet(&far).unwrap();
    assert_eq!(client.ask(&["WAIT", "1", "20000"]).unwrap().integer(), 1);
}

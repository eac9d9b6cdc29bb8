//! The fault-injecting proxy between a client and a real server, with each kind of fault.

#![expect(clippy::unwrap_used, reason = "an unwrap in a test helper fails the test, as it should")]
#![expect(clippy::disallowed_methods, reason = "measures real time")]

use ratekeeper_testkit::servers::{
    ChaosProxy, DroppedDirection, LinkFaults, RedisServer, RespClient, RespReply,
};
use ratekeeper_testkit::{TEST_TIMEOUT, wait_for};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const SHORT_TIMEOUT: Duration = Duration::from_millis(150);

fn connect(proxy: &ChaosProxy) -> RespClient {
    let connection = RespClient::connect_tcp(&proxy.address()).unwrap();
    connection.set_timeout(SHORT_TIMEOUT).unwrap();
    connection
}

/// The duration of one call.
fn call_duration(client: &mut RespClient) -> Duration {
    let start = Instant::now();
    client.set_timeout(TEST_TIMEOUT).unwrap();
    client.call(&["PING"]).unwrap().expect_ok();
    start.elapsed()
}

#[test]
fn without_faults_everything_passes() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::new(&server.address());
    let mut client = connect(&proxy);
    client.set_timeout(TEST_TIMEOUT).unwrap();
    let long = "x".repeat(3_000_000);
    client.call(&["SET", "a", &long]).unwrap().expect_ok();
    assert_eq!(client.call(&["GET", "a"]).unwrap().text(), long);
    assert_eq!((proxy.connections(), proxy.total_connections()), (1, 1));
    drop(client);
    wait_for(TEST_TIMEOUT, "the server sees the client disconnect", || {
        let others = server.command(&["CLIENT", "LIST", "TYPE", "NORMAL"]).text().lines().count();
        (others == 1 && proxy.connections() == 0).then_some(())
    });
}

#[test]
fn latency_delays_without_reducing_throughput() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::new(&server.address());
    let mut client = connect(&proxy);
    let latency = Duration::from_millis(50);
    proxy.set_faults(LinkFaults { latency, ..LinkFaults::NONE });
    assert!(call_duration(&mut client) >= latency * 2);
    // A hundred pipelined calls arrive together.
    let start = Instant::now();
    for _ in 0..100 {
        client.send(&["PING"]).unwrap();
    }
    for _ in 0..100 {
        client.read().unwrap().expect_ok();
    }
    assert!(start.elapsed() < latency * 40, "{:?}", start.elapsed());
    proxy.set_faults(LinkFaults { jitter: latency, ..LinkFaults::NONE });
    call_duration(&mut client);
}

#[test]
fn bandwidth_is_limited() {
    let server = RedisServer::start();
    server.command(&["SET", "a", &"x".repeat(1000)]).expect_ok();
    let proxy = ChaosProxy::new(&server.address());
    let mut client = connect(&proxy);
    client.set_timeout(TEST_TIMEOUT).unwrap();
    proxy.set_faults(LinkFaults { bytes_per_second: Some(4000), ..LinkFaults::NONE });
    let start = Instant::now();
    client.call(&["GET", "a"]).unwrap().expect_ok();
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
}

#[test]
fn dropped_data_is_lost_and_the_connection_stays_open() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::new(&server.address());
    for (dropped, executed) in
        [(DroppedDirection::Requests, 0), (DroppedDirection::Replies, 1), (DroppedDirection::Both, 1)]
    {
        let mut client = connect(&proxy);
        client.call(&["PING"]).unwrap().expect_ok();
        proxy.set_faults(LinkFaults { dropped, ..LinkFaults::NONE });
        assert_eq!(client.call(&["INCR", "a"]).unwrap_err().kind(), ErrorKind::WouldBlock);
        proxy.set_faults(LinkFaults::NONE);
        client.set_timeout(TEST_TIMEOUT).unwrap();
        assert_eq!(
            client.call(&["GET", "a"]).unwrap(),
            match executed {
                0 => RespReply::Nil,
                _ => RespReply::Bulk(b"1".to_vec()),
            }
        );
    }
}

#[test]
fn a_pause_loses_nothing() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::new(&server.address());
    let mut client = connect(&proxy);
    client.call(&["PING"]).unwrap().expect_ok();
    proxy.pause();
    assert_eq!(client.call(&["INCR", "a"]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(server.command(&["GET", "a"]), RespReply::Nil);
    proxy.resume();
    client.set_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(client.read().unwrap(), RespReply::Integer(1));
}

#[test]
fn resets_come_before_or_after_the_server_executes() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::new(&server.address());
    let is_reset = |client: &mut RespClient, words: &[&str]| {
        client.set_timeout(TEST_TIMEOUT).unwrap();
        assert_eq!(client.call(words).unwrap_err().kind(), ErrorKind::ConnectionReset);
    };
    let mut clients = [connect(&proxy), connect(&proxy), connect(&proxy)];
    for client in &mut clients {
        client.call(&["PING"]).unwrap().expect_ok();
    }
    proxy.set_faults(LinkFaults { reset_requests: 1.0, ..LinkFaults::NONE });
    is_reset(&mut clients[0], &["INCR", "a"]);
    assert_eq!(server.command(&["GET", "a"]), RespReply::Nil);
    proxy.set_faults(LinkFaults { reset_replies: 1.0, ..LinkFaults::NONE });
    is_reset(&mut clients[1], &["INCR", "a"]);
    assert_eq!(server.command(&["GET", "a"]).integer(), 1);
    proxy.set_faults(LinkFaults::NONE);
    proxy.reset_all();
    is_reset(&mut clients[2], &["PING"]);
    wait_for(TEST_TIMEOUT, "all connections end", || (proxy.connections() == 0).then_some(()));
    proxy.set_faults(LinkFaults { reset_connections: 1.0, ..LinkFaults::NONE });
    // The reset may arrive before the connect returns or at the first call.
    let result = RespClient::connect_tcp(&proxy.address()).and_then(|mut client| client.call(&["PING"]));
    assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn the_same_seed_resets_the_same_calls() {
    let server = RedisServer::start();
    let outcomes = |seed| {
        let proxy = ChaosProxy::with_seed(&server.address(), seed);
        proxy.set_faults(LinkFaults { reset_requests: 0.3, ..LinkFaults::NONE });
        (0..100).map(|_| connect(&proxy).call(&["PING"]).is_ok()).collect::<Vec<_>>()
    };
    let first = outcomes(7);
    let passed = first.iter().filter(|passed| **passed).count();
    assert!((50..90).contains(&passed), "{passed}");
    assert_eq!(outcomes(7), first);
    assert_ne!(outcomes(8), first);
}

#[test]
fn a_closed_proxy_refuses_connections_until_it_opens_to_another_target() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    other.command(&["SET", "name", "other"]).expect_ok();
    let proxy = ChaosProxy::new(&server.address());
    let mut client = connect(&proxy);
    client.call(&["PING"]).unwrap().expect_ok();
    proxy.close();
    assert!(client.call(&["PING"]).is_err());
    assert_eq!(TcpStream::connect(proxy.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    proxy.set_target(&other.address());
    proxy.open();
    assert_eq!(connect(&proxy).call(&["GET", "name"]).unwrap().text(), "other");
}

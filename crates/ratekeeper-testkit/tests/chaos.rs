//! The proxy between a client and a real server, in all its weathers.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]
#![expect(clippy::disallowed_methods, reason = "how long something real takes is what is tested")]

use ratekeeper_testkit::servers::{
    ChaosProxy, DroppedDirection, LinkFaults, RedisServer, RespClient, RespReply,
};
use ratekeeper_testkit::{PATIENCE, within};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(150);

fn connect(proxy: &ChaosProxy) -> RespClient {
    let connection = RespClient::tcp(&proxy.address()).unwrap();
    connection.set_patience(SOON).unwrap();
    connection
}

/// How long one call takes.
fn timed(client: &mut RespClient) -> Duration {
    let begun = Instant::now();
    client.set_patience(PATIENCE).unwrap();
    client.ask(&["PING"]).unwrap().done();
    begun.elapsed()
}

#[test]
fn in_fine_weather_everything_passes() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::to(&server.address());
    let mut client = connect(&proxy);
    client.set_patience(PATIENCE).unwrap();
    let long = "x".repeat(3_000_000);
    client.ask(&["SET", "a", &long]).unwrap().done();
    assert_eq!(client.ask(&["GET", "a"]).unwrap().text(), long);
    assert_eq!((proxy.connections(), proxy.connections_ever()), (1, 1));
    drop(client);
    within(PATIENCE, "the server hears that the client is gone", || {
        let others = server.command(&["CLIENT", "LIST", "TYPE", "NORMAL"]).text().lines().count();
        (others == 1 && proxy.connections() == 0).then_some(())
    });
}

#[test]
fn latency_delays_and_does_not_slow() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::to(&server.address());
    let mut client = connect(&proxy);
    let latency = Duration::from_millis(50);
    proxy.set_weather(LinkFaults { latency, ..LinkFaults::FINE });
    assert!(timed(&mut client) >= latency * 2);
    // A hundred calls on their way together arrive together.
    let begun = Instant::now();
    for _ in 0..100 {
        client.send(&["PING"]).unwrap();
    }
    for _ in 0..100 {
        client.read().unwrap().done();
    }
    assert!(begun.elapsed() < latency * 40, "{:?}", begun.elapsed());
    proxy.set_weather(LinkFaults { jitter: latency, ..LinkFaults::FINE });
    timed(&mut client);
}

#[test]
fn a_trickle_takes_its_time() {
    let server = RedisServer::start();
    server.command(&["SET", "a", &"x".repeat(1000)]).done();
    let proxy = ChaosProxy::to(&server.address());
    let mut client = connect(&proxy);
    client.set_patience(PATIENCE).unwrap();
    proxy.set_weather(LinkFaults { bytes_per_second: Some(4000), ..LinkFaults::FINE });
    let begun = Instant::now();
    client.ask(&["GET", "a"]).unwrap().done();
    assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
}

#[test]
fn what_is_swallowed_is_lost_and_the_connection_stays() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::to(&server.address());
    for (swallows, done) in
        [(DroppedDirection::Requests, 0), (DroppedDirection::Replies, 1), (DroppedDirection::Everything, 1)]
    {
        let mut client = connect(&proxy);
        client.ask(&["PING"]).unwrap().done();
        proxy.set_weather(LinkFaults { swallows, ..LinkFaults::FINE });
        assert_eq!(client.ask(&["INCR", "a"]).unwrap_err().kind(), ErrorKind::WouldBlock);
        proxy.set_weather(LinkFaults::FINE);
        client.set_patience(PATIENCE).unwrap();
        assert_eq!(
            client.ask(&["GET", "a"]).unwrap(),
            match done {
                0 => RespReply::Nil,
                _ => RespReply::Bulk(b"1".to_vec()),
            }
        );
    }
}

#[test]
fn a_pause_loses_nothing() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::to(&server.address());
    let mut client = connect(&proxy);
    client.ask(&["PING"]).unwrap().done();
    proxy.pause();
    assert_eq!(client.ask(&["INCR", "a"]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(server.command(&["GET", "a"]), RespReply::Nil);
    proxy.resume();
    client.set_patience(PATIENCE).unwrap();
    assert_eq!(client.read().unwrap(), RespReply::Integer(1));
}

#[test]
fn resets_come_before_or_after_the_server_heard() {
    let server = RedisServer::start();
    let proxy = ChaosProxy::to(&server.address());
    let is_reset = |client: &mut RespClient, words: &[&str]| {
        client.set_patience(PATIENCE).unwrap();
        assert_eq!(client.ask(words).unwrap_err().kind(), ErrorKind::ConnectionReset);
    };
    let mut clients = [connect(&proxy), connect(&proxy), connect(&proxy)];
    for client in &mut clients {
        client.ask(&["PING"]).unwrap().done();
    }
    proxy.set_weather(LinkFaults { reset_requests: 1.0, ..LinkFaults::FINE });
    is_reset(&mut clients[0], &["INCR", "a"]);
    assert_eq!(server.command(&["GET", "a"]), RespReply::Nil);
    proxy.set_weather(LinkFaults { reset_replies: 1.0, ..LinkFaults::FINE });
    is_reset(&mut clients[1], &["INCR", "a"]);
    assert_eq!(server.command(&["GET", "a"]).integer(), 1);
    proxy.set_weather(LinkFaults::FINE);
    proxy.reset_all();
    is_reset(&mut clients[2], &["PING"]);
    within(PATIENCE, "all connections end", || (proxy.connections() == 0).then_some(()));
    proxy.set_weather(LinkFaults { reset_connections: 1.0, ..LinkFaults::FINE });
    // It may be gone before it is heard that it was made.
    let refused = RespClient::tcp(&proxy.address()).and_then(|mut client| client.ask(&["PING"]));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_share_of_calls_is_reset_the_same_for_the_same_seed() {
    let server = RedisServer::start();
    let outcomes = |seed| {
        let proxy = ChaosProxy::seeded(&server.address(), seed);
        proxy.set_weather(LinkFaults { reset_requests: 0.3, ..LinkFaults::FINE });
        (0..100).map(|_| connect(&proxy).ask(&["PING"]).is_ok()).collect::<Vec<_>>()
    };
    let first = outcomes(7);
    let passed = first.iter().filter(|passed| **passed).count();
    assert!((50..90).contains(&passed), "{passed}");
    assert_eq!(outcomes(7), first);
    assert_ne!(outcomes(8), first);
}

#[test]
fn a_closed_proxy_refuses_until_it_opens_and_may_lead_elsewhere() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    other.command(&["SET", "name", "other"]).done();
    let proxy = ChaosProxy::to(&server.address());
    let mut client = connect(&proxy);
    client.ask(&["PING"]).unwrap().done();
    proxy.close();
    assert!(client.ask(&["PING"]).is_err());
    assert_eq!(TcpStream::connect(proxy.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    proxy.set_target(&other.address());
    proxy.open();
    assert_eq!(connect(&proxy).ask(&["GET", "name"]).unwrap().text(), "other");
}

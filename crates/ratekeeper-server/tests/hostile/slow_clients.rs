//! Many slow HTTP clients at once, none of which completes its request or reads its response.

use crate::attack::{RULES, under_attack};
use crate::exchange;
use crate::support::{TestServer, post};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The number of connections to open: `wanted`, or fewer if the limit on open files is low. Both ends are in this
/// process.
fn connection_count(wanted: usize) -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let most = files.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    most.map_or(wanted, |most| wanted.min(most.saturating_sub(200) / 2))
}

async fn open_connections(server: &TestServer, size: usize) -> Vec<TcpStream> {
    let mut connections = Vec::new();
    for _ in 0..connection_count(size) {
        connections.push(TcpStream::connect(server.address).await.unwrap());
    }
    connections
}

/// Asserts that new clients get responses meanwhile.
async fn assert_new_clients_are_served(server: &TestServer) {
    for _ in 0..100 {
        let response = server.connect().await.post("/check", br#"{"client_key":"a"}"#).await;
        assert_eq!(response.status, 200);
    }
}

#[test]
fn two_thousand_clients_with_incomplete_heads() {
    let halves: [&[u8]; 8] = [
        b"",
        b"P",
        b"POST /check HTTP/1.1\r\nHost: a\r\nContent-Le",
        b"GET /livez HTTP/1.1\r\nHost: a\r\nX: y\r\n",
        b"PRI * HTTP/2.0\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        b"\r\n",
        b"DELETE / HTTP/1.1\r\nHost: a\r\n",
    ];
    under_attack(RULES, 80, async |server| {
        let mut connections = open_connections(server, 2000).await;
        for (stream, half) in connections.iter_mut().zip(halves.iter().cycle()) {
            stream.write_all(half).await.unwrap();
        }
        assert_new_clients_are_served(server).await;
    });
}

#[test]
fn a_thousand_clients_that_drip_their_bodies() {
    let heads = [
        "POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n{",
        "POST /check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nea60\r\n{",
        // Bodies of the largest batches, for which there are few permits; most of these are rejected for now.
        "POST /v1/check/batch HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n{",
        "POST /v1/check/batch HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n{",
    ];
    under_attack(RULES, 64, async |server| {
        let mut connections = open_connections(server, 1000).await;
        for (stream, head) in connections.iter_mut().zip(heads.iter().cycle()) {
            stream.write_all(head.as_bytes()).await.unwrap();
        }
        for _ in 0..10 {
            for stream in &mut connections {
                let _ = stream.write_all(b" ").await;
            }
            assert_new_clients_are_served(server).await;
        }
        // Announcing a large body without sending it holds no permit.
        let batch =
            format!(r#"{{"checks":[{}{{"client_key":"a"}}]}}"#, r#"{"client_key":"a"},"#.repeat(5_000));
        let response = server.connect().await.post("/v1/check/batch", batch.as_bytes()).await;
        assert_eq!(response.status, 200, "{}", response.head);
    });
}

#[test]
fn oversized_content_lengths_are_rejected_at_once() {
    under_attack(RULES, 16, async |server| {
        for path in ["/check", "/v1/check", "/v1/check/batch"] {
            for expect in ["", "Expect: 100-continue\r\n"] {
                for length in ["104857600", "1000000000000000000"] {
                    let head = format!(
                        "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{expect}\r\n"
                    );
                    // The body is never sent.
                    let response = exchange(server.address, [head.as_bytes()]).await.expect(path);
                    assert_eq!((response.status, path), (413, path), "{length}: {response:?}");
                }
            }
        }
    });
}

#[test]
fn endless_requests_are_cut_off() {
    let piece = 64 * 1024;
    let chunked = "POST /check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let cases = [
        ("chunks", chunked, "400\r\n".to_owned() + &" ".repeat(1024) + "\r\n", 413),
        ("chunks of a byte", chunked, "1\r\n \r\n".to_owned(), 413),
        ("a chunk's extensions", &format!("{chunked}1;"), "x=y;".to_owned(), 400),
        ("trailers", &format!("{chunked}0\r\n"), "X: y\r\n".to_owned(), 400),
        ("a chunk", &format!("{chunked}ffffffff\r\n"), " ".to_owned(), 413),
        ("fields", "GET /livez HTTP/1.1\r\nHost: a\r\n", "X: y\r\n".to_owned(), 431),
        ("a field", "GET /livez HTTP/1.1\r\nHost: a\r\nX: ", "y".to_owned(), 431),
        ("a field's name", "GET /livez HTTP/1.1\r\nHost: a\r\n", "y".to_owned(), 431),
        ("a path", "GET /", "y".to_owned(), 431),
        ("a query", "GET /livez?", "y".to_owned(), 431),
        ("a method", "", "Y".to_owned(), 431),
    ];
    under_attack(RULES, 48, async |server| {
        for (name, begin, more, status) in cases {
            let more = more.repeat(piece / more.len());
            let mut requests = JoinSet::new();
            for _ in 0..8 {
                let (address, begin, more) = (server.address, begin.to_owned(), more.clone());
                requests.spawn(async move {
                    let mut pieces = vec![begin.as_bytes()];
                    pieces.resize(1_000, more.as_bytes());
                    exchange(address, pieces).await
                });
            }
            // Some connections may have been reset in mid-write, before their response was read.
            let responses: Vec<_> = requests.join_all().await.into_iter().flatten().collect();
            assert!(!responses.is_empty(), "{name}");
            assert!(responses.iter().all(|response| response.status == status), "{name}: {responses:?}");
        }
    });
}

#[test]
fn two_hundred_clients_that_never_read() {
    let check = post("/check", br#"{"client_key":"a"}"#).repeat(100);
    let batch = format!(r#"{{"checks":[{}{{"client_key":"a"}}]}}"#, r#"{"client_key":"a"},"#.repeat(1_000));
    let batch = post("/v1/check/batch", batch.as_bytes());
    let document = b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n".repeat(100);
    under_attack(RULES, 96, async |server| {
        let mut connections = JoinSet::new();
        for index in 0..connection_count(200) {
            let socket = TcpSocket::new_v4().unwrap();
            // The default socket buffers would take megabytes per connection, on both sides.
            socket.set_recv_buffer_size(4096).unwrap();
            socket.set_send_buffer_size(64 * 1024).unwrap();
            let mut stream = socket.connect(server.address).await.unwrap();
            let requests = [&check, &batch, &document][index % 3].clone();
            connections.spawn(async move {
                // Write until the server has stopped reading too.
                let stuck = async { while stream.write_all(&requests).await.is_ok() {} };
                let _ = timeout(Duration::from_secs(1), stuck).await;
                stream
            });
        }
        let connections = connections.join_all().await;
        assert_new_clients_are_served(server).await;
        drop(connections);
    });
}

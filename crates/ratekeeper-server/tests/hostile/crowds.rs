//! Clients that keep a server waiting: many of them, each with little, and none of them done.

use crate::exchange;
use crate::siege::{RULES, siege};
use crate::support::{Server, post};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How many connections to open where so many are wanted. Both ends are this process's, which may have no more open
/// files than the system says.
fn affordable(wanted: usize) -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let most = files.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    most.map_or(wanted, |most| wanted.min(most.saturating_sub(200) / 2))
}

async fn crowd(server: &Server, size: usize) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    for _ in 0..affordable(size) {
        crowd.push(TcpStream::connect(server.address).await.unwrap());
    }
    crowd
}

/// Newcomers are answered while the crowd is there.
async fn newcomers(server: &Server) {
    for _ in 0..100 {
        let answer = server.connect().await.post("/check", br#"{"client_key":"a"}"#).await;
        assert_eq!(answer.status, 200);
    }
}

#[test]
fn two_thousand_who_send_half_a_head() {
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
    siege(RULES, 80, async |server| {
        let mut crowd = crowd(server, 2000).await;
        for (stream, half) in crowd.iter_mut().zip(halves.iter().cycle()) {
            stream.write_all(half).await.unwrap();
        }
        newcomers(server).await;
    });
}

#[test]
fn a_thousand_who_drip_their_bodies() {
    let heads = [
        "POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n{",
        "POST /check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nea60\r\n{",
        // As large as a batch may be, for which there are few places; most of these are told to come back.
        "POST /v1/check/batch HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n{",
        "POST /v1/check/batch HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n{",
    ];
    siege(RULES, 64, async |server| {
        let mut crowd = crowd(server, 1000).await;
        for (stream, head) in crowd.iter_mut().zip(heads.iter().cycle()) {
            stream.write_all(head.as_bytes()).await.unwrap();
        }
        for _ in 0..10 {
            for stream in &mut crowd {
                let _ = stream.write_all(b" ").await;
            }
            newcomers(server).await;
        }
        // Who only announces a large body takes no place from who sends one.
        let batch =
            format!(r#"{{"checks":[{}{{"client_key":"a"}}]}}"#, r#"{"client_key":"a"},"#.repeat(5_000));
        let answer = server.connect().await.post("/v1/check/batch", batch.as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.head);
    });
}

#[test]
fn bodies_that_announce_too_much_are_refused_at_once() {
    siege(RULES, 16, async |server| {
        for path in ["/check", "/v1/check", "/v1/check/batch"] {
            for expect in ["", "Expect: 100-continue\r\n"] {
                for length in ["104857600", "1000000000000000000"] {
                    let head = format!(
                        "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{expect}\r\n"
                    );
                    // Not a byte of the body is sent.
                    let answer = exchange(server.address, [head.as_bytes()]).await.expect(path);
                    assert_eq!((answer.status, path), (413, path), "{length}: {answer:?}");
                }
            }
        }
    });
}

#[test]
fn what_never_ends_is_cut_off() {
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
    siege(RULES, 48, async |server| {
        for (name, begin, more, status) in cases {
            let more = more.repeat(piece / more.len());
            let mut asking = JoinSet::new();
            for _ in 0..8 {
                let (address, begin, more) = (server.address, begin.to_owned(), more.clone());
                asking.spawn(async move {
                    let mut pieces = vec![begin.as_bytes()];
                    pieces.resize(1_000, more.as_bytes());
                    exchange(address, pieces).await
                });
            }
            // Some may have been closed on in the middle of a word, and have heard nothing.
            let heard: Vec<_> = asking.join_all().await.into_iter().flatten().collect();
            assert!(!heard.is_empty(), "{name}");
            assert!(heard.iter().all(|answer| answer.status == status), "{name}: {heard:?}");
        }
    });
}

#[test]
fn two_hundred_who_ask_and_never_read() {
    let check = post("/check", br#"{"client_key":"a"}"#).repeat(100);
    let batch = format!(r#"{{"checks":[{}{{"client_key":"a"}}]}}"#, r#"{"client_key":"a"},"#.repeat(1_000));
    let batch = post("/v1/check/batch", batch.as_bytes());
    let document = b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n".repeat(100);
    siege(RULES, 96, async |server| {
        let mut crowd = JoinSet::new();
        for index in 0..affordable(200) {
            let socket = TcpSocket::new_v4().unwrap();
            // The system would take megabytes for each, on both sides.
            socket.set_recv_buffer_size(4096).unwrap();
            socket.set_send_buffer_size(64 * 1024).unwrap();
            let mut stream = socket.connect(server.address).await.unwrap();
            let requests = [&check, &batch, &document][index % 3].clone();
            crowd.spawn(async move {
                // Until the server has stopped reading too.
                let stuck = async { while stream.write_all(&requests).await.is_ok() {} };
                let _ = timeout(Duration::from_secs(1), stuck).await;
                stream
            });
        }
        let crowd = crowd.join_all().await;
        newcomers(server).await;
        drop(crowd);
    });
}

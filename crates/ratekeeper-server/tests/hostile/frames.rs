//! Hostile HTTP/2 clients, frame by frame.

use crate::attack::{RULES, under_attack};
use crate::support::TestServer;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
/// The maximum number of concurrent streams that the server allows.
const MAX_STREAMS: u32 = 128;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The id of the `index`-th stream that a client opens.
pub(crate) fn stream_id(index: u32) -> u32 {
    2 * index + 1
}

/// The header block of a request, uncompressed.
fn header_block(method: u8, path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    [&[method, 0x86, 0x01, 1, b'a', 0x04, length], path.as_bytes()].concat()
}

const GET: u8 = 0x82;
const POST: u8 = 0x83;

/// A connection that has sent only the preface and these client settings.
async fn connect_raw(server: &TestServer, settings: &[u8]) -> TcpStream {
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    connection.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()).await.unwrap();
    connection
}

/// Sends `frames` repeatedly, up to `bytes` bytes and for as long as the server accepts them, and reads meanwhile if
/// `reads`. Returns the error code of the server's `GOAWAY`, or `None` if it sent none.
pub(crate) async fn flood(connection: TcpStream, frames: &[u8], bytes: usize, reads: bool) -> Option<u32> {
    let (mut from, mut to) = connection.into_split();
    let send = async {
        for _ in 0..bytes.div_ceil(frames.len()) {
            if to.write_all(frames).await.is_err() {
                return;
            }
        }
    };
    let mut received = Vec::new();
    let hear = async {
        while reads && !matches!(from.read_buf(&mut received).await, Ok(0) | Err(_)) {}
        if !reads {
            std::future::pending::<()>().await;
        }
    };
    // A server that stops reading has given up on this connection too.
    let _ = timeout(Duration::from_millis(500), async {
        tokio::select! {
            () = send => {}
            () = hear => {}
        }
    })
    .await;
    let _ = timeout(Duration::from_millis(50), from.read_to_end(&mut received)).await;
    goaway_code(&received)
}

/// The error code of the last `GOAWAY` in the server's output.
fn goaway_code(received: &[u8]) -> Option<u32> {
    let code = |payload: &[u8]| u32::from_be_bytes(payload[4..8].try_into().unwrap());
    frames(received).filter(|(kind, _)| *kind == GOAWAY).last().map(|(_, payload)| code(payload))
}

/// The types and payloads of the complete frames at the start of `bytes`.
fn frames(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = bytes.split_at_checked(9)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (payload, behind) = rest.split_at_checked(length)?;
        bytes = behind;
        Some((head[3], payload))
    })
}

pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

#[test]
fn streams_that_are_reset_at_once() {
    under_attack(RULES, 32, async |server| {
        let fields = header_block(POST, "/check");
        let resets: Vec<u8> = (0..100_000)
            .flat_map(|index| {
                let open = frame(HEADERS, END_HEADERS, stream_id(index), &fields);
                [open, frame(RST_STREAM, 0, stream_id(index), &8_u32.to_be_bytes())].concat()
            })
            .collect();
        let connection = connect_raw(server, &[]).await;
        assert_eq!(flood(connection, &resets, resets.len(), true).await, Some(ENHANCE_YOUR_CALM));
    });
}

#[test]
fn endless_continuation_frames() {
    under_attack(RULES, 32, async |server| {
        let more = frame(CONTINUATION, 0, 1, &[0x00; 16_000]);
        let nothing = frame(CONTINUATION, 0, 1, &[]);
        for more in [more, nothing.repeat(1000)] {
            let mut connection = connect_raw(server, &[]).await;
            connection.write_all(&frame(HEADERS, END_STREAM, 1, &header_block(GET, "/livez"))).await.unwrap();
            let goaway = flood(connection, &more, 64 << 20, true).await;
            assert!(goaway.is_some(), "the server sends GOAWAY");
        }
    });
}

/// An invalid frame on the given stream.
type BadFrame = fn(u32) -> Vec<u8>;

#[test]
fn invalid_frames_on_many_streams() {
    let fields = header_block(POST, "/check");
    let bad_frames: [(&str, u8, BadFrame); 3] = [
        ("a window update of zero", 0, |stream| frame(WINDOW_UPDATE, 0, stream, &[0; 4])),
        ("data after END_STREAM", END_STREAM, |stream| frame(DATA, 0, stream, b"{}")),
        ("a stream that depends on itself", 0, |stream| {
            frame(PRIORITY, 0, stream, &[&stream.to_be_bytes()[..], &[0]].concat())
        }),
    ];
    under_attack(RULES, 32, async |server| {
        for (name, flags, bad_frame) in bad_frames {
            let frames: Vec<u8> = (0..50_000)
                .flat_map(|index| {
                    let open = frame(HEADERS, END_HEADERS | flags, stream_id(index), &fields);
                    [open, bad_frame(stream_id(index))].concat()
                })
                .collect();
            let connection = connect_raw(server, &[]).await;
            let goaway = flood(connection, &frames, frames.len(), true).await;
            assert!(goaway.is_some(), "{name}");
        }
    });
}

#[test]
fn floods_of_empty_frames() {
    let floods = [
        frame(PING, 0, 0, b"12345678"),
        frame(SETTINGS, 0, 0, &[]),
        frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]),
        frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1]),
        frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
        frame(DATA, 0, 1, &[]),
        // All of it padding.
        frame(DATA, 8, 1, &[0; 1]),
        // An unknown frame type.
        frame(0xee, 0, 0, &[0; 1000]),
        // A stream that was never opened.
        frame(RST_STREAM, 0, 2001, &[0; 4]),
    ];
    under_attack(RULES, 48, async |server| {
        for same in &floods {
            for reads in [true, false] {
                let mut connection = connect_raw(server, &[]).await;
                let open = frame(HEADERS, END_HEADERS, 1, &header_block(POST, "/check"));
                connection.write_all(&open).await.unwrap();
                // The server may tolerate the frames or end the connection: either is fine.
                flood(connection, &same.repeat(1000), 8 << 20, reads).await;
            }
        }
    });
}

#[test]
fn an_hpack_bomb() {
    under_attack(RULES, 32, async |server| {
        // An HPACK bomb: one field of 4 kB enters the dynamic table, and every further byte references it.
        let large = [&[0x40, 1, b'x', 0x7f, 0xa1, 0x1e][..], &[b'y'; 4000], &[0xbe; 10_000]].concat();
        let fields = [header_block(GET, "/livez"), large].concat();
        let mut connection = connect_raw(server, &[]).await;
        for index in 0..MAX_STREAMS {
            let open = frame(HEADERS, END_HEADERS | END_STREAM, stream_id(index), &fields);
            if connection.write_all(&open).await.is_err() {
                break;
            }
        }
        let goaway = flood(connection, &frame(PING, 0, 0, &[0; 8]), 8, true).await;
        assert_eq!(goaway, Some(ENHANCE_YOUR_CALM));
    });
}

#[test]
fn a_hundred_streams_with_incomplete_bodies() {
    under_attack(RULES, 64, async |server| {
        let mut clients = Vec::new();
        for _ in 0..16 {
            let mut connection = connect_raw(server, &[]).await;
            let mut received = Vec::new();
            while !frames(&received).any(|(kind, _)| kind == WINDOW_UPDATE) {
                connection.read_buf(&mut received).await.unwrap();
            }
            for index in 0..MAX_STREAMS {
                let open = frame(HEADERS, END_HEADERS, stream_id(index), &header_block(POST, "/check"));
                // Together they fill the connection's receive window.
                let part = frame(DATA, 0, stream_id(index), &[b' '; 8000]);
                connection.write_all(&[open, part].concat()).await.unwrap();
            }
            clients.push(connection);
        }
        for _ in 0..100 {
            let response = server.connect().await.post("/check", br#"{"client_key":"a"}"#).await;
            assert_eq!(response.status, 200);
        }
    });
}

/// HTTP/2 clients with a receive window of zero request long responses.
#[test]
fn a_hundred_streams_that_read_no_response() {
    let batch = format!(r#"{{"checks":[{}{{"client_key":"a"}}]}}"#, r#"{"client_key":"a"},"#.repeat(3_000));
    let batch = Bytes::from(batch);
    under_attack(RULES, 128, async |server| {
        let mut clients = JoinSet::new();
        for _ in 0..8 {
            let stream = TcpStream::connect(server.address).await.unwrap();
            let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(0)
                .handshake(TokioIo::new(stream))
                .await
                .unwrap();
            tokio::spawn(connection);
            for index in 0..MAX_STREAMS {
                let (mut sender, body) = (sender.clone(), Full::new(batch.clone()));
                let request = match index % 2 {
                    0 => hyper::Request::post(format!("http://{}/v1/check/batch", server.address)),
                    _ => hyper::Request::get(format!("http://{}/openapi.json", server.address)),
                };
                let request = request.body(body).unwrap();
                clients.spawn(async move { sender.send_request(request).await });
            }
        }
        let mut begun = Vec::new();
        let _ = timeout(Duration::from_secs(1), async {
            while let Some(response) = clients.join_next().await {
                begun.extend(response.unwrap());
            }
        })
        .await;
        let whole = server.connect().await.post("/v1/check/batch", &batch).await;
        assert_eq!(whole.status, 200);
    });
}

/// Reads until a frame satisfies `is_it`, and returns all frames up to it. Later bytes stay in `received`.
async fn read_until(
    connection: &mut TcpStream,
    received: &mut Vec<u8>,
    is_it: impl Fn(u8, u8, u32) -> bool,
) -> Vec<u8> {
    let mut passed = 0;
    loop {
        while let Some((head, behind)) = received[passed..].split_at_checked(9) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            if behind.len() < length {
                break;
            }
            let found = is_it(head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
            passed += 9 + length;
            if found {
                return received.drain(..passed).collect();
            }
        }
        assert_ne!(connection.read_buf(received).await.unwrap(), 0, "the connection ended early");
    }
}

/// Clients like curl 7.88 discard a response whose stream is reset while they send, even with `NO_ERROR`.
#[test]
fn a_request_rejected_for_its_head_gets_a_response_without_a_stream_reset() {
    under_attack(RULES, 16, async |server| {
        let mut connection = connect_raw(server, &[]).await;
        let ping = frame(PING, 0, 0, &[7; 8]);
        let is_pong = |kind: u8, flags: u8, _: u32| kind == PING && flags == 1;
        let mut received = Vec::new();
        for index in 0..20 {
            let id = stream_id(index);
            let head = frame(HEADERS, END_HEADERS, id, &header_block(POST, "/nowhere"));
            connection.write_all(&[head, ping.clone()].concat()).await.unwrap();
            // The pong shows that the server has seen the headers before the body is sent.
            let mut output = read_until(&mut connection, &mut received, is_pong).await;
            connection.write_all(&frame(DATA, END_STREAM, id, b"{}")).await.unwrap();
            let is_end = |kind: u8, flags: u8, of: u32| kind == DATA && flags & END_STREAM > 0 && of == id;
            if !frames(&output).any(|(kind, _)| kind == DATA) {
                output.extend(read_until(&mut connection, &mut received, is_end).await);
            }
            connection.write_all(&ping).await.unwrap();
            output.extend(read_until(&mut connection, &mut received, is_pong).await);
            assert!(frames(&output).any(|(kind, _)| kind == HEADERS), "there is no response");
            assert!(frames(&output).all(|(kind, _)| kind != RST_STREAM), "stream {id} was reset");
        }
    });
}

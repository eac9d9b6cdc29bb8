//! HTTP/2 spoken by somebody who means harm, frame by frame.

use crate::siege::{RULES, siege};
use crate::support::Server;
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
/// As many as the server allows.
const STREAMS: u32 = 128;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The n-th stream that a client opens.
pub(crate) fn stream(index: u32) -> u32 {
    2 * index + 1
}

/// The fields of a request, none of them compressed.
fn fields(method: u8, path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    [&[method, 0x86, 0x01, 1, b'a', 0x04, length], path.as_bytes()].concat()
}

const GET: u8 = 0x82;
const POST: u8 = 0x83;

/// A connection on which nothing was asked yet, with these settings of the client's.
async fn greeted(server: &Server, settings: &[u8]) -> TcpStream {
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    connection.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()).await.unwrap();
    connection
}

/// Sends the same again and again, up to so many bytes and as long as the server takes them. What it says meanwhile is
/// read if `reads`; gives the code of its farewell, if it said any.
pub(crate) async fn flood(connection: TcpStream, frames: &[u8], bytes: usize, reads: bool) -> Option<u32> {
    let (mut from, mut to) = connection.into_split();
    let send = async {
        for _ in 0..bytes.div_ceil(frames.len()) {
            if to.write_all(frames).await.is_err() {
                return;
            }
        }
    };
    let mut said = Vec::new();
    let hear = async {
        while reads && !matches!(from.read_buf(&mut said).await, Ok(0) | Err(_)) {}
        if !reads {
            std::future::pending::<()>().await;
        }
    };
    // A server that stops reading is done with this one, too.
    let _ = timeout(Duration::from_millis(500), async {
        tokio::select! {
            () = send => {}
            () = hear => {}
        }
    })
    .await;
    let _ = timeout(Duration::from_millis(50), from.read_to_end(&mut said)).await;
    farewell(&said)
}

/// The code in the last `GOAWAY` of what a server said.
fn farewell(said: &[u8]) -> Option<u32> {
    let code = |payload: &[u8]| u32::from_be_bytes(payload[4..8].try_into().unwrap());
    frames(said).filter(|(kind, _)| *kind == GOAWAY).last().map(|(_, payload)| code(payload))
}

/// The kinds and payloads of the frames that some bytes begin with.
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
fn streams_that_are_reset_as_soon_as_they_are_opened() {
    siege(RULES, 32, async |server| {
        let fields = fields(POST, "/check");
        let resets: Vec<u8> = (0..100_000)
            .flat_map(|index| {
                let open = frame(HEADERS, END_HEADERS, stream(index), &fields);
                [open, frame(RST_STREAM, 0, stream(index), &8_u32.to_be_bytes())].concat()
            })
            .collect();
        let connection = greeted(server, &[]).await;
        assert_eq!(flood(connection, &resets, resets.len(), true).await, Some(ENHANCE_YOUR_CALM));
    });
}

#[test]
fn headers_that_go_on_and_on() {
    siege(RULES, 32, async |server| {
        let more = frame(CONTINUATION, 0, 1, &[0x00; 16_000]);
        let nothing = frame(CONTINUATION, 0, 1, &[]);
        for more in [more, nothing.repeat(1000)] {
            let mut connection = greeted(server, &[]).await;
            connection.write_all(&frame(HEADERS, END_STREAM, 1, &fields(GET, "/livez"))).await.unwrap();
            let said = flood(connection, &more, 64 << 20, true).await;
            assert!(said.is_some(), "it is told to go");
        }
    });
}

/// What a client does on a stream.
type Mistake = fn(u32) -> Vec<u8>;

#[test]
fn streams_that_the_server_has_to_reset() {
    let fields = fields(POST, "/check");
    let mistakes: [(&str, u8, Mistake); 3] = [
        ("a window that grows by nothing", 0, |stream| frame(WINDOW_UPDATE, 0, stream, &[0; 4])),
        ("data behind the end", END_STREAM, |stream| frame(DATA, 0, stream, b"{}")),
        ("a stream that waits for itself", 0, |stream| {
            frame(PRIORITY, 0, stream, &[&stream.to_be_bytes()[..], &[0]].concat())
        }),
    ];
    siege(RULES, 32, async |server| {
        for (name, flags, mistake) in mistakes {
            let frames: Vec<u8> = (0..50_000)
                .flat_map(|index| {
                    let open = frame(HEADERS, END_HEADERS | flags, stream(index), &fields);
                    [open, mistake(stream(index))].concat()
                })
                .collect();
            let connection = greeted(server, &[]).await;
            let said = flood(connection, &frames, frames.len(), true).await;
            assert!(said.is_some(), "{name}");
        }
    });
}

#[test]
fn frames_that_say_nothing() {
    let floods = [
        frame(PING, 0, 0, b"12345678"),
        frame(SETTINGS, 0, 0, &[]),
        frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]),
        frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1]),
        frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
        frame(DATA, 0, 1, &[]),
        // All of it padding.
        frame(DATA, 8, 1, &[0; 1]),
        // Of a kind that nobody knows.
        frame(0xee, 0, 0, &[0; 1000]),
        // Of a stream that was never begun.
        frame(RST_STREAM, 0, 2001, &[0; 4]),
    ];
    siege(RULES, 48, async |server| {
        for same in &floods {
            for reads in [true, false] {
                let mut connection = greeted(server, &[]).await;
                let open = frame(HEADERS, END_HEADERS, 1, &fields(POST, "/check"));
                connection.write_all(&open).await.unwrap();
                // Some of it the server bears with, and some it ends the connection over: either will do.
                flood(connection, &same.repeat(1000), 8 << 20, reads).await;
            }
        }
    });
}

#[test]
fn a_field_that_is_meant_a_thousand_times() {
    siege(RULES, 32, async |server| {
        // Four kilobytes to remember, and then each byte stands for them again.
        let large = [&[0x40, 1, b'x', 0x7f, 0xa1, 0x1e][..], &[b'y'; 4000], &[0xbe; 10_000]].concat();
        let fields = [fields(GET, "/livez"), large].concat();
        let mut connection = greeted(server, &[]).await;
        for index in 0..STREAMS {
            let open = frame(HEADERS, END_HEADERS | END_STREAM, stream(index), &fields);
            if connection.write_all(&open).await.is_err() {
                break;
            }
        }
        let said = flood(connection, &frame(PING, 0, 0, &[0; 8]), 8, true).await;
        assert_eq!(said, Some(ENHANCE_YOUR_CALM));
    });
}

#[test]
fn a_hundred_streams_with_half_a_body_each() {
    siege(RULES, 64, async |server| {
        let mut crowd = Vec::new();
        for _ in 0..16 {
            let mut connection = greeted(server, &[]).await;
            let mut said = Vec::new();
            while !frames(&said).any(|(kind, _)| kind == WINDOW_UPDATE) {
                connection.read_buf(&mut said).await.unwrap();
            }
            for index in 0..STREAMS {
                let open = frame(HEADERS, END_HEADERS, stream(index), &fields(POST, "/check"));
                // All of them together are as much as may be sent before the server asks for more.
                let half = frame(DATA, 0, stream(index), &[b' '; 8000]);
                connection.write_all(&[open, half].concat()).await.unwrap();
            }
            crowd.push(connection);
        }
        for _ in 0..100 {
            let answer = server.connect().await.post("/check", br#"{"client_key":"a"}"#).await;
            assert_eq!(answer.status, 200);
        }
    });
}

/// A client of HTTP/2 that has no room for any answer asks for long ones.
#[test]
fn a_hundred_streams_that_take_no_answer() {
    let batch = format!(r#"{{"checks":[{}{{"client_key":"a"}}]}}"#, r#"{"client_key":"a"},"#.repeat(3_000));
    let batch = Bytes::from(batch);
    siege(RULES, 128, async |server| {
        let mut crowd = JoinSet::new();
        for _ in 0..8 {
            let stream = TcpStream::connect(server.address).await.unwrap();
            let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(0)
                .handshake(TokioIo::new(stream))
                .await
                .unwrap();
            tokio::spawn(connection);
            for index in 0..STREAMS {
                let (mut sender, body) = (sender.clone(), Full::new(batch.clone()));
                let request = match index % 2 {
                    0 => hyper::Request::post(format!("http://{}/v1/check/batch", server.address)),
                    _ => hyper::Request::get(format!("http://{}/openapi.json", server.address)),
                };
                let request = request.body(body).unwrap();
                crowd.spawn(async move { sender.send_request(request).await });
            }
        }
        let mut begun = Vec::new();
        let _ = timeout(Duration::from_secs(1), async {
            while let Some(response) = crowd.join_next().await {
                begun.extend(response.unwrap());
            }
        })
        .await;
        let whole = server.connect().await.post("/v1/check/batch", &batch).await;
        assert_eq!(whole.status, 200);
    });
}

/// Reads until a frame like this has come, and gives all frames up to it. What has come behind it stays in `heard`.
async fn hear_until(
    connection: &mut TcpStream,
    heard: &mut Vec<u8>,
    is_it: impl Fn(u8, u8, u32) -> bool,
) -> Vec<u8> {
    let mut passed = 0;
    loop {
        while let Some((head, behind)) = heard[passed..].split_at_checked(9) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            if behind.len() < length {
                break;
            }
            let found = is_it(head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
            passed += 9 + length;
            if found {
                return heard.drain(..passed).collect();
            }
        }
        assert_ne!(connection.read_buf(heard).await.unwrap(), 0, "the connection ended");
    }
}

/// Clients like curl 7.88 drop an answer whose stream is reset while they send, even if nothing is wrong.
#[test]
fn a_request_refused_for_its_head_is_answered_and_its_stream_is_not_reset() {
    siege(RULES, 16, async |server| {
        let mut connection = greeted(server, &[]).await;
        let ping = frame(PING, 0, 0, &[7; 8]);
        let is_pong = |kind: u8, flags: u8, _: u32| kind == PING && flags == 1;
        let mut heard = Vec::new();
        for index in 0..20 {
            let id = stream(index);
            let head = frame(HEADERS, END_HEADERS, id, &fields(POST, "/nowhere"));
            connection.write_all(&[head, ping.clone()].concat()).await.unwrap();
            // The server has seen the head before the body is sent.
            let mut said = hear_until(&mut connection, &mut heard, is_pong).await;
            connection.write_all(&frame(DATA, END_STREAM, id, b"{}")).await.unwrap();
            let is_end = |kind: u8, flags: u8, of: u32| kind == DATA && flags & END_STREAM > 0 && of == id;
            if !frames(&said).any(|(kind, _)| kind == DATA) {
                said.extend(hear_until(&mut connection, &mut heard, is_end).await);
            }
            connection.write_all(&ping).await.unwrap();
            said.extend(hear_until(&mut connection, &mut heard, is_pong).await);
            assert!(frames(&said).any(|(kind, _)| kind == HEADERS), "it is answered");
            assert!(frames(&said).all(|(kind, _)| kind != RST_STREAM), "stream {id} was reset");
        }
    });
}

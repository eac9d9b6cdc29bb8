//! Hostile gRPC clients.

use crate::attack::{RULES, under_attack};
use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, HEADERS, PING, PREFACE, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, flood, frame, stream_id,
};
use crate::support::{TestLimiter, test_limiter};
use h2::SendStream;
use h2::client::SendRequest;
use hyper::Request;
use hyper::body::Bytes;
use ratekeeper_server::{BoundSocket, ServerSetup, serve};
use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::timeout;

const CHECK: &str = "/ratekeeper.v1.RateLimiter/Check";
const BATCH: &str = "/ratekeeper.v1.RateLimiter/CheckBatch";
const STREAM: &str = "/ratekeeper.v1.RateLimiter/CheckStream";
const ENVOY: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const METHODS: [&str; 4] = [CHECK, BATCH, STREAM, ENVOY];

/// A gRPC server on its own threads; dropping it ends them.
struct GrpcTarget {
    address: SocketAddr,
    limiter: TestLimiter,
    threads: Option<Runtime>,
}

impl GrpcTarget {
    fn open() -> GrpcTarget {
        let threads = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let bind = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let _within = threads.enter();
            TcpListener::from_std(listener).unwrap()
        };
        let (listener, limiter) = (bind(), test_limiter(RULES).0);
        let address = listener.local_addr().unwrap();
        let setup = ServerSetup {
            http: None,
            grpc: Some(BoundSocket { listener, tls: None }),
            ..ServerSetup::http(bind())
        };
        threads.spawn(serve(limiter.clone(), setup, mpsc::channel(1).1, pending()));
        GrpcTarget { address, limiter, threads: Some(threads) }
    }

    async fn connect(&self, window: u32) -> SendRequest<Bytes> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (requests, connection) =
            h2::client::Builder::new().initial_window_size(window).handshake(stream).await.unwrap();
        tokio::spawn(connection);
        requests
    }

    /// A connection that has sent only the HTTP/2 preface and settings.
    async fn connect_raw(&self) -> TcpStream {
        let mut connection = TcpStream::connect(self.address).await.unwrap();
        connection.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
        connection
    }

    /// Asserts that a new, well-behaved client gets a response promptly.
    async fn assert_responsive(&self) {
        let call = async { make_call(&mut self.connect(1 << 16).await, CHECK, &framed(b"\x0a\x01b")).await };
        assert_eq!(timeout(Duration::from_secs(5), call).await.unwrap(), Some(0));
    }
}

impl Drop for GrpcTarget {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&[0], &u32::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat()
}

fn call_request(path: &str) -> Request<()> {
    let call = Request::post(format!("http://a{path}")).header("te", "trailers");
    call.header("content-type", "application/grpc").body(()).unwrap()
}

async fn start_call(
    requests: &mut SendRequest<Bytes>,
    path: &str,
) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
    poll_fn(|cx| requests.poll_ready(cx)).await.unwrap();
    requests.send_request(call_request(path), false).unwrap()
}

/// Makes a call and returns its gRPC status. Returns `None` if the stream was reset.
async fn make_call(requests: &mut SendRequest<Bytes>, path: &str, body: &[u8]) -> Option<u8> {
    let (answer, mut to) = start_call(requests, path).await;
    // The server may reset the stream before everything is sent.
    let _ = to.send_data(Bytes::copy_from_slice(body), true);
    let (head, mut body) = answer.await.ok()?.into_parts();
    while let Some(piece) = body.data().await {
        let piece = piece.ok()?;
        body.flow_control().release_capacity(piece.len()).unwrap();
    }
    let trailers = body.trailers().await.ok()?.unwrap_or(head.headers);
    trailers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// A length-delimited protobuf field: a string, bytes or a message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length > 0x7f {
        field.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    field.push(u8::try_from(length).unwrap());
    field.extend_from_slice(bytes);
    field
}

/// A message that nests the field `number` `depth` times.
fn nested(number: u8, depth: usize) -> Vec<u8> {
    (0..depth).fold(b"victim".to_vec(), |message, _| field(number, &message))
}

#[test]
fn invalid_messages() {
    let key = b"\x0a\x06victim";
    let with = |more: &[u8]| framed(&[key, more].concat());
    let bodies = [
        vec![],
        vec![0],
        b"\0\0\0\0".to_vec(),
        b"\0\0\0\0\x01".to_vec(),
        framed(b""),
        framed(b"\x0a\x06victi"),
        framed(&[0xff; 1000]),
        framed(&[0x80; 60_000]),
        framed(&[0; 60_000]),
        framed(&b"{\"client_key\":\"victim\"}"[..]),
        with(b"\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        with(b"\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
        with(b"\x32\x00"),
        with(&b"\x32\x03\x0a\x01a".repeat(10_000)),
        with(&b"\x32\x02\x0a\x00".repeat(100)),
        with(b"\x2a\x09localhost"),
        with(&[&b"\x12\xa0\x9c\x01"[..], &[b'x'; 20_000]].concat()),
        with(b"\x0a\x02\xc0\xaf"),
        with(b"\x0a\x03\xed\xa0\x80"),
        with(b"\x0b\x0c"),
        [with(b""), vec![0]].concat(),
        with(b"").repeat(2),
        [vec![1], with(b"")[1..].to_vec()].concat(),
        [vec![0xff], with(b"")[1..].to_vec()].concat(),
        framed(&nested(1, 8_000)),
        framed(&nested(2, 8_000)),
        framed(&nested(6, 8_000)),
        b"\0\xff\xff\xff\xff".to_vec(),
        [b"\0\x7f\xff\xff\xff".to_vec(), vec![0; 2_000_000]].concat(),
        framed(&vec![0x0a; 5_000_000]),
    ];
    under_attack(RULES, 48, async |_| {
        let port = GrpcTarget::open();
        let mut requests = port.connect(1 << 20).await;
        for path in METHODS {
            for (index, body) in bodies.iter().enumerate() {
                let code =
                    timeout(Duration::from_secs(20), make_call(&mut requests, path, body)).await.unwrap();
                let is_expected = match path {
                    // An invalid check is answered on the stream, an invalid frame ends it.
                    STREAM => matches!(code, Some(0 | 3 | 12)),
                    // An empty message is an empty batch, and unknown fields are skipped.
                    BATCH => matches!(code, Some(0 | 3 | 12)),
                    _ => matches!(code, Some(3 | 12)),
                };
                assert!(is_expected, "{path} {index}: {code:?}");
            }
        }
        let batch = port
            .limiter
            .decide_one(ratekeeper::rules::Verb::Peek, &ratekeeper::rules::CheckRequest::new("victim"))
            .await;
        assert_eq!(batch.decision(0).remaining(), 1_000_000_000, "the victim was charged");
        port.assert_responsive().await;
    });
}

#[test]
fn oversized_descriptors() {
    let entry = |name: &[u8], value: &[u8]| {
        let entry = [field(1, name), field(2, value)].concat();
        field(2, &field(1, &entry))
    };
    let domain = &b"\x0a\x04edge"[..];
    let bodies = [
        [domain, &entry(b"a", b"b").repeat(10_000)].concat(),
        [domain, &b"\x12\x00".repeat(10_000)].concat(),
        [domain, &entry(b"", b"b")].concat(),
        [domain, &entry(&[b'a'; 100_000], b"b")].concat(),
        [domain, &entry(b"a", &[b'b'; 100_000])].concat(),
        [domain, &entry(&[0xff; 200], &[0xff; 60_000]).repeat(65)].concat(),
        [&entry(b"a", b"b")[..]].concat(),
    ];
    under_attack(RULES, 48, async |_| {
        let port = GrpcTarget::open();
        let mut requests = port.connect(1 << 20).await;
        for body in &bodies {
            assert_eq!(make_call(&mut requests, ENVOY, &framed(body)).await, Some(3));
        }
        // The largest valid request, a hundred times.
        let most = [domain, &entry(&[0xff; 50], &[0xff; 15_000]).repeat(64)].concat();
        for _ in 0..100 {
            assert_eq!(make_call(&mut requests, ENVOY, &framed(&most)).await, Some(0));
        }
        port.assert_responsive().await;
    });
}

/// The header block of a call, uncompressed.
fn header_block(path: &str) -> Vec<u8> {
    let pairs =
        [(":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", "application/grpc")];
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    pairs.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

#[test]
fn calls_that_are_reset_at_once() {
    under_attack(RULES, 48, async |_| {
        let port = GrpcTarget::open();
        for path in METHODS {
            let fields = header_block(path);
            let resets: Vec<u8> = (0..50_000)
                .flat_map(|index| {
                    let open = frame(HEADERS, END_HEADERS, stream_id(index), &fields);
                    [open, frame(RST_STREAM, 0, stream_id(index), &8_u32.to_be_bytes())].concat()
                })
                .collect();
            let connection = port.connect_raw().await;
            assert_eq!(
                flood(connection, &resets, resets.len(), true).await,
                Some(ENHANCE_YOUR_CALM),
                "{path}"
            );
        }
        port.assert_responsive().await;
    });
}

#[test]
fn floods_of_invalid_or_empty_frames() {
    let open = frame(HEADERS, END_HEADERS, 1, &header_block(STREAM));
    let floods = [
        frame(PING, 0, 0, b"12345678"),
        frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]),
        frame(WINDOW_UPDATE, 0, 1, &0x7fff_ffff_u32.to_be_bytes()),
        frame(DATA, 0, 1, &[]),
        frame(DATA, 8, 1, &[0; 1]),
        // An empty message: each gets a response, and each response is longer than the request.
        frame(DATA, 0, 1, &[0; 5]),
        frame(DATA, 0, 1, &[0; 16_000]),
        frame(DATA, END_STREAM, 3, b"a stream never opened"),
        frame(CONTINUATION, 0, 1, &[0; 1000]),
        frame(HEADERS, END_HEADERS, 1, &[0xff; 1000]),
        vec![0xff; 1000],
        vec![0; 1000],
    ];
    under_attack(RULES, 64, async |_| {
        let port = GrpcTarget::open();
        for same in &floods {
            for reads in [true, false] {
                let mut connection = port.connect_raw().await;
                connection.write_all(&open).await.unwrap();
                // The server may tolerate the frames or end the connection: either is fine.
                flood(connection, &same.repeat(1000), 8 << 20, reads).await;
            }
        }
        port.assert_responsive().await;
    });
}

/// Sends checks for as long as the server accepts them, and reads nothing.
async fn flood_checks(mut to: SendStream<Bytes>) {
    let checks = Bytes::from(framed(b"\x08\x01\x12\x03\x0a\x01a").repeat(1000));
    loop {
        to.reserve_capacity(checks.len());
        match poll_fn(|cx| to.poll_capacity(cx)).await {
            Some(Ok(capacity)) => {
                if to.send_data(checks.slice(..capacity.min(checks.len())), false).is_err() {
                    return;
                }
            }
            Some(Err(_)) | None => return,
        }
    }
}

#[test]
fn streams_whose_clients_never_read() {
    under_attack(RULES, 128, async |_| {
        let port = GrpcTarget::open();
        let mut open = Vec::new();
        for connection in 0..32 {
            // Receive windows of zero, small and large: unread, each of them fills up.
            let mut requests = port.connect([0, 1000, 1 << 16][connection % 3]).await;
            for _ in 0..16 {
                let (answer, to) = start_call(&mut requests, STREAM).await;
                open.push((answer, tokio::spawn(flood_checks(to)), requests.clone()));
            }
        }
        for _ in 0..50 {
            port.assert_responsive().await;
        }
        drop(open);
    });
}

#[test]
fn many_calls_with_an_incomplete_message() {
    under_attack(RULES, 64, async |_| {
        let port = GrpcTarget::open();
        let mut open = Vec::new();
        for _ in 0..16 {
            let mut requests = port.connect(1 << 16).await;
            for index in 0..100 {
                let (answer, mut to) = start_call(&mut requests, METHODS[index % 4]).await;
                to.send_data([&b"\0\0\0\xff\xff"[..], &[b' '; 8000]].concat().into(), false).unwrap();
                open.push((answer, to, requests.clone()));
            }
        }
        for _ in 0..50 {
            port.assert_responsive().await;
        }
        drop(open);
    });
}

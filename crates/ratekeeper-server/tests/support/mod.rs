//! An in-process HTTP server on its own threads with a manual clock, and a byte-level client.

use ratekeeper::rules::{RuleSet, read};
use ratekeeper::{Capacity, ManualClock, MemoryStore, Micros, RuleLimiter};
use ratekeeper_server::rule_source::RuleSource;
use ratekeeper_server::{ServerSetup, serve};
use std::future::pending;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

pub(crate) type TestLimiter = RuleLimiter<MemoryStore<Arc<ManualClock>>>;

/// A limiter with these rules, and the clock that it and its store use.
pub(crate) fn test_limiter(rules: &str) -> (TestLimiter, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_000_000)));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(100_000)).unwrap();
    (RuleLimiter::new(compile(rules), store, Arc::clone(&clock)), clock)
}

/// A running server; dropping it ends its threads.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    threads: Option<Runtime>,
}

impl TestServer {
    /// Starts a server. If `file` is given, it watches the rules there, and rereads them on each message of `reloads`.
    pub(crate) fn start(
        limiter: TestLimiter,
        file: Option<PathBuf>,
        reloads: mpsc::Receiver<()>,
    ) -> TestServer {
        let threads = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = threads.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let feed = threads
            .block_on(async { RuleSource::new(file, ratekeeper::FailureMode::default(), Micros::EPOCH) });
        let setup = ServerSetup { rule_source: feed, ..ServerSetup::http(listener) };
        threads.spawn(serve(limiter, setup, reloads, pending()));
        TestServer { address, threads: Some(threads) }
    }

    pub(crate) async fn connect(&self) -> HttpClient {
        HttpClient::new(TcpStream::connect(self.address).await.unwrap())
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

/// Compiles the text of a rule file.
pub(crate) fn compile(text: &str) -> RuleSet {
    let parsed = read(text, Micros::EPOCH);
    RuleSet::compile(&parsed.spec.unwrap_or_else(|| panic!("{:#?}", parsed.diagnostics))).unwrap()
}

/// One HTTP/1.1 connection.
pub(crate) struct HttpClient(BufReader<TcpStream>);

impl HttpClient {
    pub(crate) fn new(stream: TcpStream) -> HttpClient {
        stream.set_nodelay(true).unwrap();
        HttpClient(BufReader::new(stream))
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).await.unwrap();
    }

    /// Sends a POST request and reads its response.
    pub(crate) async fn post(&mut self, path: &str, body: &[u8]) -> HttpResponse {
        self.send(&post(path, body)).await;
        self.read_response().await.expect("the connection is kept")
    }

    /// Reads one response. Returns `None` if the connection ends first.
    pub(crate) async fn read_response(&mut self) -> Option<HttpResponse> {
        read_response(&mut self.0).await
    }
}

/// Reads one response and not a byte more. Returns `None` if the connection ends first.
pub(crate) async fn read_response(from: &mut (impl AsyncBufRead + Unpin)) -> Option<HttpResponse> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if from.read_until(b'\n', &mut head).await.ok()? == 0 {
            return None;
        }
    }
    let head = String::from_utf8(head).unwrap();
    let length = field(&head, "content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    from.read_exact(&mut body).await.ok()?;
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Some(HttpResponse { status, head, body: String::from_utf8(body).unwrap() })
}

/// One HTTP response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl HttpResponse {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The value of a header. `name` is in lower case, as the server writes it.
pub(crate) fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.split("\r\n").find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The bytes of a POST request.
pub(crate) fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

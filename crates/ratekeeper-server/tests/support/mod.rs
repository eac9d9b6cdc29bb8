//! A server in this process, on threads of its own and by a clock that stands still, and a client that sees every byte.

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

pub(crate) type TestGate = RuleLimiter<MemoryStore<Arc<ManualClock>>>;

/// A gate with these rules, and the clock that it and its store go by.
pub(crate) fn gate(rules: &str) -> (TestGate, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_000_000)));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(100_000)).unwrap();
    (RuleLimiter::new(compile(rules), store, Arc::clone(&clock)), clock)
}

/// A running server. Its threads end with it.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    threads: Option<Runtime>,
}

impl Server {
    /// Starts one that follows the rules in this file, if there is one, and reads them again when `reloads` says so.
    pub(crate) fn start(gate: TestGate, file: Option<PathBuf>, reloads: mpsc::Receiver<()>) -> Server {
        let threads = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = threads.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let feed = threads
            .block_on(async { RuleSource::new(file, ratekeeper::FailureMode::default(), Micros::EPOCH) });
        let setup = ServerSetup { feed, ..ServerSetup::http(listener) };
        threads.spawn(serve(gate, setup, reloads, pending()));
        Server { address, threads: Some(threads) }
    }

    pub(crate) async fn connect(&self) -> Client {
        Client::of(TcpStream::connect(self.address).await.unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

/// Rules as they would be read from a file.
pub(crate) fn compile(text: &str) -> RuleSet {
    let review = read(text, Micros::EPOCH);
    RuleSet::compile(&review.spec.unwrap_or_else(|| panic!("{:#?}", review.complaints))).unwrap()
}

/// One connection that speaks HTTP/1.1.
pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn of(stream: TcpStream) -> Client {
        stream.set_nodelay(true).unwrap();
        Client(BufReader::new(stream))
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).await.unwrap();
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn post(&mut self, path: &str, body: &[u8]) -> Answer {
        self.send(&post(path, body)).await;
        self.answer().await.expect("the connection is kept")
    }

    /// Reads one answer; nothing if the connection ends first.
    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        answer(&mut self.0).await
    }
}

/// Reads one answer and not a byte more; nothing if the connection ends first.
pub(crate) async fn answer(from: &mut (impl AsyncBufRead + Unpin)) -> Option<Answer> {
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
    Some(Answer { status, head, body: String::from_utf8(body).unwrap() })
}

/// One answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The value of a header field by its name, in lower case as the server writes it.
pub(crate) fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.split("\r\n").find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The bytes of a request.
pub(crate) fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

//! An in-process RESP server, and a byte-level client.

use ratekeeper::rules::{RuleSet, read};
use ratekeeper::{Capacity, MemoryStore, Micros, RuleLimiter, SystemClock};
use ratekeeper_server::{ServerSetup, Token, serve};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

pub(crate) const RULES: &str = "default: {limit: 1000000000/day}";
pub(crate) const TOKEN: &str = "0123456789abcdef";

/// Serves until `stop`, and requires `token` if given.
pub(crate) async fn serve_until(
    token: Option<&str>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> (SocketAddr, impl Future<Output = ()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let store = MemoryStore::with(SystemClock::new(), Capacity::keys(100_000)).unwrap();
    let rules = RuleSet::compile(&read(RULES, Micros::EPOCH).spec.unwrap()).unwrap();
    let limiter = RuleLimiter::new(rules, store, SystemClock::new());
    let mut setup = ServerSetup::http(listener);
    setup.resp = setup.http.take();
    setup.api.token = token.map(|text| Token::parse(text).unwrap());
    let serving = tokio::spawn(serve(limiter, setup, mpsc::channel(1).1, stop));
    (address, async { serving.await.unwrap() })
}

/// One RESP connection.
pub(crate) struct RespTestClient(pub(crate) TcpStream);

impl RespTestClient {
    pub(crate) async fn connect(address: SocketAddr) -> RespTestClient {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        RespTestClient(stream)
    }

    /// Sends a command, and reads `lines` lines of its reply.
    pub(crate) async fn send_command(&mut self, line: &str, lines: usize) -> String {
        let _ = self.0.write_all(&command(line)).await;
        self.read_lines(lines).await
    }

    /// Reads at least `lines` lines, or to the end.
    pub(crate) async fn read_lines(&mut self, lines: usize) -> String {
        let mut read = Vec::new();
        while read.iter().filter(|byte| **byte == b'\n').count() < lines {
            match self.0.read_buf(&mut read).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        String::from_utf8(read).unwrap()
    }
}

/// A command as an array of bulk strings, as clients send it.
pub(crate) fn command(line: &str) -> Vec<u8> {
    let words = line.split(' ').map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", line.split(' ').count(), words.collect::<String>()).into_bytes()
}

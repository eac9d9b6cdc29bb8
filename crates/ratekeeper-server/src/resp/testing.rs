//! Test support: an executor on a manual clock, and replies in a readable form.

use super::decode::Decoder;
use super::executor::{AfterCommands, Executor, ExecutorShared};
use crate::conn::BodyPermits;
use crate::denial_log::DenialLog;
use crate::token::Token;
use ratekeeper::rules::{RuleSet, read};
use ratekeeper::{Capacity, ManualClock, MemoryStore, Micros, RuleLimiter, Span};
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, Waker};

pub(super) type TestShared = ExecutorShared<MemoryStore<Arc<ManualClock>>>;

/// The shared state of executors with these rules, and its clock.
pub(super) fn test_shared(rules: &str, token: Option<&str>) -> (TestShared, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_250_000)));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(1000)).unwrap();
    let rules = RuleSet::compile(&read(rules, Micros::EPOCH).spec.unwrap()).unwrap();
    let shared = ExecutorShared {
        limiter: RuleLimiter::new(rules, store, Arc::clone(&clock)),
        token: token.map(|text| Token::parse(text).unwrap()),
        denials: Arc::new(DenialLog::new(0)),
        body_permits: BodyPermits::default(),
        connections: AtomicU64::new(0),
        started_at: Micros::new(1_700_000_000_000_000),
    };
    (shared, clock)
}

impl TestShared {
    pub(super) fn executor(&self) -> Executor<'_, MemoryStore<Arc<ManualClock>>> {
        Executor::new(self, Ipv4Addr::LOCALHOST.into())
    }
}

/// The output of a future that never waits, as with the memory store.
pub(super) fn poll_now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("the future is pending"),
    }
}

/// Sends bytes to a new connection. Returns all replies, and whether the connection is closed then.
pub(super) fn replies_to(shared: &TestShared, mut bytes: &[u8]) -> (String, bool) {
    let (mut executor, mut decoder, mut replies) = (shared.executor(), Decoder::default(), Vec::new());
    loop {
        let (taken, next) = poll_now(executor.execute(&mut decoder, bytes));
        bytes = &bytes[taken..];
        replies.append(&mut executor.out);
        if next != AfterCommands::More {
            return (String::from_utf8(replies).unwrap(), next == AfterCommands::Close);
        }
    }
}

/// A command as clients send it: an array of bulk strings.
pub(super) fn encode_array<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut count, mut bytes) = (0, Vec::new());
    for word in words {
        count += 1;
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    [format!("*{count}\r\n").into_bytes(), bytes].concat()
}

/// A command from words separated by spaces; `''` is an empty word.
pub(super) fn encode_words(line: &str) -> Vec<u8> {
    encode_array(line.split_whitespace().map(|word| if word == "''" { &b""[..] } else { word.as_bytes() }))
}

/// Runs a script on one connection. Each line is `command => reply`, or `wait` and a number of milliseconds. A reply is
/// written as its integers and lines; one that ends with `...` is a prefix.
#[track_caller]
pub(super) fn check(rules: &str, token: Option<&str>, script: &str) {
    let (shared, clock) = test_shared(rules, token);
    let (mut executor, mut decoder) = (shared.executor(), Decoder::default());
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(millis) = line.strip_prefix("wait ") {
            clock.advance(Span::millis(millis.parse().unwrap()));
            continue;
        }
        let (command, expected) = line.split_once("=>").expect(line);
        let bytes = encode_words(command);
        let (taken, _) = poll_now(executor.execute(&mut decoder, &bytes));
        assert_eq!(taken, bytes.len(), "{line}");
        let reply = readable(&std::mem::take(&mut executor.out));
        let is_expected = match expected.trim().strip_suffix("...") {
            Some(prefix) => reply.starts_with(prefix),
            None => reply == expected.trim(),
        };
        assert!(is_expected, "{line}\nreplied {reply}");
    }
}

/// A reply without type prefixes and lengths: of an array, its elements.
fn readable(reply: &[u8]) -> String {
    let text = String::from_utf8(reply.to_vec()).unwrap();
    let lines = text.split("\r\n").filter(|line| !line.is_empty());
    let mut elements = Vec::new();
    for line in lines {
        match line.split_at(1) {
            ("*" | "%" | "~" | "$" | "=", count) if count.parse::<u32>().is_ok() => {}
            (":", number) => elements.push(number.to_owned()),
            _ => elements.push(line.to_owned()),
        }
    }
    elements.join(" ")
}

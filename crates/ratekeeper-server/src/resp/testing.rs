//! A clerk to talk to in tests, by a clock that stands still, and replies as a person would write them down.

use super::decode::Decoder;
use super::executor::{AfterCommands, Executor, ExecutorShared};
use crate::denial_log::DenialLog;
use crate::http::BodyPermits;
use crate::token::Token;
use ratekeeper::rules::{RuleSet, read};
use ratekeeper::{Capacity, ManualClock, MemoryStore, Micros, RuleLimiter, Span};
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, Waker};

pub(super) type TestExecutor = ExecutorShared<MemoryStore<Arc<ManualClock>>>;

/// An office with these rules, and its clock.
pub(super) fn office(rules: &str, token: Option<&str>) -> (TestExecutor, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_250_000)));
    let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(1000)).unwrap();
    let rules = RuleSet::compile(&read(rules, Micros::EPOCH).spec.unwrap()).unwrap();
    let office = ExecutorShared {
        gate: RuleLimiter::new(rules, store, Arc::clone(&clock)),
        token: token.map(|text| Token::parse(text).unwrap()),
        denials: Arc::new(DenialLog::new(0)),
        room: BodyPermits::default(),
        connections: AtomicU64::new(0),
        started_at: Micros::new(1_700_000_000_000_000),
    };
    (office, clock)
}

impl TestExecutor {
    pub(super) fn clerk(&self) -> Executor<'_, MemoryStore<Arc<ManualClock>>> {
        Executor::new(self, Ipv4Addr::LOCALHOST.into())
    }
}

/// What a store in memory does is done at once.
pub(super) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it waits for something"),
    }
}

/// Sends these bytes to a new connection, and gives all that it answers, and whether it is closed then.
pub(super) fn told(office: &TestExecutor, mut bytes: &[u8]) -> (String, bool) {
    let (mut clerk, mut decoder, mut told) = (office.clerk(), Decoder::default(), Vec::new());
    loop {
        let (taken, next) = now(clerk.answer(&mut decoder, bytes));
        bytes = &bytes[taken..];
        told.append(&mut clerk.out);
        if next != AfterCommands::Batch {
            return (String::from_utf8(told).unwrap(), next == AfterCommands::Close);
        }
    }
}

/// A command as clients send it.
pub(super) fn list<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut count, mut bytes) = (0, Vec::new());
    for word in words {
        count += 1;
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    [format!("*{count}\r\n").into_bytes(), bytes].concat()
}

/// The same, of words with blanks between them; `''` is an empty one.
pub(super) fn words(line: &str) -> Vec<u8> {
    list(line.split_whitespace().map(|word| if word == "''" { &b""[..] } else { word.as_bytes() }))
}

/// Talks to one connection. Each line is a command and the reply to it, or `wait` and for how many milliseconds. A reply
/// is written as integers, or as the line that it is; one that ends with `...` goes on.
#[track_caller]
pub(super) fn check(rules: &str, token: Option<&str>, script: &str) {
    let (office, clock) = office(rules, token);
    let (mut clerk, mut decoder) = (office.clerk(), Decoder::default());
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(millis) = line.strip_prefix("wait ") {
            clock.advance(Span::millis(millis.parse().unwrap()));
            continue;
        }
        let (command, expected) = line.split_once("=>").expect(line);
        let bytes = words(command);
        let (taken, _) = now(clerk.answer(&mut decoder, &bytes));
        assert_eq!(taken, bytes.len(), "{line}");
        let said = plain(&std::mem::take(&mut clerk.out));
        let is_so = match expected.trim().strip_suffix("...") {
            Some(begin) => said.starts_with(begin),
            None => said == expected.trim(),
        };
        assert!(is_so, "{line}\nsaid {said}");
    }
}

/// A reply without what only programs need: of a list, what is in it.
fn plain(reply: &[u8]) -> String {
    let text = String::from_utf8(reply.to_vec()).unwrap();
    let lines = text.split("\r\n").filter(|line| !line.is_empty());
    let mut said = Vec::new();
    for line in lines {
        match line.split_at(1) {
            ("*" | "%" | "~" | "$" | "=", count) if count.parse::<u32>().is_ok() => {}
            (":", number) => said.push(number.to_owned()),
            _ => said.push(line.to_owned()),
        }
    }
    said.join(" ")
}

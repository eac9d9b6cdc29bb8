//! Many clients at once, and an account of every answer they got.
//!
//! Each connection is a thread that asks as soon as it has been answered, and notes by one monotonic clock when it asked and
//! when it knew: whatever decided did so in between. A server that does not answer in time or breaks the connection
//! makes a failed answer, and the client connects anew; nothing is asked twice.

mod tally;

pub use tally::{Answer, Tally, Verdict};

use crate::patience::{Must, PATIENCE, within};
use crate::servers::Connection;
use crate::servers::{connect, encode};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Stands for the key in what is asked.
const KEY: &str = "{key}";
/// How long a client waits before it tries again to connect to a server that is away.
const PAUSE: Duration = Duration::from_millis(5);

/// Whom to ask, and in which language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The RESP port, at this address.
    Resp(String),
    /// The HTTP port, at this address.
    Http(String),
}

/// What is to be asked, and how hard.
#[derive(Clone, Debug)]
pub struct Load {
    targets: Vec<Target>,
    words: Vec<String>,
    path: String,
    body: String,
    keys: u64,
    connections: usize,
    depth: u64,
    patience: Duration,
}

impl Load {
    /// Checks for one key, through one connection to each of these.
    pub fn on(targets: impl IntoIterator<Item = Target>) -> Load {
        Load {
            targets: targets.into_iter().collect(),
            words: ["TG.CHECK", KEY, "/"].map(str::to_owned).to_vec(),
            path: "/check".to_owned(),
            body: format!(r#"{{"client_key":"{KEY}"}}"#),
            keys: 1,
            connections: 1,
            depth: 1,
            patience: Duration::from_secs(5),
        }
    }

    /// The command for RESP, in which `{key}` stands for the key. A check it must be: what comes first in its answer is 0
    /// for allowed and 1 for denied.
    #[must_use]
    pub fn words(mut self, words: &[&str]) -> Load {
        self.words = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Where and what to post for HTTP; in the body `{key}` stands for the key.
    #[must_use]
    pub fn post(mut self, path: &str, body: &str) -> Load {
        (self.path, self.body) = (path.to_owned(), body.to_owned());
        self
    }

    /// How many keys there are, `key0` and so on, which take turns.
    #[must_use]
    pub fn keys(mut self, count: u64) -> Load {
        self.keys = count.max(1);
        self
    }

    /// How many connections there are to each target.
    #[must_use]
    pub fn connections(mut self, count: usize) -> Load {
        self.connections = count;
        self
    }

    /// How many requests a connection sends before it waits for the answers to all of them.
    #[must_use]
    pub fn depth(mut self, requests: u64) -> Load {
        self.depth = requests.max(1);
        self
    }

    /// How long to wait for an answer; five seconds unless told.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Load {
        self.patience = patience;
        self
    }

    /// Asks so many times in all, and gives the account.
    pub fn run(self, requests: u64) -> Tally {
        let running = self.begin_bounded(requests);
        let answers = running.clients.into_iter().flat_map(|client| client.join().must_end());
        Tally::new(answers.collect(), running.begun.elapsed())
    }

    /// Asks without an end, until [`Running::end`].
    pub fn begin(self) -> Running {
        self.begin_bounded(u64::MAX)
    }

    fn begin_bounded(self, requests: u64) -> Running {
        let begun = now();
        let shared = Arc::new(Shared {
            load: self,
            begun,
            requests,
            next: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let places = (0..shared.load.connections).flat_map(|_| 0..shared.load.targets.len());
        let clients = places.map(|target| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.drive(target))
        });
        let clients = clients.collect();
        Running { shared, clients, begun }
    }
}

/// Clients that are asking.
#[derive(Debug)]
pub struct Running {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<Vec<Answer>>>,
    begun: Instant,
}

impl Running {
    /// The time by the clock of the answers.
    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// How many answers there are, failed ones not counted.
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// How many requests got no answer that decides.
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Waits until there are so many more answers.
    #[track_caller]
    pub fn await_more(&self, answers: u64) {
        let enough = self.answered() + answers;
        within(PATIENCE, "clients are answered", || (self.answered() >= enough).then_some(()));
    }

    /// Waits until so many more requests have failed.
    #[track_caller]
    pub fn await_more_failed(&self, requests: u64) {
        let enough = self.failed() + requests;
        within(PATIENCE, "clients notice that something is wrong", || {
            (self.failed() >= enough).then_some(())
        });
    }

    /// Asks no more, waits for the answers that are still to come, and gives the account.
    pub fn end(self) -> Tally {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let answers = self.clients.into_iter().flat_map(|client| client.join().must_end());
        Tally::new(answers.collect(), self.begun.elapsed())
    }
}

#[derive(Debug)]
struct Shared {
    load: Load,
    begun: Instant,
    requests: u64,
    next: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
    is_over: AtomicBool,
}

impl Shared {
    /// One client, from its first request to its last.
    fn drive(&self, target: usize) -> Vec<Answer> {
        let mut answers = Vec::new();
        let mut channel = None;
        while !self.is_over.load(Ordering::Relaxed) {
            let first = self.next.fetch_add(self.load.depth, Ordering::Relaxed);
            if first >= self.requests {
                break;
            }
            let numbers = first..(first + self.load.depth).min(self.requests);
            let asked = self.begun.elapsed();
            let mut left = numbers.clone();
            let heard = self.ask(&mut channel, target, &mut left, asked, &mut answers);
            if heard.is_err() {
                channel = None;
                let answered = self.begun.elapsed();
                self.failed.fetch_add(left.end - left.start, Ordering::Relaxed);
                let failed = |number| self.answer(target, number, asked, answered, Verdict::Failed);
                answers.extend(left.map(failed));
                thread::park_timeout(PAUSE);
            }
        }
        answers
    }

    /// Sends a batch and notes the answers, taking each number off the batch when it has its answer.
    fn ask(
        &self,
        channel: &mut Option<Channel>,
        target: usize,
        numbers: &mut std::ops::Range<u64>,
        asked: Duration,
        answers: &mut Vec<Answer>,
    ) -> io::Result<()> {
        let channel = match channel {
            Some(open) => open,
            None => channel.insert(Channel::open(&self.load.targets[target], self.load.patience)?),
        };
        let mut bytes = Vec::new();
        for number in numbers.clone() {
            self.write(&self.load.targets[target], number, &mut bytes);
        }
        channel.send(&bytes)?;
        while let Some(number) = numbers.next() {
            let verdict = channel.read().inspect_err(|_| numbers.start = number)?;
            self.answered.fetch_add(1, Ordering::Relaxed);
            answers.push(self.answer(target, number, asked, self.begun.elapsed(), verdict));
        }
        Ok(())
    }

    fn write(&self, target: &Target, number: u64, bytes: &mut Vec<u8>) {
        let key = format!("key{}", number % self.load.keys);
        match target {
            Target::Resp(_) => {
                let words: Vec<_> = self.load.words.iter().map(|word| word.replace(KEY, &key)).collect();
                bytes.extend(encode(&words));
            }
            Target::Http(_) => {
                let body = self.load.body.replace(KEY, &key);
                let (path, length) = (&self.load.path, body.len());
                let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n");
                bytes.extend(head.into_bytes());
                bytes.extend(body.into_bytes());
            }
        }
    }

    fn answer(
        &self,
        target: usize,
        number: u64,
        asked: Duration,
        answered: Duration,
        verdict: Verdict,
    ) -> Answer {
        Answer { target, key: number % self.load.keys, asked, answered, verdict }
    }
}

/// A connection in one of the languages.
#[derive(Debug)]
enum Channel {
    Resp(Connection),
    Http(BufReader<TcpStream>),
}

impl Channel {
    fn open(target: &Target, patience: Duration) -> io::Result<Channel> {
        match target {
            Target::Resp(address) => {
                Connection::over_tcp(connect(address, patience)?, patience).map(Channel::Resp)
            }
            Target::Http(address) => {
                let stream = connect(address, patience)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                Ok(Channel::Http(BufReader::new(stream)))
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Channel::Resp(connection) => connection.send_encoded(bytes),
            Channel::Http(stream) => stream.get_mut().write_all(bytes),
        }
    }

    /// Reads one answer. One that is no decision is an error.
    fn read(&mut self) -> io::Result<Verdict> {
        match self {
            Channel::Resp(connection) => {
                let reply = connection.read()?;
                if let Some(error) = reply.error() {
                    return Err(io::Error::other(error.to_owned()));
                }
                match reply.array().first().map(crate::servers::Reply::integer) {
                    Some(0) => Ok(Verdict::Allowed),
                    Some(1) => Ok(Verdict::Denied),
                    _ => Err(io::Error::other(format!("{reply:?} is no decision"))),
                }
            }
            Channel::Http(stream) => read_http(stream),
        }
    }
}

fn read_http(stream: &mut BufReader<TcpStream>) -> io::Result<Verdict> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        head.clear();
        if stream.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = head.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(": ")
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let body = String::from_utf8_lossy(&body);
    match (body.contains(r#""allowed":true"#), body.contains(r#""allowed":false"#)) {
        (true, false) => Ok(Verdict::Allowed),
        (false, true) => Ok(Verdict::Denied),
        _ => Err(io::Error::other(format!("{body:?} is no decision"))),
    }
}

/// What a thread gives when it has not panicked.
trait MustEnd<T> {
    fn must_end(self) -> T;
}

impl<T> MustEnd<T> for thread::Result<T> {
    fn must_end(self) -> T {
        self.ok().must("a client panicked")
    }
}

#[expect(clippy::disallowed_methods, reason = "how long real servers take is what is measured")]
fn now() -> Instant {
    Instant::now()
}

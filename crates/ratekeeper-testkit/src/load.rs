//! Many clients at once, and an account of every answer they got.
//!
//! Each connection is a thread that asks as soon as it has been answered, and notes by one monotonic clock when it asked and
//! when it knew: whatever decided did so in between. A server that does not answer in time or breaks the connection
//! makes a failed answer, and the client connects anew; nothing is asked twice.
//!
//! With a [rate](LoadPlan::rate), each connection asks when it is due instead, by a timetable that does not wait for answers: a
//! server that is slow for a while is not asked less for it, and a request that had to wait for its turn waited as long.
//! Meanwhile it is watched whether the machine stands still, which is no server's fault.

mod answer_log;
mod channel;
mod keys;

pub use answer_log::{AnswerKind, AnswerLog, SlowAnswers, TimedAnswer};
pub use channel::Target;

use crate::patience::{Must, PATIENCE, within};
use crate::servers::encode;
use crate::stall_watch::StallWatch;
use channel::{Channel, ChannelReply};
use keys::KeyChoice;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Stands for the key in what is asked.
const KEY: &str = "{key}";
/// Stands for the endpoint in what is asked.
const ENDPOINT: &str = "{endpoint}";
/// How long a client waits before it tries again to connect to a server that is away.
const PAUSE: Duration = Duration::from_millis(5);

/// What is to be asked, and how hard.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    targets: Vec<Target>,
    words: Vec<String>,
    path: String,
    body: String,
    endpoints: Vec<String>,
    keys: KeyChoice,
    connections: usize,
    depth: u64,
    rate: Option<u32>,
    patience: Duration,
}

impl LoadPlan {
    /// Checks for one key, through one connection to each of these.
    pub fn on(targets: impl IntoIterator<Item = Target>) -> LoadPlan {
        LoadPlan {
            targets: targets.into_iter().collect(),
            words: ["RK.CHECK", KEY, ENDPOINT].map(str::to_owned).to_vec(),
            path: "/check".to_owned(),
            body: format!(r#"{{"client_key":"{KEY}","endpoint":"{ENDPOINT}"}}"#),
            endpoints: vec!["/".to_owned()],
            keys: KeyChoice::InTurn(1),
            connections: 1,
            depth: 1,
            rate: None,
            patience: Duration::from_secs(5),
        }
    }

    /// The command for RESP, in which `{key}` stands for the key and `{endpoint}` for the endpoint. A check it must be: what
    /// comes first in its answer is 0 for allowed and 1 for denied.
    #[must_use]
    pub fn words(mut self, words: &[&str]) -> LoadPlan {
        self.words = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Where and what to post for HTTP; in the body `{key}` stands for the key and `{endpoint}` for the endpoint.
    #[must_use]
    pub fn post(mut self, path: &str, body: &str) -> LoadPlan {
        (self.path, self.body) = (path.to_owned(), body.to_owned());
        self
    }

    /// What is to be gone to, in turns; `/` unless told.
    #[must_use]
    pub fn endpoints(mut self, endpoints: &[&str]) -> LoadPlan {
        self.endpoints = endpoints.iter().map(|endpoint| (*endpoint).to_owned()).collect();
        self
    }

    /// How many keys there are, `key0` and so on, which take turns.
    #[must_use]
    pub fn keys(mut self, count: u64) -> LoadPlan {
        self.keys = KeyChoice::InTurn(count.max(1));
        self
    }

    /// How many keys there are of which some are more popular than others: `key1` is asked for half as often as `key0`,
    /// `key2` a third as often, and so on.
    #[must_use]
    pub fn zipf_keys(mut self, count: u32) -> LoadPlan {
        self.keys = KeyChoice::zipf(count);
        self
    }

    /// How many connections there are to each target.
    #[must_use]
    pub fn connections(mut self, count: usize) -> LoadPlan {
        self.connections = count;
        self
    }

    /// How many requests a connection sends before it waits for the answers to all of them.
    #[must_use]
    pub fn depth(mut self, requests: u64) -> LoadPlan {
        self.depth = requests.max(1);
        self
    }

    /// How many requests there are in a second, of all connections to all targets together, whatever becomes of them.
    /// Requests then go one by one. There should be connections enough: one that still waits is late with its next.
    #[must_use]
    pub fn rate(mut self, per_second: u32) -> LoadPlan {
        self.rate = Some(per_second.max(1));
        self
    }

    /// How long to wait for an answer; five seconds unless told.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> LoadPlan {
        self.patience = patience;
        self
    }

    /// Asks so many times in all, and gives the account.
    pub fn run(self, requests: u64) -> AnswerLog {
        self.begin_bounded(requests).account()
    }

    /// Asks without an end, until [`Running::end`].
    pub fn begin(self) -> Running {
        self.begin_bounded(u64::MAX)
    }

    fn begin_bounded(self, requests: u64) -> Running {
        let begun = now();
        let count = self.connections * self.targets.len();
        let shared = Arc::new(LoadShared {
            load: self,
            begun,
            requests,
            next: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            latest: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let lookouts = shared.load.rate.map(|_| StallWatch::post(begun));
        let clients = (0..count).map(|client| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.drive(client))
        });
        let clients = clients.collect();
        Running { shared, clients, lookouts, begun }
    }
}

/// Clients that are asking.
#[derive(Debug)]
pub struct Running {
    shared: Arc<LoadShared>,
    clients: Vec<JoinHandle<Vec<TimedAnswer>>>,
    lookouts: Option<StallWatch>,
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

    /// The latest answer of each target about each endpoint that decided, for a load with a rate.
    pub fn latest(&self) -> Vec<TimedAnswer> {
        self.shared.latest.lock().values().copied().collect()
    }

    /// Goes on until this time by the clock of the answers.
    pub fn go_on_until(&self, time: Duration) {
        loop {
            let left = time.saturating_sub(self.now());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
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
    pub fn end(self) -> AnswerLog {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.account()
    }

    fn account(self) -> AnswerLog {
        let answers = self.clients.into_iter().flat_map(|client| client.join().must_end());
        let answers = answers.collect();
        let stalls = self.lookouts.map(StallWatch::end).unwrap_or_default();
        AnswerLog::new(answers, stalls, self.begun.elapsed())
    }
}

#[derive(Debug)]
struct LoadShared {
    load: LoadPlan,
    begun: Instant,
    requests: u64,
    next: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
    /// For each target and endpoint, if there is a rate: without one, there would be a crowd.
    latest: Mutex<BTreeMap<(usize, usize), TimedAnswer>>,
    is_over: AtomicBool,
}

impl LoadShared {
    /// One client, from its first request to its last.
    fn drive(&self, client: usize) -> Vec<TimedAnswer> {
        let target = client % self.load.targets.len();
        let mut answers = Vec::new();
        let mut channel = None;
        let mut turn = ScheduledRequests::first(client, &self.load);
        while let Some((numbers, due)) = self.next(&mut turn) {
            let asked = self.begun.elapsed();
            let mut left = numbers;
            let batch = SentRequests { target, due: due.unwrap_or(asked), asked };
            let heard = self.ask(&mut channel, &batch, &mut left, &mut answers);
            if heard.is_err() {
                channel = None;
                self.failed.fetch_add(left.end - left.start, Ordering::Relaxed);
                let nothing = ChannelReply { verdict: AnswerKind::Failed, is_degraded: false };
                answers.extend(left.map(|number| self.answer(&batch, number, nothing)));
                thread::park_timeout(PAUSE);
            }
        }
        answers
    }

    /// What a client is to ask next, once it is due; nothing when all is over.
    fn next(&self, turn: &mut ScheduledRequests) -> Option<(Range<u64>, Option<Duration>)> {
        let (numbers, due) = match self.load.rate {
            None => {
                let first = self.next.fetch_add(self.load.depth, Ordering::Relaxed);
                (first..(first + self.load.depth).min(self.requests), None)
            }
            Some(rate) => {
                let first = turn.next();
                (first..first + 1, Some(Duration::from_secs_f64(as_f64(first) / f64::from(rate))))
            }
        };
        if numbers.start >= self.requests {
            return None;
        }
        let wait = || due.unwrap_or_default().saturating_sub(self.begun.elapsed());
        while !wait().is_zero() && !self.is_over.load(Ordering::Relaxed) {
            thread::park_timeout(wait());
        }
        (!self.is_over.load(Ordering::Relaxed)).then_some((numbers, due))
    }

    /// Sends a batch and notes the answers, taking each number off the batch when it has its answer.
    fn ask(
        &self,
        channel: &mut Option<Channel>,
        batch: &SentRequests,
        numbers: &mut Range<u64>,
        answers: &mut Vec<TimedAnswer>,
    ) -> io::Result<()> {
        let target = &self.load.targets[batch.target];
        let channel = match channel {
            Some(open) => open,
            None => channel.insert(Channel::open(target, self.load.patience)?),
        };
        let mut bytes = Vec::new();
        for number in numbers.clone() {
            self.write(target, number, &mut bytes);
        }
        channel.send(&bytes)?;
        while let Some(number) = numbers.next() {
            let heard = channel.read().inspect_err(|_| numbers.start = number)?;
            self.answered.fetch_add(1, Ordering::Relaxed);
            let answer = self.answer(batch, number, heard);
            if self.load.rate.is_some() {
                self.latest.lock().insert((answer.target, answer.endpoint), answer);
            }
            answers.push(answer);
        }
        Ok(())
    }

    fn write(&self, target: &Target, number: u64, bytes: &mut Vec<u8>) {
        let (endpoint, key) = self.about(number);
        let (endpoint, key) = (&self.load.endpoints[endpoint], format!("key{key}"));
        let fill = |text: &str| text.replace(KEY, &key).replace(ENDPOINT, endpoint);
        match target {
            Target::Resp(_) => {
                let words: Vec<_> = self.load.words.iter().map(|word| fill(word)).collect();
                bytes.extend(encode(&words));
            }
            Target::Http(_) => {
                let body = fill(&self.load.body);
                let (path, length) = (&self.load.path, body.len());
                let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n");
                bytes.extend(head.into_bytes());
                bytes.extend(body.into_bytes());
            }
        }
    }

    /// Which endpoint and which key a request is about. Each target is asked about all of them.
    fn about(&self, number: u64) -> (usize, u64) {
        let (targets, endpoints) = (self.load.targets.len() as u64, self.load.endpoints.len() as u64);
        let round = number / targets;
        let endpoint = usize::try_from(round % endpoints).expect("there are not as many endpoints");
        // Where keys take turns they do so for each endpoint; chance has no need of that.
        let key = match &self.load.keys {
            KeyChoice::InTurn(_) if endpoints == 1 => self.load.keys.pick(number),
            KeyChoice::InTurn(_) => self.load.keys.pick(round / endpoints),
            KeyChoice::Zipf(_) => self.load.keys.pick(number),
        };
        (endpoint, key)
    }

    fn answer(&self, batch: &SentRequests, number: u64, heard: ChannelReply) -> TimedAnswer {
        let (endpoint, key) = self.about(number);
        let SentRequests { target, due, asked } = *batch;
        let ChannelReply { verdict, is_degraded } = heard;
        TimedAnswer {
            target,
            endpoint,
            key,
            due,
            asked,
            answered: self.begun.elapsed(),
            verdict,
            is_degraded,
        }
    }
}

/// Whom and when a batch was sent to.
struct SentRequests {
    target: usize,
    due: Duration,
    asked: Duration,
}

/// The numbers of a client's requests where all have a timetable: each has every so manieth.
struct ScheduledRequests {
    number: u64,
    step: u64,
}

impl ScheduledRequests {
    fn first(client: usize, load: &LoadPlan) -> ScheduledRequests {
        ScheduledRequests { number: client as u64, step: (load.connections * load.targets.len()) as u64 }
    }

    fn next(&mut self) -> u64 {
        let number = self.number;
        self.number += self.step;
        number
    }
}

/// A number of requests, of which there are fewer than a float can count.
fn as_f64(number: u64) -> f64 {
    u32::try_from(number).map_or(f64::MAX, f64::from)
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

//! A load generator: many concurrent clients, and a log of every answer they got.
//!
//! Each connection is a thread that sends its next request once the last is answered. It records by one monotonic clock
//! when it sent the request and when it had the answer: the decision was made in between. A timeout or a broken
//! connection counts as a failed answer, and the client reconnects. No request is sent twice.
//!
//! With a [rate](LoadPlan::rate), each connection sends on a schedule that does not wait for answers (an open loop): a
//! slow server still gets the full load, and a request that was sent late counts from when it was due. Meanwhile a
//! [stall watch](crate::time_without_stalls) records when the machine itself stalled, so that servers are not blamed for
//! it.

mod answer_log;
mod channel;
mod keys;

pub use answer_log::{AnswerKind, AnswerLog, TimedAnswer};
pub use channel::Target;

use crate::servers::encode;
use crate::stall_watch::StallWatch;
use crate::wait::{OrFail, TEST_TIMEOUT, wait_for};
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

/// The placeholder for the key in a request.
const KEY_PLACEHOLDER: &str = "{key}";
/// The placeholder for the endpoint in a request.
const ENDPOINT_PLACEHOLDER: &str = "{endpoint}";
/// How long a client waits before it reconnects to a server that is down.
const RECONNECT_DELAY: Duration = Duration::from_millis(5);

/// The requests to send, and how hard.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    targets: Vec<Target>,
    command: Vec<String>,
    path: String,
    body: String,
    endpoints: Vec<String>,
    keys: KeyChoice,
    connections: usize,
    pipeline_depth: u64,
    rate: Option<u32>,
    timeout: Duration,
}

impl LoadPlan {
    /// Checks of one key, over one connection to each target.
    pub fn new(targets: impl IntoIterator<Item = Target>) -> LoadPlan {
        LoadPlan {
            targets: targets.into_iter().collect(),
            command: ["RK.CHECK", KEY_PLACEHOLDER, ENDPOINT_PLACEHOLDER].map(str::to_owned).to_vec(),
            path: "/check".to_owned(),
            body: format!(r#"{{"client_key":"{KEY_PLACEHOLDER}","endpoint":"{ENDPOINT_PLACEHOLDER}"}}"#),
            endpoints: vec!["/".to_owned()],
            keys: KeyChoice::RoundRobin(1),
            connections: 1,
            pipeline_depth: 1,
            rate: None,
            timeout: Duration::from_secs(5),
        }
    }

    /// The RESP command, with placeholders `{key}` and `{endpoint}`. The first element of its reply must be 0 for
    /// allowed and 1 for denied.
    #[must_use]
    pub fn command(mut self, words: &[&str]) -> LoadPlan {
        self.command = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// The path and body of the HTTP request; `{key}` and `{endpoint}` in the body are placeholders.
    #[must_use]
    pub fn post(mut self, path: &str, body: &str) -> LoadPlan {
        (self.path, self.body) = (path.to_owned(), body.to_owned());
        self
    }

    /// The endpoints, used in turn; `/` by default.
    #[must_use]
    pub fn endpoints(mut self, endpoints: &[&str]) -> LoadPlan {
        self.endpoints = endpoints.iter().map(|endpoint| (*endpoint).to_owned()).collect();
        self
    }

    /// The number of keys, `key0` and so on, used in turn.
    #[must_use]
    pub fn keys(mut self, count: u64) -> LoadPlan {
        self.keys = KeyChoice::RoundRobin(count.max(1));
        self
    }

    /// The number of keys, requested with a Zipf distribution: `key1` half as often as `key0`, `key2` a third as often,
    /// and so on.
    #[must_use]
    pub fn zipf_keys(mut self, count: u32) -> LoadPlan {
        self.keys = KeyChoice::zipf(count);
        self
    }

    /// The number of connections to each target.
    #[must_use]
    pub fn connections(mut self, count: usize) -> LoadPlan {
        self.connections = count;
        self
    }

    /// The number of requests that a connection pipelines before it reads the answers to all of them.
    #[must_use]
    pub fn pipeline_depth(mut self, requests: u64) -> LoadPlan {
        self.pipeline_depth = requests.max(1);
        self
    }

    /// The total requests per second over all connections and targets, whether or not they are answered. Requests are
    /// then not pipelined. Use enough connections: one that still waits for an answer sends its next request late.
    #[must_use]
    pub fn rate(mut self, per_second: u32) -> LoadPlan {
        self.rate = Some(per_second.max(1));
        self
    }

    /// The timeout of an answer; five seconds by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> LoadPlan {
        self.timeout = timeout;
        self
    }

    /// Sends `requests` requests in all, and returns the answers.
    pub fn run(self, requests: u64) -> AnswerLog {
        self.start_bounded(requests).into_log()
    }

    /// Sends requests until [`LoadRun::stop`].
    pub fn start(self) -> LoadRun {
        self.start_bounded(u64::MAX)
    }

    fn start_bounded(self, requests: u64) -> LoadRun {
        let begun = now();
        let count = self.connections * self.targets.len();
        let shared = Arc::new(LoadShared {
            plan: self,
            started_at: begun,
            max_requests: requests,
            next_number: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            latest: Mutex::default(),
            is_stopped: AtomicBool::new(false),
        });
        let lookouts = shared.plan.rate.map(|_| StallWatch::start(begun));
        let clients = (0..count).map(|client| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.run_client(client))
        });
        let clients = clients.collect();
        LoadRun { shared, clients, stall_watch: lookouts, started_at: begun }
    }
}

/// A running load.
#[derive(Debug)]
pub struct LoadRun {
    shared: Arc<LoadShared>,
    clients: Vec<JoinHandle<Vec<TimedAnswer>>>,
    stall_watch: Option<StallWatch>,
    started_at: Instant,
}

impl LoadRun {
    /// The time since the load started, by the clock of the answers.
    pub fn now(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// The number of answers so far, without failed ones.
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// The number of requests so far without a decision.
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// The latest decision of each target for each endpoint, for a load with a rate.
    pub fn latest(&self) -> Vec<TimedAnswer> {
        self.shared.latest.lock().values().copied().collect()
    }

    /// Blocks until this time by the clock of the answers.
    pub fn wait_until(&self, time: Duration) {
        loop {
            let left = time.saturating_sub(self.now());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    }

    /// Waits for `answers` further answers.
    #[track_caller]
    pub fn wait_for_answers(&self, answers: u64) {
        let enough = self.answered() + answers;
        wait_for(TEST_TIMEOUT, "clients get answers", || (self.answered() >= enough).then_some(()));
    }

    /// Waits for `requests` further failed requests.
    #[track_caller]
    pub fn wait_for_failures(&self, requests: u64) {
        let enough = self.failed() + requests;
        wait_for(TEST_TIMEOUT, "requests of clients fail", || (self.failed() >= enough).then_some(()));
    }

    /// Sends no more requests, waits for outstanding answers, and returns them all.
    pub fn stop(self) -> AnswerLog {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
        self.into_log()
    }

    fn into_log(self) -> AnswerLog {
        let answers = self.clients.into_iter().flat_map(|client| client.join().expect_no_panic());
        let answers = answers.collect();
        let stalls = self.stall_watch.map(StallWatch::stop).unwrap_or_default();
        AnswerLog::new(answers, stalls, self.started_at.elapsed())
    }
}

#[derive(Debug)]
struct LoadShared {
    plan: LoadPlan,
    started_at: Instant,
    max_requests: u64,
    next_number: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
    /// By target and endpoint, only for a load with a rate: without one, the clients would contend for the lock.
    latest: Mutex<BTreeMap<(usize, usize), TimedAnswer>>,
    is_stopped: AtomicBool,
}

impl LoadShared {
    /// Runs one client, from its first request to its last.
    fn run_client(&self, client: usize) -> Vec<TimedAnswer> {
        let target = client % self.plan.targets.len();
        let mut answers = Vec::new();
        let mut channel = None;
        let mut turn = ScheduledRequests::new(client, &self.plan);
        while let Some((numbers, due)) = self.next_requests(&mut turn) {
            let sent = self.started_at.elapsed();
            let mut left = numbers;
            let batch = SentRequests { target, due: due.unwrap_or(sent), sent };
            let result = self.send_batch(&mut channel, &batch, &mut left, &mut answers);
            if result.is_err() {
                channel = None;
                self.failed.fetch_add(left.end - left.start, Ordering::Relaxed);
                let failed = ChannelReply { kind: AnswerKind::Failed, is_degraded: false };
                answers.extend(left.map(|number| self.timed_answer(&batch, number, failed)));
                thread::park_timeout(RECONNECT_DELAY);
            }
        }
        answers
    }

    /// Waits until the next requests of a client are due, and returns their numbers. Returns `None` at the end.
    fn next_requests(&self, turn: &mut ScheduledRequests) -> Option<(Range<u64>, Option<Duration>)> {
        let (numbers, due) = match self.plan.rate {
            None => {
                let first = self.next_number.fetch_add(self.plan.pipeline_depth, Ordering::Relaxed);
                (first..(first + self.plan.pipeline_depth).min(self.max_requests), None)
            }
            Some(rate) => {
                let first = turn.next_number();
                (first..first + 1, Some(Duration::from_secs_f64(as_f64(first) / f64::from(rate))))
            }
        };
        if numbers.start >= self.max_requests {
            return None;
        }
        let wait = || due.unwrap_or_default().saturating_sub(self.started_at.elapsed());
        while !wait().is_zero() && !self.is_stopped.load(Ordering::Relaxed) {
            thread::park_timeout(wait());
        }
        (!self.is_stopped.load(Ordering::Relaxed)).then_some((numbers, due))
    }

    /// Sends a batch and records the answers. Removes each number from `numbers` once it is answered.
    fn send_batch(
        &self,
        channel: &mut Option<Channel>,
        batch: &SentRequests,
        numbers: &mut Range<u64>,
        answers: &mut Vec<TimedAnswer>,
    ) -> io::Result<()> {
        let target = &self.plan.targets[batch.target];
        let channel = match channel {
            Some(open) => open,
            None => channel.insert(Channel::open(target, self.plan.timeout)?),
        };
        let mut bytes = Vec::new();
        for number in numbers.clone() {
            self.encode_request(target, number, &mut bytes);
        }
        channel.send(&bytes)?;
        while let Some(number) = numbers.next() {
            let reply = channel.read().inspect_err(|_| numbers.start = number)?;
            self.answered.fetch_add(1, Ordering::Relaxed);
            let answer = self.timed_answer(batch, number, reply);
            if self.plan.rate.is_some() {
                self.latest.lock().insert((answer.target, answer.endpoint), answer);
            }
            answers.push(answer);
        }
        Ok(())
    }

    fn encode_request(&self, target: &Target, number: u64, bytes: &mut Vec<u8>) {
        let (endpoint, key) = self.endpoint_and_key(number);
        let (endpoint, key) = (&self.plan.endpoints[endpoint], format!("key{key}"));
        let fill = |text: &str| text.replace(KEY_PLACEHOLDER, &key).replace(ENDPOINT_PLACEHOLDER, endpoint);
        match target {
            Target::Resp(_) => {
                let words: Vec<_> = self.plan.command.iter().map(|word| fill(word)).collect();
                bytes.extend(encode(&words));
            }
            Target::Http(_) => {
                let body = fill(&self.plan.body);
                let (path, length) = (&self.plan.path, body.len());
                let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n");
                bytes.extend(head.into_bytes());
                bytes.extend(body.into_bytes());
            }
        }
    }

    /// The endpoint and the key of a request. Each target gets all of them.
    fn endpoint_and_key(&self, number: u64) -> (usize, u64) {
        let (targets, endpoints) = (self.plan.targets.len() as u64, self.plan.endpoints.len() as u64);
        let round = number / targets;
        let endpoint = usize::try_from(round % endpoints).expect("an endpoint's index fits in usize");
        // Round-robin keys rotate for each endpoint separately; random keys need not.
        let key = match &self.plan.keys {
            KeyChoice::RoundRobin(_) if endpoints == 1 => self.plan.keys.key_of(number),
            KeyChoice::RoundRobin(_) => self.plan.keys.key_of(round / endpoints),
            KeyChoice::Zipf(_) => self.plan.keys.key_of(number),
        };
        (endpoint, key)
    }

    fn timed_answer(&self, batch: &SentRequests, number: u64, reply: ChannelReply) -> TimedAnswer {
        let (endpoint, key) = self.endpoint_and_key(number);
        let SentRequests { target, due, sent } = *batch;
        let ChannelReply { kind, is_degraded } = reply;
        TimedAnswer {
            target,
            endpoint,
            key,
            due,
            sent,
            answered: self.started_at.elapsed(),
            kind,
            is_degraded,
        }
    }
}

/// The target of a batch, and when it was due and sent.
struct SentRequests {
    target: usize,
    due: Duration,
    sent: Duration,
}

/// The request numbers of one client under a schedule: every `step`th.
struct ScheduledRequests {
    number: u64,
    step: u64,
}

impl ScheduledRequests {
    fn new(client: usize, load: &LoadPlan) -> ScheduledRequests {
        ScheduledRequests { number: client as u64, step: (load.connections * load.targets.len()) as u64 }
    }

    fn next_number(&mut self) -> u64 {
        let number = self.number;
        self.number += self.step;
        number
    }
}

/// Converts a request number; runs have fewer than 2^32 requests.
fn as_f64(number: u64) -> f64 {
    u32::try_from(number).map_or(f64::MAX, f64::from)
}

/// Returns a thread's result, or fails the test if the thread panicked.
trait ExpectNoPanic<T> {
    fn expect_no_panic(self) -> T;
}

impl<T> ExpectNoPanic<T> for thread::Result<T> {
    fn expect_no_panic(self) -> T {
        self.ok().or_fail("a client panicked")
    }
}

#[expect(clippy::disallowed_methods, reason = "how long real servers take is what is measured")]
fn now() -> Instant {
    Instant::now()
}

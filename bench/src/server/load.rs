//! The generator: many connections, one question open on each, from one thread.
//!
//! It must outrun every subject, so it does next to nothing: questions are bytes made beforehand, and an answer is looked
//! at once. It never sleeps, because a server would pay for waking it. How much of its time it found no answer to take
//! in is told with the figures: a generator with nothing to spare has measured itself.

use super::client::{Answer, Client};
use crate::histogram::Histogram;
use crate::keys::Rng;
use anyhow::{Context, Result, bail, ensure};
use mio::event::Event;
use mio::{Events, Interest, Poll, Token};
use quanta::{Clock, Instant};
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// Room for what comes, to begin with; an answer to a thousand checks makes more.
const INPUT_BYTES: usize = 16 << 10;
/// Longer than any subject's answer to a thousand checks; a longer one is a mistake.
const MAX_BYTES: usize = 4 << 20;
/// How long a subject may take for a single answer before it counts as dead.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a generator that sleeps does so at most: it must see when its time is over.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// What a subject is asked, and how.
pub(crate) struct Plan {
    client: Box<dyn Client>,
    pub(crate) connections: usize,
    pub(crate) idle: Idle,
}

/// What the generator does while there is no answer to take in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// It looks again at once: it has a core of its own.
    Spin,
    /// It leaves its core to others: it shares one with the server.
    Sleep,
}

impl Plan {
    pub(crate) fn new(client: impl Client + 'static, connections: usize) -> Plan {
        Plan { client: Box::new(client), connections, idle: Idle::Spin }
    }

    /// One connection.
    pub(crate) fn single(client: impl Client + 'static) -> Plan {
        Plan::new(client, 1)
    }

    /// How many checks each question holds.
    pub(crate) fn checks(&self) -> usize {
        self.client.checks()
    }
}

/// What came of some time under load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadResult {
    pub(crate) answers: u64,
    pub(crate) elapsed: Duration,
    /// How long the generator had nothing to do.
    pub(crate) spare: Duration,
}

/// Answers of a whole run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) answers: u64,
    pub(crate) unexpected: u64,
    /// The first that was not as expected.
    pub(crate) example: Option<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.answers += other.answers;
        self.unexpected += other.unexpected;
        self.example = self.example.take().or(other.example);
    }

    fn count(&mut self, answer: Answer) {
        self.answers += 1;
        if let Answer::Other(begin) = answer {
            self.unexpected += 1;
            self.example.get_or_insert(begin);
        }
    }
}

/// A load on one subject.
pub(crate) struct Load {
    poll: Poll,
    events: Events,
    wait: Duration,
    clock: Clock,
    rng: Rng,
    connections: Vec<Connection>,
    tally: Tally,
    spare: Duration,
    /// When the last answer came.
    last_response: Instant,
}

impl Load {
    /// Connects; nothing is sent yet.
    pub(crate) fn connect(address: SocketAddr, plan: &Plan, seed: u64) -> Result<Load> {
        let poll = Poll::new()?;
        let mut connections = Vec::with_capacity(plan.connections);
        for index in 0..plan.connections {
            let mut connection = Connection::open(address, plan.client.fresh())?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut connection.stream, Token(index), interest)?;
            connections.push(connection);
        }
        let clock = Clock::new();
        Ok(Load {
            poll,
            events: Events::with_capacity(plan.connections),
            wait: match plan.idle {
                Idle::Spin => Duration::ZERO,
                Idle::Sleep => MAX_SLEEP,
            },
            rng: Rng::new(seed),
            connections,
            tally: Tally::default(),
            spare: Duration::ZERO,
            last_response: clock.now(),
            clock,
        })
    }

    /// Asks for so long as fast as answers come: every connection sends its next question when it has its answer. It
    /// may be called again, and goes on where it was.
    pub(crate) fn run_for(&mut self, time: Duration) -> Result<LoadResult> {
        self.send_all()?;
        let begin = self.clock.now();
        let (answers, spare) = (self.tally.answers, self.spare);
        loop {
            self.poll_responses(|connection, rng, _| connection.send_request(rng))?;
            let elapsed = self.clock.now() - begin;
            if elapsed >= time {
                let answers = self.tally.answers - answers;
                return Ok(LoadResult { answers, elapsed, spare: self.spare - spare });
            }
        }
    }

    /// Asks at an even rate for so long, whether answers come or not, and tells how long each took from the moment its
    /// question was due: one that had to wait for its connection has that time too. Questions take the connections in
    /// turn. Those due during `warm_up` are not counted.
    pub(crate) fn pace(&mut self, per_sec: f64, warm_up: Duration, time: Duration) -> Result<Histogram> {
        let begin = self.clock.now();
        self.last_response = begin;
        let due = |index: u64| begin + Duration::from_nanos((index as f64 * 1e9 / per_sec) as u64);
        let total = (per_sec * (warm_up + time).as_secs_f64()) as u64;
        let mut times = Histogram::new();
        let (mut index, before) = (0, self.tally.answers);
        while self.tally.answers - before < total {
            let now = self.clock.now();
            while index < total && due(index) <= now {
                let turn = index as usize % self.connections.len();
                self.connections[turn].enqueue(due(index), &mut self.rng)?;
                index += 1;
            }
            self.poll_responses(|connection, rng, now| {
                let due = connection.complete(rng)?;
                if due >= begin + warm_up {
                    times.record((now - due).as_nanos() as u64);
                }
                Ok(())
            })?;
        }
        Ok(times)
    }

    /// Asks once on every connection, and leaves.
    pub(crate) fn send_once(mut self) -> Result<Tally> {
        self.send_all()?;
        self.finish()
    }

    /// Takes in what is still on its way, and leaves.
    pub(crate) fn finish(mut self) -> Result<Tally> {
        while self.connections.iter().any(|connection| connection.is_waiting) {
            self.poll_responses(|_, _, _| Ok(()))?;
        }
        Ok(self.tally)
    }

    /// Has every connection ask that is not waiting for an answer.
    fn send_all(&mut self) -> Result<()> {
        for connection in self.connections.iter_mut().filter(|connection| !connection.is_waiting) {
            connection.send_request(&mut self.rng)?;
        }
        self.last_response = self.clock.now();
        Ok(())
    }

    /// Takes in the answers that are there, and has each connection go on as `next` says.
    fn poll_responses(
        &mut self,
        mut next: impl FnMut(&mut Connection, &mut Rng, Instant) -> Result<()>,
    ) -> Result<()> {
        let begin = self.clock.now();
        if let Err(error) = self.poll.poll(&mut self.events, Some(self.wait))
            && error.kind() != ErrorKind::Interrupted
        {
            return Err(error.into());
        }
        // Asleep, it had nothing to do also if something came in the end.
        if self.events.is_empty() || !self.wait.is_zero() {
            self.spare += self.clock.now() - begin;
        }
        if self.events.is_empty() {
            let now = self.clock.now();
            ensure!(now - self.last_response < RESPONSE_TIMEOUT, "no answer came for {RESPONSE_TIMEOUT:?}");
            return Ok(());
        }
        for event in &self.events {
            let connection = &mut self.connections[event.token().0];
            if let Some(answer) = connection.receive(event)? {
                self.tally.count(answer);
                self.last_response = self.clock.now();
                next(connection, &mut self.rng, self.last_response)?;
            }
        }
        Ok(())
    }
}

/// One connection, with at most one question open.
struct Connection {
    stream: mio::net::TcpStream,
    client: Box<dyn Client>,
    /// What is to be sent, and how much of it has been.
    output: Vec<u8>,
    sent: usize,
    /// What came and was not taken yet, and how much that is.
    input: Vec<u8>,
    received: usize,
    is_waiting: bool,
    /// When the questions were due that have no answer yet: the first is open, the others wait for it.
    due_at: VecDeque<Instant>,
}

impl Connection {
    fn open(address: SocketAddr, client: Box<dyn Client>) -> Result<Connection> {
        let stream = std::net::TcpStream::connect(address).context("a connection is not accepted")?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        // Others spread what is sent over time, as for a long line: a question would wait in the generator's own kernel.
        sockopt::set_tcp_congestion(&stream, "reno")
            .context("the system does not let a question go at once")?;
        Ok(Connection {
            stream: mio::net::TcpStream::from_std(stream),
            client,
            output: Vec::new(),
            sent: 0,
            input: vec![0; INPUT_BYTES],
            received: 0,
            is_waiting: false,
            due_at: VecDeque::new(),
        })
    }

    /// Sends a question for the next keys.
    fn send_request(&mut self, rng: &mut Rng) -> Result<()> {
        self.client.write_request(rng, &mut self.output)?;
        self.is_waiting = true;
        self.send()
    }

    fn send(&mut self) -> Result<()> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("a question can't be sent"),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// Notes that a question is due, and sends it unless another is open.
    fn enqueue(&mut self, due: Instant, rng: &mut Rng) -> Result<()> {
        self.due_at.push_back(due);
        if self.due_at.len() == 1 { self.send_request(rng) } else { Ok(()) }
    }

    /// Notes that the open question has its answer, and sends the next if one is due; when the first was due.
    fn complete(&mut self, rng: &mut Rng) -> Result<Instant> {
        let due = self.due_at.pop_front().context("an answer came that nobody had asked for")?;
        if !self.due_at.is_empty() {
            self.send_request(rng)?;
        }
        Ok(due)
    }

    /// Takes in what has come; the answer, once it is whole.
    fn receive(&mut self, event: &Event) -> Result<Option<Answer>> {
        let mut answer = None;
        while event.is_readable() {
            let room = self.make_room()?;
            let length = match self.stream.read(&mut self.input[self.received..]) {
                Ok(0) => bail!("a connection was closed by the server"),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("an answer can't be read"),
            };
            self.received += length;
            answer = self.read_response()?.or(answer);
            // It took all there was: what comes later is another event.
            if length < room {
                break;
            }
        }
        self.send()?;
        Ok(answer)
    }

    /// How much more can be read at once.
    fn make_room(&mut self) -> Result<usize> {
        if self.received == self.input.len() {
            ensure!(self.received < MAX_BYTES, "an answer is longer than {MAX_BYTES} bytes");
            self.input.resize(2 * self.received, 0);
        }
        Ok(self.input.len() - self.received)
    }

    fn read_response(&mut self) -> Result<Option<Answer>> {
        let heard = self.client.read_response(&self.input[..self.received], &mut self.output)?;
        self.input.copy_within(heard.taken..self.received, 0);
        self.received -= heard.taken;
        if heard.answer.is_some() {
            ensure!(self.is_waiting, "an answer came that nobody had asked for");
            self.is_waiting = false;
        }
        Ok(heard.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::client::http::HttpClient;
    use std::net::TcpListener;
    use std::thread;

    /// A server that gives every question of so many bytes the same reply, in two pieces.
    fn server(length: usize, body: &str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut question, reply) = (stream.unwrap(), vec![0; length], reply.clone());
                thread::spawn(move || {
                    while stream.read_exact(&mut question).is_ok() {
                        assert!(!question.contains(&b'#'), "a question was sent without its keys");
                        let (begin, end) = reply.split_at(reply.len() / 2);
                        stream.write_all(begin).and_then(|()| stream.write_all(end)).unwrap();
                    }
                });
            }
        });
        address
    }

    /// So many checks in one question, and a server that allows so many of them.
    fn batch(checks: usize, allowed: usize) -> (SocketAddr, Plan) {
        let mut client = HttpClient::post("/batch", &"user:######,".repeat(checks), "allowed");
        let mut question = Vec::new();
        client.write_request(&mut Rng::new(1), &mut question).unwrap();
        (server(question.len(), &"allowed,".repeat(allowed)), Plan::new(client, 4))
    }

    #[test]
    fn every_question_has_one_answer() {
        // Long enough that neither a question nor an answer fits into the system's buffers.
        for checks in [1, 300_000] {
            let (address, mut plan) = batch(checks, checks);
            for idle in [Idle::Spin, Idle::Sleep] {
                plan.idle = idle;
                let mut load = Load::connect(address, &plan, 1).unwrap();
                let samples =
                    [load.run_for(Duration::from_millis(50)), load.run_for(Duration::from_millis(50))];
                let counted: u64 = samples.into_iter().map(|lap| lap.unwrap().answers).sum();
                let tally = load.finish().unwrap();
                assert!(tally.answers > 0 && tally.unexpected == 0, "{tally:?}");
                assert_eq!(
                    tally.answers - counted.min(tally.answers),
                    4,
                    "those open when the watch stopped"
                );
            }
        }
    }

    #[test]
    fn an_answer_that_says_something_else_is_counted() {
        let (address, plan) = batch(3, 2);
        let mut load = Load::connect(address, &plan, 1).unwrap();
        load.run_for(Duration::from_millis(10)).unwrap();
        let tally = load.finish().unwrap();
        assert_eq!(tally.unexpected, tally.answers);
        assert_eq!(tally.example.as_deref(), Some("200 allowed,allowed,"));
    }

    #[test]
    fn every_question_that_was_due_is_timed() {
        let (address, plan) = batch(1, 1);
        let mut load = Load::connect(address, &plan, 1).unwrap();
        let (warm_up, time) = (Duration::from_millis(20), Duration::from_millis(100));
        let times = load.pace(1000.0, warm_up, time).unwrap();
        assert_eq!((times.total(), load.finish().unwrap().answers), (100, 120));
    }

    #[test]
    fn once_is_once_on_each_connection() {
        let (address, plan) = batch(1, 1);
        assert_eq!(Load::connect(address, &plan, 1).unwrap().send_once().unwrap().answers, 4);
    }

    #[test]
    fn a_server_that_leaves_ends_the_load() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let plan = Plan::single(HttpClient::get("/", 200, "hello"));
        let mut load = Load::connect(address, &plan, 1).unwrap();
        drop(listener.accept().unwrap());
        assert!(load.run_for(Duration::from_secs(60)).is_err());
        drop(listener);
        assert!(Load::connect(address, &plan, 1).is_err());
    }
}

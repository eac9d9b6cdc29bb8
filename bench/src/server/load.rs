//! The load generator: many connections, one request in flight on each, on one thread.
//!
//! It must outrun every subject, so it does almost nothing: requests are prebuilt bytes, and a response is scanned
//! once. It does not sleep, because the server would pay for waking it up. The share of its time in which there was no
//! response to read is reported with the figures: without spare time, the generator was the bottleneck.

use super::client::{Client, Response};
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

/// The initial read buffer; responses to a thousand checks make it grow.
const INPUT_BYTES: usize = 16 << 10;
/// Longer than any subject's response to a thousand checks; longer ones are errors.
const MAX_BYTES: usize = 4 << 20;
/// How long a subject may take for a response before it counts as dead.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest sleep of a generator that sleeps: it must notice the end of its run.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// The requests to send, and how.
pub(crate) struct Plan {
    client: Box<dyn Client>,
    pub(crate) connections: usize,
    pub(crate) idle: Idle,
}

/// What the generator does while there is no response to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// It polls again at once: it has a core of its own.
    Spin,
    /// It sleeps: it shares a core with the server.
    Sleep,
}

impl Plan {
    pub(crate) fn new(client: impl Client + 'static, connections: usize) -> Plan {
        Plan { client: Box::new(client), connections, idle: Idle::Spin }
    }

    /// A plan with one connection.
    pub(crate) fn single(client: impl Client + 'static) -> Plan {
        Plan::new(client, 1)
    }

    /// The number of checks per request.
    pub(crate) fn checks(&self) -> usize {
        self.client.checks()
    }
}

/// The results of some time under load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadResult {
    pub(crate) answers: u64,
    pub(crate) elapsed: Duration,
    /// How long the generator had nothing to do.
    pub(crate) spare: Duration,
}

/// Counts of responses over a whole run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) answers: u64,
    pub(crate) unexpected: u64,
    /// The first unexpected response.
    pub(crate) example: Option<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.answers += other.answers;
        self.unexpected += other.unexpected;
        self.example = self.example.take().or(other.example);
    }

    fn count(&mut self, answer: Response) {
        self.answers += 1;
        if let Response::Unexpected(begin) = answer {
            self.unexpected += 1;
            self.example.get_or_insert(begin);
        }
    }
}

/// The load on one subject.
pub(crate) struct Load {
    poll: Poll,
    events: Events,
    wait: Duration,
    clock: Clock,
    rng: Rng,
    connections: Vec<Connection>,
    tally: Tally,
    spare: Duration,
    /// When the last response arrived.
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

    /// Sends requests as fast as responses arrive (closed loop) for `time`: every connection sends its next request
    /// when it has its response. It may be called again, and continues where it was.
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

    /// Sends requests at a fixed rate (open loop), whether or not responses arrive, and returns the latencies. Each
    /// counts from when its request was due, including the wait for a free connection. Requests use the connections in
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

    /// Sends one request on every connection, reads the responses, and closes.
    pub(crate) fn send_once(mut self) -> Result<Tally> {
        self.send_all()?;
        self.finish()
    }

    /// Reads the outstanding responses, and closes.
    pub(crate) fn finish(mut self) -> Result<Tally> {
        while self.connections.iter().any(|connection| connection.is_waiting) {
            self.poll_responses(|_, _, _| Ok(()))?;
        }
        Ok(self.tally)
    }

    /// Sends a request on every connection that has none in flight.
    fn send_all(&mut self) -> Result<()> {
        for connection in self.connections.iter_mut().filter(|connection| !connection.is_waiting) {
            connection.send_request(&mut self.rng)?;
        }
        self.last_response = self.clock.now();
        Ok(())
    }

    /// Reads the available responses, and calls `next` for each connection that got one.
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
        // A sleeping generator had nothing to do even if something arrived in the end.
        if self.events.is_empty() || !self.wait.is_zero() {
            self.spare += self.clock.now() - begin;
        }
        if self.events.is_empty() {
            let now = self.clock.now();
            ensure!(now - self.last_response < RESPONSE_TIMEOUT, "no response for {RESPONSE_TIMEOUT:?}");
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

/// One connection, with at most one request in flight.
struct Connection {
    stream: mio::net::TcpStream,
    client: Box<dyn Client>,
    /// The bytes to send, and how many of them have been sent.
    output: Vec<u8>,
    sent: usize,
    /// The bytes received and not consumed, and their number.
    input: Vec<u8>,
    received: usize,
    is_waiting: bool,
    /// When the unanswered requests were due: the first is in flight, the others wait for it.
    due_at: VecDeque<Instant>,
}

impl Connection {
    fn open(address: SocketAddr, client: Box<dyn Client>) -> Result<Connection> {
        let stream =
            std::net::TcpStream::connect(address).context("the server does not accept a connection")?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        // Other congestion controls pace what is sent: a request would wait in the generator's own kernel.
        sockopt::set_tcp_congestion(&stream, "reno")
            .context("the kernel has no congestion control `reno`")?;
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

    /// Sends a request for the next keys.
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
                Err(error) => return Err(error).context("can't send a request"),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// Records that a request is due, and sends it unless another is in flight.
    fn enqueue(&mut self, due: Instant, rng: &mut Rng) -> Result<()> {
        self.due_at.push_back(due);
        if self.due_at.len() == 1 { self.send_request(rng) } else { Ok(()) }
    }

    /// Records that the request in flight was answered, and sends the next if one is due. Returns when the first was
    /// due.
    fn complete(&mut self, rng: &mut Rng) -> Result<Instant> {
        let due = self.due_at.pop_front().context("a response arrived without a request")?;
        if !self.due_at.is_empty() {
            self.send_request(rng)?;
        }
        Ok(due)
    }

    /// Reads what has arrived. Returns the response once it is complete.
    fn receive(&mut self, event: &Event) -> Result<Option<Response>> {
        let mut answer = None;
        while event.is_readable() {
            let room = self.make_room()?;
            let length = match self.stream.read(&mut self.input[self.received..]) {
                Ok(0) => bail!("a connection was closed by the server"),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("can't read a response"),
            };
            self.received += length;
            answer = self.read_response()?.or(answer);
            // It read everything there was: what comes later is another event.
            if length < room {
                break;
            }
        }
        self.send()?;
        Ok(answer)
    }

    /// Returns how many bytes can be read at once.
    fn make_room(&mut self) -> Result<usize> {
        if self.received == self.input.len() {
            ensure!(self.received < MAX_BYTES, "a response is longer than {MAX_BYTES} bytes");
            self.input.resize(2 * self.received, 0);
        }
        Ok(self.input.len() - self.received)
    }

    fn read_response(&mut self) -> Result<Option<Response>> {
        let outcome = self.client.read_response(&self.input[..self.received], &mut self.output)?;
        self.input.copy_within(outcome.consumed..self.received, 0);
        self.received -= outcome.consumed;
        if outcome.response.is_some() {
            ensure!(self.is_waiting, "a response arrived without a request");
            self.is_waiting = false;
        }
        Ok(outcome.response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::client::http::HttpClient;
    use std::net::TcpListener;
    use std::thread;

    /// A server that sends the same reply, in two pieces, to every request of `length` bytes.
    fn server(length: usize, body: &str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut request, reply) = (stream.unwrap(), vec![0; length], reply.clone());
                thread::spawn(move || {
                    while stream.read_exact(&mut request).is_ok() {
                        assert!(!request.contains(&b'#'), "a request was sent without its keys");
                        let (begin, end) = reply.split_at(reply.len() / 2);
                        stream.write_all(begin).and_then(|()| stream.write_all(end)).unwrap();
                    }
                });
            }
        });
        address
    }

    /// A server that allows `allowed` of the `checks` checks in each request, and a plan for it.
    fn batch(checks: usize, allowed: usize) -> (SocketAddr, Plan) {
        let mut client = HttpClient::post("/batch", &"user:######,".repeat(checks), "allowed");
        let mut request = Vec::new();
        client.write_request(&mut Rng::new(1), &mut request).unwrap();
        (server(request.len(), &"allowed,".repeat(allowed)), Plan::new(client, 4))
    }

    #[test]
    fn every_request_has_one_response() {
        // Long enough that neither a request nor a response fits into the system's buffers.
        for checks in [1, 300_000] {
            let (address, mut plan) = batch(checks, checks);
            for idle in [Idle::Spin, Idle::Sleep] {
                plan.idle = idle;
                let mut load = Load::connect(address, &plan, 1).unwrap();
                let samples =
                    [load.run_for(Duration::from_millis(50)), load.run_for(Duration::from_millis(50))];
                let counted: u64 = samples.into_iter().map(|result| result.unwrap().answers).sum();
                let tally = load.finish().unwrap();
                assert!(tally.answers > 0 && tally.unexpected == 0, "{tally:?}");
                assert_eq!(
                    tally.answers - counted.min(tally.answers),
                    4,
                    "the requests in flight when the time was over"
                );
            }
        }
    }

    #[test]
    fn unexpected_responses_are_counted() {
        let (address, plan) = batch(3, 2);
        let mut load = Load::connect(address, &plan, 1).unwrap();
        load.run_for(Duration::from_millis(10)).unwrap();
        let tally = load.finish().unwrap();
        assert_eq!(tally.unexpected, tally.answers);
        assert_eq!(tally.example.as_deref(), Some("200 allowed,allowed,"));
    }

    #[test]
    fn every_due_request_is_timed() {
        let (address, plan) = batch(1, 1);
        let mut load = Load::connect(address, &plan, 1).unwrap();
        let (warm_up, time) = (Duration::from_millis(20), Duration::from_millis(100));
        let times = load.pace(1000.0, warm_up, time).unwrap();
        assert_eq!((times.total(), load.finish().unwrap().answers), (100, 120));
    }

    #[test]
    fn send_once_sends_one_request_per_connection() {
        let (address, plan) = batch(1, 1);
        assert_eq!(Load::connect(address, &plan, 1).unwrap().send_once().unwrap().answers, 4);
    }

    #[test]
    fn a_closed_connection_ends_the_load() {
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

//! The generator: many connections, one request in flight on each, from one thread.
//!
//! It must outrun every subject, so it does next to nothing: requests are bytes made beforehand, and a reply is looked
//! at once. It never sleeps, because a server would pay for waking it. How much of its time it found no reply to take
//! in is told with the figures: a generator with nothing to spare has measured itself.

use super::reply::{Expected, MAX_BYTES, Outline, PATIENCE, Reply};
use super::request::Request;
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

/// Room for a reply to begin with; one to a thousand checks makes more.
const REPLY_BYTES: usize = 4096;

/// What a subject is asked, and how.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) request: Request,
    pub(crate) expected: Expected,
    pub(crate) connections: usize,
}

impl Plan {
    /// Every check must be answered with `phrase`.
    pub(crate) fn new(request: Request, phrase: &'static str, connections: usize) -> Plan {
        let expected = Expected::new(phrase, request.checks());
        Plan { request, expected, connections }
    }
}

/// What came of some time under load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lap {
    pub(crate) replies: u64,
    pub(crate) elapsed: Duration,
    /// How long the generator had nothing to do.
    pub(crate) spare: Duration,
}

/// Replies of a whole run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) replies: u64,
    pub(crate) unexpected: u64,
    /// The first that was not as expected.
    pub(crate) example: Option<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.replies += other.replies;
        self.unexpected += other.unexpected;
        self.example = self.example.take().or(other.example);
    }

    fn count(&mut self, reply: &Reply<'_>, expected: &Expected) {
        self.replies += 1;
        if !expected.is_met_by(reply) {
            self.unexpected += 1;
            self.example.get_or_insert_with(|| reply.excerpt());
        }
    }
}

/// A load on one subject.
pub(crate) struct Load {
    poll: Poll,
    events: Events,
    clock: Clock,
    rng: Rng,
    expected: Expected,
    connections: Vec<Connection>,
    tally: Tally,
    spare: Duration,
    /// When the last reply came.
    heard: Instant,
}

impl Load {
    /// Connects; nothing is sent yet.
    pub(crate) fn connect(address: SocketAddr, plan: &Plan, seed: u64) -> Result<Load> {
        let poll = Poll::new()?;
        let mut connections = Vec::with_capacity(plan.connections);
        for index in 0..plan.connections {
            let mut connection = Connection::open(address, plan.request.clone())?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut connection.stream, Token(index), interest)?;
            connections.push(connection);
        }
        let clock = Clock::new();
        Ok(Load {
            poll,
            events: Events::with_capacity(plan.connections),
            rng: Rng::new(seed),
            expected: plan.expected.clone(),
            connections,
            tally: Tally::default(),
            spare: Duration::ZERO,
            heard: clock.now(),
            clock,
        })
    }

    /// Asks for so long as fast as replies come: every connection sends its next request when it has its reply. It may
    /// be called again, and goes on where it was.
    pub(crate) fn press(&mut self, time: Duration) -> Result<Lap> {
        for connection in self.connections.iter_mut().filter(|connection| !connection.is_waiting) {
            connection.send(&mut self.rng)?;
        }
        let begin = self.clock.now();
        self.heard = begin;
        let (replies, spare) = (self.tally.replies, self.spare);
        loop {
            self.take_in(|connection, rng, _| connection.send(rng))?;
            let elapsed = self.clock.now() - begin;
            if elapsed >= time {
                let replies = self.tally.replies - replies;
                return Ok(Lap { replies, elapsed, spare: self.spare - spare });
            }
        }
    }

    /// Asks at an even rate for so long, whether replies come or not, and tells how long each took from the moment its
    /// request was due: a request that had to wait for its connection has that time too. Requests take the connections
    /// in turn. Those due during `warm_up` are not counted.
    pub(crate) fn pace(&mut self, per_sec: f64, warm_up: Duration, time: Duration) -> Result<Histogram> {
        let begin = self.clock.now();
        self.heard = begin;
        let due = |index: u64| begin + Duration::from_nanos((index as f64 * 1e9 / per_sec) as u64);
        let total = (per_sec * (warm_up + time).as_secs_f64()) as u64;
        let mut times = Histogram::new();
        let (mut index, before) = (0, self.tally.replies);
        while self.tally.replies - before < total {
            let now = self.clock.now();
            while index < total && due(index) <= now {
                let turn = index as usize % self.connections.len();
                self.connections[turn].owe(due(index), &mut self.rng)?;
                index += 1;
            }
            self.take_in(|connection, rng, now| {
                let due = connection.settle(rng)?;
                if due >= begin + warm_up {
                    times.record((now - due).as_nanos() as u64);
                }
                Ok(())
            })?;
        }
        Ok(times)
    }

    /// Takes in what is still on its way, and leaves.
    pub(crate) fn finish(mut self) -> Result<Tally> {
        while self.connections.iter().any(|connection| connection.is_waiting) {
            self.take_in(|_, _, _| Ok(()))?;
        }
        Ok(self.tally)
    }

    /// Takes in the replies that are there, and has each connection go on as `next` says.
    fn take_in(
        &mut self,
        mut next: impl FnMut(&mut Connection, &mut Rng, Instant) -> Result<()>,
    ) -> Result<()> {
        let begin = self.clock.now();
        if let Err(error) = self.poll.poll(&mut self.events, Some(Duration::ZERO))
            && error.kind() != ErrorKind::Interrupted
        {
            return Err(error.into());
        }
        if self.events.is_empty() {
            let now = self.clock.now();
            self.spare += now - begin;
            ensure!(now - self.heard < PATIENCE, "no reply came for {PATIENCE:?}");
            return Ok(());
        }
        for event in &self.events {
            let connection = &mut self.connections[event.token().0];
            if let Some(reply) = connection.receive(event)? {
                self.tally.count(&reply, &self.expected);
                self.heard = self.clock.now();
                next(connection, &mut self.rng, self.heard)?;
            }
        }
        Ok(())
    }
}

/// One connection, with at most one request in flight.
struct Connection {
    stream: mio::net::TcpStream,
    request: Request,
    /// How much of the request has been sent: all of it, until there is another.
    sent: usize,
    reply: Vec<u8>,
    received: usize,
    is_waiting: bool,
    /// When the requests were due that have no reply yet: the first is in flight, the others wait for it.
    owed: VecDeque<Instant>,
}

impl Connection {
    fn open(address: SocketAddr, request: Request) -> Result<Connection> {
        let stream = std::net::TcpStream::connect(address).context("a connection is not accepted")?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        // Others spread what is sent over time, as for a long line: a request would wait in the generator's own kernel.
        sockopt::set_tcp_congestion(&stream, "reno")
            .context("the system does not let a request go at once")?;
        let stream = mio::net::TcpStream::from_std(stream);
        Ok(Connection {
            stream,
            sent: request.bytes().len(),
            request,
            reply: vec![0; REPLY_BYTES],
            received: 0,
            is_waiting: false,
            owed: VecDeque::new(),
        })
    }

    /// Sends a request for the next keys.
    fn send(&mut self, rng: &mut Rng) -> Result<()> {
        self.request.pick_keys(rng);
        self.sent = 0;
        self.received = 0;
        self.is_waiting = true;
        self.send_rest()
    }

    fn send_rest(&mut self) -> Result<()> {
        while self.sent < self.request.bytes().len() {
            match self.stream.write(&self.request.bytes()[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("a request can't be sent"),
            }
        }
        Ok(())
    }

    /// Notes that a request is due, and sends it unless another is in flight.
    fn owe(&mut self, due: Instant, rng: &mut Rng) -> Result<()> {
        self.owed.push_back(due);
        if self.owed.len() == 1 { self.send(rng) } else { Ok(()) }
    }

    /// Notes that the request in flight has its reply, and sends the next if one is due; when the first was due.
    fn settle(&mut self, rng: &mut Rng) -> Result<Instant> {
        let due = self.owed.pop_front().context("a reply came that nobody had asked for")?;
        if !self.owed.is_empty() {
            self.send(rng)?;
        }
        Ok(due)
    }

    /// Takes in what has come; the reply, once it is whole.
    fn receive(&mut self, event: &Event) -> Result<Option<Reply<'_>>> {
        if event.is_writable() {
            self.send_rest()?;
        }
        while event.is_readable() {
            if self.received == self.reply.len() {
                ensure!(self.received < MAX_BYTES, "a reply is longer than {MAX_BYTES} bytes");
                self.reply.resize(2 * self.received, 0);
            }
            match self.stream.read(&mut self.reply[self.received..]) {
                Ok(0) => bail!("a connection was closed by the server"),
                Ok(received) => self.received += received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("a reply can't be read"),
            }
            ensure!(self.is_waiting, "a reply came that nobody had asked for");
            if let Some(outline) = Outline::parse(&self.reply[..self.received])? {
                self.is_waiting = false;
                return Ok(Some(outline.of(&self.reply[..self.received])));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::reply::exchange;
    use std::net::TcpListener;
    use std::thread;

    /// A server that gives every request the same reply, in two pieces.
    fn server(request: &Request, body: &str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes();
        let length = request.bytes().len();
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

    /// So many checks in one request, and a server that allows so many of them.
    fn batch(checks: usize, allowed: usize) -> (SocketAddr, Plan) {
        let request = Request::post("/batch", &"user:######,".repeat(checks));
        let address = server(&request, &"allowed,".repeat(allowed));
        (address, Plan::new(request, "allowed", 4))
    }

    #[test]
    fn every_request_has_one_reply() {
        // Long enough that neither a request nor a reply fits into the system's buffers.
        for checks in [1, 300_000] {
            let (address, plan) = batch(checks, checks);
            let mut load = Load::connect(address, &plan, 1).unwrap();
            let laps = [load.press(Duration::from_millis(50)), load.press(Duration::from_millis(50))];
            let counted: u64 = laps.into_iter().map(|lap| lap.unwrap().replies).sum();
            let tally = load.finish().unwrap();
            assert!(tally.replies > 0 && tally.unexpected == 0, "{tally:?}");
            assert_eq!(
                tally.replies - counted.min(tally.replies),
                4,
                "those in flight when the watch stopped"
            );
        }
    }

    #[test]
    fn a_reply_that_says_something_else_is_counted() {
        let (address, plan) = batch(3, 2);
        let mut load = Load::connect(address, &plan, 1).unwrap();
        load.press(Duration::from_millis(10)).unwrap();
        let tally = load.finish().unwrap();
        assert_eq!(tally.unexpected, tally.replies);
        assert_eq!(tally.example.as_deref(), Some("200 allowed,allowed,"));
    }

    #[test]
    fn every_request_that_was_due_is_timed() {
        let (address, plan) = batch(1, 1);
        let mut load = Load::connect(address, &plan, 1).unwrap();
        let (warm_up, time) = (Duration::from_millis(20), Duration::from_millis(100));
        let times = load.pace(1000.0, warm_up, time).unwrap();
        assert_eq!((times.total(), load.finish().unwrap().replies), (100, 120));
    }

    #[test]
    fn a_server_that_leaves_ends_the_load() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let plan = Plan::new(Request::get("/"), "", 1);
        let mut load = Load::connect(address, &plan, 1).unwrap();
        drop(listener.accept().unwrap());
        assert!(load.press(Duration::from_secs(60)).is_err());
        drop(listener);
        assert!(exchange(address, &plan.request).is_err());
    }
}

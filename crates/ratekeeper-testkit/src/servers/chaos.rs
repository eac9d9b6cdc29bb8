//! A proxy that a test can have behave as badly as a network does.
//!
//! It stands between a client and a server and passes bytes on, as its [`LinkFaults`] has it, which may change at any time and
//! counts for connections that are open already. Each direction of a connection has a thread that reads and one that writes,
//! with a short queue of chunks between them that says when each is due: so latency delays what passes and does not
//! make it slower. A chunk is what one read gives, which for a client that waits for answers is one call or one batch.

use super::port::FreePort;
use crate::dice;
use crate::patience::{PATIENCE, fail, try_within};
use parking_lot::{Condvar, Mutex};
use socket2::SockRef;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How many chunks are on their way at most, in each direction; then the sender has to wait.
const MOST_CHUNKS: usize = 256;
/// How often a thread that writes to somebody who does not read looks whether it should go on.
const LOOK_UP: Duration = Duration::from_millis(20);

/// What the way between client and server is like. [`LinkFaults::FINE`] passes everything on at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkFaults {
    /// How long each chunk takes, in each direction.
    pub latency: Duration,
    /// At most how much longer it takes, at random. Order is kept.
    pub jitter: Duration,
    /// How many bytes pass in a second, in each direction of each connection.
    pub bytes_per_second: Option<u32>,
    /// The share of new connections that are reset as soon as they are made: from 0.0 to 1.0.
    pub reset_connections: f64,
    /// The share of a client's chunks that reset their connection instead of reaching the server.
    pub reset_requests: f64,
    /// The share of a server's chunks that reset their connection instead of reaching the client, who cannot know that
    /// what it asked for was done.
    pub reset_replies: f64,
    /// What is read and never passed on, on connections that stay open.
    pub swallows: DroppedDirection,
    /// Whether nothing is read any more: senders wait, and all of it arrives once this is over.
    pub is_paused: bool,
}

/// What is lost without a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedDirection {
    /// Nothing.
    Nothing,
    /// What clients send: the server never hears of it.
    Requests,
    /// What the server sends: it has done what the client asked for, and the client never hears of it.
    Replies,
    /// All of it, as when a firewall has forgotten the connection.
    Everything,
}

impl LinkFaults {
    /// Nothing is lost and nothing is late.
    pub const FINE: LinkFaults = LinkFaults {
        latency: Duration::ZERO,
        jitter: Duration::ZERO,
        bytes_per_second: None,
        reset_connections: 0.0,
        reset_requests: 0.0,
        reset_replies: 0.0,
        swallows: DroppedDirection::Nothing,
        is_paused: false,
    };

    fn swallows(&self, way: LinkDirection) -> bool {
        match self.swallows {
            DroppedDirection::Nothing => false,
            DroppedDirection::Requests => way == LinkDirection::Request,
            DroppedDirection::Replies => way == LinkDirection::Reply,
            DroppedDirection::Everything => true,
        }
    }

    fn resets(&self, way: LinkDirection) -> f64 {
        match way {
            LinkDirection::Request => self.reset_requests,
            LinkDirection::Reply => self.reset_replies,
        }
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkDirection {
    Request,
    Reply,
}

/// A proxy on a port of its own, gone with all its connections when this is dropped.
#[derive(Debug)]
pub struct ChaosProxy {
    shared: Arc<ProxyShared>,
    door: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ProxyShared {
    port: FreePort,
    seed: u64,
    drawn: AtomicU64,
    state: Mutex<ProxyState>,
    changed: Condvar,
    links: Mutex<HashMap<u64, Arc<ProxiedConnection>>>,
    taken: AtomicU64,
}

/// What a test can change.
#[derive(Debug)]
struct ProxyState {
    target: String,
    weather: LinkFaults,
    door: AcceptMode,
    is_listening: bool,
}

/// Whether connections are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptMode {
    Open,
    Closed,
    Gone,
}

impl ChaosProxy {
    /// A proxy for the server at this address, in fine weather.
    pub fn to(address: &str) -> ChaosProxy {
        ChaosProxy::seeded(address, RandomState::new().hash_one(address))
    }

    /// The same, with a seed for all that is left to chance. A test that fails prints the seed it had.
    pub fn seeded(address: &str, seed: u64) -> ChaosProxy {
        let state = ProxyState {
            target: address.to_owned(),
            weather: LinkFaults::FINE,
            door: AcceptMode::Open,
            is_listening: false,
        };
        let shared = Arc::new(ProxyShared {
            port: FreePort::free(),
            seed,
            drawn: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
            links: Mutex::new(HashMap::new()),
            taken: AtomicU64::new(0),
        });
        let keeper = Arc::clone(&shared);
        let door = thread::spawn(move || keeper.keep_door());
        let proxy = ChaosProxy { shared, door: Some(door) };
        proxy.await_door(true);
        proxy
    }

    /// Where it listens: an address and a port.
    pub fn address(&self) -> String {
        self.shared.address()
    }

    /// Changes the weather, for open connections as well.
    pub fn set_weather(&self, weather: LinkFaults) {
        self.shared.state.lock().weather = weather;
        self.shared.changed.notify_all();
    }

    /// The weather as it is.
    pub fn weather(&self) -> LinkFaults {
        self.shared.state.lock().weather
    }

    /// Reads nothing any more until [`resume`](ChaosProxy::resume).
    pub fn pause(&self) {
        self.set_weather(LinkFaults { is_paused: true, ..self.weather() });
    }

    /// Goes on after a pause.
    pub fn resume(&self) {
        self.set_weather(LinkFaults { is_paused: false, ..self.weather() });
    }

    /// Leads new connections to another server.
    pub fn set_target(&self, address: &str) {
        address.clone_into(&mut self.shared.state.lock().target);
    }

    /// Resets every open connection.
    pub fn reset_all(&self) {
        for link in self.shared.links.lock().values() {
            link.reset();
        }
    }

    /// Resets every open connection and refuses new ones, as a machine does on which nobody listens.
    pub fn close(&self) {
        self.shared.set_door(AcceptMode::Closed);
        self.await_door(false);
        self.reset_all();
    }

    /// Takes connections again, on the same port.
    pub fn open(&self) {
        self.shared.set_door(AcceptMode::Open);
        self.await_door(true);
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.shared.links.lock().len()
    }

    /// How many connections there have ever been, those that were reset at once not counted.
    pub fn connections_ever(&self) -> u64 {
        self.shared.taken.load(Ordering::Relaxed)
    }

    fn await_door(&self, is_open: bool) {
        let mut state = self.shared.state.lock();
        while state.is_listening != is_open {
            let waited = self.shared.changed.wait_for(&mut state, PATIENCE);
            if waited.timed_out() {
                fail("the proxy's port is somebody else's");
            }
        }
    }
}

impl Drop for ChaosProxy {
    fn drop(&mut self) {
        self.shared.set_door(AcceptMode::Gone);
        self.reset_all();
        if let Some(door) = self.door.take() {
            let _ = door.join();
        }
        self.reset_all();
        if thread::panicking() {
            let _ = writeln!(io::stderr(), "the proxy's seed was {}", self.shared.seed);
        }
    }
}

impl ProxyShared {
    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    fn set_door(&self, door: AcceptMode) {
        self.state.lock().door = door;
        self.changed.notify_all();
        // Whoever waits for a connection hears of nothing else.
        let _ = TcpStream::connect(self.address());
    }

    /// Listens for as long as the door is open.
    fn keep_door(self: Arc<ProxyShared>) {
        loop {
            let mut state = self.state.lock();
            while state.door == AcceptMode::Closed {
                self.changed.wait(&mut state);
            }
            if state.door == AcceptMode::Gone {
                return;
            }
            drop(state);
            let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, self.port.number())).ok();
            let Some(listener) = try_within(PATIENCE, bind) else {
                return;
            };
            self.set_listening(true);
            self.take_connections(&listener);
            drop(listener);
            self.set_listening(false);
        }
    }

    fn set_listening(&self, is_listening: bool) {
        self.state.lock().is_listening = is_listening;
        self.changed.notify_all();
    }

    fn take_connections(self: &Arc<ProxyShared>, listener: &TcpListener) {
        while let Ok((client, _)) = listener.accept() {
            let (door, weather) = {
                let state = self.state.lock();
                (state.door, state.weather)
            };
            if door != AcceptMode::Open {
                return;
            }
            if self.happens(weather.reset_connections) {
                reset_at_close(&client);
                continue;
            }
            let shared = Arc::clone(self);
            // On a thread of its own, because a server that is paused by a full queue takes no connection for a while.
            thread::spawn(move || shared.lead(client));
        }
    }

    /// Connects to the server, and passes on what is said until both sides have ended.
    fn lead(self: Arc<ProxyShared>, client: TcpStream) {
        let target = self.state.lock().target.clone();
        let Ok(server) = TcpStream::connect(target) else {
            reset_at_close(&client);
            return;
        };
        for stream in [&client, &server] {
            // Only a socket that has ended already refuses.
            let _ = stream.set_nodelay(true);
            let _ = stream.set_write_timeout(Some(LOOK_UP));
        }
        let link = Arc::new(ProxiedConnection { client, server, is_over: AtomicBool::new(false) });
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        self.links.lock().insert(number, Arc::clone(&link));
        if self.state.lock().door != AcceptMode::Open {
            link.reset();
        }
        thread::scope(|scope| {
            for way in [LinkDirection::Request, LinkDirection::Reply] {
                let (sender, receiver) = sync_channel(MOST_CHUNKS);
                let (shared, link) = (&self, &link);
                scope.spawn(move || shared.listen(link, way, &sender));
                scope.spawn(move || shared.speak(link, way, &receiver));
            }
        });
        self.links.lock().remove(&number);
    }

    /// Reads what one side says.
    fn listen(&self, link: &ProxiedConnection, way: LinkDirection, sender: &SyncSender<DelayedChunk>) {
        let (mut from, _) = link.ends(way);
        let mut buffer = vec![0; 64 * 1024];
        let mut due = now();
        loop {
            self.await_unpaused(link);
            let length = match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return link.reset(),
            };
            if link.is_over() {
                return;
            }
            let weather = self.state.lock().weather;
            if weather.swallows(way) {
                continue;
            }
            if self.happens(weather.resets(way)) {
                return link.reset();
            }
            due = due.max(now() + weather.latency + weather.jitter.mul_f64(self.chance()));
            let bytes = buffer[..length].to_vec();
            if sender.send(DelayedChunk { due, bytes }).is_err() {
                return;
            }
        }
    }

    /// Passes on what was read when it is due.
    fn speak(&self, link: &ProxiedConnection, way: LinkDirection, receiver: &Receiver<DelayedChunk>) {
        let (_, to) = link.ends(way);
        for chunk in receiver {
            self.await_time(link, chunk.due);
            self.await_unpaused(link);
            if link.is_over() {
                return;
            }
            if self.trickle(link, to, &chunk.bytes).is_err() {
                return link.reset();
            }
        }
        // The one who was heard has nothing more to say; the other may still have. A reset must not look like this.
        if !link.is_over() {
            let _ = to.shutdown(Shutdown::Write);
        }
    }

    /// Writes it all, as slowly as it has to be.
    fn trickle(&self, link: &ProxiedConnection, mut to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let speed = self.state.lock().weather.bytes_per_second;
            // Fifty times a second, or each byte for itself if there are fewer.
            let most = speed.map_or(bytes.len(), |speed| usize::try_from(speed / 50).unwrap_or(1).max(1));
            let piece = &bytes[..most.min(bytes.len())];
            match to.write(piece) {
                Ok(written) => {
                    bytes = &bytes[written..];
                    if let Some(speed) = speed {
                        let pieces = u32::try_from(written).unwrap_or(u32::MAX);
                        self.await_time(link, now() + Duration::from_secs(1) * pieces / speed.max(1));
                    }
                }
                Err(error) if is_timeout(&error) && !link.is_over() => {}
                Err(error) => return Err(error),
            }
            if link.is_over() {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        }
        Ok(())
    }

    fn await_time(&self, link: &ProxiedConnection, due: Instant) {
        let mut state = self.state.lock();
        while !link.is_over() && now() < due {
            // In short pieces, because a connection that is reset tells nobody.
            self.changed.wait_until(&mut state, due.min(now() + LOOK_UP));
        }
    }

    fn await_unpaused(&self, link: &ProxiedConnection) {
        let mut state = self.state.lock();
        while state.weather.is_paused && !link.is_over() {
            self.changed.wait_for(&mut state, LOOK_UP);
        }
    }

    fn happens(&self, share: f64) -> bool {
        share > 0.0 && self.chance() < share
    }

    /// A number from 0.0 to below 1.0, the next of those that follow from the seed.
    fn chance(&self) -> f64 {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        dice::chance(self.seed, drawn)
    }
}

/// Bytes on their way.
struct DelayedChunk {
    due: Instant,
    bytes: Vec<u8>,
}

/// A client's connection and the server's that belongs to it.
#[derive(Debug)]
struct ProxiedConnection {
    client: TcpStream,
    server: TcpStream,
    is_over: AtomicBool,
}

impl ProxiedConnection {
    fn ends(&self, way: LinkDirection) -> (&TcpStream, &TcpStream) {
        match way {
            LinkDirection::Request => (&self.client, &self.server),
            LinkDirection::Reply => (&self.server, &self.client),
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Ends both connections with a reset. Ending only what is read wakes who reads and sends nothing; the reset goes out when
    /// the threads have let go of the sockets.
    fn reset(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        for stream in [&self.client, &self.server] {
            reset_at_close(stream);
            let _ = stream.shutdown(Shutdown::Read);
        }
    }
}

fn reset_at_close(stream: &TcpStream) {
    // Only a socket that has ended already refuses.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

#[expect(clippy::disallowed_methods, reason = "bytes are on their way in real time")]
fn now() -> Instant {
    Instant::now()
}

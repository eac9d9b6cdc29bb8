//! A fault-injecting TCP proxy.
//!
//! It forwards bytes between clients and a server subject to its [`LinkFaults`], which may change at any time and also
//! apply to open connections. Each direction of a connection has a reader thread and a writer thread with a short queue
//! of chunks between them. A chunk carries the time at which it is due, so latency delays data without reducing
//! throughput. A chunk is the data of one read, which is one call or one batch for a client that waits for answers.

use super::port::ReservedPort;
use crate::random;
use crate::wait::{TEST_TIMEOUT, fail, try_wait_for};
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

/// The most chunks in flight in each direction; then the sender blocks.
const MAX_QUEUED_CHUNKS: usize = 256;
/// How often a blocked writer checks whether its connection was reset.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The faults of the link between clients and server. [`LinkFaults::NONE`] forwards everything at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkFaults {
    /// The delay of each chunk, in each direction.
    pub latency: Duration,
    /// The largest additional delay, chosen at random. Order is kept.
    pub jitter: Duration,
    /// The bandwidth of each direction of each connection, in bytes per second.
    pub bytes_per_second: Option<u32>,
    /// The share of new connections that are reset once they are accepted, from 0.0 to 1.0.
    pub reset_connections: f64,
    /// The share of client chunks that reset their connection instead of reaching the server.
    pub reset_requests: f64,
    /// The share of server chunks that reset their connection instead of reaching the client, which cannot know that
    /// its request was executed.
    pub reset_replies: f64,
    /// Which direction is read and dropped, on connections that stay open.
    pub dropped: DroppedDirection,
    /// Whether reading is paused: senders block, and all their data arrives after the pause.
    pub is_paused: bool,
}

/// Which direction is silently dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedDirection {
    /// Neither direction.
    Neither,
    /// Requests: the server never gets them.
    Requests,
    /// Replies: the server executes a request, and the client never learns of it.
    Replies,
    /// Both directions, as when a firewall has forgotten the connection.
    Both,
}

impl LinkFaults {
    /// No faults.
    pub const NONE: LinkFaults = LinkFaults {
        latency: Duration::ZERO,
        jitter: Duration::ZERO,
        bytes_per_second: None,
        reset_connections: 0.0,
        reset_requests: 0.0,
        reset_replies: 0.0,
        dropped: DroppedDirection::Neither,
        is_paused: false,
    };

    fn drops(&self, way: LinkDirection) -> bool {
        match self.dropped {
            DroppedDirection::Neither => false,
            DroppedDirection::Requests => way == LinkDirection::Request,
            DroppedDirection::Replies => way == LinkDirection::Reply,
            DroppedDirection::Both => true,
        }
    }

    fn reset_share(&self, way: LinkDirection) -> f64 {
        match way {
            LinkDirection::Request => self.reset_requests,
            LinkDirection::Reply => self.reset_replies,
        }
    }
}

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkDirection {
    Request,
    Reply,
}

/// A proxy on its own port. Dropping it closes its port and all its connections.
#[derive(Debug)]
pub struct ChaosProxy {
    shared: Arc<ProxyShared>,
    accept_thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ProxyShared {
    port: ReservedPort,
    seed: u64,
    random_count: AtomicU64,
    state: Mutex<ProxyState>,
    changed: Condvar,
    connections: Mutex<HashMap<u64, Arc<ProxiedConnection>>>,
    accepted: AtomicU64,
}

/// The state that a test can change.
#[derive(Debug)]
struct ProxyState {
    target: String,
    faults: LinkFaults,
    mode: AcceptMode,
    is_listening: bool,
}

/// Whether the proxy accepts connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptMode {
    Open,
    Closed,
    Stopped,
}

impl ChaosProxy {
    /// A proxy for the server at this address, without faults.
    pub fn new(address: &str) -> ChaosProxy {
        ChaosProxy::with_seed(address, RandomState::new().hash_one(address))
    }

    /// A proxy with a fixed seed for its random faults. A failing test prints the seed.
    pub fn with_seed(address: &str, seed: u64) -> ChaosProxy {
        let state = ProxyState {
            target: address.to_owned(),
            faults: LinkFaults::NONE,
            mode: AcceptMode::Open,
            is_listening: false,
        };
        let shared = Arc::new(ProxyShared {
            port: ReservedPort::reserve(),
            seed,
            random_count: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
            connections: Mutex::new(HashMap::new()),
            accepted: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&shared);
        let thread = thread::spawn(move || accepting.run_accept_loop());
        let proxy = ChaosProxy { shared, accept_thread: Some(thread) };
        proxy.wait_for_listening(true);
        proxy
    }

    /// The listening address, as `host:port`.
    pub fn address(&self) -> String {
        self.shared.address()
    }

    /// Sets the faults, also for open connections.
    pub fn set_faults(&self, faults: LinkFaults) {
        self.shared.state.lock().faults = faults;
        self.shared.changed.notify_all();
    }

    /// The current faults.
    pub fn faults(&self) -> LinkFaults {
        self.shared.state.lock().faults
    }

    /// Pauses reading until [`resume`](ChaosProxy::resume).
    pub fn pause(&self) {
        self.set_faults(LinkFaults { is_paused: true, ..self.faults() });
    }

    /// Resumes reading after a pause.
    pub fn resume(&self) {
        self.set_faults(LinkFaults { is_paused: false, ..self.faults() });
    }

    /// Forwards new connections to another server.
    pub fn set_target(&self, address: &str) {
        address.clone_into(&mut self.shared.state.lock().target);
    }

    /// Resets every open connection.
    pub fn reset_all(&self) {
        for link in self.shared.connections.lock().values() {
            link.reset();
        }
    }

    /// Resets every open connection and refuses new ones, as a host without a listener does.
    pub fn close(&self) {
        self.shared.set_mode(AcceptMode::Closed);
        self.wait_for_listening(false);
        self.reset_all();
    }

    /// Accepts connections again, on the same port.
    pub fn open(&self) {
        self.shared.set_mode(AcceptMode::Open);
        self.wait_for_listening(true);
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.lock().len()
    }

    /// The number of connections so far, without those that were reset when accepted.
    pub fn total_connections(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    fn wait_for_listening(&self, is_open: bool) {
        let mut state = self.shared.state.lock();
        while state.is_listening != is_open {
            let waited = self.shared.changed.wait_for(&mut state, TEST_TIMEOUT);
            if waited.timed_out() {
                fail("another process has taken the proxy's port");
            }
        }
    }
}

impl Drop for ChaosProxy {
    fn drop(&mut self) {
        self.shared.set_mode(AcceptMode::Stopped);
        self.reset_all();
        if let Some(thread) = self.accept_thread.take() {
            let _ = thread.join();
        }
        self.reset_all();
        if thread::panicking() {
            let _ = writeln!(io::stderr(), "chaos proxy seed: {}", self.shared.seed);
        }
    }
}

impl ProxyShared {
    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    fn set_mode(&self, mode: AcceptMode) {
        self.state.lock().mode = mode;
        self.changed.notify_all();
        // Wakes the accept loop, which blocks in `accept`.
        let _ = TcpStream::connect(self.address());
    }

    /// Accepts connections while the mode is [`AcceptMode::Open`].
    fn run_accept_loop(self: Arc<ProxyShared>) {
        loop {
            let mut state = self.state.lock();
            while state.mode == AcceptMode::Closed {
                self.changed.wait(&mut state);
            }
            if state.mode == AcceptMode::Stopped {
                return;
            }
            drop(state);
            let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, self.port.number())).ok();
            let Some(listener) = try_wait_for(TEST_TIMEOUT, bind) else {
                return;
            };
            self.set_listening(true);
            self.accept_connections(&listener);
            drop(listener);
            self.set_listening(false);
        }
    }

    fn set_listening(&self, is_listening: bool) {
        self.state.lock().is_listening = is_listening;
        self.changed.notify_all();
    }

    fn accept_connections(self: &Arc<ProxyShared>, listener: &TcpListener) {
        while let Ok((client, _)) = listener.accept() {
            let (mode, faults) = {
                let state = self.state.lock();
                (state.mode, state.faults)
            };
            if mode != AcceptMode::Open {
                return;
            }
            if self.occurs(faults.reset_connections) {
                reset_at_close(&client);
                continue;
            }
            let shared = Arc::clone(self);
            // On its own thread: connecting to a server whose accept queue is full can block for a while.
            thread::spawn(move || shared.forward(client));
        }
    }

    /// Connects to the server, and forwards data until both sides have closed.
    fn forward(self: Arc<ProxyShared>, client: TcpStream) {
        let target = self.state.lock().target.clone();
        let Ok(server) = TcpStream::connect(target) else {
            reset_at_close(&client);
            return;
        };
        for stream in [&client, &server] {
            // These fail only on a closed socket.
            let _ = stream.set_nodelay(true);
            let _ = stream.set_write_timeout(Some(POLL_INTERVAL));
        }
        let link = Arc::new(ProxiedConnection { client, server, is_reset: AtomicBool::new(false) });
        let number = self.accepted.fetch_add(1, Ordering::Relaxed);
        self.connections.lock().insert(number, Arc::clone(&link));
        if self.state.lock().mode != AcceptMode::Open {
            link.reset();
        }
        thread::scope(|scope| {
            for way in [LinkDirection::Request, LinkDirection::Reply] {
                let (sender, receiver) = sync_channel(MAX_QUEUED_CHUNKS);
                let (shared, link) = (&self, &link);
                scope.spawn(move || shared.read_chunks(link, way, &sender));
                scope.spawn(move || shared.write_chunks(link, way, &receiver));
            }
        });
        self.connections.lock().remove(&number);
    }

    /// Reads the data of one direction, and queues it with its due time.
    fn read_chunks(&self, link: &ProxiedConnection, way: LinkDirection, sender: &SyncSender<DelayedChunk>) {
        let (mut from, _) = link.streams(way);
        let mut buffer = vec![0; 64 * 1024];
        let mut due = now();
        loop {
            self.wait_while_paused(link);
            let length = match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return link.reset(),
            };
            if link.is_reset() {
                return;
            }
            let faults = self.state.lock().faults;
            if faults.drops(way) {
                continue;
            }
            if self.occurs(faults.reset_share(way)) {
                return link.reset();
            }
            due = due.max(now() + faults.latency + faults.jitter.mul_f64(self.next_random()));
            let bytes = buffer[..length].to_vec();
            if sender.send(DelayedChunk { due, bytes }).is_err() {
                return;
            }
        }
    }

    /// Writes queued chunks when they are due.
    fn write_chunks(&self, link: &ProxiedConnection, way: LinkDirection, receiver: &Receiver<DelayedChunk>) {
        let (_, to) = link.streams(way);
        for chunk in receiver {
            self.wait_until_due(link, chunk.due);
            self.wait_while_paused(link);
            if link.is_reset() {
                return;
            }
            if self.write_throttled(link, to, &chunk.bytes).is_err() {
                return link.reset();
            }
        }
        // Forward the end of this direction; the other may still carry data. A reset must not look like an orderly end.
        if !link.is_reset() {
            let _ = to.shutdown(Shutdown::Write);
        }
    }

    /// Writes all bytes, at the configured bandwidth.
    fn write_throttled(
        &self,
        link: &ProxiedConnection,
        mut to: &TcpStream,
        mut bytes: &[u8],
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            let speed = self.state.lock().faults.bytes_per_second;
            // In pieces of a fiftieth of a second, but at least one byte each.
            let most = speed.map_or(bytes.len(), |speed| usize::try_from(speed / 50).unwrap_or(1).max(1));
            let piece = &bytes[..most.min(bytes.len())];
            match to.write(piece) {
                Ok(written) => {
                    bytes = &bytes[written..];
                    if let Some(speed) = speed {
                        let pieces = u32::try_from(written).unwrap_or(u32::MAX);
                        self.wait_until_due(link, now() + Duration::from_secs(1) * pieces / speed.max(1));
                    }
                }
                Err(error) if is_timeout(&error) && !link.is_reset() => {}
                Err(error) => return Err(error),
            }
            if link.is_reset() {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        }
        Ok(())
    }

    fn wait_until_due(&self, link: &ProxiedConnection, due: Instant) {
        let mut state = self.state.lock();
        while !link.is_reset() && now() < due {
            // In short waits, because a reset does not notify the condition variable.
            self.changed.wait_until(&mut state, due.min(now() + POLL_INTERVAL));
        }
    }

    fn wait_while_paused(&self, link: &ProxiedConnection) {
        let mut state = self.state.lock();
        while state.faults.is_paused && !link.is_reset() {
            self.changed.wait_for(&mut state, POLL_INTERVAL);
        }
    }

    fn occurs(&self, share: f64) -> bool {
        share > 0.0 && self.next_random() < share
    }

    /// The next random number in `0.0..1.0` of the proxy's seed.
    fn next_random(&self) -> f64 {
        let drawn = self.random_count.fetch_add(1, Ordering::Relaxed);
        random::random_f64(self.seed, drawn)
    }
}

/// Bytes in flight.
struct DelayedChunk {
    due: Instant,
    bytes: Vec<u8>,
}

/// A client's connection, and the matching one to the server.
#[derive(Debug)]
struct ProxiedConnection {
    client: TcpStream,
    server: TcpStream,
    is_reset: AtomicBool,
}

impl ProxiedConnection {
    fn streams(&self, way: LinkDirection) -> (&TcpStream, &TcpStream) {
        match way {
            LinkDirection::Request => (&self.client, &self.server),
            LinkDirection::Reply => (&self.server, &self.client),
        }
    }

    fn is_reset(&self) -> bool {
        self.is_reset.load(Ordering::Relaxed)
    }

    /// Closes both connections with a reset. Shutting down only the read side wakes blocked readers and sends nothing;
    /// the reset goes out when the threads have dropped the sockets.
    fn reset(&self) {
        self.is_reset.store(true, Ordering::Relaxed);
        for stream in [&self.client, &self.server] {
            reset_at_close(stream);
            let _ = stream.shutdown(Shutdown::Read);
        }
    }
}

fn reset_at_close(stream: &TcpStream) {
    // This fails only on a closed socket.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

#[expect(clippy::disallowed_methods, reason = "real connections are delayed in real time")]
fn now() -> Instant {
    Instant::now()
}

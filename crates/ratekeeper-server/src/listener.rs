//! Ports: where clients come in.
//!
//! Whatever is spoken on a port, its connections are let in, counted, encrypted and told to leave in the same way. What
//! is said on them is the matter of an [`Protocol`].

use crate::connections::ConnectionRegistry;
use crate::http::ShutdownPhase;
use crate::tls::ListenerTls;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;

/// How long the server waits before it accepts again when the system has nothing left to accept with.
const RESPITE: Duration = Duration::from_millis(100);

/// How long a connection is quiet before the system asks whether anybody is at the other end, and how often it asks then.
/// Whoever pulled the plug is found out within minutes, also where quiet connections are kept for hours.
const PROBED_AFTER: Duration = Duration::from_secs(60);
const PROBED_EVERY: Duration = Duration::from_secs(15);

/// A port that somebody listens on.
#[derive(Debug)]
pub struct BoundSocket {
    /// The socket.
    pub listener: TcpListener,
    /// How connections are encrypted, if they are.
    pub tls: Option<Arc<ListenerTls>>,
}

/// Speaks with the clients of a port.
pub(crate) trait Protocol: Clone + Send + Sync + 'static {
    /// Answers a connection's requests until it ends, goes quiet, or has to. `peer` is who is at its other end.
    fn attend<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: S,
        peer: IpAddr,
        phase: watch::Receiver<ShutdownPhase>,
    ) -> impl Future<Output = ()> + Send;
}

/// The ports there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerName {
    Http,
    Grpc,
    Resp,
    Admin,
}

impl ListenerName {
    pub(crate) const ALL: [ListenerName; 4] =
        [ListenerName::Http, ListenerName::Grpc, ListenerName::Resp, ListenerName::Admin];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ListenerName::Http => "http",
            ListenerName::Grpc => "grpc",
            ListenerName::Resp => "resp",
            ListenerName::Admin => "admin",
        }
    }
}

/// How many connections are open on each port.
#[derive(Debug, Default)]
pub(crate) struct ConnectionGauge {
    open: [AtomicUsize; ListenerName::ALL.len()],
    evicted: AtomicU64,
}

impl ConnectionGauge {
    /// How many are open on a port.
    pub(crate) fn size(&self, port: ListenerName) -> usize {
        self.open[port as usize].load(Relaxed)
    }

    /// How many were closed to let others in.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }
}

/// A port that lets clients in by itself, until it is closed or dropped.
pub(crate) struct Listener {
    phase: watch::Sender<ShutdownPhase>,
    seats: Arc<Semaphore>,
    max_connections: usize,
    accepting: tokio::task::JoinHandle<()>,
}

impl Listener {
    /// Opens it: at most so many connections at once, counted in `crowd` under its name.
    pub(crate) fn open(
        name: ListenerName,
        door: BoundSocket,
        attendant: impl Protocol,
        max_connections: usize,
        crowd: Arc<ConnectionGauge>,
    ) -> Listener {
        let (entrance, phase) = AcceptLoop::new(name, door, attendant, max_connections, crowd);
        let seats = Arc::clone(&entrance.seats);
        let accepting = tokio::spawn(entrance.let_in(phase.clone()));
        Listener { phase, seats, max_connections, accepting }
    }

    /// Opens one on which newcomers never wait: beyond the most connections, the one that has been idle for longest makes way.
    pub(crate) fn open_evicting(
        name: ListenerName,
        door: BoundSocket,
        attendant: impl Protocol,
        max_connections: usize,
        crowd: Arc<ConnectionGauge>,
    ) -> Listener {
        let (entrance, phase) = AcceptLoop::new(name, door, attendant, max_connections, crowd);
        let seats = Arc::clone(&entrance.seats);
        let accepting = tokio::spawn(entrance.let_in_evicting(phase.clone()));
        Listener { phase, seats, max_connections, accepting }
    }

    /// Lets nobody else in, and waits for those who are.
    pub(crate) async fn close(mut self, patience: Duration) {
        self.accepting.abort();
        // Only then is the socket closed.
        let _ = (&mut self.accepting).await;
        self.phase.send_replace(ShutdownPhase::Draining);
        // Every connection has a seat: once all seats can be had, nobody is left.
        let all = u32::try_from(self.max_connections).unwrap_or(u32::MAX);
        if timeout(patience, self.seats.acquire_many(all)).await.is_err() {
            let open = self.max_connections - self.seats.available_permits();
            tracing::warn!(open, "connections were cut off: their requests were not done in time");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Where clients come in.
struct AcceptLoop<A> {
    name: ListenerName,
    door: BoundSocket,
    attendant: A,
    seats: Arc<Semaphore>,
    crowd: Arc<ConnectionGauge>,
}

impl<A: Protocol> AcceptLoop<A> {
    fn new(
        name: ListenerName,
        door: BoundSocket,
        attendant: A,
        max_connections: usize,
        crowd: Arc<ConnectionGauge>,
    ) -> (AcceptLoop<A>, watch::Sender<ShutdownPhase>) {
        probe(&door.listener);
        let (phase, _) = watch::channel(ShutdownPhase::Open);
        (AcceptLoop { name, door, attendant, seats: Arc::new(Semaphore::new(max_connections)), crowd }, phase)
    }

    async fn let_in(self, phase: watch::Sender<ShutdownPhase>) {
        loop {
            let seat = self.seat().await;
            let (stream, peer) = accept(&self.door.listener).await;
            let (attendant, phase) = (self.attendant.clone(), phase.subscribe());
            let (name, tls, crowd) = (self.name, self.door.tls.clone(), Arc::clone(&self.crowd));
            tokio::spawn(async move {
                let present = CountedConnection::new(&crowd, name);
                attend(&attendant, tls, stream, peer, phase).await;
                drop((present, seat));
            });
        }
    }

    async fn let_in_evicting(self, phase: watch::Sender<ShutdownPhase>) {
        let residents = Arc::new(ConnectionRegistry::default());
        loop {
            let (stream, peer) = accept(&self.door.listener).await;
            if self.seats.available_permits() == 0 && residents.evict() {
                self.crowd.evicted.fetch_add(1, Relaxed);
            }
            let seat = self.seat().await;
            let (attendant, phase) = (self.attendant.clone(), phase.subscribe());
            let (name, tls, crowd) = (self.name, self.door.tls.clone(), Arc::clone(&self.crowd));
            let (stream, residence) = residents.enter(stream);
            tokio::spawn(async move {
                let present = CountedConnection::new(&crowd, name);
                tokio::select! {
                    () = attend(&attendant, tls, stream, peer, phase) => {}
                    () = residence.is_evicted() => tracing::debug!("an idle connection made way for another"),
                }
                drop((present, residence, seat));
            });
        }
    }

    /// Waits until one more may be let in.
    async fn seat(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.seats).acquire_owned().await.expect("the semaphore is never closed")
    }
}

/// Has a connection encrypted, if it is to be, and its requests answered.
async fn attend<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    attendant: &impl Protocol,
    tls: Option<Arc<ListenerTls>>,
    stream: S,
    peer: IpAddr,
    phase: watch::Receiver<ShutdownPhase>,
) {
    match tls {
        None => attendant.attend(stream, peer, phase).await,
        Some(tls) => match shake_hands(&tls, stream, phase.clone()).await {
            Some(Ok(stream)) => attendant.attend(stream, peer, phase).await,
            Some(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            None => {}
        },
    }
}

/// Shakes hands with a client, unless the server stops first: who has not come so far has asked for nothing.
async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
    tls: &ListenerTls,
    stream: S,
    mut phase: watch::Receiver<ShutdownPhase>,
) -> Option<io::Result<TlsStream<S>>> {
    tokio::select! {
        shaken = tls.accept(stream) => Some(shaken),
        _ = phase.wait_for(|phase| *phase == ShutdownPhase::Draining) => None,
    }
}

/// A connection that is counted for as long as it lasts.
struct CountedConnection<'a>(&'a AtomicUsize);

impl<'a> CountedConnection<'a> {
    fn new(crowd: &'a ConnectionGauge, name: ListenerName) -> CountedConnection<'a> {
        let count = &crowd.open[name as usize];
        count.fetch_add(1, Relaxed);
        CountedConnection(count)
    }
}

impl Drop for CountedConnection<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Has connections that are quiet probed. What is said of the listener holds for all that it lets in.
fn probe(listener: &TcpListener) {
    let probes = TcpKeepalive::new().with_time(PROBED_AFTER).with_interval(PROBED_EVERY);
    if let Err(error) = SockRef::from(listener).set_tcp_keepalive(&probes) {
        tracing::debug!(%error, "the system does not probe connections that are quiet");
    }
}

/// Waits for somebody to come.
async fn accept(listener: &TcpListener) -> (TcpStream, IpAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // It can only fail for a client that has left already, and reading will tell.
                let _ = stream.set_nodelay(true);
                return (stream, peer.ip());
            }
            Err(error) if has_left(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection: if files have run out, raise `ulimit -n`");
                sleep(RESPITE).await;
            }
        }
    }
}

/// Whether it is only this client who gave up while it was waiting to be let in.
fn has_left(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionReset)
}

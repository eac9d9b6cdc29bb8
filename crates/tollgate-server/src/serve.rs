//! Serving until told to stop.

use crate::admin::{Admin, Watchtower};
use crate::api::{Api, ApiOptions};
use crate::denials::DenialLog;
use crate::feed::Feed;
use crate::http::{Http, Phase, Site};
use crate::keeping::Keeping;
use crate::tls::Tls;
use crate::token::Token;
use crate::watch::Watch;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;
use tollgate::{Gate, Micros, Store};

/// The most connections at once on the admin port.
const MAX_ADMIN_CONNECTIONS: usize = 256;
/// How long the server waits before it accepts again when the system has nothing left to accept with.
const RESPITE: Duration = Duration::from_millis(100);

/// A port that somebody listens on.
#[derive(Debug)]
pub struct Door {
    /// The socket.
    pub listener: TcpListener,
    /// How connections are encrypted, if they are.
    pub tls: Option<Arc<Tls>>,
}

/// How a server is set up.
#[derive(Debug)]
pub struct Setup {
    /// The main port.
    pub http: Option<Door>,
    /// The admin port, and who may use it.
    pub admin: Option<(Door, Token)>,
    /// How the API answers.
    pub api: ApiOptions,
    /// Where rules come from. Those that are in force already are not loaded again before they change.
    pub feed: Feed,
    /// The most denials that are logged in a second.
    pub denials_per_second: u32,
    /// The most connections at once on the main port, each of which takes some tens of kilobytes. Whoever comes on
    /// top waits in the system's queue.
    pub max_connections: usize,
    /// How long a stop goes on accepting, no longer ready, so that load balancers look elsewhere first.
    pub drain_delay: Duration,
    /// How long a stop then waits for requests that have begun.
    pub drain_timeout: Duration,
}

impl Setup {
    /// The main port alone, without encryption, with everything else as it usually is.
    pub fn http(listener: TcpListener) -> Setup {
        Setup {
            http: Some(Door { listener, tls: None }),
            admin: None,
            api: ApiOptions::default(),
            feed: Feed::new(None, Micros::EPOCH),
            denials_per_second: 10,
            max_connections: 10_000,
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// How many connections are open.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    http: AtomicUsize,
    admin: AtomicUsize,
}

/// How many connections are open on each port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CrowdSizes {
    pub(crate) http: usize,
    pub(crate) admin: usize,
}

impl Crowd {
    pub(crate) fn sizes(&self) -> CrowdSizes {
        CrowdSizes { http: self.http.load(Relaxed), admin: self.admin.load(Relaxed) }
    }
}

/// Answers requests by `gate`'s rules until `stop`; `reload` has the rules and the certificates read again.
///
/// Once `stop` is done, the server is no longer ready. After the drain delay nobody else is let in, requests that have
/// begun are finished, and idle connections are closed. What is not finished when the drain timeout is over is cut off.
/// Dropping the returned future cuts off everything at once.
pub async fn serve<S: Store + Keeping>(
    gate: Gate<S>,
    setup: Setup,
    mut reload: mpsc::Receiver<()>,
    stop: impl Future<Output = ()>,
) {
    let Setup { http, admin, api, feed, denials_per_second, max_connections, drain_delay, drain_timeout } =
        setup;
    // One place: if it is taken, somebody has asked already.
    let (ask, asked) = mpsc::channel(1);
    let tower = Arc::new(Watchtower {
        feed,
        denials: Arc::new(DenialLog::new(denials_per_second)),
        is_draining: AtomicBool::new(false),
        crowd: Crowd::default(),
        started_at: gate.clock().now().get() / 1_000_000,
        reload: ask.clone(),
    });
    let certificates = certificates(&http, &admin);
    let api = Arc::new(Api::new(gate.clone(), api, Arc::clone(&tower.denials)));
    let http =
        http.map(|door| Port::open(door, api, max_connections, Arc::clone(&tower), |crowd| &crowd.http));
    let admin = admin.map(|(door, token)| {
        let site = Arc::new(Admin::new(gate.clone(), Arc::clone(&tower), token));
        Port::open(door, site, MAX_ADMIN_CONNECTIONS, Arc::clone(&tower), |crowd| &crowd.admin)
    });
    let stopping = async {
        stop.await;
        tower.is_draining.store(true, Relaxed);
        sleep(drain_delay).await;
        if let Some(port) = http {
            port.close(drain_timeout).await;
        }
        // It tells how the stop is going, so it goes last.
        if let Some(port) = admin {
            port.close(Duration::from_secs(1)).await;
        }
    };
    let signalled = async {
        while let Some(()) = reload.recv().await {
            let _ = ask.try_send(());
            certificates.iter().for_each(|tls| renew(tls));
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = stopping => {}
        () = gate.store().keep() => {}
        () = tower.feed.follow(&gate, asked) => {}
        () = tower.denials.keep(gate.clock()) => {}
        () = follow_certificates(&certificates) => {}
        () = signalled => {}
    }
}

/// A port that lets clients in by itself, until it is closed or dropped.
struct Port {
    phase: watch::Sender<Phase>,
    seats: Arc<Semaphore>,
    max_connections: usize,
    accepting: tokio::task::JoinHandle<()>,
}

impl Port {
    fn open<T: Site>(
        door: Door,
        site: Arc<T>,
        max_connections: usize,
        tower: Arc<Watchtower>,
        count: fn(&Crowd) -> &AtomicUsize,
    ) -> Port {
        let (phase, _) = watch::channel(Phase::Open);
        let seats = Arc::new(Semaphore::new(max_connections));
        let entrance = Entrance { door, site, http: Http::new(), seats: Arc::clone(&seats), tower, count };
        let accepting = tokio::spawn(entrance.let_in(phase.clone()));
        Port { phase, seats, max_connections, accepting }
    }

    /// Lets nobody else in, and waits for those who are.
    async fn close(mut self, patience: Duration) {
        self.accepting.abort();
        // Only then is the socket closed.
        let _ = (&mut self.accepting).await;
        self.phase.send_replace(Phase::Draining);
        // Every connection has a seat: once all seats can be had, nobody is left.
        let all = u32::try_from(self.max_connections).unwrap_or(u32::MAX);
        if timeout(patience, self.seats.acquire_many(all)).await.is_err() {
            let open = self.max_connections - self.seats.available_permits();
            tracing::warn!(open, "connections were cut off: their requests were not done in time");
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Where clients come in.
struct Entrance<T> {
    door: Door,
    site: Arc<T>,
    http: Http,
    seats: Arc<Semaphore>,
    tower: Arc<Watchtower>,
    count: fn(&Crowd) -> &AtomicUsize,
}

impl<T: Site> Entrance<T> {
    async fn let_in(self, phase: watch::Sender<Phase>) {
        loop {
            let (stream, seat) = accept(&self.door.listener, &self.seats).await;
            let (http, site, phase) = (self.http.clone(), Arc::clone(&self.site), phase.subscribe());
            let (tls, tower, count) = (self.door.tls.clone(), Arc::clone(&self.tower), self.count);
            tokio::spawn(async move {
                let present = Present::new(&tower, count);
                match tls {
                    None => http.attend(stream, site, phase).await,
                    Some(tls) => match shake_hands(&tls, stream, phase.clone()).await {
                        Some(Ok(stream)) => http.attend(stream, site, phase).await,
                        Some(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                        None => {}
                    },
                }
                drop((present, seat));
            });
        }
    }
}

/// Shakes hands with a client, unless the server stops first: who has not come so far has asked for nothing.
async fn shake_hands(
    tls: &Tls,
    stream: TcpStream,
    mut phase: watch::Receiver<Phase>,
) -> Option<io::Result<TlsStream<TcpStream>>> {
    tokio::select! {
        shaken = tls.accept(stream) => Some(shaken),
        _ = phase.wait_for(|phase| *phase == Phase::Draining) => None,
    }
}

/// A connection that is counted for as long as it lasts.
struct Present<'a>(&'a AtomicUsize);

impl<'a> Present<'a> {
    fn new(tower: &'a Watchtower, count: fn(&Crowd) -> &AtomicUsize) -> Present<'a> {
        let count = count(&tower.crowd);
        count.fetch_add(1, Relaxed);
        Present(count)
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Waits for a seat, and then for somebody to take it.
async fn accept(listener: &TcpListener, seats: &Arc<Semaphore>) -> (TcpStream, OwnedSemaphorePermit) {
    let seat = Arc::clone(seats).acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // It can only fail for a client that has left already, and reading will tell.
                let _ = stream.set_nodelay(true);
                return (stream, seat);
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

/// The certificates of all doors, each once: doors may share them.
fn certificates(http: &Option<Door>, admin: &Option<(Door, Token)>) -> Vec<Arc<Tls>> {
    let doors = http.iter().chain(admin.iter().map(|(door, _)| door));
    let mut certificates: Vec<Arc<Tls>> = doors.filter_map(|door| door.tls.clone()).collect();
    certificates.dedup_by(|one, other| Arc::ptr_eq(one, other));
    certificates
}

/// Reads certificates again when their files change, for ever.
async fn follow_certificates(certificates: &[Arc<Tls>]) {
    if certificates.is_empty() {
        return std::future::pending().await;
    }
    let files = certificates.iter().flat_map(|tls| tls.files().map(Path::to_path_buf));
    let mut watch = Watch::new(files);
    // What changed since they were first read, and before they were watched, would never be seen.
    for tls in certificates {
        tls.reload().unwrap_or_else(|error| tracing::error!(%error, "the certificates stay as they were"));
    }
    loop {
        watch.changed().await;
        certificates.iter().for_each(|tls| renew(tls));
    }
}

fn renew(tls: &Tls) {
    match tls.reload() {
        Ok(()) => tracing::info!("the certificates were read again: new connections have them"),
        Err(error) => tracing::error!(%error, "the certificates stay as they were"),
    }
}

//! Serving until told to stop.

use crate::admin::{Admin, AdminState};
use crate::api::{Api, ApiOptions};
use crate::connection_caps::ConnectionCaps;
use crate::denial_log::DenialLog;
use crate::grpc::Grpc;
use crate::http::{BodyBudget, BodyPermits, Http};
use crate::listener::{BoundSocket, Listener, ListenerName};
use crate::maintenance::StoreMaintenance;
use crate::resp::Resp;
use crate::rule_source::RuleSource;
use crate::tls::ListenerTls;
use crate::token::Token;
use crate::watch::FileWatch;
use ratekeeper::{FailureMode, Micros, RuleLimiter, Store, StoreHealth};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long the store has to hear that this node leaves.
const FAREWELL: Duration = Duration::from_secs(1);

/// How a server is set up.
#[derive(Debug)]
pub struct ServerSetup {
    /// The main port.
    pub http: Option<BoundSocket>,
    /// The port that speaks gRPC.
    pub grpc: Option<BoundSocket>,
    /// The port that speaks RESP.
    pub resp: Option<BoundSocket>,
    /// The admin port, and who may use it.
    pub admin: Option<(BoundSocket, Token)>,
    /// How the API answers.
    pub api: ApiOptions,
    /// Where rules come from. Those that are in force already are not loaded again before they change.
    pub feed: RuleSource,
    /// The most denials that are logged in a second.
    pub denials_per_second: u32,
    /// The most connections at once on each port but the admin port, each of which takes some tens of kilobytes. Whoever comes on
    /// top waits in the system's queue.
    pub max_connections: usize,
    /// How many files the process may have open, if that is bounded. Where that is too few for the most connections on each
    /// port, they are divided among the ports.
    pub max_open_files: Option<u64>,
    /// The most bytes that all bodies take together of which some is still to come, over HTTP and gRPC; no less than one
    /// body may have.
    pub max_unfinished_bodies: usize,
    /// How long a stop goes on accepting, no longer ready, so that load balancers look elsewhere first.
    pub drain_delay: Duration,
    /// How long a stop then waits for requests that have begun.
    pub drain_timeout: Duration,
    /// How many lines of its log the process has dropped, which the metrics tell. Whoever writes the log counts.
    pub dropped_log_lines: Arc<AtomicU64>,
}

impl ServerSetup {
    /// The main port alone, without encryption, with everything else as it usually is.
    pub fn http(listener: TcpListener) -> ServerSetup {
        ServerSetup {
            http: Some(BoundSocket { listener, tls: None }),
            grpc: None,
            resp: None,
            admin: None,
            api: ApiOptions::default(),
            feed: RuleSource::new(None, FailureMode::default(), Micros::EPOCH),
            denials_per_second: 10,
            max_connections: 10_000,
            max_open_files: None,
            max_unfinished_bodies: BodyBudget::DEFAULT_BYTES,
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(10),
            dropped_log_lines: Arc::default(),
        }
    }
}

/// Answers requests by `gate`'s rules until `stop`; `reload` has the rules and the certificates read again.
///
/// Once `stop` is done, the server is no longer ready. After the drain delay nobody else is let in, requests that have
/// begun are finished, and idle connections are closed. What is not finished when the drain timeout is over is cut off.
/// Dropping the returned future cuts off everything at once.
pub async fn serve<S: Store + StoreHealth + StoreMaintenance>(
    gate: RuleLimiter<S>,
    setup: ServerSetup,
    mut reload: mpsc::Receiver<()>,
    stop: impl Future<Output = ()>,
) {
    let ServerSetup {
        http,
        grpc,
        resp,
        admin,
        api,
        feed,
        denials_per_second,
        max_connections,
        max_open_files,
        max_unfinished_bodies,
        drain_delay,
        drain_timeout,
        dropped_log_lines,
    } = setup;
    // One place: if it is taken, somebody has asked already.
    let (ask, asked) = mpsc::channel(1);
    let servers = gate.store().health().map_or(0, |report| report.servers.len());
    let listeners = [&http, &grpc, &resp].into_iter().flatten().count();
    let caps = ConnectionCaps::new(max_open_files, listeners, max_connections, servers);
    if let Some(shortage) = caps.shortage {
        tracing::warn!("{shortage}");
    }
    let bodies = Arc::new(BodyBudget::new(max_unfinished_bodies.max(api.max_body)));
    let room = || BodyPermits::new(Arc::clone(&bodies));
    let tower = Arc::new(AdminState {
        feed,
        denials: Arc::new(DenialLog::new(denials_per_second)),
        is_draining: AtomicBool::new(false),
        crowd: Arc::default(),
        started_at: gate.clock().now().get() / 1_000_000,
        reload: ask.clone(),
        dropped_log_lines,
        caps,
        max_open_files,
        bodies: Arc::clone(&bodies),
    });
    let certificates = certificates([&http, &grpc, &resp], &admin);
    let denials = || Arc::clone(&tower.denials);
    let allowed_origins = api.allowed_origins.clone();
    let mut ports = Vec::new();
    if let Some(door) = resp {
        let resp = Resp::new(gate.clone(), &api, denials());
        ports.push(Listener::open(ListenerName::Resp, door, resp, caps.each, Arc::clone(&tower.crowd)));
    }
    let mut health = None;
    if let Some(door) = grpc {
        let grpc = Grpc::new(gate.clone(), &api, denials(), room());
        health.insert(grpc.clone()).report(true).await;
        ports.push(Listener::open(ListenerName::Grpc, door, grpc, caps.each, Arc::clone(&tower.crowd)));
    }
    if let Some(door) = http {
        let site = Arc::new(Api::new(gate.clone(), api, denials()));
        let http = Http::new(site, room());
        ports.push(Listener::open(ListenerName::Http, door, http, caps.each, Arc::clone(&tower.crowd)));
    }
    let admin = admin.map(|(door, token)| {
        let site = Arc::new(Admin::new(gate.clone(), Arc::clone(&tower), token, allowed_origins));
        let http = Http::new(site, room());
        Listener::open_evicting(ListenerName::Admin, door, http, caps.admin, Arc::clone(&tower.crowd))
    });
    let stopping = async {
        stop.await;
        tower.is_draining.store(true, Relaxed);
        if let Some(grpc) = health {
            grpc.report(false).await;
        }
        sleep(drain_delay).await;
        let closing: JoinSet<()> = ports.into_iter().map(|port| port.close(drain_timeout)).collect();
        closing.join_all().await;
        // A store that does not answer is not waited for.
        let _ = timeout(FAREWELL, gate.store().leave()).await;
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

/// The certificates of all doors, each once: doors may share them.
fn certificates(
    doors: [&Option<BoundSocket>; 3],
    admin: &Option<(BoundSocket, Token)>,
) -> Vec<Arc<ListenerTls>> {
    let doors = doors.into_iter().flatten().chain(admin.iter().map(|(door, _)| door));
    let mut certificates: Vec<Arc<ListenerTls>> = Vec::new();
    for tls in doors.filter_map(|door| door.tls.as_ref()) {
        if !certificates.iter().any(|known| Arc::ptr_eq(known, tls)) {
            certificates.push(Arc::clone(tls));
        }
    }
    certificates
}

/// Reads certificates again when their files change, for ever.
async fn follow_certificates(certificates: &[Arc<ListenerTls>]) {
    if certificates.is_empty() {
        return std::future::pending().await;
    }
    let files = certificates.iter().flat_map(|tls| tls.files().map(Path::to_path_buf));
    let mut watch = FileWatch::new(files);
    // What changed since they were first read, and before they were watched, would never be seen.
    for tls in certificates {
        tls.reload().unwrap_or_else(|error| tracing::error!(%error, "the certificates stay as they were"));
    }
    loop {
        watch.changed().await;
        certificates.iter().for_each(|tls| renew(tls));
    }
}

fn renew(tls: &ListenerTls) {
    match tls.reload() {
        Ok(()) => tracing::info!("the certificates were read again: new connections have them"),
        Err(error) => tracing::error!(%error, "the certificates stay as they were"),
    }
}

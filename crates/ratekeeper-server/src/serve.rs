//! Runs the server: opens the listeners, reloads rules and certificates, and shuts down in order.

use crate::admin::{Admin, AdminState};
use crate::api::{Api, ApiOptions};
use crate::conn::{BodyBudget, BodyPermits, ConnectionCaps, ListenerName};
use crate::denial_log::DenialLog;
use crate::grpc::Grpc;
use crate::http::Http;
use crate::listener::{BoundSocket, Listener};
use crate::resp::Resp;
use crate::rule_source::RuleSource;
use crate::tls::{ListenerTls, TlsError};
use crate::token::Token;
use crate::watch::FileWatch;
use ratekeeper::{FailureMode, Micros, RuleLimiter, Store};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long shutdown waits for the store to deregister this node.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(1);

/// The configuration of a server.
#[derive(Debug)]
pub struct ServerSetup {
    /// The HTTP listener.
    pub http: Option<BoundSocket>,
    /// The gRPC listener.
    pub grpc: Option<BoundSocket>,
    /// The RESP listener.
    pub resp: Option<BoundSocket>,
    /// The admin listener and its token.
    pub admin: Option<(BoundSocket, Token)>,
    /// Options of the check API.
    pub api: ApiOptions,
    /// Where rules come from. The limiter's current rules stay in force until the file changes.
    pub rule_source: RuleSource,
    /// The maximum number of denials logged per second.
    pub denials_per_second: u32,
    /// The maximum number of connections per listener, the admin listener excepted. Each takes some tens of kilobytes.
    /// Further connections wait in the kernel's accept queue.
    pub max_connections: usize,
    /// The process's limit on open files, or `None` if it has none. If the limit is too low for `max_connections` on
    /// each listener, the files are divided among the listeners.
    pub max_open_files: Option<u64>,
    /// The maximum number of bytes held in total for bodies that are not yet complete, over HTTP and gRPC. Raised to
    /// the size limit of one body if it is lower.
    pub max_unfinished_bodies: usize,
    /// How long shutdown keeps accepting while `/readyz` says 503, so that load balancers move away first.
    pub drain_delay: Duration,
    /// How long shutdown then waits for requests in flight.
    pub drain_timeout: Duration,
    /// The number of log lines dropped, for the metrics. The log writer increments it.
    pub dropped_log_lines: Arc<AtomicU64>,
}

impl ServerSetup {
    /// An HTTP listener alone, without TLS, and defaults for everything else.
    pub fn http(listener: TcpListener) -> ServerSetup {
        ServerSetup {
            http: Some(BoundSocket { listener, tls: None }),
            grpc: None,
            resp: None,
            admin: None,
            api: ApiOptions::default(),
            rule_source: RuleSource::new(None, FailureMode::default(), Micros::EPOCH),
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

/// Answers requests until `stop` completes; a message on `reload` reloads rules and certificates.
///
/// When `stop` completes, the server is no longer ready. After the drain delay it accepts no more connections, finishes
/// requests in flight, and closes idle connections. Requests that are not finished after the drain timeout are cut off.
/// Dropping the returned future cuts off everything at once.
pub async fn serve<S: Store>(
    limiter: RuleLimiter<S>,
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
        rule_source,
        denials_per_second,
        max_connections,
        max_open_files,
        max_unfinished_bodies,
        drain_delay,
        drain_timeout,
        dropped_log_lines,
    } = setup;
    // Capacity 1: if it is full, a reload is pending already.
    let (request_reload, reload_requests) = mpsc::channel(1);
    let servers = limiter.store().health().map_or(0, |report| report.servers.len());
    let listener_count = [&http, &grpc, &resp].into_iter().flatten().count();
    let caps = ConnectionCaps::new(max_open_files, listener_count, max_connections, servers);
    if let Some(shortage) = caps.shortage {
        tracing::warn!("{shortage}");
    }
    let bodies = Arc::new(BodyBudget::new(max_unfinished_bodies.max(api.max_body)));
    let body_permits = || BodyPermits::new(Arc::clone(&bodies));
    let state = Arc::new(AdminState {
        rule_source,
        denials: Arc::new(DenialLog::new(denials_per_second)),
        is_draining: AtomicBool::new(false),
        connections: Arc::default(),
        started_at: limiter.clock().now().get() / 1_000_000,
        reload: request_reload.clone(),
        dropped_log_lines,
        caps,
        max_open_files,
        bodies: Arc::clone(&bodies),
    });
    let certificates = distinct_certificates([&http, &grpc, &resp], &admin);
    let denials = || Arc::clone(&state.denials);
    let allowed_origins = api.allowed_origins.clone();
    let gauge = || Arc::clone(&state.connections);
    let max = caps.per_listener;
    let mut listeners = Vec::new();
    if let Some(socket) = resp {
        let resp = Resp::new(limiter.clone(), &api, denials());
        listeners.push(Listener::open(ListenerName::Resp, socket, resp, max, gauge()));
    }
    let mut health = None;
    if let Some(socket) = grpc {
        let grpc = Grpc::new(limiter.clone(), &api, denials(), body_permits());
        health.insert(grpc.clone()).set_serving(true).await;
        listeners.push(Listener::open(ListenerName::Grpc, socket, grpc, max, gauge()));
    }
    if let Some(socket) = http {
        let handler = Arc::new(Api::new(limiter.clone(), api, denials()));
        let http = Http::new(handler, body_permits());
        listeners.push(Listener::open(ListenerName::Http, socket, http, max, gauge()));
    }
    let admin = admin.map(|(socket, token)| {
        let handler = Arc::new(Admin::new(limiter.clone(), Arc::clone(&state), token, allowed_origins));
        Listener::open(ListenerName::Admin, socket, Http::new(handler, body_permits()), caps.admin, gauge())
    });
    let stopping = async {
        stop.await;
        state.is_draining.store(true, Relaxed);
        if let Some(grpc) = health {
            grpc.set_serving(false).await;
        }
        sleep(drain_delay).await;
        let closing: JoinSet<()> =
            listeners.into_iter().map(|listener| listener.close(drain_timeout)).collect();
        closing.join_all().await;
        // Best effort: a store that does not answer in time must not hold up the shutdown.
        let _ = timeout(DEREGISTER_TIMEOUT, limiter.store().leave()).await;
        // The admin listener reports the progress of the shutdown, so it closes last.
        if let Some(listener) = admin {
            listener.close(Duration::from_secs(1)).await;
        }
    };
    let signalled = async {
        while let Some(()) = reload.recv().await {
            let _ = request_reload.try_send(());
            certificates.iter().for_each(|tls| reload_certificate(tls));
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = stopping => {}
        () = maintain(limiter.store()) => {}
        () = state.rule_source.watch_and_reload(&limiter, reload_requests) => {}
        () = state.denials.report_suppressed(limiter.clock()) => {}
        () = watch_certificates(&certificates) => {}
        () = signalled => {}
    }
}

/// Maintains the store. Never returns.
async fn maintain(store: &impl Store) {
    store.maintain().await;
    std::future::pending::<()>().await;
}

/// The certificates of all listeners, without duplicates: listeners may share them.
fn distinct_certificates(
    sockets: [&Option<BoundSocket>; 3],
    admin: &Option<(BoundSocket, Token)>,
) -> Vec<Arc<ListenerTls>> {
    let sockets = sockets.into_iter().flatten().chain(admin.iter().map(|(socket, _)| socket));
    let mut certificates: Vec<Arc<ListenerTls>> = Vec::new();
    for tls in sockets.filter_map(|socket| socket.tls.as_ref()) {
        if !certificates.iter().any(|known| Arc::ptr_eq(known, tls)) {
            certificates.push(Arc::clone(tls));
        }
    }
    certificates
}

/// Reloads certificates whenever their files change. Never returns.
async fn watch_certificates(certificates: &[Arc<ListenerTls>]) {
    if certificates.is_empty() {
        return std::future::pending().await;
    }
    let files = certificates.iter().flat_map(|tls| tls.files().map(Path::to_path_buf));
    let mut watch = FileWatch::new(files);
    // The watch would miss a change between the first read and now, so read them again.
    for tls in certificates {
        tls.reload().unwrap_or_else(|error| log_failed_reload(&error));
    }
    loop {
        watch.changed().await;
        certificates.iter().for_each(|tls| reload_certificate(tls));
    }
}

fn reload_certificate(tls: &ListenerTls) {
    match tls.reload() {
        Ok(()) => tracing::info!("certificates reloaded; new connections use them"),
        Err(error) => log_failed_reload(&error),
    }
}

fn log_failed_reload(error: &TlsError) {
    tracing::error!(%error, "certificate reload failed, keeping the previous certificates");
}

//! Listeners: accepting, counting, encrypting and draining connections.
//!
//! All listeners do this in the same way. A [`Protocol`] serves the accepted connections.

use crate::conn::{ConnectionGauge, ConnectionRegistry, ListenerName, ShutdownPhase};
use crate::tls::ListenerTls;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;

/// How long the accept loop waits after a failed `accept`, for example when the process is out of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// TCP keepalive: the idle time before the first probe, and the interval between probes. A peer that vanished is
/// noticed within minutes, even where idle connections are kept for hours.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// A bound socket, and how its connections are encrypted.
#[derive(Debug)]
pub struct BoundSocket {
    /// The socket.
    pub listener: TcpListener,
    /// The TLS configuration. `None` for plain text.
    pub tls: Option<Arc<ListenerTls>>,
}

/// Serves the connections of a listener.
pub(crate) trait Protocol: Clone + Send + Sync + 'static {
    /// Serves a connection until it closes, times out or drains. `peer` is the client's address.
    fn serve<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: S,
        peer: IpAddr,
        phase: watch::Receiver<ShutdownPhase>,
    ) -> impl Future<Output = ()> + Send;
}

/// A running listener. It accepts connections until it is closed or dropped.
pub(crate) struct Listener {
    phase: watch::Sender<ShutdownPhase>,
    permits: Arc<Semaphore>,
    max_connections: usize,
    accept_task: tokio::task::JoinHandle<()>,
}

impl Listener {
    /// Starts the accept loop. Beyond `max_connections`, new connections wait; on the admin listener, the longest-idle
    /// connection is evicted for a new one. `gauge` counts the connections.
    pub(crate) fn open(
        name: ListenerName,
        socket: BoundSocket,
        protocol: impl Protocol,
        max_connections: usize,
        gauge: Arc<ConnectionGauge>,
    ) -> Listener {
        enable_keepalive(&socket.listener);
        let (phase, _) = watch::channel(ShutdownPhase::Running);
        let permits = Arc::new(Semaphore::new(max_connections));
        let accept_loop = AcceptLoop { name, socket, protocol, permits: Arc::clone(&permits), gauge };
        let accept_task = tokio::spawn(accept_loop.run(phase.clone()));
        Listener { phase, permits, max_connections, accept_task }
    }

    /// Stops accepting, drains the open connections, and waits for them up to `drain_timeout`.
    pub(crate) async fn close(mut self, drain_timeout: Duration) {
        self.accept_task.abort();
        // The socket is closed only when the task has ended.
        let _ = (&mut self.accept_task).await;
        self.phase.send_replace(ShutdownPhase::Draining);
        // Every connection holds a permit: once all permits are free, all connections are closed.
        let all = u32::try_from(self.max_connections).unwrap_or(u32::MAX);
        if timeout(drain_timeout, self.permits.acquire_many(all)).await.is_err() {
            let open = self.max_connections - self.permits.available_permits();
            tracing::warn!(open, "drain timeout: closing connections with unfinished requests");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.accept_task.abort();
    }
}

/// The accept loop of a listener.
struct AcceptLoop<A> {
    name: ListenerName,
    socket: BoundSocket,
    protocol: A,
    permits: Arc<Semaphore>,
    gauge: Arc<ConnectionGauge>,
}

impl<A: Protocol> AcceptLoop<A> {
    async fn run(self, phase: watch::Sender<ShutdownPhase>) {
        match self.name {
            ListenerName::Http | ListenerName::Grpc | ListenerName::Resp => loop {
                let permit = self.acquire_permit().await;
                let (stream, peer) = accept(&self.socket.listener).await;
                self.spawn(stream, peer, &phase, permit, std::future::pending());
            },
            ListenerName::Admin => {
                let registry = Arc::new(ConnectionRegistry::default());
                loop {
                    let (stream, peer) = accept(&self.socket.listener).await;
                    if self.permits.available_permits() == 0 && registry.evict() {
                        self.gauge.count_evicted();
                    }
                    let permit = self.acquire_permit().await;
                    let (stream, registered) = registry.register(stream);
                    let evicted = async move { registered.wait_for_eviction().await };
                    self.spawn(stream, peer, &phase, permit, evicted);
                }
            }
        }
    }

    /// Serves a connection in a task of its own, until it closes or is evicted.
    fn spawn<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: S,
        peer: IpAddr,
        phase: &watch::Sender<ShutdownPhase>,
        permit: OwnedSemaphorePermit,
        evicted: impl Future<Output = ()> + Send + 'static,
    ) {
        let (protocol, phase) = (self.protocol.clone(), phase.subscribe());
        let (name, tls, gauge) = (self.name, self.socket.tls.clone(), Arc::clone(&self.gauge));
        tokio::spawn(async move {
            let counted = gauge.count(name);
            tokio::select! {
                // In this order, so that a connection that can't be evicted costs no random number per poll.
                biased;
                () = serve_connection(&protocol, tls, stream, peer, phase) => {}
                () = evicted => tracing::debug!("evicted an idle connection for a new one"),
            }
            drop((counted, permit));
        });
    }

    /// Waits for a connection permit.
    async fn acquire_permit(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.permits).acquire_owned().await.expect("the semaphore is never closed")
    }
}

/// Does the TLS handshake, if the listener has TLS, and serves the connection.
async fn serve_connection<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    protocol: &impl Protocol,
    tls: Option<Arc<ListenerTls>>,
    stream: S,
    peer: IpAddr,
    phase: watch::Receiver<ShutdownPhase>,
) {
    match tls {
        None => protocol.serve(stream, peer, phase).await,
        Some(tls) => match tls_handshake(&tls, stream, phase.clone()).await {
            Some(Ok(stream)) => protocol.serve(stream, peer, phase).await,
            Some(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            None => {}
        },
    }
}

/// Does the TLS handshake. Returns `None` if the server drains first: the client has sent no request yet.
async fn tls_handshake<S: AsyncRead + AsyncWrite + Unpin>(
    tls: &ListenerTls,
    stream: S,
    mut phase: watch::Receiver<ShutdownPhase>,
) -> Option<io::Result<TlsStream<S>>> {
    tokio::select! {
        result = tls.accept(stream) => Some(result),
        _ = phase.wait_for(|phase| *phase == ShutdownPhase::Draining) => None,
    }
}

/// Enables TCP keepalive. Accepted sockets inherit it from the listener.
fn enable_keepalive(listener: &TcpListener) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    if let Err(error) = SockRef::from(listener).set_tcp_keepalive(&keepalive) {
        tracing::debug!(%error, "cannot enable TCP keepalive");
    }
}

/// Waits for a new connection.
async fn accept(listener: &TcpListener) -> (TcpStream, IpAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // This fails only if the client has disconnected already, which reading will show.
                let _ = stream.set_nodelay(true);
                return (stream, peer.ip());
            }
            Err(error) if is_client_abort(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection: if files have run out, raise `ulimit -n`");
                sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// Whether the client disconnected before it was accepted, so that `accept` can be retried at once.
fn is_client_abort(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionReset)
}

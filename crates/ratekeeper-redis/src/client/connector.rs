//! Establishes connections to a server: the socket, TLS and authentication.

use crate::client::connection::RedisConnection;
use crate::client::failure::{LoginContext, ServerFailure};
use crate::client::tls::{StoreTlsError, TlsClient};
use crate::client::url::{Credentials, ServerAddress, StoreTlsFiles};
use ratekeeper::{StoreErrorCause, Topology};
use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// The name under which connections are listed by `CLIENT LIST`.
pub(crate) const CLIENT_NAME: &str = "ratekeeper";
/// Timeout for connecting, the TLS handshake and authentication together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for finding out whether a port expects TLS.
const TLS_PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// TCP keepalive: idle time before the first probe, and the interval between probes.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(1));
/// `TCP_USER_TIMEOUT`: how long sent data may stay unacknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(5);
/// Batches that may wait to be written. The in-flight permits are the tighter bound.
const MAX_QUEUED_BATCHES: usize = 1024;
/// Bytes buffered before they are written.
const WRITE_BUFFER_BYTES: usize = 64 * 1024;

/// Establishes connections, with credentials and TLS settings.
#[derive(Clone)]
pub(crate) struct Connector {
    connection_info: RedisConnectionInfo,
    tls: Option<TlsClient>,
    login_context: LoginContext,
}

impl Connector {
    /// Creates a connector, and reads the TLS files.
    pub(crate) fn new(
        credentials: &Credentials,
        db: u32,
        tls: Option<&StoreTlsFiles>,
        topology: Topology,
    ) -> Result<Connector, StoreTlsError> {
        let mut info = RedisConnectionInfo::default()
            .set_db(i64::from(db))
            .set_lib_name(CLIENT_NAME, env!("CARGO_PKG_VERSION"));
        if let Some(user) = &credentials.user {
            info = info.set_username(user);
        }
        if let Some(password) = &credentials.password {
            info = info.set_password(password.reveal());
        }
        let login_context = LoginContext::new(credentials.user.as_deref(), topology, tls.is_some());
        Ok(Connector { connection_info: info, tls: tls.map(TlsClient::new).transpose()?, login_context })
    }

    /// A connector for sentinels: RESP3 for push messages, and the sentinels' own credentials.
    pub(crate) fn for_sentinels(
        credentials: &Credentials,
        tls: Option<&StoreTlsFiles>,
    ) -> Result<Connector, StoreTlsError> {
        let mut connector = Connector::new(credentials, 0, tls, Topology::Sentinel)?;
        connector.connection_info = connector.connection_info.set_protocol(ProtocolVersion::RESP3);
        connector.login_context = connector.login_context.for_sentinels();
        Ok(connector)
    }

    /// User, topology and scheme, on which the advice in error messages depends.
    pub(crate) fn login_context(&self) -> &LoginContext {
        &self.login_context
    }

    /// Finds out whether a connection failed because only one side uses TLS. Returns `None` if that is not the cause.
    ///
    /// The failed attempt alone does not tell: each side either waits or closes the connection when it can't parse the
    /// other. The probe sends neither a password nor a certificate.
    async fn find_tls_mismatch(
        &self,
        server: &ServerAddress,
        failure: &ServerFailure,
    ) -> Option<ServerFailure> {
        let ServerAddress::Tcp { host, port } = server else { return None };
        let is_likely = match failure.cause {
            StoreErrorCause::Tls | StoreErrorCause::Timeout => self.tls.is_some(),
            StoreErrorCause::Unreachable => true,
            _ => false,
        };
        if !is_likely {
            return None;
        }
        let probe = async {
            match self.tls {
                Some(_) => speaks_plaintext(host, *port).await,
                None => {
                    TlsClient::is_spoken_by(host, TcpStream::connect((host.as_str(), *port)).await?).await
                }
            }
        };
        let is_mismatch = timeout(TLS_PROBE_TIMEOUT, probe).await.is_ok_and(|result| result.unwrap_or(false));
        is_mismatch.then(|| self.login_context.tls_mismatch())
    }

    /// Connects and authenticates. `on_close` is called when the connection closes, for whatever reason.
    pub(crate) async fn connect(
        &self,
        server: &ServerAddress,
        on_close: impl FnOnce() + Send + 'static,
    ) -> Result<RedisConnection, ServerFailure> {
        self.connect_with_config(server, config(), on_close).await
    }

    /// Like [`Connector::connect`], and forwards push messages of the server to `pushes`.
    pub(crate) async fn connect_with_pushes(
        &self,
        server: &ServerAddress,
        pushes: impl AsyncPushSender,
        on_close: impl FnOnce() + Send + 'static,
    ) -> Result<RedisConnection, ServerFailure> {
        self.connect_with_config(server, config().set_push_sender(pushes), on_close).await
    }

    async fn connect_with_config(
        &self,
        server: &ServerAddress,
        config: AsyncConnectionConfig,
        on_close: impl FnOnce() + Send + 'static,
    ) -> Result<RedisConnection, ServerFailure> {
        let connect = async {
            let stream = self.open_stream(server).await?;
            let connected =
                MultiplexedConnection::new_with_config(&self.connection_info, stream, config).await;
            let (connection, driver) =
                connected.map_err(|error| self.login_context.explain_connection_error(&error))?;
            Ok(RedisConnection::new(connection, driver, on_close))
        };
        timeout(CONNECT_TIMEOUT, connect).await.unwrap_or(Err(ServerFailure::timeout(CONNECT_TIMEOUT)))
    }

    async fn open_stream(&self, server: &ServerAddress) -> Result<Box<dyn RedisStream>, ServerFailure> {
        let unreachable = |error: io::Error| ServerFailure::unreachable(&error);
        let (host, port) = match server {
            ServerAddress::Unix(path) => {
                return Ok(Box::new(UnixStream::connect(path).await.map_err(unreachable)?));
            }
            ServerAddress::Tcp { host, port } => (host.as_str(), *port),
        };
        let stream = TcpStream::connect((host, port)).await.map_err(unreachable)?;
        set_socket_options(&stream).map_err(unreachable)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        Ok(Box::new(tls.connect(host, stream).await.map_err(|error| ServerFailure::tls(&error))?))
    }
}

/// Whether a server replies to a plaintext command.
async fn speaks_plaintext(host: &str, port: u16) -> io::Result<bool> {
    let mut stream = TcpStream::connect((host, port)).await?;
    stream.write_all(b"PING\r\n").await?;
    // `+PONG` or an error. A TLS server closes the connection or sends an alert, whose first byte is 21.
    Ok(matches!(stream.read_u8().await?, b'+' | b'-'))
}

/// The last failure and its diagnosis, cached so that the same failure is probed only once.
#[derive(Default)]
pub(crate) struct Diagnosis(Option<(ServerFailure, ServerFailure)>);

impl Diagnosis {
    /// Diagnoses a failed connection attempt: a TLS mismatch if one is found, else the failure itself.
    pub(crate) async fn diagnose(
        &mut self,
        connector: &Connector,
        server: &ServerAddress,
        found: ServerFailure,
    ) -> ServerFailure {
        if let Some((_, diagnosis)) = self.0.as_ref().filter(|(known, _)| *known == found) {
            return diagnosis.clone();
        }
        let mismatch = connector.find_tls_mismatch(server, &found).await;
        let diagnosis = mismatch.unwrap_or_else(|| found.clone());
        self.0 = Some((found, diagnosis.clone()));
        diagnosis
    }
}

trait RedisStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> RedisStream for S {}

fn config() -> AsyncConnectionConfig {
    // Every call has its own deadline.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    config.set_pipeline_buffer_size(MAX_QUEUED_BATCHES).set_write_backpressure_boundary(WRITE_BUFFER_BYTES)
}

/// Sends small batches at once, and detects servers that vanished without closing the connection.
fn set_socket_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let (time, interval) = KEEPALIVE;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(time).with_interval(interval).with_retries(3))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

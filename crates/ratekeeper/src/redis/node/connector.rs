//! How a connection to a server is made: the socket, TLS, and logging in.

use super::connection::RedisConnection;
use super::failure::{LoginContext, ServerFailure};
use super::tls::{self, StoreTlsError};
use crate::health::{StoreErrorCause, Topology};
use crate::redis::url::{Credentials, ServerAddress, StoreTlsFiles};
use ::redis::aio::{AsyncPushSender, MultiplexedConnection};
use ::redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{self, pki_types::ServerName};

/// How long it may take until a server has answered the first words.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it may take to find out whether a port speaks TLS.
const TLS_PROBE: Duration = Duration::from_millis(500);
/// After how long of silence the kernel looks whether a server is still there, and how often.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(1));
/// How long what was sent may stay without the other kernel's word that it came.
const USER_TIMEOUT: Duration = Duration::from_secs(5);
/// How many batches may wait to be written. What may be in flight is bounded before that.
const WAITING_BATCHES: usize = 1024;
/// How much is gathered before it is written.
const WRITE_BYTES: usize = 64 * 1024;

/// Makes connections: knows how to log in, and whom to trust.
#[derive(Clone)]
pub(in crate::redis) struct Connector {
    login: RedisConnectionInfo,
    tls: Option<TlsConnector>,
    asker: LoginContext,
}

impl Connector {
    /// Reads the files that TLS needs.
    pub(in crate::redis) fn new(
        login: &Credentials,
        db: u32,
        tls: Option<&StoreTlsFiles>,
        topology: Topology,
    ) -> Result<Connector, StoreTlsError> {
        let mut info = RedisConnectionInfo::default()
            .set_db(i64::from(db))
            .set_lib_name(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        if let Some(user) = &login.user {
            info = info.set_username(user);
        }
        if let Some(password) = &login.password {
            info = info.set_password(password.reveal());
        }
        let asker = LoginContext::new(login.user.as_deref(), topology, tls.is_some());
        Ok(Connector { login: info, tls: tls.map(tls::connector).transpose()?, asker })
    }

    /// The same servers' neighbours, who want to be told of news and know users of their own.
    pub(in crate::redis) fn for_news(
        login: &Credentials,
        tls: Option<&StoreTlsFiles>,
    ) -> Result<Connector, StoreTlsError> {
        let mut dialer = Connector::new(login, 0, tls, Topology::Sentinel)?;
        dialer.login = dialer.login.set_protocol(ProtocolVersion::RESP3);
        dialer.asker = dialer.asker.of_sentinels();
        Ok(dialer)
    }

    /// As whom it asks, which advice depends on.
    pub(in crate::redis) fn asker(&self) -> &LoginContext {
        &self.asker
    }

    /// Finds out whether a server can't be used because only one side speaks TLS. An attempt to connect alone does not tell:
    /// either side waits, or ends the connection, when it can't read the other. Neither a password nor a certificate is sent.
    async fn find_tls_mismatch(
        &self,
        server: &ServerAddress,
        trouble: &ServerFailure,
    ) -> Option<ServerFailure> {
        let ServerAddress::Tcp { host, port } = server else { return None };
        let is_likely = match trouble.cause {
            StoreErrorCause::Tls | StoreErrorCause::Timeout => self.tls.is_some(),
            StoreErrorCause::Unreachable => true,
            _ => false,
        };
        if !is_likely {
            return None;
        }
        let probe = async {
            match self.tls {
                Some(_) => speaks_plainly(host, *port).await,
                None => speaks_tls(host, *port).await,
            }
        };
        let is_mismatch = timeout(TLS_PROBE, probe).await.is_ok_and(|answer| answer.unwrap_or(false));
        is_mismatch.then(|| self.asker.tls_mismatch())
    }

    /// Connects and logs in. `on_close` is called when the connection ends, however it does.
    pub(in crate::redis) async fn dial(
        &self,
        server: &ServerAddress,
        on_close: impl FnOnce() + Send + 'static,
    ) -> Result<RedisConnection, ServerFailure> {
        self.dial_with(server, config(), on_close).await
    }

    /// The same, and what the server says unasked goes to `news`.
    pub(in crate::redis) async fn dial_for_news(
        &self,
        server: &ServerAddress,
        news: impl AsyncPushSender,
        on_close: impl FnOnce() + Send + 'static,
    ) -> Result<RedisConnection, ServerFailure> {
        self.dial_with(server, config().set_push_sender(news), on_close).await
    }

    async fn dial_with(
        &self,
        server: &ServerAddress,
        config: AsyncConnectionConfig,
        on_close: impl FnOnce() + Send + 'static,
    ) -> Result<RedisConnection, ServerFailure> {
        let connect = async {
            let stream = self.reach(server).await?;
            let connected = MultiplexedConnection::new_with_config(&self.login, stream, config).await;
            let (connection, driver) = connected.map_err(|error| self.asker.explain_connect(&error))?;
            Ok(RedisConnection::new(connection, driver, on_close))
        };
        timeout(PATIENCE, connect).await.unwrap_or(Err(ServerFailure::too_slow(PATIENCE)))
    }

    async fn reach(&self, server: &ServerAddress) -> Result<Box<dyn RedisStream>, ServerFailure> {
        let unreachable = |error: io::Error| ServerFailure::unreachable(&error);
        let (host, port) = match server {
            ServerAddress::Unix(path) => {
                return Ok(Box::new(UnixStream::connect(path).await.map_err(unreachable)?));
            }
            ServerAddress::Tcp { host, port } => (host.as_str(), *port),
        };
        let stream = TcpStream::connect((host, port)).await.map_err(unreachable)?;
        tune(&stream).map_err(unreachable)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| ServerFailure::of_tls(&io::Error::other(error)))?;
        Ok(Box::new(tls.connect(name, stream).await.map_err(|error| ServerFailure::of_tls(&error))?))
    }
}

/// Whether a server answers to a command that is not encrypted.
async fn speaks_plainly(host: &str, port: u16) -> io::Result<bool> {
    let mut stream = TcpStream::connect((host, port)).await?;
    stream.write_all(b"PING\r\n").await?;
    // `+PONG`, or an error: a server that speaks TLS ends the connection, or sends an alert, which begins with 21.
    Ok(matches!(stream.read_u8().await?, b'+' | b'-'))
}

/// Whether a server answers to the beginning of a TLS handshake. It goes no further: nobody is trusted.
async fn speaks_tls(host: &str, port: u16) -> io::Result<bool> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let stream = TcpStream::connect((host, port)).await?;
    let connector = tls::connector_that_trusts_nobody().map_err(io::Error::other)?;
    let Err(error) = connector.connect(name, stream).await else { return Ok(true) };
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    // What can't be read is no TLS; whatever else is wrong with it came in records of it.
    Ok(error.is_some_and(|error| !matches!(error, rustls::Error::InvalidMessage(_))))
}

/// What an attempt to use a server ran into, and what that turned out to mean: the same failure is looked into once.
#[derive(Default)]
pub(in crate::redis) struct Diagnosis(Option<(ServerFailure, ServerFailure)>);

impl Diagnosis {
    /// What is behind a failed attempt.
    pub(in crate::redis) async fn find(
        &mut self,
        dialer: &Connector,
        server: &ServerAddress,
        found: ServerFailure,
    ) -> ServerFailure {
        if let Some((_, meaning)) = self.0.as_ref().filter(|(known, _)| *known == found) {
            return meaning.clone();
        }
        let mismatch = dialer.find_tls_mismatch(server, &found).await;
        let meaning = mismatch.unwrap_or_else(|| found.clone());
        self.0 = Some((found, meaning.clone()));
        meaning
    }
}

trait RedisStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> RedisStream for S {}

fn config() -> AsyncConnectionConfig {
    // Every call brings a deadline of its own.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    config.set_pipeline_buffer_size(WAITING_BATCHES).set_write_backpressure_boundary(WRITE_BYTES)
}

/// Small batches leave at once, and a server that is gone without a word is noticed.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let (time, interval) = KEEPALIVE;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(time).with_interval(interval).with_retries(3))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

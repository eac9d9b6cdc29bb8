//! How a connection to a server is made: the socket, TLS, and logging in.

use super::link::Link;
use super::trust::{self, TrustError};
use crate::redis::url::{Login, Server, TlsFiles};
use ::redis::aio::{AsyncPushSender, MultiplexedConnection};
use ::redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, RedisError};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// How long it may take until a server has answered the first words.
const PATIENCE: Duration = Duration::from_secs(1);
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
pub(in crate::redis) struct Dialer {
    login: RedisConnectionInfo,
    tls: Option<TlsConnector>,
}

/// Why a server can't be used.
#[derive(Debug, thiserror::Error)]
pub(in crate::redis) enum DialError {
    #[error("it can't be reached: {0}")]
    Io(#[from] io::Error),
    #[error("it doesn't answer within {} ms", .0.as_millis())]
    TooSlow(Duration),
    #[error("TLS with it fails: {0}")]
    Tls(io::Error),
    #[error("it refuses: {0}")]
    Refused(#[from] RedisError),
    #[error("it is a replica, and takes no writes")]
    Replica,
    #[error(
        "it says that its cluster is down: most masters are away, or one is and cluster-require-full-coverage is yes"
    )]
    ClusterDown,
    #[error(
        "it may not be asked for its ROLE ({0}), which has to be known behind Sentinel: allow the user `role`"
    )]
    NoRole(String),
}

impl Dialer {
    /// Reads the files that TLS needs.
    pub(in crate::redis) fn new(
        login: &Login,
        db: u32,
        tls: Option<&TlsFiles>,
    ) -> Result<Dialer, TrustError> {
        let mut info = RedisConnectionInfo::default()
            .set_db(i64::from(db))
            .set_lib_name(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        if let Some(user) = &login.user {
            info = info.set_username(user);
        }
        if let Some(password) = &login.password {
            info = info.set_password(password.reveal());
        }
        Ok(Dialer { login: info, tls: tls.map(trust::connector).transpose()? })
    }

    /// The same servers' neighbours, who want to be told of news and know users of their own.
    pub(in crate::redis) fn for_news(login: &Login, tls: Option<&TlsFiles>) -> Result<Dialer, TrustError> {
        let mut dialer = Dialer::new(login, 0, tls)?;
        dialer.login = dialer.login.set_protocol(ProtocolVersion::RESP3);
        Ok(dialer)
    }

    /// Connects and logs in. `on_close` is called when the connection ends, however it does.
    pub(in crate::redis) async fn dial(
        &self,
        server: &Server,
        on_close: impl FnOnce() + Send + 'static,
    ) -> Result<Link, DialError> {
        self.dial_with(server, config(), on_close).await
    }

    /// The same, and what the server says unasked goes to `news`.
    pub(in crate::redis) async fn dial_for_news(
        &self,
        server: &Server,
        news: impl AsyncPushSender,
        on_close: impl FnOnce() + Send + 'static,
    ) -> Result<Link, DialError> {
        self.dial_with(server, config().set_push_sender(news), on_close).await
    }

    async fn dial_with(
        &self,
        server: &Server,
        config: AsyncConnectionConfig,
        on_close: impl FnOnce() + Send + 'static,
    ) -> Result<Link, DialError> {
        let connect = async {
            let stream = self.reach(server).await?;
            let (connection, driver) =
                MultiplexedConnection::new_with_config(&self.login, stream, config).await?;
            Ok(Link::new(connection, driver, on_close))
        };
        timeout(PATIENCE, connect).await.unwrap_or(Err(DialError::TooSlow(PATIENCE)))
    }

    async fn reach(&self, server: &Server) -> Result<Box<dyn Stream>, DialError> {
        let (host, port) = match server {
            Server::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
            Server::Tcp { host, port } => (host.as_str(), *port),
        };
        let stream = TcpStream::connect((host, port)).await?;
        tune(&stream)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name =
            ServerName::try_from(host.to_owned()).map_err(|error| DialError::Tls(io::Error::other(error)))?;
        Ok(Box::new(tls.connect(name, stream).await.map_err(DialError::Tls)?))
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

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

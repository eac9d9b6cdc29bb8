//! One request to a server, over TCP or TLS, within bounded time.

use super::{NEAR, ServerArgs};
use anyhow::{Context, Result, anyhow, bail, ensure};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use ratekeeper_server::tls;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// How long it may take until the server is there.
const CONNECT: Duration = Duration::from_secs(5);
/// How long it may then take until its answer is there.
const ANSWER: Duration = Duration::from_secs(10);
/// The most bytes of an answer. A decision has a hundred or two.
const MOST_BYTES: usize = 64 * 1024;

/// Where a server is, and how it is spoken to.
pub(super) struct ServerTarget {
    host: String,
    port: u16,
    /// What its paths begin with, if it stands behind a proxy.
    prefix: String,
    tls: Option<TlsConnector>,
    /// What it is told of who asks.
    authorization: Option<HeaderValue>,
}

/// What a server said.
#[derive(Debug)]
pub(super) struct ServerReply {
    pub(super) status: u16,
    /// In seconds.
    pub(super) retry_after: Option<u64>,
    pub(super) body: Bytes,
}

impl ServerTarget {
    /// Reads the address and the files that go with it. Nothing is asked of the network yet.
    pub(super) fn new(reach: &ServerArgs) -> Result<ServerTarget> {
        // An empty variable says nothing, as compose files leave them so.
        let written = if reach.server.is_empty() { NEAR } else { &reach.server };
        let advice = || format!("cannot read {written:?} as a server: write it like {NEAR}");
        // Without a scheme, what stands before the port would be taken for one.
        let url = if written.contains("://") { written.to_owned() } else { format!("http://{written}") };
        let url: Uri = url.parse().with_context(advice)?;
        let has_tls = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => bail!(advice()),
        };
        ensure!(url.query().is_none(), advice());
        let host = url.host().filter(|host| !host.is_empty()).with_context(advice)?;
        if !has_tls && (reach.ca.is_some() || reach.cert.is_some()) {
            bail!(
                "certificates are of no use without TLS: write https:// before the server, or leave them out"
            );
        }
        Ok(ServerTarget {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: url.port_u16().unwrap_or(if has_tls { 443 } else { 80 }),
            prefix: url.path().trim_end_matches('/').to_owned(),
            tls: has_tls.then(|| connector(reach)).transpose()?,
            authorization: reach.token()?.map(|token| bearer(&token)).transpose()?,
        })
    }

    /// Sends a question, and waits for the answer.
    pub(super) async fn ask(&self, path: &str, question: Vec<u8>) -> Result<ServerReply> {
        let connect = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            stream.set_nodelay(true)?;
            Ok::<_, std::io::Error>(stream)
        };
        let stream = timeout(CONNECT, connect)
            .await
            .map_err(|_| anyhow!("nobody answers"))
            .and_then(|stream| Ok(stream?));
        let stream = stream.with_context(|| {
            format!(
                "cannot reach {self}: start a server with `ratekeeper serve`, or name another with --server URL"
            )
        })?;
        let request = self.request(path, question)?;
        let Some(tls) = &self.tls else {
            let advice = "does the server speak TLS? Then write https:// before it";
            return self
                .exchange(stream, request)
                .await
                .with_context(|| format!("{self} gave no answer: {advice}"));
        };
        let name =
            ServerName::try_from(self.host.clone()).context("the server's name can't be in a certificate")?;
        let stream = timeout(CONNECT, tls.connect(name, stream)).await;
        let stream = stream
            .map_err(|_| anyhow!("the handshake took too long"))
            .and_then(|stream| stream.map_err(about_handshake));
        let stream = stream.with_context(|| format!("cannot speak TLS with {self}"))?;
        // Under TLS 1.3 a server that misses our certificate says so only now.
        let advice = "does it ask for a certificate? Then name one with --cert and --key";
        self.exchange(stream, request).await.with_context(|| format!("{self} gave no answer: {advice}"))
    }

    fn request(&self, path: &str, question: Vec<u8>) -> Result<Request<Full<Bytes>>> {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let request = Request::post(format!("{}{path}", self.prefix));
        let request = request.header(HOST, format!("{host}:{}", self.port));
        let mut request =
            request.header(CONTENT_TYPE, "application/json").body(Full::new(question.into()))?;
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        Ok(request)
    }

    async fn exchange<S>(&self, stream: S, request: Request<Full<Bytes>>) -> Result<ServerReply>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let exchange = async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            // It ends when the sender is gone; what breaks it is told to the sender too.
            tokio::spawn(connection);
            let reply = sender.send_request(request).await?;
            let status = reply.status().as_u16();
            let retry_after =
                reply.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            let body = Limited::new(reply.into_body(), MOST_BYTES).collect().await;
            let body = body.map_err(|error| anyhow!("its answer can't be read: {error}"))?;
            Ok(ServerReply { status, retry_after, body: body.to_bytes() })
        };
        timeout(ANSWER, exchange).await.map_err(|_| anyhow!("it took too long"))?
    }
}

fn bearer(token: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .context("the token has characters that can't be sent: is this the right file?")?;
    value.set_sensitive(true);
    Ok(value)
}

/// The address, as it would be written.
impl fmt::Display for ServerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}{}", self.host, self.port, self.prefix),
            false => write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.prefix),
        }
    }
}

/// What a handshake that failed tells: a server without TLS answers, but not in that language.
fn about_handshake(error: std::io::Error) -> anyhow::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidMessage(_)) => anyhow!("it does not speak TLS: write http:// before it"),
        _ => error.into(),
    }
}

fn connector(reach: &ServerArgs) -> Result<TlsConnector> {
    let authorities =
        reach.ca.as_deref().map_or_else(system_authorities, |path| Ok(tls::authorities(path)?))?;
    let identity = reach.cert.as_deref().zip(reach.key.as_deref());
    let mut config: ClientConfig = tls::client_config(authorities, identity)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The authorities that the system trusts. Some are of kinds that nobody reads any more, and left out.
fn system_authorities() -> Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut authorities = RootCertStore::empty();
    let (added, _) = authorities.add_parsable_certificates(found.certs);
    match (added, found.errors.into_iter().next()) {
        (1.., _) => Ok(authorities),
        (0, None) => bail!("this system trusts no authorities: name yours with --ca FILE"),
        (0, Some(error)) => {
            Err(anyhow!(error).context("cannot read whom this system trusts: name yours with --ca FILE"))
        }
    }
}

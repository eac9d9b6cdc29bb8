//! Sends one request to a server over TCP or TLS, with timeouts.

use super::{DEFAULT_SERVER, ServerArgs};
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

/// The timeout for connecting, and for the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout for the response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of a response body in bytes. A decision has one or two hundred.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// The address of a server, its TLS configuration and credentials.
pub(super) struct ServerTarget {
    host: String,
    port: u16,
    /// The path prefix, if the server is behind a proxy.
    prefix: String,
    tls: Option<TlsConnector>,
    /// The `Authorization` header.
    authorization: Option<HeaderValue>,
}

/// The response of a server.
#[derive(Debug)]
pub(super) struct ServerReply {
    pub(super) status: u16,
    /// In seconds.
    pub(super) retry_after: Option<u64>,
    pub(super) body: Bytes,
}

impl ServerTarget {
    /// Parses the URL and loads certificates and token. Does not use the network.
    pub(super) fn new(args: &ServerArgs) -> Result<ServerTarget> {
        // An empty variable counts as unset, since compose files leave variables empty.
        let server = if args.server.is_empty() { DEFAULT_SERVER } else { &args.server };
        let advice = || format!("invalid server URL {server:?}: write it like {DEFAULT_SERVER}");
        // Without a scheme, the host before the port would be parsed as one.
        let url = if server.contains("://") { server.to_owned() } else { format!("http://{server}") };
        let url: Uri = url.parse().with_context(advice)?;
        let has_tls = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => bail!(advice()),
        };
        ensure!(url.query().is_none(), advice());
        let host = url.host().filter(|host| !host.is_empty()).with_context(advice)?;
        if !has_tls && (args.ca.is_some() || args.cert.is_some()) {
            bail!("--ca and --cert require TLS: write https:// before the server, or omit them");
        }
        Ok(ServerTarget {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: url.port_u16().unwrap_or(if has_tls { 443 } else { 80 }),
            prefix: url.path().trim_end_matches('/').to_owned(),
            tls: has_tls.then(|| connector(args)).transpose()?,
            authorization: args.token()?.map(|token| bearer(&token)).transpose()?,
        })
    }

    /// Sends a POST request and waits for the response.
    pub(super) async fn post(&self, path: &str, body: Vec<u8>) -> Result<ServerReply> {
        let connect = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            stream.set_nodelay(true)?;
            Ok::<_, std::io::Error>(stream)
        };
        let stream = timeout(CONNECT_TIMEOUT, connect)
            .await
            .map_err(|_| anyhow!("connecting timed out"))
            .and_then(|stream| Ok(stream?));
        let stream = stream.with_context(|| {
            format!(
                "cannot connect to {self}: start a server with `ratekeeper serve`, or pass another with --server URL"
            )
        })?;
        let request = self.request(path, body)?;
        let Some(tls) = &self.tls else {
            let advice = "if the server uses TLS, write https:// before it";
            return self
                .exchange(stream, request)
                .await
                .with_context(|| format!("no response from {self}: {advice}"));
        };
        let name =
            ServerName::try_from(self.host.clone()).context("the server's host name is not valid for TLS")?;
        let stream = timeout(CONNECT_TIMEOUT, tls.connect(name, stream)).await;
        let stream = stream
            .map_err(|_| anyhow!("the handshake timed out"))
            .and_then(|stream| stream.map_err(explain_handshake_error));
        let stream = stream.with_context(|| format!("TLS handshake with {self} failed"))?;
        // Under TLS 1.3 a server that requires a client certificate reports a missing one only now.
        let advice = "if the server requires a client certificate, pass one with --cert and --key";
        self.exchange(stream, request).await.with_context(|| format!("no response from {self}: {advice}"))
    }

    fn request(&self, path: &str, body: Vec<u8>) -> Result<Request<Full<Bytes>>> {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let request = Request::post(format!("{}{path}", self.prefix));
        let request = request.header(HOST, format!("{host}:{}", self.port));
        let mut request = request.header(CONTENT_TYPE, "application/json").body(Full::new(body.into()))?;
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
            // The task ends when the sender is dropped. Its errors are reported to the sender too.
            tokio::spawn(connection);
            let response = sender.send_request(request).await?;
            let status = response.status().as_u16();
            let retry_after =
                response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await;
            let body = body.map_err(|error| anyhow!("cannot read the response: {error}"))?;
            Ok(ServerReply { status, retry_after, body: body.to_bytes() })
        };
        timeout(RESPONSE_TIMEOUT, exchange).await.map_err(|_| anyhow!("the response timed out"))?
    }
}

fn bearer(token: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .context("the token contains characters that are not allowed in a header: is this the right file?")?;
    value.set_sensitive(true);
    Ok(value)
}

/// The URL of the server.
impl fmt::Display for ServerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}{}", self.host, self.port, self.prefix)
        } else {
            write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.prefix)
        }
    }
}

/// Explains a failed handshake: a server without TLS answers with bytes that are not TLS.
fn explain_handshake_error(error: std::io::Error) -> anyhow::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidMessage(_)) => {
            anyhow!("the server does not use TLS: write http:// before it")
        }
        _ => error.into(),
    }
}

fn connector(args: &ServerArgs) -> Result<TlsConnector> {
    let authorities =
        args.ca.as_deref().map_or_else(system_ca_certificates, |path| Ok(tls::authorities(path)?))?;
    let identity = args.cert.as_deref().zip(args.key.as_deref());
    let mut config: ClientConfig = tls::client_config(authorities, identity)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The CA certificates that the system trusts. Unsupported ones are skipped.
fn system_ca_certificates() -> Result<RootCertStore> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut authorities = RootCertStore::empty();
    let (added, _) = authorities.add_parsable_certificates(loaded.certs);
    match (added, loaded.errors.into_iter().next()) {
        (1.., _) => Ok(authorities),
        (0, None) => bail!("this system has no CA certificates: pass yours with --ca FILE"),
        (0, Some(error)) => Err(anyhow!(error)
            .context("cannot load the CA certificates of this system: pass yours with --ca FILE")),
    }
}

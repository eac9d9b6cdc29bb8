//! TLS with certificates that can be reloaded while the server runs.
//!
//! The files are read into one configuration that every new connection uses. A reload builds another one and swaps it
//! in with certificate, key and client CAs together, so no connection sees a mix of two. If a file is invalid, the old
//! configuration stays. Open connections keep the configuration that they began with.
//!
//! The cryptography provider is aws-lc-rs, passed explicitly, so nothing depends on a process-wide default.

use crate::file;
use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The handshake timeout. A handshake is three short messages, so only a broken or hostile client takes long.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of a file: four times what all CAs that an operating system trusts take.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// The ALPN protocols: HTTP/2 is preferred.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The paths of a listener's TLS files, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTlsFiles {
    /// The server's certificate chain, its own certificate first.
    pub cert: PathBuf,
    /// The private key of the first certificate.
    pub key: PathBuf,
    /// The CAs of client certificates. If `None`, clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// Accepts TLS connections with a certificate that can be reloaded. Clones share the certificate.
#[derive(Clone, Debug)]
pub struct ListenerTls {
    files: Arc<ListenerTlsFiles>,
    config: Arc<ArcSwap<ServerConfig>>,
}

impl ListenerTls {
    /// Loads the files.
    ///
    /// # Errors
    /// If a file can't be read or is invalid, or the key does not belong to the certificate.
    pub fn load(files: &ListenerTlsFiles) -> Result<ListenerTls, TlsError> {
        let config = server_config(files)?;
        Ok(ListenerTls { files: Arc::new(files.clone()), config: Arc::new(ArcSwap::from_pointee(config)) })
    }

    /// Loads the files again, for new connections.
    ///
    /// # Errors
    /// As [`ListenerTls::load`]; the previous configuration then stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.config.store(Arc::new(server_config(&self.files)?));
        Ok(())
    }

    /// The paths of the files, to be watched.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let ListenerTlsFiles { cert, key, client_ca } = &*self.files;
        [cert, key].into_iter().chain(client_ca).map(PathBuf::as_path)
    }

    /// An acceptor with the current configuration. It does not follow reloads, so get a new one for each connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Performs the handshake with a new client, within ten seconds.
    ///
    /// # Errors
    /// If the handshake fails or times out, or the client lacks a required certificate.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<TlsStream<S>> {
        let too_slow = |_| io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long");
        timeout(HANDSHAKE_TIMEOUT, self.acceptor().accept(stream)).await.map_err(too_slow)?
    }
}

/// The TLS configuration of a client.
///
/// `authorities` are the CAs trusted for the server's certificate; `identity` holds the paths of the client's own
/// certificate and key.
///
/// # Errors
/// If a file can't be read or is invalid, or the key does not belong to the certificate.
pub fn client_config(
    authorities: RootCertStore,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientConfig, TlsError> {
    let config = ClientConfig::builder_with_provider(provider());
    let config = config.with_safe_default_protocol_versions().map_err(TlsError::Unsupported)?;
    let config = config.with_root_certificates(authorities);
    let Some((cert, key)) = identity else { return Ok(config.with_no_client_auth()) };
    let chain = certificates(cert)?;
    config.with_client_auth_cert(chain, private_key(key)?).map_err(|error| pair_error(error, cert, key))
}

/// Reads a file of CA certificates.
///
/// # Errors
/// If the file can't be read or has no valid CA certificate.
pub fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut authorities = RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = authorities.add(certificate);
        added.map_err(|source| TlsError::BadAuthority { path: path.into(), source })?;
    }
    Ok(authorities)
}

fn server_config(files: &ListenerTlsFiles) -> Result<ServerConfig, TlsError> {
    let config = ServerConfig::builder_with_provider(provider());
    let config = config.with_safe_default_protocol_versions().map_err(TlsError::Unsupported)?;
    let config = match &files.client_ca {
        None => config.with_no_client_auth(),
        Some(path) => {
            let authorities = Arc::new(authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider()).build();
            // Building fails only without a CA, and the file has one, or with invalid CRLs, of which there are none.
            config.with_client_cert_verifier(verifier.expect("there is at least one CA"))
        }
    };
    let chain = certificates(&files.cert)?;
    let config = config.with_single_cert(chain, private_key(&files.key)?);
    let mut config = config.map_err(|error| pair_error(error, &files.cert, &files.key))?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    Ok(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// All certificates in a file. Returns an error if there is none.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|source| TlsError::NotPem { path: path.into(), source })?;
    if found.is_empty() { Err(TlsError::NoCertificate { path: path.into() }) } else { Ok(found) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::NoKey { path: path.into() },
        source => TlsError::NotPem { path: path.into(), source },
    })
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    file::read(path, MAX_FILE_BYTES).map_err(|source| TlsError::Unreadable { path: path.into(), source })
}

/// Converts the error for a certificate and key that were read but can't be used together.
fn pair_error(error: rustls::Error, cert: &Path, key: &Path) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => TlsError::Mismatch { cert: cert.into(), key: key.into() },
        source @ rustls::Error::InvalidCertificate(_) => {
            TlsError::BadCertificate { path: cert.into(), source }
        }
        source => TlsError::BadKey { path: key.into(), source },
    }
}

/// Why TLS files can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file can't be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// A file is not valid PEM: a block has no end or is not base64.
    #[error("{} is not valid PEM: write it again as PEM", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// The PEM error.
        source: pem::Error,
    },
    /// A file contains no certificate.
    #[error(
        "there is no certificate in {}: it needs a block that begins with -----BEGIN CERTIFICATE-----",
        path.display()
    )]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A file contains no private key.
    #[error(
        "there is no private key in {}: it needs a block that begins with -----BEGIN PRIVATE KEY-----; \
         one that begins with -----BEGIN ENCRYPTED PRIVATE KEY----- has to be decrypted first, \
         with openssl pkey -in FILE -out FILE",
        path.display()
    )]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The first certificate in a file can't be parsed.
    #[error("the certificate in {} can't be used", path.display())]
    BadCertificate {
        /// The file.
        path: PathBuf,
        /// The TLS error.
        source: rustls::Error,
    },
    /// The key's type is not supported.
    #[error(
        "the private key in {} can't be used: use an RSA key of 2048 bits or more, P-256 or Ed25519",
        path.display()
    )]
    BadKey {
        /// The file.
        path: PathBuf,
        /// The TLS error.
        source: rustls::Error,
    },
    /// The key does not belong to the certificate.
    #[error(
        "the key in {} does not belong to the first certificate in {}: name a matching pair, \
         or put the server's own certificate before those of its CAs",
        key.display(), cert.display()
    )]
    Mismatch {
        /// The certificate file.
        cert: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// A certificate in a CA file is not a valid CA certificate.
    #[error("a certificate in {} can't be used as a CA", path.display())]
    BadAuthority {
        /// The file.
        path: PathBuf,
        /// The TLS error.
        source: rustls::Error,
    },
    /// The cryptography provider supports none of the TLS versions.
    #[error("TLS can't be set up")]
    Unsupported(#[source] rustls::Error),
}

#[cfg(test)]
mod tests;

//! TLS: certificates that can be renewed while the server runs.
//!
//! The files are read into one configuration, which every new connection picks up. A reload builds another from the
//! files as they are then and puts it in the place of the old one, certificate, key and client authorities together:
//! no connection ever sees half of two. If anything is wrong with the files, the old one stays. Connections that are
//! open live on under what they began with.
//!
//! The cryptography is aws-lc-rs, named wherever one is needed, so nothing depends on a default of the process.

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

/// How long a handshake may take. It is three short messages, so only a broken or hostile client takes long.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The most bytes of a file. The authorities that a whole operating system trusts take a quarter of it.
const MOST_FILE_BYTES: u64 = 1024 * 1024;
/// What is spoken inside: HTTP/2, if the client knows it.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The files, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTlsFiles {
    /// The server's certificate, and behind it those that lead to its authority.
    pub cert: PathBuf,
    /// The key of the first of these.
    pub key: PathBuf,
    /// The authorities one of which must have signed a client's certificate; if left out, clients need none.
    pub client_ca: Option<PathBuf>,
}

/// Lets clients in over TLS. Clones share what a reload changes.
#[derive(Clone, Debug)]
pub struct ListenerTls {
    files: Arc<ListenerTlsFiles>,
    config: Arc<ArcSwap<ServerConfig>>,
}

impl ListenerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// If one of them can't be read, has not in it what it should, or they don't belong together.
    pub fn load(files: &ListenerTlsFiles) -> Result<ListenerTls, TlsError> {
        let config = server_config(files)?;
        Ok(ListenerTls { files: Arc::new(files.clone()), config: Arc::new(ArcSwap::from_pointee(config)) })
    }

    /// Reads the files again. New connections use what they say now.
    ///
    /// # Errors
    /// As [`ListenerTls::load`]; what was in use then stays so.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.config.store(Arc::new(server_config(&self.files)?));
        Ok(())
    }

    /// The files that it is read from, to be watched.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let ListenerTlsFiles { cert, key, client_ca } = &*self.files;
        [cert, key].into_iter().chain(client_ca).map(PathBuf::as_path)
    }

    /// What lets clients in as of now. It does not follow reloads, so ask for one for each connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Shakes hands with a client that has just connected, within ten seconds.
    ///
    /// # Errors
    /// If the client breaks off, dawdles, can't agree on a protocol, or has no certificate where it needs one.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<TlsStream<S>> {
        let too_slow = |_| io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long");
        timeout(HANDSHAKE, self.acceptor().accept(stream)).await.map_err(too_slow)?
    }
}

/// How a client checks a server, and shows who it is itself.
///
/// `authorities` are trusted to have signed the server's certificate; `identity` is the file of the client's own
/// certificate and that of its key.
///
/// # Errors
/// If a file can't be read, has not in it what it should, or the key is not that of the certificate.
pub fn client_config(
    authorities: RootCertStore,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientConfig, TlsError> {
    let config = ClientConfig::builder_with_provider(provider());
    let config = config.with_safe_default_protocol_versions().map_err(TlsError::Refused)?;
    let config = config.with_root_certificates(authorities);
    let Some((cert, key)) = identity else { return Ok(config.with_no_client_auth()) };
    let chain = certificates(cert)?;
    config.with_client_auth_cert(chain, private_key(key)?).map_err(|error| mismatch(error, cert, key))
}

/// Reads a file of certificates whose keys are trusted to sign others.
///
/// # Errors
/// If it can't be read, or has no such certificate in it.
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
    let config = config.with_safe_default_protocol_versions().map_err(TlsError::Refused)?;
    let config = match &files.client_ca {
        None => config.with_no_client_auth(),
        Some(path) => {
            let authorities = Arc::new(authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider()).build();
            // It asks for at least one authority, which the file has, and for readable revocations, of which
            // there are none.
            config.with_client_cert_verifier(verifier.expect("there is an authority"))
        }
    };
    let chain = certificates(&files.cert)?;
    let config = config.with_single_cert(chain, private_key(&files.key)?);
    let mut config = config.map_err(|error| mismatch(error, &files.cert, &files.key))?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    Ok(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// All certificates in a file, at least one.
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
    file::read(path, MOST_FILE_BYTES).map_err(|source| TlsError::Unreadable { path: path.into(), source })
}

/// What a certificate and a key that were read, but can't be used together, tell.
fn mismatch(error: rustls::Error, cert: &Path, key: &Path) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => TlsError::Mismatch { cert: cert.into(), key: key.into() },
        source @ rustls::Error::InvalidCertificate(_) => {
            TlsError::BadCertificate { path: cert.into(), source }
        }
        source => TlsError::BadKey { path: key.into(), source },
    }
}

/// Why the files can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file is missing, or the system does not let it be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not PEM: a block in it has no end, or is not base64.
    #[error("{} is broken: write it anew, as PEM", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// A file has no certificate in it.
    #[error(
        "there is no certificate in {}: it needs a block that begins with -----BEGIN CERTIFICATE-----",
        path.display()
    )]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A file has no key in it.
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
    /// The first certificate in a file can't be understood.
    #[error("the certificate in {} can't be used", path.display())]
    BadCertificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// The key in a file is of a kind that can't be used.
    #[error("the private key in {} can't be used: use an RSA key of 2048 bits or more, P-256 or Ed25519", path.display())]
    BadKey {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// The key is another's.
    #[error(
        "the key in {} is not that of the first certificate in {}: name the pair, \
         or put the server's own certificate before those of its authorities",
        key.display(), cert.display()
    )]
    Mismatch {
        /// The file of the certificate.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// A certificate in a file can't be an authority's.
    #[error("a certificate in {} can't be trusted to sign others", path.display())]
    BadAuthority {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// The cryptography has no protocol in common with this program.
    #[error("TLS can't be set up")]
    Refused(#[source] rustls::Error),
}

#[cfg(test)]
mod tests;

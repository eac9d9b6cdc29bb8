//! TLS by rustls: root certificates and the client's identity, read from files.
//!
//! The crypto provider is aws-lc-rs, selected explicitly so that it does not depend on a process-wide default.

use super::StoreTlsError;
use crate::client::url::StoreTlsFiles;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// Opens TLS connections.
#[derive(Clone)]
pub(in crate::client) struct TlsClient(TlsConnector);

impl TlsClient {
    /// Reads the files.
    ///
    /// # Errors
    /// If a file can't be read or has the wrong content, or if the certificate and the key don't match.
    pub(in crate::client) fn new(files: &StoreTlsFiles) -> Result<TlsClient, StoreTlsError> {
        let roots = root_certificates(files.ca.as_deref())?;
        let identity = match &files.identity {
            None => None,
            Some((cert, key)) => {
                let key =
                    PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, "a key", &error))?;
                Some((read_certificates(cert)?, key))
            }
        };
        TlsClient::with(roots, identity).map_err(StoreTlsError::InvalidIdentity)
    }

    fn with(
        roots: RootCertStore,
        identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    ) -> Result<TlsClient, rustls::Error> {
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let config = config.with_safe_default_protocol_versions()?.with_root_certificates(roots);
        let config = match identity {
            None => config.with_no_client_auth(),
            Some((certificates, key)) => config.with_client_auth_cert(certificates, key)?,
        };
        Ok(TlsClient(TlsConnector::from(Arc::new(config))))
    }

    /// Completes the handshake with a server.
    pub(in crate::client) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }

    /// Whether a server replies to the start of a handshake, which never completes, since no root is trusted.
    pub(in crate::client) async fn is_spoken_by(host: &str, stream: TcpStream) -> io::Result<bool> {
        let untrusting = TlsClient::with(RootCertStore::empty(), None).map_err(io::Error::other)?;
        let Err(error) = untrusting.connect(host, stream).await else { return Ok(true) };
        let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
        // An invalid message is not TLS; any other error arrived in TLS records.
        Ok(error.is_some_and(|error| !matches!(error, rustls::Error::InvalidMessage(_))))
    }
}

fn root_certificates(file: Option<&Path>) -> Result<RootCertStore, StoreTlsError> {
    let mut store = RootCertStore::empty();
    match file {
        Some(path) => {
            for certificate in read_certificates(path)? {
                store.add(certificate).map_err(|error| unreadable(path, "certificates", &error))?;
            }
        }
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err(StoreTlsError::NoRootCertificates);
            }
        }
    }
    Ok(store)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StoreTlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| unreadable(path, "certificates", &error))?;
    if certificates.is_empty() {
        Err(unreadable(path, "certificates", &"it contains no certificate"))
    } else {
        Ok(certificates)
    }
}

fn unreadable(path: &Path, what: &'static str, error: &impl ToString) -> StoreTlsError {
    StoreTlsError::File { path: path.to_owned(), what, reason: error.to_string() }
}

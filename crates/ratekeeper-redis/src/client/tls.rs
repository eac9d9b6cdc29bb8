//! TLS configuration for store connections: root certificates and the client's identity, read from files.
//!
//! The crypto provider is aws-lc-rs, selected explicitly so that it does not depend on a process-wide default.

use crate::client::url::StoreTlsFiles;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// Why TLS for store connections can't be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreTlsError {
    /// A file can't be read, or has the wrong content.
    #[error("cannot read {path} as {what}: {reason}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The expected content.
        what: &'static str,
        /// The error.
        reason: String,
    },
    /// This machine has no trusted root certificates.
    #[error("this machine trusts no certificate authority: name the one of the store with ?ca=FILE")]
    NoRootCertificates,
    /// The certificate and the key don't match, or are of an unsupported kind.
    #[error("the client certificate and key for the store are invalid: {0}")]
    InvalidIdentity(#[source] rustls::Error),
}

/// Creates a TLS connector from the files.
///
/// # Errors
/// If a file can't be read or has the wrong content, or if the certificate and the key don't match.
pub(crate) fn connector(files: &StoreTlsFiles) -> Result<TlsConnector, StoreTlsError> {
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(StoreTlsError::InvalidIdentity)?;
    let config = config.with_root_certificates(root_certificates(files.ca.as_deref())?);
    let config = match &files.identity {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| StoreTlsError::File {
                path: key.clone(),
                what: "a key",
                reason: error.to_string(),
            })?;
            config
                .with_client_auth_cert(read_certificates(cert)?, key)
                .map_err(StoreTlsError::InvalidIdentity)?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// A connector that trusts no certificate: its handshake never completes, but shows whether a server uses TLS at all.
pub(crate) fn untrusting_connector() -> Result<TlsConnector, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn root_certificates(file: Option<&Path>) -> Result<RootCertStore, StoreTlsError> {
    let mut store = RootCertStore::empty();
    match file {
        Some(path) => {
            for certificate in read_certificates(path)? {
                store.add(certificate).map_err(|error| unreadable(path, &error))?;
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
    let certificates = read.map_err(|error| unreadable(path, &error))?;
    if certificates.is_empty() {
        Err(unreadable(path, &io::Error::other("it contains no certificate")))
    } else {
        Ok(certificates)
    }
}

fn unreadable(path: &Path, error: &impl ToString) -> StoreTlsError {
    StoreTlsError::File { path: path.to_owned(), what: "certificates", reason: error.to_string() }
}

//! Whom TLS trusts, and as whom it speaks, read from files.
//!
//! The cryptography is aws-lc-rs, named here, so that nothing depends on a default of the process.

use crate::redis::url::StoreTlsFiles;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// Why TLS to the store can't be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreTlsError {
    /// A file can't be read as what it should be.
    #[error("cannot read {path} as {what}: {reason}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The machine trusts no authority.
    #[error("this machine trusts no authority: name those of the store with ?ca=FILE")]
    NoAuthority,
    /// A certificate and a key don't belong together, or are of a kind that is not known.
    #[error("the certificate and key for the store are of no use: {0}")]
    Refused(#[source] rustls::Error),
}

/// Reads the files into what connections are made with.
///
/// # Errors
/// If a file can't be read, has not in it what it should, or they don't belong together.
pub(in crate::redis) fn connector(files: &StoreTlsFiles) -> Result<TlsConnector, StoreTlsError> {
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(StoreTlsError::Refused)?;
    let config = config.with_root_certificates(authorities(files.ca.as_deref())?);
    let config = match &files.identity {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| StoreTlsError::File {
                path: key.clone(),
                what: "a key",
                reason: error.to_string(),
            })?;
            config.with_client_auth_cert(certificates(cert)?, key).map_err(StoreTlsError::Refused)?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// What starts a handshake that can't succeed, to find out whether a server speaks TLS at all.
pub(super) fn connector_that_trusts_nobody() -> Result<TlsConnector, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn authorities(file: Option<&Path>) -> Result<RootCertStore, StoreTlsError> {
    let mut store = RootCertStore::empty();
    match file {
        Some(path) => {
            for certificate in certificates(path)? {
                store.add(certificate).map_err(|error| unreadable(path, &error))?;
            }
        }
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err(StoreTlsError::NoAuthority);
            }
        }
    }
    Ok(store)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StoreTlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| unreadable(path, &error))?;
    match certificates.is_empty() {
        true => Err(unreadable(path, &io::Error::other("there is none in it"))),
        false => Ok(certificates),
    }
}

fn unreadable(path: &Path, error: &impl ToString) -> StoreTlsError {
    StoreTlsError::File { path: path.to_owned(), what: "certificates", reason: error.to_string() }
}

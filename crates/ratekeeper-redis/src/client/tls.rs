//! TLS for store connections, if the feature `tls` is enabled.

#[cfg(not(feature = "tls"))]
mod disabled;
#[cfg(feature = "tls")]
mod enabled;

#[cfg(not(feature = "tls"))]
pub(super) use disabled::TlsClient;
#[cfg(feature = "tls")]
pub(super) use enabled::TlsClient;

/// Why TLS for store connections can't be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreTlsError {
    /// The crate was built without the feature `tls`.
    #[error(
        "this program was built without TLS for stores: build it with the feature `tls`, or use redis://"
    )]
    Disabled,
    /// A file can't be read, or has the wrong content.
    #[error("cannot read {path} as {what}: {reason}", path = .path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// The expected content.
        what: &'static str,
        /// The error.
        reason: String,
    },
    /// This machine has no trusted root certificates.
    #[error("this machine trusts no certificate authority: name the one of the store with ?ca=FILE")]
    NoRootCertificates,
    /// The certificate and the key don't match, or are of an unsupported kind.
    #[cfg(feature = "tls")]
    #[error("the client certificate and key for the store are invalid: {0}")]
    InvalidIdentity(#[source] tokio_rustls::rustls::Error),
}

//! The place of TLS in a build without it.

use super::StoreTlsError;
use crate::client::url::StoreTlsFiles;
use std::convert::Infallible;
use std::io;
use tokio::net::TcpStream;

/// Would open TLS connections. There is none.
#[derive(Clone)]
pub(in crate::client) struct TlsClient(Infallible);

impl TlsClient {
    /// Returns [`StoreTlsError::Disabled`].
    pub(in crate::client) fn new(_: &StoreTlsFiles) -> Result<TlsClient, StoreTlsError> {
        Err(StoreTlsError::Disabled)
    }

    pub(in crate::client) async fn connect(&self, _: &str, _: TcpStream) -> io::Result<TcpStream> {
        match self.0 {}
    }

    /// Returns `false`: without TLS, it is not known which servers speak it.
    pub(in crate::client) async fn is_spoken_by(_: &str, _: TcpStream) -> io::Result<bool> {
        std::future::ready(Ok(false)).await
    }
}

#[cfg(test)]
mod tests {
    use crate::{RedisError, RedisOptions, RedisStore};
    use ratekeeper::SystemClock;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_tls_url_is_rejected_with_the_remedy() {
        let url = "rediss://localhost".parse().unwrap();
        let connected = RedisStore::connect(&url, &RedisOptions::default(), Arc::new(SystemClock::new()));
        let Err(RedisError::Tls(error)) = connected else { panic!("{connected:?}") };
        assert!(error.to_string().contains("built without TLS"), "{error}");
        assert!(error.to_string().contains("the feature `tls`, or use redis://"), "{error}");
    }
}

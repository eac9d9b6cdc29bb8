//! TLS certificates.

use super::login::connection_error;
use super::{AMPLE_TIMEOUT, connected, take};
use crate::client::url::StoreUrl;
use crate::client::{node::ServerSetOptions, server_set::ServerSet};
use ratekeeper::SystemClock;
use ratekeeper_testkit::servers::{Brand, RedisServer, ServerCertificates};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// PEM files of a CA, and of a server and a client whose certificates it signed.
struct TlsFiles {
    folder: TempDir,
}

impl TlsFiles {
    fn new() -> TlsFiles {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // With the same name as the others, their certificates would look self-signed.
        params.distinguished_name.push(DnType::CommonName, "authority");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
        write("ca.pem", authority.pem());
        let uses = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        for (name, kind) in [("server", uses[0].clone()), ("client", uses[1].clone())] {
            let key = KeyPair::generate().unwrap();
            let mut params =
                CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
            params.extended_key_usages = vec![kind];
            write(&format!("{name}.pem"), params.signed_by(&key, &authority).unwrap().pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
        TlsFiles { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn tls(&self, asks_clients: bool) -> ServerCertificates {
        ServerCertificates {
            ca: self.path("ca.pem"),
            certificate: self.path("server.pem"),
            key: self.path("server.key"),
            requires_client_certificate: asks_clients,
        }
    }
}

/// Redis only: the Valkey that the tests use was built without TLS.
#[tokio::test(flavor = "multi_thread")]
async fn mutual_tls() {
    let files = TlsFiles::new();
    let [ca, cert, key] =
        ["ca.pem", "client.pem", "client.key"].map(|name| files.path(name).display().to_string());
    let server = RedisServer::setup(Brand::Redis).tls(&files.tls(true)).password("s3cret").start();
    let url = |query: String| format!("rediss://:s3cret@{}?{query}", server.tls_address());
    let server_set = connected(&url(format!("ca={ca}&cert={cert}&key={key}"))).await;
    assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Ok(1));
    // Without the client certificate, with the wrong CA, and without TLS.
    connection_error(&url(format!("ca={ca}"))).await;
    let error = connection_error(&url(format!("ca={cert}&cert={cert}&key={key}"))).await;
    assert!(error.contains("TLS"), "{error}");
    let error = connection_error(&format!("redis://:s3cret@{}", server.tls_address())).await;
    assert!(
        error.contains("the server expects TLS on this port: write rediss:// instead of redis://"),
        "{error}"
    );
    let error = connection_error(&format!("rediss://:s3cret@{}?ca={ca}", server.address())).await;
    assert!(error.contains("write redis:// instead of rediss://") && !error.contains("s3cret"), "{error}");
}

#[test]
fn errors_name_unusable_tls_files() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let connect_error = |query: String| {
        let StoreUrl::Redis(url) = format!("rediss://h?{query}").parse().unwrap() else { unreachable!() };
        ServerSet::connect(&url, ServerSetOptions::new("", Arc::new(SystemClock::new())))
            .unwrap_err()
            .to_string()
    };
    let files = TlsFiles::new();
    let show = |path: &Path| path.display().to_string();
    let (key, cert) = (show(&files.path("server.key")), show(&files.path("client.pem")));
    assert!(connect_error("ca=/nowhere/ca.pem".into()).contains("/nowhere/ca.pem"));
    assert!(connect_error(format!("ca={key}")).contains("it contains no certificate"));
    let error = connect_error(format!("ca={cert}&cert={cert}&key={key}"));
    assert!(error.contains("certificate and key"), "{error}");
}

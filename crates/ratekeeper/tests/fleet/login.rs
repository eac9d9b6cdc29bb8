//! Passwords, users and certificates.

use super::{AMPLE, connect, connected, only, take};
use ratekeeper::redis::{ServerSet, ServerSetOptions, StoreUrl};
use ratekeeper_testkit::servers::{Brand, RedisServer, ServerCertificates};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// All that a user has to be allowed.
const RULES: &str = "on >s3cret/@ resetkeys ~* resetchannels -@all +evalsha +script|load +incrby +time +role \
                     +client|setname +info";

/// The files of an authority, of a server that it vouches for, and of a client.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Files {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // With the name that the others have, they would be taken to have signed themselves.
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
        Files { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn tls(&self, asks_clients: bool) -> ServerCertificates {
        ServerCertificates {
            authority: self.path("ca.pem"),
            certificate: self.path("server.pem"),
            key: self.path("server.key"),
            asks_clients,
        }
    }
}

async fn trouble(url: &str) -> String {
    let fleet = connect(url);
    assert!(!fleet.ready(AMPLE).await, "{url}");
    only(&fleet).trouble().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_needs_few_rights() {
    for brand in Brand::ALL {
        let server = RedisServer::setup(brand).user("default", "off").user("gate", RULES).start();
        let fleet = connected(&format!("redis://gate:s3cret%2F%40@{}", server.address())).await;
        assert_eq!(take(&fleet, "a", AMPLE).await, Ok(1));
        let said = trouble(&format!("redis://gate:wr0ng@{}", server.address())).await;
        assert!(said.contains("does not accept the user gate") && !said.contains("wr0ng"), "{said}");
    }
}

/// With Redis alone: the Valkey that tests have was built without TLS.
#[tokio::test(flavor = "multi_thread")]
async fn both_sides_show_their_certificates() {
    let files = Files::new();
    let [ca, cert, key] =
        ["ca.pem", "client.pem", "client.key"].map(|name| files.path(name).display().to_string());
    let server = RedisServer::setup(Brand::Redis).tls(&files.tls(true)).password("s3cret").start();
    let url = |query: String| format!("rediss://:s3cret@{}?{query}", server.tls_address());
    let fleet = connected(&url(format!("ca={ca}&cert={cert}&key={key}"))).await;
    assert_eq!(take(&fleet, "a", AMPLE).await, Ok(1));
    // Without the client's certificate, without the right authority, without TLS.
    trouble(&url(format!("ca={ca}"))).await;
    let said = trouble(&url(format!("ca={cert}&cert={cert}&key={key}"))).await;
    assert!(said.contains("TLS"), "{said}");
    let said = trouble(&format!("redis://:s3cret@{}", server.tls_address())).await;
    assert!(said.contains("it speaks TLS on this port: write rediss:// instead of redis://"), "{said}");
    let said = trouble(&format!("rediss://:s3cret@{}?ca={ca}", server.address())).await;
    assert!(said.contains("write redis:// instead of rediss://") && !said.contains("s3cret"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_alone_is_the_default_users() {
    let server = RedisServer::setup(Brand::Redis).password("s3cret").start();
    let fleet = connected(&server.url()).await;
    assert_eq!(take(&fleet, "a", AMPLE).await, Ok(1));
    let said = trouble(&format!("redis://{}", server.address())).await;
    assert!(said.contains("NOAUTH") || said.contains("uthentication"), "{said}");
}

#[test]
fn files_that_are_of_no_use_are_named() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let refuse = |query: String| {
        let StoreUrl::Redis(url) = format!("rediss://h?{query}").parse().unwrap() else { unreachable!() };
        ServerSet::connect(&url, ServerSetOptions::new("")).unwrap_err().to_string()
    };
    let files = Files::new();
    let show = |path: &Path| path.display().to_string();
    let (key, cert) = (show(&files.path("server.key")), show(&files.path("client.pem")));
    assert!(refuse("ca=/nowhere/ca.pem".into()).contains("/nowhere/ca.pem"));
    assert!(refuse(format!("ca={key}")).contains("there is none in it"));
    let said = refuse(format!("ca={cert}&cert={cert}&key={key}"));
    assert!(said.contains("certificate and key"), "{said}");
}

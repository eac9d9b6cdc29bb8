//! TLS from both ends: certificates made on the spot, handshakes in memory.

use super::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::ServerName;
use std::error::Error as _;
use std::fs;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_rustls::{TlsConnector, client};

/// An authority of the test's own.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for `localhost` or for a client, and its key.
    fn sign(&self) -> (String, String) {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    fn write_pair(&self, folder: &TempDir, name: &str) -> (PathBuf, PathBuf) {
        let (cert, key) = self.sign();
        (write(folder, &format!("{name}.crt"), &cert), write(folder, &format!("{name}.key"), &key))
    }
}

fn write(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    path
}

/// A folder in which `ca` has signed `server.crt` with `server.key`.
fn server(ca: &Authority) -> (TempDir, ListenerTlsFiles) {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "ca.crt", &ca.pem);
    let (cert, key) = ca.write_pair(&folder, "server");
    (folder, ListenerTlsFiles { cert, key, client_ca: None })
}

/// A client that trusts the authority in a file and shows a certificate, perhaps.
fn client(ca: &Path, identity: Option<&(PathBuf, PathBuf)>) -> TlsConnector {
    let identity = identity.map(|(cert, key)| (cert.as_path(), key.as_path()));
    let mut config = client_config(authorities(ca).unwrap(), identity).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

type Pair = (io::Result<TlsStream<DuplexStream>>, io::Result<client::TlsStream<DuplexStream>>);

async fn shake_hands(tls: &ListenerTls, connector: &TlsConnector) -> Pair {
    let (near, far) = duplex(64 * 1024);
    let name = ServerName::try_from("localhost").unwrap();
    tokio::join!(tls.accept(near), connector.connect(name, far))
}

/// Shakes hands and sends a word each way.
async fn talk(
    tls: &ListenerTls,
    connector: &TlsConnector,
) -> (TlsStream<DuplexStream>, client::TlsStream<DuplexStream>) {
    let (server, client) = shake_hands(tls, connector).await;
    let (mut server, mut client) = (server.unwrap(), client.unwrap());
    echo(&mut server, &mut client).await;
    (server, client)
}

async fn echo(server: &mut TlsStream<DuplexStream>, client: &mut client::TlsStream<DuplexStream>) {
    let mut heard = [0; 5];
    client.write_all(b"hello").await.unwrap();
    server.read_exact(&mut heard).await.unwrap();
    server.write_all(&heard).await.unwrap();
    client.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"hello");
}

/// The certificate that the server showed.
fn shown(client: &client::TlsStream<DuplexStream>) -> Vec<u8> {
    client.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

#[tokio::test]
async fn a_client_that_trusts_the_authority_is_let_in_and_speaks_http_2() {
    let ca = Authority::new("servers");
    let (folder, files) = server(&ca);
    let tls = ListenerTls::load(&files).unwrap();
    assert_eq!(tls.files().collect::<Vec<_>>(), [&files.cert, &files.key]);
    let (server, client) = talk(&tls, &client(&folder.path().join("ca.crt"), None)).await;
    assert_eq!(server.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(client.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
}

#[tokio::test]
async fn a_client_that_trusts_another_authority_stays_out() {
    let (_folder, files) = server(&Authority::new("servers"));
    let other = tempfile::tempdir().unwrap();
    let other_ca = write(&other, "ca.crt", &Authority::new("others").pem);
    let (server, client) = shake_hands(&ListenerTls::load(&files).unwrap(), &client(&other_ca, None)).await;
    assert!(server.is_err());
    assert!(client.unwrap_err().to_string().contains("UnknownIssuer"));
}

#[tokio::test]
async fn a_reload_is_for_new_connections_and_leaves_old_ones_alone() {
    let ca = Authority::new("servers");
    let (folder, files) = server(&ca);
    let tls = ListenerTls::load(&files).unwrap();
    let connector = client(&folder.path().join("ca.crt"), None);
    let (mut old_server, mut old) = talk(&tls, &connector).await;
    ca.write_pair(&folder, "server");
    let (_server, before) = talk(&tls, &connector).await;
    assert_eq!(shown(&before), shown(&old), "files that nobody has read again change nothing");
    tls.clone().reload().unwrap();
    let (_server, new) = talk(&tls, &connector).await;
    assert_ne!(shown(&new), shown(&old));
    echo(&mut old_server, &mut old).await;
}

#[tokio::test]
async fn a_reload_that_fails_changes_nothing() {
    let ca = Authority::new("servers");
    let (folder, files) = server(&ca);
    let tls = ListenerTls::load(&files).unwrap();
    let connector = client(&folder.path().join("ca.crt"), None);
    let (_server, before) = talk(&tls, &connector).await;
    // Renewed by halves: the certificate is there, its key is not yet.
    let (cert, key) = ca.sign();
    write(&folder, "server.crt", &cert);
    assert!(matches!(tls.reload(), Err(TlsError::Mismatch { .. })));
    let (_server, after) = talk(&tls, &connector).await;
    assert_eq!(shown(&after), shown(&before));
    write(&folder, "server.key", &key);
    tls.reload().unwrap();
    let (_server, renewed) = talk(&tls, &connector).await;
    assert_ne!(shown(&renewed), shown(&before));
}

/// Under TLS 1.3 the client is done before the server has seen its certificate, and learns of a refusal as it reads.
async fn is_refused(tls: &ListenerTls, connector: &TlsConnector) -> bool {
    let (server, client) = shake_hands(tls, connector).await;
    let Err(_) = server else { return false };
    let heard = match client {
        Ok(mut client) => client.read(&mut [0]).await,
        Err(error) => Err(error),
    };
    heard.expect_err("the client is told");
    true
}

#[tokio::test]
async fn where_clients_need_a_certificate_only_those_of_the_right_authority_are_let_in() {
    let (ca, clients, others) =
        (Authority::new("servers"), Authority::new("clients"), Authority::new("others"));
    let (folder, mut files) = server(&ca);
    let client_ca = write(&folder, "clients.crt", &clients.pem);
    files.client_ca = Some(client_ca);
    let tls = ListenerTls::load(&files).unwrap();
    assert_eq!(tls.files().count(), 3);
    let trusted = folder.path().join("ca.crt");
    let (known, unknown) = (clients.write_pair(&folder, "known"), others.write_pair(&folder, "unknown"));
    talk(&tls, &client(&trusted, Some(&known))).await;
    assert!(is_refused(&tls, &client(&trusted, None)).await);
    assert!(is_refused(&tls, &client(&trusted, Some(&unknown))).await);
    // The authorities are reloaded with the rest, also for a client that could resume its session.
    let returning = client(&trusted, Some(&known));
    talk(&tls, &returning).await;
    write(&folder, "clients.crt", &others.pem);
    tls.reload().unwrap();
    assert!(is_refused(&tls, &returning).await);
    talk(&tls, &client(&trusted, Some(&unknown))).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_given_up_on() {
    let (_folder, files) = server(&Authority::new("servers"));
    let tls = ListenerTls::load(&files).unwrap();
    let (near, _far) = duplex(1024);
    let begun = tokio::time::Instant::now();
    let error = tls.accept(near).await.unwrap_err();
    assert_eq!((error.kind(), begun.elapsed()), (io::ErrorKind::TimedOut, HANDSHAKE));
}

#[tokio::test]
async fn a_client_that_speaks_something_else_is_an_error() {
    let (_folder, files) = server(&Authority::new("servers"));
    let tls = ListenerTls::load(&files).unwrap();
    let (near, mut far) = duplex(1024);
    far.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert_eq!(tls.accept(near).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
}

/// Changes one of the files, and gives what is said of it then.
#[track_caller]
fn refused(change: impl FnOnce(&TempDir, &mut ListenerTlsFiles), said: &str) {
    let ca = Authority::new("servers");
    let (folder, mut files) = server(&ca);
    change(&folder, &mut files);
    let error = ListenerTls::load(&files).unwrap_err();
    let shown = match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    let shown = shown.replace(&format!("{}/", folder.path().display()), "");
    assert!(shown.starts_with(said), "{shown:?} does not begin with {said:?}");
}

#[test]
fn files_that_cannot_be_used_are_named_with_what_is_wrong() {
    refused(|_, files| files.cert = "no/such.crt".into(), "cannot read no/such.crt: No such file");
    refused(|_, files| files.key = "no/such.key".into(), "cannot read no/such.key: No such file");
    refused(|_, files| files.client_ca = Some("no/ca.crt".into()), "cannot read no/ca.crt: No such file");
    refused(
        |folder, _| drop(write(folder, "server.crt", "hello")),
        "there is no certificate in server.crt: it needs a block that begins with -----BEGIN CERTIFICATE-----",
    );
    refused(|_, files| files.cert.clone_from(&files.key), "there is no certificate in server.key: it");
    refused(|_, files| files.key.clone_from(&files.cert), "there is no private key in server.crt: it needs");
    let cut = "-----BEGIN CERTIFICATE-----\nMIIB\n";
    refused(
        |folder, _| drop(write(folder, "server.crt", cut)),
        "server.crt is broken: write it anew, as PEM: ",
    );
    let block = |kind: &str| format!("-----BEGIN {kind}-----\nMAAA\n-----END {kind}-----\n");
    refused(
        |folder, _| drop(write(folder, "server.key", &block("PRIVATE KEY"))),
        "the private key in server.key can't be used: use",
    );
    refused(
        |folder, _| drop(write(folder, "server.crt", &block("CERTIFICATE"))),
        "the certificate in server.crt can't be used: ",
    );
    refused(
        |folder, _| drop(write(folder, "server.key", &block("ENCRYPTED PRIVATE KEY"))),
        "there is no private key in server.key: it needs a block",
    );
    refused(
        |folder, files| files.client_ca = Some(write(folder, "clients.crt", &block("CERTIFICATE"))),
        "a certificate in clients.crt can't be trusted to sign others: ",
    );
    refused(
        |folder, _| drop(write(folder, "server.key", &Authority::new("servers").sign().1)),
        "the key in server.key is not that of the first certificate in server.crt: name the pair",
    );
    refused(
        |folder, files| {
            let chain = fs::read_to_string(folder.path().join("ca.crt")).unwrap()
                + &fs::read_to_string(&files.cert).unwrap();
            write(folder, "server.crt", &chain);
        },
        "the key in server.key is not that of the first certificate in server.crt: name the pair",
    );
    refused(
        |folder, _| drop(write(folder, "server.crt", &"x".repeat(2 << 20))),
        "cannot read server.crt: it has more than 1048576 bytes",
    );
}

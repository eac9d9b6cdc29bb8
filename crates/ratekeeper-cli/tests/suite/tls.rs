//! TLS of the real binary: on all listeners, with client certificates, and through a certificate renewal.

use crate::support::{Certificates, Client, Http2, Server, TIMEOUT, ratekeeper, request, run, within};
use ratekeeper_server::tls;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

const ALICE: &str = r#"{"client_key":"alice"}"#;

type TlsClientStream = StreamOwned<ClientConnection, TcpStream>;

/// Starts a server with a certificate of this authority.
fn serve(certificates: &Certificates, arguments: &[&str]) -> Server {
    let [cert, key] = ["server.crt", "server.key"].map(|name| certificates.path(name));
    // So slow that no unit is refilled during a test.
    Server::with(
        "default: {limit: 100/day}",
        &[&["--tls-cert", &cert, "--tls-key", &key], arguments].concat(),
    )
}

/// A client configuration that trusts this authority and presents the `identity` certificate, if any.
fn client_config(certificates: &Certificates, identity: Option<&str>) -> ClientConfig {
    let authorities = tls::authorities(Path::new(&certificates.path("ca.crt"))).unwrap();
    let files = identity.map(|name| ["crt", "key"].map(|kind| certificates.path(&format!("{name}.{kind}"))));
    let files = files.as_ref().map(|[cert, key]| (Path::new(cert), Path::new(key)));
    tls::client_config(authorities, files).unwrap()
}

fn server_name() -> ServerName<'static> {
    ServerName::try_from("127.0.0.1").unwrap()
}

/// Completes the handshake. Under TLS 1.3 a rejected client learns of it only when it reads.
fn tls_connect(address: &str, config: ClientConfig) -> TlsClientStream {
    let connection = ClientConnection::new(Arc::new(config), server_name()).unwrap();
    let mut stream = StreamOwned::new(connection, crate::support::socket(address));
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).unwrap();
    }
    stream
}

/// The certificate that the server presents to new connections.
fn presented_certificate(server: &Server, certificates: &Certificates) -> CertificateDer<'static> {
    let stream = tls_connect(&server.address, client_config(certificates, None));
    stream.conn.peer_certificates().unwrap()[0].clone()
}

#[test]
fn http_and_admin_listeners_support_tls_with_both_http_versions() {
    let certificates = Certificates::new();
    let server = serve(&certificates, &[]);
    let Server { address, admin_address: admin, token, .. } = &server;
    let lines: Vec<_> = server.banner.lines().collect();
    assert!(lines[0].ends_with(&format!("listening on https://{address}")), "{}", server.banner);
    assert!(lines[3].starts_with(&format!("admin: https://{admin} (/metrics,")), "{}", server.banner);
    let mut client = Client::over(tls_connect(address, client_config(&certificates, None)));
    assert_eq!(client.check(ALICE).number("remaining"), 99);
    assert_eq!(client.check(ALICE).number("remaining"), 98);

    let mut config = client_config(&certificates, None);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut http2 = Http2::over(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(server_name(), stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        stream
    });
    assert_eq!(http2.request("POST", "/check", &[], ALICE).number("remaining"), 97);

    let mut client = Client::over(tls_connect(admin, client_config(&certificates, None)));
    assert_eq!(client.get("/readyz").status, 200);
    assert_eq!(client.get("/metrics").status, 401);
    assert_eq!(
        client.request("GET", "/metrics", &[("Authorization", &format!("Bearer {token}"))], "").status,
        200
    );
}

#[test]
fn tls_can_be_limited_to_one_listener() {
    let certificates = Certificates::new();
    let server = serve(&certificates, &["--tls-on", "http"]);
    assert!(server.banner.contains(&format!("admin: http://{} ", server.admin_address)), "{}", server.banner);
    assert_eq!(server.connect_admin().get("/livez").status, 200);
    assert_eq!(
        Client::over(tls_connect(&server.address, client_config(&certificates, None))).get("/livez").status,
        200
    );
    let server = serve(&certificates, &["--tls-on", "admin"]);
    assert_eq!(server.connect().get("/livez").status, 200);
    assert_eq!(
        Client::over(tls_connect(&server.admin_address, client_config(&certificates, None)))
            .get("/livez")
            .status,
        200
    );
}

/// Sends a request and returns whether it was answered.
fn is_answered(stream: &mut TlsClientStream) -> bool {
    let sent = stream.write_all(&request("GET", "/livez", &[], "")).and_then(|()| stream.flush());
    let mut first = [0];
    match sent.and_then(|()| stream.read(&mut first)) {
        Ok(read) => read == 1,
        // The server sends an alert, but a reset may overtake it if the request arrives too late.
        Err(error) => {
            let kinds = [
                ErrorKind::InvalidData,
                ErrorKind::ConnectionReset,
                ErrorKind::BrokenPipe,
                ErrorKind::UnexpectedEof,
            ];
            assert!(kinds.contains(&error.kind()), "{error}");
            false
        }
    }
}

#[test]
fn clients_without_a_valid_certificate_are_rejected() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let server = serve(&certificates, &["--tls-client-ca", &certificates.path("ca.crt")]);
    // A client that trusts the server, but whose certificate another authority has signed.
    let forged = {
        let authorities = tls::authorities(Path::new(&certificates.path("ca.crt"))).unwrap();
        let [cert, key] = ["client.crt", "client.key"].map(|name| others.path(name));
        tls::client_config(authorities, Some((Path::new(&cert), Path::new(&key)))).unwrap()
    };
    for address in [&server.address, &server.admin_address] {
        let answered = |config: ClientConfig| is_answered(&mut tls_connect(address, config));
        assert!(!answered(client_config(&certificates, None)));
        assert!(!answered(forged.clone()));
        assert!(answered(client_config(&certificates, Some("client"))));
    }
}

#[test]
fn a_renewed_certificate_is_used_for_new_connections_while_old_ones_stay_open() {
    let certificates = Certificates::new();
    let server = serve(&certificates, &[]);
    let old = presented_certificate(&server, &certificates);
    let mut client = Client::over(tls_connect(&server.address, client_config(&certificates, None)));
    assert_eq!(client.check(ALICE).number("remaining"), 99);
    certificates.sign("server", 7);
    within(TIMEOUT, "the certificate is renewed", || {
        (presented_certificate(&server, &certificates) != old).then_some(())
    });
    assert_eq!(client.check(ALICE).number("remaining"), 98);

    // An invalid key file changes nothing and is logged.
    let new = presented_certificate(&server, &certificates);
    fs::write(certificates.path("server.key"), "no key").unwrap();
    within(TIMEOUT, "the failed reload is logged", || {
        server.log().contains("certificate reload failed, keeping the previous certificates").then_some(())
    });
    assert_eq!(presented_certificate(&server, &certificates), new);
    certificates.sign("server", 8);
    within(TIMEOUT, "the valid certificate is used", || {
        (presented_certificate(&server, &certificates) != new).then_some(())
    });
    assert_eq!(client.check(ALICE).number("remaining"), 97);
}

#[test]
fn a_signal_reloads_the_certificates() {
    let certificates = Certificates::new();
    let server = serve(&certificates, &[]);
    server.signal("HUP");
    let reloaded = "certificates reloaded; new connections use them";
    within(TIMEOUT, "the certificates are reloaded", || server.log().contains(reloaded).then_some(()));
    assert_eq!(server.log().matches(reloaded).count(), 1, "the listeners share the certificates");
}

#[test]
fn the_check_command_supports_tls() {
    let certificates = Certificates::new();
    let server = serve(&certificates, &["--tls-client-ca", &certificates.path("ca.crt")]);
    let [ca, cert, key] = ["ca.crt", "client.crt", "client.key"].map(|name| certificates.path(name));
    let url = format!("https://{}", server.address);
    let check =
        |url: &str, arguments: &[&str]| run(ratekeeper(&["check", "alice", "--server", url]).args(arguments));
    let known = ["--ca", &ca, "--cert", &cert, "--key", &key];
    let answer = check(&url, &known);
    assert_eq!((answer.code, answer.stderr.as_str()), (Some(0), ""));
    assert!(answer.stdout.starts_with("allowed: alice, 99 remaining"), "{answer:?}");
    let denied = check(&url, &[&known[..], &["--cost", "100"]].concat());
    assert_eq!(denied.code, Some(1), "{denied:?}");
    let no_response = format!(
        "no response from {url}: if the server requires a client certificate, pass one with --cert and --key"
    );
    for (arguments, expected) in [
        (&["--ca", &ca][..], no_response.as_str()),
        (&["--ca", &cert, "--cert", &cert, "--key", &key], "TLS handshake with"),
    ] {
        let answer = check(&url, arguments);
        assert!(answer.code == Some(2) && answer.stderr.contains(expected), "{answer:?}");
    }
    let plain = check(&format!("http://{}", server.address), &[]);
    assert!(
        plain.code == Some(2) && plain.stderr.contains("if the server uses TLS, write https://"),
        "{plain:?}"
    );
}

#[test]
fn a_client_without_tls_is_disconnected_and_does_no_harm() {
    let certificates = Certificates::new();
    let server = serve(&certificates, &[]);
    let noise: [&[u8]; 4] = [
        b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\0",
        &[0x16, 3, 1, 0xff, 0xff, 1],
    ];
    for (bytes, address) in
        noise.iter().flat_map(|bytes| [(bytes, &server.address), (bytes, &server.admin_address)])
    {
        let mut stream = crate::support::socket(address);
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // At most an alert arrives before the connection closes.
        let mut received = Vec::new();
        let ended = stream.read_to_end(&mut received);
        assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
        assert!(received.len() <= 7 && received.first().is_none_or(|kind| *kind == 0x15), "{received:?}");
    }
    assert_eq!(
        Client::over(tls_connect(&server.address, client_config(&certificates, None))).get("/livez").status,
        200
    );
}

#[expect(clippy::disallowed_methods, reason = "the test measures elapsed time")]
#[test]
fn an_unfinished_handshake_does_not_delay_shutdown() {
    let certificates = Certificates::new();
    let mut server = serve(&certificates, &[]);
    let (silent, idle) = (
        crate::support::socket(&server.address),
        tls_connect(&server.address, client_config(&certificates, None)),
    );
    within(TIMEOUT, "both connections are accepted", || {
        let mut client = Client::over(tls_connect(&server.admin_address, client_config(&certificates, None)));
        let bearer = format!("Bearer {}", server.token);
        let metrics = client.request("GET", "/metrics", &[("Authorization", &bearer)], "");
        metrics.body.contains("ratekeeper_connections{listener=\"http\"} 2\n").then_some(())
    });
    let begun = Instant::now();
    server.terminate();
    assert_eq!(server.exit_code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(8), "the stop took {:?}", begun.elapsed());
    drop((silent, idle));
}

#[test]
fn unusable_tls_files_are_reported_at_start() {
    let certificates = Certificates::new();
    let path = |name: &str| certificates.path(name);
    fs::write(path("empty"), "").unwrap();
    let failure = |arguments: &[&str]| crate::support::failure(arguments);
    let error = failure(&["--tls-cert", &path("none.crt"), "--tls-key", &path("server.key")]);
    assert!(error.starts_with(&format!("error: cannot read {}: No such file", path("none.crt"))), "{error}");
    let error = failure(&["--tls-cert", &path("empty"), "--tls-key", &path("server.key")]);
    assert!(error.starts_with(&format!("error: there is no certificate in {}", path("empty"))), "{error}");
    let error = failure(&["--tls-cert", &path("server.crt"), "--tls-key", &path("client.key")]);
    assert!(error.contains("does not belong to the first certificate in"), "{error}");
    let error = failure(&["--tls-cert", &path("server.crt")]);
    assert!(error.starts_with("error: tls_cert requires tls_key: add the key of the certificate"), "{error}");
    let error = failure(&["--tls-client-ca", &path("ca.crt")]);
    assert!(error.starts_with("error: this setting requires TLS: add tls_cert and tls_key"), "{error}");
}

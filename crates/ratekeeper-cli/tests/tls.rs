//! TLS from outside: on both ports, for those who show a certificate, and through a renewal.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

mod support;

use ratekeeper_server::tls;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Certificates, Client, Http2, PATIENCE, Server, ratekeeper, request, told, within};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

const ALICE: &str = r#"{"client_key":"alice"}"#;

type Encrypted = StreamOwned<ClientConnection, TcpStream>;

/// A server with the certificate of this authority.
fn serve(certificates: &Certificates, arguments: &[&str]) -> Server {
    let [cert, key] = ["server.crt", "server.key"].map(|name| certificates.path(name));
    // So slow that no test lives to see a unit come back.
    Server::with(
        "default: {limit: 100/day}",
        &[&["--tls-cert", &cert, "--tls-key", &key], arguments].concat(),
    )
}

/// How a client trusts this authority, and which certificate it shows.
fn trust(certificates: &Certificates, identity: Option<&str>) -> ClientConfig {
    let authorities = tls::authorities(Path::new(&certificates.path("ca.crt"))).unwrap();
    let files = identity.map(|name| ["crt", "key"].map(|kind| certificates.path(&format!("{name}.{kind}"))));
    let files = files.as_ref().map(|[cert, key]| (Path::new(cert), Path::new(key)));
    tls::client_config(authorities, files).unwrap()
}

fn name() -> ServerName<'static> {
    ServerName::try_from("127.0.0.1").unwrap()
}

/// Shakes hands. Under TLS 1.3 a client that is refused hears of it only when it reads.
fn encrypt(address: &str, config: ClientConfig) -> Encrypted {
    let connection = ClientConnection::new(Arc::new(config), name()).unwrap();
    let mut stream = StreamOwned::new(connection, support::socket(address));
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).unwrap();
    }
    stream
}

/// The certificate that the server shows to newcomers.
fn shown(server: &Server, certificates: &Certificates) -> CertificateDer<'static> {
    let stream = encrypt(&server.address, trust(certificates, None));
    stream.conn.peer_certificates().unwrap()[0].clone()
}

#[test]
fn both_ports_speak_tls_in_either_version_of_http() {
    let certificates = Certificates::new();
    let server = serve(&certificates, &[]);
    let Server { address, admin_address: admin, token, .. } = &server;
    let lines: Vec<_> = server.greeting.lines().collect();
    assert!(lines[0].ends_with(&format!("listens on https://{address}")), "{}", server.greeting);
    assert!(lines[3].starts_with(&format!("admin: https://{admin} (/metrics,")), "{}", server.greeting);
    let mut client = Client::over(encrypt(address, trust(&certificates, None)));
    assert_eq!(client.check(ALICE).number("remaining"), 99);
    assert_eq!(client.check(ALICE).number("remaining"), 98);

    let mut config = trust(&certificates, None);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut http2 = Http2::over(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name(), stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        stream
    });
    assert_eq!(http2.ask("POST", "/check", &[], ALICE).number("remaining"), 97);

    let mut client = Client::over(encrypt(admin, trust(&certificates, None)));
    assert_eq!(client.get("/readyz").status, 200);
    assert_eq!(client.get("/metrics").status, 401);
    assert_eq!(
        client.ask("GET", "/metrics", &[("Authorization", &format!("Bearer {token}"))], "").status,
        200
    );
}

#[test]
fn tls_can_be_on_one_port_alone() {
    let certificates = Certificates::new();
    let server = serve(&certificates, &["--tls-on", "http"]);
    assert!(
        server.greeting.contains(&format!("admin: http://{} ", server.admin_address)),
        "{}",
        server.greeting
    );
    assert_eq!(server.connect_admin().get("/livez").status, 200);
    assert_eq!(Client::over(encrypt(&server.address, trust(&certificates, None))).get("/livez").status, 200);
    let server = serve(&certificates, &["--tls-on", "admin"]);
    assert_eq!(server.connect().get("/livez").status, 200);
    assert_eq!(
        Client::over(encrypt(&server.admin_address, trust(&certificates, None))).get("/livez").status,
        200
    );
}

/// Sends a request and says whether there was an answer.
fn is_answered(stream: &mut Encrypted) -> bool {
    let sent = stream.write_all(&request("GET", "/livez", &[], "")).and_then(|()| stream.flush());
    let mut first = [0];
    match sent.and_then(|()| stream.read(&mut first)) {
        Ok(read) => read == 1,
        // An alert says what was amiss; a reset overtakes it where the request came too late.
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
fn strangers_are_refused_where_clients_show_a_certificate() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let server = serve(&certificates, &["--tls-client-ca", &certificates.path("ca.crt")]);
    // One that trusts the server and shows what another authority has signed.
    let forged = {
        let authorities = tls::authorities(Path::new(&certificates.path("ca.crt"))).unwrap();
        let [cert, key] = ["client.crt", "client.key"].map(|name| others.path(name));
        tls::client_config(authorities, Some((Path::new(&cert), Path::new(&key)))).unwrap()
    };
    for address in [&server.address, &server.admin_address] {
        let answered = |config: ClientConfig| is_answered(&mut encrypt(address, config));
        assert!(!answered(trust(&certificates, None)));
        assert!(!answered(forged.clone()));
        assert!(answered(trust(&certificates, Some("client"))));
    }
}

#[test]
fn a_renewed_certificate_is_shown_to_newcomers_while_old_connections_live() {
    let certificates = Certificates::new();
    let server = serve(&certificates, &[]);
    let old = shown(&server, &certificates);
    let mut client = Client::over(encrypt(&server.address, trust(&certificates, None)));
    assert_eq!(client.check(ALICE).number("remaining"), 99);
    certificates.sign("server", 7);
    within(PATIENCE, "the certificate is renewed", || (shown(&server, &certificates) != old).then_some(()));
    assert_eq!(client.check(ALICE).number("remaining"), 98);

    // One that can't be used changes nothing, and is told of.
    let new = shown(&server, &certificates);
    fs::write(certificates.path("server.key"), "no key").unwrap();
    within(PATIENCE, "it is told of", || {
        server.log().contains("the certificates stay as they were").then_some(())
    });
    assert_eq!(shown(&server, &certificates), new);
    certificates.sign("server", 8);
    within(PATIENCE, "it is mended", || (shown(&server, &certificates) != new).then_some(()));
    assert_eq!(client.check(ALICE).number("remaining"), 97);
}

#[test]
fn a_signal_has_the_certificates_read_again() {
    let certificates = Certificates::new();
    let server = serve(&certificates, &[]);
    server.signal("HUP");
    let read_again = "the certificates were read again: new connections have them";
    within(PATIENCE, "they are read again", || server.log().contains(read_again).then_some(()));
    assert_eq!(server.log().matches(read_again).count(), 1, "two ports share them");
}

#[test]
fn check_asks_over_tls() {
    let certificates = Certificates::new();
    let server = serve(&certificates, &["--tls-client-ca", &certificates.path("ca.crt")]);
    let [ca, cert, key] = ["ca.crt", "client.crt", "client.key"].map(|name| certificates.path(name));
    let url = format!("https://{}", server.address);
    let check = |url: &str, arguments: &[&str]| {
        told(ratekeeper(&["check", "alice", "--server", url]).args(arguments))
    };
    let known = ["--ca", &ca, "--cert", &cert, "--key", &key];
    let answer = check(&url, &known);
    assert_eq!((answer.code, answer.stderr.as_str()), (Some(0), ""));
    assert!(answer.stdout.starts_with("allowed: alice may go on, 99 left"), "{answer:?}");
    let denied = check(&url, &[&known[..], &["--cost", "100"]].concat());
    assert_eq!(denied.code, Some(1), "{denied:?}");
    for (arguments, said) in [
        (
            &["--ca", &ca][..],
            "gave no answer: does it ask for a certificate? Then name one with --cert and --key",
        ),
        (&["--ca", &cert, "--cert", &cert, "--key", &key], "cannot speak TLS with"),
    ] {
        let answer = check(&url, arguments);
        assert!(answer.code == Some(2) && answer.stderr.contains(said), "{answer:?}");
    }
    let plain = check(&format!("http://{}", server.address), &[]);
    assert!(
        plain.code == Some(2) && plain.stderr.contains("does the server speak TLS? Then write https://"),
        "{plain:?}"
    );
}

#[test]
fn who_does_not_speak_tls_is_shown_out_and_harms_nobody() {
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
        let mut stream = support::socket(address);
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // At most an alert comes back, and then the end.
        let mut heard = Vec::new();
        let ended = stream.read_to_end(&mut heard);
        assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
        assert!(heard.len() <= 7 && heard.first().is_none_or(|kind| *kind == 0x15), "{heard:?}");
    }
    assert_eq!(Client::over(encrypt(&server.address, trust(&certificates, None))).get("/livez").status, 200);
}

#[expect(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
#[test]
fn a_handshake_that_never_ends_does_not_hold_up_a_stop() {
    let certificates = Certificates::new();
    let mut server = serve(&certificates, &[]);
    let (silent, idle) =
        (support::socket(&server.address), encrypt(&server.address, trust(&certificates, None)));
    within(PATIENCE, "both are let in", || {
        let mut client = Client::over(encrypt(&server.admin_address, trust(&certificates, None)));
        let bearer = format!("Bearer {}", server.token);
        let metrics = client.ask("GET", "/metrics", &[("Authorization", &bearer)], "");
        metrics.body.contains("ratekeeper_connections{listener=\"http\"} 2\n").then_some(())
    });
    let begun = Instant::now();
    server.terminate();
    assert_eq!(server.exit_code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(8), "it waited {:?}", begun.elapsed());
    drop((silent, idle));
}

#[test]
fn files_that_cannot_be_used_are_told_of_before_anything_is_served() {
    let certificates = Certificates::new();
    let path = |name: &str| certificates.path(name);
    fs::write(path("empty"), "").unwrap();
    let said = |arguments: &[&str]| support::failure(arguments);
    let refused = said(&["--tls-cert", &path("none.crt"), "--tls-key", &path("server.key")]);
    assert!(
        refused.starts_with(&format!("error: cannot read {}: No such file", path("none.crt"))),
        "{refused}"
    );
    let refused = said(&["--tls-cert", &path("empty"), "--tls-key", &path("server.key")]);
    assert!(
        refused.starts_with(&format!("error: there is no certificate in {}", path("empty"))),
        "{refused}"
    );
    let refused = said(&["--tls-cert", &path("server.crt"), "--tls-key", &path("client.key")]);
    assert!(refused.contains("is not that of the first certificate in"), "{refused}");
    let refused = said(&["--tls-cert", &path("server.crt")]);
    assert!(
        refused.starts_with("error: a certificate is of no use without its key: add tls_key"),
        "{refused}"
    );
    let refused = said(&["--tls-client-ca", &path("ca.crt")]);
    assert!(
        refused.starts_with("error: this means nothing without TLS: add tls_cert and tls_key"),
        "{refused}"
    );
}

//! The RESP listener of the real binary: address, authentication, TLS, and metrics.

use crate::support::{Certificates, Server, TIMEOUT, socket, within};
use ratekeeper_server::tls;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConnection, StreamOwned};

/// So slow that no unit is refilled during a test.
const RULES: &str = "default: {limit: 100/day}";
const TOKEN: &str = "0123456789abcdef";

/// One RESP connection that sends inline commands.
struct InlineRespClient<S>(BufReader<S>);

impl<S: Read + Write> InlineRespClient<S> {
    fn over(stream: S) -> InlineRespClient<S> {
        InlineRespClient(BufReader::new(stream))
    }

    /// Sends an inline command and reads a reply of `lines` lines.
    fn command(&mut self, line: &str, lines: usize) -> String {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes()).unwrap();
        let mut reply = String::new();
        for _ in 0..lines {
            self.0.read_line(&mut reply).unwrap();
        }
        reply.trim_end().replace("\r\n", " ")
    }

    fn has_ended(&mut self) -> bool {
        self.0.read(&mut [0]).is_ok_and(|read| read == 0)
    }
}

fn connect(server: &Server) -> InlineRespClient<std::net::TcpStream> {
    InlineRespClient::over(socket(&server.resp_address))
}

#[test]
fn the_listener_is_in_the_banner_answers_and_is_counted() {
    let server = Server::with_rules(RULES);
    let address = &server.resp_address;
    let port = address.rsplit(':').next().unwrap();
    assert!(server.banner.contains(&format!("\nRESP: redis://{address}\n")), "{}", server.banner);
    let example = format!("  redis-cli -h 127.0.0.1 -p {port} CL.THROTTLE alice 15 30 60\n");
    assert!(server.banner.contains(&example), "{}", server.banner);

    let mut client = connect(&server);
    assert_eq!(client.command("CL.THROTTLE alice 15 30 60", 6), "*5 :0 :16 :15 :-1 :2");
    assert_eq!(client.command("RK.CHECK alice /orders 99", 6), "*5 :0 :100 :1 :-1 :85536");
    assert!(client.command("RK.CHECK alice /orders 2", 6).starts_with("*5 :1 :100 :1 :"));
    // A client has the same counter over HTTP and RESP.
    assert_eq!(server.check(r#"{"client_key":"alice"}"#).number("remaining"), 0);
    assert!(client.command("RK.CHECK alice /", 6).starts_with("*5 :1 :100 :0 :"));

    let metrics = server.metrics();
    assert_eq!(metrics.value("ratekeeper_connections{listener=\"resp\"}"), 1.0);
    assert_eq!((metrics.decisions("default", "allowed"), metrics.decisions("default", "denied")), (2.0, 2.0));
    assert_eq!(client.command("QUIT", 1), "+OK");
    assert!(client.has_ended());
    within(TIMEOUT, "the connection is no longer counted", || {
        (server.metrics().value("ratekeeper_connections{listener=\"resp\"}") == 0.0).then_some(())
    });
}

#[test]
fn the_api_token_is_required() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, TOKEN).unwrap();
    let server = Server::with(RULES, &["--api-token-file", path.to_str().unwrap()]);
    let mut client = connect(&server);
    assert_eq!(client.command("RK.CHECK alice /", 1), "-NOAUTH Authentication required.");
    assert_eq!(
        client.command("AUTH 0123456789abcdeF", 1),
        "-WRONGPASS invalid username-password pair or user is disabled."
    );
    assert_eq!(client.command(&format!("AUTH {TOKEN}"), 1), "+OK");
    assert_eq!(client.command("RK.CHECK alice / 40", 6), "*5 :0 :100 :60 :-1 :34560");
}

#[test]
fn the_listener_supports_tls() {
    let certificates = Certificates::new();
    let [cert, key] = ["server.crt", "server.key"].map(|name| certificates.path(name));
    let server = Server::with(RULES, &["--tls-cert", &cert, "--tls-key", &key]);
    assert!(
        server.banner.contains(&format!("\nRESP: rediss://{}\n", server.resp_address)),
        "{}",
        server.banner
    );
    let authorities = tls::authorities(Path::new(&certificates.path("ca.crt"))).unwrap();
    let config = tls::client_config(authorities, None).unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut client = InlineRespClient::over(StreamOwned::new(connection, socket(&server.resp_address)));
    let pipeline = "CL.THROTTLE alice 99 1 86400\r\n".repeat(99) + "CL.THROTTLE alice 99 1 86400 1";
    assert!(client.command(&pipeline, 600).ends_with("*5 :0 :100 :0 :-1 :8640000"));
    assert_eq!(client.command("PING", 1), "+PONG");
}

#[test]
fn denials_are_logged_with_their_request() {
    let server = Server::with(RULES, &["--log-format", "json"]);
    let mut client = connect(&server);
    client.command("CL.THROTTLE sk_prod_12345678 0 1 86400 2", 6);
    client.command("RK.CHECK alice /orders 101 IP 192.0.2.7", 6);
    // Neither a peek nor a refund is denied.
    client.command("CL.THROTTLE bob 0 1 86400 0", 6);
    client.command("CL.THROTTLE bob 0 1 86400 -7", 6);
    let denials = within(TIMEOUT, "two denials", || {
        let lines = server.log_lines();
        let denials: Vec<_> = lines.into_iter().filter(|line| line["message"] == "denied").collect();
        (denials.len() == 2).then_some(denials)
    });
    assert_eq!((&denials[0]["key"], &denials[0]["cost"]), (&"sk_p…".into(), &2.into()));
    assert_eq!(denials[0]["limit"], "token_bucket 1/day burst 1");
    assert_eq!((&denials[1]["key"], &denials[1]["endpoint"]), (&"a…".into(), &"/orders".into()));
    assert_eq!((&denials[1]["ip"], &denials[1]["rule"]), (&"192.0.2.7".into(), &"default".into()));
}

#[test]
fn the_listener_can_be_off() {
    let server = Server::start(&["--resp", "off"]);
    assert!(server.resp_address.is_empty() && !server.banner.contains("redis"), "{}", server.banner);
    assert_eq!(server.metrics().value("ratekeeper_connections{listener=\"resp\"}"), 0.0);
}

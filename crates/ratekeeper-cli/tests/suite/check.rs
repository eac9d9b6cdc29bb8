//! `ratekeeper check`: the real binary against servers with scripted responses.

use crate::support::{Certificates, CommandOutput};
use ratekeeper_server::tls::{ListenerTls, ListenerTlsFiles};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ALLOWED: &str = r#"{"allowed":true,"remaining":99,"reset_at":1700000001,"retry_after":null}"#;

fn command(arguments: &[&str]) -> Command {
    crate::support::ratekeeper(&[&["check"], arguments].concat())
}

fn run(mut command: Command) -> CommandOutput {
    crate::support::run(&mut command)
}

/// Starts a server for one request. Its thread returns the request line and the body.
fn serve_once(reply: String) -> (SocketAddr, JoinHandle<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let request = read_request(&mut stream);
        // The client may close the connection before it has read the whole reply.
        let _ = stream.write_all(reply.as_bytes());
        request
    });
    (address, serving)
}

/// Waits for the server thread. A connection is opened first, because a server without a client would wait forever.
fn finish<T>(address: SocketAddr, serving: JoinHandle<T>) -> T {
    drop(TcpStream::connect(address));
    serving.join().unwrap()
}

/// Reads a request head and returns it in lower case.
fn read_head(reader: &mut impl BufRead) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "the request ended within {head:?}");
    }
    head.to_lowercase()
}

fn read_request(stream: &mut TcpStream) -> (String, String) {
    let mut reader = BufReader::new(stream);
    let head = read_head(&mut reader);
    assert!(
        head.contains("\r\nhost: 127.0.0.1:") && head.contains("\r\ncontent-type: application/json\r\n"),
        "{head}"
    );
    let length =
        head.split_once("content-length: ").unwrap().1.split_once("\r\n").unwrap().0.parse().unwrap();
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (head.lines().next().unwrap().to_owned(), String::from_utf8(body).unwrap())
}

fn http(status: u16, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// Runs `ratekeeper check` against a server with this reply. Returns the command's output and the request.
fn check(arguments: &[&str], reply: String) -> (CommandOutput, (String, String)) {
    let (address, serving) = serve_once(reply);
    let url = format!("http://{address}");
    let output = run(command(&[&["--server", &url], arguments].concat()));
    (output, finish(address, serving))
}

#[track_caller]
fn assert_prints(arguments: &[&str], reply: String, code: i32, line: &str) {
    let (output, _) = check(arguments, reply);
    assert_eq!(
        output,
        CommandOutput { code: Some(code), stdout: format!("{line}\n"), stderr: String::new() }
    );
}

#[test]
fn a_decision_is_printed_as_one_line_with_an_exit_code() {
    let ok = |body: &str| http(200, "", body);
    assert_prints(&["alice"], ok(ALLOWED), 0, "allowed: alice, 99 remaining, resets at 2023-11-14T22:13:21Z");
    assert_prints(
        &["alice"],
        ok(
            r#"{"allowed":false,"remaining":0,"reset_at":1700000061,"retry_after":2,"rule":"per-key","limit":100,"x":{}}"#,
        ),
        1,
        "denied: alice, retry in 2 s, 0 remaining, resets at 2023-11-14T22:14:21Z, rule per-key, limit 100",
    );
    assert_prints(
        &["alice", "--cost", "101"],
        ok(r#"{"allowed":false,"remaining":100,"reset_at":0,"retry_after":null,"rule":null}"#),
        1,
        "denied: alice, never allowed, 100 remaining",
    );
    assert_prints(
        &["alice", "--peek"],
        ok(r#"{"allowed":true,"remaining":-1,"reset_at":null,"retry_after":null}"#),
        0,
        "would be allowed: alice, not counted: the server's store is unreachable",
    );
    // A denial may have another status, and then another body.
    let denied = r#"{"allowed":false,"remaining":0,"reset_at":0,"retry_after":7}"#;
    assert_prints(
        &["a", "--peek"],
        http(403, "", denied),
        1,
        "would be denied: a, retry in 7 s, 0 remaining",
    );
    let problem = http(429, "Retry-After: 9\r\n", r#"{"error":{"message":"too many"}}"#);
    assert_prints(&["a"], problem, 1, "denied: a, retry in 9 s");
    let escapes = r#"{"allowed":true,"remaining":1,"rule":"\u001b[2J"}"#;
    assert_prints(&["a"], ok(escapes), 0, "allowed: a, 1 remaining, rule \u{fffd}[2J");
}

#[test]
fn json_output_is_the_unchanged_response() {
    let (output, _) = check(&["alice", "--json"], http(200, "", &format!("{ALLOWED}\n")));
    assert_eq!((output.code, output.stdout), (Some(0), format!("{ALLOWED}\n")));
}

#[test]
fn every_argument_is_sent_in_the_request() {
    let send = |arguments: &[&str]| check(arguments, http(200, "", ALLOWED)).1;
    let post = "post /v1/check?deny_status=200 http/1.1".to_owned();
    assert_eq!(send(&["alice"]), (post.clone(), r#"{"client_key":"alice","cost":1}"#.to_owned()));
    let all = [
        "a\"b",
        "--endpoint",
        "/orders",
        "--method",
        "POST",
        "--ip",
        "::1",
        "--tier",
        "pro",
        "--attribute",
        "z=1=2",
        "--attribute",
        "country=",
        "--cost",
        "0",
        "--peek",
    ];
    assert_eq!(
        send(&all),
        (
            "post /v1/peek?deny_status=200 http/1.1".to_owned(),
            r#"{"client_key":"a\"b","endpoint":"/orders","method":"POST","ip":"::1","tier":"pro","attributes":{"country":"","z":"1=2"},"cost":0}"#
                .to_owned()
        )
    );
    assert_eq!(send(&["--", "-x"]).1, r#"{"client_key":"-x","cost":1}"#);
}

#[test]
fn the_server_may_come_from_a_variable_without_a_scheme_and_with_a_path() {
    let (address, serving) = serve_once(http(200, "", ALLOWED));
    let mut client = command(&["alice"]);
    client.env("RATEKEEPER_SERVER", format!("{address}/limits/"));
    assert_eq!(run(client).code, Some(0));
    assert_eq!(finish(address, serving).0, "post /limits/v1/check?deny_status=200 http/1.1");
}

#[test]
fn the_token_comes_from_a_file_or_a_variable_and_a_missing_one_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    fs::write(&path, "a-token-of-some-length\n").unwrap();
    let path = path.to_str().unwrap();
    let sent = |arguments: &[&str], variable: &str| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let head = read_head(&mut BufReader::new(&mut stream));
            stream
                .write_all(http(401, "", r#"{"error":{"code":"UNAUTHORIZED","message":"-"}}"#).as_bytes())
                .unwrap();
            // Closing with unread data would reset the connection before the client reads the reply.
            let _ = stream.read_to_end(&mut Vec::new());
            head
        });
        let mut client = command(&[&["alice", "--server", &url], arguments].concat());
        client.env("RATEKEEPER_API_TOKEN", variable);
        assert_fails(
            &run(client),
            &format!(
                "error: no decision from {url}: the server requires a token: pass a file that contains it with --api-"
            ),
        );
        let head = serving.join().unwrap();
        head.lines().find_map(|line| line.strip_prefix("authorization: ")).map(str::to_owned)
    };
    assert_eq!(sent(&[], ""), None);
    assert_eq!(sent(&["--api-token-file", path], ""), Some("bearer a-token-of-some-length".to_owned()));
    assert_eq!(sent(&[], " another-token "), Some("bearer another-token".to_owned()));
    assert_fails(
        &run(command(&["alice", "--api-token-file", "no/such/file"])),
        "error: cannot read the token in no/such/file: No such file",
    );
}

#[track_caller]
fn assert_fails(output: &CommandOutput, message: &str) {
    assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{output:?}");
    assert!(output.stderr.starts_with(message), "{:?} does not start with {message:?}", output.stderr);
}

#[test]
fn an_unreachable_server_is_reported_with_a_way_to_start_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("http://{address}");
    assert_fails(
        &run(command(&["alice", "--server", &url])),
        &format!(
            "error: cannot connect to {url}: start a server with `ratekeeper serve`, or pass another with --server \
             URL: Connection refused"
        ),
    );
}

#[test]
fn a_response_without_a_decision_is_an_error() {
    let fails_with = |reply: String, message: &str| {
        let (address, serving) = serve_once(reply);
        let url = format!("http://{address}");
        assert_fails(&run(command(&["alice", "--server", &url])), &message.replace("URL", &url));
        finish(address, serving);
    };
    let error = r#"{"error":{"code":"NOT_FOUND","message":"there is nothing at /v1/check"}}"#;
    fails_with(
        http(404, "", error),
        "error: no decision from URL: status 404: there is nothing at /v1/check\n",
    );
    fails_with(
        http(200, "", "hello"),
        "error: no decision from URL: the response is not a decision: is this a Ratekeeper server?\n",
    );
    fails_with(
        http(502, "", "<html>"),
        "error: no decision from URL: status 502: is this a Ratekeeper server?\n",
    );
    fails_with(
        http(200, "", &"x".repeat(100_000)),
        "error: no response from URL: if the server uses TLS, write ",
    );
    fails_with(
        "\x15\x03\x01\x00\x02\x02\x16".to_owned(),
        "error: no response from URL: if the server uses TLS, write https://",
    );
    fails_with(String::new(), "error: no response from URL: ");
}

#[test]
fn invalid_arguments_are_rejected_before_a_request_is_sent() {
    let rejects = |arguments: &[&str], message: &str| {
        assert_fails(&run(command(&[&["alice"], arguments].concat())), message);
    };
    rejects(
        &["--server", "ftp://a"],
        "error: invalid server URL \"ftp://a\": write it like http://127.0.0.1:8080",
    );
    rejects(&["--server", "http://"], "error: invalid server URL \"http://\": write");
    rejects(&["--server", "http://a/?x"], "error: invalid server URL \"http://a/?x\": write");
    rejects(&["--ca", "x"], "error: --ca and --cert require TLS: write https:// before the server");
    rejects(
        &["--server", "https://a", "--ca", "no/such.crt"],
        "error: cannot read no/such.crt: No such file",
    );
    rejects(&["--attribute", "a=1", "--attribute", "a=2"], "error: duplicate attribute a: keep one of them");
    rejects(
        &["--attribute", "a"],
        "error: invalid value 'a' for '--attribute <NAME=VALUE>': write a name and a value",
    );
    rejects(&["--cost", "-1"], "error: ");
    rejects(
        &["--cert", "a.crt"],
        "error: the following required arguments were not provided:\n  --key <FILE>",
    );
}

/// Starts a TLS server for one client, and answers it if it presents a valid certificate.
fn serve_tls_once(folder: &Path) -> (SocketAddr, JoinHandle<bool>) {
    let files = ListenerTlsFiles {
        cert: folder.join("server.crt"),
        key: folder.join("server.key"),
        client_ca: Some(folder.join("ca.crt")),
    };
    let tls = ListenerTls::load(&files).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = async move {
        let (stream, _) = listener.accept().await.unwrap();
        let Ok(mut stream) = tls.accept(stream).await else { return false };
        // The request arrives in one read, and its content does not matter here.
        assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
        stream.write_all(http(200, "", ALLOWED).as_bytes()).await.unwrap();
        let _ = stream.shutdown().await;
        true
    };
    (address, thread::spawn(move || runtime.block_on(serve)))
}

#[test]
fn a_server_can_require_a_client_certificate() {
    let certificates = Certificates::new();
    let [ca, cert, key, other] =
        ["ca.crt", "client.crt", "client.key", "server.crt"].map(|name| certificates.path(name));
    let send = |arguments: &[&str]| {
        let (address, serving) = serve_tls_once(certificates.folder());
        let url = format!("https://{address}");
        let mut client = command(&[&["alice", "--server", &url], arguments].concat());
        client.env("SSL_CERT_FILE", &ca);
        (run(client), finish(address, serving), url)
    };
    let (output, is_accepted, _) = send(&["--ca", &ca, "--cert", &cert, "--key", &key]);
    assert!(
        output.code == Some(0) && output.stdout.starts_with("allowed: alice, 99 remaining") && is_accepted,
        "{output:?}"
    );

    let (output, is_accepted, url) = send(&["--ca", &ca]);
    assert_fails(
        &output,
        &format!(
            "error: no response from {url}: if the server requires a client certificate, pass one with --cert and --key"
        ),
    );
    assert!(!is_accepted);

    // Without --ca, the system's trust store is used.
    let (output, is_accepted, _) = send(&["--cert", &cert, "--key", &key]);
    assert!(output.code == Some(0) && is_accepted, "{output:?}");

    let (output, is_accepted, url) = send(&["--ca", &other, "--cert", &cert, "--key", &key]);
    assert_fails(&output, &format!("error: TLS handshake with {url} failed: invalid peer certificate"));
    assert!(!is_accepted);
}

#[test]
fn a_server_without_tls_is_recognized() {
    let certificates = Certificates::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        // Closing with unread data would reset the connection before the client reads the reply.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let output = run(command(&["alice", "--server", &url, "--ca", &certificates.path("ca.crt")]));
    assert_fails(
        &output,
        &format!(
            "error: TLS handshake with {url} failed: the server does not use TLS: write http:// before it"
        ),
    );
    serving.join().unwrap();
}

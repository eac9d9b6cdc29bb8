//! `ratekeeper check` from outside: the real binary against servers that say what the test has them say.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

mod support;

use ratekeeper_server::tls::{ListenerTls, ListenerTlsFiles};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use support::{Certificates, Told};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ALLOWED: &str = r#"{"allowed":true,"remaining":99,"reset_at":1700000001,"retry_after":null}"#;

fn command(arguments: &[&str]) -> Command {
    support::ratekeeper(&[&["check"], arguments].concat())
}

fn told(mut command: Command) -> Told {
    support::told(&mut command)
}

/// A server for one request, which it gives back: its first line, and its body.
fn serve_once(reply: String) -> (SocketAddr, JoinHandle<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let request = read_request(&mut stream);
        // A client that has heard enough may be gone before it has heard everything.
        let _ = stream.write_all(reply.as_bytes());
        request
    });
    (address, serving)
}

/// Waits for a server that has been asked. One that nobody asked would wait for ever, so it is woken.
fn finish<T>(address: SocketAddr, serving: JoinHandle<T>) -> T {
    drop(TcpStream::connect(address));
    serving.join().unwrap()
}

/// Reads to the end of a head, and gives it in lower case.
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

/// Checks against a server that answers so, and gives what was told and asked.
fn check(arguments: &[&str], reply: String) -> (Told, (String, String)) {
    let (address, serving) = serve_once(reply);
    let url = format!("http://{address}");
    let told = told(command(&[&["--server", &url], arguments].concat()));
    (told, finish(address, serving))
}

#[track_caller]
fn answered(arguments: &[&str], reply: String, code: i32, line: &str) {
    let (told, _) = check(arguments, reply);
    assert_eq!(told, Told { code: Some(code), stdout: format!("{line}\n"), stderr: String::new() });
}

#[test]
fn an_answer_is_one_line_and_an_exit_code() {
    let ok = |body: &str| http(200, "", body);
    answered(
        &["alice"],
        ok(ALLOWED),
        0,
        "allowed: alice may go on, 99 left, all back at 2023-11-14T22:13:21Z",
    );
    answered(
        &["alice"],
        ok(
            r#"{"allowed":false,"remaining":0,"reset_at":1700000061,"retry_after":2,"rule":"per-key","limit":100,"x":{}}"#,
        ),
        1,
        "denied: alice can come back in 2 s, 0 left, all back at 2023-11-14T22:14:21Z, rule per-key, limit 100",
    );
    answered(
        &["alice", "--cost", "101"],
        ok(r#"{"allowed":false,"remaining":100,"reset_at":0,"retry_after":null,"rule":null}"#),
        1,
        "denied: alice asks for what is never allowed, 100 left",
    );
    answered(
        &["alice", "--peek"],
        ok(r#"{"allowed":true,"remaining":-1,"reset_at":null,"retry_after":null}"#),
        0,
        "would be allowed: alice may go on, uncounted because the server's store is away",
    );
    // A denial may have a status of its own, and then a body of its own.
    let denied = r#"{"allowed":false,"remaining":0,"reset_at":0,"retry_after":7}"#;
    answered(&["a", "--peek"], http(403, "", denied), 1, "would be denied: a can come back in 7 s, 0 left");
    let problem = http(429, "Retry-After: 9\r\n", r#"{"error":{"message":"too many"}}"#);
    answered(&["a"], problem, 1, "denied: a can come back in 9 s");
    let escapes = r#"{"allowed":true,"remaining":1,"rule":"\u001b[2J"}"#;
    answered(&["a"], ok(escapes), 0, "allowed: a may go on, 1 left, rule \u{fffd}[2J");
}

#[test]
fn the_answer_can_be_had_as_it_came() {
    let (told, _) = check(&["alice", "--json"], http(200, "", &format!("{ALLOWED}\n")));
    assert_eq!((told.code, told.stdout), (Some(0), format!("{ALLOWED}\n")));
}

#[test]
fn all_that_is_said_of_a_request_is_asked() {
    let ask = |arguments: &[&str]| check(arguments, http(200, "", ALLOWED)).1;
    let post = "post /v1/check?deny_status=200 http/1.1".to_owned();
    assert_eq!(ask(&["alice"]), (post.clone(), r#"{"client_key":"alice","cost":1}"#.to_owned()));
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
        ask(&all),
        (
            "post /v1/peek?deny_status=200 http/1.1".to_owned(),
            r#"{"client_key":"a\"b","endpoint":"/orders","method":"POST","ip":"::1","tier":"pro","attributes":{"country":"","z":"1=2"},"cost":0}"#
                .to_owned()
        )
    );
    assert_eq!(ask(&["--", "-x"]).1, r#"{"client_key":"-x","cost":1}"#);
}

#[test]
fn the_server_is_named_by_a_variable_or_without_a_scheme_or_behind_a_path() {
    let (address, serving) = serve_once(http(200, "", ALLOWED));
    let mut asking = command(&["alice"]);
    asking.env("RATEKEEPER_SERVER", format!("{address}/limits/"));
    assert_eq!(told(asking).code, Some(0));
    assert_eq!(finish(address, serving).0, "post /limits/v1/check?deny_status=200 http/1.1");
}

#[test]
fn a_token_comes_from_a_file_or_a_variable_and_its_lack_is_told() {
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
            // Closing before the client has been heard out would reset the connection in its face.
            let _ = stream.read_to_end(&mut Vec::new());
            head
        });
        let mut asking = command(&[&["alice", "--server", &url], arguments].concat());
        asking.env("RATEKEEPER_API_TOKEN", variable);
        failed(
            &told(asking),
            &format!(
                "error: cannot use the answer of {url}: it asks for a token: name a file with it, with --api-"
            ),
        );
        let head = serving.join().unwrap();
        head.lines().find_map(|line| line.strip_prefix("authorization: ")).map(str::to_owned)
    };
    assert_eq!(sent(&[], ""), None);
    assert_eq!(sent(&["--api-token-file", path], ""), Some("bearer a-token-of-some-length".to_owned()));
    assert_eq!(sent(&[], " another-token "), Some("bearer another-token".to_owned()));
    failed(
        &told(command(&["alice", "--api-token-file", "no/such/file"])),
        "error: cannot read the token in no/such/file: No such file",
    );
}

#[track_caller]
fn failed(told: &Told, said: &str) {
    assert_eq!((told.code, told.stdout.as_str()), (Some(2), ""), "{told:?}");
    assert!(told.stderr.starts_with(said), "{:?} does not begin with {said:?}", told.stderr);
}

#[test]
fn a_server_that_is_not_there_is_told_of_with_a_way_to_start_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("http://{address}");
    failed(
        &told(command(&["alice", "--server", &url])),
        &format!(
            "error: cannot reach {url}: start a server with `ratekeeper serve`, or name another with --server URL: Connection refused"
        ),
    );
}

#[test]
fn what_is_no_decision_is_an_error() {
    let refused = |reply: String, said: &str| {
        let (address, serving) = serve_once(reply);
        let url = format!("http://{address}");
        failed(&told(command(&["alice", "--server", &url])), &said.replace("URL", &url));
        finish(address, serving);
    };
    let fault = r#"{"error":{"code":"NOT_FOUND","message":"there is nothing at /v1/check"}}"#;
    refused(
        http(404, "", fault),
        "error: cannot use the answer of URL: it answers with status 404: there is nothing at /v1/check\n",
    );
    refused(
        http(200, "", "hello"),
        "error: cannot use the answer of URL: it is no decision: is this a Ratekeeper?\n",
    );
    refused(
        http(502, "", "<html>"),
        "error: cannot use the answer of URL: it answers with status 502: is this a Ratekeeper?\n",
    );
    refused(http(200, "", &"x".repeat(100_000)), "error: URL gave no answer: does the server speak TLS? ");
    refused(
        "\x15\x03\x01\x00\x02\x02\x16".to_owned(),
        "error: URL gave no answer: does the server speak TLS? Then write https://",
    );
    refused(String::new(), "error: URL gave no answer: ");
}

#[test]
fn what_makes_no_sense_is_refused_before_anybody_is_asked() {
    let refuse =
        |arguments: &[&str], said: &str| failed(&told(command(&[&["alice"], arguments].concat())), said);
    refuse(
        &["--server", "ftp://a"],
        "error: cannot read \"ftp://a\" as a server: write it like http://127.0.0.1:8080",
    );
    refuse(&["--server", "http://"], "error: cannot read \"http://\" as a server: write");
    refuse(&["--server", "http://a/?x"], "error: cannot read \"http://a/?x\" as a server: write");
    refuse(&["--ca", "x"], "error: certificates are of no use without TLS: write https:// before the server");
    refuse(&["--server", "https://a", "--ca", "no/such.crt"], "error: cannot read no/such.crt: No such file");
    refuse(
        &["--attribute", "a=1", "--attribute", "a=2"],
        "error: the attribute a is there twice: keep one of them",
    );
    refuse(
        &["--attribute", "a"],
        "error: invalid value 'a' for '--attribute <NAME=VALUE>': write a name and a value",
    );
    refuse(&["--cost", "-1"], "error: ");
    refuse(
        &["--cert", "a.crt"],
        "error: the following required arguments were not provided:\n  --key <FILE>",
    );
}

/// Lets in one client that shows a certificate, and answers it if it does.
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
        // The request comes in one piece, and what it asks does not matter here.
        assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
        stream.write_all(http(200, "", ALLOWED).as_bytes()).await.unwrap();
        let _ = stream.shutdown().await;
        true
    };
    (address, thread::spawn(move || runtime.block_on(serve)))
}

#[test]
fn a_server_can_be_asked_over_tls_by_those_it_knows() {
    let certificates = Certificates::new();
    let [ca, cert, key, other] =
        ["ca.crt", "client.crt", "client.key", "server.crt"].map(|name| certificates.path(name));
    let ask = |arguments: &[&str]| {
        let (address, serving) = serve_tls_once(certificates.folder());
        let url = format!("https://{address}");
        let mut asking = command(&[&["alice", "--server", &url], arguments].concat());
        asking.env("SSL_CERT_FILE", &ca);
        (told(asking), finish(address, serving), url)
    };
    let (told, is_let_in, _) = ask(&["--ca", &ca, "--cert", &cert, "--key", &key]);
    assert!(
        told.code == Some(0) && told.stdout.starts_with("allowed: alice may go on, 99 left") && is_let_in,
        "{told:?}"
    );

    let (told, is_let_in, url) = ask(&["--ca", &ca]);
    failed(
        &told,
        &format!(
            "error: {url} gave no answer: does it ask for a certificate? Then name one with --cert and --key"
        ),
    );
    assert!(!is_let_in);

    // Without --ca, whom the system trusts is trusted.
    let (told, is_let_in, _) = ask(&["--cert", &cert, "--key", &key]);
    assert!(told.code == Some(0) && is_let_in, "{told:?}");

    let (told, is_let_in, url) = ask(&["--ca", &other, "--cert", &cert, "--key", &key]);
    failed(&told, &format!("error: cannot speak TLS with {url}: invalid peer certificate"));
    assert!(!is_let_in);
}

#[test]
fn a_server_without_tls_is_told_apart() {
    let certificates = Certificates::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        // Closing before the client has been heard out would reset the connection in its face.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let told = told(command(&["alice", "--server", &url, "--ca", &certificates.path("ca.crt")]));
    failed(
        &told,
        &format!("error: cannot speak TLS with {url}: it does not speak TLS: write http:// before it"),
    );
    serving.join().unwrap();
}

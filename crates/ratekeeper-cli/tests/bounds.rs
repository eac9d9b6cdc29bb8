//! Clients that hold on to what a server has little of: files, connections to the admin port, and memory for bodies.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

mod support;

use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::pin::Pin;
use std::process::Command;
use std::task::{Context, Poll};
use support::{PATIENCE, Server, serve, within};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

const ALICE: &str = r#"{"client_key":"alice"}"#;

/// A server under a limit that the shell sets first.
fn start_under(limit: &str, arguments: &[&str]) -> Server {
    let serve = serve(arguments);
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &format!("{limit}; exec \"$@\""), "sh"])
        .arg(serve.get_program())
        .args(serve.get_args());
    for (name, value) in serve.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Server::launch(tempfile::tempdir().unwrap(), &mut command)
}

/// Clients that connect, or wait until they are let in, and say nothing until this is dropped.
fn idle(address: &str, count: usize) -> Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for _ in 0..count {
        let address = address.to_owned();
        runtime.spawn(async move {
            let stream = TcpStream::connect(address).await;
            std::future::pending::<()>().await;
            drop(stream);
        });
    }
    runtime
}

#[test]
fn idle_connections_to_one_listener_leave_files_for_the_others() {
    let server = start_under("ulimit -n 256", &["--log-format", "json"]);
    let metrics = server.metrics();
    assert_eq!(metrics.value("ratekeeper_open_files_max"), 256.0);
    let most = metrics.value("ratekeeper_connections_max{listener=\"resp\"}");
    assert!((1.0..100.0).contains(&most), "{most}");
    let idle = idle(&server.resp_address, 300);
    within(PATIENCE, "as many are let in as may be", || {
        (server.metrics().value("ratekeeper_connections{listener=\"resp\"}") == most).then_some(())
    });
    assert!(server.check(ALICE).is_allowed());
    assert_eq!(server.connect().get("/livez").status, 200);
    assert_eq!(server.connect_admin().get("/livez").status, 200);
    let ready = server.connect_admin().get("/readyz");
    let told = "at most 256 files may be open";
    assert!(
        ready.status == 200 && ready.json()["connections"].as_str().unwrap().starts_with(told),
        "{ready:?}"
    );
    server.await_log(told);
    assert!(!server.log().contains("cannot accept"), "{}", server.log());
    drop(idle);
}

#[test]
fn a_soft_limit_on_open_files_is_raised_to_the_hard_one() {
    let server = start_under("ulimit -Sn 256", &["--max-connections", "10"]);
    assert!(server.metrics().value("ratekeeper_open_files_max") > 256.0);
    assert_eq!(server.metrics().value("ratekeeper_connections_max{listener=\"http\"}"), 10.0);
    assert!(!server.connect_admin().get("/readyz").body.contains("connections"));
}

#[test]
fn health_is_told_while_idle_connections_fill_the_admin_port() {
    let server = Server::start(&[]);
    let mut asking = server.connect_admin();
    assert_eq!(asking.get("/livez").status, 200);
    let idle = idle(&server.admin_address, 400);
    within(PATIENCE, "more have come than may be there", || {
        (server.metrics().value("ratekeeper_idle_connections_closed_total") >= 100.0).then_some(())
    });
    for path in ["/livez", "/readyz"] {
        for _ in 0..3 {
            assert_eq!(server.connect_admin().get(path).status, 200, "{path}");
        }
    }
    assert!(server.metrics().value("ratekeeper_connections{listener=\"admin\"}") <= 256.0);
    drop(idle);
}

/// A body of which some comes and the rest does not.
struct Unfinished(Option<Bytes>);

impl Body for Unfinished {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.take().map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(Frame::data(bytes)))))
    }
}

#[test]
fn unfinished_bodies_share_one_budget() {
    let budget = 4 << 20;
    let server = Server::start(&["--max-unfinished-bodies", "4MiB"]);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let refused = runtime.block_on(async {
        let stream = TcpStream::connect(&server.address).await.unwrap();
        let (sender, connection) =
            handshake::<_, _, Unfinished>(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut asking = JoinSet::new();
        // Twice as much as there is room for, on one connection.
        for _ in 0..128 {
            let body = Unfinished(Some(Bytes::from(vec![b' '; 60_000])));
            let request = Request::post("http://test/check").body(body).unwrap();
            let mut sender = sender.clone();
            asking.spawn(async move {
                let answer = sender.send_request(request).await.unwrap();
                let status = answer.status().as_u16();
                (status, answer.into_body().collect().await.unwrap().to_bytes())
            });
        }
        // The others are still waited for.
        let (status, said) = asking.join_next().await.unwrap().unwrap();
        assert_eq!(status, 503, "{said:?}");
        let metrics = server.metrics();
        assert_eq!(metrics.value("ratekeeper_unfinished_body_bytes_max"), f64::from(budget));
        let held = metrics.value("ratekeeper_unfinished_body_bytes");
        assert!((1.0..=f64::from(budget)).contains(&held), "{held}");
        assert!(server.check(ALICE).is_allowed(), "what comes in one piece needs none of it");
        metrics.value("ratekeeper_unfinished_bodies_refused_total")
    });
    assert!(refused >= 1.0, "{refused}");
    drop(runtime);
    within(PATIENCE, "what they took is given back", || {
        (server.metrics().value("ratekeeper_unfinished_body_bytes") == 0.0).then_some(())
    });
}

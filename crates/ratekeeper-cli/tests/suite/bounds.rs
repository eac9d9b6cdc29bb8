//! Clients that occupy scarce resources: file descriptors, admin connections, and memory for request bodies.

use crate::support::{Server, TIMEOUT, serve, within};
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::pin::Pin;
use std::process::Command;
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

const ALICE: &str = r#"{"client_key":"alice"}"#;

/// Starts a server under a resource limit that the shell sets first.
fn start_with_ulimit(limit: &str, arguments: &[&str]) -> Server {
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

/// Opens connections, or waits for them to be accepted, and sends nothing until the returned runtime is dropped.
fn open_idle_connections(address: &str, count: usize) -> Runtime {
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
fn idle_connections_to_one_listener_leave_descriptors_for_the_others() {
    let server = start_with_ulimit("ulimit -n 256", &["--log-format", "json"]);
    let metrics = server.metrics();
    assert_eq!(metrics.value("ratekeeper_open_files_max"), 256.0);
    let most = metrics.value("ratekeeper_connections_max{listener=\"resp\"}");
    assert!((1.0..100.0).contains(&most), "{most}");
    let idle = open_idle_connections(&server.resp_address, 300);
    within(TIMEOUT, "the connection limit is reached", || {
        (server.metrics().value("ratekeeper_connections{listener=\"resp\"}") == most).then_some(())
    });
    assert!(server.check(ALICE).is_allowed());
    assert_eq!(server.connect().get("/livez").status, 200);
    assert_eq!(server.connect_admin().get("/livez").status, 200);
    let ready = server.connect_admin().get("/readyz");
    let warning = "the open-file limit is 256";
    assert!(
        ready.status == 200 && ready.json()["connections"].as_str().unwrap().starts_with(warning),
        "{ready:?}"
    );
    server.await_log(warning);
    assert!(!server.log().contains("cannot accept"), "{}", server.log());
    drop(idle);
}

#[test]
fn the_soft_open_file_limit_is_raised_to_the_hard_limit() {
    let server = start_with_ulimit("ulimit -Sn 256", &["--max-connections", "10"]);
    assert!(server.metrics().value("ratekeeper_open_files_max") > 256.0);
    assert_eq!(server.metrics().value("ratekeeper_connections_max{listener=\"http\"}"), 10.0);
    assert!(!server.connect_admin().get("/readyz").body.contains("connections"));
}

#[test]
fn health_is_served_while_idle_connections_fill_the_admin_listener() {
    let server = Server::start(&[]);
    let mut client = server.connect_admin();
    assert_eq!(client.get("/livez").status, 200);
    let idle = open_idle_connections(&server.admin_address, 400);
    within(TIMEOUT, "idle connections are closed", || {
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

/// A request body that sends its first part and never ends.
struct UnfinishedBody(Option<Bytes>);

impl Body for UnfinishedBody {
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
    let rejected = runtime.block_on(async {
        let stream = TcpStream::connect(&server.address).await.unwrap();
        let (sender, connection) =
            handshake::<_, _, UnfinishedBody>(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut tasks = JoinSet::new();
        // Twice the budget, on one connection.
        for _ in 0..128 {
            let body = UnfinishedBody(Some(Bytes::from(vec![b' '; 60_000])));
            let request = Request::post("http://test/check").body(body).unwrap();
            let mut sender = sender.clone();
            tasks.spawn(async move {
                let answer = sender.send_request(request).await.unwrap();
                let status = answer.status().as_u16();
                (status, answer.into_body().collect().await.unwrap().to_bytes())
            });
        }
        // The first response is an error; the other requests are still pending.
        let (status, body) = tasks.join_next().await.unwrap().unwrap();
        assert_eq!(status, 503, "{body:?}");
        let metrics = server.metrics();
        assert_eq!(metrics.value("ratekeeper_unfinished_body_bytes_max"), f64::from(budget));
        let held = metrics.value("ratekeeper_unfinished_body_bytes");
        assert!((1.0..=f64::from(budget)).contains(&held), "{held}");
        assert!(server.check(ALICE).is_allowed(), "a body that arrives at once needs no budget");
        metrics.value("ratekeeper_unfinished_bodies_rejected_total")
    });
    assert!(rejected >= 1.0, "{rejected}");
    drop(runtime);
    within(TIMEOUT, "the budget is released", || {
        (server.metrics().value("ratekeeper_unfinished_body_bytes") == 0.0).then_some(())
    });
}

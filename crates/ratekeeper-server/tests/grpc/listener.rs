//! The gRPC listener around the calls: health, reflection, shutdown, TLS, and clients that are idle, slow or not gRPC.

use crate::generated::ratekeeper::v1::rate_limiter_client::RateLimiterClient;
use crate::raw::{RawConnection, call_request, framed};
use crate::server::{GrpcTestServer, check};
use ratekeeper_server::tls::{ListenerTls, ListenerTlsFiles, authorities, client_config};
use ratekeeper_server::{BoundSocket, ServerSetup};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::fs;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tonic::transport::{Endpoint, Uri};
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const RULES: &str = "default: {limit: 1000/h}";

const TOKEN: &str = "0123456789abcdef";

fn with_token<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
    request
}

fn health_request(name: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: name.to_owned() }
}

#[tokio::test]
async fn health_needs_no_token_and_changes_at_shutdown() {
    let mut server = GrpcTestServer::start_with_token(TOKEN).await;
    let mut client = HealthClient::new(server.channel().await);
    for name in ["", "ratekeeper.v1.RateLimiter", "envoy.service.ratelimit.v3.RateLimitService"] {
        let response = client.check(health_request(name)).await.unwrap().into_inner();
        assert_eq!(response.status(), ServingStatus::Serving, "{name}");
    }
    assert_eq!(client.check(health_request("unknown")).await.unwrap_err().code(), Code::NotFound);
    let mut watch = client.watch(health_request("")).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.stop();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert_eq!(watch.message().await.unwrap_err().code(), Code::Unavailable);
    timeout(Duration::from_secs(5), server.serving)
        .await
        .expect("a health watch does not delay the shutdown")
        .unwrap();
}

#[tokio::test]
async fn during_the_drain_delay_calls_succeed_and_health_is_not_serving() {
    let drain_delay = Duration::from_millis(500);
    let mut server = GrpcTestServer::start_with(RULES, |setup| ServerSetup { drain_delay, ..setup }).await;
    let mut health = HealthClient::new(server.channel().await);
    server.stop();
    let mut watch = health.watch(health_request("")).await.unwrap().into_inner();
    while watch.message().await.unwrap().unwrap().status() != ServingStatus::NotServing {}
    assert!(server.client().await.check(check("late")).await.unwrap().into_inner().allowed);
    timeout(Duration::from_secs(5), server.serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn reflection_lists_all_services() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let server = GrpcTestServer::start_with_token(TOKEN).await;
    let expected =
        ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health", "ratekeeper.v1.RateLimiter"];
    let questions = [
        MessageRequest::ListServices(String::new()),
        MessageRequest::FileContainingSymbol(expected[2].to_owned()),
    ];
    let questions = questions
        .map(|question| ServerReflectionRequest { host: String::new(), message_request: Some(question) });
    let mut client = ServerReflectionClient::new(server.channel().await);
    let unknown = client.server_reflection_info(tokio_stream::iter(questions.clone())).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unauthenticated);
    let mut answers =
        client.server_reflection_info(with_token(tokio_stream::iter(questions))).await.unwrap().into_inner();
    let listed = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(listed) = listed else { panic!("{listed:?}") };
    let mut names: Vec<_> = listed.service.into_iter().map(|service| service.name).collect();
    names.retain(|name| !name.starts_with("grpc.reflection."));
    names.sort_unstable();
    assert_eq!(names, expected);
    let file = answers.message().await.unwrap().unwrap().message_response.unwrap();
    assert!(matches!(file, MessageResponse::FileDescriptorResponse(_)), "{file:?}");
}

#[tokio::test]
async fn reflection_supports_v1alpha() {
    use tonic_reflection::pb::v1alpha::ServerReflectionRequest;
    use tonic_reflection::pb::v1alpha::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1alpha::server_reflection_request::MessageRequest;
    let server = GrpcTestServer::start_with_token(TOKEN).await;
    let question = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(server.channel().await);
    let reply = client.server_reflection_info(with_token(tokio_stream::once(question))).await;
    assert!(reply.unwrap().into_inner().message().await.unwrap().is_some());
}

#[tokio::test]
async fn unknown_methods_encodings_and_content_types_are_rejected() {
    let server = GrpcTestServer::start(RULES).await;
    let mut connection = RawConnection::open(server.address).await;
    let check = framed(b"\x0a\x01a");
    let response =
        connection.make_call(call_request("/ratekeeper.v1.RateLimiter/Chek", &[]), &[&check]).await;
    assert_eq!(response.code, Some(12));
    assert!(
        response.message.contains("/ratekeeper.v1.RateLimiter/Chek: there are ratekeeper.v1"),
        "{response:?}"
    );
    let path = "/ratekeeper.v1.RateLimiter/Check";
    let response = connection.make_call(call_request(path, &[("grpc-encoding", "gzip")]), &[&check]).await;
    assert_eq!((response.code, response.header("grpc-accept-encoding")), (Some(12), Some("identity")));
    let flagged: Vec<u8> = [&[1], &check[1..]].concat();
    assert_eq!(connection.make_call(call_request(path, &[]), &[&flagged]).await.code, Some(12));
    for content_type in ["application/json", "application/grpc+json", "application/grpc-web", ""] {
        let response =
            connection.make_call(call_request(path, &[("content-type", content_type)]), &[&check]).await;
        assert_eq!((response.status, response.code), (415, None), "{content_type:?}");
    }
    for content_type in ["application/grpc", "application/grpc+proto", "application/grpc; a=b"] {
        let response =
            connection.make_call(call_request(path, &[("content-type", content_type)]), &[&check]).await;
        assert_eq!((response.status, response.code), (200, Some(0)), "{content_type:?}");
    }
}

#[tokio::test]
async fn a_message_may_be_split_but_must_be_complete_and_single() {
    let server = GrpcTestServer::start(RULES).await;
    let mut connection = RawConnection::open(server.address).await;
    let check = framed(b"\x0a\x01a");
    let path = "/ratekeeper.v1.RateLimiter/Check";
    let bytes: Vec<&[u8]> = check.chunks(1).collect();
    assert_eq!(connection.make_call(call_request(path, &[]), &bytes).await.code, Some(0));
    assert_eq!(
        connection.make_call(call_request(path, &[]), &[b"", &check[..3], b"", &check[3..], b""]).await.code,
        Some(0)
    );
    for (pieces, message) in [
        (&[][..], "there is no whole message: send one"),
        (&[&check[..4]], "there is no whole message: send one"),
        (&[&check[..7]], "there is no whole message: send one"),
        (&[&check, &check], "there is more than one message: send one"),
        (&[&check, b"\0"], "there is more than one message: send one"),
        (&[b"\0\0\x01\0\x01"], "the message has 65537 bytes: send at most 65536"),
        (&[b"\0\xff\xff\xff\xff"], "the message has 4294967295 bytes: send at most 65536"),
        (&[&framed(b"\x0a\x02a")], "the message is malformed, or not of the type that this method takes"),
        (&[&framed(b"\x08\x01")], "the message is malformed, or not of the type that this method takes"),
        (&[&framed(b"\x0a\x01\xff")], "client_key is not UTF-8: send text"),
        (
            &[&framed(b"\x0a\x01a\x38\x80\x80\x80\x80\x10")],
            "cost is above 4294967295: send a whole number up to that",
        ),
    ] {
        let answer = connection.make_call(call_request(path, &[]), pieces).await;
        assert_eq!((answer.code, &*answer.message), (Some(3), message));
    }
}

#[tokio::test]
async fn non_utf_8_text_does_not_escape_an_envoy_limit() {
    let server = GrpcTestServer::start("rules: [{id: keys, key: api_key, limit: 2/h}]").await;
    let mut connection = RawConnection::open(server.address).await;
    // The domain `d`, and a descriptor whose only entry is `api_key` with a byte that is not UTF-8.
    let entry = [&b"\x0a\x07api_key\x12\x01"[..], b"\xff"].concat();
    let entry = [&[0x0a, u8::try_from(entry.len()).unwrap()], &entry[..]].concat();
    let descriptor = [&[0x12, u8::try_from(entry.len()).unwrap()], &entry[..]].concat();
    let message = framed(&[&b"\x0a\x01d"[..], &descriptor].concat());
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    for expected in [b"\x08\x01", b"\x08\x01", b"\x08\x02"] {
        let response = connection.make_call(call_request(path, &[]), &[&message]).await;
        assert_eq!((response.code, &response.body[5..7]), (Some(0), &expected[..]));
    }
}

#[tokio::test]
async fn an_http_1_client_is_told_that_the_port_speaks_grpc() {
    let server = GrpcTestServer::start(RULES).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"POST /check HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 400 ") && body.starts_with("This port speaks gRPC"), "{response}");
    assert!(head.ends_with(&format!("\r\nContent-Length: {}", body.len())), "{head}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_preface_is_closed() {
    let server = GrpcTestServer::start(RULES).await;
    for begun in ["", "PRI * HTTP/2.0\r\n"] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let since = Instant::now();
        stream.write_all(begun.as_bytes()).await.unwrap();
        assert_eq!(stream.read_to_end(&mut Vec::new()).await.unwrap(), 0);
        assert_eq!(since.elapsed().as_secs(), 15, "after {begun:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_kept_while_its_client_answers_pings() {
    let server = GrpcTestServer::start(RULES).await;
    let mut client = server.client().await;
    assert!(client.check(check("a")).await.unwrap().into_inner().allowed);
    sleep(Duration::from_secs(24 * 3600)).await;
    assert!(client.check(check("a")).await.unwrap().into_inner().allowed);

    // A client that answers no pings is disconnected.
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let since = Instant::now();
    let _ = silent.read_to_end(&mut Vec::new()).await;
    assert!((45..=60).contains(&since.elapsed().as_secs()), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_message_times_out() {
    let server = GrpcTestServer::start(RULES).await;
    let mut connection = RawConnection::open(server.address).await;
    let since = Instant::now();
    let mut begun = connection.start_call(call_request("/ratekeeper.v1.RateLimiter/Check", &[])).await;
    begun.send(b"\0\0\0\0", false);
    let response = begun.response().await;
    assert_eq!((response.code, since.elapsed().as_secs()), (Some(4), 10), "{response:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_no_responses_is_disconnected() {
    let server = GrpcTestServer::start(RULES).await;
    // Its receive window is zero.
    let checks: Vec<u8> = (0..1000).flat_map(|_| framed(b"\x08\x01\x12\x03\x0a\x01a")).collect();
    let batch: Vec<u8> = framed(&b"\x0a\x03\x0a\x01a".repeat(2000));
    for (method, message) in [("CheckStream", &checks), ("CheckBatch", &batch)] {
        let mut connection = RawConnection::open_with(server.address, 0).await;
        let since = Instant::now();
        let mut begun =
            connection.start_call(call_request(&format!("/ratekeeper.v1.RateLimiter/{method}"), &[])).await;
        begun.send(message, method == "CheckBatch");
        let _ = connection.driver.await.unwrap();
        assert!((10..=20).contains(&since.elapsed().as_secs()), "{method} after {:?}", since.elapsed());
    }
}

#[tokio::test]
async fn a_shutdown_finishes_open_calls_and_accepts_no_connections() {
    let mut server = GrpcTestServer::start(RULES).await;
    let mut connection = RawConnection::open(server.address).await;
    let check = framed(b"\x0a\x01a");
    let path = "/ratekeeper.v1.RateLimiter/Check";
    assert_eq!(connection.make_call(call_request(path, &[]), &[&check]).await.code, Some(0));
    let mut begun = connection.start_call(call_request(path, &[])).await;
    begun.send(&check[..6], false);
    // A response to a later call shows that the first one has begun.
    assert_eq!(connection.make_call(call_request(path, &[]), &[&check]).await.code, Some(0));
    server.stop();
    connection.until_goaway().await;
    assert!(TcpStream::connect(server.address).await.is_err());
    begun.send(&check[6..], true);
    assert_eq!(begun.response().await.code, Some(0));
    connection.driver.await.unwrap().unwrap();
    timeout(Duration::from_secs(5), server.serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn tls_clients_negotiate_http_2() {
    let folder = tempfile::tempdir().unwrap();
    let files = write_certificates(folder.path());
    let tls = Some(Arc::new(ListenerTls::load(&files).unwrap()));
    let encrypted = |socket: Option<BoundSocket>| socket.map(|socket| BoundSocket { tls, ..socket });
    let server =
        GrpcTestServer::start_with(RULES, |setup| ServerSetup { grpc: encrypted(setup.grpc), ..setup }).await;
    let mut config = client_config(authorities(&folder.path().join("ca.crt")).unwrap(), None).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsTestConnector(TlsConnector::from(Arc::new(config)));
    let endpoint = Endpoint::new(format!("https://{}", server.address)).unwrap();
    let mut client = RateLimiterClient::new(endpoint.connect_with_connector(connector).await.unwrap());
    assert!(client.check(check("a")).await.unwrap().into_inner().allowed);
    // Clients without TLS are rejected.
    assert!(server.client().await.check(check("a")).await.is_err());
}

/// Writes a CA certificate, and a certificate for 127.0.0.1 that it signed.
fn write_certificates(folder: &Path) -> ListenerTlsFiles {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    fs::write(folder.join("ca.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let signed = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let (cert, path) = (folder.join("server.crt"), folder.join("server.key"));
    fs::write(&cert, signed.pem()).unwrap();
    fs::write(&path, key.serialize_pem()).unwrap();
    ListenerTlsFiles { cert, key: path, client_ca: None }
}

/// A tonic connector that uses TLS.
struct TlsTestConnector(TlsConnector);

type TlsTestStream = hyper_util::rt::TokioIo<tokio_rustls::client::TlsStream<TcpStream>>;

impl tonic::codegen::Service<Uri> for TlsTestConnector {
    type Response = TlsTestStream;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<TlsTestStream, std::io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), std::io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.0.clone();
        Box::pin(async move {
            let stream = TcpStream::connect(uri.authority().unwrap().as_str()).await?;
            let name = uri.host().unwrap().to_owned().try_into().unwrap();
            connector.connect(name, stream).await.map(hyper_util::rt::TokioIo::new)
        })
    }
}

//! An in-process gRPC server and its clients.

use crate::generated::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use crate::generated::ratekeeper::v1::CheckRequest;
use crate::generated::ratekeeper::v1::rate_limiter_client::RateLimiterClient;
use ratekeeper::rules::{RuleSet, read};
use ratekeeper::{Capacity, ManualClock, MemoryStore, Micros, RuleLimiter};
use ratekeeper_server::{ApiOptions, BoundSocket, ServerSetup, serve};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

pub(crate) type GrpcTestLimiter = RuleLimiter<MemoryStore<Arc<ManualClock>>>;

/// Start time of the test clock in seconds: a full minute.
pub(crate) const START_SECONDS: u64 = 1_700_000_040;

/// An in-process gRPC server; dropping it stops it.
pub(crate) struct GrpcTestServer {
    pub(crate) address: SocketAddr,
    pub(crate) limiter: GrpcTestLimiter,
    pub(crate) clock: Arc<ManualClock>,
    stop: Option<oneshot::Sender<()>>,
    pub(crate) serving: JoinHandle<()>,
}

impl GrpcTestServer {
    /// Starts a server with these rules and default settings.
    pub(crate) async fn start(rules: &str) -> GrpcTestServer {
        GrpcTestServer::start_with(rules, |setup| setup).await
    }

    pub(crate) async fn start_with(
        rules: &str,
        change: impl FnOnce(ServerSetup) -> ServerSetup,
    ) -> GrpcTestServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let clock = Arc::new(ManualClock::new(Micros::new(START_SECONDS * 1_000_000)));
        let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(100_000)).unwrap();
        let parsed = read(rules, Micros::EPOCH);
        let spec = parsed.spec.unwrap_or_else(|| panic!("{:#?}", parsed.diagnostics));
        let gate = RuleLimiter::new(RuleSet::compile(&spec).unwrap(), store, Arc::clone(&clock));
        let (http, grpc) = (None, Some(BoundSocket { listener, tls: None }));
        // Only to get the default setup: this listener is closed at once.
        let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let setup = change(ServerSetup { http, grpc, ..ServerSetup::http(unused) });
        let (stop, stopped) = oneshot::channel();
        let stopped = async { stopped.await.unwrap_or_default() };
        let serving = tokio::spawn(serve(gate.clone(), setup, mpsc::channel(1).1, stopped));
        GrpcTestServer { address, limiter: gate, clock, stop: Some(stop), serving }
    }

    pub(crate) async fn start_with_token(token: &str) -> GrpcTestServer {
        let token = Some(ratekeeper_server::Token::parse(token).unwrap());
        let api = ApiOptions { token, ..ApiOptions::default() };
        GrpcTestServer::start_with("default: {limit: 5/h}", |setup| ServerSetup { api, ..setup }).await
    }

    /// Sends the shutdown signal.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    pub(crate) fn advance(&self, seconds: u64) {
        self.clock.advance(ratekeeper::Span::secs(seconds));
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::new(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    /// A client of Ratekeeper's own service.
    pub(crate) async fn client(&self) -> RateLimiterClient<Channel> {
        RateLimiterClient::new(self.channel().await)
    }

    /// A client of Envoy's rate limit service.
    pub(crate) async fn envoy_client(&self) -> RateLimitServiceClient<Channel> {
        RateLimitServiceClient::new(self.channel().await)
    }
}

/// A check for `client_key`.
pub(crate) fn check(client_key: &str) -> CheckRequest {
    CheckRequest { client_key: client_key.to_owned(), ..CheckRequest::default() }
}

//! A server in this process that speaks gRPC, and clients of it.

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

pub(crate) type TestGate = RuleLimiter<MemoryStore<Arc<ManualClock>>>;

/// When the clock of a test begins: on a full minute.
pub(crate) const BEGINNING: u64 = 1_700_000_040;

/// A server, until it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) gate: TestGate,
    pub(crate) clock: Arc<ManualClock>,
    stop: Option<oneshot::Sender<()>>,
    pub(crate) serving: JoinHandle<()>,
}

impl Server {
    /// One with these rules and everything else as usual.
    pub(crate) async fn start(rules: &str) -> Server {
        Server::start_with(rules, |setup| setup).await
    }

    pub(crate) async fn start_with(rules: &str, change: impl FnOnce(ServerSetup) -> ServerSetup) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let clock = Arc::new(ManualClock::new(Micros::new(BEGINNING * 1_000_000)));
        let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(100_000)).unwrap();
        let review = read(rules, Micros::EPOCH);
        let spec = review.spec.unwrap_or_else(|| panic!("{:#?}", review.complaints));
        let gate = RuleLimiter::new(RuleSet::compile(&spec).unwrap(), store, Arc::clone(&clock));
        let (http, grpc) = (None, Some(BoundSocket { listener, tls: None }));
        // Only to have all the rest: this port is closed at once.
        let nowhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let setup = change(ServerSetup { http, grpc, ..ServerSetup::http(nowhere) });
        let (stop, stopped) = oneshot::channel();
        let stopped = async { stopped.await.unwrap_or_default() };
        let serving = tokio::spawn(serve(gate.clone(), setup, mpsc::channel(1).1, stopped));
        Server { address, gate, clock, stop: Some(stop), serving }
    }

    pub(crate) async fn start_asking_for(token: &str) -> Server {
        let token = Some(ratekeeper_server::Token::parse(token).unwrap());
        let api = ApiOptions { token, ..ApiOptions::default() };
        Server::start_with("default: {limit: 5/h}", |setup| ServerSetup { api, ..setup }).await
    }

    /// Has it stop.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    pub(crate) fn forward(&self, seconds: u64) {
        self.clock.advance(ratekeeper::Span::secs(seconds));
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::new(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    /// A client of our own service.
    pub(crate) async fn client(&self) -> RateLimiterClient<Channel> {
        RateLimiterClient::new(self.channel().await)
    }

    /// Whoever asks as Envoy does.
    pub(crate) async fn envoy(&self) -> RateLimitServiceClient<Channel> {
        RateLimitServiceClient::new(self.channel().await)
    }
}

/// A check of a client.
pub(crate) fn check(client_key: &str) -> CheckRequest {
    CheckRequest { client_key: client_key.to_owned(), ..CheckRequest::default() }
}

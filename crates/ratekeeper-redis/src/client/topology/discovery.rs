//! A server that is queried for the topology: a Cluster node listed in the URL, or a sentinel.
//!
//! Until the topology is known, these are the only servers that a health report can list.

use crate::client::connector::{Connector, Diagnosis};
use crate::client::failure::ServerFailure;
use crate::client::url::ServerAddress;
use parking_lot::Mutex;
use ratekeeper::{BreakerState, ServerReport, StoreErrorCause, StoreErrorCounts};

/// A server that is queried for the addresses of the other servers.
pub(crate) struct DiscoveryServer {
    server: ServerAddress,
    state: Mutex<DiscoveryState>,
}

#[derive(Default)]
struct DiscoveryState {
    /// Why the last query failed. `None` if it succeeded.
    failure: Option<ServerFailure>,
    errors: [u64; StoreErrorCause::ALL.len()],
    diagnosis: Diagnosis,
}

impl DiscoveryServer {
    pub(crate) fn new(server: ServerAddress) -> DiscoveryServer {
        DiscoveryServer { server, state: Mutex::default() }
    }

    pub(crate) fn server(&self) -> &ServerAddress {
        &self.server
    }

    /// Records a successful query.
    pub(crate) fn record_success(&self) {
        self.state.lock().failure = None;
    }

    /// Records a failed query. Returns the diagnosed failure if its cause differs from the last one.
    pub(crate) async fn record_failure(
        &self,
        connector: &Connector,
        found: ServerFailure,
    ) -> Option<ServerFailure> {
        let mut diagnosis = std::mem::take(&mut self.state.lock().diagnosis);
        let failure = diagnosis.diagnose(connector, &self.server, found).await;
        let mut state = self.state.lock();
        state.diagnosis = diagnosis;
        state.errors[failure.cause as usize] += 1;
        let before = state.failure.replace(failure.clone());
        before.is_none_or(|before| before.cause != failure.cause).then_some(failure)
    }

    /// Health report of the server, as one that decides no requests.
    pub(crate) fn report(&self) -> ServerReport {
        let state = self.state.lock();
        ServerReport {
            address: self.server.to_string(),
            breaker: BreakerState::Open,
            problem: state.failure.as_ref().map(|failure| failure.message.clone()),
            cause: state.failure.as_ref().map(|failure| failure.cause),
            accepts_writes: true,
            errors: StoreErrorCounts::from_fn(|cause| state.errors[cause as usize]),
            ..ServerReport::default()
        }
    }
}

//! A server that is asked where the others are: a listed node of a Cluster, or a sentinel.
//!
//! As long as nobody has said where state is kept, these are the only servers there are to tell of.

use super::node::{Connector, Diagnosis, ServerFailure};
use super::url::ServerAddress;
use crate::duration_histogram::DurationHistogram;
use crate::health::{BreakerState, ServerReport, StoreErrorCause, StoreErrorCounts, StoreFailureCounts};
use parking_lot::Mutex;

/// A server that is asked where the others are.
pub(super) struct DiscoveryServer {
    server: ServerAddress,
    state: Mutex<DiscoveryState>,
}

#[derive(Default)]
struct DiscoveryState {
    /// Why it said nothing when it was last asked.
    trouble: Option<ServerFailure>,
    errors: [u64; StoreErrorCause::ALL.len()],
    diagnosis: Diagnosis,
}

impl DiscoveryServer {
    pub(super) fn new(server: ServerAddress) -> DiscoveryServer {
        DiscoveryServer { server, state: Mutex::default() }
    }

    pub(super) fn server(&self) -> &ServerAddress {
        &self.server
    }

    /// Notes that it said what it was asked for.
    pub(super) fn note_answer(&self) {
        self.state.lock().trouble = None;
    }

    /// Notes that it did not. Gives what is wrong if that is another cause than the last time.
    pub(super) async fn note_failure(
        &self,
        dialer: &Connector,
        found: ServerFailure,
    ) -> Option<ServerFailure> {
        let mut diagnosis = std::mem::take(&mut self.state.lock().diagnosis);
        let trouble = diagnosis.find(dialer, &self.server, found).await;
        let mut state = self.state.lock();
        state.diagnosis = diagnosis;
        state.errors[trouble.cause as usize] += 1;
        let before = state.trouble.replace(trouble.clone());
        before.is_none_or(|before| before.cause != trouble.cause).then_some(trouble)
    }

    /// How it is doing, as a server that is not asked for decisions.
    pub(super) fn report(&self) -> ServerReport {
        let state = self.state.lock();
        ServerReport {
            address: self.server.to_string(),
            software: None,
            replicas: 0,
            breaker: BreakerState::Open,
            trouble: state.trouble.as_ref().map(|trouble| trouble.words.clone()),
            cause: state.trouble.as_ref().map(|trouble| trouble.cause),
            takes_writes: true,
            has_script: false,
            eviction_policy: None,
            may_forget: false,
            drift: None,
            calls: DurationHistogram::default(),
            failures: StoreFailureCounts::default(),
            errors: StoreErrorCounts::count(|cause| state.errors[cause as usize]),
            reconnects: 0,
            script_loads: 0,
        }
    }
}

//! The emergency limit: one switch that puts a hard limit on everything.
//!
//! It is kept in this process alone, so that it holds when nothing else does, and comes before all rules and lists.

use crate::memory::{Capacity, MemoryStore};
use arc_swap::ArcSwapOption;
use ratekeeper_core::{Amount, Clock, Decision, KeyRef, Limit, PermitId, Scope};
use ratekeeper_rules::{CheckRequest, Verb};
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// One switch that holds every client address to a hard limit, from memory alone. A client whose address the caller
/// does not tell is counted by its key.
#[derive(Debug)]
pub struct EmergencyLimit {
    /// Looked at for every request, so that nothing more is while it is off.
    is_on: AtomicBool,
    state: ArcSwapOption<ActiveEmergency>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct ActiveEmergency {
    limit: Limit,
    store: Arc<MemoryStore<Arc<dyn Clock>>>,
}

impl EmergencyLimit {
    pub(super) fn new(clock: Arc<dyn Clock>) -> EmergencyLimit {
        EmergencyLimit { is_on: AtomicBool::new(false), state: ArcSwapOption::empty(), clock }
    }

    /// Switches it on, at this limit for each address. What was counted under an earlier one is kept.
    ///
    /// # Panics
    /// If the system won't lend 30 MB of address space.
    pub fn switch_on(&self, limit: Limit) {
        let known = self.state.load().as_ref().map(|state| Arc::clone(&state.store));
        let store = known.unwrap_or_else(|| {
            let store = MemoryStore::with(Arc::clone(&self.clock), Capacity::DEFAULT);
            Arc::new(store.expect("address space for a million addresses can be had"))
        });
        self.state.store(Some(Arc::new(ActiveEmergency { limit, store })));
        self.is_on.store(true, Relaxed);
    }

    /// Switches it off, and forgets what was counted.
    pub fn switch_off(&self) {
        self.is_on.store(false, Relaxed);
        self.state.store(None);
    }

    /// The limit, if it is on.
    pub fn limit(&self) -> Option<Limit> {
        self.state.load().as_ref().map(|state| state.limit)
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// What it says to a check that it refuses. Other verbs take nothing, so there is nothing to refuse.
    #[cold]
    pub(super) fn refuse(&self, verb: Verb, request: &CheckRequest<'_>) -> Option<Decision> {
        let state = self.state.load();
        let state = state.as_ref().filter(|_| verb == Verb::Check)?;
        let ask = Amount::exactly(request.cost);
        let take = |key: KeyRef<'_>, scope| {
            let outcome = state.store.take_now(key, scope, &state.limit, ask, PermitId::default());
            Decision::of_one(&state.limit, ask, outcome)
        };
        let decision = match request.ip {
            Some(ip) => take((&*address(ip)).into(), Scope(0)),
            None => take(request.client_key.into(), Scope(1)),
        };
        (!decision.is_allowed()).then_some(decision)
    }
}

/// IPv4 as it is, IPv6 by its network: a single subscriber has 2^64 addresses.
fn address(ip: IpAddr) -> String {
    let mut text = String::with_capacity(48);
    let written = match ip.to_canonical() {
        IpAddr::V4(ip) => write!(text, "{ip}"),
        IpAddr::V6(ip) => write!(text, "{:x}", ip.to_bits() >> 64),
    };
    written.expect("text can be written to memory");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use ratekeeper_core::{Algorithm, Micros};

    #[test]
    fn it_counts_addresses_and_keys_apart() {
        let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_000_000)));
        let emergency = EmergencyLimit::new(clock);
        let limit = Limit::new(Algorithm::TokenBucket, "1/s".parse().unwrap()).unwrap();
        emergency.switch_on(limit);
        let ask = |key: &str, ip: Option<&str>| {
            let request = CheckRequest { ip: ip.map(|ip| ip.parse().unwrap()), ..CheckRequest::new(key) };
            emergency.refuse(Verb::Check, &request).is_none()
        };
        assert!(
            ask("a", Some("10.0.0.1")) && !ask("b", Some("10.0.0.1")) && !ask("b", Some("::ffff:10.0.0.1"))
        );
        assert!(
            ask("a", Some("2001:db8::1"))
                && !ask("a", Some("2001:db8::2"))
                && ask("a", Some("2001:db8:0:1::"))
        );
        assert!(ask("10.0.0.1", None) && !ask("10.0.0.1", None) && ask("a", None));
        assert_eq!(emergency.limit(), Some(limit));
        emergency.switch_off();
        assert!(!emergency.is_on() && emergency.limit().is_none() && ask("a", Some("10.0.0.1")));
    }
}

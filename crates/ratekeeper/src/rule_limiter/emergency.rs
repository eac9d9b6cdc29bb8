//! The emergency limit: a hard limit on all traffic that an operator can switch on.
//!
//! Its state is kept in this process alone, so that it works when nothing else does. It is checked before all rules and
//! lists.

use crate::memory::{Capacity, MemoryStore};
use arc_swap::ArcSwapOption;
use ratekeeper_core::{Amount, Clock, Decision, KeyRef, Limit, PermitId, Scope};
use ratekeeper_rules::{CheckRequest, Verb};
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// A hard limit per client address that an operator can switch on, counted in memory alone. A client whose address is
/// unknown is counted by its key.
#[derive(Debug)]
pub struct EmergencyLimit {
    /// Checked for every request, so that a disabled emergency limit costs one load.
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

    /// Switches the emergency limit on with `limit` per address. The state of an earlier emergency limit is kept.
    ///
    /// # Panics
    /// If 30 MB of address space can't be allocated.
    pub fn switch_on(&self, limit: Limit) {
        let known = self.state.load().as_ref().map(|state| Arc::clone(&state.store));
        let store = known.unwrap_or_else(|| {
            let store = MemoryStore::with(Arc::clone(&self.clock), Capacity::DEFAULT);
            Arc::new(store.expect("30 MB of address space can be allocated"))
        });
        self.state.store(Some(Arc::new(ActiveEmergency { limit, store })));
        self.is_on.store(true, Relaxed);
    }

    /// Switches the emergency limit off and drops its state.
    pub fn switch_off(&self) {
        self.is_on.store(false, Relaxed);
        self.state.store(None);
    }

    /// The limit, or `None` if the emergency limit is off.
    pub fn limit(&self) -> Option<Limit> {
        self.state.load().as_ref().map(|state| state.limit)
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Counts a check and returns its denial. Returns `None` if the check is allowed. Other verbs take nothing, so they
    /// are never denied.
    #[cold]
    pub(super) fn deny(&self, verb: Verb, request: &CheckRequest<'_>) -> Option<Decision> {
        let state = self.state.load();
        let state = state.as_ref().filter(|_| verb == Verb::Check)?;
        let amount = Amount::exactly(request.cost);
        let take = |key: KeyRef<'_>, scope| {
            let result = state.store.take_now(key, scope, &state.limit, amount, PermitId::default());
            Decision::from_single(&state.limit, amount, result)
        };
        let decision = match request.ip {
            Some(ip) => take((&*address_key(ip)).into(), Scope(0)),
            None => take(request.client_key.into(), Scope(1)),
        };
        (!decision.is_allowed()).then_some(decision)
    }
}

/// The key of an address: IPv4 in full, IPv6 by its /64 network, since a single subscriber has 2^64 addresses.
fn address_key(ip: IpAddr) -> String {
    let mut text = String::with_capacity(48);
    let written = match ip.to_canonical() {
        IpAddr::V4(ip) => write!(text, "{ip}"),
        IpAddr::V6(ip) => write!(text, "{:x}", ip.to_bits() >> 64),
    };
    written.expect("writing to a string can't fail");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use ratekeeper_core::{Algorithm, Micros};

    #[test]
    fn addresses_and_keys_are_counted_separately() {
        let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_000_000)));
        let emergency = EmergencyLimit::new(clock);
        let limit = Limit::new(Algorithm::TokenBucket, "1/s".parse().unwrap()).unwrap();
        emergency.switch_on(limit);
        let is_allowed = |key: &str, ip: Option<&str>| {
            let request = CheckRequest { ip: ip.map(|ip| ip.parse().unwrap()), ..CheckRequest::new(key) };
            emergency.deny(Verb::Check, &request).is_none()
        };
        assert!(
            is_allowed("a", Some("10.0.0.1"))
                && !is_allowed("b", Some("10.0.0.1"))
                && !is_allowed("b", Some("::ffff:10.0.0.1"))
        );
        assert!(
            is_allowed("a", Some("2001:db8::1"))
                && !is_allowed("a", Some("2001:db8::2"))
                && is_allowed("a", Some("2001:db8:0:1::"))
        );
        assert!(is_allowed("10.0.0.1", None) && !is_allowed("10.0.0.1", None) && is_allowed("a", None));
        assert_eq!(emergency.limit(), Some(limit));
        emergency.switch_off();
        assert!(!emergency.is_on() && emergency.limit().is_none() && is_allowed("a", Some("10.0.0.1")));
    }
}

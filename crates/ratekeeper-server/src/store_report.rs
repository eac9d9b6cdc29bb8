//! The store's health on the admin listener: a summary for `/readyz`, JSON for `/v1/store`, and metrics.

use crate::metrics::Exposition;
use ratekeeper::{
    BreakerState, ClockDrift, DurationHistogram, LeaseCounts, ServerReport, StoreCounts, StoreErrorCause,
    StoreFailureCounts, StoreReport,
};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::fmt::Display;

/// The store's health in one line, for `/readyz`. Server addresses are shown only if `detailed`, that is, to callers
/// with the token.
pub(crate) fn summary(report: &StoreReport, detailed: bool) -> String {
    let (servers, down) = (report.servers.len(), report.unavailable_servers().count());
    let applies = "on_store_failure applies";
    match (servers, down) {
        (0, _) => format!("degraded: no server found yet, so {applies}"),
        (_, 0) if report.uncovered_slots > 0 => {
            format!("degraded: {} slots have no server, so {applies} to their keys", report.uncovered_slots)
        }
        (_, 0) if report.read_only_servers().next().is_some() => {
            let count = report.read_only_servers().count();
            let who = match (detailed, servers) {
                (true, _) => {
                    report.read_only_servers().map(ServerReport::describe).collect::<Vec<_>>().join(", ")
                }
                (false, 1) => "the server".to_owned(),
                (false, _) => format!("{count} of {servers} servers"),
            };
            format!("degraded: no writes accepted by {who}, so {applies} to requests that need a write")
        }
        (_, 0) if report.failed_recently() => {
            let failing = report.servers.iter().filter(|server| detailed && server.problem.is_some());
            let failing: Vec<_> = failing.map(ServerReport::describe).collect();
            let by = if failing.is_empty() { String::new() } else { format!(" from {}", failing.join(", ")) };
            format!("degraded: requests got no answer{by} within the last second, so {applies} to them")
        }
        (_, 0) => "up".to_owned(),
        (1, _) if !detailed => format!("degraded: the server does not answer, so {applies}"),
        (_, _) if !detailed => {
            format!("degraded: {down} of {servers} servers do not answer, so {applies} to their keys")
        }
        _ => {
            let down: Vec<_> = report.unavailable_servers().map(ServerReport::describe).collect();
            format!("degraded: no answer from {}, so {applies} to their keys", down.join(", "))
        }
    }
}

/// A counter: its name in JSON, its metric, and the count.
type Counter<T> = (&'static str, &'static str, fn(&T) -> u64);

const STORE_COUNTERS: [Counter<StoreCounts>; 5] = [
    ("batches", "ratekeeper_store_batches_total", |counts| counts.batches),
    ("requests", "ratekeeper_store_requests_total", |counts| counts.requests),
    ("coalesced", "ratekeeper_store_coalesced_total", |counts| counts.coalesced),
    ("denied_from_memory", "ratekeeper_store_denied_from_memory_total", |counts| counts.denied_from_memory),
    ("local", "ratekeeper_store_local_decisions_total", |counts| counts.decided_locally),
];

const LEASE_COUNTERS: [Counter<LeaseCounts>; 11] = [
    ("units_lent", "ratekeeper_lease_units_lent_total", |counts| counts.lent),
    ("units_spent", "ratekeeper_lease_units_spent_total", |counts| counts.spent),
    ("units_returned", "ratekeeper_lease_units_returned_total", |counts| counts.returned),
    ("units_forfeited", "ratekeeper_lease_units_expired_total", |counts| counts.expired),
    ("granted", "ratekeeper_lease_granted_total", |counts| counts.granted),
    ("refused", "ratekeeper_lease_denied_total", |counts| counts.denied),
    ("refused_stale", "ratekeeper_lease_denied_stale_total", |counts| counts.denied_stale),
    ("asked", "ratekeeper_lease_misses_total", |counts| counts.misses),
    ("refills", "ratekeeper_lease_renewals_total", |counts| counts.renewals),
    ("lost", "ratekeeper_lease_unacknowledged_total", |counts| counts.unacknowledged),
    ("crowded", "ratekeeper_lease_table_full_total", |counts| counts.table_full),
];

/// The kinds of failed calls to a server and their counts.
fn failures(server: &ServerReport) -> [(&'static str, u64); 4] {
    let StoreFailureCounts { timeout, unreachable, busy, error } = server.failures;
    [("timeout", timeout), ("unreachable", unreachable), ("busy", busy), ("error", error)]
}

/// The body of `GET /v1/store`.
pub(crate) struct StoreAnswer<'a>(pub(crate) Option<&'a StoreReport>);

impl Serialize for StoreAnswer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let Some(report) = self.0 else {
            map.serialize_entry("store", "memory")?;
            map.serialize_entry("degraded", &false)?;
            return map.end();
        };
        map.serialize_entry("store", &report.address)?;
        map.serialize_entry("topology", report.topology.name())?;
        map.serialize_entry("degraded", &report.is_degraded())?;
        map.serialize_entry("live_nodes", &report.live_nodes)?;
        map.serialize_entry("uncovered_slots", &report.uncovered_slots)?;
        map.serialize_entry("servers", &report.servers.iter().map(ServerAnswer).collect::<Vec<_>>())?;
        map.serialize_entry("counts", &CountsAnswer(&report.counts))?;
        map.end()
    }
}

struct ServerAnswer<'a>(&'a ServerReport);

impl Serialize for ServerAnswer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ServerAnswer(server) = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("address", &server.address)?;
        map.serialize_entry("software", &server.software)?;
        map.serialize_entry("replicas", &server.replicas)?;
        map.serialize_entry("breaker", server.breaker.name())?;
        map.serialize_entry("trouble", &server.problem)?;
        map.serialize_entry("cause", &server.cause.map(StoreErrorCause::name))?;
        map.serialize_entry("takes_writes", &server.accepts_writes)?;
        map.serialize_entry("script_loaded", &server.has_script)?;
        map.serialize_entry("eviction_policy", &server.eviction_policy)?;
        map.serialize_entry("may_forget_limits", &server.may_evict)?;
        map.serialize_entry("drift_seconds", &server.clock_drift.map(ClockDrift::secs))?;
        map.serialize_entry("calls", &CallsAnswer::of(&server.latency))?;
        map.serialize_entry("failures", &Counts(failures(server)))?;
        map.serialize_entry("reconnects", &server.reconnects)?;
        map.serialize_entry("script_loads", &server.script_loads)?;
        map.end()
    }
}

#[derive(serde::Serialize)]
struct CallsAnswer {
    count: u64,
    mean_ms: Option<f64>,
    /// An upper bound of the percentile; `None` if it is beyond the histogram's last bound.
    p50_within_ms: Option<f64>,
    p99_within_ms: Option<f64>,
}

impl CallsAnswer {
    fn of(calls: &DurationHistogram) -> CallsAnswer {
        let count = calls.count();
        let within = |percent| calls.percentile_micros(percent).map(|micros| micros as f64 / 1e3);
        CallsAnswer {
            count,
            mean_ms: (count > 0).then(|| calls.sum_nanos as f64 / count as f64 / 1e6),
            p50_within_ms: within(50),
            p99_within_ms: within(99),
        }
    }
}

/// Counts by name.
struct Counts<const N: usize>([(&'static str, u64); N]);

impl<const N: usize> Serialize for Counts<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0)
    }
}

struct CountsAnswer<'a>(&'a StoreCounts);

impl Serialize for CountsAnswer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, _, count) in STORE_COUNTERS {
            map.serialize_entry(name, &count(self.0))?;
        }
        map.serialize_entry("degraded_seconds", &self.0.degraded_time.as_secs_f64())?;
        map.serialize_entry("leases", &LeasesAnswer(&self.0.leases))?;
        map.end()
    }
}

struct LeasesAnswer<'a>(&'a LeaseCounts);

impl Serialize for LeasesAnswer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("keys", &self.0.keys)?;
        map.serialize_entry("max_keys", &self.0.max_keys)?;
        for (name, _, count) in LEASE_COUNTERS {
            map.serialize_entry(name, &count(self.0))?;
        }
        map.end()
    }
}

impl Exposition {
    /// Writes the metrics of a shared store.
    pub(crate) fn store(&mut self, report: &StoreReport) {
        let StoreReport { topology, servers, live_nodes, counts, .. } = report;
        self.family("ratekeeper_store_info", [([("topology", topology.name())], 1)]);
        self.single("ratekeeper_store_degraded", u8::from(report.is_degraded()));
        self.single("ratekeeper_live_nodes", live_nodes);
        for (_, name, count) in STORE_COUNTERS {
            self.single(name, count(counts));
        }
        self.single("ratekeeper_store_degraded_seconds_total", counts.degraded_time.as_secs_f64());
        for (_, name, count) in LEASE_COUNTERS {
            self.single(name, count(&counts.leases));
        }
        self.single("ratekeeper_lease_keys", counts.leases.keys);
        let is_up = |server: &ServerReport| server.breaker == BreakerState::Closed;
        self.per_server("ratekeeper_store_up", servers, |server| u8::from(is_up(server)));
        self.per_server("ratekeeper_store_breaker_state", servers, |server| match server.breaker {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        });
        self.per_server("ratekeeper_store_writable", servers, |server| {
            u8::from(is_up(server) && server.accepts_writes)
        });
        self.per_server("ratekeeper_store_may_evict", servers, |server| u8::from(server.may_evict));
        self.per_server("ratekeeper_store_reconnects_total", servers, |server| server.reconnects);
        self.per_server("ratekeeper_store_script_loads_total", servers, |server| server.script_loads);
        let drifts = servers.iter().filter_map(|server| Some((of(server), server.clock_drift?.secs())));
        self.family("ratekeeper_store_clock_drift_seconds", drifts);
        let of_kind = |server| failures(server).map(|(kind, count)| (by(server, "kind", kind), count));
        self.family("ratekeeper_store_failures_total", servers.iter().flat_map(of_kind));
        let of_cause = |server| {
            StoreErrorCause::ALL.map(|cause| (by(server, "cause", cause.name()), server.errors.of(cause)))
        };
        self.family("ratekeeper_store_errors_total", servers.iter().flat_map(of_cause));
        let calls = servers.iter().map(|server| (of(server), &server.latency));
        self.durations("ratekeeper_store_call_duration_seconds", calls);
    }

    /// Writes a family with one sample per server.
    fn per_server<V: Display>(
        &mut self,
        name: &str,
        servers: &[ServerReport],
        value: impl Fn(&ServerReport) -> V,
    ) {
        self.family(name, servers.iter().map(|server| (of(server), value(server))));
    }
}

/// The labels of a server.
fn of(server: &ServerReport) -> [(&str, &str); 1] {
    [("server", &server.address)]
}

/// The labels of a server, and another.
fn by<'a>(server: &'a ServerReport, label: &'a str, value: &'a str) -> [(&'a str, &'a str); 2] {
    [("server", &server.address), (label, value)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper::{StoreErrorCounts, Topology};
    use std::time::Duration;

    fn server(address: &str, breaker: BreakerState, trouble: Option<&str>) -> ServerReport {
        ServerReport {
            address: address.to_owned(),
            software: None,
            replicas: 0,
            breaker,
            problem: trouble.map(str::to_owned),
            cause: None,
            accepts_writes: true,
            has_script: true,
            eviction_policy: None,
            may_evict: false,
            clock_drift: None,
            latency: DurationHistogram::default(),
            failures: StoreFailureCounts::default(),
            errors: StoreErrorCounts::default(),
            reconnects: 0,
            script_loads: 0,
        }
    }

    fn report(servers: Vec<ServerReport>, uncovered_slots: usize, last_miss_ms: Option<u64>) -> StoreReport {
        StoreReport {
            address: String::new(),
            topology: Topology::Cluster,
            servers,
            uncovered_slots,
            last_failure: last_miss_ms.map(Duration::from_millis),
            live_nodes: 1,
            counts: StoreCounts::default(),
        }
    }

    #[test]
    fn degradation_is_summarised_and_addresses_need_the_token() {
        let up =
            || vec![server("a:1", BreakerState::Closed, None), server("b:1", BreakerState::Closed, None)];
        let failing = || {
            vec![server("a:1", BreakerState::Closed, Some("OOM")), server("b:1", BreakerState::Closed, None)]
        };
        let read_only = || {
            let failing = server("a:1", BreakerState::Closed, Some("OOM"));
            vec![ServerReport { accepts_writes: false, ..failing }, server("b:1", BreakerState::Closed, None)]
        };
        let down = || {
            vec![
                server("a:1", BreakerState::Open, Some("timed out")),
                server("b:1", BreakerState::Closed, None),
            ]
        };
        for (report, brief, detailed) in [
            (report(up(), 0, None), "up", "up"),
            (report(up(), 0, Some(1_500)), "up", "up"),
            (report(Vec::new(), 0, None), "no server found yet", "no server found yet"),
            (report(down(), 0, Some(10)), "1 of 2 servers", "no answer from a:1 (timed out), so"),
            (report(read_only(), 0, None), "by 1 of 2 servers, so", "no writes accepted by a:1 (OOM), so"),
            (report(up(), 7, None), "7 slots have no server, so", "7 slots have no server, so"),
            (report(up(), 0, Some(10)), "requests got no answer within", "requests got no answer within"),
            (
                report(failing(), 0, Some(10)),
                "requests got no answer within",
                "no answer from a:1 (OOM) within",
            ),
        ] {
            for (summary, expected) in [(summary(&report, false), brief), (summary(&report, true), detailed)]
            {
                assert!(summary.contains(expected), "{summary:?} lacks {expected:?}");
                assert_eq!(summary.starts_with("degraded: "), report.is_degraded(), "{summary}");
            }
        }
    }
}

//! The store's health on the admin listener: a summary for `/readyz`, JSON for `/v1/store`, and metrics.

use crate::metrics::{Exposition, MetricKind};
use ratekeeper::{
    BreakerState, ClockDrift, DurationHistogram, LeaseCounts, ServerReport, StoreErrorCause, StoreReport,
    Topology,
};
use serde::Serialize;

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

/// The body of `GET /v1/store`.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum StoreAnswer<'a> {
    Memory { store: &'static str, degraded: bool },
    Shared(Box<SharedStoreAnswer<'a>>),
}

#[derive(Serialize)]
pub(crate) struct SharedStoreAnswer<'a> {
    store: &'a str,
    topology: &'static str,
    degraded: bool,
    live_nodes: u32,
    uncovered_slots: usize,
    servers: Vec<ServerAnswer<'a>>,
    counts: CountsAnswer,
}

#[derive(Serialize)]
struct ServerAnswer<'a> {
    address: &'a str,
    software: Option<&'a str>,
    replicas: u32,
    breaker: &'static str,
    trouble: Option<&'a str>,
    cause: Option<&'static str>,
    takes_writes: bool,
    script_loaded: bool,
    eviction_policy: Option<&'a str>,
    may_forget_limits: bool,
    drift_seconds: Option<f64>,
    calls: CallsAnswer,
    failures: FailuresAnswer,
    reconnects: u64,
    script_loads: u64,
}

#[derive(Serialize)]
struct CallsAnswer {
    count: u64,
    mean_ms: Option<f64>,
    /// An upper bound of the percentile; `None` if it is beyond the histogram's last bound.
    p50_within_ms: Option<f64>,
    p99_within_ms: Option<f64>,
}

#[derive(Serialize)]
struct FailuresAnswer {
    timeout: u64,
    unreachable: u64,
    busy: u64,
    error: u64,
}

#[derive(Serialize)]
struct CountsAnswer {
    batches: u64,
    requests: u64,
    coalesced: u64,
    denied_from_memory: u64,
    local: u64,
    degraded_seconds: f64,
    leases: LeasesAnswer,
}

#[derive(Serialize)]
struct LeasesAnswer {
    keys: usize,
    max_keys: usize,
    units_lent: u64,
    units_spent: u64,
    units_returned: u64,
    units_forfeited: u64,
    granted: u64,
    refused: u64,
    refused_stale: u64,
    asked: u64,
    refills: u64,
    lost: u64,
    crowded: u64,
}

impl LeasesAnswer {
    fn of(counts: &LeaseCounts) -> LeasesAnswer {
        LeasesAnswer {
            keys: counts.keys,
            max_keys: counts.max_keys,
            units_lent: counts.lent,
            units_spent: counts.spent,
            units_returned: counts.returned,
            units_forfeited: counts.expired,
            granted: counts.granted,
            refused: counts.denied,
            refused_stale: counts.denied_stale,
            asked: counts.misses,
            refills: counts.renewals,
            lost: counts.unacknowledged,
            crowded: counts.table_full,
        }
    }
}

impl<'a> StoreAnswer<'a> {
    pub(crate) fn of(report: Option<&'a StoreReport>) -> StoreAnswer<'a> {
        let Some(report) = report else { return StoreAnswer::Memory { store: "memory", degraded: false } };
        let counts = &report.counts;
        StoreAnswer::Shared(Box::new(SharedStoreAnswer {
            store: &report.address,
            topology: report.topology.name(),
            degraded: report.is_degraded(),
            live_nodes: report.live_nodes,
            uncovered_slots: report.uncovered_slots,
            servers: report.servers.iter().map(ServerAnswer::of).collect(),
            counts: CountsAnswer {
                batches: counts.batches,
                requests: counts.requests,
                coalesced: counts.coalesced,
                denied_from_memory: counts.denied_from_memory,
                local: counts.decided_locally,
                degraded_seconds: counts.degraded_time.as_secs_f64(),
                leases: LeasesAnswer::of(&counts.leases),
            },
        }))
    }
}

impl<'a> ServerAnswer<'a> {
    fn of(server: &'a ServerReport) -> ServerAnswer<'a> {
        let failures = &server.failures;
        ServerAnswer {
            address: &server.address,
            software: server.software.as_deref(),
            replicas: server.replicas,
            breaker: server.breaker.name(),
            trouble: server.problem.as_deref(),
            cause: server.cause.map(StoreErrorCause::name),
            takes_writes: server.accepts_writes,
            script_loaded: server.has_script,
            eviction_policy: server.eviction_policy.as_deref(),
            may_forget_limits: server.may_evict,
            drift_seconds: server.clock_drift.map(ClockDrift::secs),
            calls: CallsAnswer::of(&server.latency),
            failures: FailuresAnswer {
                timeout: failures.timeout,
                unreachable: failures.unreachable,
                busy: failures.busy,
                error: failures.error,
            },
            reconnects: server.reconnects,
            script_loads: server.script_loads,
        }
    }
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

impl Exposition {
    /// Writes the metrics of this node's leases.
    fn leases(&mut self, counts: &LeaseCounts) {
        use MetricKind::{Counter, Gauge};
        for (name, help, count) in [
            ("ratekeeper_lease_units_lent_total", "Units leased from the store.", counts.lent),
            ("ratekeeper_lease_units_spent_total", "Leased units that were spent.", counts.spent),
            (
                "ratekeeper_lease_units_returned_total",
                "Leased units that were returned to the store.",
                counts.returned,
            ),
            (
                "ratekeeper_lease_units_expired_total",
                "Leased units that expired: neither spent nor returned in time.",
                counts.expired,
            ),
            ("ratekeeper_lease_granted_total", "Draws granted from a lease.", counts.granted),
            (
                "ratekeeper_lease_denied_total",
                "Draws denied without a store call, because the store had nothing left a moment ago.",
                counts.denied,
            ),
            (
                "ratekeeper_lease_denied_stale_total",
                "Draws denied without a store call although enough units may have been refilled meanwhile.",
                counts.denied_stale,
            ),
            (
                "ratekeeper_lease_misses_total",
                "Draws of leased limits that were sent to the store.",
                counts.misses,
            ),
            (
                "ratekeeper_lease_renewals_total",
                "Lease requests and reports sent to the store without a draw.",
                counts.renewals,
            ),
            (
                "ratekeeper_lease_unacknowledged_total",
                "Lease requests and reports that the store did not acknowledge.",
                counts.unacknowledged,
            ),
            (
                "ratekeeper_lease_table_full_total",
                "Draws whose keys did not fit into the lease table.",
                counts.table_full,
            ),
        ] {
            self.single(name, Counter, help, count);
        }
        self.single("ratekeeper_lease_keys", Gauge, "Keys in the lease table.", counts.keys);
    }

    /// Writes the metrics of a shared store.
    pub(crate) fn store(&mut self, report: &StoreReport) {
        use MetricKind::{Counter, Gauge};
        let StoreReport { topology, servers, live_nodes, counts, .. } = report;
        self.store_topology(*topology);
        self.single(
            "ratekeeper_store_degraded",
            Gauge,
            "1 while some requests are decided without the store.",
            u8::from(report.is_degraded()),
        );
        self.single("ratekeeper_live_nodes", Gauge, "Nodes that share the store, as last known.", live_nodes);
        for (name, help, count) in [
            (
                "ratekeeper_store_batches_total",
                "Calls to the store, each with a batch of requests.",
                counts.batches,
            ),
            ("ratekeeper_store_requests_total", "Requests sent to the store.", counts.requests),
            ("ratekeeper_store_coalesced_total", "Requests coalesced into an equal one.", counts.coalesced),
            (
                "ratekeeper_store_denied_from_memory_total",
                "Requests denied without a store call, because no unit can have been refilled yet.",
                counts.denied_from_memory,
            ),
            (
                "ratekeeper_store_local_decisions_total",
                "Requests decided by this node's share of a limit, because the store did not answer.",
                counts.decided_locally,
            ),
        ] {
            self.single(name, Counter, help, count);
        }
        self.single(
            "ratekeeper_store_degraded_seconds_total",
            Counter,
            "Seconds in which some requests were decided without the store.",
            counts.degraded_time.as_secs_f64(),
        );
        self.leases(&counts.leases);
        self.per_server(
            "ratekeeper_store_up",
            Gauge,
            "1 if the circuit breaker is closed.",
            servers,
            |server| u8::from(server.breaker == BreakerState::Closed),
        );
        let help = "Circuit breaker: 0 closed, 1 half-open, 2 open.";
        self.per_server("ratekeeper_store_breaker_state", Gauge, help, servers, |server| {
            match server.breaker {
                BreakerState::Closed => 0,
                BreakerState::HalfOpen => 1,
                BreakerState::Open => 2,
            }
        });
        let help = "1 if the circuit breaker is closed and the server accepts writes.";
        self.per_server("ratekeeper_store_writable", Gauge, help, servers, |server| {
            u8::from(server.breaker == BreakerState::Closed && server.accepts_writes)
        });
        let help = "1 if the server may evict states of clients that are being denied.";
        self.per_server("ratekeeper_store_may_evict", Gauge, help, servers, |server| {
            u8::from(server.may_evict)
        });
        let help = "Connections made after the initial ones.";
        self.per_server("ratekeeper_store_reconnects_total", Counter, help, servers, |server| {
            server.reconnects
        });
        let help = "Number of times the script was loaded.";
        self.per_server("ratekeeper_store_script_loads_total", Counter, help, servers, |server| {
            server.script_loads
        });
        self.store_drift(servers);
        self.store_failures(servers);
        self.store_errors(servers);
        self.store_calls(servers);
    }

    fn store_topology(&mut self, topology: Topology) {
        let labels: &[(&str, &str)] = &[("topology", topology.name())];
        self.family("ratekeeper_store_info", MetricKind::Gauge, "The store's topology.", [(labels, 1)]);
    }

    /// Writes a family with one sample per server.
    fn per_server<V: std::fmt::Display>(
        &mut self,
        name: &str,
        kind: MetricKind,
        help: &str,
        servers: &[ServerReport],
        value: impl Fn(&ServerReport) -> V,
    ) {
        let labels: Vec<_> = servers.iter().map(|server| [("server", server.address.as_str())]).collect();
        let samples = labels.iter().zip(servers).map(|(labels, server)| (&labels[..], value(server)));
        self.family(name, kind, help, samples);
    }

    fn store_drift(&mut self, servers: &[ServerReport]) {
        let known = servers.iter().filter_map(|server| Some((&*server.address, server.clock_drift?)));
        let known: Vec<_> = known.map(|(address, drift)| ([("server", address)], drift.secs())).collect();
        self.family(
            "ratekeeper_store_clock_drift_seconds",
            MetricKind::Gauge,
            "How far the server's clock is ahead of this node's.",
            known.iter().map(|(labels, drift)| (&labels[..], drift)),
        );
    }

    fn store_failures(&mut self, servers: &[ServerReport]) {
        let samples: Vec<_> = servers
            .iter()
            .flat_map(|server| {
                let failures = &server.failures;
                let kinds = [
                    ("timeout", failures.timeout),
                    ("unreachable", failures.unreachable),
                    ("busy", failures.busy),
                    ("error", failures.error),
                ];
                kinds.map(|(kind, count)| ([("server", &*server.address), ("kind", kind)], count))
            })
            .collect();
        self.family(
            "ratekeeper_store_failures_total",
            MetricKind::Counter,
            "Failed calls by kind of failure.",
            samples.iter().map(|(labels, count)| (&labels[..], count)),
        );
    }

    fn store_errors(&mut self, servers: &[ServerReport]) {
        let of_server = |server: &'_ ServerReport| {
            StoreErrorCause::ALL.map(|cause| (cause.name(), server.errors.of(cause)))
        };
        let samples: Vec<_> = servers
            .iter()
            .flat_map(|server| {
                of_server(server)
                    .map(|(cause, count)| ([("server", server.address.as_str()), ("cause", cause)], count))
            })
            .collect();
        self.family(
            "ratekeeper_store_errors_total",
            MetricKind::Counter,
            "Errors returned by the server and failed attempts to use it, by cause.",
            samples.iter().map(|(labels, count)| (&labels[..], count)),
        );
    }

    fn store_calls(&mut self, servers: &[ServerReport]) {
        let calls = servers.iter().map(|server| (&*server.address, &server.latency));
        let name = "ratekeeper_store_call_duration_seconds";
        self.durations_by("server", name, "Duration of calls that were answered.", calls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper::{StoreCounts, StoreErrorCounts, StoreFailureCounts};
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

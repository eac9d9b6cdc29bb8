//! How the store is doing, as the admin port tells it: in words, as JSON, and as metrics.

use crate::metrics::{Exposition, MetricKind};
use ratekeeper::{
    BreakerState, ClockDrift, DurationHistogram, LeaseCounts, ServerReport, StoreErrorCause, StoreReport,
    Topology,
};
use serde::Serialize;

/// What `/readyz` says of the store; where its servers are only to who has the token.
pub(crate) fn in_words(report: &StoreReport, in_full: bool) -> String {
    let (servers, away) = (report.servers.len(), report.away().count());
    let holds = "rules hold as their on_store_failure says";
    match (servers, away) {
        (0, _) => format!("degraded: none of its servers was found yet, so {holds}"),
        (_, 0) if report.uncovered_slots > 0 => {
            format!("degraded: {} slots have no server, so {holds} for their keys", report.uncovered_slots)
        }
        (_, 0) if report.read_only().next().is_some() => {
            let (count, holds) = (report.read_only().count(), "for requests that have to be written");
            let who = match (in_full, servers) {
                (true, _) => report.read_only().map(ServerReport::in_words).collect::<Vec<_>>().join(", "),
                (false, 1) => "it".to_owned(),
                (false, _) => format!("{count} of {servers} servers"),
            };
            let modes = "rules hold as their on_store_failure says";
            format!("degraded: no writes are taken by {who}, so {modes} {holds}")
        }
        (_, 0) if report.has_missed() => {
            let refused = report.servers.iter().filter(|server| in_full && server.trouble.is_some());
            let refused: Vec<_> = refused.map(ServerReport::in_words).collect();
            let by = if refused.is_empty() { String::new() } else { format!(" from {}", refused.join(", ")) };
            format!("degraded: requests got no answer{by} within the last second, so {holds} for them")
        }
        (_, 0) => "answers".to_owned(),
        (1, _) if !in_full => format!("degraded: it gives no answer, so {holds}"),
        (_, _) if !in_full => {
            format!("degraded: {away} of {servers} servers give no answer, so {holds} for their keys")
        }
        _ => {
            let away: Vec<_> = report.away().map(ServerReport::in_words).collect();
            format!("degraded: no answer from {}, so {holds} for their keys", away.join(", "))
        }
    }
}

/// What `GET /v1/store` answers.
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
    /// So many in a hundred took no longer; nothing if they took longer than is counted.
    p50_within_ms: Option<f64>,
    p99_within_ms: Option<f64>,
}

#[derive(Serialize)]
struct FailuresAnswer {
    timeout: u64,
    unreachable: u64,
    busy: u64,
    refused: u64,
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
            units_forfeited: counts.forfeited,
            granted: counts.granted,
            refused: counts.refused,
            refused_stale: counts.stale,
            asked: counts.asked,
            refills: counts.refills,
            lost: counts.lost,
            crowded: counts.crowded,
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
                local: counts.local,
                degraded_seconds: counts.away.as_secs_f64(),
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
            trouble: server.trouble.as_deref(),
            cause: server.cause.map(StoreErrorCause::name),
            takes_writes: server.takes_writes,
            script_loaded: server.has_script,
            eviction_policy: server.eviction_policy.as_deref(),
            may_forget_limits: server.may_forget,
            drift_seconds: server.drift.map(ClockDrift::secs),
            calls: CallsAnswer::of(&server.calls),
            failures: FailuresAnswer {
                timeout: failures.timeout,
                unreachable: failures.unreachable,
                busy: failures.busy,
                refused: failures.refused,
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
    /// What this node was lent.
    fn leases(&mut self, counts: &LeaseCounts) {
        use MetricKind::{Counter, Gauge};
        for (name, help, count) in [
            ("ratekeeper_lease_units_lent_total", "Units that the store lent this node.", counts.lent),
            ("ratekeeper_lease_units_spent_total", "Of the units lent, those spent.", counts.spent),
            (
                "ratekeeper_lease_units_returned_total",
                "Of the units lent, those given back.",
                counts.returned,
            ),
            (
                "ratekeeper_lease_units_forfeited_total",
                "Of the units lent, those that were neither spent nor given back in time.",
                counts.forfeited,
            ),
            ("ratekeeper_lease_granted_total", "Draws granted from what was lent.", counts.granted),
            (
                "ratekeeper_lease_refused_total",
                "Draws refused without asking, because the store had nothing left a moment ago.",
                counts.refused,
            ),
            (
                "ratekeeper_lease_refused_stale_total",
                "Of those, draws for which enough may have come back meanwhile.",
                counts.stale,
            ),
            (
                "ratekeeper_lease_asked_total",
                "Draws for which the store was asked all the same.",
                counts.asked,
            ),
            (
                "ratekeeper_lease_refills_total",
                "Times that the store was asked or told of a lease without a draw.",
                counts.refills,
            ),
            (
                "ratekeeper_lease_lost_total",
                "Times that the store gave no answer to what it was asked or told of a lease.",
                counts.lost,
            ),
            (
                "ratekeeper_lease_crowded_total",
                "Draws for whose keys there was no room among the leases.",
                counts.crowded,
            ),
        ] {
            self.single(name, Counter, help, count);
        }
        self.single("ratekeeper_lease_keys", Gauge, "Keys whose demand is watched.", counts.keys);
    }

    /// How a shared store is doing.
    pub(crate) fn store(&mut self, report: &StoreReport) {
        use MetricKind::{Counter, Gauge};
        let StoreReport { topology, servers, live_nodes, counts, .. } = report;
        self.store_topology(*topology);
        self.single(
            "ratekeeper_store_degraded",
            Gauge,
            "1 while some requests are answered without the store.",
            u8::from(report.is_degraded()),
        );
        self.single("ratekeeper_live_nodes", Gauge, "Nodes that share the store, as last known.", live_nodes);
        for (name, help, count) in [
            (
                "ratekeeper_store_batches_total",
                "Calls to the store, each with many requests.",
                counts.batches,
            ),
            ("ratekeeper_store_requests_total", "Requests that were sent to the store.", counts.requests),
            (
                "ratekeeper_store_coalesced_total",
                "Requests that travelled as part of another of the same kind.",
                counts.coalesced,
            ),
            (
                "ratekeeper_store_denied_from_memory_total",
                "Requests refused without asking, because no unit can have come back yet.",
                counts.denied_from_memory,
            ),
            (
                "ratekeeper_store_local_decisions_total",
                "Requests that this node held to its share of a limit, because the store gave no answer.",
                counts.local,
            ),
        ] {
            self.single(name, Counter, help, count);
        }
        self.single(
            "ratekeeper_store_degraded_seconds_total",
            Counter,
            "For how long some requests were answered without the store.",
            counts.away.as_secs_f64(),
        );
        self.leases(&counts.leases);
        self.of_servers("ratekeeper_store_up", Gauge, "1 if the server is asked.", servers, |server| {
            u8::from(server.breaker == BreakerState::Closed)
        });
        let states =
            "0 if the server is asked (closed), 1 while it is tried (half-open), 2 if it is not (open).";
        self.of_servers("ratekeeper_store_breaker_state", Gauge, states, servers, |server| {
            match server.breaker {
                BreakerState::Closed => 0,
                BreakerState::HalfOpen => 1,
                BreakerState::Open => 2,
            }
        });
        let help = "1 if the server is asked and takes writes.";
        self.of_servers("ratekeeper_store_writable", Gauge, help, servers, |server| {
            u8::from(server.breaker == BreakerState::Closed && server.takes_writes)
        });
        let help = "1 if the server may drop states of clients that are being refused.";
        self.of_servers("ratekeeper_store_may_forget", Gauge, help, servers, |server| {
            u8::from(server.may_forget)
        });
        let help = "Connections that were made beyond those that it began with.";
        self.of_servers("ratekeeper_store_reconnects_total", Counter, help, servers, |server| {
            server.reconnects
        });
        let help = "Times that the script was loaded.";
        self.of_servers("ratekeeper_store_script_loads_total", Counter, help, servers, |server| {
            server.script_loads
        });
        self.store_drift(servers);
        self.store_failures(servers);
        self.store_errors(servers);
        self.store_calls(servers);
    }

    fn store_topology(&mut self, topology: Topology) {
        let labels: &[(&str, &str)] = &[("topology", topology.name())];
        self.family("ratekeeper_store_info", MetricKind::Gauge, "What kind of store it is.", [(labels, 1)]);
    }

    /// A family with a sample for each server.
    fn of_servers<V: std::fmt::Display>(
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
        let known = servers.iter().filter_map(|server| Some((&*server.address, server.drift?)));
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
                    ("refused", failures.refused),
                ];
                kinds.map(|(kind, count)| ([("server", &*server.address), ("kind", kind)], count))
            })
            .collect();
        self.family(
            "ratekeeper_store_failures_total",
            MetricKind::Counter,
            "Calls that got no answer, by what went wrong.",
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
            "Errors that the server answered with, and attempts to use it that failed, by cause.",
            samples.iter().map(|(labels, count)| (&labels[..], count)),
        );
    }

    fn store_calls(&mut self, servers: &[ServerReport]) {
        let calls = servers.iter().map(|server| (&*server.address, &server.calls));
        self.durations_by("server", "ratekeeper_store_call_duration_seconds", "How long calls took.", calls);
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
            trouble: trouble.map(str::to_owned),
            cause: None,
            takes_writes: true,
            has_script: true,
            eviction_policy: None,
            may_forget: false,
            drift: None,
            calls: DurationHistogram::default(),
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
            last_miss: last_miss_ms.map(Duration::from_millis),
            live_nodes: 1,
            counts: StoreCounts::default(),
        }
    }

    #[test]
    fn whatever_goes_without_the_store_is_said_and_where_only_to_some() {
        let well =
            || vec![server("a:1", BreakerState::Closed, None), server("b:1", BreakerState::Closed, None)];
        let full = || {
            vec![server("a:1", BreakerState::Closed, Some("OOM")), server("b:1", BreakerState::Closed, None)]
        };
        let read_only = || {
            let full = server("a:1", BreakerState::Closed, Some("OOM"));
            vec![ServerReport { takes_writes: false, ..full }, server("b:1", BreakerState::Closed, None)]
        };
        let away = || {
            vec![
                server("a:1", BreakerState::Open, Some("timed out")),
                server("b:1", BreakerState::Closed, None),
            ]
        };
        for (report, to_all, in_full) in [
            (report(well(), 0, None), "answers", "answers"),
            (report(well(), 0, Some(1_500)), "answers", "answers"),
            (report(Vec::new(), 0, None), "none of its servers", "none of its servers"),
            (report(away(), 0, Some(10)), "1 of 2 servers", "no answer from a:1 (timed out), so"),
            (report(read_only(), 0, None), "by 1 of 2 servers, so", "no writes are taken by a:1 (OOM), so"),
            (report(well(), 7, None), "7 slots have no server, so", "7 slots have no server, so"),
            (report(well(), 0, Some(10)), "requests got no answer within", "requests got no answer within"),
            (report(full(), 0, Some(10)), "requests got no answer within", "no answer from a:1 (OOM) within"),
        ] {
            for (said, expected) in [(in_words(&report, false), to_all), (in_words(&report, true), in_full)] {
                assert!(said.contains(expected), "{said:?} lacks {expected:?}");
                assert_eq!(said.starts_with("degraded: "), report.is_degraded(), "{said}");
            }
        }
    }
}

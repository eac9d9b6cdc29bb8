//! The admin port: how the server is, what it has decided, and the switches.
//!
//! Whatever reveals or changes something needs the token. Whether the server lives and is ready is told to everybody,
//! because those who ask have none: load balancers and orchestrators.

use crate::api::MAX_CHECK_BYTES;
use crate::connection_caps::ConnectionCaps;
use crate::cross_site::AllowedOrigins;
use crate::denial_log::DenialLog;
use crate::explain::explain;
use crate::http::{
    AdmittedRequest, BodyBudget, Handler, HttpCall, HttpError, JSON, RequestHead, ResponseLength,
    ResponseWriter, TEXT,
};
use crate::listener::{ConnectionGauge, ListenerName};
use crate::maintenance::StoreMaintenance;
use crate::metrics::{self, Exposition, MetricKind};
use crate::rule_source::RuleSource;
use crate::store_report::{self, StoreAnswer};
use crate::token::Token;
use hyper::StatusCode;
use ratekeeper::{Algorithm, Limit, Quota, RuleLimiter, Store, StoreHealth, StoreReport};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use tokio::sync::mpsc;

/// The most bytes of a body.
const MAX_BODY_BYTES: usize = 4096;

/// What the admin port tells of, beside the gate.
#[derive(Debug)]
pub(crate) struct AdminState {
    /// Where rules come from.
    pub(crate) feed: RuleSource,
    /// The log of denials.
    pub(crate) denials: Arc<DenialLog>,
    /// Whether the server is on its way out.
    pub(crate) is_draining: AtomicBool,
    /// How many connections there are.
    pub(crate) crowd: Arc<ConnectionGauge>,
    /// When the server started, in Unix seconds.
    pub(crate) started_at: u64,
    /// Wakes whoever loads rules.
    pub(crate) reload: mpsc::Sender<()>,
    /// How many log lines were dropped.
    pub(crate) dropped_log_lines: Arc<AtomicU64>,
    /// How many connections each listener may have.
    pub(crate) caps: ConnectionCaps,
    /// How many files the process may have open.
    pub(crate) max_open_files: Option<u64>,
    /// What unfinished bodies take.
    pub(crate) bodies: Arc<BodyBudget>,
}

/// The admin port.
#[derive(Debug)]
pub(crate) struct Admin<S> {
    gate: RuleLimiter<S>,
    tower: Arc<AdminState>,
    token: Token,
    allowed_origins: AllowedOrigins,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminRoute {
    Livez,
    /// Whether who asks has the token, and so is told everything.
    Readyz {
        in_full: bool,
    },
    Version,
    Metrics,
    Emergency(EmergencySwitch),
    Store,
    Explain,
    Reload,
}

/// What is to be done with the emergency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmergencySwitch {
    Look,
    On,
    Off,
}

impl<S: Store + StoreHealth + StoreMaintenance> Admin<S> {
    pub(crate) fn new(
        gate: RuleLimiter<S>,
        tower: Arc<AdminState>,
        token: Token,
        allowed_origins: AllowedOrigins,
    ) -> Admin<S> {
        Admin { gate, tower, token, allowed_origins }
    }

    fn tell(&self, call: &HttpCall<'_, AdminRoute>, out: &mut impl ResponseWriter) -> Result<(), HttpError> {
        match call.route {
            AdminRoute::Livez => text(StatusCode::OK, "ok", out),
            AdminRoute::Readyz { in_full } => self.readiness(in_full, out),
            AdminRoute::Version => {
                out.begin(StatusCode::OK, JSON);
                out.end_json(&VersionAnswer { name: "ratekeeper", version: env!("CARGO_PKG_VERSION") });
            }
            AdminRoute::Metrics => {
                out.begin(StatusCode::OK, metrics::CONTENT_TYPE);
                out.end(self.metrics().as_bytes());
            }
            AdminRoute::Emergency(switch) => self.emergency(switch, call.body, out)?,
            AdminRoute::Store => {
                out.begin(StatusCode::OK, JSON);
                out.end_json(&StoreAnswer::of(self.gate.store().health().as_ref()));
            }
            // It asks the store, and was answered before.
            AdminRoute::Explain => {}
            AdminRoute::Reload => {
                // If it is full, somebody has asked already and is not served yet.
                let _ = self.tower.reload.try_send(());
                text(
                    StatusCode::ACCEPTED,
                    "the rules are being read again: see /readyz for what came of it\n",
                    out,
                );
            }
        }
        Ok(())
    }

    async fn explain(&self, body: &[u8], out: &mut (impl ResponseWriter + Send)) -> Result<(), HttpError> {
        let explained = explain(&self.gate, body).await?;
        out.begin(StatusCode::OK, JSON);
        out.end_json(&explained);
        Ok(())
    }

    fn readiness(&self, in_full: bool, out: &mut impl ResponseWriter) {
        let is_draining = self.tower.is_draining.load(Relaxed);
        let trouble = self.tower.feed.trouble();
        let rules = match (&trouble, in_full) {
            (None, _) => "in force",
            (Some(_), false) => {
                "the file has mistakes, so the rules before it are in force: ask with the token for more"
            }
            (Some(_), true) => "the file has mistakes, so the rules before it are in force",
        };
        let emergency = self.gate.emergency().limit().map(|limit| limit.quota().to_string());
        let health = self.gate.store().health();
        // Degraded is no reason to send clients elsewhere: they would only find other nodes without the store.
        out.begin(if is_draining { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }, JSON);
        out.end_json(&ReadinessAnswer {
            ready: !is_draining,
            draining: is_draining,
            degraded: health.as_ref().map(StoreReport::is_degraded),
            rules,
            mistakes: trouble.as_deref().filter(|_| in_full),
            store: health.as_ref().map(|report| store_report::in_words(report, in_full)),
            memory: self.gate.store().shortage(),
            emergency_limit: emergency.as_deref(),
            connections: self.tower.caps.shortage.map(|shortage| shortage.to_string()),
        });
    }

    fn emergency(
        &self,
        switch: EmergencySwitch,
        body: &[u8],
        out: &mut impl ResponseWriter,
    ) -> Result<(), HttpError> {
        let emergency = self.gate.emergency();
        match switch {
            EmergencySwitch::Look => {}
            EmergencySwitch::Off => {
                emergency.switch_off();
                tracing::warn!("the emergency limit is off");
            }
            EmergencySwitch::On => {
                let wanted = serde_json::from_slice::<EmergencyBody<'_>>(body)
                    .map_err(|error| HttpError::emergency(&error))?;
                let quota: Quota = wanted.limit.parse().map_err(|error| HttpError::emergency(&error))?;
                let limit = Limit::new(Algorithm::TokenBucket, quota)
                    .map_err(|error| HttpError::emergency(&error))?;
                emergency.switch_on(limit);
                tracing::warn!(%quota, "the emergency limit is on, for every address");
            }
        }
        let limit = emergency.limit().map(|limit| limit.quota().to_string());
        out.begin(StatusCode::OK, JSON);
        out.end_json(&EmergencyAnswer { on: limit.is_some(), limit: limit.as_deref() });
        Ok(())
    }

    fn metrics(&self) -> String {
        use MetricKind::{Counter, Gauge};
        let tower = &self.tower;
        let mut text = Exposition::new();
        let version: &[(&str, &str)] = &[("version", env!("CARGO_PKG_VERSION"))];
        text.family("ratekeeper_build_info", Gauge, "Which version runs.", [(version, 1)]);
        text.single("ratekeeper_start_time_seconds", Gauge, "When the server started.", tower.started_at);
        let outcomes = self.gate.outcomes();
        text.decisions(&outcomes);
        text.odd_requests(&outcomes);
        text.durations(
            "ratekeeper_decision_duration_seconds",
            "From reading a request's fields to its verdict; one docket in 64 is timed.",
            &outcomes.durations,
        );
        text.single(
            "ratekeeper_denials_unlogged_total",
            Counter,
            "Denials that were counted and not logged, because there were too many.",
            tower.denials.silent(),
        );
        text.single(
            "ratekeeper_log_lines_dropped_total",
            Counter,
            "Log lines that could not be written in time, or not at all.",
            tower.dropped_log_lines.load(Relaxed),
        );
        if let Some(stats) = self.gate.store().census() {
            text.memory(&stats);
        }
        if let Some(report) = self.gate.store().health() {
            text.store(&report);
        }
        let rules = self.gate.with_rules(|rules| rules.rules().len());
        text.single(
            "ratekeeper_rules",
            Gauge,
            "Rules in force, the default, tiers and clients included.",
            rules,
        );
        text.single(
            "ratekeeper_rules_loads_total",
            Counter,
            "How often rules were put in force.",
            self.gate.installs(),
        );
        text.single(
            "ratekeeper_rules_load_failures_total",
            Counter,
            "How often a file could not take effect.",
            tower.feed.failures(),
        );
        text.single(
            "ratekeeper_rules_last_load_successful",
            Gauge,
            "1 if the rules in force are those in the file.",
            u8::from(tower.feed.trouble().is_none()),
        );
        text.single(
            "ratekeeper_rules_last_load_success_timestamp_seconds",
            Gauge,
            "When rules last took effect.",
            tower.feed.loaded_at(),
        );
        let is_on = u8::from(self.gate.emergency().limit().is_some());
        text.single("ratekeeper_emergency_limit_on", Gauge, "1 while the emergency limit is on.", is_on);
        let labels = ListenerName::ALL.map(|port| [("listener", port.as_str())]);
        let sizes =
            labels.iter().zip(ListenerName::ALL).map(|(label, port)| (&label[..], tower.crowd.size(port)));
        text.family("ratekeeper_connections", Gauge, "Open connections.", sizes);
        let caps = labels.iter().zip(ListenerName::ALL).map(|(label, port)| {
            (&label[..], if port == ListenerName::Admin { tower.caps.admin } else { tower.caps.each })
        });
        text.family("ratekeeper_connections_max", Gauge, "The most connections at once.", caps);
        text.single(
            "ratekeeper_idle_connections_closed_total",
            Counter,
            "Idle connections to the admin port that were closed to let others in.",
            tower.crowd.evicted(),
        );
        if let Some(files) = tower.max_open_files {
            text.single("ratekeeper_open_files_max", Gauge, "The most files that may be open.", files);
        }
        text.single(
            "ratekeeper_unfinished_body_bytes",
            Gauge,
            "What bodies take of which some is still to come.",
            tower.bodies.held(),
        );
        text.single(
            "ratekeeper_unfinished_body_bytes_max",
            Gauge,
            "The most bytes that unfinished bodies may take.",
            tower.bodies.most(),
        );
        text.single(
            "ratekeeper_unfinished_bodies_refused_total",
            Counter,
            "Bodies that were refused because others took all that there is.",
            tower.bodies.refused(),
        );
        text.into_text()
    }
}

impl<S: Store + StoreHealth + StoreMaintenance> Handler for Admin<S> {
    type Route = AdminRoute;

    fn admit(&self, head: &RequestHead<'_>) -> Result<AdmittedRequest<AdminRoute>, HttpError> {
        let has_token = self.token.admits(head.field("authorization"));
        let (route, is_open) = match (head.path(), head.method()) {
            ("/livez" | "/healthz", "GET" | "HEAD") => (AdminRoute::Livez, true),
            ("/readyz", "GET" | "HEAD") => (AdminRoute::Readyz { in_full: has_token }, true),
            ("/version", "GET" | "HEAD") => (AdminRoute::Version, true),
            ("/metrics", "GET" | "HEAD") => (AdminRoute::Metrics, false),
            ("/v1/emergency", "GET" | "HEAD") => (AdminRoute::Emergency(EmergencySwitch::Look), false),
            ("/v1/emergency", "PUT") => (AdminRoute::Emergency(EmergencySwitch::On), false),
            ("/v1/emergency", "DELETE") => (AdminRoute::Emergency(EmergencySwitch::Off), false),
            ("/v1/store", "GET" | "HEAD") => (AdminRoute::Store, false),
            ("/v1/explain", "POST") => (AdminRoute::Explain, false),
            ("/v1/reload", "POST") => (AdminRoute::Reload, false),
            (path @ ("/livez" | "/healthz" | "/readyz" | "/version" | "/metrics" | "/v1/store"), method) => {
                return Err(HttpError::wrong_method(path, method, "GET, HEAD"));
            }
            ("/v1/emergency", method) => {
                return Err(HttpError::wrong_method("/v1/emergency", method, "GET, PUT, DELETE"));
            }
            (path @ ("/v1/explain" | "/v1/reload"), method) => {
                return Err(HttpError::wrong_method(path, method, "POST"));
            }
            (path, _) => return Err(HttpError::no_such_admin_path(path)),
        };
        if !matches!(head.method(), "GET" | "HEAD") {
            self.allowed_origins.admit(head)?;
        }
        match is_open || has_token {
            true => {
                let is_long = matches!(route, AdminRoute::Metrics | AdminRoute::Store | AdminRoute::Explain);
                let max_body = if route == AdminRoute::Explain { MAX_CHECK_BYTES } else { MAX_BODY_BYTES };
                let answer = if is_long { ResponseLength::Long } else { ResponseLength::Short };
                Ok(AdmittedRequest { route, max_body, answer })
            }
            false => Err(HttpError::Unauthorized),
        }
    }

    async fn answer<'a>(
        &self,
        calls: impl Iterator<Item = HttpCall<'a, AdminRoute>> + Clone + Send,
        out: &mut (impl ResponseWriter + Send),
    ) {
        for call in calls {
            let told = match call.route {
                AdminRoute::Explain => self.explain(call.body, out).await,
                _ => self.tell(&call, out),
            };
            if let Err(fault) = told {
                fault.tell(out);
            }
        }
    }
}

fn text(status: StatusCode, said: &str, out: &mut impl ResponseWriter) {
    out.begin(status, TEXT);
    out.end(said.as_bytes());
}

#[derive(Serialize)]
struct VersionAnswer {
    name: &'static str,
    version: &'static str,
}

#[derive(Serialize)]
struct ReadinessAnswer<'a> {
    ready: bool,
    draining: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<bool>,
    rules: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    mistakes: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    emergency_limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<String>,
}

/// `{"limit": "10/s"}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EmergencyBody<'a> {
    limit: std::borrow::Cow<'a, str>,
}

#[derive(Serialize)]
struct EmergencyAnswer<'a> {
    on: bool,
    limit: Option<&'a str>,
}

//! The admin API: health, metrics, the store's state, explain, reload and the emergency limit.
//!
//! Routes that reveal or change something need the token. Liveness and readiness do not, because load balancers and
//! orchestrators ask for them without one.

use crate::api::MAX_CHECK_BYTES;
use crate::conn::{BodyBudget, ConnectionCaps, ConnectionGauge, ListenerName};
use crate::cross_site::AllowedOrigins;
use crate::denial_log::DenialLog;
use crate::explain::explain;
use crate::http::{
    AdmittedRequest, Handler, HttpCall, HttpError, JSON, RequestHead, ResponseLength, ResponseWriter, TEXT,
    excerpt,
};
use crate::metrics::{self, Exposition};
use crate::rule_source::RuleSource;
use crate::store_report::{self, StoreAnswer};
use crate::token::Token;
use hyper::StatusCode;
use ratekeeper::{Algorithm, Limit, Quota, RuleLimiter, Store, StoreReport};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use tokio::sync::mpsc;

/// The maximum size of a body, those of `/v1/explain` excepted.
const MAX_BODY_BYTES: usize = 4096;

/// The server state that the admin API reads, besides the limiter.
#[derive(Debug)]
pub(crate) struct AdminState {
    /// Where rules come from.
    pub(crate) rule_source: RuleSource,
    /// The log of denials.
    pub(crate) denials: Arc<DenialLog>,
    /// Whether the server is shutting down.
    pub(crate) is_draining: AtomicBool,
    /// The number of open connections per listener.
    pub(crate) connections: Arc<ConnectionGauge>,
    /// When the server started, in Unix seconds.
    pub(crate) started_at: u64,
    /// Requests a reload of the rules.
    pub(crate) reload: mpsc::Sender<()>,
    /// The number of log lines dropped.
    pub(crate) dropped_log_lines: Arc<AtomicU64>,
    /// The maximum number of connections per listener.
    pub(crate) caps: ConnectionCaps,
    /// The process's limit on open files, or `None` if it has none.
    pub(crate) max_open_files: Option<u64>,
    /// The budget for bodies that are not yet complete.
    pub(crate) bodies: Arc<BodyBudget>,
}

/// The handler of the admin API.
#[derive(Debug)]
pub(crate) struct Admin<S> {
    limiter: RuleLimiter<S>,
    state: Arc<AdminState>,
    token: Token,
    allowed_origins: AllowedOrigins,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminRoute {
    Livez,
    /// `detailed` if the caller has sent the token, and so may see the details.
    Readyz {
        detailed: bool,
    },
    Version,
    Metrics,
    Emergency(EmergencySwitch),
    Store,
    Explain,
    Reload,
}

/// An operation on the emergency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmergencySwitch {
    Show,
    On,
    Off,
}

impl<S: Store> Admin<S> {
    pub(crate) fn new(
        limiter: RuleLimiter<S>,
        state: Arc<AdminState>,
        token: Token,
        allowed_origins: AllowedOrigins,
    ) -> Admin<S> {
        Admin { limiter, state, token, allowed_origins }
    }

    fn respond(
        &self,
        call: &HttpCall<'_, AdminRoute>,
        out: &mut impl ResponseWriter,
    ) -> Result<(), HttpError> {
        match call.route {
            AdminRoute::Livez => respond_text(StatusCode::OK, "ok", out),
            AdminRoute::Readyz { detailed } => self.readiness(detailed, out),
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
                out.end_json(&StoreAnswer(self.limiter.store().health().as_ref()));
            }
            // It awaits the store, so `answer` handles it.
            AdminRoute::Explain => {}
            AdminRoute::Reload => {
                // If the channel is full, a reload is pending already.
                let _ = self.state.reload.try_send(());
                respond_text(StatusCode::ACCEPTED, "reloading the rules: see /readyz for the result\n", out);
            }
        }
        Ok(())
    }

    async fn explain(&self, body: &[u8], out: &mut (impl ResponseWriter + Send)) -> Result<(), HttpError> {
        let explained = explain(&self.limiter, body).await?;
        out.begin(StatusCode::OK, JSON);
        out.end_json(&explained);
        Ok(())
    }

    fn readiness(&self, detailed: bool, out: &mut impl ResponseWriter) {
        let is_draining = self.state.is_draining.load(Relaxed);
        let load_error = self.state.rule_source.last_error();
        let rules = match (&load_error, detailed) {
            (None, _) => "in force",
            (Some(_), false) => {
                "the rule file has errors, so the previous rules stay in force: send the token for details"
            }
            (Some(_), true) => "the rule file has errors, so the previous rules stay in force",
        };
        let emergency = self.limiter.emergency().limit().map(|limit| limit.quota().to_string());
        let health = self.limiter.store().health();
        // Stay ready while degraded: other nodes would have no store either.
        out.begin(if is_draining { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }, JSON);
        out.end_json(&ReadinessAnswer {
            ready: !is_draining,
            draining: is_draining,
            degraded: health.as_ref().map(StoreReport::is_degraded),
            rules,
            mistakes: load_error.as_deref().filter(|_| detailed),
            store: health.as_ref().map(|report| store_report::summary(report, detailed)),
            memory: self.limiter.store().memory_stats().and_then(|stats| stats.warning()),
            emergency_limit: emergency.as_deref(),
            connections: self.state.caps.shortage.map(|shortage| shortage.to_string()),
        });
    }

    fn emergency(
        &self,
        switch: EmergencySwitch,
        body: &[u8],
        out: &mut impl ResponseWriter,
    ) -> Result<(), HttpError> {
        let emergency = self.limiter.emergency();
        match switch {
            EmergencySwitch::Show => {}
            EmergencySwitch::Off => {
                emergency.switch_off();
                tracing::warn!("emergency limit disabled");
            }
            EmergencySwitch::On => {
                let limit = parse_emergency_limit(body)
                    .map_err(|error| HttpError::InvalidEmergencyLimit { reason: excerpt(error) })?;
                emergency.switch_on(limit);
                tracing::warn!(quota = %limit.quota(), "emergency limit enabled for every client address");
            }
        }
        let limit = emergency.limit().map(|limit| limit.quota().to_string());
        out.begin(StatusCode::OK, JSON);
        out.end_json(&EmergencyAnswer { on: limit.is_some(), limit: limit.as_deref() });
        Ok(())
    }

    fn metrics(&self) -> String {
        let state = &self.state;
        let mut text = Exposition::new();
        text.family("ratekeeper_build_info", [([("version", env!("CARGO_PKG_VERSION"))], 1)]);
        text.single("ratekeeper_start_time_seconds", state.started_at);
        let counts = self.limiter.decision_counts();
        text.decisions(&counts);
        text.irregular_requests(&counts);
        text.durations("ratekeeper_decision_duration_seconds", [([], &counts.durations)]);
        text.single("ratekeeper_denials_unlogged_total", state.denials.suppressed());
        text.single("ratekeeper_log_lines_dropped_total", state.dropped_log_lines.load(Relaxed));
        if let Some(stats) = self.limiter.store().memory_stats() {
            text.memory(&stats);
        }
        if let Some(report) = self.limiter.store().health() {
            text.store(&report);
        }
        let rules = &state.rule_source;
        text.single("ratekeeper_rules", self.limiter.with_rules(|rules| rules.rules().len()));
        text.single("ratekeeper_rules_loads_total", self.limiter.installs());
        text.single("ratekeeper_rules_load_failures_total", rules.failures());
        text.single("ratekeeper_rules_last_load_successful", u8::from(rules.last_error().is_none()));
        text.single("ratekeeper_rules_last_load_success_timestamp_seconds", rules.loaded_at());
        let is_on = u8::from(self.limiter.emergency().limit().is_some());
        text.single("ratekeeper_emergency_limit_on", is_on);
        let label = |listener: ListenerName| [("listener", listener.as_str())];
        let open = |listener| (label(listener), state.connections.open_connections(listener));
        text.family("ratekeeper_connections", ListenerName::ALL.map(open));
        let max = |listener| (label(listener), state.caps.of(listener));
        text.family("ratekeeper_connections_max", ListenerName::ALL.map(max));
        text.single("ratekeeper_idle_connections_closed_total", state.connections.evicted());
        if let Some(files) = state.max_open_files {
            text.single("ratekeeper_open_files_max", files);
        }
        text.single("ratekeeper_unfinished_body_bytes", state.bodies.held());
        text.single("ratekeeper_unfinished_body_bytes_max", state.bodies.max_bytes());
        text.single("ratekeeper_unfinished_bodies_rejected_total", state.bodies.rejected());
        text.into_text()
    }
}

impl<S: Store> Handler for Admin<S> {
    type Route = AdminRoute;

    fn admit(&self, head: &RequestHead<'_>) -> Result<AdmittedRequest<AdminRoute>, HttpError> {
        let has_token = self.token.admits(head.header("authorization"));
        let (route, is_open) = match (head.path(), head.method()) {
            ("/livez" | "/healthz", "GET" | "HEAD") => (AdminRoute::Livez, true),
            ("/readyz", "GET" | "HEAD") => (AdminRoute::Readyz { detailed: has_token }, true),
            ("/version", "GET" | "HEAD") => (AdminRoute::Version, true),
            ("/metrics", "GET" | "HEAD") => (AdminRoute::Metrics, false),
            ("/v1/emergency", "GET" | "HEAD") => (AdminRoute::Emergency(EmergencySwitch::Show), false),
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
        if is_open || has_token {
            let is_long = matches!(route, AdminRoute::Metrics | AdminRoute::Store | AdminRoute::Explain);
            let max_body = if route == AdminRoute::Explain { MAX_CHECK_BYTES } else { MAX_BODY_BYTES };
            let answer = if is_long { ResponseLength::Long } else { ResponseLength::Short };
            Ok(AdmittedRequest { route, max_body_bytes: max_body, response_length: answer })
        } else {
            Err(HttpError::Unauthorized)
        }
    }

    async fn respond<'a>(
        &self,
        calls: impl Iterator<Item = HttpCall<'a, AdminRoute>> + Clone + Send,
        out: &mut (impl ResponseWriter + Send),
    ) {
        for call in calls {
            let answered = match call.route {
                AdminRoute::Explain => self.explain(call.body, out).await,
                _ => self.respond(&call, out),
            };
            if let Err(error) = answered {
                error.write(out);
            }
        }
    }
}

fn respond_text(status: StatusCode, body: &str, out: &mut impl ResponseWriter) {
    out.begin(status, TEXT);
    out.end(body.as_bytes());
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

/// Parses an [`EmergencyBody`].
fn parse_emergency_limit(body: &[u8]) -> Result<Limit, Box<dyn std::error::Error>> {
    let body: EmergencyBody<'_> = serde_json::from_slice(body)?;
    Ok(Limit::new(Algorithm::TokenBucket, body.limit.parse::<Quota>()?)?)
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

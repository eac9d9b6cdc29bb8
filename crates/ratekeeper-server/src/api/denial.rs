//! The body of a denial with an error status.

use super::headers::{WireNumbers, fails_closed};
use jiff::Timestamp;
use ratekeeper::{DrawOutcome, Reason, RuleDecision};
use serde::{Serialize, Serializer};
use std::fmt;

/// The format of a denial's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DenialFormat {
    /// `application/json`, in Ratekeeper's own format.
    Json,
    /// `application/problem+json`, as in RFC 9457.
    Problem,
}

impl DenialFormat {
    /// The format for an `Accept` header: problem details only if it names them.
    pub(crate) fn from_accept(accept: Option<&[u8]>) -> DenialFormat {
        let named = b"application/problem+json";
        let names = |range: &[u8]| {
            let kind = range.split(|byte| *byte == b';').next().unwrap_or_default();
            kind.trim_ascii().eq_ignore_ascii_case(named)
        };
        if accept.is_some_and(|accept| accept.split(|byte| *byte == b',').any(names)) {
            DenialFormat::Problem
        } else {
            DenialFormat::Json
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            DenialFormat::Json => "application/json",
            DenialFormat::Problem => "application/problem+json",
        }
    }

    /// Writes the body of a denial with this status.
    pub(crate) fn write(
        self,
        decision: &RuleDecision<'_>,
        numbers: &WireNumbers,
        status: u16,
        out: &mut Vec<u8>,
    ) {
        let message = DenialMessage { reason: decision.reason(), limit: numbers.limit };
        let written = match self {
            DenialFormat::Json => serde_json::to_writer(out, &DenialBody::new(decision, numbers, message)),
            DenialFormat::Problem => {
                serde_json::to_writer(out, &ProblemDetails::new(decision, numbers, status, message))
            }
        };
        written.expect("numbers and text serialize to memory");
    }
}

/// The message of a denial. It is formatted while it is serialized, so that a flood of denials does not allocate.
#[derive(Clone, Copy, Debug)]
struct DenialMessage {
    reason: Reason,
    limit: Option<(u32, u64)>,
}

impl fmt::Display for DenialMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.reason, self.limit) {
            (Reason::DenyList, _) => f.write_str("This client is on the deny list"),
            (Reason::UnknownTier, _) => f.write_str("The tier of this request is unknown"),
            (Reason::Missing, _) => f.write_str(
                "The request lacks an identity that its limit needs, such as a client key or an address",
            ),
            (Reason::Degraded, None) => f.write_str("The limit can't be checked at the moment"),
            (_, Some((limit, 1))) => write!(f, "Rate limit of {limit} requests per second exceeded"),
            (_, Some((limit, window))) => {
                write!(f, "Rate limit of {limit} requests per {window} seconds exceeded")
            }
            (_, None) => f.write_str("Rate limit exceeded"),
        }
    }
}

impl Serialize for DenialMessage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// `{"error": {"code", "message", "details"}}`
#[derive(Serialize)]
struct DenialBody {
    error: DenialError,
}

#[derive(Serialize)]
struct DenialError {
    code: &'static str,
    message: DenialMessage,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<DenialDetails>,
}

#[derive(Serialize)]
struct DenialDetails {
    limit: u32,
    window_seconds: u64,
    retry_after_seconds: Option<u64>,
    reset_at: Timestamp,
}

impl DenialBody {
    fn new(decision: &RuleDecision<'_>, numbers: &WireNumbers, message: DenialMessage) -> DenialBody {
        let code = match decision.reason() {
            Reason::DenyList => "CLIENT_DENIED",
            Reason::UnknownTier => "UNKNOWN_TIER",
            Reason::Missing => "IDENTITY_MISSING",
            Reason::Degraded if fails_closed(decision) => "LIMIT_UNAVAILABLE",
            Reason::Limit | Reason::Emergency | Reason::Degraded | Reason::NoRule | Reason::AllowList => {
                "RATE_LIMIT_EXCEEDED"
            }
        };
        let details = numbers.limit.map(|(limit, window_seconds)| DenialDetails {
            limit,
            window_seconds,
            retry_after_seconds: numbers.retry_after,
            reset_at: i64::try_from(numbers.reset_at)
                .ok()
                .and_then(|seconds| Timestamp::from_second(seconds).ok())
                .unwrap_or(Timestamp::MAX),
        });
        DenialBody { error: DenialError { code, message, details } }
    }
}

/// Problem details, with the members that the IETF draft on rate limit headers adds.
#[derive(Serialize)]
struct ProblemDetails<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: DenialMessage,
    reason: &'static str,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
}

impl<'a> ProblemDetails<'a> {
    fn new(
        decision: &RuleDecision<'a>,
        numbers: &WireNumbers,
        status: u16,
        detail: DenialMessage,
    ) -> ProblemDetails<'a> {
        let (r#type, title) = match decision.reason() {
            Reason::Emergency | Reason::Degraded => (
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                "Service capacity is temporarily reduced",
            ),
            Reason::DenyList => (
                "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
                "This client is denied",
            ),
            Reason::UnknownTier | Reason::Missing => {
                ("about:blank", "The request lacks an identity that its limits need")
            }
            Reason::Limit | Reason::NoRule | Reason::AllowList => (
                "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "Request cannot be satisfied as assigned quota has been exceeded",
            ),
        };
        let violated = decision.policies().filter(|policy| policy.status.outcome() == DrawOutcome::Denied);
        let mut violated_policies: Vec<_> = violated.map(|policy| policy.name).collect();
        if decision.reason() == Reason::Emergency {
            violated_policies.extend(decision.limit_name());
        }
        ProblemDetails {
            r#type,
            title,
            status,
            detail,
            reason: decision.reason().name(),
            violated_policies,
            retry_after: numbers.retry_after,
        }
    }
}

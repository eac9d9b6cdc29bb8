//! The body of a refusal, for clients that are answered with an error status.

use super::answer::reason;
use super::headers::{WireNumbers, fails_closed};
use jiff::Timestamp;
use ratekeeper::{Reason, RuleDecision};
use serde::{Serialize, Serializer};
use std::fmt;

/// What a client asked to hear a refusal in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DenialFormat {
    /// `application/json`, in Ratekeeper's own shape.
    Json,
    /// `application/problem+json`, as RFC 9457 has it.
    Problem,
}

impl DenialFormat {
    /// What an `Accept` field asks for: problem details only for who names them.
    pub(crate) fn asked_for(accept: Option<&[u8]>) -> DenialFormat {
        let named = b"application/problem+json";
        let names = |range: &[u8]| {
            let kind = range.split(|byte| *byte == b';').next().unwrap_or_default();
            kind.trim_ascii().eq_ignore_ascii_case(named)
        };
        match accept.is_some_and(|accept| accept.split(|byte| *byte == b',').any(names)) {
            true => DenialFormat::Problem,
            false => DenialFormat::Json,
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            DenialFormat::Json => "application/json",
            DenialFormat::Problem => "application/problem+json",
        }
    }

    /// Writes the body of a refusal that is answered with `status`.
    pub(crate) fn write(
        self,
        verdict: &RuleDecision<'_>,
        figures: &WireNumbers,
        status: u16,
        out: &mut Vec<u8>,
    ) {
        let message = DenialMessage { cause: verdict.cause(), limit: figures.limit };
        let written = match self {
            DenialFormat::Json => serde_json::to_writer(out, &DenialBody::new(verdict, figures, message)),
            DenialFormat::Problem => {
                serde_json::to_writer(out, &ProblemDetails::new(verdict, figures, status, message))
            }
        };
        written.expect("numbers and text can be written to memory");
    }
}

/// What happened, in a sentence. It is written as it is sent: there may be many refusals, and none should allocate.
#[derive(Clone, Copy, Debug)]
struct DenialMessage {
    cause: Reason,
    limit: Option<(u32, u64)>,
}

impl fmt::Display for DenialMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cause, self.limit) {
            (Reason::DenyList, _) => f.write_str("This client is on the deny list"),
            (Reason::UnknownTier, _) => f.write_str("The tier of this request is not known"),
            (Reason::Missing, _) => f.write_str(
                "The request lacks something that its limit is counted by, like a key or an address",
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
    fn new(verdict: &RuleDecision<'_>, figures: &WireNumbers, message: DenialMessage) -> DenialBody {
        let code = match verdict.cause() {
            Reason::DenyList => "CLIENT_DENIED",
            Reason::UnknownTier => "UNKNOWN_TIER",
            Reason::Missing => "IDENTITY_MISSING",
            Reason::Degraded if fails_closed(verdict) => "LIMIT_UNAVAILABLE",
            Reason::Limit | Reason::Emergency | Reason::Degraded | Reason::NoRule | Reason::AllowList => {
                "RATE_LIMIT_EXCEEDED"
            }
        };
        let details = figures.limit.map(|(limit, window_seconds)| DenialDetails {
            limit,
            window_seconds,
            retry_after_seconds: figures.retry_after,
            reset_at: i64::try_from(figures.reset_at)
                .ok()
                .and_then(|seconds| Timestamp::from_second(seconds).ok())
                .unwrap_or(Timestamp::MAX),
        });
        DenialBody { error: DenialError { code, message, details } }
    }
}

/// Problem details, with what the IETF draft on rate limit fields adds.
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
        verdict: &RuleDecision<'a>,
        figures: &WireNumbers,
        status: u16,
        detail: DenialMessage,
    ) -> ProblemDetails<'a> {
        let (r#type, title) = match verdict.cause() {
            Reason::Emergency | Reason::Degraded => (
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                "Service capacity is temporarily reduced",
            ),
            Reason::DenyList => (
                "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
                "This client is refused",
            ),
            Reason::UnknownTier | Reason::Missing => {
                ("about:blank", "The request can't be told from others as its limits ask")
            }
            Reason::Limit | Reason::NoRule | Reason::AllowList => (
                "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "Request cannot be satisfied as assigned quota has been exceeded",
            ),
        };
        let violated = verdict.policies().filter(|policy| policy.reading.retry().is_some());
        let mut violated_policies: Vec<_> = violated.map(|policy| policy.name).collect();
        if verdict.cause() == Reason::Emergency {
            violated_policies.extend(verdict.limit_name());
        }
        ProblemDetails {
            r#type,
            title,
            status,
            detail,
            reason: reason(verdict.cause()),
            violated_policies,
            retry_after: figures.retry_after,
        }
    }
}

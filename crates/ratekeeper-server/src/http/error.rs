//! Errors that HTTP clients get instead of a decision.

use super::response::{JSON, ResponseWriter};
use hyper::StatusCode;
use serde::Serialize;

/// A valid check, shown in error messages.
const EXAMPLE: &str = r#"{"client_key":"alice","endpoint":"/orders","cost":1}"#;

/// The most characters of a request that an error message quotes: enough to recognise it.
const MAX_EXCERPT_CHARS: usize = 200;

/// Why a request gets no decision. No units were taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("no route at {path}: {instead}")]
    NoSuchPath { path: String, instead: &'static str },
    #[error("{path} does not allow {method}: use {allow}")]
    WrongMethod { path: String, method: String, allow: &'static str },
    #[error("missing or invalid token: send the header Authorization: Bearer TOKEN")]
    Unauthorized,
    #[error("invalid deny_status {found:?}: write deny_status=200, 403 or 429, or leave it out")]
    InvalidDenyStatus { found: String },
    #[error("unsupported content type {found}: send JSON, with the header Content-Type: application/json")]
    UnsupportedContentType { found: String },
    #[error("the body has more than {most} bytes: send a check like {EXAMPLE}, with a short key")]
    TooLarge { most: usize },
    #[error("too many large bodies in flight: retry in a second, or send smaller bodies")]
    Busy,
    #[error("the body did not arrive in time: send all of it right after the headers")]
    BodyTimeout,
    #[error("the body ended early: send as many bytes as the headers announce")]
    BodyTruncated,
    #[error("the body is not a JSON object: send one like {EXAMPLE}; endpoint and cost are optional")]
    NotAnObject,
    #[error("invalid body: {reason}; send one like {EXAMPLE}; endpoint and cost are optional")]
    InvalidBody { reason: String },
    #[error("the body is not a JSON object: send one like {{\"checks\":[{EXAMPLE}]}}")]
    BatchNotAnObject,
    #[error("invalid batch, no check was decided: {reason}; send one like {{\"checks\":[{EXAMPLE}]}}")]
    InvalidBatch { reason: String },
    #[error("invalid emergency limit: {reason}; send {{\"limit\":\"10/s\"}}, which applies to each address")]
    InvalidEmergencyLimit { reason: String },
    #[error(
        "missing or invalid token: have the proxy send it in the header X-Ratekeeper-Token, or as token= in its URL"
    )]
    ProxyUnauthorized,
    #[error("{reason}")]
    Malformed { reason: &'static str },
    #[error("cross-site browser request ({site}) is not allowed: see allowed_origins")]
    CrossSite { site: String },
    #[error("invalid forward-auth request: {reason}")]
    InvalidForwardAuth { reason: String },
}

impl HttpError {
    pub(crate) fn no_such_path(path: &str) -> HttpError {
        let instead = "check with POST /check or /v1/check; GET /openapi.json lists all routes";
        HttpError::NoSuchPath { path: excerpt(path), instead }
    }

    pub(crate) fn no_such_admin_path(path: &str) -> HttpError {
        let instead =
            "use /livez, /readyz, /version, /metrics, /v1/emergency, /v1/store, /v1/explain or /v1/reload";
        HttpError::NoSuchPath { path: excerpt(path), instead }
    }

    pub(crate) fn invalid_forward_auth(reason: std::fmt::Arguments<'_>) -> HttpError {
        HttpError::InvalidForwardAuth { reason: reason.to_string() }
    }

    pub(crate) fn wrong_method(path: &str, method: &str, allow: &'static str) -> HttpError {
        HttpError::WrongMethod { path: excerpt(path), method: excerpt(method), allow }
    }

    /// Writes the error response.
    pub(crate) fn write(&self, out: &mut impl ResponseWriter) {
        let (status, code) = self.status();
        out.begin(status, JSON);
        if let HttpError::WrongMethod { allow, .. } = self {
            out.header("allow", allow.as_bytes());
        }
        if let HttpError::Unauthorized | HttpError::ProxyUnauthorized = self {
            out.header("www-authenticate", b"Bearer");
        }
        if let HttpError::Malformed { .. } = self {
            out.header("connection", b"close");
        }
        if let HttpError::Busy = self {
            out.header("retry-after", b"1");
        }
        out.end_json(&ErrorBody { error: ErrorDetail { code, message: &self.to_string() } });
    }

    fn status(&self) -> (StatusCode, &'static str) {
        match self {
            HttpError::NoSuchPath { .. } => (StatusCode::NOT_FOUND, "NOT_FOUND"),
            HttpError::WrongMethod { .. } => (StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED"),
            HttpError::UnsupportedContentType { .. } => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE")
            }
            HttpError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE"),
            HttpError::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "REQUEST_TIMEOUT"),
            HttpError::Busy => (StatusCode::SERVICE_UNAVAILABLE, "BUSY"),
            HttpError::Unauthorized | HttpError::ProxyUnauthorized => {
                (StatusCode::UNAUTHORIZED, "UNAUTHORIZED")
            }
            HttpError::CrossSite { .. } => (StatusCode::FORBIDDEN, "FORBIDDEN"),
            HttpError::Malformed { .. }
            | HttpError::BodyTruncated
            | HttpError::NotAnObject
            | HttpError::InvalidBody { .. }
            | HttpError::BatchNotAnObject
            | HttpError::InvalidBatch { .. }
            | HttpError::InvalidEmergencyLimit { .. }
            | HttpError::InvalidForwardAuth { .. }
            | HttpError::InvalidDenyStatus { .. } => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
        }
    }
}

/// The JSON body of an error response.
#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorDetail<'a>,
}

#[derive(Serialize)]
struct ErrorDetail<'a> {
    code: &'static str,
    message: &'a str,
}

/// The first characters of a text, so that a response never grows with the request.
pub(crate) fn excerpt(text: impl std::fmt::Display) -> String {
    let mut text = text.to_string();
    if let Some((end, _)) = text.char_indices().nth(MAX_EXCERPT_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

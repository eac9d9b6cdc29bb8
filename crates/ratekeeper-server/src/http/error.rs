//! Why a request gets no decision, told to whoever sent it.

use super::response::{JSON, ResponseWriter};
use hyper::StatusCode;
use serde::Serialize;

/// What a check looks like, for whoever sent something else.
const EXAMPLE: &str = r#"{"client_key":"alice","endpoint":"/orders","cost":1}"#;

/// The most characters of a request that are shown in a fault: enough to recognise it by.
const SHOWN: usize = 200;

/// Why a request gets no decision. Nothing was charged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("there is nothing at {path}: {instead}")]
    NoSuchPath { path: String, instead: &'static str },
    #[error("{path} is not for {method}: use {allow}")]
    WrongMethod { path: String, method: String, allow: &'static str },
    #[error("this needs the token: send it in the header Authorization: Bearer TOKEN")]
    Unauthorized,
    #[error("a refusal can't have the status {found:?}: write deny_status=200, 403 or 429, or leave it out")]
    Query { found: String },
    #[error(
        "a body of type {found} can't be read: send JSON, with the header Content-Type: application/json"
    )]
    NotJson { found: String },
    #[error("the body has more than {most} bytes: a check is {EXAMPLE}, with a short key")]
    TooLarge { most: usize },
    #[error("too many large bodies are on their way: send this one again in a second, or in smaller pieces")]
    Busy,
    #[error("the body did not arrive in time: send it whole, right behind the headers")]
    TooSlow,
    #[error("the body ended before its time: send as many bytes as the headers announce")]
    CutOff,
    #[error("the body is not a JSON object: write one like {EXAMPLE}; endpoint and cost may be left out")]
    NoObject,
    #[error("cannot read the body: {reason}; write it like {EXAMPLE}; endpoint and cost may be left out")]
    Unreadable { reason: String },
    #[error("the body is not a JSON object: write one like {{\"checks\":[{EXAMPLE}]}}")]
    NoBatch,
    #[error(
        "cannot read the batch, so none of it was decided: {reason}; write it like {{\"checks\":[{EXAMPLE}]}}"
    )]
    UnreadableBatch { reason: String },
    #[error(
        "cannot set the emergency limit: {reason}; write {{\"limit\":\"10/s\"}}, which holds for each address"
    )]
    Emergency { reason: String },
    #[error(
        "the proxy that asks has to send the token: in the header X-Ratekeeper-Token, or as token= in its URL"
    )]
    UnknownProxy,
    #[error("{reason}")]
    Malformed { reason: &'static str },
    #[error(
        "this request comes from a web page of another site ({site}), which may not use this server: see allowed_origins"
    )]
    CrossSite { site: String },
    #[error("the request can't be judged: {reason}")]
    Unclear { reason: String },
}

impl HttpError {
    pub(crate) fn no_such_path(path: &str) -> HttpError {
        let instead = "check with POST /check or /v1/check; all there is is in GET /openapi.json";
        HttpError::NoSuchPath { path: excerpt(path), instead }
    }

    pub(crate) fn no_such_admin_path(path: &str) -> HttpError {
        let instead = "there are /livez, /readyz, /version, /metrics, /v1/emergency, /v1/store, /v1/explain and /v1/reload";
        HttpError::NoSuchPath { path: excerpt(path), instead }
    }

    pub(crate) fn bad_status(found: &str) -> HttpError {
        HttpError::Query { found: excerpt(found) }
    }

    pub(crate) fn unreadable_batch(error: &serde_json::Error) -> HttpError {
        HttpError::UnreadableBatch { reason: excerpt(&error.to_string()) }
    }

    pub(crate) fn missing_key() -> HttpError {
        HttpError::Unreadable { reason: "missing field `client_key`".to_owned() }
    }

    pub(crate) fn emergency(error: &impl std::fmt::Display) -> HttpError {
        HttpError::Emergency { reason: excerpt(&error.to_string()) }
    }

    pub(crate) fn unclear(reason: std::fmt::Arguments<'_>) -> HttpError {
        HttpError::Unclear { reason: reason.to_string() }
    }

    pub(crate) fn cross_site(found: &[u8]) -> HttpError {
        HttpError::CrossSite { site: excerpt(&String::from_utf8_lossy(found)) }
    }

    pub(crate) fn wrong_method(path: &str, method: &str, allow: &'static str) -> HttpError {
        HttpError::WrongMethod { path: excerpt(path), method: excerpt(method), allow }
    }

    pub(crate) fn not_json(found: &[u8]) -> HttpError {
        HttpError::NotJson { found: excerpt(&String::from_utf8_lossy(found)) }
    }

    pub(crate) fn unreadable(error: &serde_json::Error) -> HttpError {
        HttpError::Unreadable { reason: excerpt(&error.to_string()) }
    }

    /// The answer that says so.
    pub(crate) fn tell(&self, out: &mut impl ResponseWriter) {
        let (status, code) = self.status();
        out.begin(status, JSON);
        if let HttpError::WrongMethod { allow, .. } = self {
            out.field("allow", allow.as_bytes());
        }
        if let HttpError::Unauthorized | HttpError::UnknownProxy = self {
            out.field("www-authenticate", b"Bearer");
        }
        if let HttpError::Malformed { .. } = self {
            out.field("connection", b"close");
        }
        if let HttpError::Busy = self {
            out.field("retry-after", b"1");
        }
        out.end_json(&ErrorBody { error: ErrorDetail { code, message: &self.to_string() } });
    }

    fn status(&self) -> (StatusCode, &'static str) {
        match self {
            HttpError::NoSuchPath { .. } => (StatusCode::NOT_FOUND, "NOT_FOUND"),
            HttpError::WrongMethod { .. } => (StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED"),
            HttpError::NotJson { .. } => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE"),
            HttpError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE"),
            HttpError::TooSlow => (StatusCode::REQUEST_TIMEOUT, "REQUEST_TIMEOUT"),
            HttpError::Busy => (StatusCode::SERVICE_UNAVAILABLE, "BUSY"),
            HttpError::Unauthorized | HttpError::UnknownProxy => (StatusCode::UNAUTHORIZED, "UNAUTHORIZED"),
            HttpError::CrossSite { .. } => (StatusCode::FORBIDDEN, "FORBIDDEN"),
            HttpError::Malformed { .. }
            | HttpError::CutOff
            | HttpError::NoObject
            | HttpError::Unreadable { .. }
            | HttpError::NoBatch
            | HttpError::UnreadableBatch { .. }
            | HttpError::Emergency { .. }
            | HttpError::Unclear { .. }
            | HttpError::Query { .. } => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
        }
    }
}

/// An error on the wire.
#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorDetail<'a>,
}

#[derive(Serialize)]
struct ErrorDetail<'a> {
    code: &'static str,
    message: &'a str,
}

/// The first characters of what was sent, so that an answer never grows with the question.
fn excerpt(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

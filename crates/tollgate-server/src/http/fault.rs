//! Why a request gets no decision, told to whoever sent it.

use super::out::{JSON, Out};
use hyper::StatusCode;
use serde::Serialize;

/// What a check looks like, for whoever sent something else.
const EXAMPLE: &str = r#"{"client_key":"alice","endpoint":"/orders","cost":1}"#;

/// The most characters of a request that are shown in a fault: enough to recognise it by.
const SHOWN: usize = 200;

/// Why a request gets no decision. Nothing was charged.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(
        "there is nothing at {path}: check with POST /check, or see whether the server lives with GET /livez"
    )]
    NoSuchPath { path: String },
    #[error("{path} is not for {method}: use {allow}")]
    WrongMethod { path: &'static str, method: String, allow: &'static str },
    #[error(
        "a body of type {found} can't be read: send JSON, with the header Content-Type: application/json"
    )]
    NotJson { found: String },
    #[error("the body has more than {most} bytes: a check is {EXAMPLE}, with a short key")]
    TooLarge { most: usize },
    #[error("the body did not arrive in time: send it whole, right behind the headers")]
    TooSlow,
    #[error("the body ended before its time: send as many bytes as the headers announce")]
    CutOff,
    #[error("the body is not a JSON object: write one like {EXAMPLE}; endpoint and cost may be left out")]
    NoObject,
    #[error("cannot read the body: {reason}; write it like {EXAMPLE}; endpoint and cost may be left out")]
    Unreadable { reason: String },
}

impl Fault {
    pub(super) fn no_such_path(path: &str) -> Fault {
        Fault::NoSuchPath { path: excerpt(path) }
    }

    pub(super) fn wrong_method(path: &'static str, method: &str, allow: &'static str) -> Fault {
        Fault::WrongMethod { path, method: excerpt(method), allow }
    }

    pub(super) fn not_json(found: &[u8]) -> Fault {
        Fault::NotJson { found: excerpt(&String::from_utf8_lossy(found)) }
    }

    pub(super) fn unreadable(error: &serde_json::Error) -> Fault {
        Fault::Unreadable { reason: excerpt(&error.to_string()) }
    }

    /// The answer that says so.
    pub(super) fn tell(&self, out: &mut impl Out) {
        let (status, code) = self.status();
        out.begin(status, JSON);
        if let Fault::WrongMethod { allow, .. } = self {
            out.field("allow", allow.as_bytes());
        }
        out.end_json(&ErrorBody { error: ErrorDetail { code, message: &self.to_string() } });
    }

    fn status(&self) -> (StatusCode, &'static str) {
        match self {
            Fault::NoSuchPath { .. } => (StatusCode::NOT_FOUND, "NOT_FOUND"),
            Fault::WrongMethod { .. } => (StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED"),
            Fault::NotJson { .. } => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE"),
            Fault::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE"),
            Fault::TooSlow => (StatusCode::REQUEST_TIMEOUT, "REQUEST_TIMEOUT"),
            Fault::CutOff | Fault::NoObject | Fault::Unreadable { .. } => {
                (StatusCode::BAD_REQUEST, "BAD_REQUEST")
            }
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

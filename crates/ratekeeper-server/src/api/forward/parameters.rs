//! What the operator of a proxy writes into the URL that it asks with.
//!
//! `/v1/forward-auth?key=header:x-api-key,ip&tier=pro&cost=5&deny_status=403`. A parameter that is not known is a mistake,
//! and so is one that is there twice: either it is misspelt, or it is not the operator's at all.

use super::super::body::MAX_NAME_CHARS;
use super::escape::decoded;
use crate::http::HttpError;
use hyper::StatusCode;
use std::borrow::Cow;

/// What the operator of a proxy wants of a question.
#[derive(Debug)]
pub(crate) struct ProxyParameters<'a> {
    /// Where the key is, if the URL says so: a list, not read yet.
    pub(super) keys: Option<Cow<'a, str>>,
    pub(super) tier: Cow<'a, str>,
    pub(super) cost: u32,
    /// The status of a refusal.
    pub(crate) deny_status: Option<StatusCode>,
}

impl<'a> ProxyParameters<'a> {
    /// Reads a query.
    pub(crate) fn read(query: Option<&'a str>) -> Result<ProxyParameters<'a>, HttpError> {
        let mut errand = ProxyParameters { keys: None, tier: Cow::Borrowed(""), cost: 1, deny_status: None };
        let mut seen = [false; NAMES.len()];
        for (name, value) in pairs(query) {
            let Some(index) = NAMES.iter().position(|known| *known == name) else {
                return Err(HttpError::unclear(format_args!(
                    "the URL of the question has a parameter {:?}: there are {}; if it is the client's, have the proxy \
                     leave the client's query out",
                    name.chars().take(64).collect::<String>(),
                    NAMES.join(", ")
                )));
            };
            if std::mem::replace(&mut seen[index], true) {
                return Err(HttpError::unclear(format_args!("the URL of the question has {name} twice")));
            }
            let value = text(decoded(value.as_bytes()))
                .ok_or_else(|| HttpError::unclear(format_args!("the parameter {name} is no text")))?;
            match name {
                "key" => errand.keys = Some(value),
                "tier" => errand.tier = tier(value)?,
                "cost" => errand.cost = cost(&value)?,
                "deny_status" => errand.deny_status = Some(deny_status(&value)?),
                // It was looked at before.
                _ => {}
            }
        }
        Ok(errand)
    }
}

/// The parameters there are.
const NAMES: [&str; 5] = ["key", "tier", "cost", "deny_status", "token"];

/// The token in a query, if there is one.
pub(super) fn token(query: Option<&str>) -> Option<Cow<'_, [u8]>> {
    pairs(query).find(|(name, _)| *name == "token").map(|(_, value)| decoded(value.as_bytes()))
}

fn pairs(query: Option<&str>) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn text(bytes: Cow<'_, [u8]>) -> Option<Cow<'_, str>> {
    match bytes {
        Cow::Borrowed(bytes) => str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    }
}

fn tier(value: Cow<'_, str>) -> Result<Cow<'_, str>, HttpError> {
    match value.chars().count() <= MAX_NAME_CHARS {
        true => Ok(value),
        false => Err(HttpError::unclear(format_args!("the tier has more than {MAX_NAME_CHARS} characters"))),
    }
}

fn cost(value: &str) -> Result<u32, HttpError> {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| value.parse().ok()).flatten().ok_or_else(|| {
        HttpError::unclear(format_args!("cost is a whole number from 0 to 4294967295: write it in digits"))
    })
}

fn deny_status(value: &str) -> Result<StatusCode, HttpError> {
    match value {
        "403" => Ok(StatusCode::FORBIDDEN),
        "429" => Ok(StatusCode::TOO_MANY_REQUESTS),
        _ => Err(HttpError::unclear(format_args!(
            "a proxy takes anything below 300 for a yes: write deny_status=403 for nginx, or 429, or leave it out"
        ))),
    }
}

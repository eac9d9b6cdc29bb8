//! The URL parameters of forward-auth requests.
//!
//! `/v1/forward-auth?key=header:x-api-key,ip&tier=pro&cost=5&deny_status=403`. An unknown or repeated parameter is an
//! error: either it is misspelt, or the client and not the operator wrote it.

use super::escape::percent_decode;
use crate::http::HttpError;
use hyper::StatusCode;
use std::borrow::Cow;

/// The parameters that the operator of a proxy set.
#[derive(Debug)]
pub(crate) struct ProxyParameters<'a> {
    /// The list of key sources, not parsed yet. `None` for the configured one.
    pub(super) keys: Option<Cow<'a, str>>,
    pub(super) tier: Cow<'a, str>,
    pub(super) cost: u32,
    /// The status of a denial. `None` for the default.
    pub(crate) deny_status: Option<StatusCode>,
}

impl<'a> ProxyParameters<'a> {
    /// Parses a query string.
    pub(crate) fn parse(query: Option<&'a str>) -> Result<ProxyParameters<'a>, HttpError> {
        let mut parameters =
            ProxyParameters { keys: None, tier: Cow::Borrowed(""), cost: 1, deny_status: None };
        let mut seen = [false; PARAMETER_NAMES.len()];
        for (name, value) in query_pairs(query) {
            let Some(index) = PARAMETER_NAMES.iter().position(|known| *known == name) else {
                return Err(HttpError::invalid_forward_auth(format_args!(
                    "unknown URL parameter {:?}: there are {}; if it is the client's, have the proxy leave the \
                     client's query out",
                    name.chars().take(64).collect::<String>(),
                    PARAMETER_NAMES.join(", ")
                )));
            };
            if std::mem::replace(&mut seen[index], true) {
                return Err(HttpError::invalid_forward_auth(format_args!(
                    "the URL parameter {name} is sent twice"
                )));
            }
            let value = into_utf8(percent_decode(value.as_bytes())).ok_or_else(|| {
                HttpError::invalid_forward_auth(format_args!("the URL parameter {name} is not UTF-8"))
            })?;
            match name {
                "key" => parameters.keys = Some(value),
                "tier" => parameters.tier = value,
                "cost" => parameters.cost = cost(&value)?,
                "deny_status" => parameters.deny_status = Some(deny_status(&value)?),
                // The token was checked before.
                _ => {}
            }
        }
        Ok(parameters)
    }
}

/// The known parameters.
const PARAMETER_NAMES: [&str; 5] = ["key", "tier", "cost", "deny_status", "token"];

/// The token in a query. `None` if it has none.
pub(super) fn token(query: Option<&str>) -> Option<Cow<'_, [u8]>> {
    query_pairs(query).find(|(name, _)| *name == "token").map(|(_, value)| percent_decode(value.as_bytes()))
}

fn query_pairs(query: Option<&str>) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn into_utf8(bytes: Cow<'_, [u8]>) -> Option<Cow<'_, str>> {
    match bytes {
        Cow::Borrowed(bytes) => str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    }
}

fn cost(value: &str) -> Result<u32, HttpError> {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| value.parse().ok()).flatten().ok_or_else(|| {
        HttpError::invalid_forward_auth(format_args!(
            "cost must be a whole number from 0 to 4294967295: write it in digits"
        ))
    })
}

fn deny_status(value: &str) -> Result<StatusCode, HttpError> {
    match value {
        "403" => Ok(StatusCode::FORBIDDEN),
        "429" => Ok(StatusCode::TOO_MANY_REQUESTS),
        _ => Err(HttpError::invalid_forward_auth(format_args!(
            "invalid deny_status, as proxies treat any status below 300 as allowed: write deny_status=403 for nginx, \
             or 429, or leave it out"
        ))),
    }
}

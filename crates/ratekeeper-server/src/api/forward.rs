//! Forward-auth requests: a proxy checks a client's request before it forwards it.
//!
//! nginx, Traefik, Caddy and other proxies send a subrequest that describes the client's request in headers. It matters
//! who wrote each part:
//!
//! - The URL of the subrequest is the operator's, so it may say where the key is and what a request costs. Some proxies
//!   copy the client's query there unless configured otherwise; such requests are rejected.
//! - Headers that the proxy sets are the proxy's. All others came from the client. So the method and URI must be sent
//!   in one family of headers: `X-Forwarded-Method` and `-Uri`, or `X-Original-Method` and `-URI`. If the other family
//!   is present too, the client may have sent it, and the request is rejected unless both agree.
//! - The client's address is determined by [`TrustedProxies`].
//!
//! A rejected request is neither checked nor counted, and no proxy forwards it.

mod escape;
mod key;
mod parameters;

pub use key::{KeySources, KeySourcesError};
pub(super) use parameters::ProxyParameters;

use super::ApiRoute;
use crate::client_address::TrustedProxies;
use crate::http::{HttpCall, HttpError, RequestHead};
use crate::token::Token;
use key::ForwardKey;
use ratekeeper::rules::{CheckRequest, RequestBuilder, RequestError, RequestField};
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// The header for the API token, because `Authorization` is the client's.
const TOKEN_HEADER: &str = "x-ratekeeper-token";
/// The most bytes of a host name, which is also the limit of DNS.
const MAX_HOST_BYTES: usize = 255;

/// Options of forward-auth requests.
#[derive(Clone, Debug, Default)]
pub struct ForwardOptions {
    /// Where a client's key is, unless the URL says otherwise.
    pub keys: KeySources,
    /// The proxies that are trusted to report the client's address.
    pub proxies: TrustedProxies,
}

/// Parses forward-auth requests.
#[derive(Debug)]
pub(super) struct ForwardAuth {
    options: ForwardOptions,
    /// Whether the warning about an untrusted proxy was logged.
    has_warned: AtomicBool,
}

impl ForwardAuth {
    pub(super) fn new(options: ForwardOptions) -> ForwardAuth {
        ForwardAuth { options, has_warned: AtomicBool::new(false) }
    }

    /// Whether a proxy's request has the token.
    pub(super) fn has_token(token: &Token, head: &RequestHead<'_>) -> bool {
        head.header(TOKEN_HEADER).is_some_and(|text| token.matches(text))
            || parameters::token(head.query()).is_some_and(|text| token.matches(&text))
            || token.admits(head.header("authorization"))
    }

    /// Calls `use_it` with the client's request that a proxy describes.
    #[inline]
    pub(super) fn with_request<T>(
        &self,
        call: &HttpCall<'_, ApiRoute>,
        parameters: &ProxyParameters<'_>,
        use_it: impl FnOnce(&CheckRequest<'_>) -> T,
    ) -> Result<T, HttpError> {
        let forwarded = ForwardedRequest::read(&call.head, self.options.proxies.header.name())?;
        if forwarded
            .query
            .is_some_and(|query| !query.is_empty() && call.head.query().map(str::as_bytes) == Some(query))
        {
            return Err(HttpError::invalid_forward_auth(format_args!(
                "its query is the client's query: have the proxy send its own, like /v1/forward-auth?key=ip"
            )));
        }
        let ip = self.client_address(call, forwarded.address);
        let sources = parameters.keys.as_deref().unwrap_or(self.options.keys.as_str());
        let key = ForwardKey::find(sources, &call.head, forwarded.query, ip)?;
        let mut request = RequestBuilder::default();
        let with_request = |request: &mut RequestBuilder<_>| {
            request.client_key(key.as_str())?;
            request.endpoint(&*forwarded.path)?;
            request.method(forwarded.method)?;
            request.tier(&*parameters.tier)?;
            request.ip(Some(ip));
            if !forwarded.host.is_empty() {
                request.attribute("host", &forwarded.host)?;
            }
            request.cost(parameters.cost.into())?;
            request.with_request(use_it)
        };
        with_request(&mut request).map_err(|error| invalid(&error))
    }

    /// The client's address.
    fn client_address(&self, call: &HttpCall<'_, ApiRoute>, reported: SingleHeader<'_>) -> IpAddr {
        let proxies = &self.options.proxies;
        if reported != SingleHeader::Absent
            && !proxies.contains(call.peer)
            && !self.has_warned.swap(true, Relaxed)
        {
            tracing::warn!(
                peer = %call.peer,
                "ignoring {} from {}, which is not in trusted_proxies: it is treated as the client",
                proxies.header.name(),
                call.peer
            );
        }
        match reported {
            SingleHeader::Absent => proxies.client_address(call.peer, std::iter::empty()),
            SingleHeader::One(line) => proxies.client_address(call.peer, std::iter::once(line)),
            SingleHeader::Several => {
                proxies.client_address(call.peer, call.head.header_values(proxies.header.name()).rev())
            }
        }
    }
}

/// The client's request as described by the headers of the proxy's request.
#[derive(Debug)]
struct ForwardedRequest<'a> {
    method: &'a str,
    path: Cow<'a, str>,
    query: Option<&'a [u8]>,
    /// In lower case and without its port; empty if there is none.
    host: Cow<'a, str>,
    /// The header with the client's address.
    address: SingleHeader<'a>,
}

impl<'a> ForwardedRequest<'a> {
    /// Reads all headers in one pass. `address_field` is the name of the header with the client's address.
    fn read(head: &RequestHead<'a>, address_field: &str) -> Result<ForwardedRequest<'a>, HttpError> {
        let (mut forwarded, mut original) = (HeaderFamily::default(), HeaderFamily::default());
        let (mut host, mut address) = (SingleHeader::Absent, SingleHeader::Absent);
        head.for_each_header(|name, value| match name.len() {
            14 if name.eq_ignore_ascii_case(b"x-original-uri") => original.uri.add(value),
            15 if name.eq_ignore_ascii_case(b"x-forwarded-uri") => forwarded.uri.add(value),
            16 if name.eq_ignore_ascii_case(b"x-forwarded-host") => host.add(value),
            17 if name.eq_ignore_ascii_case(b"x-original-method") => original.method.add(value),
            18 if name.eq_ignore_ascii_case(b"x-forwarded-method") => forwarded.method.add(value),
            length
                if length == address_field.len() && name.eq_ignore_ascii_case(address_field.as_bytes()) =>
            {
                address.add_even_empty(value);
            }
            _ => {}
        });
        let family = match (forwarded.is_present(), original.is_present()) {
            (true, true) if forwarded != original => {
                return Err(HttpError::invalid_forward_auth(format_args!(
                    "X-Forwarded-Method and -Uri differ from X-Original-Method and -URI, so the client sent one pair: \
                     have the proxy set or remove all four"
                )));
            }
            (_, false) => forwarded,
            (_, true) => original,
        };
        let method = family.method.single("the method")?.ok_or_else(missing_request_headers)?;
        let uri = family.uri.single("the URI")?.ok_or_else(missing_request_headers)?;
        let (path, query) = split_uri(uri);
        let host = match host.single("the host")? {
            Some(host) => host,
            None => head.host().unwrap_or_default(),
        };
        Ok(ForwardedRequest {
            method: parse_method(method)?,
            path: escape::escape_invalid_utf8(path),
            query,
            host: parse_host(host)?,
            address,
        })
    }
}

fn missing_request_headers() -> HttpError {
    HttpError::invalid_forward_auth(format_args!(
        "the client's method or URI is missing: have the proxy set X-Forwarded-Method and X-Forwarded-Uri, or \
         X-Original-Method and X-Original-URI"
    ))
}

/// The two headers that describe the client's request.
#[derive(Debug, Default, PartialEq, Eq)]
struct HeaderFamily<'a> {
    method: SingleHeader<'a>,
    uri: SingleHeader<'a>,
}

impl HeaderFamily<'_> {
    fn is_present(&self) -> bool {
        *self != HeaderFamily::default()
    }
}

/// A header that may be sent once at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SingleHeader<'a> {
    #[default]
    Absent,
    One(&'a [u8]),
    Several,
}

impl<'a> SingleHeader<'a> {
    /// Adds a value. Empty ones are ignored.
    fn add(&mut self, value: &'a [u8]) {
        if !value.is_empty() {
            self.add_even_empty(value);
        }
    }

    /// Adds a value, even an empty one.
    fn add_even_empty(&mut self, value: &'a [u8]) {
        *self = match self {
            SingleHeader::Absent => SingleHeader::One(value),
            SingleHeader::One(_) | SingleHeader::Several => SingleHeader::Several,
        };
    }

    /// The value. Returns `None` if there is none, and an error that names `what` if there are several.
    fn single(self, what: &str) -> Result<Option<&'a [u8]>, HttpError> {
        match self {
            SingleHeader::Absent => Ok(None),
            SingleHeader::One(value) => Ok(Some(value)),
            SingleHeader::Several => Err(HttpError::invalid_forward_auth(format_args!(
                "{what} is sent twice, so the client sent one of them: have the proxy overwrite it"
            ))),
        }
    }
}

/// The path and the query of a client's URI, which may begin with a scheme and a host.
fn split_uri(uri: &[u8]) -> (&[u8], Option<&[u8]>) {
    let (mut path, query) = match uri.iter().position(|byte| *byte == b'?') {
        Some(at) => (&uri[..at], Some(&uri[at + 1..])),
        None => (uri, None),
    };
    if !path.starts_with(b"/")
        && let Some(at) = path.windows(3).position(|window| window == b"://")
    {
        let rest = &path[at + 3..];
        path = rest.iter().position(|byte| *byte == b'/').map_or(b"/", |slash| &rest[slash..]);
    }
    (path, query)
}

fn parse_method(method: &[u8]) -> Result<&str, HttpError> {
    let text = str::from_utf8(method).ok().filter(|text| escape::is_token(text));
    text.filter(|text| RequestField::Method.check(text).is_ok()).ok_or_else(|| {
        let max = RequestField::Method.bound().max;
        HttpError::invalid_forward_auth(format_args!("the method is not a word of at most {max} characters"))
    })
}

/// The error for a part of the client's request that is invalid.
fn invalid(error: &RequestError) -> HttpError {
    let RequestError::Length { field, .. } = error else {
        return HttpError::invalid_forward_auth(format_args!("{error}"));
    };
    let what = if *field == RequestField::Endpoint { "path" } else { field.name() };
    let bound = field.bound();
    HttpError::invalid_forward_auth(format_args!("the {what} has more than {} {}", bound.max, bound.unit))
}

/// Normalizes a host, so that different spellings share their limits.
fn parse_host(host: &[u8]) -> Result<Cow<'_, str>, HttpError> {
    if host.len() > MAX_HOST_BYTES {
        return Err(HttpError::invalid_forward_auth(format_args!(
            "the host has more than {MAX_HOST_BYTES} bytes"
        )));
    }
    Ok(match escape::escape_invalid_utf8(host) {
        Cow::Borrowed(text) => normalize_host(text),
        Cow::Owned(text) => Cow::Owned(normalize_host(&text).into_owned()),
    })
}

fn normalize_host(text: &str) -> Cow<'_, str> {
    let name = match text.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && may_have_port(name) => name,
        _ => text,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}

/// Whether a colon after `name` starts a port. An IPv6 address contains colons, and takes a port only in brackets.
fn may_have_port(name: &str) -> bool {
    !name.contains(':') || name.ends_with(']')
}

#[cfg(test)]
mod tests;

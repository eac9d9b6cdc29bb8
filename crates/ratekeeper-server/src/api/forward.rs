//! The question of a proxy: may this request of a client go on?
//!
//! nginx, Traefik, Caddy and others can ask before they pass a request on, and do so with a request of their own that
//! describes the other in header fields. Who wrote what is all that matters here:
//!
//! - The URL of the question is the operator's, so it may say where the key is and what a request costs. Some proxies put
//!   the client's own query there unless they are told not to; that is refused.
//! - A field that the proxy sets is the proxy's. All others came from the client. So what is asked for must be told, by one
//!   family of fields (`X-Forwarded-PlainMethod` and `-Uri`, or `X-Original-PlainMethod` and `-URI`); if the other family is there
//!   too, somebody else wrote it, and unless it says the same the question is refused.
//! - Whose request it is, [`TrustedProxies`] find out.
//!
//! What is refused here is neither judged nor counted, and no proxy lets such a request pass.

mod escape;
mod key;
mod parameters;

pub use key::{KeySources, KeySourcesError};
pub(super) use parameters::ProxyParameters;

use super::ApiRoute;
use super::body::{MAX_ENDPOINT_CHARS, MAX_NAME_CHARS};
use crate::client_address::TrustedProxies;
use crate::http::{HttpCall, HttpError, RequestHead};
use crate::token::Token;
use key::ForwardKey;
use ratekeeper::rules::CheckRequest;
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// The field for the API's token, because `Authorization` is the client's.
const TOKEN_FIELD: &str = "x-ratekeeper-token";
/// The most bytes of a host's name, which DNS bounds as well.
const MAX_HOST_BYTES: usize = 255;

/// How the questions of proxies are understood.
#[derive(Clone, Debug, Default)]
pub struct ForwardOptions {
    /// Where a client's key is, unless the URL says otherwise.
    pub keys: KeySources,
    /// Who is believed when they tell whose request it is.
    pub proxies: TrustedProxies,
}

/// Understands the questions of proxies.
#[derive(Debug)]
pub(super) struct Forward {
    options: ForwardOptions,
    /// Whether somebody was told that a proxy is not trusted.
    has_warned: AtomicBool,
}

impl Forward {
    pub(super) fn new(options: ForwardOptions) -> Forward {
        Forward { options, has_warned: AtomicBool::new(false) }
    }

    /// Whether a proxy that sends this head knows the token.
    pub(super) fn admits(token: &Token, head: &RequestHead<'_>) -> bool {
        head.field(TOKEN_FIELD).is_some_and(|text| token.matches(text))
            || parameters::token(head.query()).is_some_and(|text| token.matches(&text))
            || token.admits(head.field("authorization"))
    }

    /// Has `use_it` look at the request that a proxy asks about.
    #[inline]
    pub(super) fn with_request<T>(
        &self,
        call: &HttpCall<'_, ApiRoute>,
        errand: &ProxyParameters<'_>,
        use_it: impl FnOnce(&CheckRequest<'_>) -> T,
    ) -> Result<T, HttpError> {
        let told = ForwardedRequest::read(&call.head, self.options.proxies.field.name())?;
        if told
            .query
            .is_some_and(|query| !query.is_empty() && call.head.query().map(str::as_bytes) == Some(query))
        {
            return Err(HttpError::unclear(format_args!(
                "the query of the question is the client's own: have the proxy ask with one of its own, like \
                 /v1/forward-auth?key=ip"
            )));
        }
        let ip = self.client(call, told.address);
        let sources = errand.keys.as_deref().unwrap_or(self.options.keys.as_str());
        let key = ForwardKey::find(sources, &call.head, told.query, ip)?;
        let host = [("host", &*told.host)];
        let request = CheckRequest {
            client_key: key.as_str(),
            endpoint: &told.path,
            method: told.method,
            tier: &errand.tier,
            ip: Some(ip),
            attributes: if told.host.is_empty() { &[] } else { &host },
            descriptor: None,
            cost: errand.cost,
        };
        Ok(use_it(&request))
    }

    /// Whose request it is.
    fn client(&self, call: &HttpCall<'_, ApiRoute>, told: SingleField<'_>) -> IpAddr {
        let proxies = &self.options.proxies;
        if told != SingleField::Nothing && !proxies.contain(call.peer) && !self.has_warned.swap(true, Relaxed)
        {
            tracing::warn!(
                peer = %call.peer,
                "{} was not believed, because {} is not among trusted_proxies: it is taken for the client itself",
                proxies.field.name(),
                call.peer
            );
        }
        match told {
            SingleField::Nothing => proxies.client(call.peer, std::iter::empty()),
            SingleField::One(line) => proxies.client(call.peer, std::iter::once(line)),
            SingleField::Several => proxies.client(call.peer, call.head.values(proxies.field.name()).rev()),
        }
    }
}

/// What a head tells of the request that is asked about.
#[derive(Debug)]
struct ForwardedRequest<'a> {
    method: &'a str,
    path: Cow<'a, str>,
    query: Option<&'a [u8]>,
    /// In lower case and without its port; empty if there is none.
    host: Cow<'a, str>,
    /// Whose request it is.
    address: SingleField<'a>,
}

impl<'a> ForwardedRequest<'a> {
    /// Reads all of it in one go; `address_field` is the one that tells whose request it is.
    fn read(head: &RequestHead<'a>, address_field: &str) -> Result<ForwardedRequest<'a>, HttpError> {
        let (mut forwarded, mut original) = (FieldFamily::default(), FieldFamily::default());
        let (mut host, mut address) = (SingleField::Nothing, SingleField::Nothing);
        head.each_field(|name, value| match name.len() {
            14 if name.eq_ignore_ascii_case(b"x-original-uri") => original.uri.add(value),
            15 if name.eq_ignore_ascii_case(b"x-forwarded-uri") => forwarded.uri.add(value),
            16 if name.eq_ignore_ascii_case(b"x-forwarded-host") => host.add(value),
            17 if name.eq_ignore_ascii_case(b"x-original-method") => original.method.add(value),
            18 if name.eq_ignore_ascii_case(b"x-forwarded-method") => forwarded.method.add(value),
            length
                if length == address_field.len() && name.eq_ignore_ascii_case(address_field.as_bytes()) =>
            {
                address.add_any(value);
            }
            _ => {}
        });
        let family = match (forwarded.is_there(), original.is_there()) {
            (true, true) if forwarded != original => {
                return Err(HttpError::unclear(format_args!(
                    "X-Forwarded-Method and -Uri say something else than X-Original-Method and -URI, so one of them \
                     is the client's own: have the proxy set or remove them all"
                )));
            }
            (_, false) => forwarded,
            (_, true) => original,
        };
        let method = family.method.only("the method")?.ok_or_else(untold)?;
        let uri = family.uri.only("the URI")?.ok_or_else(untold)?;
        let (path, query) = parts(uri);
        let host = match host.only("the host")? {
            Some(host) => host,
            None => head.host().unwrap_or_default(),
        };
        Ok(ForwardedRequest {
            method: method_of(method)?,
            path: path_of(path)?,
            query,
            host: host_of(host)?,
            address,
        })
    }
}

fn untold() -> HttpError {
    HttpError::unclear(format_args!(
        "it is not told what is asked for: have the proxy set X-Forwarded-Method and X-Forwarded-Uri, or \
         X-Original-Method and X-Original-URI"
    ))
}

/// The two fields that tell what is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct FieldFamily<'a> {
    method: SingleField<'a>,
    uri: SingleField<'a>,
}

impl FieldFamily<'_> {
    fn is_there(&self) -> bool {
        *self != FieldFamily::default()
    }
}

/// A field that is there once at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SingleField<'a> {
    #[default]
    Nothing,
    One(&'a [u8]),
    Several,
}

impl<'a> SingleField<'a> {
    /// Adds a line of it. An empty one says nothing.
    fn add(&mut self, value: &'a [u8]) {
        if !value.is_empty() {
            self.add_any(value);
        }
    }

    /// Adds a line of it, even an empty one.
    fn add_any(&mut self, value: &'a [u8]) {
        *self = match self {
            SingleField::Nothing => SingleField::One(value),
            SingleField::One(_) | SingleField::Several => SingleField::Several,
        };
    }

    fn only(self, what: &str) -> Result<Option<&'a [u8]>, HttpError> {
        match self {
            SingleField::Nothing => Ok(None),
            SingleField::One(value) => Ok(Some(value)),
            SingleField::Several => Err(HttpError::unclear(format_args!(
                "{what} is told twice, so the client wrote one of them: have the proxy replace what is there"
            ))),
        }
    }
}

/// The path and the query of what a client asked for, which may begin with a scheme and a host.
fn parts(uri: &[u8]) -> (&[u8], Option<&[u8]>) {
    let (mut path, query) = match uri.iter().position(|byte| *byte == b'?') {
        Some(at) => (&uri[..at], Some(&uri[at + 1..])),
        None => (uri, None),
    };
    if !path.starts_with(b"/")
        && let Some(at) = path.windows(3).position(|window| window == b"://")
    {
        let behind = &path[at + 3..];
        path = behind.iter().position(|byte| *byte == b'/').map_or(b"/", |slash| &behind[slash..]);
    }
    (path, query)
}

fn method_of(method: &[u8]) -> Result<&str, HttpError> {
    let text =
        str::from_utf8(method).ok().filter(|text| escape::is_name(text) && text.len() <= MAX_NAME_CHARS);
    text.ok_or_else(|| {
        HttpError::unclear(format_args!("the method is no word of at most {MAX_NAME_CHARS} characters"))
    })
}

fn path_of(path: &[u8]) -> Result<Cow<'_, str>, HttpError> {
    let path = escape::as_text(path);
    match path.len() <= MAX_ENDPOINT_CHARS || path.chars().count() <= MAX_ENDPOINT_CHARS {
        true => Ok(path),
        false => {
            Err(HttpError::unclear(format_args!("the path has more than {MAX_ENDPOINT_CHARS} characters")))
        }
    }
}

/// A host in one form, so that nobody is another by spelling it differently.
fn host_of(host: &[u8]) -> Result<Cow<'_, str>, HttpError> {
    if host.len() > MAX_HOST_BYTES {
        return Err(HttpError::unclear(format_args!("the host has more than {MAX_HOST_BYTES} bytes")));
    }
    Ok(match escape::as_text(host) {
        Cow::Borrowed(text) => one_spelling(text),
        Cow::Owned(text) => Cow::Owned(one_spelling(&text).into_owned()),
    })
}

fn one_spelling(text: &str) -> Cow<'_, str> {
    let name = match text.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && is_whole(name) => name,
        _ => text,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    }
}

/// Whether a colon behind it begins a port: an IPv6 address has colons of its own, and stands in brackets.
fn is_whole(name: &str) -> bool {
    !name.contains(':') || name.ends_with(']')
}

#[cfg(test)]
mod tests;

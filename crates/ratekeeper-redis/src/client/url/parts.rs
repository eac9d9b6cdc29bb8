//! Splits a store's URL into parts, and parses them.

use super::{
    Credentials, MAX_SERVERS, RedisUrl, SecretText, ServerAddress, StoreTlsFiles, StoreUrlError, UrlTopology,
};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// All query parameters; each scheme takes some of them.
const QUERY_PARAMETERS: [&str; 6] = ["ca", "cert", "key", "db", "sentinel_user", "sentinel_password"];

/// The URL schemes, each with the kind of URL and whether it uses TLS.
pub(super) const SCHEMES: [(&str, UrlKind, bool); 9] = [
    ("redis", UrlKind::Standalone, false),
    ("rediss", UrlKind::Standalone, true),
    ("redis+unix", UrlKind::Unix, false),
    ("redis+sentinel", UrlKind::Sentinel, false),
    ("rediss+sentinel", UrlKind::Sentinel, true),
    ("redis+cluster", UrlKind::Cluster, false),
    ("rediss+cluster", UrlKind::Cluster, true),
    ("redis+sharded", UrlKind::Sharded, false),
    ("rediss+sharded", UrlKind::Sharded, true),
];

/// The parts of a URL, still percent-encoded.
pub(crate) struct UrlParts<'a> {
    kind: UrlKind,
    has_tls: bool,
    userinfo: &'a str,
    servers_text: &'a str,
    /// Without the leading slash.
    path: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UrlKind {
    Standalone,
    Unix,
    Sentinel,
    Cluster,
    Sharded,
}

impl<'a> UrlParts<'a> {
    pub(crate) fn split(text: &'a str) -> Result<UrlParts<'a>, StoreUrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(StoreUrlError::UnknownScheme)?;
        let redis_scheme = match scheme.strip_prefix("valkey") {
            Some(kind) => Cow::Owned(format!("redis{kind}")),
            None => Cow::Borrowed(scheme),
        };
        let known = SCHEMES.into_iter().find(|(known, ..)| *known == redis_scheme);
        let Some((_, kind, has_tls)) = known else {
            let is_unix_tls = redis_scheme == "rediss+unix";
            return Err(if is_unix_tls { StoreUrlError::UnixTls } else { StoreUrlError::UnknownScheme });
        };
        if rest.contains('#') {
            return Err(StoreUrlError::UnescapedCharacter);
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // The rest of a password with an unescaped slash or question mark would end up in the path or query.
        if path.contains('@') || (query.contains('@') && !authority.contains('@')) {
            return Err(StoreUrlError::UnescapedCharacter);
        }
        let (userinfo, servers) = authority.rsplit_once('@').unwrap_or(("", authority));
        if userinfo.contains('@') {
            return Err(StoreUrlError::UnescapedCharacter);
        }
        let fields = query.split('&').filter(|field| !field.is_empty());
        let fields = fields.map(|field| field.split_once('=').unwrap_or((field, ""))).collect();
        Ok(UrlParts { kind, has_tls, userinfo, servers_text: servers, path, parameters: fields })
    }

    pub(crate) fn parse(mut self) -> Result<RedisUrl, StoreUrlError> {
        let credentials = parse_credentials(self.userinfo)?;
        let servers = self.parse_servers()?;
        let (topology, db) = self.parse_topology()?;
        let tls = self.parse_tls()?;
        if let Some((name, _)) = self.parameters.first() {
            let known = QUERY_PARAMETERS.into_iter().find(|field| field == name);
            return Err(StoreUrlError::UnknownParameter(known, self.parameter_advice()));
        }
        Ok(RedisUrl { topology, servers, credentials, db, tls })
    }

    fn parse_servers(&self) -> Result<Vec<ServerAddress>, StoreUrlError> {
        if self.kind == UrlKind::Unix {
            let path = format!("/{}", unescape(self.path)?);
            let is_path = self.servers_text.is_empty() && path.len() > 1;
            return if is_path {
                Ok(vec![ServerAddress::Unix(path.into())])
            } else {
                Err(StoreUrlError::NoSocket)
            };
        }
        if self.servers_text.is_empty() {
            return Err(StoreUrlError::NoServer);
        }
        let default_port = if self.kind == UrlKind::Sentinel { SENTINEL_PORT } else { REDIS_PORT };
        let mut servers = Vec::new();
        for text in self.servers_text.split(',') {
            let server = parse_server(text, default_port);
            let server = server.ok_or(StoreUrlError::BadServer(servers.len() + 1))?;
            if servers.contains(&server) {
                return Err(StoreUrlError::DuplicateServer(server.to_string()));
            }
            if servers.len() == MAX_SERVERS {
                return Err(StoreUrlError::TooManyServers);
            }
            servers.push(server);
        }
        match self.kind {
            UrlKind::Standalone if servers.len() > 1 => Err(StoreUrlError::MultipleServers),
            _ => Ok(servers),
        }
    }

    fn parse_topology(&mut self) -> Result<(UrlTopology, u32), StoreUrlError> {
        match self.kind {
            UrlKind::Standalone => Ok((UrlTopology::Standalone, parse_db(self.path)?)),
            UrlKind::Sharded => Ok((UrlTopology::Sharded, parse_db(self.path)?)),
            UrlKind::Unix => {
                let db = self.take_parameter("db")?.unwrap_or_default();
                Ok((UrlTopology::Standalone, parse_db(&db)?))
            }
            UrlKind::Cluster => match parse_db(self.path)? {
                0 => Ok((UrlTopology::Cluster, 0)),
                _ => Err(StoreUrlError::ClusterDb),
            },
            UrlKind::Sentinel => {
                let (master, db) = self.path.split_once('/').unwrap_or((self.path, ""));
                let master = unescape(master)?;
                if master.is_empty() {
                    return Err(StoreUrlError::NoMaster);
                }
                let (user, password) =
                    (self.take_parameter("sentinel_user")?, self.take_parameter("sentinel_password")?);
                let credentials = Credentials { user, password: password.map(SecretText) };
                Ok((UrlTopology::Sentinel { master, credentials }, parse_db(db)?))
            }
        }
    }

    fn parse_tls(&mut self) -> Result<Option<StoreTlsFiles>, StoreUrlError> {
        if !self.has_tls {
            return Ok(None);
        }
        let mut file = |name| Ok::<_, StoreUrlError>(self.take_parameter(name)?.map(PathBuf::from));
        let (ca, cert, key) = (file("ca")?, file("cert")?, file("key")?);
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return Err(StoreUrlError::IncompleteIdentity),
        };
        Ok(Some(StoreTlsFiles { ca, identity }))
    }

    /// Removes a query parameter and returns its value. Returns `None` if it is not given.
    fn take_parameter(&mut self, name: &str) -> Result<Option<String>, StoreUrlError> {
        let Some(at) = self.parameters.iter().position(|(field, _)| *field == name) else { return Ok(None) };
        let (_, value) = self.parameters.remove(at);
        if value.is_empty() || self.parameters.iter().any(|(field, _)| *field == name) {
            return Err(StoreUrlError::BadParameterValue(name.to_owned()));
        }
        unescape(value).map(Some)
    }

    /// Advice on the query parameters that this URL takes.
    fn parameter_advice(&self) -> &'static str {
        match (self.kind, self.has_tls) {
            (UrlKind::Unix, _) => "it takes ?db=NUMBER",
            (UrlKind::Sentinel, false) => {
                "it takes ?sentinel_user=…&sentinel_password=…, and ca, cert and key belong to rediss+sentinel://"
            }
            (UrlKind::Sentinel, true) => {
                "it takes ?sentinel_user=…&sentinel_password=…&ca=FILE&cert=FILE&key=FILE"
            }
            (UrlKind::Standalone | UrlKind::Cluster | UrlKind::Sharded, true) => {
                "it takes ?ca=FILE&cert=FILE&key=FILE"
            }
            (UrlKind::Standalone | UrlKind::Cluster | UrlKind::Sharded, false) => {
                "leave it out; ca, cert and key require TLS, so write rediss instead of redis for them"
            }
        }
    }
}

fn parse_credentials(text: &str) -> Result<Credentials, StoreUrlError> {
    if text.is_empty() {
        return Ok(Credentials::default());
    }
    // A user without a password is one with `nopass`, which accepts any password.
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    if password.contains(':') {
        return Err(StoreUrlError::UnescapedCharacter);
    }
    let user = Some(unescape(user)?).filter(|user| !user.is_empty());
    Ok(Credentials { user, password: Some(SecretText(unescape(password)?)) })
}

fn parse_db(text: &str) -> Result<u32, StoreUrlError> {
    let text = text.strip_suffix('/').unwrap_or(text);
    if text.contains('/') {
        return Err(StoreUrlError::BadPath);
    }
    if text.is_empty() {
        return Ok(0);
    }
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let db = text.parse().ok().filter(|_| is_number);
    db.ok_or(StoreUrlError::BadDb)
}

/// Parses `host`, `host:port`, `[address]` or `[address]:port`. Returns `None` if it is invalid.
fn parse_server(text: &str, default_port: u16) -> Option<ServerAddress> {
    let (host, port) = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (host, rest) = bracketed.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            match rest {
                "" => (host, None),
                rest => (host, Some(rest.strip_prefix(':')?)),
            }
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    if host.is_empty() || !host.bytes().all(is_name) {
        return None;
    }
    let port = match port {
        None => default_port,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port.parse().ok()?,
        Some(_) => return None,
    };
    (port != 0).then(|| ServerAddress::Tcp { host: host.to_owned(), port })
}

fn unescape(text: &str) -> Result<String, StoreUrlError> {
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        plain.push(match byte {
            b'%' => match (digit(bytes.next()), digit(bytes.next())) {
                (Some(high), Some(low)) => {
                    u8::try_from(high << 4 | low).expect("two hex digits are one byte")
                }
                _ => return Err(StoreUrlError::BadEscape),
            },
            byte => byte,
        });
    }
    String::from_utf8(plain).map_err(|_| StoreUrlError::BadEscape)
}

/// Percent-encodes text for [`unescape`], including every possible separator.
pub(super) fn escape(text: &str) -> String {
    escape_except(b"", text)
}

/// Like [`escape`] for a path, whose slashes are kept.
pub(super) fn escape_path(path: &Path) -> String {
    escape_except(b"/", &path.to_string_lossy())
}

fn escape_except(kept: &[u8], text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").expect("a string takes any text");
        }
    }
    escaped
}

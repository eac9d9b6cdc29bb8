//! The parts of a store's URL, and what they mean together.

use super::{
    Credentials, MAX_SERVERS, RedisUrl, SecretText, ServerAddress, StoreTlsFiles, StoreUrlError, UrlTopology,
};
use std::fmt;
use std::path::{Path, PathBuf};

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// What may stand behind `?`, in one form of a URL or another.
const FIELDS: [&str; 6] = ["ca", "cert", "key", "db", "sentinel_user", "sentinel_password"];

/// A URL taken apart, with nothing undone yet.
pub(super) struct UrlParts<'a> {
    kind: UrlKind,
    has_tls: bool,
    login: &'a str,
    servers: &'a str,
    /// Without its first slash.
    path: &'a str,
    fields: Vec<(&'a str, &'a str)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlKind {
    Standalone,
    Unix,
    Sentinel,
    Cluster,
    Sharded,
}

impl<'a> UrlParts<'a> {
    pub(super) fn split(text: &'a str) -> Result<UrlParts<'a>, StoreUrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(StoreUrlError::Scheme)?;
        let (family, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let has_tls = match family {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(StoreUrlError::Scheme),
        };
        let kind = match kind {
            "" if !scheme.contains('+') => UrlKind::Standalone,
            "unix" => UrlKind::Unix,
            "sentinel" => UrlKind::Sentinel,
            "cluster" => UrlKind::Cluster,
            "sharded" => UrlKind::Sharded,
            _ => return Err(StoreUrlError::Scheme),
        };
        if rest.contains('#') {
            return Err(StoreUrlError::Unescaped);
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // A password with a bare slash, or one with a question mark, would leave its end behind as path or query.
        if path.contains('@') || (query.contains('@') && !authority.contains('@')) {
            return Err(StoreUrlError::Unescaped);
        }
        let (login, servers) = authority.rsplit_once('@').unwrap_or(("", authority));
        if login.contains('@') {
            return Err(StoreUrlError::Unescaped);
        }
        let fields = query.split('&').filter(|field| !field.is_empty());
        let fields = fields.map(|field| field.split_once('=').unwrap_or((field, ""))).collect();
        Ok(UrlParts { kind, has_tls, login, servers, path, fields })
    }

    pub(super) fn read(mut self) -> Result<RedisUrl, StoreUrlError> {
        let login = read_login(self.login)?;
        let servers = self.servers()?;
        let (form, db) = self.form()?;
        let tls = self.tls()?;
        if let Some((name, _)) = self.fields.first() {
            let known = FIELDS.into_iter().find(|field| field == name);
            return Err(StoreUrlError::BadField(known, self.meaningful()));
        }
        Ok(RedisUrl { form, servers, login, db, tls })
    }

    fn servers(&self) -> Result<Vec<ServerAddress>, StoreUrlError> {
        if self.kind == UrlKind::Unix {
            let path = format!("/{}", unescape(self.path)?);
            let is_path = self.servers.is_empty() && path.len() > 1;
            return if is_path {
                Ok(vec![ServerAddress::Unix(path.into())])
            } else {
                Err(StoreUrlError::NoSocket)
            };
        }
        if self.servers.is_empty() {
            return Err(StoreUrlError::NoServer);
        }
        let default_port = if self.kind == UrlKind::Sentinel { SENTINEL_PORT } else { REDIS_PORT };
        let mut servers = Vec::new();
        for text in self.servers.split(',') {
            let server = read_server(text, default_port);
            let server = server.ok_or(StoreUrlError::BadServer(servers.len() + 1))?;
            if servers.contains(&server) {
                return Err(StoreUrlError::Twice(server.to_string()));
            }
            if servers.len() == MAX_SERVERS {
                return Err(StoreUrlError::TooManyServers);
            }
            servers.push(server);
        }
        match self.kind {
            UrlKind::Standalone if servers.len() > 1 => Err(StoreUrlError::ManyServers),
            UrlKind::Standalone | UrlKind::Unix | UrlKind::Sentinel | UrlKind::Cluster | UrlKind::Sharded => {
                Ok(servers)
            }
        }
    }

    fn form(&mut self) -> Result<(UrlTopology, u32), StoreUrlError> {
        match self.kind {
            UrlKind::Standalone => Ok((UrlTopology::Standalone, read_db(self.path)?)),
            UrlKind::Sharded => Ok((UrlTopology::Sharded, read_db(self.path)?)),
            UrlKind::Unix => {
                let db = self.field("db")?.unwrap_or_default();
                Ok((UrlTopology::Standalone, read_db(&db)?))
            }
            UrlKind::Cluster => match read_db(self.path)? {
                0 => Ok((UrlTopology::Cluster, 0)),
                _ => Err(StoreUrlError::ClusterDb),
            },
            UrlKind::Sentinel => {
                let (master, db) = self.path.split_once('/').unwrap_or((self.path, ""));
                let master = unescape(master)?;
                if master.is_empty() {
                    return Err(StoreUrlError::NoMaster);
                }
                let (user, password) = (self.field("sentinel_user")?, self.field("sentinel_password")?);
                let login = Credentials { user, password: password.map(SecretText) };
                Ok((UrlTopology::Sentinel { master, login }, read_db(db)?))
            }
        }
    }

    fn tls(&mut self) -> Result<Option<StoreTlsFiles>, StoreUrlError> {
        if !self.has_tls {
            return Ok(None);
        }
        if self.kind == UrlKind::Unix {
            return Err(StoreUrlError::UnixTls);
        }
        let mut file = |name| Ok::<_, StoreUrlError>(self.field(name)?.map(PathBuf::from));
        let (ca, cert, key) = (file("ca")?, file("cert")?, file("key")?);
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return Err(StoreUrlError::HalfIdentity),
        };
        Ok(Some(StoreTlsFiles { ca, identity }))
    }

    /// Takes a field out of those behind `?`.
    fn field(&mut self, name: &str) -> Result<Option<String>, StoreUrlError> {
        let Some(at) = self.fields.iter().position(|(field, _)| *field == name) else { return Ok(None) };
        let (_, value) = self.fields.remove(at);
        if value.is_empty() || self.fields.iter().any(|(field, _)| *field == name) {
            return Err(StoreUrlError::BadValue(name.to_owned()));
        }
        unescape(value).map(Some)
    }

    /// What may stand behind `?` here.
    fn meaningful(&self) -> &'static str {
        match (self.kind, self.has_tls) {
            (UrlKind::Unix, _) => "it may have ?db=NUMBER",
            (UrlKind::Sentinel, false) => {
                "it may have ?sentinel_user=…&sentinel_password=…, and ca, cert and key belong to rediss+sentinel://"
            }
            (UrlKind::Sentinel, true) => {
                "it may have ?sentinel_user=…&sentinel_password=…&ca=FILE&cert=FILE&key=FILE"
            }
            (UrlKind::Standalone | UrlKind::Cluster | UrlKind::Sharded, true) => {
                "it may have ?ca=FILE&cert=FILE&key=FILE"
            }
            (UrlKind::Standalone | UrlKind::Cluster | UrlKind::Sharded, false) => {
                "leave it out; ca, cert and key belong to TLS, so write rediss in place of redis for them"
            }
        }
    }
}

fn read_login(text: &str) -> Result<Credentials, StoreUrlError> {
    if text.is_empty() {
        return Ok(Credentials::default());
    }
    // A user without a password is one that needs none, and any password would do.
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    if password.contains(':') {
        return Err(StoreUrlError::Unescaped);
    }
    let user = Some(unescape(user)?).filter(|user| !user.is_empty());
    Ok(Credentials { user, password: Some(SecretText(unescape(password)?)) })
}

fn read_db(text: &str) -> Result<u32, StoreUrlError> {
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

/// Reads `host`, `host:port`, `[address]` or `[address]:port`.
fn read_server(text: &str, default_port: u16) -> Option<ServerAddress> {
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

/// Writes what [`unescape`] reads, with everything escaped that could be taken for a separator.
pub(super) fn escape(text: &str, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    escape_all_but(b"", text, out)
}

/// The same for a file, whose slashes separate nothing else.
pub(super) fn escape_path(path: &Path, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    escape_all_but(b"/", &path.to_string_lossy(), out)
}

fn escape_all_but(kept: &[u8], text: &str, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    for byte in text.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.contains(&byte);
        match is_plain {
            true => write!(out, "{}", char::from(byte))?,
            false => write!(out, "%{byte:02X}")?,
        }
    }
    Ok(())
}

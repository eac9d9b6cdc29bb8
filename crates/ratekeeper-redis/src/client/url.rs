//! The URL of a store.
//!
//! A URL names the topology (one server, Sentinel, Cluster, sharded), the servers and the credentials. It is parsed
//! once, at the edge, and every error says what to write instead. Passwords are never shown: not by `Display`, not by
//! `Debug`, and not in errors.

mod error;
mod parts;
#[cfg(test)]
mod tests;

pub use error::StoreUrlError;

use parts::UrlParts;
use ratekeeper::Topology;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Stands for a password where a URL is displayed.
pub const HIDDEN_PASSWORD: &str = "***";

/// Maximum number of servers in a URL.
pub const MAX_SERVERS: usize = 64;

/// The location of a store: this process, or servers.
///
/// ```
/// use ratekeeper_redis::StoreUrl;
///
/// let url: StoreUrl = "redis://limits:s3cret@cache.internal/2".parse()?;
/// assert_eq!(url.to_string(), "redis://limits:***@cache.internal:6379/2");
/// assert_eq!("memory".parse::<StoreUrl>()?, StoreUrl::Memory);
/// # Ok::<(), ratekeeper_redis::StoreUrlError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// The memory of this process.
    Memory,
    /// Redis or Valkey servers.
    Redis(Box<RedisUrl>),
}

/// The URL of a store on Redis or Valkey: topology, servers and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUrl {
    /// The topology, with the settings to discover it.
    pub topology: UrlTopology,
    /// The listed servers: for a Cluster some of its nodes, with Sentinel the sentinels.
    pub servers: Vec<ServerAddress>,
    /// Credentials for the servers that hold state.
    pub credentials: Credentials,
    /// Database number.
    pub db: u32,
    /// TLS files. `None` to connect without TLS.
    pub tls: Option<StoreTlsFiles>,
}

/// A [`Topology`] as written in a URL, with the settings to discover it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlTopology {
    /// One server.
    Standalone,
    /// A master and its replicas, monitored by sentinels.
    Sentinel {
        /// Name of the master, as configured in the sentinels.
        master: String,
        /// Credentials for the sentinels.
        credentials: Credentials,
    },
    /// Redis Cluster.
    Cluster,
    /// Independent servers; each key is on one of them.
    Sharded,
}

impl UrlTopology {
    /// The topology without its settings.
    pub const fn kind(&self) -> Topology {
        match self {
            UrlTopology::Standalone => Topology::Standalone,
            UrlTopology::Sentinel { .. } => Topology::Sentinel,
            UrlTopology::Cluster => Topology::Cluster,
            UrlTopology::Sharded => Topology::Sharded,
        }
    }
}

/// The address of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServerAddress {
    /// A TCP address.
    Tcp {
        /// Host name or IP address, without brackets.
        host: String,
        /// Port number.
        port: u16,
    },
    /// The path of a Unix domain socket.
    Unix(PathBuf),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Tcp { host, port } if host.contains(':') => write!(out, "[{host}]:{port}"),
            ServerAddress::Tcp { host, port } => write!(out, "{host}:{port}"),
            ServerAddress::Unix(path) => write!(out, "{}", path.display()),
        }
    }
}

/// User and password of a login. Without a password, no authentication takes place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// User name. `None` means the user `default`.
    pub user: Option<String>,
    /// Password.
    pub password: Option<SecretText>,
}

/// Secret text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    /// Wraps a secret text.
    pub fn new(text: impl Into<String>) -> SecretText {
        SecretText(text.into())
    }

    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(HIDDEN_PASSWORD)
    }
}

/// The files for TLS connections, all in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTlsFiles {
    /// Certificate authorities that may sign a server's certificate. `None` means those that the machine trusts.
    pub ca: Option<PathBuf>,
    /// Client certificate and its key, for servers that require one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<StoreUrl, StoreUrlError> {
        match text {
            "memory" => Ok(StoreUrl::Memory),
            text => text.parse().map(|url| StoreUrl::Redis(Box::new(url))),
        }
    }
}

impl FromStr for RedisUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<RedisUrl, StoreUrlError> {
        UrlParts::split(text)?.parse()
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Memory => out.write_str("memory"),
            StoreUrl::Redis(url) => url.fmt(out),
        }
    }
}

/// Formats the URL with [`HIDDEN_PASSWORD`] for each password.
impl fmt::Display for RedisUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_unix = matches!(self.servers.first(), Some(ServerAddress::Unix(_)));
        out.write_str(if self.tls.is_some() { "rediss" } else { "redis" })?;
        match self.topology.kind() {
            Topology::Standalone if is_unix => out.write_str("+unix")?,
            Topology::Standalone => {}
            topology => write!(out, "+{}", topology.name())?,
        }
        let user = self.credentials.user.as_deref().map(parts::escape);
        match (user, &self.credentials.password) {
            (None, None) => out.write_str("://")?,
            (Some(user), None) => write!(out, "://{user}@")?,
            (user, Some(_)) => write!(out, "://{}:{HIDDEN_PASSWORD}@", user.unwrap_or_default())?,
        }
        let servers = self.servers.iter().map(|server| match server {
            ServerAddress::Tcp { .. } => server.to_string(),
            ServerAddress::Unix(path) => parts::escape_path(path),
        });
        out.write_str(&servers.collect::<Vec<_>>().join(","))?;
        if let UrlTopology::Sentinel { master, .. } = &self.topology {
            write!(out, "/{}", parts::escape(master))?;
        }
        match self.db {
            0 => {}
            db if is_unix => write!(out, "?db={db}")?,
            db => write!(out, "/{db}")?,
        }
        for (index, (name, value)) in self.query().into_iter().enumerate() {
            write!(out, "{}{name}={value}", if index == 0 { "?" } else { "&" })?;
        }
        Ok(())
    }
}

impl RedisUrl {
    /// The query parameters but the database, escaped.
    fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = Vec::new();
        if let Some(StoreTlsFiles { ca, identity }) = &self.tls {
            let (cert, key) = identity.as_ref().map(|(cert, key)| (cert, key)).unzip();
            let files = [("ca", ca.as_ref()), ("cert", cert), ("key", key)];
            query
                .extend(files.into_iter().filter_map(|(name, path)| Some((name, parts::escape_path(path?)))));
        }
        if let UrlTopology::Sentinel { credentials: Credentials { user, password }, .. } = &self.topology {
            query.extend(user.as_ref().map(|user| ("sentinel_user", parts::escape(user))));
            query.extend(password.as_ref().map(|_| ("sentinel_password", HIDDEN_PASSWORD.to_owned())));
        }
        query
    }

    /// The passwords for the servers and for the sentinels.
    fn passwords(&self) -> impl Iterator<Item = &SecretText> {
        let sentinels = match &self.topology {
            UrlTopology::Sentinel { credentials, .. } => Some(credentials),
            UrlTopology::Standalone | UrlTopology::Cluster | UrlTopology::Sharded => None,
        };
        [&self.credentials].into_iter().chain(sentinels).filter_map(|login| login.password.as_ref())
    }
}

impl StoreUrl {
    /// The URL schemes. Each also exists with `valkey` in place of `redis`, with the same meaning.
    pub fn schemes() -> impl Iterator<Item = &'static str> {
        parts::SCHEMES.into_iter().map(|(scheme, ..)| scheme)
    }

    /// Returns whether a password is only [`HIDDEN_PASSWORD`], as in a URL that was copied from where it is displayed.
    pub fn has_hidden_password(&self) -> bool {
        match self {
            StoreUrl::Memory => false,
            StoreUrl::Redis(url) => url.passwords().any(|password| password.reveal() == HIDDEN_PASSWORD),
        }
    }

    /// Puts [`HIDDEN_PASSWORD`] in place of each password. In text that is not a valid URL, too much is hidden rather
    /// than too little.
    ///
    /// ```
    /// use ratekeeper_redis::StoreUrl;
    ///
    /// assert_eq!(StoreUrl::hide_passwords("redis://me:s3cret@cache"), "redis://me:***@cache");
    /// assert_eq!(StoreUrl::hide_passwords("me:s3cret@cache"), "***@cache");
    /// ```
    pub fn hide_passwords(text: &str) -> String {
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text.rsplit_once('@') {
                Some((_, host)) => format!("{HIDDEN_PASSWORD}@{host}"),
                None => text.to_owned(),
            };
        };
        let (authority, query) =
            rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        // An unescaped password may contain any character, so the last @ ends it.
        let login =
            authority.rsplit_once('@').and_then(|(login, host)| Some((login.split_once(':')?.0, host)));
        let authority = match login {
            Some((user, host)) => format!("{user}:{HIDDEN_PASSWORD}@{host}"),
            None => authority.to_owned(),
        };
        let hide = |pair: &str| match pair.split_once('=') {
            Some((name, _)) if name.ends_with("password") => format!("{name}={HIDDEN_PASSWORD}"),
            _ => pair.to_owned(),
        };
        match query.map(|query| query.split('&').map(hide).collect::<Vec<_>>().join("&")) {
            Some(query) => format!("{scheme}://{authority}?{query}"),
            None => format!("{scheme}://{authority}"),
        }
    }
}

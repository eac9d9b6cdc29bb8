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
        out.write_str("***")
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

/// Formats the URL with `***` for each password.
impl fmt::Display for RedisUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_unix = matches!(self.servers.first(), Some(ServerAddress::Unix(_)));
        out.write_str(if self.tls.is_some() { "rediss" } else { "redis" })?;
        match self.topology.kind() {
            Topology::Standalone if is_unix => out.write_str("+unix")?,
            Topology::Standalone => {}
            topology @ (Topology::Sentinel | Topology::Cluster | Topology::Sharded) => {
                write!(out, "+{}", topology.name())?;
            }
        }
        out.write_str("://")?;
        let Credentials { user, password } = &self.credentials;
        if let Some(user) = user {
            parts::escape(user, out)?;
        }
        if password.is_some() {
            out.write_str(":***")?;
        }
        if user.is_some() || password.is_some() {
            out.write_str("@")?;
        }
        for (index, server) in self.servers.iter().enumerate() {
            out.write_str(if index == 0 { "" } else { "," })?;
            match server {
                ServerAddress::Tcp { .. } => server.fmt(out)?,
                ServerAddress::Unix(path) => parts::escape_path(path, out)?,
            }
        }
        if let UrlTopology::Sentinel { master, .. } = &self.topology {
            out.write_str("/")?;
            parts::escape(master, out)?;
        }
        match self.db {
            0 => {}
            db if is_unix => write!(out, "?db={db}")?,
            db => write!(out, "/{db}")?,
        }
        self.write_query(out)
    }
}

impl RedisUrl {
    fn write_query(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separators = ["?"].into_iter().chain(std::iter::repeat("&"));
        let mut separator = || separators.next().unwrap_or_default();
        if let Some(StoreTlsFiles { ca, identity }) = &self.tls {
            let (cert, key) = (identity.as_ref().map(|pair| &pair.0), identity.as_ref().map(|pair| &pair.1));
            for (name, path) in [("ca", ca.as_ref()), ("cert", cert), ("key", key)] {
                if let Some(path) = path {
                    write!(out, "{}{name}=", separator())?;
                    parts::escape_path(path, out)?;
                }
            }
        }
        if let UrlTopology::Sentinel { credentials: Credentials { user, password }, .. } = &self.topology {
            if let Some(user) = user {
                write!(out, "{}sentinel_user=", separator())?;
                parts::escape(user, out)?;
            }
            if password.is_some() {
                write!(out, "{}sentinel_password=***", separator())?;
            }
        }
        Ok(())
    }
}

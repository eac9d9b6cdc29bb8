//! Where a store is, as people write it.
//!
//! A URL says how servers stand together (alone, behind Sentinel, as a Cluster, side by side), where they are, and how
//! to log in. It is read once, at the edge; every mistake says what to write instead. Passwords are never shown: not by
//! `Display`, not by `Debug`, not in an error.

mod error;
mod parts;
#[cfg(test)]
mod tests;

pub use error::StoreUrlError;

use crate::health::Topology;
use parts::UrlParts;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The most servers that a URL may list.
pub const MAX_SERVERS: usize = 64;

/// Where state is kept: in this process, or on servers.
///
/// ```
/// use ratekeeper::redis::StoreUrl;
///
/// let url: StoreUrl = "redis://limits:s3cret@cache.internal/2".parse()?;
/// assert_eq!(url.to_string(), "redis://limits:***@cache.internal:6379/2");
/// assert_eq!("memory".parse::<StoreUrl>()?, StoreUrl::Memory);
/// # Ok::<(), ratekeeper::redis::StoreUrlError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// In this process.
    Memory,
    /// On Redis or Valkey.
    Redis(Box<RedisUrl>),
}

/// Redis or Valkey servers: where they are, how they stand together, and how to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUrl {
    /// How they stand together, and what it takes to find them.
    pub form: UrlTopology,
    /// The servers that are listed: of a Cluster some of its nodes, behind Sentinel the sentinels.
    pub servers: Vec<ServerAddress>,
    /// How to log in to servers that keep state.
    pub login: Credentials,
    /// The number of the database.
    pub db: u32,
    /// The files that TLS needs, if it is to be spoken.
    pub tls: Option<StoreTlsFiles>,
}

/// How servers stand together, with what it takes to find them: a [`Topology`] as a URL says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlTopology {
    /// One server.
    Standalone,
    /// A master that sentinels watch, and its replicas.
    Sentinel {
        /// What the sentinels call the master.
        master: String,
        /// How to log in to the sentinels.
        login: Credentials,
    },
    /// Redis Cluster.
    Cluster,
    /// Servers that know nothing of each other; each key is on one of them.
    Sharded,
}

impl UrlTopology {
    /// How the servers belong together, and nothing else.
    pub const fn topology(&self) -> Topology {
        match self {
            UrlTopology::Standalone => Topology::Standalone,
            UrlTopology::Sentinel { .. } => Topology::Sentinel,
            UrlTopology::Cluster => Topology::Cluster,
            UrlTopology::Sharded => Topology::Sharded,
        }
    }
}

/// One server's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServerAddress {
    /// Over TCP.
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A socket on this machine.
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

/// How to log in. Without a password nobody logs in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The user; without one it is `default`.
    pub user: Option<String>,
    /// The password.
    pub password: Option<SecretText>,
}

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    /// Keeps a text from being shown.
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

/// The files that TLS needs, all in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTlsFiles {
    /// The authorities that may sign a server's certificate; if left out, those that the machine trusts.
    pub ca: Option<PathBuf>,
    /// This side's certificate and its key, for servers that ask for one.
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
        UrlParts::split(text)?.read()
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

/// As it would be written, with `***` for each password.
impl fmt::Display for RedisUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_unix = matches!(self.servers.first(), Some(ServerAddress::Unix(_)));
        out.write_str(if self.tls.is_some() { "rediss" } else { "redis" })?;
        match self.form.topology() {
            Topology::Standalone if is_unix => out.write_str("+unix")?,
            Topology::Standalone => {}
            topology @ (Topology::Sentinel | Topology::Cluster | Topology::Sharded) => {
                write!(out, "+{}", topology.name())?;
            }
        }
        out.write_str("://")?;
        let Credentials { user, password } = &self.login;
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
        if let UrlTopology::Sentinel { master, .. } = &self.form {
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
        let mut marks = ["?"].into_iter().chain(std::iter::repeat("&"));
        let mut mark = || marks.next().unwrap_or_default();
        if let Some(StoreTlsFiles { ca, identity }) = &self.tls {
            let (cert, key) = (identity.as_ref().map(|pair| &pair.0), identity.as_ref().map(|pair| &pair.1));
            for (name, path) in [("ca", ca.as_ref()), ("cert", cert), ("key", key)] {
                if let Some(path) = path {
                    write!(out, "{}{name}=", mark())?;
                    parts::escape_path(path, out)?;
                }
            }
        }
        if let UrlTopology::Sentinel { login: Credentials { user, password }, .. } = &self.form {
            if let Some(user) = user {
                write!(out, "{}sentinel_user=", mark())?;
                parts::escape(user, out)?;
            }
            if password.is_some() {
                write!(out, "{}sentinel_password=***", mark())?;
            }
        }
        Ok(())
    }
}

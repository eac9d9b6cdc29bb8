//! Errors in a store's URL. No message quotes the invalid text: if a host or an escape is missing, it may contain a
//! password.

/// An error in a store's URL; its message says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreUrlError {
    /// The scheme is missing or unknown.
    #[error(
        "unknown store: write memory, redis://host:port, rediss://…, redis+sentinel://h1:p,h2:p/mastername, \
         redis+cluster://h1:p,h2:p, redis+sharded://h1:p,h2:p or redis+unix:///path"
    )]
    UnknownScheme,
    /// There is no server.
    #[error("the store's URL names no server: write one after ://, like redis://127.0.0.1:6379")]
    NoServer,
    /// Several servers with a scheme that takes one.
    #[error(
        "redis:// takes one server: write redis+cluster://, redis+sentinel:// or redis+sharded:// for several"
    )]
    MultipleServers,
    /// Too many servers.
    #[error(
        "the store's URL lists more than {} servers: list some nodes of a Cluster, the others are discovered",
        super::MAX_SERVERS
    )]
    TooManyServers,
    /// The same server twice.
    #[error("the store's URL lists {0} twice")]
    DuplicateServer(String),
    /// The host or port of a server is invalid. The value is its position in the list, counted from one.
    #[error(
        "server {0} of the store's URL is invalid: write host:port, with an IPv6 address in brackets, like [::1]:6379, \
         and @host:port after a user and password"
    )]
    BadServer(usize),
    /// The database number is invalid.
    #[error("the last part of the path is not a database: write its number, like /0")]
    BadDb,
    /// A database other than 0 with a Cluster, which has only one.
    #[error("Redis Cluster has only database 0: leave the path out")]
    ClusterDb,
    /// The name of the Sentinel master is missing.
    #[error("the name of the master is missing: write redis+sentinel://h1:p,h2:p/mastername")]
    NoMaster,
    /// The path has too many parts.
    #[error("the path of the store's URL has too many parts: write only the number of a database, like /0")]
    BadPath,
    /// An unknown query parameter: its name, if another scheme has it, and the parameters that are allowed.
    #[error(
        "{name} is not allowed after ? in this store's URL: {1}; within a value, write %26 for &",
        name = .0.unwrap_or("a parameter")
    )]
    UnknownParameter(Option<&'static str>, &'static str),
    /// A query parameter without a value, or given twice.
    #[error("the parameter {0} must be given once, with a value: write {0}=…")]
    BadParameterValue(String),
    /// A client certificate without its key, or a key without its certificate.
    #[error("a client certificate and its key go together: write ?cert=FILE&key=FILE")]
    IncompleteIdentity,
    /// An invalid percent escape.
    #[error(
        "% must be followed by two hex digits, and the decoded text must be UTF-8: write %25 for % itself"
    )]
    BadEscape,
    /// A reserved character in a user or password is not escaped.
    #[error("in a user or password, write %23 for #, %2F for /, %3A for :, %3F for ? and %40 for @")]
    UnescapedCharacter,
    /// The path of the Unix socket is missing.
    #[error("the path of the socket is missing: write redis+unix:///path/to/socket")]
    NoSocket,
    /// TLS over a Unix socket.
    #[error("TLS is not supported over a Unix socket: write redis+unix://")]
    UnixTls,
}

//! What can be wrong with a store's URL. No message repeats what could not be read: who forgets a host or an escape has a
//! password where something else belongs.

/// What is wrong with a store's URL, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreUrlError {
    /// It doesn't begin with a scheme that is known.
    #[error(
        "a store is written as memory, redis://host:port, rediss://…, redis+sentinel://h1:p,h2:p/mastername, \
         redis+cluster://h1:p,h2:p, redis+sharded://h1:p,h2:p or redis+unix:///path"
    )]
    Scheme,
    /// It has no server.
    #[error("the store's URL names no server: write one behind ://, like redis://127.0.0.1:6379")]
    NoServer,
    /// It lists several servers where one belongs.
    #[error(
        "redis:// takes one server: write redis+cluster://, redis+sentinel:// or redis+sharded:// before several"
    )]
    ManyServers,
    /// It lists too many servers.
    #[error(
        "the store's URL lists more than {} servers: a Cluster's others are found by asking",
        super::MAX_SERVERS
    )]
    TooManyServers,
    /// It lists a server twice.
    #[error("the store's URL lists {0} twice")]
    Twice(String),
    /// A server's name or port can't be read; which of those listed, counted from one.
    #[error(
        "server {0} of the store's URL can't be read: write host:port, with an IPv6 address in brackets, like [::1]:6379, \
         and behind a user and password @host:port"
    )]
    BadServer(usize),
    /// The number of the database can't be read.
    #[error("what is behind the last slash is no database: write its number, like /0")]
    BadDb,
    /// A Cluster has only one database.
    #[error("Redis Cluster has only database 0: leave the path out")]
    ClusterDb,
    /// Sentinel needs to know which master is meant.
    #[error("the master's name is missing: write redis+sentinel://h1:p,h2:p/mastername")]
    NoMaster,
    /// There is more in the path than belongs there.
    #[error(
        "the path of the store's URL has more than it should: write the number of a database alone, like /0"
    )]
    BadPath,
    /// A field behind `?` is unknown here: its name, if it is one that other forms of a URL have.
    #[error("{name} behind ? has no meaning in this store's URL: {1}; within a value, write %26 for &", name = .0.unwrap_or("something"))]
    BadField(Option<&'static str>, &'static str),
    /// A field behind `?` says nothing, or is there twice.
    #[error("{0} must be there once, with a value: write {0}=…")]
    BadValue(String),
    /// A certificate without its key, or the other way round.
    #[error("a client's certificate needs its key: write ?cert=FILE&key=FILE")]
    HalfIdentity,
    /// An escape can't be read.
    #[error("a % begins an escape of two digits, and the whole must be text: write %25 for % itself")]
    BadEscape,
    /// A sign that has to be escaped.
    #[error("in a user or password, write %23 for #, %2F for /, %3A for :, %3F for ? and %40 for @")]
    Unescaped,
    /// A socket's path has to be absolute.
    #[error("the socket's path is missing: write redis+unix:///path/to/socket")]
    NoSocket,
    /// TLS over a socket of this machine.
    #[error("a socket on this machine is not spoken to over TLS: write redis+unix://")]
    UnixTls,
}

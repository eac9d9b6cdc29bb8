//! The maximum connections per listener, given the process's open-file limit.
//!
//! Every connection is an open file. If the clients of one listener could use up all of them, no client could connect
//! to the other listeners, or to the admin listener, where an operator looks when that happens. So each listener has
//! its own share, and some files are reserved for everything that is not a client connection.

use super::gauge::ListenerName;
use std::fmt;

/// The most connections of the admin listener.
pub(crate) const MAX_ADMIN_CONNECTIONS: usize = 256;
/// The least connections of the admin listener under a low file limit.
const MIN_ADMIN_CONNECTIONS: usize = 16;
/// Under a low file limit, the admin listener gets one in this many of the available files.
const ADMIN_DIVISOR: usize = 8;
/// Files reserved for other uses: the process's standard streams, the runtime, listening sockets, a connection being
/// accepted or evicted on each of them, and rule and certificate files being read.
const RESERVED_FILES: usize = 48;
/// Files reserved for each store server: connections in use, being opened and being closed.
const FILES_PER_SERVER: usize = 4;

/// The maximum connections of each listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionCaps {
    /// For each listener except the admin listener.
    pub(crate) per_listener: usize,
    pub(crate) admin: usize,
    /// Why `per_listener` is less than configured, if it is.
    pub(crate) shortage: Option<FileShortage>,
}

/// The open-file limit is too low for the configured connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileShortage {
    files: u64,
    configured: usize,
    per_listener: usize,
}

impl ConnectionCaps {
    /// Divides `max_files`, if there is such a limit, among the admin listener and `listeners` others, each configured
    /// with `max_connections`.
    pub(crate) fn new(
        max_files: Option<u64>,
        listeners: usize,
        max_connections: usize,
        store_servers: usize,
    ) -> ConnectionCaps {
        let whole =
            ConnectionCaps { per_listener: max_connections, admin: MAX_ADMIN_CONNECTIONS, shortage: None };
        let Some(files) = max_files else { return whole };
        let reserved = RESERVED_FILES + FILES_PER_SERVER * store_servers;
        let free = usize::try_from(files).unwrap_or(usize::MAX).saturating_sub(reserved);
        if max_connections.saturating_mul(listeners).saturating_add(MAX_ADMIN_CONNECTIONS) <= free {
            return whole;
        }
        let admin = (free / ADMIN_DIVISOR).clamp(MIN_ADMIN_CONNECTIONS, MAX_ADMIN_CONNECTIONS);
        let each = (free.saturating_sub(admin) / listeners.max(1)).clamp(1, max_connections);
        let shortage = FileShortage { files, configured: max_connections, per_listener: each };
        ConnectionCaps {
            per_listener: each,
            admin,
            shortage: Some(shortage).filter(|_| each < max_connections),
        }
    }
}

impl ConnectionCaps {
    /// The maximum connections of a listener.
    pub(crate) fn of(&self, listener: ListenerName) -> usize {
        if listener == ListenerName::Admin { self.admin } else { self.per_listener }
    }
}

impl fmt::Display for FileShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileShortage { files, configured: wanted, per_listener: each } = self;
        write!(
            f,
            "the open-file limit is {files}, so each listener accepts {each} connections instead of {wanted}: raise \
             the hard limit (ulimit -Hn, LimitNOFILE), disable listeners, or lower max_connections"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_files_allow_the_configured_connections() {
        let whole = ConnectionCaps { per_listener: 10_000, admin: 256, shortage: None };
        for files in [None, Some(u64::MAX), Some(524_288), Some(30_304)] {
            assert_eq!(ConnectionCaps::new(files, 3, 10_000, 0), whole, "{files:?}");
        }
        assert!(ConnectionCaps::new(Some(30_303), 3, 10_000, 0).shortage.is_some());
        assert!(ConnectionCaps::new(Some(30_304), 3, 10_000, 1).shortage.is_some());
    }

    #[test]
    fn few_files_are_divided_among_listeners() {
        for (files, listeners, servers, each, admin) in [
            (1024, 3, 0, 284, 122),
            (1024, 1, 0, 854, 122),
            (256, 3, 0, 60, 26),
            (256, 3, 6, 53, 23),
            (100, 3, 0, 12, 16),
            (8, 3, 0, 1, 16),
        ] {
            let caps = ConnectionCaps::new(Some(files), listeners, 10_000, servers);
            assert_eq!((caps.per_listener, caps.admin), (each, admin), "{files} files");
            assert!(
                caps.shortage
                    .unwrap()
                    .to_string()
                    .contains(&format!("accepts {each} connections instead of 10000"))
            );
        }
        let enough = ConnectionCaps::new(Some(256), 3, 20, 0);
        assert_eq!((enough.per_listener, enough.shortage), (20, None), "the admin listener is reduced first");
    }
}

//! How many connections each listener may have, given how many files the process may have open.
//!
//! Every connection is an open file. If clients of one listener could take all of them, nobody else could connect: not to the
//! other listeners, and not to the admin port, which is where one looks when that happens. So each listener has a part of its
//! own, and some files are kept for everything that is not a client.

use std::fmt;

/// The most connections at once on the admin port.
pub(crate) const MAX_ADMIN_CONNECTIONS: usize = 256;
/// What the admin port has at least where files are scarce.
const MIN_ADMIN_CONNECTIONS: usize = 16;
/// The part of all connections that the admin port has where files are scarce.
const ADMIN_PART: usize = 8;
/// Files that are no connections of clients: streams of the process, the runtime's own, listening sockets, a connection that is
/// being accepted or evicted on each of them, and rules and certificates that are read.
const RESERVED_FILES: usize = 48;
/// Files for each server of a shared store: connections that are in use, being made and being closed.
const FILES_PER_SERVER: usize = 4;

/// How many connections each listener may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionCaps {
    /// Each listener but the admin port.
    pub(crate) each: usize,
    pub(crate) admin: usize,
    /// Why it is less than the settings say.
    pub(crate) shortage: Option<Shortage>,
}

/// There are too few files for what the settings say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    files: u64,
    wanted: usize,
    each: usize,
}

impl ConnectionCaps {
    /// Divides `max_files`, if there is such a bound, among `listeners` besides the admin port, of which each wants
    /// `max_connections`.
    pub(crate) fn new(
        max_files: Option<u64>,
        listeners: usize,
        max_connections: usize,
        store_servers: usize,
    ) -> ConnectionCaps {
        let whole = ConnectionCaps { each: max_connections, admin: MAX_ADMIN_CONNECTIONS, shortage: None };
        let Some(files) = max_files else { return whole };
        let reserved = RESERVED_FILES + FILES_PER_SERVER * store_servers;
        let free = usize::try_from(files).unwrap_or(usize::MAX).saturating_sub(reserved);
        if max_connections.saturating_mul(listeners).saturating_add(MAX_ADMIN_CONNECTIONS) <= free {
            return whole;
        }
        let admin = (free / ADMIN_PART).clamp(MIN_ADMIN_CONNECTIONS, MAX_ADMIN_CONNECTIONS);
        let each = (free.saturating_sub(admin) / listeners.max(1)).clamp(1, max_connections);
        let shortage = Shortage { files, wanted: max_connections, each };
        ConnectionCaps { each, admin, shortage: Some(shortage).filter(|_| each < max_connections) }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortage { files, wanted, each } = self;
        write!(
            f,
            "at most {files} files may be open, so each listener has {each} connections instead of {wanted}: raise the hard \
             limit (ulimit -Hn, LimitNOFILE), turn listeners off, or lower max_connections"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listener_has_what_the_settings_say_if_there_are_enough_files() {
        let whole = ConnectionCaps { each: 10_000, admin: 256, shortage: None };
        for files in [None, Some(u64::MAX), Some(524_288), Some(30_304)] {
            assert_eq!(ConnectionCaps::new(files, 3, 10_000, 0), whole, "{files:?}");
        }
        assert!(ConnectionCaps::new(Some(30_303), 3, 10_000, 0).shortage.is_some());
        assert!(ConnectionCaps::new(Some(30_304), 3, 10_000, 1).shortage.is_some());
    }

    #[test]
    fn few_files_are_divided_and_something_is_left() {
        for (files, listeners, servers, each, admin) in [
            (1024, 3, 0, 284, 122),
            (1024, 1, 0, 854, 122),
            (256, 3, 0, 60, 26),
            (256, 3, 6, 53, 23),
            (100, 3, 0, 12, 16),
            (8, 3, 0, 1, 16),
        ] {
            let caps = ConnectionCaps::new(Some(files), listeners, 10_000, servers);
            assert_eq!((caps.each, caps.admin), (each, admin), "{files} files");
            assert!(
                caps.shortage
                    .unwrap()
                    .to_string()
                    .contains(&format!("has {each} connections instead of 10000"))
            );
        }
        let enough = ConnectionCaps::new(Some(256), 3, 20, 0);
        assert_eq!((enough.each, enough.shortage), (20, None), "the admin port makes way first");
    }
}

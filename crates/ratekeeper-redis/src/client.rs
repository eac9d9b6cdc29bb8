//! The client: connections to the servers of a store, in every topology, with a deadline for each call.

pub(crate) mod breaker;
pub(crate) mod clock_offset;
pub(crate) mod connection;
pub(crate) mod connector;
pub(crate) mod failure;
pub(crate) mod node;
pub(crate) mod reply;
pub(crate) mod server_set;
pub(crate) mod slot;
pub(crate) mod tls;
pub(crate) mod topology;
pub(crate) mod url;

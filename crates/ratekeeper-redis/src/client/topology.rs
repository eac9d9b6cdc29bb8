//! How the servers of a store relate to each other, and which of them has a key.

pub(crate) mod cluster;
pub(crate) mod discovery;
pub(crate) mod sentinel;
pub(crate) mod sharded;

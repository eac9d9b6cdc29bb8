//! Sends draws to a server in batches, as calls of the script that decides them.

pub(crate) mod coalesce;
pub(crate) mod codec;
pub(crate) mod queue;
pub(crate) mod script;
pub(crate) mod stored_key;
pub(crate) mod worker;

//! The connection toolkit: what every protocol needs to serve a connection, whatever it speaks.
//!
//! [`Connection`] reads, sends and closes, and ends when a client is too slow or the server stops. The parts below it
//! bound what a client can make grow: buffers, bodies, unread responses, connections and time. Nothing here knows a
//! protocol.

mod body_budget;
mod body_permits;
mod body_reader;
mod buffer;
mod buffer_pool;
mod caps;
mod close_reason;
mod connection;
mod gauge;
mod long_responses;
mod prefixed_stream;
mod registry;
mod shutdown;
mod timeouts;
mod write_all;
mod write_coalescer;

pub(crate) use body_budget::{BodyBudget, HeldBytes};
pub(crate) use body_permits::{BodyPermit, BodyPermits, SMALL_BODY_BYTES};
pub(crate) use body_reader::{BodyReadError, BodyReader};
pub(crate) use buffer_pool::{put as pool_buffer, take as pooled_buffer};
pub(crate) use caps::ConnectionCaps;
pub(crate) use close_reason::CloseReason;
pub(crate) use connection::Connection;
pub(crate) use gauge::{ConnectionGauge, ListenerName};
pub(crate) use long_responses::{LongResponse, LongResponses};
pub(crate) use prefixed_stream::PrefixedStream;
pub(crate) use registry::ConnectionRegistry;
pub(crate) use shutdown::{ShutdownPhase, ShutdownSignal};
pub(crate) use timeouts::{BODY_TIMEOUT, FIRST_REQUEST_TIMEOUT, IdleTimer};
pub(crate) use write_coalescer::WriteCoalescer;

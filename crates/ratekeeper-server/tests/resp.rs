//! Hostile and slow RESP clients: the server replies with an error or closes, charges nothing, keeps its memory
//! bounded, enforces its timeouts, and keeps serving other clients.

#![expect(clippy::unwrap_used, reason = "an unwrap in a test helper should fail the test")]

#[path = "resp/attack.rs"]
mod attack;
#[path = "resp/hostile.rs"]
mod hostile;
#[path = "resp/server.rs"]
mod server;
#[path = "resp/timeouts.rs"]
mod timeouts;

//! The RESP port from outside: whatever strangers send, it answers with an error or closes, takes nothing for it, stays
//! small, waits for nobody for long, and goes on answering everybody else.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

#[path = "resp/hostile.rs"]
mod hostile;
#[path = "resp/patience.rs"]
mod patience;
#[path = "resp/server.rs"]
mod server;
#[path = "resp/siege.rs"]
mod siege;

//! The protocols of the generator: they write requests and recognise complete responses.
//!
//! A client does no I/O. It appends its requests to an output buffer and is passed the received bytes. At most one
//! request is in flight; it may hold many checks.

pub(crate) mod grpc;
mod h2;
pub(crate) mod http;
pub(crate) mod resp;

use crate::keys::Rng;
use anyhow::Result;
use memchr::memmem::Finder;

/// The generator's side of one connection.
pub(crate) trait Client {
    /// A new client for another connection, in its initial state.
    fn fresh(&self) -> Box<dyn Client>;

    /// The number of checks per request.
    fn checks(&self) -> usize;

    /// Writes the next request, for the next keys.
    fn write_request(&mut self, rng: &mut Rng, out: &mut Vec<u8>) -> Result<()>;

    /// Reads the received bytes that were not consumed before, and writes what the protocol requires in return.
    fn read_response(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<ReadOutcome>;
}

/// The result of reading received bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadOutcome {
    /// How many bytes were consumed. The others are passed again, together with later ones.
    pub(crate) consumed: usize,
    /// The response, if it is complete now.
    pub(crate) response: Option<Response>,
}

/// A complete response to a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Response {
    /// It is as required.
    Expected,
    /// It differs; this is how it begins.
    Unexpected(String),
}

impl Response {
    /// A response. `begin` describes one that is not as expected.
    pub(crate) fn new(is_expected: bool, begin: impl FnOnce() -> String) -> Response {
        if is_expected { Response::Expected } else { Response::Unexpected(begin()) }
    }
}

/// A text that a response must contain, and how many times.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedText {
    finder: Finder<'static>,
    times: usize,
}

impl ExpectedText {
    pub(crate) fn new(text: &'static str, times: usize) -> ExpectedText {
        ExpectedText { finder: Finder::new(text), times }
    }

    pub(crate) fn is_in(&self, answer: &[u8]) -> bool {
        self.finder.find_iter(answer).count() == self.times
    }
}

/// The beginning of a response, for error messages.
pub(crate) fn excerpt(answer: &[u8]) -> String {
    let text = String::from_utf8_lossy(&answer[..answer.len().min(200)]);
    text.trim().to_owned()
}

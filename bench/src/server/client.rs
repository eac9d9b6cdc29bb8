//! What a load says on a connection, in whatever protocol: questions, and when their answers are whole.
//!
//! A client knows no sockets. It writes what is to be sent behind what waits to be sent already, and is shown what came.
//! At most one question is open at a time; it may hold many checks.

pub(crate) mod grpc;
mod h2;
pub(crate) mod http;
pub(crate) mod resp;

use crate::keys::Rng;
use anyhow::Result;
use memchr::memmem::Finder;

/// The generator's side of one connection.
pub(crate) trait Client {
    /// The same client from its beginning, for another connection.
    fn fresh(&self) -> Box<dyn Client>;

    /// How many checks a question holds.
    fn checks(&self) -> usize;

    /// Writes the next question, for the next keys.
    fn write_request(&mut self, rng: &mut Rng, out: &mut Vec<u8>) -> Result<()>;

    /// Looks at what has come and was not taken before, and writes what the protocol wants said back.
    fn read_response(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<ReadOutcome>;
}

/// What was made of the bytes that came.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadOutcome {
    /// How many of them are done with. The others are shown again, with more behind them.
    pub(crate) taken: usize,
    /// The answer, if it is whole now.
    pub(crate) answer: Option<Answer>,
}

/// A whole answer to a question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It says what every answer must.
    Expected,
    /// It says something else: how it begins.
    Other(String),
}

impl Answer {
    /// An answer, and how it begins for a reader if it is not as expected.
    pub(crate) fn new(is_expected: bool, begin: impl FnOnce() -> String) -> Answer {
        if is_expected { Answer::Expected } else { Answer::Other(begin()) }
    }
}

/// What an answer must contain, and how many times.
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

/// The beginning of an answer, for a reader.
pub(crate) fn excerpt(answer: &[u8]) -> String {
    let text = String::from_utf8_lossy(&answer[..answer.len().min(200)]);
    text.trim().to_owned()
}

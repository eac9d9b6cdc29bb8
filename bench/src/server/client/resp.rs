//! RESP: pipelines of one command, and their replies.
//!
//! A pipeline is one write, and the next is sent when all its replies have arrived. Replies are recognised by counting
//! lines, because a command always has the same number of them. Only an error has fewer, and it ends the load.

use super::{Client, ExpectedText, ReadOutcome, Response, excerpt};
use crate::keys::Rng;
use crate::server::template::Template;
use anyhow::{Result, bail, ensure};
use memchr::{memchr_iter, memmem};
use std::fmt::Write as _;

/// A command and its expected reply.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    words: Vec<String>,
    /// A text that every reply contains once.
    text: &'static str,
    /// The number of lines of a reply.
    lines: usize,
}

impl Command {
    /// A command with a reply of five integers, which begins with `text`.
    pub(crate) fn with_integers(command: &str, text: &'static str) -> Command {
        Command::new(command, text, 6)
    }

    /// A command whose reply is the bulk string `text`.
    pub(crate) fn with_bulk_string(command: &str, text: &'static str) -> Command {
        Command::new(command, text, 2)
    }

    /// A command whose reply is the one line `text`.
    pub(crate) fn with_line(command: &str, text: &'static str) -> Command {
        Command::new(command, text, 1)
    }

    fn new(command: &str, text: &'static str, lines: usize) -> Command {
        Command { words: command.split(' ').map(str::to_owned).collect(), text, lines }
    }

    /// Encodes the command as an array of bulk strings.
    fn encode(&self) -> String {
        let mut text = format!("*{}\r\n", self.words.len());
        for word in &self.words {
            write!(text, "${}\r\n{word}\r\n", word.len()).expect("writing to a string does not fail");
        }
        text
    }
}

/// The same pipeline again and again, each time for other keys.
#[derive(Clone, Debug)]
pub(crate) struct RespClient {
    pipeline: Template,
    depth: usize,
    text: ExpectedText,
    /// The number of lines of all replies.
    lines: usize,
    /// How many lines have been seen, and in how many bytes.
    seen: usize,
    scanned: usize,
}

impl RespClient {
    /// The command, `depth` times.
    pub(crate) fn new(command: &Command, depth: usize) -> RespClient {
        RespClient {
            pipeline: Template::new(command.encode().repeat(depth)),
            depth,
            text: ExpectedText::new(command.text, depth),
            lines: command.lines * depth,
            seen: 0,
            scanned: 0,
        }
    }
}

impl Client for RespClient {
    fn fresh(&self) -> Box<dyn Client> {
        Box::new(RespClient { seen: 0, scanned: 0, ..self.clone() })
    }

    fn checks(&self) -> usize {
        self.depth
    }

    fn write_request(&mut self, rng: &mut Rng, out: &mut Vec<u8>) -> Result<()> {
        self.pipeline.pick_keys(rng);
        out.extend_from_slice(self.pipeline.bytes());
        Ok(())
    }

    fn read_response(&mut self, bytes: &[u8], _: &mut Vec<u8>) -> Result<ReadOutcome> {
        if let Some(begin) = find_error(bytes, self.scanned) {
            bail!("a command was answered by an error: {}", excerpt(&bytes[begin..]));
        }
        self.seen += memchr_iter(b'\n', &bytes[self.scanned..]).count();
        self.scanned = bytes.len();
        if self.seen < self.lines {
            return Ok(ReadOutcome::default());
        }
        ensure!(
            self.seen == self.lines && bytes.ends_with(b"\n"),
            "a reply has an unexpected number of lines: {}",
            excerpt(bytes)
        );
        (self.seen, self.scanned) = (0, 0);
        let response = Response::new(self.text.is_in(bytes), || excerpt(bytes));
        Ok(ReadOutcome { consumed: bytes.len(), response: Some(response) })
    }
}

/// Where an error reply begins, a line that starts with `-`, in the bytes that were not scanned before.
fn find_error(bytes: &[u8], scanned: usize) -> Option<usize> {
    if scanned == 0 && bytes.starts_with(b"-") {
        return Some(0);
    }
    let from = scanned.saturating_sub(1);
    memmem::find(&bytes[from..], b"\n-").map(|place| from + place + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline() -> RespClient {
        RespClient::new(&Command::with_integers("CL.THROTTLE user:###### 9 10 60", "*5\r\n:0\r\n"), 2)
    }

    /// Reads bytes that arrive one by one.
    fn read_bytewise(client: &mut RespClient, bytes: &str) -> Result<ReadOutcome> {
        for length in 1..bytes.len() {
            let outcome = client.read_response(&bytes.as_bytes()[..length], &mut Vec::new())?;
            assert_eq!(outcome, ReadOutcome::default(), "with {length} bytes");
        }
        client.read_response(bytes.as_bytes(), &mut Vec::new())
    }

    #[test]
    fn a_pipeline_has_an_array_of_bulk_strings_per_command() {
        let mut out = Vec::new();
        pipeline().write_request(&mut Rng::new(1), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let commands: Vec<_> = text.split_inclusive("60\r\n").collect();
        assert_eq!(commands.len(), 2);
        for command in commands {
            assert!(command.starts_with("*5\r\n$11\r\nCL.THROTTLE\r\n$11\r\nuser:0"), "{command}");
            assert!(command.ends_with("\r\n$1\r\n9\r\n$2\r\n10\r\n$2\r\n60\r\n"), "{command}");
        }
    }

    #[test]
    fn a_pipeline_is_answered_with_its_last_line() {
        let reply = "*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:6\r\n";
        let mut client = pipeline();
        for _ in 0..2 {
            let outcome = read_bytewise(&mut client, &reply.repeat(2)).unwrap();
            assert_eq!(
                outcome,
                ReadOutcome { consumed: 2 * reply.len(), response: Some(Response::Expected) }
            );
        }
        assert!(
            client.read_response(reply.repeat(3).as_bytes(), &mut Vec::new()).is_err(),
            "trailing bytes are an error"
        );
    }

    #[test]
    fn one_denial_makes_the_response_unexpected() {
        let replies = "*5\r\n:0\r\n:10\r\n:0\r\n:-1\r\n:6\r\n*5\r\n:1\r\n:10\r\n:0\r\n:6\r\n:60\r\n";
        let outcome = read_bytewise(&mut pipeline(), replies).unwrap();
        assert_eq!(outcome.response, Some(Response::Unexpected(replies.trim_end().to_owned())));
    }

    #[test]
    fn an_error_ends_the_load() {
        let good = "*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:6\r\n";
        for begin in ["", good] {
            let error = read_bytewise(&mut pipeline(), &format!("{begin}-ERR no\r\n")).unwrap_err();
            assert!(error.to_string().contains("answered by an error: -"), "{error}");
        }
    }
}

//! RESP: pipelines of one command, and their replies.
//!
//! A pipeline is one write, and the next one goes when all its replies are in. They are known by their lines: a command
//! is always answered by the same number of them. An error is the one reply that has fewer, and it ends the load.

use super::{Answer, Client, ExpectedText, ReadOutcome, excerpt};
use crate::keys::Rng;
use crate::server::template::Template;
use anyhow::{Result, bail, ensure};
use memchr::{memchr_iter, memmem};
use std::fmt::Write as _;

/// A command, and what its reply must be.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    words: Vec<String>,
    /// What every reply contains once and nothing else does.
    text: &'static str,
    /// How many lines a reply has.
    lines: usize,
}

impl Command {
    /// A command that is answered by five numbers, which begin as `text` says.
    pub(crate) fn five(command: &str, text: &'static str) -> Command {
        Command::new(command, text, 6)
    }

    /// A command that is answered by a text, which `text` is all of.
    pub(crate) fn text(command: &str, text: &'static str) -> Command {
        Command::new(command, text, 2)
    }

    /// A command that is answered by one line, which `text` is all of.
    pub(crate) fn word(command: &str, text: &'static str) -> Command {
        Command::new(command, text, 1)
    }

    fn new(command: &str, text: &'static str, lines: usize) -> Command {
        Command { words: command.split(' ').map(str::to_owned).collect(), text, lines }
    }

    /// As clients send it: an array of texts.
    fn encode(&self) -> String {
        let mut text = format!("*{}\r\n", self.words.len());
        for word in &self.words {
            write!(text, "${}\r\n{word}\r\n", word.len()).expect("a text can be added to");
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
    /// How many lines all replies have together.
    lines: usize,
    /// How many of them have been seen, and in how many bytes.
    seen: usize,
    looked_at: usize,
}

impl RespClient {
    /// The command so many times in a row.
    pub(crate) fn new(command: &Command, depth: usize) -> RespClient {
        RespClient {
            pipeline: Template::new(command.encode().repeat(depth)),
            depth,
            text: ExpectedText::new(command.text, depth),
            lines: command.lines * depth,
            seen: 0,
            looked_at: 0,
        }
    }
}

impl Client for RespClient {
    fn fresh(&self) -> Box<dyn Client> {
        Box::new(RespClient { seen: 0, looked_at: 0, ..self.clone() })
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
        if let Some(begin) = find_error(bytes, self.looked_at) {
            bail!("a command was answered by an error: {}", excerpt(&bytes[begin..]));
        }
        self.seen += memchr_iter(b'\n', &bytes[self.looked_at..]).count();
        self.looked_at = bytes.len();
        if self.seen < self.lines {
            return Ok(ReadOutcome::default());
        }
        ensure!(
            self.seen == self.lines && bytes.ends_with(b"\n"),
            "a reply has other lines than it should: {}",
            excerpt(bytes)
        );
        (self.seen, self.looked_at) = (0, 0);
        let answer = Answer::new(self.text.is_in(bytes), || excerpt(bytes));
        Ok(ReadOutcome { taken: bytes.len(), answer: Some(answer) })
    }
}

/// Where an error begins, if one does in the bytes that were not looked at before: a line with `-` in front.
fn find_error(bytes: &[u8], looked_at: usize) -> Option<usize> {
    if looked_at == 0 && bytes.starts_with(b"-") {
        return Some(0);
    }
    let from = looked_at.saturating_sub(1);
    memmem::find(&bytes[from..], b"\n-").map(|place| from + place + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline() -> RespClient {
        RespClient::new(&Command::five("CL.THROTTLE user:###### 9 10 60", "*5\r\n:0\r\n"), 2)
    }

    /// What is made of bytes that come one by one.
    fn read_bytewise(client: &mut RespClient, bytes: &str) -> Result<ReadOutcome> {
        for length in 1..bytes.len() {
            let heard = client.read_response(&bytes.as_bytes()[..length], &mut Vec::new())?;
            assert_eq!(heard, ReadOutcome::default(), "of {length} bytes");
        }
        client.read_response(bytes.as_bytes(), &mut Vec::new())
    }

    #[test]
    fn a_pipeline_is_an_array_of_texts_for_each_command() {
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
    fn it_is_answered_when_the_last_line_is_in() {
        let reply = "*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:6\r\n";
        let mut client = pipeline();
        for _ in 0..2 {
            let heard = read_bytewise(&mut client, &reply.repeat(2)).unwrap();
            assert_eq!(heard, ReadOutcome { taken: 2 * reply.len(), answer: Some(Answer::Expected) });
        }
        assert!(
            client.read_response(reply.repeat(3).as_bytes(), &mut Vec::new()).is_err(),
            "nothing may follow it"
        );
    }

    #[test]
    fn one_refusal_is_another_answer() {
        let replies = "*5\r\n:0\r\n:10\r\n:0\r\n:-1\r\n:6\r\n*5\r\n:1\r\n:10\r\n:0\r\n:6\r\n:60\r\n";
        let heard = read_bytewise(&mut pipeline(), replies).unwrap();
        assert_eq!(heard.answer, Some(Answer::Other(replies.trim_end().to_owned())));
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

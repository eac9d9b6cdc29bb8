//! gRPC: unary calls, and a stream of checks.
//!
//! The headers of a call are written once and uncompressed, so that requests differ only in their keys and stream ids.
//! Of the response only messages are read: a failed call has none.

use super::h2::{self, Event, FRAME_HEAD, MAX_FRAME, Session, kind};
use super::{Client, ReadOutcome, Response};
use crate::keys::Rng;
use crate::server::proto::{CallResult, CheckStreamRequest, StreamResult};
use crate::server::template::Template;
use anyhow::{Context, Result, ensure};
use prost::Message;

/// The prefix of each message: a zero, because it is not compressed, and its length.
const MESSAGE_HEAD: usize = 5;
/// The maximum length of a response message; longer ones are errors.
const MAX_MESSAGE: usize = 1 << 20;

/// The same unary call again and again, each time for another key.
#[derive(Clone, Debug)]
pub(crate) struct UnaryClient {
    session: Session,
    /// A HEADERS frame and a DATA frame with the message.
    request: Template,
    /// Where the second frame begins.
    second: usize,
    data: usize,
    code: i32,
    /// The received part of the response.
    answer: Vec<u8>,
}

impl UnaryClient {
    /// Calls the method at `path`. Every response must be one message that begins with `code`.
    pub(crate) fn new(path: &str, message: &impl Message, code: i32) -> UnaryClient {
        let data = frame_message(message);
        let mut request = Vec::new();
        h2::put_frame(&mut request, kind::HEADERS, h2::END_HEADERS, 0, &headers(path));
        let second = request.len();
        h2::put_frame(&mut request, kind::DATA, h2::END_STREAM, 0, &data);
        let (request, data) = (Template::new(request), data.len());
        UnaryClient { session: Session::new(), request, second, data, code, answer: Vec::new() }
    }

    /// Builds the response, once the call has ended.
    fn conclude(&mut self) -> Response {
        let code = take_message(&self.answer).and_then(|consumed| {
            let (message, length) = consumed.context("the call ended without a whole message")?;
            ensure!(length == self.answer.len(), "the call was answered by several messages");
            Ok(CallResult::decode(message)?.code)
        });
        self.answer.clear();
        Response::new(matches!(code, Ok(code) if code == self.code), || match code {
            Ok(code) => format!("code {code} instead of {}", self.code),
            Err(error) => error.to_string(),
        })
    }
}

impl Client for UnaryClient {
    fn fresh(&self) -> Box<dyn Client> {
        Box::new(UnaryClient { session: Session::new(), answer: Vec::new(), ..self.clone() })
    }

    fn checks(&self) -> usize {
        1
    }

    fn write_request(&mut self, rng: &mut Rng, out: &mut Vec<u8>) -> Result<()> {
        let stream = self.session.open_stream(out)?.to_be_bytes();
        for frame in [0, self.second] {
            self.request.write(frame + FRAME_HEAD - stream.len(), &stream);
        }
        self.request.pick_keys(rng);
        self.session.send(self.request.bytes(), self.data, out)
    }

    fn read_response(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<ReadOutcome> {
        let mut outcome = ReadOutcome::default();
        while let Some((length, event)) = self.session.read(&bytes[outcome.consumed..], out)? {
            outcome.consumed += length;
            match event {
                Event::Data(data) => self.answer.extend_from_slice(data),
                Event::Headers { is_end: true } => outcome.response = Some(self.conclude()),
                Event::Headers { is_end: false } | Event::Other => {}
            }
        }
        Ok(outcome)
    }
}

/// One stream with a number of checks in flight. The next are sent when all of them are answered, in any order.
#[derive(Clone, Debug)]
pub(crate) struct StreamClient {
    session: Session,
    headers: Vec<u8>,
    /// One frame with all checks.
    request: Template,
    data: usize,
    checks: usize,
    is_allowed: bool,
    /// The received part of an incomplete message.
    rest: Vec<u8>,
    tally: StreamTally,
}

/// The responses since the last request.
#[derive(Clone, Debug, Default)]
struct StreamTally {
    answers: usize,
    /// The sum of their ids, to detect one that was answered twice and one that was not answered.
    ids: u64,
    /// The first unexpected response.
    other: Option<String>,
}

impl StreamClient {
    /// Opens a stream to the method at `path`, and sends the same check `checks` times. All must be allowed, or all
    /// denied.
    pub(crate) fn new(
        path: &str,
        check: &CheckStreamRequest,
        checks: usize,
        is_allowed: bool,
    ) -> StreamClient {
        let mut data = Vec::new();
        for id in 1..=checks as u64 {
            data.extend(frame_message(&CheckStreamRequest { id, ..check.clone() }));
        }
        assert!(data.len() <= MAX_FRAME, "the checks do not fit into one frame");
        let mut request = Vec::new();
        h2::put_frame(&mut request, kind::DATA, 0, 1, &data);
        StreamClient {
            session: Session::new(),
            headers: headers(path),
            request: Template::new(request),
            data: data.len(),
            checks,
            is_allowed,
            rest: Vec::new(),
            tally: StreamTally::default(),
        }
    }

    /// Counts the complete messages in `data`. Returns their length.
    fn count(&mut self, data: &[u8]) -> Result<usize> {
        let mut consumed = 0;
        while let Some((message, length)) = take_message(&data[consumed..])? {
            consumed += length;
            let result = StreamResult::decode(message)?;
            self.tally.answers += 1;
            self.tally.ids += result.id;
            if result.result.as_ref().is_none_or(|result| result.allowed != self.is_allowed) {
                self.tally.other.get_or_insert_with(|| format!("{result:?}"));
            }
        }
        Ok(consumed)
    }

    fn take_data(&mut self, data: &[u8]) -> Result<()> {
        if self.rest.is_empty() {
            let consumed = self.count(data)?;
            self.rest.extend_from_slice(&data[consumed..]);
            return Ok(());
        }
        let mut rest = std::mem::take(&mut self.rest);
        rest.extend_from_slice(data);
        let consumed = self.count(&rest)?;
        rest.drain(..consumed);
        self.rest = rest;
        Ok(())
    }

    /// Builds the response, once every check was answered.
    fn conclude(&mut self) -> Result<Option<Response>> {
        if self.tally.answers < self.checks {
            return Ok(None);
        }
        let StreamTally { answers, ids, other } = std::mem::take(&mut self.tally);
        let all = self.checks as u64 * (self.checks as u64 + 1) / 2;
        ensure!(answers == self.checks && ids == all, "a check was answered twice");
        Ok(Some(other.map_or(Response::Expected, Response::Unexpected)))
    }
}

impl Client for StreamClient {
    fn fresh(&self) -> Box<dyn Client> {
        let (session, rest, tally) = (Session::new(), Vec::new(), StreamTally::default());
        Box::new(StreamClient { session, rest, tally, ..self.clone() })
    }

    fn checks(&self) -> usize {
        self.checks
    }

    fn write_request(&mut self, rng: &mut Rng, out: &mut Vec<u8>) -> Result<()> {
        if !self.session.is_open() {
            let stream = self.session.open_stream(out)?;
            h2::put_frame(out, kind::HEADERS, h2::END_HEADERS, stream, &self.headers);
        }
        self.request.pick_keys(rng);
        self.session.send(self.request.bytes(), self.data, out)
    }

    fn read_response(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<ReadOutcome> {
        let mut outcome = ReadOutcome::default();
        while let Some((length, event)) = self.session.read(&bytes[outcome.consumed..], out)? {
            outcome.consumed += length;
            match event {
                Event::Data(data) => {
                    self.take_data(data)?;
                    outcome.response = self.conclude()?.or(outcome.response);
                }
                Event::Headers { is_end } => ensure!(!is_end, "the server ended a stream"),
                Event::Other => {}
            }
        }
        Ok(outcome)
    }
}

/// A message with its length prefix.
fn frame_message(message: &impl Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    let mut bytes = vec![0];
    bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
    bytes.extend(message);
    bytes
}

/// The first message in `bytes`, and its length with the prefix. `None` if it is incomplete.
fn take_message(bytes: &[u8]) -> Result<Option<(&[u8], usize)>> {
    let Some(([compressed, length @ ..], rest)) = bytes.split_first_chunk::<MESSAGE_HEAD>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    ensure!(*compressed == 0, "a message is compressed");
    ensure!(length <= MAX_MESSAGE, "a message is longer than {MAX_MESSAGE} bytes");
    Ok(rest.get(..length).map(|message| (message, MESSAGE_HEAD + length)))
}

/// The headers of a call, in HPACK. The first two are entries of the static table, as are the names of the next three;
/// everything else is a literal that is never indexed.
fn headers(path: &str) -> Vec<u8> {
    const POST: u8 = 0x83;
    const HTTP: u8 = 0x86;
    let mut block = vec![POST, HTTP];
    for (name, value) in [
        (&[0x14][..], path),
        (&[0x11], "127.0.0.1"),
        (&[0x1f, 0x10], "application/grpc"),
        (b"\x10\x02te", "trailers"),
    ] {
        block.extend_from_slice(name);
        assert!(value.len() < 127, "longer strings need two bytes for their length");
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::floor::{Kind, start};
    use crate::server::load::{Load, Plan, Tally};
    use crate::server::proto::{CheckRequest, CheckStreamResponse, Descriptor, Entry, RateLimitRequest};
    use crate::server::subject::grpc::{CHECK_STREAM, SHOULD_RATE_LIMIT};
    use crate::server::template::KEY;
    use std::time::Duration;

    fn call(path: &str, code: i32) -> UnaryClient {
        let entry = Entry { key: "client".to_owned(), value: KEY.to_owned() };
        let descriptors = vec![Descriptor { entries: vec![entry] }];
        UnaryClient::new(
            path,
            &RateLimitRequest { domain: "test".to_owned(), descriptors, hits_addend: 1 },
            code,
        )
    }

    fn stream(checks: usize, is_allowed: bool) -> StreamClient {
        // Long enough that some hundred requests use up a stream's initial window.
        let (client_key, endpoint) = (KEY.to_owned(), "/orders".repeat(12));
        let check = CheckRequest { client_key, endpoint, cost: None };
        StreamClient::new(CHECK_STREAM, &CheckStreamRequest { id: 0, check: Some(check) }, checks, is_allowed)
    }

    /// Runs a load of at least `least` responses on a server that allows everything.
    fn load(client: impl Client + 'static, least: u64) -> Tally {
        let address = start(Kind::Grpc).unwrap();
        let mut load = Load::connect(address, &Plan::new(client, 3), 1).unwrap();
        let mut answers = 0;
        while answers < least {
            answers += load.run_for(Duration::from_millis(10)).unwrap().answers;
        }
        load.finish().unwrap()
    }

    #[test]
    fn unary_calls_work_with_a_real_server() {
        let tally = load(call(SHOULD_RATE_LIMIT, 1), 100);
        assert_eq!(tally.unexpected, 0, "{tally:?}");
        let tally = load(call(SHOULD_RATE_LIMIT, 2), 1);
        assert_eq!(
            (tally.unexpected, tally.example.as_deref()),
            (tally.answers, Some("code 1 instead of 2"))
        );
    }

    #[test]
    fn a_failed_call_is_unexpected() {
        let tally = load(call("/test/Missing", 1), 1);
        let example = Some("the call ended without a whole message");
        assert_eq!((tally.unexpected, tally.example.as_deref()), (tally.answers, example));
    }

    #[test]
    fn streams_work_with_a_real_server() {
        let tally = load(stream(128, true), 400);
        assert_eq!(tally.unexpected, 0, "{tally:?}");
        let tally = load(stream(3, false), 1);
        assert_eq!(tally.unexpected, tally.answers, "{tally:?}");
    }

    /// A stream with a request in flight, which receives responses for the checks with these ids, a few bytes at a
    /// time.
    fn answer(ids: &[u64], bytes_at_once: usize) -> Result<Option<Response>> {
        let mut client = stream(3, true);
        client.write_request(&mut Rng::new(1), &mut Vec::new())?;
        let mut data = Vec::new();
        for id in ids {
            let result = Some(crate::server::proto::CheckResponse { allowed: true, ..Default::default() });
            data.extend(frame_message(&CheckStreamResponse { id: *id, result }));
        }
        let mut answer = None;
        for piece in data.chunks(bytes_at_once) {
            let mut frame = Vec::new();
            h2::put_frame(&mut frame, kind::DATA, 0, 1, piece);
            assert_eq!(answer, None, "it was complete before");
            answer = client.read_response(&frame, &mut Vec::new())?.response;
        }
        Ok(answer)
    }

    #[test]
    fn responses_may_arrive_in_any_order_and_in_pieces() {
        for bytes_at_once in [1, 2, 7, 1000] {
            assert_eq!(answer(&[3, 1, 2], bytes_at_once).unwrap(), Some(Response::Expected));
            assert_eq!(answer(&[3, 1], bytes_at_once).unwrap(), None);
        }
        assert!(answer(&[3, 1, 1], 1000).is_err(), "one has two answers and one has none");
    }
}

//! HTTP/1.1: one request, and its complete response.

use super::{Client, ExpectedText, ReadOutcome, Response, excerpt};
use crate::keys::Rng;
use crate::server::template::Template;
use anyhow::{Context, Result, ensure};

/// The most headers a subject sends.
const MAX_HEADERS: usize = 16;

/// The same request again and again, each time for other keys.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    request: Template,
    status: u16,
    text: ExpectedText,
}

impl HttpClient {
    /// A POST with a JSON body. Every response must be a 200 that contains `text` once per key.
    pub(crate) fn post(path: &str, body: &str, text: &'static str) -> HttpClient {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        HttpClient::new(request, 200, text)
    }

    /// A GET without a body. Every response must have this status and contain `text` once.
    pub(crate) fn get(target: &str, status: u16, text: &'static str) -> HttpClient {
        HttpClient::new(format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"), status, text)
    }

    fn new(request: String, status: u16, text: &'static str) -> HttpClient {
        let request = Template::new(request);
        // A request for a fixed key is one check too.
        let text = ExpectedText::new(text, request.places().max(1));
        HttpClient { request, status, text }
    }
}

impl Client for HttpClient {
    fn fresh(&self) -> Box<dyn Client> {
        Box::new(self.clone())
    }

    fn checks(&self) -> usize {
        self.request.places().max(1)
    }

    fn write_request(&mut self, rng: &mut Rng, out: &mut Vec<u8>) -> Result<()> {
        self.request.pick_keys(rng);
        out.extend_from_slice(self.request.bytes());
        Ok(())
    }

    fn read_response(&mut self, bytes: &[u8], _: &mut Vec<u8>) -> Result<ReadOutcome> {
        let Some(reply) = Reply::parse(bytes)? else { return Ok(ReadOutcome::default()) };
        let is_expected = reply.status == self.status && self.text.is_in(reply.body);
        let response = Response::new(is_expected, || format!("{} {}", reply.status, excerpt(reply.body)));
        Ok(ReadOutcome { consumed: bytes.len(), response: Some(response) })
    }
}

/// A complete response.
#[derive(Clone, Copy, Debug)]
struct Reply<'a> {
    status: u16,
    body: &'a [u8],
}

impl Reply<'_> {
    /// Parses `bytes` as a response; `None` if it is incomplete.
    fn parse(bytes: &[u8]) -> Result<Option<Reply<'_>>> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(begin) = head.parse(bytes).context("not an HTTP response")? else {
            return Ok(None);
        };
        let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
        let length = length.and_then(|header| str::from_utf8(header.value).ok()?.parse::<usize>().ok());
        let length = length.context("a response has no content length")?;
        let body = &bytes[begin..];
        ensure!(body.len() <= length, "a response is longer than its content length");
        let status = head.code.context("a response has no status")?;
        Ok((body.len() == length).then_some(Reply { status, body }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_response(client: &mut HttpClient, bytes: &[u8]) -> Result<ReadOutcome> {
        client.read_response(bytes, &mut Vec::new())
    }

    #[test]
    fn a_response_is_complete_with_its_body() {
        let mut client = HttpClient::get("/", 200, "hello");
        let bytes = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nContent-Length: 5\r\n\r\nhello";
        for length in 0..bytes.len() {
            assert_eq!(
                read_response(&mut client, &bytes[..length]).unwrap(),
                ReadOutcome::default(),
                "with {length} bytes"
            );
        }
        let outcome = read_response(&mut client, bytes).unwrap();
        assert_eq!(outcome, ReadOutcome { consumed: bytes.len(), response: Some(Response::Expected) });
        assert!(
            read_response(&mut client, &[&bytes[..], b"!"].concat()).is_err(),
            "trailing bytes are an error"
        );
        assert!(
            read_response(&mut client, b"HTTP/1.1 200 OK\r\n\r\n").is_err(),
            "a content length is required"
        );
    }

    #[test]
    fn every_check_of_a_batch_must_be_answered_as_expected() {
        let mut client = HttpClient::post("/batch", r#"["user:######","user:######"]"#, r#""allowed":true"#);
        let mut answer = |status: u16, body: &str| {
            let reply = format!("HTTP/1.1 {status} Status\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            read_response(&mut client, reply.as_bytes()).unwrap().response
        };
        let other = |text: &str| Some(Response::Unexpected(text.to_owned()));
        assert_eq!(answer(200, r#"[{"allowed":true},{"allowed":true}]"#), Some(Response::Expected));
        assert_eq!(answer(200, r#"{"allowed":true}"#), other(r#"200 {"allowed":true}"#));
        assert_eq!(
            answer(200, r#"{"allowed":true,"allowed":false}"#),
            other(r#"200 {"allowed":true,"allowed":false}"#)
        );
        assert_eq!(
            answer(429, r#""allowed":true,"allowed":true"#),
            other(r#"429 "allowed":true,"allowed":true"#)
        );
    }

    #[test]
    fn the_content_length_is_that_of_the_body() {
        let mut out = Vec::new();
        let mut client = HttpClient::post("/check", r#"["user:######","user:######"]"#, "");
        client.write_request(&mut Rng::new(1), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("Content-Length: 29\r\n\r\n[\"user:"), "{text}");
        assert_eq!(client.checks(), 2);
    }
}

//! HTTP/1.1 without decisions: with hyper, and by hand with httparse.

use crate::server::subject::http::BATCH_PATH;
use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::io::Write as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The maximum length of a request; longer ones are errors.
const MAX_BYTES: usize = 1 << 20;
/// The most headers the generator sends.
const MAX_HEADERS: usize = 16;

/// A check on the wire.
#[derive(Deserialize)]
struct Check<'a> {
    client_key: &'a str,
    endpoint: &'a str,
    cost: u32,
}

/// A decision on the wire.
#[derive(Serialize)]
struct Answer {
    allowed: bool,
    remaining: u32,
    reset_at: u64,
    retry_after: Option<u64>,
}

/// A batch of checks on the wire.
#[derive(Deserialize)]
struct Checks<'a> {
    #[serde(borrow)]
    checks: Vec<Check<'a>>,
}

/// A batch of decisions on the wire.
#[derive(Serialize)]
struct Answers {
    results: Vec<Answer>,
}

impl Check<'_> {
    fn answer(&self) -> Answer {
        black_box((self.client_key, self.endpoint));
        let remaining = 1_000_000_u32.saturating_sub(self.cost);
        Answer { allowed: true, remaining, reset_at: 1_700_000_000, retry_after: None }
    }
}

/// Reads a check or a batch, and overwrites `json` with the response.
fn answer(path: &str, body: &[u8], json: &mut Vec<u8>) -> Result<()> {
    json.clear();
    if path == BATCH_PATH {
        let batch: Checks<'_> = serde_json::from_slice(body)?;
        let results = batch.checks.iter().map(Check::answer).collect();
        serde_json::to_writer(json, &Answers { results })?;
    } else {
        let check: Check<'_> = serde_json::from_slice(body)?;
        serde_json::to_writer(json, &check.answer())?;
    }
    Ok(())
}

pub(super) async fn serve_by_hyper(stream: TcpStream) -> Result<()> {
    let service = service_fn(|request: hyper::Request<Incoming>| async {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let mut json = Vec::with_capacity(128);
        answer(head.uri.path(), &body, &mut json)?;
        let mut reply = hyper::Response::new(Full::new(Bytes::from(json)));
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        anyhow::Ok(reply)
    });
    // A timeout would need a timer per request, which Ratekeeper does not have either.
    let mut http = http1::Builder::new();
    Ok(http.header_read_timeout(None).serve_connection(TokioIo::new(stream), service).await?)
}

pub(super) async fn serve_by_hand(mut stream: TcpStream) -> Result<()> {
    let mut input = Vec::with_capacity(4096);
    let (mut json, mut output) = (Vec::with_capacity(128), Vec::with_capacity(512));
    while stream.read_buf(&mut input).await? > 0 {
        while let Some(length) = answer_first(&input, &mut json, &mut output)? {
            input.drain(..length);
        }
        ensure!(input.len() < MAX_BYTES, "a request is too long");
        if !output.is_empty() {
            stream.write_all(&output).await?;
            output.clear();
        }
    }
    Ok(())
}

/// Answers the first request in `input` and returns its length; `None` if it is incomplete.
fn answer_first(input: &[u8], json: &mut Vec<u8>, output: &mut Vec<u8>) -> Result<Option<usize>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(begin) = head.parse(input)? else { return Ok(None) };
    let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length: usize = str::from_utf8(length.context("a request has no length")?.value)?.parse()?;
    let Some(body) = input[begin..].get(..length) else { return Ok(None) };
    answer(head.path.unwrap_or_default(), body, json)?;
    write!(
        output,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        json.len()
    )?;
    output.extend_from_slice(json);
    Ok(Some(begin + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_once_it_is_complete() {
        let body = r#"{"client_key":"a","endpoint":"/orders","cost":1}"#;
        let request = format!("POST /check HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let request = request.as_bytes();
        let (mut json, mut output) = (Vec::new(), Vec::new());
        for length in 0..request.len() {
            assert_eq!(answer_first(&request[..length], &mut json, &mut output).unwrap(), None);
        }
        let twice = [request, b"POST"].concat();
        assert_eq!(answer_first(&twice, &mut json, &mut output).unwrap(), Some(request.len()));
        let output = String::from_utf8(output).unwrap();
        assert!(output.starts_with("HTTP/1.1 200 OK\r\n"), "{output}");
        assert!(
            output
                .ends_with(r#"{"allowed":true,"remaining":999999,"reset_at":1700000000,"retry_after":null}"#),
            "{output}"
        );
    }
}

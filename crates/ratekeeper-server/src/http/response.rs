//! Response writers: one for the fast path, one for hyper.
//!
//! Handlers write to a [`ResponseWriter`] and need not know whether the fast path or hyper sends the response. Either
//! way the client reads the same headers in the same order. The fast path's [`H1Writer`] reuses its buffer: a warm one
//! allocates nothing.

use super::HttpResponse;
use super::date::{DateLine, date_line};
use super::response_body::HttpBody;
use crate::conn::{pool_buffer, pooled_buffer};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use ratekeeper::Micros;
use serde::Serialize;
use std::io::Write;

pub(crate) const JSON: &str = "application/json";
pub(crate) const TEXT: &str = "text/plain";

/// The capacity that an [`H1Writer`] keeps for the next responses. Those to a full batch of checks take less.
const KEPT_BYTES: usize = 32 * 1024;

/// Takes responses: for each, `begin`, then its headers, then one of the `end` methods. The writer adds
/// `content-length`, `date` and `connection`.
pub(crate) trait ResponseWriter {
    /// Begins a response with a body of this content type.
    fn begin(&mut self, status: StatusCode, content_type: &'static str);

    /// Adds a header; its name is in lower case. A header whose value has control characters is left out: it could end
    /// the head and start another response.
    fn header(&mut self, name: &'static str, value: &[u8]);

    /// Ends the response with a body.
    fn end(&mut self, body: &[u8]);

    /// Ends the response with a constant body, which need not be copied.
    fn end_static(&mut self, body: &'static [u8]);

    /// Ends the response with a JSON body.
    fn end_json(&mut self, body: &impl Serialize);
}

/// The responses to a batch of requests, as HTTP/1.1 bytes.
#[derive(Debug, Default)]
pub(super) struct H1Writer {
    bytes: Vec<u8>,
    /// Scratch space for a JSON body, whose length must be known before it is written.
    body: Vec<u8>,
    date: Option<DateLine>,
    /// How many responses of the batch are still to be written.
    unwritten: usize,
    /// Whether the connection closes after the last of them.
    closes: bool,
    /// Whether the status of the current response allows a body.
    has_body: bool,
}

impl H1Writer {
    /// Starts a batch of responses, all dated `now`.
    pub(super) fn start_batch(&mut self, responses: usize, now: Micros, closes: bool) {
        debug_assert!(self.bytes.is_empty() && self.unwritten == 0, "the last batch is answered and sent");
        (self.unwritten, self.closes, self.date) = (responses, closes, Some(date_line(now)));
    }

    /// Makes space for a body, with a pooled buffer if it is large.
    fn reserve_body(&mut self, body_bytes: usize) {
        let min_bytes = self.bytes.len() + body_bytes;
        if min_bytes > KEPT_BYTES
            && self.bytes.capacity() < min_bytes
            && let Some(mut larger) = pooled_buffer(min_bytes)
        {
            larger.clear();
            larger.extend_from_slice(&self.bytes);
            self.bytes = larger;
        }
    }

    /// The written responses, to be sent and cleared.
    pub(super) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        debug_assert_eq!(self.unwritten, 0, "every request has a response");
        &mut self.bytes
    }

    /// Releases the memory of unusually long responses, once they are sent.
    pub(super) fn shrink(&mut self) {
        if self.bytes.capacity() > KEPT_BYTES {
            pool_buffer(std::mem::take(&mut self.bytes));
        }
        self.body.shrink_to(KEPT_BYTES);
    }
}

impl ResponseWriter for H1Writer {
    fn begin(&mut self, status: StatusCode, content_type: &'static str) {
        debug_assert_ne!(self.unwritten, 0, "there is a request to answer");
        self.has_body = may_have_body(status);
        match status {
            StatusCode::OK => self.bytes.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-type: "),
            status => {
                let reason = status.canonical_reason().unwrap_or("-");
                write!(self.bytes, "HTTP/1.1 {} {reason}\r\ncontent-type: ", status.as_str())
                    .expect("writing to memory does not fail");
            }
        }
        self.bytes.extend_from_slice(content_type.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn header(&mut self, name: &'static str, value: &[u8]) {
        if !is_valid_header_value(value) {
            return;
        }
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.bytes.extend_from_slice(part);
        }
    }

    fn end(&mut self, body: &[u8]) {
        self.unwritten = self.unwritten.saturating_sub(1);
        if self.closes && self.unwritten == 0 {
            self.bytes.extend_from_slice(b"connection: close\r\n");
        }
        if self.has_body {
            self.bytes.extend_from_slice(b"content-length: ");
            self.bytes.extend_from_slice(itoa::Buffer::new().format(body.len()).as_bytes());
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.bytes.extend_from_slice(self.date.as_ref().map_or(&[], |line| &line[..]));
        self.bytes.extend_from_slice(b"\r\n");
        if self.has_body {
            self.reserve_body(body.len());
            self.bytes.extend_from_slice(body);
        }
    }

    fn end_static(&mut self, body: &'static [u8]) {
        self.end(body);
    }

    fn end_json(&mut self, body: &impl Serialize) {
        let mut bytes = std::mem::take(&mut self.body);
        bytes.clear();
        serde_json::to_writer(&mut bytes, body).expect("numbers and text serialize to memory");
        self.end(&bytes);
        self.body = bytes;
    }
}

/// One response for hyper to send, over HTTP/1 or HTTP/2.
#[derive(Debug, Default)]
pub(super) struct HyperWriter(HttpResponse);

impl HyperWriter {
    pub(super) fn into_response(self) -> HttpResponse {
        self.0
    }
}

impl ResponseWriter for HyperWriter {
    fn begin(&mut self, status: StatusCode, content_type: &'static str) {
        *self.0.status_mut() = status;
        *self.0.headers_mut() =
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
    }

    fn header(&mut self, name: &'static str, value: &[u8]) {
        if is_valid_header_value(value)
            && let Ok(value) = HeaderValue::from_bytes(value)
        {
            self.0.headers_mut().append(HeaderName::from_static(name), value);
        }
    }

    fn end(&mut self, body: &[u8]) {
        if may_have_body(self.0.status()) {
            *self.0.body_mut() = HttpBody::new(Bytes::copy_from_slice(body));
        }
    }

    fn end_static(&mut self, body: &'static [u8]) {
        if may_have_body(self.0.status()) {
            *self.0.body_mut() = HttpBody::new(Bytes::from_static(body));
        }
    }

    fn end_json(&mut self, body: &impl Serialize) {
        // The response to a check fits; an error grows it once.
        let mut bytes = Vec::with_capacity(128);
        serde_json::to_writer(&mut bytes, body).expect("numbers and text serialize to memory");
        if may_have_body(self.0.status()) {
            *self.0.body_mut() = HttpBody::new(bytes.into());
        }
    }
}

fn may_have_body(status: StatusCode) -> bool {
    !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

fn is_valid_header_value(value: &[u8]) -> bool {
    // No early exit, so that the compiler can compare many bytes at a time.
    !value.iter().fold(false, |is_invalid, byte| is_invalid | byte.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use hyper::header::DATE;

    const NOW: Micros = Micros::new(784_111_777_000_000);

    fn write(out: &mut impl ResponseWriter) {
        out.begin(StatusCode::TOO_MANY_REQUESTS, JSON);
        out.header("retry-after", b"36");
        out.header("x-split", b"a\r\nset-cookie: b");
        out.header("ratelimit-policy", b"\"per-key\";q=100");
        out.header("x-twice", b"a");
        out.header("x-twice", b"b");
        out.end_json(&"no");
    }

    #[test]
    fn the_h1_writer_writes_responses_as_sent() {
        let mut out = H1Writer::default();
        out.start_batch(2, NOW, true);
        write(&mut out);
        out.begin(StatusCode::NO_CONTENT, TEXT);
        out.end(b"not sent");
        let expected = "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after: 36\r\n\
            ratelimit-policy: \"per-key\";q=100\r\nx-twice: a\r\nx-twice: b\r\ncontent-length: 4\r\n\
            date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n\"no\"\
            HTTP/1.1 204 No Content\r\ncontent-type: text/plain\r\nconnection: close\r\n\
            date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n";
        assert_eq!(String::from_utf8_lossy(&out.bytes), expected);
    }

    #[tokio::test]
    async fn the_hyper_writer_has_the_same_headers_and_leaves_the_rest_to_hyper() {
        let mut writer = HyperWriter::default();
        write(&mut writer);
        let response = writer.into_response();
        assert_eq!(response.status(), 429);
        assert!(!response.headers().contains_key(DATE));
        let headers: Vec<String> = response
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        let expected = [
            "content-type: application/json",
            "retry-after: 36",
            "ratelimit-policy: \"per-key\";q=100",
            "x-twice: a",
            "x-twice: b",
        ];
        assert_eq!(headers, expected);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "\"no\"");
    }
}

//! Answers on their way out.
//!
//! Whoever answers a request writes against [`ResponseWriter`], and need not know whether it leaves through the lane or through
//! hyper. Both ways the client reads the same fields in the same order. The lane's [`H1Writer`] is bytes that are kept and
//! filled again: a warm one allocates nothing.

use super::HttpReply;
use super::buffer_pool;
use super::date::{DateLine, date_line};
use super::response_body::HttpBody;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use ratekeeper::Micros;
use serde::Serialize;
use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

pub(crate) const JSON: &str = "application/json";
pub(crate) const TEXT: &str = "text/plain";

/// How much an outbox keeps for the next answers. Those to a whole batch of checks take less.
const KEPT_BYTES: usize = 32 * 1024;

/// Takes answers, each begun, then given its fields, then ended. Length, date and what becomes of the connection are
/// added by whoever sends it.
pub(crate) trait ResponseWriter {
    /// Begins an answer with a body of this kind.
    fn begin(&mut self, status: StatusCode, kind: &'static str);

    /// Adds a field; its name is in lower case. A value that has control characters is left out with its field: it could
    /// end the head and begin another answer.
    fn field(&mut self, name: &'static str, value: &[u8]);

    /// Adds fields as they go over the wire, `name: value` with CR and LF behind each, and names in lower case. They are
    /// not looked at, so no part of them may come from a client.
    fn lines(&mut self, lines: &[u8]);

    /// Ends the answer.
    fn end(&mut self, body: &[u8]);

    /// Ends the answer with a body that is always the same, and need not be copied.
    fn end_static(&mut self, body: &'static [u8]);

    /// Ends the answer with a body in JSON.
    fn end_json(&mut self, body: &impl Serialize);
}

/// Answers to a batch of requests, as the bytes that a client of HTTP/1.1 reads.
#[derive(Debug, Default)]
pub(super) struct H1Writer {
    bytes: Vec<u8>,
    /// How much has been sent.
    sent: usize,
    /// Where a body is written when its length must be known first.
    body: Vec<u8>,
    date: Option<DateLine>,
    /// How many answers are still to come.
    missing: usize,
    /// Whether the connection ends behind the last of them.
    closes: bool,
    /// Whether the answer that was begun may have a body at all.
    has_body: bool,
}

impl H1Writer {
    /// Makes ready for some answers, all of which are made `now`.
    pub(super) fn open(&mut self, answers: usize, now: Micros, closes: bool) {
        debug_assert!(self.bytes.is_empty() && self.missing == 0, "the last batch is answered and sent");
        (self.missing, self.closes, self.date) = (answers, closes, Some(date_line(now)));
    }

    /// Makes room for a body, in a buffer that is larger than most if need be.
    fn make_room(&mut self, body: usize) {
        let least = self.bytes.len() + body;
        if least > KEPT_BYTES
            && self.bytes.capacity() < least
            && let Some(mut larger) = buffer_pool::take(least)
        {
            larger.clear();
            larger.extend_from_slice(&self.bytes);
            self.bytes = larger;
        }
    }

    /// Sends everything.
    pub(super) fn poll_send<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        debug_assert_eq!(self.missing, 0, "every request has its answer");
        while self.sent < self.bytes.len() {
            match ready!(Pin::new(&mut *stream).poll_write(cx, &self.bytes[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        ready!(Pin::new(stream).poll_flush(cx))?;
        self.bytes.clear();
        self.sent = 0;
        if self.bytes.capacity() > KEPT_BYTES {
            buffer_pool::give(std::mem::take(&mut self.bytes));
        }
        self.body.shrink_to(KEPT_BYTES);
        Poll::Ready(Ok(()))
    }
}

impl ResponseWriter for H1Writer {
    fn begin(&mut self, status: StatusCode, kind: &'static str) {
        debug_assert_ne!(self.missing, 0, "there is a request to answer");
        self.has_body = may_have_body(status);
        match status {
            StatusCode::OK => self.bytes.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-type: "),
            status => {
                let reason = status.canonical_reason().unwrap_or("-");
                write!(self.bytes, "HTTP/1.1 {} {reason}\r\ncontent-type: ", status.as_str())
                    .expect("memory can be written to");
            }
        }
        self.bytes.extend_from_slice(kind.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn field(&mut self, name: &'static str, value: &[u8]) {
        if !is_clean(value) {
            return;
        }
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.bytes.extend_from_slice(part);
        }
    }

    fn lines(&mut self, lines: &[u8]) {
        debug_assert!(lines.is_empty() || lines.ends_with(b"\r\n"), "the last line has its end");
        self.bytes.extend_from_slice(lines);
    }

    fn end(&mut self, body: &[u8]) {
        self.missing = self.missing.saturating_sub(1);
        if self.closes && self.missing == 0 {
            self.bytes.extend_from_slice(b"connection: close\r\n");
        }
        if self.has_body {
            self.bytes.extend_from_slice(b"content-length: ");
            push_number(&mut self.bytes, body.len());
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.bytes.extend_from_slice(self.date.as_ref().map_or(&[], |line| &line[..]));
        self.bytes.extend_from_slice(b"\r\n");
        if self.has_body {
            self.make_room(body.len());
            self.bytes.extend_from_slice(body);
        }
    }

    fn end_static(&mut self, body: &'static [u8]) {
        self.end(body);
    }

    fn end_json(&mut self, body: &impl Serialize) {
        let mut bytes = std::mem::take(&mut self.body);
        bytes.clear();
        serde_json::to_writer(&mut bytes, body).expect("numbers and text can be written to memory");
        self.end(&bytes);
        self.body = bytes;
    }
}

/// One answer for hyper to send, in whichever version it speaks.
#[derive(Debug, Default)]
pub(super) struct HyperWriter(HttpReply);

impl HyperWriter {
    pub(super) fn into_reply(self) -> HttpReply {
        self.0
    }

    fn add(&mut self, name: HeaderName, value: &[u8]) {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            self.0.headers_mut().append(name, value);
        }
    }
}

impl ResponseWriter for HyperWriter {
    fn begin(&mut self, status: StatusCode, kind: &'static str) {
        *self.0.status_mut() = status;
        *self.0.headers_mut() = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
    }

    fn field(&mut self, name: &'static str, value: &[u8]) {
        if is_clean(value) {
            self.add(HeaderName::from_static(name), value);
        }
    }

    fn lines(&mut self, lines: &[u8]) {
        for line in lines.split(|byte| *byte == b'\n') {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            if let Ok(name) = HeaderName::from_lowercase(&line[..colon]) {
                self.add(name, line[colon + 1..].trim_ascii());
            }
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
        // A check's answer fits; an error grows it once.
        let mut bytes = Vec::with_capacity(128);
        serde_json::to_writer(&mut bytes, body).expect("numbers and text can be written to memory");
        if may_have_body(self.0.status()) {
            *self.0.body_mut() = HttpBody::new(bytes.into());
        }
    }
}

fn may_have_body(status: StatusCode) -> bool {
    !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

fn is_clean(value: &[u8]) -> bool {
    value.iter().all(|byte| !byte.is_ascii_control())
}

/// Writes a number in digits, without the detour of a format.
fn push_number(bytes: &mut Vec<u8>, number: usize) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).expect("a digit");
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    bytes.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use hyper::header::DATE;

    const NOW: Micros = Micros::new(784_111_777_000_000);

    fn write(out: &mut impl ResponseWriter) {
        out.begin(StatusCode::TOO_MANY_REQUESTS, JSON);
        out.field("retry-after", b"36");
        out.field("x-split", b"a\r\nset-cookie: b");
        out.lines(b"ratelimit-policy: \"per-key\";q=100\r\nx-twice: a\r\nx-twice: b\r\n");
        out.end_json(&"no");
    }

    #[test]
    fn an_outbox_holds_what_goes_over_the_wire() {
        let mut out = H1Writer::default();
        out.open(2, NOW, true);
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
    async fn a_draft_has_the_same_fields_and_leaves_the_rest_to_hyper() {
        let mut draft = HyperWriter::default();
        write(&mut draft);
        let reply = draft.into_reply();
        assert_eq!(reply.status(), 429);
        assert!(!reply.headers().contains_key(DATE));
        let fields: Vec<String> = reply
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
        assert_eq!(fields, expected);
        assert_eq!(reply.into_body().collect().await.unwrap().to_bytes(), "\"no\"");
    }

    #[test]
    fn numbers_are_written_in_digits() {
        for number in [0, 9, 10, 1234567890, usize::MAX] {
            let mut bytes = Vec::new();
            push_number(&mut bytes, number);
            assert_eq!(bytes, number.to_string().into_bytes());
        }
    }
}

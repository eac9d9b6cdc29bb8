//! An HTTP/1 stream that makes hyper reject heads with a bare LF.
//!
//! Hyper's parser accepts a bare LF as a line end. Not every proxy does, and two readings of where a header ends allow
//! request smuggling. So a bare LF in a head is replaced by a NUL, which no head may contain: hyper answers with 400
//! and closes the connection.
//!
//! The start of each head follows from the lengths of the bodies before it. If that is misjudged, hyper still frames
//! the requests itself: at worst, an LF in a body becomes a NUL, or a bare LF in a head passes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much of a line is kept: enough for the two headers that frame a body, with any valid length.
const KEPT_LINE_BYTES: usize = 64;

/// Reads from `stream`, and replaces a bare LF in a head by a NUL. Writes go to the stream unchanged.
#[derive(Debug)]
pub(super) struct BareLfFilter<S> {
    stream: S,
    scan: Scan,
}

impl<S> BareLfFilter<S> {
    pub(super) fn new(stream: S) -> BareLfFilter<S> {
        BareLfFilter { stream, scan: Scan::default() }
    }
}

/// The state of the scan: where in the connection the next byte is.
#[derive(Debug, Default)]
struct Scan {
    position: ScanPosition,
    line: ScanLine,
    /// The body framing that the head has announced so far.
    body: ScanBody,
    has_request_line: bool,
}

/// The part of the message that the next byte belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanPosition {
    #[default]
    Head,
    /// A body with this many bytes left.
    Body(u64),
    ChunkSize,
    /// A chunk with this many bytes left, including its CRLF.
    Chunk(u64),
    Trailers,
    /// No longer scanned: the connection is HTTP/2, or hyper will reject it.
    Unscanned,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanBody {
    #[default]
    Empty,
    Length(u64),
    Chunked,
}

/// The first bytes of the current line, and its last byte.
#[derive(Debug)]
struct ScanLine {
    bytes: [u8; KEPT_LINE_BYTES],
    length: usize,
    last: u8,
}

impl Default for ScanLine {
    fn default() -> ScanLine {
        ScanLine { bytes: [0; KEPT_LINE_BYTES], length: 0, last: 0 }
    }
}

impl ScanLine {
    fn push(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(KEPT_LINE_BYTES - self.length);
        self.bytes[self.length..self.length + count].copy_from_slice(&bytes[..count]);
        self.length += count;
        self.last = bytes.last().copied().unwrap_or(self.last);
    }

    /// The first bytes, without a trailing CR.
    fn text(&self) -> &[u8] {
        let bytes = &self.bytes[..self.length];
        bytes.strip_suffix(b"\r").unwrap_or(bytes)
    }

    fn clear(&mut self) {
        (self.length, self.last) = (0, 0);
    }
}

impl Scan {
    /// Scans the next bytes of the connection, and replaces the first bare LF in a head.
    fn filter(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let passed = match self.position {
                ScanPosition::Unscanned => return,
                ScanPosition::Body(left) | ScanPosition::Chunk(left) => self.skip(left, bytes.len()),
                ScanPosition::Head | ScanPosition::ChunkSize | ScanPosition::Trailers => {
                    self.read_line(bytes)
                }
            };
            bytes = &mut bytes[passed..];
        }
    }

    /// Skips body bytes, at most `available`. Returns how many.
    fn skip(&mut self, left: u64, available: usize) -> usize {
        let passed = usize::try_from(left).unwrap_or(usize::MAX).min(available);
        let left = left - passed as u64;
        self.position = match (self.position, left) {
            (ScanPosition::Chunk(_), 0) => ScanPosition::ChunkSize,
            (_, 0) => ScanPosition::Head,
            (ScanPosition::Chunk(_), left) => ScanPosition::Chunk(left),
            (_, left) => ScanPosition::Body(left),
        };
        passed
    }

    /// Scans to the end of a line, or of `bytes`. Returns the number of bytes scanned.
    fn read_line(&mut self, bytes: &mut [u8]) -> usize {
        let Some(end) = memchr::memchr(b'\n', bytes) else {
            self.line.push(bytes);
            return bytes.len();
        };
        self.line.push(&bytes[..end]);
        if self.line.last != b'\r' {
            bytes[end] = 0;
            self.position = ScanPosition::Unscanned;
        } else {
            self.end_line();
            self.line.clear();
        }
        end + 1
    }

    fn end_line(&mut self) {
        let line = self.line.text();
        match self.position {
            ScanPosition::Head if line.is_empty() && self.has_request_line => {
                self.position = match self.body {
                    ScanBody::Empty | ScanBody::Length(0) => ScanPosition::Head,
                    ScanBody::Length(length) => ScanPosition::Body(length),
                    ScanBody::Chunked => ScanPosition::ChunkSize,
                };
                (self.body, self.has_request_line) = (ScanBody::Empty, false);
            }
            // Empty lines before a request are skipped, as hyper does.
            ScanPosition::Head if line.is_empty() => {}
            ScanPosition::Head if !self.has_request_line => {
                self.has_request_line = true;
                if line.starts_with(b"PRI ") {
                    self.position = ScanPosition::Unscanned;
                }
            }
            ScanPosition::Head => self.body = self.body.with_header(line),
            ScanPosition::ChunkSize => {
                self.position = match chunk_size(line) {
                    None => ScanPosition::Unscanned,
                    Some(0) => ScanPosition::Trailers,
                    Some(size) => ScanPosition::Chunk(size.saturating_add(2)),
                };
            }
            ScanPosition::Trailers if line.is_empty() => self.position = ScanPosition::Head,
            ScanPosition::Trailers
            | ScanPosition::Body(_)
            | ScanPosition::Chunk(_)
            | ScanPosition::Unscanned => {}
        }
    }
}

impl ScanBody {
    /// The body framing after another header line.
    fn with_header(self, line: &[u8]) -> ScanBody {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return self };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return ScanBody::Chunked;
        }
        let is_length = name.eq_ignore_ascii_case(b"content-length") && self != ScanBody::Chunked;
        let length = str::from_utf8(value).ok().and_then(|value| value.parse().ok());
        length.filter(|_| is_length).map_or(self, ScanBody::Length)
    }
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

impl<S: AsyncRead + Unpin> AsyncRead for BareLfFilter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.scan.filter(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BareLfFilter<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that hyper reads `expected` for `text`, wherever it is split.
    #[track_caller]
    fn check(text: &str, expected: &str) {
        for cut in 0..=text.len() {
            let mut bytes = text.as_bytes().to_vec();
            let mut scan = Scan::default();
            let (first, rest) = bytes.split_at_mut(cut);
            scan.filter(first);
            scan.filter(rest);
            assert_eq!(String::from_utf8_lossy(&bytes), expected, "cut at {cut}");
        }
    }

    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

    #[test]
    fn line_ends_in_bodies_are_unchanged() {
        let text = [
            "\r\n",
            GET,
            "POST / HTTP/1.1\r\nHost: a\r\ncontent-LENGTH: 7\r\n\r\n{\n}\n\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\n\n\n\n\r\nA\r\n0123\n56789\r\n0\r\nX: y\r\n\r\n",
            GET,
        ]
        .concat();
        check(&text, &text);
        let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\n\n\n";
        check(preface, preface);
    }

    #[test]
    fn a_bare_lf_in_any_head_is_replaced() {
        let heads = [
            "\nGET / HTTP/1.1\r\n",
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            &format!("GET / HTTP/1.1\r\nX: {}\n\r\n", "y".repeat(200)),
        ];
        let posted = "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n\n\n";
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n0\r\n\r\n";
        for before in ["", GET, posted, chunked] {
            for head in heads {
                let at = head.char_indices().find(|(at, byte)| *byte == '\n' && !head[..*at].ends_with('\r'));
                let (at, _) = at.unwrap();
                let replaced = format!("{before}{}\0{}", &head[..at], &head[at + 1..]);
                check(&format!("{before}{head}"), &replaced);
            }
        }
    }
}

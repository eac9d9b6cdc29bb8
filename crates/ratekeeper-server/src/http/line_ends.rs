//! A stream of HTTP/1 whose heads may end their lines in CR and LF alone.
//!
//! Hyper's parser takes a bare LF for the end of a line. Not every proxy does, and two readings of where a field ends are what
//! request smuggling is made of. So a bare LF in a head is replaced by a NUL on its way to hyper, which no head may have: hyper
//! answers with 400 and closes.
//!
//! Where heads begin follows from the lengths of the bodies between them. Should that be misjudged, hyper still frames
//! requests by itself: all that can happen is that an LF in a body becomes a NUL, or one in a head is let through.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much of a line is looked at: the two fields that say how long a body is, and a length of any size that is allowed.
const LINE_BYTES: usize = 64;

/// Reads from `stream`, and spoils heads that have a bare LF. Writing goes straight to the stream.
#[derive(Debug)]
pub(super) struct LineEnds<S> {
    stream: S,
    scan: Scan,
}

impl<S> LineEnds<S> {
    pub(super) fn new(stream: S) -> LineEnds<S> {
        LineEnds { stream, scan: Scan::default() }
    }
}

/// Where in a connection the next byte is.
#[derive(Debug, Default)]
struct Scan {
    place: ScanPosition,
    line: ScanLine,
    /// What the head so far says of its body.
    body: ScanBody,
    has_request_line: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanPosition {
    #[default]
    Head,
    /// So many bytes are left of a body.
    Body(u64),
    ChunkSize,
    /// So many bytes are left of a chunk and its line end.
    Chunk(u64),
    Trailers,
    /// Nothing is looked at any more: it is HTTP/2, or hyper will refuse it.
    Elsewhere,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanBody {
    #[default]
    Nothing,
    Length(u64),
    Chunks,
}

/// The beginning of the line that is being read, and its last byte.
#[derive(Debug)]
struct ScanLine {
    bytes: [u8; LINE_BYTES],
    length: usize,
    last: u8,
}

impl Default for ScanLine {
    fn default() -> ScanLine {
        ScanLine { bytes: [0; LINE_BYTES], length: 0, last: 0 }
    }
}

impl ScanLine {
    fn push(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(LINE_BYTES - self.length);
        self.bytes[self.length..self.length + count].copy_from_slice(&bytes[..count]);
        self.length += count;
        self.last = bytes.last().copied().unwrap_or(self.last);
    }

    /// What it begins with, without CR.
    fn text(&self) -> &[u8] {
        let bytes = &self.bytes[..self.length];
        bytes.strip_suffix(b"\r").unwrap_or(bytes)
    }

    fn clear(&mut self) {
        (self.length, self.last) = (0, 0);
    }
}

impl Scan {
    /// Looks at the next bytes of the connection, and spoils the first bare LF in a head.
    fn pass(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let passed = match self.place {
                ScanPosition::Elsewhere => return,
                ScanPosition::Body(left) | ScanPosition::Chunk(left) => self.skip(left, bytes.len()),
                ScanPosition::Head | ScanPosition::ChunkSize | ScanPosition::Trailers => {
                    self.read_line(bytes)
                }
            };
            bytes = &mut bytes[passed..];
        }
    }

    /// Passes over bytes of a body. Returns how many.
    fn skip(&mut self, left: u64, come: usize) -> usize {
        let passed = usize::try_from(left).unwrap_or(usize::MAX).min(come);
        let left = left - passed as u64;
        self.place = match (self.place, left) {
            (ScanPosition::Chunk(_), 0) => ScanPosition::ChunkSize,
            (_, 0) => ScanPosition::Head,
            (ScanPosition::Chunk(_), left) => ScanPosition::Chunk(left),
            (_, left) => ScanPosition::Body(left),
        };
        passed
    }

    /// Passes over a line, or what has come of one. Returns how many bytes.
    fn read_line(&mut self, bytes: &mut [u8]) -> usize {
        let Some(end) = memchr::memchr(b'\n', bytes) else {
            self.line.push(bytes);
            return bytes.len();
        };
        self.line.push(&bytes[..end]);
        if self.line.last != b'\r' {
            bytes[end] = 0;
            self.place = ScanPosition::Elsewhere;
        } else {
            self.end_line();
            self.line.clear();
        }
        end + 1
    }

    fn end_line(&mut self) {
        let line = self.line.text();
        match self.place {
            ScanPosition::Head if line.is_empty() && self.has_request_line => {
                self.place = match self.body {
                    ScanBody::Nothing | ScanBody::Length(0) => ScanPosition::Head,
                    ScanBody::Length(length) => ScanPosition::Body(length),
                    ScanBody::Chunks => ScanPosition::ChunkSize,
                };
                (self.body, self.has_request_line) = (ScanBody::Nothing, false);
            }
            // Empty lines ahead of a request are passed over, as hyper does.
            ScanPosition::Head if line.is_empty() => {}
            ScanPosition::Head if !self.has_request_line => {
                self.has_request_line = true;
                if line.starts_with(b"PRI ") {
                    self.place = ScanPosition::Elsewhere;
                }
            }
            ScanPosition::Head => self.body = self.body.after(line),
            ScanPosition::ChunkSize => {
                self.place = match chunk_size(line) {
                    None => ScanPosition::Elsewhere,
                    Some(0) => ScanPosition::Trailers,
                    Some(size) => ScanPosition::Chunk(size.saturating_add(2)),
                };
            }
            ScanPosition::Trailers if line.is_empty() => self.place = ScanPosition::Head,
            ScanPosition::Trailers
            | ScanPosition::Body(_)
            | ScanPosition::Chunk(_)
            | ScanPosition::Elsewhere => {}
        }
    }
}

impl ScanBody {
    /// What is known after another field.
    fn after(self, field: &[u8]) -> ScanBody {
        let Some(colon) = field.iter().position(|byte| *byte == b':') else { return self };
        let (name, value) = (&field[..colon], field[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return ScanBody::Chunks;
        }
        let is_length = name.eq_ignore_ascii_case(b"content-length") && self != ScanBody::Chunks;
        let length = str::from_utf8(value).ok().and_then(|value| value.parse().ok());
        length.filter(|_| is_length).map_or(self, ScanBody::Length)
    }
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

impl<S: AsyncRead + Unpin> AsyncRead for LineEnds<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.scan.pass(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LineEnds<S> {
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

    /// What hyper gets of `text`, however it is cut.
    #[track_caller]
    fn check(text: &str, expected: &str) {
        for cut in 0..=text.len() {
            let mut bytes = text.as_bytes().to_vec();
            let mut scan = Scan::default();
            let (first, rest) = bytes.split_at_mut(cut);
            scan.pass(first);
            scan.pass(rest);
            assert_eq!(String::from_utf8_lossy(&bytes), expected, "cut at {cut}");
        }
    }

    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

    #[test]
    fn bodies_may_have_any_line_end() {
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
    fn a_bare_lf_in_a_head_is_spoiled_wherever_the_head_is() {
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
                let spoiled = format!("{before}{}\0{}", &head[..at], &head[at + 1..]);
                check(&format!("{before}{head}"), &spoiled);
            }
        }
    }
}

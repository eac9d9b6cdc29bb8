//! Strict parser for plain HTTP/1.1 requests, the only kind that the fast path answers.
//!
//! Every parser agrees on where a plain request ends: HTTP/1.1, GET or POST, a target that is a path with at
//! most a query, lines that end in CRLF, one `Host`, one `Content-Length` in digits if there is a body, and no header
//! that asks for another kind of body or connection. Anything else, valid or not, is [`ParsedFront::Other`] and left to
//! hyper. The head is parsed by httparse, as in hyper, and then checked further, so hyper would frame a plain request
//! the same way.
//!
//! Nothing is copied or allocated: a [`PlainRequest`] is a handful of offsets into the bytes that it was parsed from.

use httparse::{Request, Status};
use std::mem::MaybeUninit;
use std::ops::Range;

/// The most bytes of a head. Hyper is configured with the same maximum.
pub(super) const MAX_HEAD_BYTES: usize = 32 * 1024;
/// The most headers: checks have a handful, browsers some twenty.
const MAX_HEADERS: usize = 64;
/// The end of the request line, between the target and the headers.
const VERSION: &[u8] = b" HTTP/1.1\r\n";
const LINE_END: &[u8] = b"\r\n";
/// The most digits of a `Content-Length`. A longer one is not plain, whatever its value.
const MAX_LENGTH_DIGITS: usize = 7;

/// The result of parsing the front of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParsedFront {
    /// The head is incomplete.
    Partial,
    /// The complete head of a plain request. Its body may be incomplete.
    Plain(PlainRequest),
    /// Not a plain request.
    Other,
}

/// The methods of plain requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlainMethod {
    Get,
    Post,
}

impl PlainMethod {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            PlainMethod::Get => "GET",
            PlainMethod::Post => "POST",
        }
    }

    /// The offset of the target, after the method and a space.
    fn target_start(self) -> usize {
        self.as_str().len() + 1
    }
}

/// The offsets of the parts of a plain request, from its first byte. Methods that take `bytes` need those that it was
/// parsed from, or a longer slice that begins with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainRequest {
    method: PlainMethod,
    path_end: u16,
    target_end: u16,
    head_end: u16,
    content_type: Option<(u16, u16)>,
    body_bytes: u32,
    closes: bool,
    is_from_browser: bool,
}

impl PlainRequest {
    /// Parses the front of `bytes`.
    pub(super) fn parse(bytes: &[u8]) -> ParsedFront {
        match bytes.first() {
            None => return ParsedFront::Partial,
            Some(b'G' | b'P') => {}
            // httparse would skip empty lines before a request, which not every server does.
            Some(_) => return ParsedFront::Other,
        }
        let window = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
        let mut fields = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut request = Request::new(&mut []);
        match request.parse_with_uninit_headers(window, &mut fields) {
            Ok(Status::Complete(end)) => PlainRequest::from_head(&window[..end], &request)
                .map_or(ParsedFront::Other, ParsedFront::Plain),
            Ok(Status::Partial) if bytes.len() < MAX_HEAD_BYTES => ParsedFront::Partial,
            Ok(Status::Partial) | Err(_) => ParsedFront::Other,
        }
    }

    /// The request whose head is `bytes`. Returns `None` if it is not plain.
    fn from_head(bytes: &[u8], request: &Request<'_, '_>) -> Option<PlainRequest> {
        let method = match request.method? {
            "GET" => PlainMethod::Get,
            "POST" => PlainMethod::Post,
            _ => return None,
        };
        let target = request.path?.as_bytes();
        let target_end = method.target_start() + target.len();
        let begins_plainly = target.first() == Some(&b'/')
            && target.iter().all(|byte| TARGET_BYTES[usize::from(*byte)])
            && bytes.get(target_end..)?.starts_with(VERSION);
        // httparse also accepts a bare LF as a line end. Each line end is either before a header name, where the loop
        // below checks it, or before the empty line.
        if !begins_plainly || !bytes.ends_with(b"\r\n\r\n") {
            return None;
        }
        let path = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
        let mut plain = PlainRequest {
            method,
            path_end: u16::try_from(method.target_start() + path).ok()?,
            target_end: u16::try_from(target_end).ok()?,
            head_end: u16::try_from(bytes.len()).ok()?,
            content_type: None,
            body_bytes: 0,
            closes: false,
            is_from_browser: false,
        };
        let (mut length, mut connection, mut has_host) = (None, None, false);
        for field in request.headers.iter() {
            let line = offset_in(bytes, field.name.as_bytes());
            if bytes[..line].last_chunk::<2>()? != LINE_END {
                return None;
            }
            match HeaderKind::from_name(field.name) {
                HeaderKind::Irrelevant => {}
                HeaderKind::NotPlain => return None,
                HeaderKind::Host if has_host => return None,
                HeaderKind::Host => has_host = true,
                HeaderKind::Browser => plain.is_from_browser = true,
                HeaderKind::ContentType => {
                    let at = offset_in(bytes, field.value);
                    let span = (u16::try_from(at).ok()?, u16::try_from(at + field.value.len()).ok()?);
                    // The first one counts.
                    plain.content_type.get_or_insert(span);
                }
                HeaderKind::ContentLength if length.is_some() => return None,
                HeaderKind::ContentLength => length = Some(parse_length(field.value)?),
                HeaderKind::Connection if connection.is_some() => return None,
                HeaderKind::Connection => connection = Some(closes(field.value)?),
            }
        }
        if !has_host {
            return None;
        }
        plain.closes = connection == Some(true);
        plain.body_bytes = match (method, length) {
            (PlainMethod::Post, Some(length)) => length,
            (PlainMethod::Get, None | Some(0)) => 0,
            (PlainMethod::Post, None) | (PlainMethod::Get, Some(_)) => return None,
        };
        Some(plain)
    }

    pub(super) fn method(&self) -> PlainMethod {
        self.method
    }

    pub(super) fn path<'a>(&self, bytes: &'a [u8]) -> &'a str {
        ascii_str(&bytes[self.method.target_start()..usize::from(self.path_end)])
    }

    /// The query string. `None` if there is no question mark.
    pub(super) fn query<'a>(&self, bytes: &'a [u8]) -> Option<&'a str> {
        bytes[usize::from(self.path_end)..usize::from(self.target_end)].strip_prefix(b"?").map(ascii_str)
    }

    pub(super) fn content_type<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        self.content_type.map(|(start, end)| &bytes[usize::from(start)..usize::from(end)])
    }

    /// All header lines, each with its CRLF.
    pub(super) fn header_lines<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = usize::from(self.target_end) + VERSION.len();
        &bytes[start..usize::from(self.head_end) - LINE_END.len()]
    }

    /// The length of the body, of which not all may have been read yet.
    pub(super) fn body_bytes(&self) -> usize {
        self.body_bytes as usize
    }

    /// The body, which must have been read.
    pub(super) fn body<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.body_range()]
    }

    /// The length of the request, including its body.
    pub(super) fn total_bytes(&self) -> usize {
        self.body_range().end
    }

    /// Whether it has `Connection: close`.
    pub(super) fn closes(&self) -> bool {
        self.closes
    }

    /// Whether it has an `Origin` or `Sec-Fetch-Site` header, by which browsers name the page behind a request.
    pub(super) fn is_from_browser(&self) -> bool {
        self.is_from_browser
    }

    fn body_range(&self) -> Range<usize> {
        let start = usize::from(self.head_end);
        start..start + self.body_bytes()
    }
}

/// The first value of the header `name`. `lines` are the header lines of a plain request.
pub(super) fn header<'a>(lines: &'a [u8], name: &str) -> Option<&'a [u8]> {
    header_values(lines, name).next()
}

/// All values of the header `name`, in order.
pub(super) fn header_values<'a, 'n>(
    lines: &'a [u8],
    name: &'n str,
) -> impl DoubleEndedIterator<Item = &'a [u8]> + use<'a, 'n> {
    lines.split(|byte| *byte == b'\n').filter_map(|line| {
        let (found, rest) = line.split_at_checked(name.len())?;
        let value = rest.strip_prefix(b":")?;
        found.eq_ignore_ascii_case(name.as_bytes()).then(|| value.trim_ascii())
    })
}

/// Calls `visit` with the name and the value of every header, in order.
pub(super) fn for_each_header<'a>(lines: &'a [u8], mut visit: impl FnMut(&'a [u8], &'a [u8])) {
    let mut rest = lines;
    while let Some(colon) = rest.iter().position(|byte| *byte == b':') {
        let (name, after_name) = (&rest[..colon], &rest[colon + 1..]);
        let end = after_name.iter().position(|byte| *byte == b'\n').unwrap_or(after_name.len());
        visit(name, after_name[..end].trim_ascii());
        rest = after_name.get(end + 1..).unwrap_or_default();
    }
}

/// What a header means for the framing of a request, its connection, and its origin.
enum HeaderKind {
    Irrelevant,
    Host,
    /// `Origin` or `Sec-Fetch-Site`.
    Browser,
    ContentType,
    ContentLength,
    Connection,
    NotPlain,
}

impl HeaderKind {
    fn from_name(name: &str) -> HeaderKind {
        match name.len() {
            2 if eq_lowercase(name, b"te") => HeaderKind::NotPlain,
            4 if eq_lowercase(name, b"host") => HeaderKind::Host,
            6 if eq_lowercase(name, b"expect") => HeaderKind::NotPlain,
            6 if eq_lowercase(name, b"origin") => HeaderKind::Browser,
            7 if eq_lowercase(name, b"upgrade") => HeaderKind::NotPlain,
            10 if eq_lowercase(name, b"connection") => HeaderKind::Connection,
            12 if eq_lowercase(name, b"content-type") => HeaderKind::ContentType,
            14 if eq_lowercase(name, b"content-length") => HeaderKind::ContentLength,
            14 if eq_lowercase(name, b"sec-fetch-site") => HeaderKind::Browser,
            17 if eq_lowercase(name, b"transfer-encoding") => HeaderKind::NotPlain,
            _ => HeaderKind::Irrelevant,
        }
    }
}

/// Compares a name, in any case, with a lower-case one. The length is a constant, so the comparison needs no loop.
#[inline]
fn eq_lowercase<const LENGTH: usize>(name: &str, known: &[u8; LENGTH]) -> bool {
    name.as_bytes().first_chunk::<LENGTH>().is_some_and(|name| {
        (0..LENGTH).fold(true, |is, at| is & (name[at].to_ascii_lowercase() == known[at]))
    })
}

/// The offset of `part` in `whole`, which must contain it.
fn offset_in(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr() - whole.as_ptr().addr()
}

/// Parses an unambiguous length: digits only, and no leading zeros.
fn parse_length(value: &[u8]) -> Option<u32> {
    match value {
        [b'0'] => Some(0),
        [b'1'..=b'9', ..] if value.len() <= MAX_LENGTH_DIGITS => value
            .iter()
            .try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + u32::from(byte - b'0'))),
        _ => None,
    }
}

/// Whether a `Connection` header is `close`. Returns `None` if it is neither `close` nor `keep-alive`.
fn closes(value: &[u8]) -> Option<bool> {
    let is = |option: &[u8]| value.eq_ignore_ascii_case(option);
    is(b"close").then_some(true).or_else(|| is(b"keep-alive").then_some(false))
}

fn ascii_str(target: &[u8]) -> &str {
    str::from_utf8(target).expect("a plain target is ASCII")
}

/// The bytes that RFC 3986 allows in a path or a query. Hyper accepts a few more, rejects others, and cuts at a `#`.
static TARGET_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        table[byte as usize] = byte.is_ascii_alphanumeric();
        byte += 1;
    }
    let others = b"-._~!$&'()*+,;=:@%/?";
    let mut index = 0;
    while index < others.len() {
        table[others[index] as usize] = true;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: &str = "POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}";

    #[test]
    fn a_plain_request_is_parsed() {
        let bytes =
            b"POST /check?a=b?c HTTP/1.1\r\nHost: test\r\ncontent-TYPE:  a/b \r\nContent-Length: 2\r\n\
            Content-Type: c\r\nConnection: close\r\n\r\n{}GET /";
        let ParsedFront::Plain(plain) = PlainRequest::parse(bytes) else { panic!("it is plain") };
        assert_eq!(
            (plain.method(), plain.path(bytes), plain.query(bytes)),
            (PlainMethod::Post, "/check", Some("a=b?c"))
        );
        assert_eq!(plain.content_type(bytes), Some(&b"a/b"[..]));
        assert_eq!((plain.body(bytes), plain.body_bytes(), plain.closes()), (&b"{}"[..], 2, true));
        assert_eq!(&bytes[plain.total_bytes()..], b"GET /");
        let lines = plain.header_lines(bytes);
        assert!(lines.starts_with(b"Host: test\r\n") && lines.ends_with(b"Connection: close\r\n"));
        assert_eq!(header(lines, "host"), Some(&b"test"[..]));
        assert_eq!(header(lines, "content-type"), Some(&b"a/b"[..]), "the first value");
        assert_eq!((header(lines, "hos"), header(lines, "host:"), header(lines, "")), (None, None, None));

        let bytes = b"GET / HTTP/1.1\r\nHost:\r\n\r\n";
        let ParsedFront::Plain(plain) = PlainRequest::parse(bytes) else { panic!("it is plain") };
        assert_eq!((plain.method(), plain.path(bytes), plain.query(bytes)), (PlainMethod::Get, "/", None));
        assert_eq!(
            (plain.body(bytes), plain.header_lines(bytes), plain.closes()),
            (&[][..], &b"Host:\r\n"[..], false)
        );
        assert!(!plain.is_from_browser());
        for field in ["origin: null", "Sec-Fetch-Site: cross-site"] {
            let text = CHECK.replacen("\r\n", &format!("\r\n{field}\r\n"), 1);
            assert!(
                matches!(PlainRequest::parse(text.as_bytes()), ParsedFront::Plain(plain) if plain.is_from_browser())
            );
        }
    }

    #[test]
    fn a_head_is_parsed_before_its_body_arrives() {
        let ParsedFront::Plain(plain) = PlainRequest::parse(&CHECK.as_bytes()[..CHECK.len() - 2]) else {
            panic!("it is plain")
        };
        assert_eq!(plain.total_bytes(), CHECK.len());
    }

    #[test]
    fn ambiguous_requests_are_not_plain() {
        let cases = [
            ("POST", "PUT"),
            ("POST", "\r\nPOST"),
            ("POST", "\nPOST"),
            ("POST", " POST"),
            ("POST", "post"),
            ("POST", "GET"),
            ("/check", "*"),
            ("/check", "check"),
            ("/check", "http://a/check"),
            ("/check", "/a#b"),
            ("/check", "/é"),
            ("/check", "/a\"b"),
            ("/check", "/a\\b"),
            ("1.1", "1.0"),
            ("1.1", "1.2"),
            ("1.1\r\n", "1.1\n"),
            ("1.1\r\n", "1.1 \r\n"),
            ("Host: a\r\n", ""),
            ("Host: a\r\n", "Host: a\r\nHost: a\r\n"),
            ("Host: a\r\n", "Host: a\r\nhOST: b\r\n"),
            ("Content-Length: 2\r\n", ""),
            (": 2", ": "),
            (": 2", ": +2"),
            (": 2", ": 02"),
            (": 2", ": 2, 2"),
            (": 2", ": 0x2"),
            (": 2", ": 12345678"),
            (": 2", " : 2"),
            (": 2\r\n", ": 2\n"),
            (": 2\r\n", ": 2\r\n 3\r\n"),
            (": 2\r\n", ": 2\r\nContent-length: 2\r\n"),
            (": 2\r\n", ": 2\r\nTransfer-Encoding: identity\r\n"),
            (": 2\r\n", ": 2\r\ntransfer-encoding:\r\n"),
            (": 2\r\n", ": 2\r\nTE: trailers\r\n"),
            (": 2\r\n", ": 2\r\nExpect: 100-continue\r\n"),
            (": 2\r\n", ": 2\r\nUpgrade: websocket\r\n"),
            (": 2\r\n", ": 2\r\nConnection: upgrade\r\n"),
            (": 2\r\n", ": 2\r\nConnection:\r\n"),
            (": 2\r\n", ": 2\r\nConnection: close, close\r\n"),
            (": 2\r\n", ": 2\r\nConnection: close\r\nConnection: close\r\n"),
            (": 2\r\n", ": 2\r\nX: a\0b\r\n"),
            (": 2\r\n", ": 2\r\nX: a\rb\r\n"),
            (": 2\r\n", ": 2\r\nX: a\nY: b\r\n"),
            ("\r\n\r\n", "\r\n\n"),
            ("\r\n\r\n", "\n\r\n"),
        ];
        for (from, to) in cases {
            let text = CHECK.replacen(from, to, 1);
            assert_ne!(text, CHECK);
            assert_eq!(PlainRequest::parse(text.as_bytes()), ParsedFront::Other, "{text:?}");
        }
        let fields = |count: usize| CHECK.replacen("\r\n", &format!("\r\n{}", "X: y\r\n".repeat(count)), 1);
        assert!(matches!(PlainRequest::parse(fields(62).as_bytes()), ParsedFront::Plain(_)));
        assert_eq!(PlainRequest::parse(fields(63).as_bytes()), ParsedFront::Other);
    }

    #[test]
    fn a_head_is_partial_up_to_its_maximum_size() {
        for length in 0..CHECK.len() - 2 {
            assert_eq!(PlainRequest::parse(&CHECK.as_bytes()[..length]), ParsedFront::Partial, "{length}");
        }
        let padded = |bytes: usize| {
            let field = format!("\r\nX: {}\r\n", "y".repeat(bytes - CHECK.len() + 2 - "X: \r\n".len()));
            CHECK.replacen("\r\n", &field, 1).into_bytes()
        };
        let longest = padded(MAX_HEAD_BYTES);
        assert_eq!(PlainRequest::parse(&longest[..MAX_HEAD_BYTES - 1]), ParsedFront::Partial);
        assert!(
            matches!(PlainRequest::parse(&longest), ParsedFront::Plain(plain) if plain.total_bytes() == MAX_HEAD_BYTES + 2)
        );
        assert_eq!(PlainRequest::parse(&padded(MAX_HEAD_BYTES + 1)), ParsedFront::Other);
    }
}

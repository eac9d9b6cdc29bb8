//! The plain request: the one kind that the express lane answers itself.
//!
//! It leaves no two readings of where it ends. HTTP/1.1, GET or POST, a path and no more than a path and a query, lines
//! that end in CR and LF, one `Host`, one `Content-ResponseLength` in digits if there is a body, and none of the fields by which a
//! client asks for another kind of body or connection. Whatever else a client may send, lawfully or not, is [`ParsedFront::Other`]
//! and hyper's to judge. The head is read by the parser that hyper uses too, and then held to more: so what is plain
//! here, hyper would frame the same way.
//!
//! Nothing here is copied or allocated: a [`PlainRequest`] is a handful of positions in the bytes that it was found in.

use httparse::{Request, Status};
use std::mem::MaybeUninit;
use std::ops::Range;

/// The most bytes of a head, which is also what hyper is told.
pub(super) const MAX_HEAD_BYTES: usize = 32 * 1024;
/// The most header fields: checks have a handful, browsers some twenty.
const MAX_FIELDS: usize = 64;
/// What stands between the target and the fields.
const VERSION: &[u8] = b" HTTP/1.1\r\n";
const LINE_END: &[u8] = b"\r\n";
/// A body's length has no more digits: what is longer is not plain, however long it is.
const MAX_LENGTH_DIGITS: usize = 7;

/// What stands at the front of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParsedFront {
    /// Too little to tell.
    Unfinished,
    /// The whole head of a plain request. Its body may still be on the way.
    Plain(PlainRequest),
    /// Something else.
    Other,
}

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

    /// Where the target begins, behind a blank.
    fn target(self) -> usize {
        self.as_str().len() + 1
    }
}

/// Where the parts of a plain request are, counted from its first byte. The calls that take bytes want those that it was
/// found at the front of, or more of the same.
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
    /// What `bytes` begin with.
    pub(super) fn find(bytes: &[u8]) -> ParsedFront {
        match bytes.first() {
            None => return ParsedFront::Unfinished,
            Some(b'G' | b'P') => {}
            // The parser would skip empty lines ahead of a request, which not everybody does.
            Some(_) => return ParsedFront::Other,
        }
        let window = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
        let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let mut request = Request::new(&mut []);
        match request.parse_with_uninit_headers(window, &mut fields) {
            Ok(Status::Complete(end)) => {
                PlainRequest::of(&window[..end], &request).map_or(ParsedFront::Other, ParsedFront::Plain)
            }
            Ok(Status::Partial) if bytes.len() < MAX_HEAD_BYTES => ParsedFront::Unfinished,
            Ok(Status::Partial) | Err(_) => ParsedFront::Other,
        }
    }

    /// The request whose head is `bytes`, if it is plain.
    fn of(bytes: &[u8], request: &Request<'_, '_>) -> Option<PlainRequest> {
        let method = match request.method? {
            "GET" => PlainMethod::Get,
            "POST" => PlainMethod::Post,
            _ => return None,
        };
        let target = request.path?.as_bytes();
        let target_end = method.target() + target.len();
        let begins_plainly = target.first() == Some(&b'/')
            && target.iter().all(|byte| IN_TARGET[usize::from(*byte)])
            && bytes.get(target_end..)?.starts_with(VERSION);
        // The parser would also take a bare LF for the end of a line. Each line's end stands before a field's name,
        // where the loop below looks, or before the empty line.
        if !begins_plainly || !bytes.ends_with(b"\r\n\r\n") {
            return None;
        }
        let path = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
        let mut plain = PlainRequest {
            method,
            path_end: u16::try_from(method.target() + path).ok()?,
            target_end: u16::try_from(target_end).ok()?,
            head_end: u16::try_from(bytes.len()).ok()?,
            content_type: None,
            body_bytes: 0,
            closes: false,
            is_from_browser: false,
        };
        let (mut length, mut connection, mut has_host) = (None, None, false);
        for field in request.headers.iter() {
            let line = position(bytes, field.name.as_bytes());
            if bytes[..line].last_chunk::<2>()? != LINE_END {
                return None;
            }
            match FieldMeaning::of(field.name) {
                FieldMeaning::None => {}
                FieldMeaning::NotPlain => return None,
                FieldMeaning::Host if has_host => return None,
                FieldMeaning::Host => has_host = true,
                FieldMeaning::Browser => plain.is_from_browser = true,
                FieldMeaning::ContentType => {
                    let at = position(bytes, field.value);
                    let span = (u16::try_from(at).ok()?, u16::try_from(at + field.value.len()).ok()?);
                    // Of several, the first counts.
                    plain.content_type.get_or_insert(span);
                }
                FieldMeaning::ContentLength if length.is_some() => return None,
                FieldMeaning::ContentLength => length = Some(digits(field.value)?),
                FieldMeaning::Connection if connection.is_some() => return None,
                FieldMeaning::Connection => connection = Some(closes(field.value)?),
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
        text(&bytes[self.method.target()..usize::from(self.path_end)])
    }

    /// What follows the question mark, if there is one.
    pub(super) fn query<'a>(&self, bytes: &'a [u8]) -> Option<&'a str> {
        bytes[usize::from(self.path_end)..usize::from(self.target_end)].strip_prefix(b"?").map(text)
    }

    pub(super) fn content_type<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        self.content_type.map(|(start, end)| &bytes[usize::from(start)..usize::from(end)])
    }

    /// The lines of all fields, each with its CR and LF.
    pub(super) fn fields<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = usize::from(self.target_end) + VERSION.len();
        &bytes[start..usize::from(self.head_end) - LINE_END.len()]
    }

    /// How many bytes the body has. They need not be there yet.
    pub(super) fn body_bytes(&self) -> usize {
        self.body_bytes as usize
    }

    /// The body, which must be there.
    pub(super) fn body<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.body_range()]
    }

    /// How many bytes the request has, with its body.
    pub(super) fn bytes(&self) -> usize {
        self.body_range().end
    }

    /// Whether it is the last on its connection.
    pub(super) fn closes(&self) -> bool {
        self.closes
    }

    /// Whether it has a field by which browsers say where a request comes from.
    pub(super) fn is_from_browser(&self) -> bool {
        self.is_from_browser
    }

    fn body_range(&self) -> Range<usize> {
        let start = usize::from(self.head_end);
        start..start + self.body_bytes()
    }
}

/// The value of a field by its name; of several, the first. `lines` are those of a plain request.
pub(super) fn field<'a>(lines: &'a [u8], name: &str) -> Option<&'a [u8]> {
    values(lines, name).next()
}

/// All values of a field by its name, in order.
pub(super) fn values<'a, 'n>(
    lines: &'a [u8],
    name: &'n str,
) -> impl DoubleEndedIterator<Item = &'a [u8]> + use<'a, 'n> {
    lines.split(|byte| *byte == b'\n').filter_map(|line| {
        let (found, rest) = line.split_at_checked(name.len())?;
        let value = rest.strip_prefix(b":")?;
        found.eq_ignore_ascii_case(name.as_bytes()).then(|| value.trim_ascii())
    })
}

/// Has every field looked at, in order.
pub(super) fn each_field<'a>(lines: &'a [u8], mut look: impl FnMut(&'a [u8], &'a [u8])) {
    let mut rest = lines;
    while let Some(colon) = rest.iter().position(|byte| *byte == b':') {
        let (name, behind) = (&rest[..colon], &rest[colon + 1..]);
        let end = behind.iter().position(|byte| *byte == b'\n').unwrap_or(behind.len());
        look(name, behind[..end].trim_ascii());
        rest = behind.get(end + 1..).unwrap_or_default();
    }
}

/// What a field means to whoever must know where a request ends and what becomes of its connection.
enum FieldMeaning {
    None,
    Host,
    /// It says which web page a request comes from.
    Browser,
    ContentType,
    ContentLength,
    Connection,
    NotPlain,
}

impl FieldMeaning {
    fn of(name: &str) -> FieldMeaning {
        match name.len() {
            2 if is(name, b"te") => FieldMeaning::NotPlain,
            4 if is(name, b"host") => FieldMeaning::Host,
            6 if is(name, b"expect") => FieldMeaning::NotPlain,
            6 if is(name, b"origin") => FieldMeaning::Browser,
            7 if is(name, b"upgrade") => FieldMeaning::NotPlain,
            10 if is(name, b"connection") => FieldMeaning::Connection,
            12 if is(name, b"content-type") => FieldMeaning::ContentType,
            14 if is(name, b"content-length") => FieldMeaning::ContentLength,
            14 if is(name, b"sec-fetch-site") => FieldMeaning::Browser,
            17 if is(name, b"transfer-encoding") => FieldMeaning::NotPlain,
            _ => FieldMeaning::None,
        }
    }
}

/// Whether a name is a known one but for its case. Of a length that is known here, the comparison needs no loop.
#[inline]
fn is<const LENGTH: usize>(name: &str, known: &[u8; LENGTH]) -> bool {
    name.as_bytes().first_chunk::<LENGTH>().is_some_and(|name| {
        (0..LENGTH).fold(true, |is, at| is & (name[at].to_ascii_lowercase() == known[at]))
    })
}

/// Where `part` begins within `whole`, of which it is a part.
fn position(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr() - whole.as_ptr().addr()
}

/// A number as nobody can misread it: digits alone, and no zero ahead of others.
fn digits(value: &[u8]) -> Option<u32> {
    match value {
        [b'0'] => Some(0),
        [b'1'..=b'9', ..] if value.len() <= MAX_LENGTH_DIGITS => value
            .iter()
            .try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + u32::from(byte - b'0'))),
        _ => None,
    }
}

/// Whether a `Connection` field says that its request is the last, if it says no more than that.
fn closes(value: &[u8]) -> Option<bool> {
    let says = |word: &[u8]| value.eq_ignore_ascii_case(word);
    says(b"close").then_some(true).or_else(|| says(b"keep-alive").then_some(false))
}

fn text(target: &[u8]) -> &str {
    str::from_utf8(target).expect("a plain target is ASCII")
}

/// The bytes that RFC 3986 has in a path or a query. Hyper takes a few more, refuses others, and cuts at a `#`.
static IN_TARGET: [bool; 256] = {
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
    fn a_plain_request_is_found_with_its_parts() {
        let bytes =
            b"POST /check?a=b?c HTTP/1.1\r\nHost: test\r\ncontent-TYPE:  a/b \r\nContent-Length: 2\r\n\
            Content-Type: c\r\nConnection: close\r\n\r\n{}GET /";
        let ParsedFront::Plain(plain) = PlainRequest::find(bytes) else { panic!("it is plain") };
        assert_eq!(
            (plain.method(), plain.path(bytes), plain.query(bytes)),
            (PlainMethod::Post, "/check", Some("a=b?c"))
        );
        assert_eq!(plain.content_type(bytes), Some(&b"a/b"[..]));
        assert_eq!((plain.body(bytes), plain.body_bytes(), plain.closes()), (&b"{}"[..], 2, true));
        assert_eq!(&bytes[plain.bytes()..], b"GET /");
        let lines = plain.fields(bytes);
        assert!(lines.starts_with(b"Host: test\r\n") && lines.ends_with(b"Connection: close\r\n"));
        assert_eq!(field(lines, "host"), Some(&b"test"[..]));
        assert_eq!(field(lines, "content-type"), Some(&b"a/b"[..]), "of several, the first");
        assert_eq!((field(lines, "hos"), field(lines, "host:"), field(lines, "")), (None, None, None));

        let bytes = b"GET / HTTP/1.1\r\nHost:\r\n\r\n";
        let ParsedFront::Plain(plain) = PlainRequest::find(bytes) else { panic!("it is plain") };
        assert_eq!((plain.method(), plain.path(bytes), plain.query(bytes)), (PlainMethod::Get, "/", None));
        assert_eq!(
            (plain.body(bytes), plain.fields(bytes), plain.closes()),
            (&[][..], &b"Host:\r\n"[..], false)
        );
        assert!(!plain.is_from_browser());
        for field in ["origin: null", "Sec-Fetch-Site: cross-site"] {
            let text = CHECK.replacen("\r\n", &format!("\r\n{field}\r\n"), 1);
            assert!(
                matches!(PlainRequest::find(text.as_bytes()), ParsedFront::Plain(plain) if plain.is_from_browser())
            );
        }
    }

    #[test]
    fn a_body_may_be_on_its_way() {
        let ParsedFront::Plain(plain) = PlainRequest::find(&CHECK.as_bytes()[..CHECK.len() - 2]) else {
            panic!("it is plain")
        };
        assert_eq!(plain.bytes(), CHECK.len());
    }

    #[test]
    fn what_leaves_a_doubt_is_not_plain() {
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
            assert_eq!(PlainRequest::find(text.as_bytes()), ParsedFront::Other, "{text:?}");
        }
        let fields = |count: usize| CHECK.replacen("\r\n", &format!("\r\n{}", "X: y\r\n".repeat(count)), 1);
        assert!(matches!(PlainRequest::find(fields(62).as_bytes()), ParsedFront::Plain(_)));
        assert_eq!(PlainRequest::find(fields(63).as_bytes()), ParsedFront::Other);
    }

    #[test]
    fn a_head_is_waited_for_up_to_its_bound() {
        for come in 0..CHECK.len() - 2 {
            assert_eq!(PlainRequest::find(&CHECK.as_bytes()[..come]), ParsedFront::Unfinished, "{come}");
        }
        let padded = |bytes: usize| {
            let field = format!("\r\nX: {}\r\n", "y".repeat(bytes - CHECK.len() + 2 - "X: \r\n".len()));
            CHECK.replacen("\r\n", &field, 1).into_bytes()
        };
        let most = padded(MAX_HEAD_BYTES);
        assert_eq!(PlainRequest::find(&most[..MAX_HEAD_BYTES - 1]), ParsedFront::Unfinished);
        assert!(
            matches!(PlainRequest::find(&most), ParsedFront::Plain(plain) if plain.bytes() == MAX_HEAD_BYTES + 2)
        );
        assert_eq!(PlainRequest::find(&padded(MAX_HEAD_BYTES + 1)), ParsedFront::Other);
    }
}

//! Fuzzes the strict HTTP/1 parser: it never panics, and accepts no request whose end is ambiguous.

#[path = "../src/http/strict_h1.rs"]
mod strict_h1;

use strict_h1::{
    MAX_HEAD_BYTES, ParsedFront, PlainMethod, PlainRequest, for_each_header, header, header_values,
};

#[test]
fn plain_requests_of_any_bytes() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes: &Vec<u8>| check(bytes));
}

#[test]
fn plain_requests_of_nearly_valid_pieces() {
    let pieces: [&[u8]; 58] = [
        b"POST ",
        b"GET ",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"PUT ",
        b"/check",
        b"/livez?a=b",
        b"http://a/check",
        b"/a#b",
        b"/\xc3\xa9",
        b"*",
        b" HTTP/1.1\r\n",
        b" HTTP/1.1\n",
        b" HTTP/1.0\r\n",
        b" HTTP/1.1 \r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b"\n\n",
        b"\0",
        b" ",
        b"\t",
        b":",
        b": ",
        b"Content-Length: 18\r\n",
        b"Content-Length: 0\r\n",
        b"content-LENGTH:18\r\n",
        b"Content-Length: +18\r\n",
        b"Content-Length: 018\r\n",
        b"Content-Length: 18, 18\r\n",
        b"Content-Length: 99999999999999999999\r\n",
        b"Content-Length: \r\n",
        b"Content-Length : 18\r\n",
        b"Content-Length: 1\r\n 8\r\n",
        b"Content-Length",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding:\r\n",
        b"transfer-encoding",
        b"TE: trailers\r\n",
        b"Expect: 100-continue\r\n",
        b"Upgrade: h2c\r\n",
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"Connection: upgrade\r\n",
        b"Connection: close, keep-alive\r\n",
        b"Content-Type: application/json\r\n",
        b"Content-Type:\r\n",
        b"Host: a\r\n",
        b"Origin: null\r\n",
        b"Sec-Fetch-Site: none\r\n",
        b"X: y\n",
        b"X:   y  \r\n",
        b"X-\xff: y\r\n",
        b"X: \xff\r\n",
        b"{\"client_key\":\"a\"}",
        b"POST /check HTTP/1.1\r\nHost: a\r\n",
        b"POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\n{\"client_key\":\"a\"}",
        b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    bolero::check!().with_type::<(bool, Vec<u8>)>().for_each(|(begins, choices): &(bool, Vec<u8>)| {
        let begin: &[u8] =
            if *begins { b"POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n" } else { b"" };
        let chosen = choices.iter().flat_map(|choice| pieces[usize::from(*choice) % pieces.len()]);
        check(&begin.iter().chain(chosen).copied().collect::<Vec<u8>>());
    });
}

fn check(bytes: &[u8]) {
    match PlainRequest::parse(bytes) {
        ParsedFront::Plain(plain) => check_plain(&plain, bytes),
        ParsedFront::Partial => assert!(bytes.len() < MAX_HEAD_BYTES),
        ParsedFront::Other => {}
    }
}

/// Parses the head again, slowly, and checks the result against every rule.
fn check_plain(plain: &PlainRequest, bytes: &[u8]) {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("the head is complete") + 4;
    let (head, rest) = bytes.split_at(end);
    assert_eq!(plain.total_bytes(), end + plain.body_bytes());
    assert!(end <= MAX_HEAD_BYTES);
    if rest.len() >= plain.body_bytes() {
        assert_eq!(plain.body(bytes), &rest[..plain.body_bytes()]);
    }

    let mut slots = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut slots);
    assert_eq!(request.parse(bytes), Ok(httparse::Status::Complete(end)));

    // Lines end with CR LF only, and contain no other control characters than tabs.
    let head = head.strip_suffix(b"\r\n\r\n").expect("the head ends with an empty line");
    let lines: Vec<&[u8]> = split(head);
    assert!(lines.iter().all(|line| line.iter().all(|byte| *byte >= b' ' && *byte != 127 || *byte == b'\t')));

    let query = plain.query(bytes).map_or_else(String::new, |query| format!("?{query}"));
    let method = plain.method().as_str();
    assert_eq!(lines[0], format!("{method} {}{query} HTTP/1.1", plain.path(bytes)).as_bytes());
    assert!(plain.path(bytes).starts_with('/') && !plain.path(bytes).contains(['?', '#', ' ']));
    assert!(plain.path(bytes).is_ascii() && query.is_ascii());

    assert!(lines.len() <= 65);
    assert_eq!(
        plain.header_lines(bytes),
        lines[1..].iter().flat_map(|line| [line, &b"\r\n"[..]].concat()).collect::<Vec<_>>()
    );
    let fields: Vec<(String, &[u8])> = lines[1..]
        .iter()
        .map(|line| {
            let colon = line.iter().position(|byte| *byte == b':').expect("a header has a colon");
            assert!(
                colon > 0 && line[..colon].iter().all(u8::is_ascii_graphic),
                "a header name has no blanks"
            );
            (String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase(), line[colon + 1..].trim_ascii())
        })
        .collect();
    let all = |name: &str| -> Vec<&[u8]> {
        fields.iter().filter(|field| field.0 == name).map(|field| field.1).collect()
    };
    assert_eq!(all("host").len(), 1, "exactly one Host header");
    assert_eq!(plain.is_from_browser(), !all("origin").is_empty() || !all("sec-fetch-site").is_empty());
    for (name, _) in &fields {
        assert_eq!(header(plain.header_lines(bytes), name), all(name).first().copied());
        assert_eq!(header_values(plain.header_lines(bytes), name).collect::<Vec<_>>(), all(name));
    }
    let mut each = fields.iter();
    for_each_header(plain.header_lines(bytes), |name, value| {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        assert_eq!(each.next(), Some(&(name, value)));
    });
    assert_eq!(each.next(), None);
    assert_eq!(plain.content_type(bytes), all("content-type").first().copied());
    for name in ["transfer-encoding", "te", "expect", "upgrade"] {
        assert!(all(name).is_empty(), "{name}");
    }
    let length = plain.body_bytes().to_string();
    match all("content-length")[..] {
        [] => assert_eq!((plain.method(), plain.body_bytes()), (PlainMethod::Get, 0)),
        [found] => assert_eq!(found, length.as_bytes()),
        _ => panic!("two Content-Length headers"),
    }
    assert!(plain.method() == PlainMethod::Post || plain.body_bytes() == 0);
    match all("connection")[..] {
        [] => assert!(!plain.closes()),
        [found] => {
            let expected: &[u8] = if plain.closes() { b"close" } else { b"keep-alive" };
            assert!(found.eq_ignore_ascii_case(expected));
        }
        _ => panic!("two Connection headers"),
    }

    // Every prefix of the head is incomplete, and bytes after the head do not change the result.
    for arrived in 0..end {
        assert_eq!(PlainRequest::parse(&bytes[..arrived]), ParsedFront::Partial, "with {arrived} bytes");
    }
    assert_eq!(PlainRequest::parse(&bytes[..end]), ParsedFront::Plain(*plain));
}

/// Splits at every CR LF, and at no lone CR or LF.
fn split(head: &[u8]) -> Vec<&[u8]> {
    let (mut lines, mut rest) = (Vec::new(), head);
    while let Some(at) = rest.windows(2).position(|window| window == b"\r\n") {
        lines.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    lines.push(rest);
    lines
}

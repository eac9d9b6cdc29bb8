//! Percent-encoding of URL parts, and validation of names.

use std::borrow::Cow;

/// Decodes a name or a value of a query. One without escapes, as nearly all are, is not copied; an invalid escape is
/// kept as it is.
pub(super) fn percent_decode(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(bytes);
    }
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let byte = match (first, hex_byte(after)) {
            (b'%', Some(byte)) => {
                rest = &after[2..];
                byte
            }
            (b'+', _) => b' ',
            (byte, _) => *byte,
        };
        plain.push(byte);
    }
    Cow::Owned(plain)
}

/// The byte that two hexadecimal digits encode.
fn hex_byte(digits: &[u8]) -> Option<u8> {
    let [high, low, ..] = digits else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}

/// A path as text. Invalid UTF-8 is percent-encoded, as the client should have sent it.
pub(super) fn escape_invalid_utf8(path: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = str::from_utf8(path) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(path.len() + 16);
    for chunk in path.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("%{byte:02X}")));
    }
    Cow::Owned(text)
}

/// Whether text is a valid HTTP token: the name of a header or a method.
pub(super) fn is_token(text: &str) -> bool {
    let is_token_byte = |byte: u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
    };
    !text.is_empty() && text.bytes().all(is_token_byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_utf8_in_a_path_is_escaped() {
        assert!(matches!(escape_invalid_utf8("/café".as_bytes()), Cow::Borrowed("/café")));
        assert_eq!(escape_invalid_utf8(b"/caf\xe9/\xc3"), "/caf%E9/%C3");
        assert_eq!(escape_invalid_utf8("/é\u{fffd}".as_bytes()), "/é\u{fffd}");
    }

    #[test]
    fn names_are_http_tokens() {
        let all: String = (0..128_u8).map(char::from).filter(|c| is_token(&c.to_string())).collect();
        assert_eq!(all, "!#$%&'*+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ^_`abcdefghijklmnopqrstuvwxyz|~");
        assert!(!is_token("") && !is_token("é") && !is_token("a b"));
    }

    #[test]
    fn escapes_are_decoded_once() {
        assert!(matches!(percent_decode(b"abc"), Cow::Borrowed(b"abc")));
        assert_eq!(&*percent_decode(b"a%2541+%e9%"), b"a%41 \xe9%");
    }
}

//! Percent escapes in what comes from a URL.

use std::borrow::Cow;

/// A name or a value of a query without its escapes. What has none, as nearly all, is not copied; what only looks like an
/// escape stays as it is.
pub(super) fn decoded(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(bytes);
    }
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        let byte = match (first, hex(behind)) {
            (b'%', Some(byte)) => {
                rest = &behind[2..];
                byte
            }
            (b'+', _) => b' ',
            (byte, _) => *byte,
        };
        plain.push(byte);
    }
    Cow::Owned(plain)
}

/// The byte that two hexadecimal digits stand for.
fn hex(digits: &[u8]) -> Option<u8> {
    let [high, low, ..] = digits else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}

/// A path as text: bytes that are none are escaped, as a client that knows the rules would have sent them.
pub(super) fn as_text(path: &[u8]) -> Cow<'_, str> {
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

/// Whether text is what HTTP has for names of fields and methods.
pub(super) fn is_name(text: &str) -> bool {
    let is_in_names = |byte: u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
    };
    !text.is_empty() && text.bytes().all(is_in_names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_no_text_is_escaped() {
        assert!(matches!(as_text("/café".as_bytes()), Cow::Borrowed("/café")));
        assert_eq!(as_text(b"/caf\xe9/\xc3"), "/caf%E9/%C3");
        assert_eq!(as_text("/é\u{fffd}".as_bytes()), "/é\u{fffd}");
    }

    #[test]
    fn names_are_those_of_http() {
        let all: String = (0..128_u8).map(char::from).filter(|c| is_name(&c.to_string())).collect();
        assert_eq!(all, "!#$%&'*+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ^_`abcdefghijklmnopqrstuvwxyz|~");
        assert!(!is_name("") && !is_name("é") && !is_name("a b"));
    }

    #[test]
    fn escapes_are_undone_once() {
        assert!(matches!(decoded(b"abc"), Cow::Borrowed(b"abc")));
        assert_eq!(&*decoded(b"a%2541+%e9%"), b"a%41 \xe9%");
    }
}

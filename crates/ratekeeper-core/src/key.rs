//! Whom a draw is counted for.
//!
//! A key is made of parts (`user:42`, `/v1/orders`). However the parts are spelled, two different keys never meet:
//! inside, every part of a key of several carries its length; in text, whatever separates parts is escaped in them.

use std::fmt::{self, Write};
use std::str::FromStr;

/// The most bytes that the parts of a [`Key`] may have together.
pub const MAX_KEY_BYTES: usize = 4096;
/// The most parts that a [`Key`] may have.
pub const MAX_KEY_PARTS: usize = 16;

/// Whom a draw is counted for: one part or several.
///
/// ```
/// use ratekeeper_core::Key;
///
/// let key = Key::new(["tenant:7", "/v1/orders"])?;
/// assert_eq!(key.to_string(), "tenant%3A7:/v1/orders");
/// assert_eq!("tenant%3A7:/v1/orders".parse::<Key>()?, key);
/// # Ok::<(), ratekeeper_core::KeyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    bytes: Box<[u8]>,
    shape: KeyShape,
}

impl Key {
    /// A key of these parts.
    ///
    /// # Errors
    /// If there are none, too many, or too long ones.
    pub fn new<'a>(parts: impl IntoIterator<Item = &'a str>) -> Result<Key, KeyError> {
        let mut parts = parts.into_iter();
        let first = parts.next().ok_or(KeyError::NoParts)?;
        let mut bytes = Vec::new();
        let mut shape = KeyShape::One;
        match parts.next() {
            None => bytes.extend_from_slice(first.as_bytes()),
            Some(second) => {
                shape = KeyShape::Several;
                for (index, part) in [first, second].into_iter().chain(parts).enumerate() {
                    if index == MAX_KEY_PARTS {
                        return Err(KeyError::TooManyParts);
                    }
                    push_part(&mut bytes, part)?;
                }
            }
        }
        if bytes.len() > MAX_KEY_BYTES {
            return Err(KeyError::TooLong { bytes: bytes.len() });
        }
        Ok(Key { bytes: bytes.into(), shape })
    }

    /// The same key, borrowed.
    pub fn borrow(&self) -> KeyRef<'_> {
        KeyRef { bytes: &self.bytes, shape: self.shape }
    }
}

fn push_part(bytes: &mut Vec<u8>, part: &str) -> Result<(), KeyError> {
    let too_long = || KeyError::TooLong { bytes: part.len() };
    let length =
        u16::try_from(part.len()).ok().filter(|_| part.len() <= MAX_KEY_BYTES).ok_or_else(too_long)?;
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(part.as_bytes());
    Ok(())
}

/// Writes parts as a [`Key`] of them has them, and says of which shape it is.
///
/// # Panics
/// If there are none.
pub(crate) fn encode_parts<'a>(mut parts: impl Iterator<Item = &'a str>, bytes: &mut Vec<u8>) -> KeyShape {
    let first = parts.next().expect("a key has at least one part");
    let Some(second) = parts.next() else {
        bytes.extend_from_slice(first.as_bytes());
        return KeyShape::One;
    };
    for part in [first, second].into_iter().chain(parts) {
        let part = &part[..part.floor_char_boundary(usize::from(u16::MAX))];
        let length = u16::try_from(part.len()).expect("it was cut to what two bytes can count");
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    KeyShape::Several
}

/// Which of several limits under the same key is meant: each scope has a state of its own.
///
/// Whoever puts a key under several limits numbers them; the numbers must outlive a change of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope(pub u64);

/// A borrowed key. Any text is a key of one part as it stands, at no cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyRef<'a> {
    bytes: &'a [u8],
    shape: KeyShape,
}

/// How the bytes of a key are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KeyShape {
    /// One part, as it is.
    One,
    /// Parts, each behind its length in two bytes.
    Several,
}

impl<'a> KeyRef<'a> {
    #[inline]
    pub(crate) fn of(bytes: &'a [u8], shape: KeyShape) -> KeyRef<'a> {
        KeyRef { bytes, shape }
    }

    /// The bytes that tell it from every other key of its shape.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether it has several parts. Keys that differ in this differ, even where their bytes are the same.
    #[inline]
    pub fn has_several_parts(&self) -> bool {
        self.shape == KeyShape::Several
    }

    #[inline]
    pub(crate) fn shape(&self) -> KeyShape {
        self.shape
    }

    /// The same key, owned.
    pub fn to_key(&self) -> Key {
        Key { bytes: self.bytes.into(), shape: self.shape }
    }

    /// Its parts, first to last.
    pub fn parts(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let (mut rest, shape) = (Some(self.bytes), self.shape);
        std::iter::from_fn(move || {
            let bytes = rest?;
            let part = match shape {
                KeyShape::One => {
                    rest = None;
                    bytes
                }
                KeyShape::Several => {
                    let (length, behind) = bytes.split_first_chunk()?;
                    let (part, behind) = behind.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
                    rest = Some(behind);
                    part
                }
            };
            // Every part of a key came from a `str`, so none is lost here.
            std::str::from_utf8(part).ok()
        })
    }
}

impl<'a> From<&'a str> for KeyRef<'a> {
    #[inline]
    fn from(text: &'a str) -> KeyRef<'a> {
        KeyRef { bytes: text.as_bytes(), shape: KeyShape::One }
    }
}

impl<'a> From<&'a String> for KeyRef<'a> {
    #[inline]
    fn from(text: &'a String) -> KeyRef<'a> {
        text.as_str().into()
    }
}

impl<'a> From<&'a Key> for KeyRef<'a> {
    fn from(key: &'a Key) -> KeyRef<'a> {
        key.borrow()
    }
}

/// Parts joined by `:`; a `:`, `%`, `{`, `}`, space or control character inside a part is written `%XX`.
impl fmt::Display for KeyRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.parts().enumerate() {
            if index > 0 {
                f.write_char(':')?;
            }
            for c in part.chars() {
                match c {
                    ':' | '%' | '{' | '}' | ' ' | '\0'..='\x1f' | '\x7f' => {
                        write!(f, "%{:02X}", u32::from(c))?;
                    }
                    c => f.write_char(c)?,
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.borrow().fmt(f)
    }
}

/// Reads what [`Display`](fmt::Display) writes; any byte may be written `%XX`.
impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Key, KeyError> {
        let parts = text.split(':').take(MAX_KEY_PARTS + 1).map(unescape).collect::<Result<Vec<_>, _>>()?;
        Key::new(parts.iter().map(String::as_str))
    }
}

fn unescape(part: &str) -> Result<String, KeyError> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.split_first_chunk::<2>().and_then(|(digits, behind)| {
            rest = behind;
            let high = char::from(digits[0]).to_digit(16)?;
            let low = char::from(digits[1]).to_digit(16)?;
            u8::try_from(high * 16 + low).ok()
        });
        bytes.push(digits.ok_or(KeyError::Escape)?);
    }
    String::from_utf8(bytes).map_err(|_| KeyError::NotUtf8)
}

/// Why a key could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It has no parts.
    #[error("a key needs at least one part")]
    NoParts,
    /// It has too many parts.
    #[error("a key has at most {MAX_KEY_PARTS} parts: leave out what does not tell clients apart")]
    TooManyParts,
    /// It is too long.
    #[error("a key has at most {MAX_KEY_BYTES} bytes, not {bytes}: send a name or a hash, not the content")]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// A `%` is not followed by two hexadecimal digits.
    #[error("a % in a key must be followed by two hexadecimal digits: write %25 for the % itself")]
    Escape,
    /// The escapes do not make up text.
    #[error("the escapes in the key do not make up UTF-8 text: escape text, not raw bytes")]
    NotUtf8,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key<const N: usize>(parts: [&str; N]) -> Key {
        Key::new(parts).expect("the parts make a key")
    }

    /// Trap: parts joined by a bare separator, so that two keys meet.
    #[test]
    fn keys_that_read_alike_stay_apart() {
        let keys = [
            key(["a:b"]),
            key(["a", "b"]),
            key(["a", "b", ""]),
            key(["", "a", "b"]),
            key(["a%3Ab"]),
            key(["ab"]),
            key(["a", "", "b"]),
            key(["\u{1}\0a\u{1}\0b"]),
        ];
        for (index, one) in keys.iter().enumerate() {
            for other in &keys[index + 1..] {
                assert_ne!(one, other);
                assert_ne!(one.to_string(), other.to_string());
            }
        }
    }

    #[test]
    fn parts_come_back_as_they_went_in() {
        for parts in [vec!["a"], vec![""], vec!["", ""], vec!["user:1", "/x y/{id}", "100%", "ü\n"]] {
            let key = Key::new(parts.iter().copied()).expect("the parts make a key");
            assert_eq!(key.borrow().parts().collect::<Vec<_>>(), parts);
            assert_eq!(key.to_string().parse(), Ok(key));
        }
        assert_eq!(KeyRef::from("a:b"), key(["a:b"]).borrow());
        assert_eq!(
            (KeyRef::from("a:b").bytes(), KeyRef::from("a:b").has_several_parts()),
            (&b"a:b"[..], false)
        );
        assert!(key(["a", "b"]).borrow().has_several_parts());
        assert_eq!(KeyRef::from(&key(["a", "b"])).to_key(), key(["a", "b"]));
        assert_eq!(KeyRef::from(&"a".to_owned()).parts().collect::<Vec<_>>(), ["a"]);
        assert_eq!("a%c3%BC".parse::<Key>(), Ok(key(["aü"])));
    }

    #[test]
    fn bad_keys_are_refused_with_a_reason() {
        let long = "x".repeat(MAX_KEY_BYTES);
        assert_eq!(Key::new([]), Err(KeyError::NoParts));
        assert!(Key::new([long.as_str()]).is_ok());
        assert_eq!(Key::new([format!("{long}x").as_str()]), Err(KeyError::TooLong { bytes: 4097 }));
        assert_eq!(Key::new([long.as_str(), ""]), Err(KeyError::TooLong { bytes: 4100 }));
        assert_eq!(Key::new(["a", "x".repeat(70_000).as_str()]), Err(KeyError::TooLong { bytes: 70_000 }));
        assert!(Key::new([""; MAX_KEY_PARTS]).is_ok());
        assert_eq!(Key::new([""; MAX_KEY_PARTS + 1]), Err(KeyError::TooManyParts));
        assert_eq!(":".repeat(1 << 20).parse::<Key>(), Err(KeyError::TooManyParts));
        for bad in ["%", "a%2", "%zz", "%+1"] {
            assert_eq!(bad.parse::<Key>(), Err(KeyError::Escape), "{bad}");
        }
        assert_eq!("%ff".parse::<Key>(), Err(KeyError::NotUtf8));
    }
}

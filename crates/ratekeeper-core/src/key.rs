//! Keys: the clients or resources that draws are counted for.
//!
//! A key consists of parts (`user:42`, `/v1/orders`). Different keys never collide, whatever characters their parts
//! contain: in binary form every part of a composite key is prefixed with its length; in text form the separator is
//! escaped within parts.

use std::fmt::{self, Write};
use std::str::FromStr;

/// The maximum length of a [`Key`] in bytes, over all its parts.
pub const MAX_KEY_BYTES: usize = 4096;
/// The maximum number of parts of a [`Key`].
pub const MAX_KEY_PARTS: usize = 16;

/// A client or resource that draws are counted for, made of one or more parts.
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
    /// Creates a key from its parts.
    ///
    /// # Errors
    /// Returns an error if there is no part, if there are more than [`MAX_KEY_PARTS`], or if they are longer than
    /// [`MAX_KEY_BYTES`].
    pub fn new<'a>(parts: impl IntoIterator<Item = &'a str>) -> Result<Key, KeyError> {
        let mut parts = parts.into_iter();
        let first = parts.next().ok_or(KeyError::NoParts)?;
        let mut bytes = Vec::new();
        let mut shape = KeyShape::Single;
        match parts.next() {
            None => bytes.extend_from_slice(first.as_bytes()),
            Some(second) => {
                shape = KeyShape::Composite;
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

    /// Returns a borrowed form of the key.
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

/// Appends parts in the binary form of a [`Key`] and returns the shape of that key.
///
/// # Panics
/// Panics if there is no part.
pub(crate) fn encode_parts<'a>(mut parts: impl Iterator<Item = &'a str>, bytes: &mut Vec<u8>) -> KeyShape {
    let first = parts.next().expect("a key has at least one part");
    let Some(second) = parts.next() else {
        bytes.extend_from_slice(first.as_bytes());
        return KeyShape::Single;
    };
    for part in [first, second].into_iter().chain(parts) {
        let part = &part[..part.floor_char_boundary(usize::from(u16::MAX))];
        let length = u16::try_from(part.len()).expect("the part was truncated to 65535 bytes");
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    KeyShape::Composite
}

/// Distinguishes several limits under the same key: each scope has its own state.
///
/// The caller numbers the limits of a key. The numbers must stay the same when the rules change, or the state is
/// lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope(pub u64);

/// A borrowed [`Key`]. Any `&str` converts into a key of one part at no cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyRef<'a> {
    bytes: &'a [u8],
    shape: KeyShape,
}

/// How the bytes of a key are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KeyShape {
    /// One part, stored as is.
    Single,
    /// Several parts, each prefixed with its length in two bytes, little-endian.
    Composite,
}

impl<'a> KeyRef<'a> {
    #[inline]
    pub(crate) fn from_bytes(bytes: &'a [u8], shape: KeyShape) -> KeyRef<'a> {
        KeyRef { bytes, shape }
    }

    /// Returns the bytes of the key. They identify it among keys with the same
    /// [`is_composite`](KeyRef::is_composite).
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns whether the key has several parts. A key of one part differs from a composite key even if their
    /// bytes are equal.
    #[inline]
    pub fn is_composite(&self) -> bool {
        self.shape == KeyShape::Composite
    }

    #[inline]
    pub(crate) fn shape(&self) -> KeyShape {
        self.shape
    }

    /// Returns an owned copy of the key.
    pub fn to_key(&self) -> Key {
        Key { bytes: self.bytes.into(), shape: self.shape }
    }

    /// Returns the parts in order.
    pub fn parts(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let (mut rest, shape) = (Some(self.bytes), self.shape);
        std::iter::from_fn(move || {
            let bytes = rest?;
            let part = match shape {
                KeyShape::Single => {
                    rest = None;
                    bytes
                }
                KeyShape::Composite => {
                    let (length, behind) = bytes.split_first_chunk()?;
                    let (part, behind) = behind.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
                    rest = Some(behind);
                    part
                }
            };
            // Every part of a key came from a `str`, so this never fails.
            std::str::from_utf8(part).ok()
        })
    }
}

impl<'a> From<&'a str> for KeyRef<'a> {
    #[inline]
    fn from(text: &'a str) -> KeyRef<'a> {
        KeyRef { bytes: text.as_bytes(), shape: KeyShape::Single }
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

/// Writes the parts joined by `:`. A `:`, `%`, `{`, `}`, space or control character within a part is written as
/// `%XX`.
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

/// Parses the form that [`Display`](fmt::Display) writes. Any byte may be written as `%XX`.
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
        bytes.push(digits.ok_or(KeyError::InvalidEscape)?);
    }
    String::from_utf8(bytes).map_err(|_| KeyError::NotUtf8)
}

/// An error in the parts or the text of a [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key has no parts.
    #[error("a key needs at least one part")]
    NoParts,
    /// The key has more than [`MAX_KEY_PARTS`] parts.
    #[error("a key has at most {MAX_KEY_PARTS} parts: leave out parts that do not distinguish clients")]
    TooManyParts,
    /// The key is longer than [`MAX_KEY_BYTES`].
    #[error("a key has at most {MAX_KEY_BYTES} bytes, not {bytes}: send a name or a hash, not the content")]
    TooLong {
        /// The length of the key or of its longest part in bytes.
        bytes: usize,
    },
    /// A `%` is not followed by two hexadecimal digits.
    #[error("a % in a key must be followed by two hexadecimal digits: write %25 for the % itself")]
    InvalidEscape,
    /// The unescaped bytes are not UTF-8.
    #[error("the escapes in the key do not decode to UTF-8: escape text, not raw bytes")]
    NotUtf8,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key<const N: usize>(parts: [&str; N]) -> Key {
        Key::new(parts).expect("the parts are valid")
    }

    /// Trap: parts joined by a bare separator, so that two keys collide.
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
    fn parts_survive_a_round_trip() {
        for parts in [vec!["a"], vec![""], vec!["", ""], vec!["user:1", "/x y/{id}", "100%", "ü\n"]] {
            let key = Key::new(parts.iter().copied()).expect("the parts are valid");
            assert_eq!(key.borrow().parts().collect::<Vec<_>>(), parts);
            assert_eq!(key.to_string().parse(), Ok(key));
        }
        assert_eq!(KeyRef::from("a:b"), key(["a:b"]).borrow());
        assert_eq!((KeyRef::from("a:b").bytes(), KeyRef::from("a:b").is_composite()), (&b"a:b"[..], false));
        assert!(key(["a", "b"]).borrow().is_composite());
        assert_eq!(KeyRef::from(&key(["a", "b"])).to_key(), key(["a", "b"]));
        assert_eq!(KeyRef::from(&"a".to_owned()).parts().collect::<Vec<_>>(), ["a"]);
        assert_eq!("a%c3%BC".parse::<Key>(), Ok(key(["aü"])));
    }

    #[test]
    fn invalid_keys_are_rejected_with_a_reason() {
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
            assert_eq!(bad.parse::<Key>(), Err(KeyError::InvalidEscape), "{bad}");
        }
        assert_eq!("%ff".parse::<Key>(), Err(KeyError::NotUtf8));
    }
}

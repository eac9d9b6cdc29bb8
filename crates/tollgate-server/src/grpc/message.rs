//! Protobuf messages, read where they lie.
//!
//! What is asked on the hot path is read field by field from the bytes that came, without a copy: the messages that are
//! generated from the same `.proto` files would allocate every text, and refuse text that is not UTF-8 before anybody could
//! say what is wrong with it. A test holds the two together.

use std::borrow::Cow;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// A field's value, as far as the wire tells what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    /// A whole number, a choice or a truth.
    Number(u64),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
    /// Four or eight bytes that nothing here has a use for.
    Fixed,
}

impl<'a> Value<'a> {
    pub(super) fn number(self) -> Result<u64, Malformed> {
        match self {
            Value::Number(number) => Ok(number),
            Value::Bytes(_) | Value::Fixed => Err(Malformed),
        }
    }

    pub(super) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Number(_) | Value::Fixed => Err(Malformed),
        }
    }

    /// Text, whatever it takes: what is not UTF-8 is replaced, so that nobody escapes a limit by sending it.
    pub(super) fn text(self) -> Result<Cow<'a, str>, Malformed> {
        self.bytes().map(String::from_utf8_lossy)
    }

    /// A message.
    pub(super) fn fields(self) -> Result<Fields<'a>, Malformed> {
        self.bytes().map(Fields::of)
    }
}

/// The fields of a message, each with its number, in the order in which they came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    #[inline]
    pub(super) fn of(message: &'a [u8]) -> Fields<'a> {
        Fields { rest: message }
    }

    /// The next field; nothing behind the last.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| *number != 0).ok_or(Malformed)?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                Value::Bytes(self.take(length)?)
            }
            1 => self.take(8).map(|_| Value::Fixed)?,
            5 => self.take(4).map(|_| Value::Fixed)?,
            // Groups were given up long before the first of our messages.
            _ => return Err(Malformed),
        };
        Ok(Some((number, value)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A number in groups of seven bits, the lowest first: nearly always one byte.
    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        match self.rest {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for (index, byte) in self.rest.iter().take(10).enumerate() {
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if index == 9 && *byte > 1 {
                return Err(Malformed);
            }
            value |= bits << (7 * index);
            if *byte < 0x80 {
                self.rest = &self.rest[index + 1..];
                return Ok(value);
            }
        }
        Err(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Malformed> {
        let (mut fields, mut found) = (Fields::of(bytes), Vec::new());
        while let Some(field) = fields.next()? {
            found.push(field);
        }
        Ok(found)
    }

    #[test]
    fn fields_come_in_their_order() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x0d, 1, 2, 3, 4, 0x11, 1, 2, 3, 4, 5, 6, 7, 8];
        let expected =
            [(1, Value::Number(150)), (2, Value::Bytes(b"hi")), (1, Value::Fixed), (2, Value::Fixed)];
        assert_eq!(all(&bytes).unwrap(), expected);
        assert_eq!(all(b""), Ok(vec![]));
        let largest = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(all(&largest).unwrap(), [(1, Value::Number(u64::MAX))]);
    }

    #[test]
    fn what_is_cut_off_or_too_long_is_no_message() {
        for bytes in [
            &[0x08][..],
            &[0x08, 0x80],
            &[0x12, 2, b'h'],
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x0d, 1, 2, 3],
            &[0x11, 1],
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
            &[0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00],
            &[0x00, 0x00],
            &[0x0b],
            &[0x0c],
            &[0x0e],
        ] {
            assert_eq!(all(bytes), Err(Malformed), "{bytes:x?}");
        }
    }
}

//! Protobuf messages, read where they lie and written where they leave from.
//!
//! What is asked is read field by field from the bytes that came, and an answer is written straight behind the last,
//! without a copy: the messages that are generated from the same `.proto` files would allocate every text, and refuse text
//! that is not UTF-8 before anybody could say what is wrong with it. Tests hold the two together.

use std::borrow::Cow;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageError;

/// A field's value, as far as the wire tells what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldValue<'a> {
    /// A whole number, a choice or a truth.
    Number(u64),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
    /// Four or eight bytes that nothing here has a use for.
    Fixed,
}

impl<'a> FieldValue<'a> {
    pub(super) fn number(self) -> Result<u64, MessageError> {
        match self {
            FieldValue::Number(number) => Ok(number),
            FieldValue::Bytes(_) | FieldValue::Fixed => Err(MessageError),
        }
    }

    pub(super) fn bytes(self) -> Result<&'a [u8], MessageError> {
        match self {
            FieldValue::Bytes(bytes) => Ok(bytes),
            FieldValue::Number(_) | FieldValue::Fixed => Err(MessageError),
        }
    }

    /// Text, whatever it takes: what is not UTF-8 is replaced, so that nobody escapes a limit by sending it.
    pub(super) fn text(self) -> Result<Cow<'a, str>, MessageError> {
        self.bytes().map(String::from_utf8_lossy)
    }

    /// A message.
    pub(super) fn fields(self) -> Result<MessageFields<'a>, MessageError> {
        self.bytes().map(MessageFields::of)
    }
}

/// The fields of a message, each with its number, in the order in which they came.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageFields<'a> {
    rest: &'a [u8],
}

impl<'a> MessageFields<'a> {
    #[inline]
    pub(super) fn of(message: &'a [u8]) -> MessageFields<'a> {
        MessageFields { rest: message }
    }

    /// The next field; nothing behind the last.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<(u32, FieldValue<'a>)>, MessageError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = u32::try_from(self.varint()?).map_err(|_| MessageError)?;
        let number = tag >> 3;
        let value = match tag & 7 {
            _ if number == 0 => return Err(MessageError),
            0 => FieldValue::Number(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| MessageError)?;
                FieldValue::Bytes(self.take(length)?)
            }
            1 => self.take(8).map(|_| FieldValue::Fixed)?,
            5 => self.take(4).map(|_| FieldValue::Fixed)?,
            // Groups were given up long before the first of our messages.
            _ => return Err(MessageError),
        };
        Ok(Some((number, value)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], MessageError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(MessageError)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A number in groups of seven bits, the lowest first: nearly always one byte.
    #[inline]
    fn varint(&mut self) -> Result<u64, MessageError> {
        match self.rest {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, MessageError> {
        let mut value = 0;
        for (index, byte) in self.rest.iter().take(10).enumerate() {
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if index == 9 && *byte > 1 {
                return Err(MessageError);
            }
            value |= bits << (7 * index);
            if *byte < 0x80 {
                self.rest = &self.rest[index + 1..];
                return Ok(value);
            }
        }
        Err(MessageError)
    }
}

/// Writes a whole number, a choice or a truth. Where 0 means nothing, the caller leaves it out.
#[inline]
pub(super) fn put_number(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(field << 3);
    put_varint(out, value);
}

/// Writes text or bytes, unless there are none.
#[inline]
pub(super) fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.push(field << 3 | 2);
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }
}

/// Writes the message that `write` writes.
#[inline]
pub(super) fn put_message(out: &mut Vec<u8>, field: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&[field << 3 | 2, 0]);
    let start = out.len();
    write(out);
    let length = out.len() - start;
    match u8::try_from(length) {
        Ok(length @ ..0x80) => out[start - 1] = length,
        // There is room for the length of a short message, as nearly all are; a longer one makes way.
        Ok(_) | Err(_) => {
            put_varint(out, length as u64);
            let size = out.len() - start - length;
            out[start - 1..].rotate_right(size);
            out.remove(start - 1 + size);
        }
    }
}

#[inline]
fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<(u32, FieldValue<'_>)>, MessageError> {
        let (mut fields, mut found) = (MessageFields::of(bytes), Vec::new());
        while let Some(field) = fields.next()? {
            found.push(field);
        }
        Ok(found)
    }

    #[test]
    fn fields_come_in_their_order() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x0d, 1, 2, 3, 4, 0x11, 1, 2, 3, 4, 5, 6, 7, 8];
        let expected = [
            (1, FieldValue::Number(150)),
            (2, FieldValue::Bytes(b"hi")),
            (1, FieldValue::Fixed),
            (2, FieldValue::Fixed),
        ];
        assert_eq!(all(&bytes).unwrap(), expected);
        assert_eq!(all(b""), Ok(vec![]));
        let largest = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(all(&largest).unwrap(), [(1, FieldValue::Number(u64::MAX))]);
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
            // The number of a field has 29 bits.
            &[0x88, 0x80, 0x80, 0x80, 0x10, 0x00],
            &[0x0b],
            &[0x0c],
            &[0x0e],
        ] {
            assert_eq!(all(bytes), Err(MessageError), "{bytes:x?}");
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        for length in [0, 1, 127, 128, 129, 300, 16_383, 16_384, 70_000] {
            let text = vec![b'x'; length];
            let mut out = b"before".to_vec();
            put_message(&mut out, 3, |out| {
                put_number(out, 1, length as u64);
                put_message(out, 2, |out| put_bytes(out, 4, &text));
                put_number(out, 15, u64::MAX);
            });
            put_number(&mut out, 2, 0);
            let found = all(&out[6..]).unwrap();
            let [(3, message), (2, FieldValue::Number(0))] = found[..] else { panic!("{length}: {found:?}") };
            let found = all(message.bytes().unwrap()).unwrap();
            let [(1, FieldValue::Number(number)), (2, inner), (15, FieldValue::Number(u64::MAX))] = found[..]
            else {
                panic!("{length}: {found:?}")
            };
            assert_eq!(number, length as u64);
            let expected = if length == 0 { vec![] } else { vec![(4, FieldValue::Bytes(&text[..]))] };
            assert_eq!(all(inner.bytes().unwrap()).unwrap(), expected);
        }
    }
}

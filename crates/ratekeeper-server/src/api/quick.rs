//! Reading what nearly all clients send, quickly.
//!
//! It knows one way to write a check: an object of fields in any order, text without escapes, a cost in digits. Of
//! anything else it says nothing at all, and the whole body is read again by the book, which also finds the words for
//! what is wrong. What it does read, the other reads alike: a test holds the two together.

use super::body::MAX_ENDPOINT_CHARS;
use ratekeeper::MAX_KEY_BYTES;
use ratekeeper::rules::CheckRequest;

/// Reads a body that is a single check.
#[inline]
pub(crate) fn check(body: &[u8]) -> Option<CheckRequest<'_>> {
    let mut cursor = Cursor::new(body)?;
    let check = cursor.check()?;
    cursor.space();
    cursor.is_done().then_some(check)
}

/// Reads a body that is a batch, and hands over each check. On `None`, some may have been handed over in vain.
pub(crate) fn batch<'a>(
    body: &'a [u8],
    most: usize,
    mut take: impl FnMut(&CheckRequest<'a>),
) -> Option<usize> {
    let mut cursor = Cursor::new(body)?;
    cursor.space();
    cursor.byte(b'{')?;
    cursor.space();
    if cursor.text()? != "checks" {
        return None;
    }
    cursor.colon()?;
    cursor.byte(b'[')?;
    cursor.space();
    let mut count = 0;
    if cursor.peek() != Some(b']') {
        loop {
            take(&cursor.check()?);
            count += 1;
            if count > most {
                return None;
            }
            cursor.space();
            match cursor.next()? {
                b',' => {}
                b']' => break,
                _ => return None,
            }
        }
    } else {
        cursor.next();
    }
    cursor.space();
    cursor.byte(b'}')?;
    cursor.space();
    cursor.is_done().then_some(count)
}

struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(body: &'a [u8]) -> Option<Cursor<'a>> {
        std::str::from_utf8(body).ok().map(|text| Cursor { text, at: 0 })
    }

    #[inline]
    fn check(&mut self) -> Option<CheckRequest<'a>> {
        let (mut client_key, mut endpoint, mut cost) = (None, None, None);
        self.space();
        self.byte(b'{')?;
        self.space();
        loop {
            let field = self.text()?;
            self.colon()?;
            let is_first = match field {
                "client_key" => client_key.replace(self.bounded(1, MAX_KEY_BYTES)?).is_none(),
                "endpoint" => endpoint.replace(self.bounded(0, MAX_ENDPOINT_CHARS)?).is_none(),
                "cost" => cost.replace(self.number()?).is_none(),
                _ => return None,
            };
            self.space();
            match (is_first, self.next()?) {
                (true, b',') => self.space(),
                (true, b'}') => {
                    return Some(CheckRequest {
                        endpoint: endpoint.unwrap_or_default(),
                        cost: cost.unwrap_or(1),
                        ..CheckRequest::new(client_key?)
                    });
                }
                _ => return None,
            }
        }
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    #[inline]
    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    fn byte(&mut self, expected: u8) -> Option<()> {
        (self.next()? == expected).then_some(())
    }

    #[inline]
    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.peek() {
            self.at += 1;
        }
    }

    #[inline]
    fn colon(&mut self) -> Option<()> {
        self.space();
        self.byte(b':')?;
        self.space();
        Some(())
    }

    /// Text in quotes without escapes.
    #[inline]
    fn text(&mut self) -> Option<&'a str> {
        self.byte(b'"')?;
        let begin = self.at;
        let end = begin + plain_bytes(&self.text.as_bytes()[begin..]);
        self.at = end;
        self.byte(b'"')?;
        self.text.get(begin..end)
    }

    #[inline]
    fn bounded(&mut self, least: usize, most: usize) -> Option<&'a str> {
        self.text().filter(|text| (least..=most).contains(&text.len()))
    }

    /// A whole number as JSON has it: no sign, no zero in front.
    #[inline]
    fn number(&mut self) -> Option<u32> {
        let begin = self.at;
        let mut number = 0_u32;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            number = number.checked_mul(10)?.checked_add(u32::from(digit - b'0'))?;
            self.at += 1;
        }
        let is_plain = match self.at - begin {
            0 => false,
            1 => true,
            _ => self.text.as_bytes()[begin] != b'0',
        };
        // What follows must end it: `1.5` and `1e3` are other numbers.
        let has_ended = matches!(self.peek(), Some(b',' | b'}' | b' ' | b'\t' | b'\r' | b'\n'));
        (is_plain && has_ended).then_some(number)
    }

    fn is_done(&self) -> bool {
        self.at == self.text.len()
    }
}

/// How many bytes come before the first quote, backslash or control character.
#[inline]
fn plain_bytes(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xff;
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The top bit of every byte that is zero. Bytes above one may be marked in vain, but the first mark is true.
        let zeros = |word: u64| word.wrapping_sub(ONES) & !word;
        let controls = word.wrapping_sub(0x20 * ONES) & !word;
        let marks =
            zeros(word ^ (ONES * u64::from(b'"'))) | zeros(word ^ (ONES * u64::from(b'\\'))) | controls;
        let marks = marks & (ONES * 0x80);
        if marks != 0 {
            return index * 8 + marks.trailing_zeros() as usize / 8;
        }
    }
    let is_plain = |byte: &&u8| !matches!(**byte, b'"' | b'\\' | 0..=0x1f);
    bytes.len() - rest.len() + rest.iter().take_while(is_plain).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::body::{BatchBody, CheckBody};
    use serde::de::DeserializeSeed;

    fn shown(request: &CheckRequest<'_>) -> String {
        format!("{request:?}")
    }

    #[test]
    fn every_byte_is_told_apart_wherever_it_stands() {
        for (byte, at) in (0..=u8::MAX).flat_map(|byte| (0..20).map(move |at| (byte, at))) {
            // 0x01 above a mark, and 0x7f and 0x80 beside one, are where the sums could carry.
            for others in [b'a', 0x21, 0x23, 0x5b, 0x5d, 0x7f, 0x80, 0xff] {
                let mut bytes = [others; 20];
                bytes[at] = byte;
                let is_plain = !matches!(byte, b'"' | b'\\' | 0..=0x1f);
                assert_eq!(plain_bytes(&bytes), if is_plain { 20 } else { at }, "{byte} at {at} of {others}");
            }
        }
    }

    fn by_the_book(body: &[u8]) -> Option<String> {
        let check: CheckBody<'_> = serde_json::from_slice(body).ok()?;
        Some(check.with_request(shown))
    }

    fn batch_by_the_book(body: &[u8], most: usize) -> Option<Vec<String>> {
        let mut read = Vec::new();
        let take = |check: CheckBody<'_>| {
            read.push(check.with_request(shown));
            Ok(())
        };
        let mut json = serde_json::Deserializer::from_slice(body);
        BatchBody { most, take }.deserialize(&mut json).ok()?;
        json.end().ok()?;
        Some(read)
    }

    /// Whatever is read quickly is read alike by the book. What is not may be anything.
    fn agree(body: &[u8]) {
        if let Some(check) = check(body) {
            assert_eq!(Some(shown(&check)), by_the_book(body), "{}", String::from_utf8_lossy(body));
        }
        let mut read = Vec::new();
        let quick = batch(body, 3, |request| read.push(shown(request)));
        if quick.is_some() {
            assert_eq!(Some(read), batch_by_the_book(body, 3), "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn what_is_usual_is_read_quickly() {
        for body in [
            r#"{"client_key":"alice"}"#,
            r#" { "cost" : 0 , "endpoint" : "" , "client_key" : "café" } "#,
            "{\"client_key\":\"a\",\"endpoint\":\"/x\",\"cost\":4294967295}\r\n",
        ] {
            assert!(check(body.as_bytes()).is_some(), "{body}");
            agree(body.as_bytes());
            let many = format!("{{\"checks\":[{body},{body}]}}");
            assert_eq!(batch(many.as_bytes(), 3, |_| ()), Some(2), "{many}");
            agree(many.as_bytes());
        }
        assert_eq!(batch(br#"{"checks":[]}"#, 3, |_| ()), Some(0));
    }

    #[test]
    fn what_is_unusual_is_left_to_the_book() {
        for body in [
            "",
            "{}",
            "null",
            r#"{"client_key":""}"#,
            r#"{"client_key":"a\u0041"}"#,
            r#"{"client_key":null}"#,
            r#"{"client_key":"a","cost":01}"#,
            r#"{"client_key":"a","cost":1.0}"#,
            r#"{"client_key":"a","cost":1e3}"#,
            r#"{"client_key":"a","cost":-1}"#,
            r#"{"client_key":"a","cost":4294967296}"#,
            r#"{"client_key":"a","cost":}"#,
            r#"{"client_key":"a","client_key":"b"}"#,
            r#"{"client_key":"a","ip":"10.0.0.1"}"#,
            r#"{"client_key":"a",}"#,
            r#"{"client_key":"a"}}"#,
            "{\"client_key\":\"a\nb\"}",
            r#"{"endpoint":"/x"}"#,
        ] {
            assert!(check(body.as_bytes()).is_none(), "{body}");
        }
        assert!(check(b"{\"client_key\":\"\xff\"}").is_none());
        let check = r#"{"client_key":"a"}"#;
        for body in [
            format!("{{\"checks\":[{check},{check},{check},{check}]}}"),
            format!("{{\"checks\":[{check},]}}"),
            format!("{{\"checks\":[{check}],\"x\":1}}"),
            format!("{{\"checks\":[{check}]}} x"),
            format!("{{\"check\":[{check}]}}"),
            format!("[{check}]"),
        ] {
            assert!(batch(body.as_bytes(), 3, |_| ()).is_none(), "{body}");
        }
    }

    #[test]
    fn the_quick_way_and_the_book_agree_on_whatever_is_sent() {
        bolero::check!().with_type::<(Vec<u8>, u8, u8)>().for_each(|(noise, at, with)| {
            agree(noise);
            let good =
                br#"{"checks":[{"client_key":"user:1","endpoint":"/v1/orders","cost":12}, {"client_key":"b"}]}"#;
            let mut body = good.to_vec();
            let at = usize::from(*at) % body.len();
            body[at] = *with;
            agree(&body);
            agree(&body[11..body.len() - 2]);
            body.splice(at..at, noise.iter().take(4).copied());
            agree(&body);
        });
    }
}

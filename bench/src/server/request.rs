//! A request as the bytes that go on the wire, with places that a key's number is written into.
//!
//! Keys have a fixed width, so that writing one changes no length: whatever the generator must do for a request, it
//! does before the watch starts, but for six digits.

use crate::keys::Rng;

/// Stands in a request's text where a key's number goes.
pub(crate) const NUMBER: &str = "######";

/// How many different keys there are.
pub(crate) const KEYS: u64 = 100_000;

/// A request that can be sent again and again, each time for another key.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    places: Vec<usize>,
}

impl Request {
    /// A body of JSON, posted.
    pub(crate) fn post(path: &str, body: &str) -> Request {
        let length = body.len();
        Request::new(&format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
    }

    /// All there is to say is in the address.
    pub(crate) fn get(target: &str) -> Request {
        Request::new(&format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))
    }

    fn new(text: &str) -> Request {
        let places = text.match_indices(NUMBER).map(|(place, _)| place).collect();
        Request { bytes: text.as_bytes().to_vec(), places }
    }

    /// Picks a key for every place, each as likely as any other.
    pub(crate) fn pick_keys(&mut self, rng: &mut Rng) {
        for place in &self.places {
            let mut rest = rng.below(KEYS);
            for digit in self.bytes[*place..][..NUMBER.len()].iter_mut().rev() {
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many keys it asks for.
    pub(crate) fn checks(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_changes_its_digits_and_nothing_else() {
        let mut request = Request::post("/check", r#"["user:######","user:######"]"#);
        let before = request.bytes().to_vec();
        request.pick_keys(&mut Rng::new(1));
        let (mut head, mut digits) = (Vec::new(), String::new());
        for (old, new) in before.iter().zip(request.bytes()) {
            match old {
                b'#' => digits.push(char::from(*new)),
                old => head.push(old == new),
            }
        }
        assert!(head.iter().all(|same| *same));
        assert_eq!(digits.len(), 12);
        assert!(digits.parse::<u64>().is_ok());
        let text = String::from_utf8(before).unwrap();
        assert!(text.ends_with("Content-Length: 29\r\n\r\n[\"user:######\",\"user:######\"]"), "{text}");
        assert_eq!(request.checks(), 2);
    }
}

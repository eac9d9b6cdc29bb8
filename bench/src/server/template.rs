//! Bytes that go on the wire again and again, with places that a key's number is written into.
//!
//! Keys have a fixed width, so that writing one changes no length: whatever the generator must do for a request, it
//! does before the watch starts, but for six digits.

use crate::keys::Rng;
use memchr::memmem;

/// Stands where a key's number goes.
const NUMBER: &[u8] = b"######";

/// A key of which the number is picked each time.
pub(crate) const KEY: &str = "user:######";

/// How many different keys there are.
pub(crate) const KEYS: u64 = 100_000;

/// Bytes that can be sent again and again, each time for other keys.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    places: Vec<usize>,
}

impl Template {
    pub(crate) fn new(bytes: impl Into<Vec<u8>>) -> Template {
        let bytes = bytes.into();
        let places = memmem::find_iter(&bytes, NUMBER).collect();
        Template { bytes, places }
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

    /// Writes something else than a key.
    pub(crate) fn write(&mut self, place: usize, bytes: &[u8]) {
        self.bytes[place..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many keys it asks for.
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_changes_its_digits_and_nothing_else() {
        let before = r#"["user:######","user:######"]"#;
        let mut template = Template::new(before);
        template.pick_keys(&mut Rng::new(1));
        let (mut rest, mut digits) = (Vec::new(), String::new());
        for (old, new) in before.bytes().zip(template.bytes()) {
            match old {
                b'#' => digits.push(char::from(*new)),
                old => rest.push(old == *new),
            }
        }
        assert!(rest.iter().all(|same| *same));
        assert_eq!(digits.len(), 12);
        assert!(digits.parse::<u64>().is_ok());
        assert_eq!(template.places(), 2);
    }
}

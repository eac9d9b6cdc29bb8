//! Prebuilt bytes of a request, with placeholders for the numbers of keys.
//!
//! Keys have a fixed width, so writing one changes no length: except for six digits per key, a request is complete
//! before timing starts.

use crate::keys::Rng;
use memchr::memmem;

/// The placeholder for the number of a key.
const NUMBER: &[u8] = b"######";

/// A key whose number is picked each time.
pub(crate) const KEY: &str = "user:######";

/// The number of different keys.
pub(crate) const KEYS: u64 = 100_000;

/// Bytes that are sent repeatedly, each time with other keys.
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

    /// Picks a uniformly random key for every placeholder.
    pub(crate) fn pick_keys(&mut self, rng: &mut Rng) {
        for place in &self.places {
            let mut rest = rng.below(KEYS);
            for digit in self.bytes[*place..][..NUMBER.len()].iter_mut().rev() {
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
    }

    /// Overwrites bytes that are not part of a key.
    pub(crate) fn write(&mut self, place: usize, bytes: &[u8]) {
        self.bytes[place..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The number of keys in a request.
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

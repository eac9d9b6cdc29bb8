//! Names of keys in the shared store.
//!
//! `rk1:{user:42}:/v1/orders:b` is the bucket of the key with the parts `user:42` and `/v1/orders`: the version of
//! the format, the first part in braces, the other parts, and a letter for the algorithm family, followed by the
//! scope unless it is the default one. All state of a client shares the hash tag in braces, and thus a slot of a
//! Cluster or a shard. Characters of the format itself are escaped, so that two keys never collide, whatever names
//! clients choose.

use ratekeeper_core::{Algorithm, KeyRef, Scope};

/// The letter of each algorithm family.
const FAMILY_LETTERS: [u8; Algorithm::FAMILIES] = *b"blfsgc";

/// The digits of a scope: the URL-safe base64 alphabet.
const SCOPE_DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Writes the name under which a key's state is stored, for an algorithm family and a scope.
pub(crate) fn write(key: KeyRef<'_>, scope: Scope, family: usize, to: &mut impl FnMut(&[u8])) {
    to(b"rk1:{");
    for (index, part) in key.parts().enumerate() {
        match index {
            0 => write_hash_tag(part, to),
            _ => {
                to(if index == 1 { &b"}:"[..] } else { &b":"[..] });
                escape(part, |_| false, to);
            }
        }
    }
    if !key.is_composite() {
        to(b"}");
    }
    to(&[b':', FAMILY_LETTERS[family]]);
    write_scope(scope, to);
}

/// The hash tag of a key's stored name: what a Cluster and a sharded store hash.
pub(crate) fn hash_tag(key: KeyRef<'_>) -> Vec<u8> {
    let mut tag = Vec::new();
    if let Some(first) = key.parts().next() {
        write_hash_tag(first, &mut |bytes| tag.extend_from_slice(bytes));
    }
    tag
}

/// The name as bytes.
#[cfg(test)]
pub(crate) fn name(key: KeyRef<'_>, scope: Scope, family: usize) -> Vec<u8> {
    let mut name = Vec::new();
    write(key, scope, family, &mut |bytes| name.extend_from_slice(bytes));
    name
}

fn write_hash_tag(first_part: &str, to: &mut impl FnMut(&[u8])) {
    // Redis ignores an empty hash tag. A lone `%` can't collide, since an escape always has digits.
    match first_part {
        "" => to(b"%"),
        part => escape(part, |byte| byte == b':', to),
    }
}

/// Writes a part, and percent-encodes the bytes that belong to the format. Bytes for which `is_plain` holds stay as
/// they are, like `:` within the braces.
fn escape(part: &str, is_plain: impl Fn(u8) -> bool, to: &mut impl FnMut(&[u8])) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let is_reserved = |byte: u8| {
        matches!(byte, b':' | b'%' | b'{' | b'}' | b' ' | b'\0'..=b'\x1f' | b'\x7f') && !is_plain(byte)
    };
    let mut rest = part.as_bytes();
    // Hardly any part needs escaping, so plain runs are copied as a whole.
    while let Some(length) = rest.iter().position(|byte| is_reserved(*byte)) {
        let byte = rest[length];
        to(&rest[..length]);
        to(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        rest = &rest[length + 1..];
    }
    to(rest);
}

/// Writes a scope's digits, the most significant first; none for the default scope.
fn write_scope(scope: Scope, to: &mut impl FnMut(&[u8])) {
    let digits = (u64::BITS - scope.0.leading_zeros()).div_ceil(6);
    for digit in (0..digits).rev() {
        to(&[SCOPE_DIGITS[(scope.0 >> (6 * digit) & 63) as usize]]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Strategy, any, prop_assert_eq, proptest};
    use ratekeeper_core::Key;

    fn name(parts: &[&str], scope: u64, family: usize) -> String {
        let key = Key::new(parts.iter().copied()).unwrap();
        String::from_utf8(super::name(key.borrow(), Scope(scope), family)).unwrap()
    }

    #[test]
    fn names_are_readable() {
        assert_eq!(name(&["user:42"], 0, 0), "rk1:{user:42}:b");
        assert_eq!(name(&["user:42", "/v1/orders"], 0, 3), "rk1:{user:42}:/v1/orders:s");
        assert_eq!(name(&["a", "b:c", "{d}"], 1, 5), "rk1:{a}:b%3Ac:%7Bd%7D:cB");
        assert_eq!(name(&["}a{ %\n"], 64, 2), "rk1:{%7Da%7B%20%25%0A}:fBA");
        assert_eq!(name(&["", ""], u64::MAX, 1), "rk1:{%}::lP__________");
    }

    #[test]
    fn the_hash_tag_is_the_first_part_and_never_empty() {
        for (parts, expected) in [
            (vec!["user:42"], "user:42"),
            (vec!["a", "{b}"], "a"),
            (vec!["", "x"], "%"),
            (vec!["}{", "x"], "%7D%7B"),
        ] {
            let key = Key::new(parts.iter().copied()).unwrap();
            assert_eq!(hash_tag(key.borrow()), expected.as_bytes());
            assert!(name(&parts, 7, 0).starts_with(&format!("rk1:{{{expected}}}")));
        }
    }

    /// Keys over a small alphabet, mostly of characters of the format, so that any possible collision is likely to
    /// occur.
    fn keys() -> impl Strategy<Value = (Vec<String>, u64, usize)> {
        let part = proptest::collection::vec(proptest::sample::select(&b"ab:%{}B3 A"[..]), 0..4)
            .prop_map(|bytes| String::from_utf8(bytes).unwrap());
        let scope = proptest::prop_oneof![0..3_u64, 62..66_u64, any::<u64>()];
        (proptest::collection::vec(part, 1..4), scope, 0..Algorithm::FAMILIES)
    }

    proptest! {
        #[test]
        fn different_keys_never_collide(one in keys(), other in keys()) {
            let written = |(parts, scope, family): &(Vec<String>, u64, usize)| {
                name(&parts.iter().map(String::as_str).collect::<Vec<_>>(), *scope, *family)
            };
            prop_assert_eq!(one == other, written(&one) == written(&other));
        }

        #[test]
        fn a_key_can_be_recovered_from_its_name(key in keys()) {
            let (parts, scope, family) = &key;
            let written = name(&parts.iter().map(String::as_str).collect::<Vec<_>>(), *scope, *family);
            let (first, rest) = written.strip_prefix("rk1:{").unwrap().split_once('}').unwrap();
            let (rest, last) = rest.rsplit_once(':').unwrap();
            let unescape = |part: &str| part.replace("%25", "\0").replace("%3A", ":").replace("%7B", "{")
                .replace("%7D", "}").replace("%20", " ").replace('\0', "%");
            let mut read = vec![if first == "%" { String::new() } else { unescape(first) }];
            read.extend(rest.split(':').skip(1).map(unescape));
            prop_assert_eq!(&read, parts);
            prop_assert_eq!(last.as_bytes()[0], FAMILY_LETTERS[*family]);
            let number = last.bytes().skip(1).fold(0_u64, |number, digit| {
                number << 6 | SCOPE_DIGITS.iter().position(|other| *other == digit).unwrap() as u64
            });
            prop_assert_eq!(number, *scope);
        }
    }
}

//! What a key is called in the shared store.
//!
//! `rk1:{user:42}:/v1/orders:b` is the bucket of the key of the parts `user:42` and `/v1/orders`: the version of the
//! format, the first part in braces, the other parts, and last a letter for the law's family, followed by the scope if
//! there are several. All that is kept for a client shares the braces, and so a slot of a cluster or a shard. What could
//! be taken for the form itself is escaped, so that no two keys meet, whatever clients call themselves.

use ratekeeper_core::{Algorithm, KeyRef, Scope};

/// A letter for each law family.
const LETTERS: [u8; Algorithm::FAMILIES] = *b"blfsgc";

/// The digits of a scope: those of URLs in base 64.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Writes the name under which a key's state of a law family in a scope is stored.
pub(crate) fn write(key: KeyRef<'_>, scope: Scope, family: usize, name: &mut Vec<u8>) {
    name.extend_from_slice(b"rk1:{");
    for (index, part) in key.parts().enumerate() {
        match index {
            // An empty tag is no tag, and no escape is without its digits.
            0 if part.is_empty() => name.push(b'%'),
            0 => escape(part, |byte| byte == b':', name),
            _ => {
                name.push(if index == 1 { b'}' } else { b':' });
                if index == 1 {
                    name.push(b':');
                }
                escape(part, |_| false, name);
            }
        }
    }
    if !key.has_several_parts() {
        name.push(b'}');
    }
    name.extend_from_slice(&[b':', LETTERS[family]]);
    write_scope(scope, name);
}

/// The part of a stored name that a cluster and a sharded store hash.
pub(crate) fn tag(name: &[u8]) -> &[u8] {
    let start = name.iter().position(|byte| *byte == b'{').map_or(0, |open| open + 1);
    let end = name[start..].iter().position(|byte| *byte == b'}').map_or(name.len(), |close| start + close);
    &name[start..end]
}

/// Writes a part so that it holds nothing of the form around it. Within the braces a `:` is as good as any other byte.
fn escape(part: &str, is_plain: impl Fn(u8) -> bool, name: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let is_form = |byte: u8| {
        matches!(byte, b':' | b'%' | b'{' | b'}' | b' ' | b'\0'..=b'\x1f' | b'\x7f') && !is_plain(byte)
    };
    let mut rest = part.as_bytes();
    // Hardly any part holds such a byte.
    while let Some(length) = rest.iter().position(|byte| is_form(*byte)) {
        let byte = rest[length];
        name.extend_from_slice(&rest[..length]);
        name.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        rest = &rest[length + 1..];
    }
    name.extend_from_slice(rest);
}

/// Writes a scope's digits, the highest first; none for the usual scope.
fn write_scope(scope: Scope, name: &mut Vec<u8>) {
    let digits = (u64::BITS - scope.0.leading_zeros()).div_ceil(6);
    for digit in (0..digits).rev() {
        name.push(DIGITS[(scope.0 >> (6 * digit) & 63) as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Strategy, any, prop_assert_eq, proptest};
    use ratekeeper_core::Key;

    fn name(parts: &[&str], scope: u64, family: usize) -> String {
        let mut name = Vec::new();
        let key = Key::new(parts.iter().copied()).unwrap();
        write(key.borrow(), Scope(scope), family, &mut name);
        String::from_utf8(name).unwrap()
    }

    #[test]
    fn names_can_be_read() {
        assert_eq!(name(&["user:42"], 0, 0), "rk1:{user:42}:b");
        assert_eq!(name(&["user:42", "/v1/orders"], 0, 3), "rk1:{user:42}:/v1/orders:s");
        assert_eq!(name(&["a", "b:c", "{d}"], 1, 5), "rk1:{a}:b%3Ac:%7Bd%7D:cB");
        assert_eq!(name(&["}a{ %\n"], 64, 2), "rk1:{%7Da%7B%20%25%0A}:fBA");
        assert_eq!(name(&["", ""], u64::MAX, 1), "rk1:{%}::lP__________");
    }

    #[test]
    fn the_tag_is_the_first_part_and_never_empty() {
        for (parts, expected) in [
            (vec!["user:42"], "user:42"),
            (vec!["a", "{b}"], "a"),
            (vec!["", "x"], "%"),
            (vec!["}{", "x"], "%7D%7B"),
        ] {
            assert_eq!(tag(name(&parts, 7, 0).as_bytes()), expected.as_bytes());
        }
    }

    /// Few letters, most of them those that the form is made of: whatever can meet does so here.
    fn keys() -> impl Strategy<Value = (Vec<String>, u64, usize)> {
        let part = proptest::collection::vec(proptest::sample::select(&b"ab:%{}B3 A"[..]), 0..4)
            .prop_map(|bytes| String::from_utf8(bytes).unwrap());
        let scope = proptest::prop_oneof![0..3_u64, 62..66_u64, any::<u64>()];
        (proptest::collection::vec(part, 1..4), scope, 0..Algorithm::FAMILIES)
    }

    proptest! {
        #[test]
        fn different_keys_never_meet(one in keys(), other in keys()) {
            let written = |(parts, scope, family): &(Vec<String>, u64, usize)| {
                name(&parts.iter().map(String::as_str).collect::<Vec<_>>(), *scope, *family)
            };
            prop_assert_eq!(one == other, written(&one) == written(&other));
        }

        #[test]
        fn a_name_tells_its_key(key in keys()) {
            let (parts, scope, family) = &key;
            let written = name(&parts.iter().map(String::as_str).collect::<Vec<_>>(), *scope, *family);
            let (first, rest) = written.strip_prefix("rk1:{").unwrap().split_once('}').unwrap();
            let (rest, last) = rest.rsplit_once(':').unwrap();
            let unescape = |part: &str| part.replace("%25", "\0").replace("%3A", ":").replace("%7B", "{")
                .replace("%7D", "}").replace("%20", " ").replace('\0', "%");
            let mut read = vec![if first == "%" { String::new() } else { unescape(first) }];
            read.extend(rest.split(':').skip(1).map(unescape));
            prop_assert_eq!(&read, parts);
            prop_assert_eq!(last.as_bytes()[0], LETTERS[*family]);
            let number = last.bytes().skip(1).fold(0_u64, |number, digit| {
                number << 6 | DIGITS.iter().position(|other| *other == digit).unwrap() as u64
            });
            prop_assert_eq!(number, *scope);
        }
    }
}

//! Paths, made alike.
//!
//! A limit must not be dodged by spelling a path differently, so rules and requests are compared in one canonical
//! form: no scheme and authority, no query, no matrix parameters, no empty and no dot segments, no slash at the end,
//! escapes undone. What can't be undone without changing what the path means (an escaped `%`, `?`, `#` or control
//! character, bytes that are no text) stays escaped, in capitals. Two paths that differ in more than spelling never
//! become alike, and the canonical form of a canonical form is itself.
//!
//! Matrix parameters (`/login;a=b`) are cut off unless the file keeps them, because Tomcat, Jetty and Spring route
//! `/login;a=b` and `/x/..;/login` to `/login`. An application that tells `/a;x` from `/a` then has one count for both,
//! which is coarser and can't be dodged. They are cut off after escapes are undone, because proxies pass `%3B` on as `;`.

use std::borrow::Cow;

/// How paths are made alike beyond what is always done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStyle {
    /// Whether `%2F` separates segments like `/`. Most frameworks undo escapes before they route, so it does unless
    /// the file says that it is kept.
    pub keep_escaped_slashes: bool,
    /// Whether ASCII letters of either case are alike.
    pub ignore_case: bool,
    /// Whether `;` and what follows it in a segment are a part of the path. Servlet containers route `/login;a=b` to
    /// `/login`, so they are cut off unless the file says that they are kept.
    pub keep_matrix_parameters: bool,
}

/// The canonical form of a path. A path that is canonical already, as nearly all are, is not copied.
pub fn normalise(path: &str, style: PathStyle) -> Cow<'_, str> {
    if is_canonical(path, style) { Cow::Borrowed(path) } else { Cow::Owned(rewrite(path, style)) }
}

/// Whether nothing needs to be done. It may say no of a path that turns out to be canonical.
fn is_canonical(path: &str, style: PathStyle) -> bool {
    let bytes = path.as_bytes();
    let mut previous = 0;
    for byte in bytes {
        let is_odd = match byte {
            b'%' | b'?' | b'#' | 0..=0x1f | 0x7f => true,
            b'/' | b'.' => previous == b'/',
            b'A'..=b'Z' => style.ignore_case,
            b';' => !style.keep_matrix_parameters,
            _ => false,
        };
        if is_odd {
            return false;
        }
        previous = *byte;
    }
    bytes.first() == Some(&b'/') && (previous != b'/' || bytes.len() == 1)
}

fn rewrite(path: &str, style: PathStyle) -> String {
    let path = without_authority(path).split(['?', '#']).next().unwrap_or_default();
    let plain = unescape(path, style);
    let mut segments: Vec<&str> = Vec::new();
    for segment in plain.split('/') {
        let segment = match segment.split_once(';') {
            Some((name, _)) if !style.keep_matrix_parameters => name,
            _ => segment,
        };
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let mut canonical = String::with_capacity(plain.len() + 1);
    for segment in &segments {
        canonical.push('/');
        canonical.push_str(segment);
    }
    if segments.is_empty() {
        canonical.push('/');
    }
    canonical
}

/// A request target without its scheme and authority, if it is in absolute form: `/login` of `http://host/login`.
fn without_authority(target: &str) -> &str {
    let Some((scheme, rest)) = target.split_once("://") else { return target };
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    if is_scheme { rest.find(['/', '?', '#']).map_or("", |end| &rest[end..]) } else { target }
}

/// Undoes the escapes that stand for text, once, and writes the others in one way.
pub(crate) fn unescape(text: &str, style: PathStyle) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        let (byte, is_escaped) = match (*first, hex(behind)) {
            (b'%', Some(byte)) => {
                rest = &behind[2..];
                (byte, true)
            }
            (byte, _) => (byte, false),
        };
        match byte {
            b'%' | b'?' | b'#' | 0..=0x1f | 0x7f => escape(byte, &mut bytes),
            b'/' if is_escaped && style.keep_escaped_slashes => escape(byte, &mut bytes),
            byte if style.ignore_case => bytes.push(byte.to_ascii_lowercase()),
            byte => bytes.push(byte),
        }
    }
    let mut plain = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        plain.push_str(chunk.valid());
        let mut escaped = Vec::new();
        for byte in chunk.invalid() {
            escape(*byte, &mut escaped);
        }
        plain.push_str(&String::from_utf8_lossy(&escaped));
    }
    plain
}

/// The byte that two hexadecimal digits stand for.
fn hex(digits: &[u8]) -> Option<u8> {
    let [high, low, ..] = digits else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}

fn escape(byte: u8, bytes: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digit = |half: u8| DIGITS[usize::from(half)];
    bytes.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: PathStyle =
        PathStyle { keep_escaped_slashes: false, ignore_case: false, keep_matrix_parameters: false };

    #[track_caller]
    fn alike(canonical: &str, spellings: &[&str]) {
        for spelling in spellings {
            assert_eq!(normalise(spelling, PLAIN), canonical, "{spelling:?}");
        }
        assert!(matches!(normalise(canonical, PLAIN), Cow::Borrowed(_)), "{canonical:?} is copied");
    }

    #[test]
    fn a_path_has_one_form_however_it_is_spelled() {
        alike("/", &["", "/", "//", "/.", "/..", "/../..", "?x=1", "#top", "/%2e%2E/", "%2F"]);
        alike(
            "/v1/orders",
            &[
                "/v1/orders",
                "v1/orders",
                "/v1/orders/",
                "//v1///orders//",
                "/v1/./orders",
                "/v1/x/../orders",
                "/v1/x/%2e%2e/orders",
                "/v1/x/.%2E/orders",
                "/v1/orders?page=2",
                "/v1/orders/?page=/x",
                "/v1/orders#top",
                "/v1/%6Frders",
                "/v1/%6frders",
                "/%76%31%2Forders",
                "/v1%2forders",
                "/../v1/orders",
                "/v1/orders/.",
                "/v1/orders/x/..",
            ],
        );
        alike("/café/a b", &["/caf%C3%A9/a%20b", "/caf%c3%a9/a b", "/café/a b"]);
        assert_eq!(normalise("/.well-known/x..y/...", PLAIN), "/.well-known/x..y/...");
    }

    #[test]
    fn what_means_something_else_stays_apart() {
        for (path, canonical) in [
            ("/V1/orders", "/V1/orders"),
            ("/a%3fb", "/a%3Fb"),
            ("/a%23b", "/a%23b"),
            ("/a%252fb", "/a%252fb"),
            ("/a%2541", "/a%2541"),
            ("/a%", "/a%25"),
            ("/a%zz", "/a%25zz"),
            ("/a%00b", "/a%00b"),
            ("/a\nb", "/a%0Ab"),
            ("/%c0%af", "/%C0%AF"),
            ("/%c3", "/%C3"),
            ("/%25C3", "/%25C3"),
            ("/a\\b", "/a\\b"),
        ] {
            assert_eq!(normalise(path, PLAIN), canonical, "{path:?}");
        }
    }

    #[test]
    fn the_file_says_what_else_is_alike() {
        let kept = PathStyle { keep_escaped_slashes: true, ..PLAIN };
        assert_eq!(normalise("/projects/a%2fb/", kept), "/projects/a%2Fb");
        let folded = PathStyle { ignore_case: true, ..PLAIN };
        assert_eq!(normalise("/V1/Orders/%41%2f?X", folded), "/v1/orders/a");
        let kept = PathStyle { keep_matrix_parameters: true, ..PLAIN };
        for (path, canonical) in
            [("/a;x=1/b", "/a;x=1/b"), ("/a%3bx", "/a;x"), ("/x/..;/a", "/x/..;/a"), ("/;/a", "/;/a")]
        {
            assert_eq!(normalise(path, kept), canonical, "{path:?}");
        }
    }

    #[test]
    fn an_absolute_target_is_the_path_behind_its_authority() {
        alike(
            "/login",
            &[
                "http://h/login",
                "HTTPS://user:pw@h:8443/login?x=http://other/",
                "http://[::1]:80//login/",
                "ws+unix://h/./login",
                "http:///login",
                "http://h/login;a=b",
            ],
        );
        alike("/", &["http://h", "http://h/", "http://h?x=/login", "http://h#/login"]);
        alike("/login/http:/h", &["/login/http://h", "login/http://h"]);
        alike("/1http:/h/login", &["1http://h/login"]);
        alike("/:/login", &["://login"]);
    }

    #[test]
    fn matrix_parameters_are_no_part_of_a_path() {
        alike(
            "/login",
            &[
                "/login;a=b",
                "/login;",
                "/login;a=b;c=d/",
                "/login%3Ba=b",
                "/login;a=%2e%2e",
                "/x/..;/login",
                "/x/..;a=b/login",
                "/x/%2e%2e%3b/login",
                "/;a=b/login",
                "/.;x/login",
                "/;/;/login;?q=;",
            ],
        );
    }

    proptest! {
        #[test]
        fn a_canonical_form_is_its_own(
            path in "(http://|[a:]{0,2})[/a-cA-C.;:%0-9é?#\\x00-\\x20]{0,40}", keep: bool, fold: bool, matrix: bool,
        ) {
            let style =
                PathStyle { keep_escaped_slashes: keep, ignore_case: fold, keep_matrix_parameters: matrix };
            let once = normalise(&path, style).into_owned();
            prop_assert_eq!(&normalise(&once, style), &once);
            prop_assert!(once.starts_with('/') && (once.len() == 1 || !once.ends_with('/')));
            prop_assert!(!once.contains("//") && !once.contains(['?', '#']) && !once.contains(char::is_control));
            prop_assert!(once.split('/').all(|segment| segment != "." && segment != ".."));
            prop_assert!(matrix || !once.contains(';'));
        }

        #[test]
        fn escaping_any_letter_changes_nothing(path in "/[a-z]{1,8}(/[a-zé]{1,8}){0,3}", at in 0usize..40) {
            let spelled: String = path.bytes().enumerate().map(|(index, byte)| match index == at && byte != b'/' || byte >= 0x80 {
                true => format!("%{byte:02x}"),
                false => char::from(byte).to_string(),
            }).collect();
            prop_assert_eq!(normalise(&spelled, PLAIN), path);
        }
    }
}

//! Normalisation of paths.
//!
//! A client must not evade a limit by spelling a path differently, so rules and requests are compared in one canonical
//! form: no scheme and authority, no query, no matrix parameters, no empty or dot segments, no trailing slash,
//! percent-decoded. Escapes that can't be decoded without changing the meaning of the path (of `%`, `?`, `#`, control
//! characters and bytes that are not UTF-8) stay, in upper case. Paths with different meanings never get the same form,
//! and normalising is idempotent.
//!
//! Matrix parameters (`/login;a=b`) are removed unless the file keeps them, because Tomcat, Jetty and Spring route
//! `/login;a=b` and `/x/..;/login` to `/login`. An application that distinguishes `/a;x` from `/a` then has one count
//! for both, which is coarser and can't be evaded. They are removed after decoding, because proxies pass `%3B` on as
//! `;`.

use std::borrow::Cow;

/// Options of path normalisation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStyle {
    /// Whether `%2F` stays escaped. Most frameworks decode a path before they route, so by default it separates
    /// segments like `/`.
    pub keep_escaped_slashes: bool,
    /// Whether the case of ASCII letters is ignored.
    pub ignore_case: bool,
    /// Whether `;` and the rest of its segment are kept. Servlet containers route `/login;a=b` to `/login`, so by
    /// default they are removed.
    pub keep_matrix_parameters: bool,
}

/// Returns the canonical form of a path. A path that is already canonical, as nearly all are, is not copied.
pub fn normalise(path: &str, style: PathStyle) -> Cow<'_, str> {
    if is_canonical(path, style) { Cow::Borrowed(path) } else { Cow::Owned(rewrite(path, style)) }
}

/// Whether the path is certainly canonical; `false` for some paths that turn out to be.
fn is_canonical(path: &str, style: PathStyle) -> bool {
    let bytes = path.as_bytes();
    let mut previous = 0;
    for byte in bytes {
        let needs_rewrite = match byte {
            b'%' | b'?' | b'#' | 0..=0x1f | 0x7f => true,
            b'/' | b'.' => previous == b'/',
            b'A'..=b'Z' => style.ignore_case,
            b';' => !style.keep_matrix_parameters,
            _ => false,
        };
        if needs_rewrite {
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

/// Strips scheme and authority from a request target in absolute form: `/login` of `http://host/login`.
fn without_authority(target: &str) -> &str {
    let Some((scheme, rest)) = target.split_once("://") else { return target };
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    if is_scheme { rest.find(['/', '?', '#']).map_or("", |end| &rest[end..]) } else { target }
}

/// Decodes each percent escape once, and writes those that must stay in upper case.
pub(crate) fn unescape(text: &str, style: PathStyle) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let (byte, is_escaped) = match (*first, decode_hex(after)) {
            (b'%', Some(byte)) => {
                rest = &after[2..];
                (byte, true)
            }
            (byte, _) => (byte, false),
        };
        match byte {
            b'%' | b'?' | b'#' | 0..=0x1f | 0x7f => push_escape(byte, &mut bytes),
            b'/' if is_escaped && style.keep_escaped_slashes => push_escape(byte, &mut bytes),
            byte if style.ignore_case => bytes.push(byte.to_ascii_lowercase()),
            byte => bytes.push(byte),
        }
    }
    let mut plain = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        plain.push_str(chunk.valid());
        let mut escaped = Vec::new();
        for byte in chunk.invalid() {
            push_escape(*byte, &mut escaped);
        }
        plain.push_str(&String::from_utf8_lossy(&escaped));
    }
    plain
}

/// Returns the byte that the first two hexadecimal digits encode, or `None` if they are not digits.
fn decode_hex(digits: &[u8]) -> Option<u8> {
    let [high, low, ..] = digits else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}

fn push_escape(byte: u8, bytes: &mut Vec<u8>) {
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
    fn check(canonical: &str, spellings: &[&str]) {
        for spelling in spellings {
            assert_eq!(normalise(spelling, PLAIN), canonical, "{spelling:?}");
        }
        assert!(matches!(normalise(canonical, PLAIN), Cow::Borrowed(_)), "{canonical:?} was copied");
    }

    #[test]
    fn all_spellings_of_a_path_have_one_form() {
        check("/", &["", "/", "//", "/.", "/..", "/../..", "?x=1", "#top", "/%2e%2E/", "%2F"]);
        check(
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
        check("/café/a b", &["/caf%C3%A9/a%20b", "/caf%c3%a9/a b", "/café/a b"]);
        assert_eq!(normalise("/.well-known/x..y/...", PLAIN), "/.well-known/x..y/...");
    }

    #[test]
    fn paths_with_different_meanings_stay_different() {
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
    fn styles_change_the_canonical_form() {
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
    fn scheme_and_authority_are_removed() {
        check(
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
        check("/", &["http://h", "http://h/", "http://h?x=/login", "http://h#/login"]);
        check("/login/http:/h", &["/login/http://h", "login/http://h"]);
        check("/1http:/h/login", &["1http://h/login"]);
        check("/:/login", &["://login"]);
    }

    #[test]
    fn matrix_parameters_are_removed() {
        check(
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
        fn normalising_is_idempotent(
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
        fn escaping_a_letter_changes_nothing(path in "/[a-z]{1,8}(/[a-zé]{1,8}){0,3}", at in 0usize..40) {
            let spell = |(index, byte): (usize, u8)| {
                if index == at && byte != b'/' || byte >= 0x80 {
                    format!("%{byte:02x}")
                } else {
                    char::from(byte).to_string()
                }
            };
            let spelled: String = path.bytes().enumerate().map(spell).collect();
            prop_assert_eq!(normalise(&spelled, PLAIN), path);
        }
    }
}

//! Fuzz tests. The reader returns a spec or errors for any input, and the errors can be displayed. All spellings of a
//! path normalise to one form.

use ratekeeper_core::Micros;
use ratekeeper_rules::{PathStyle, Severity, diff, normalise, read, report, report_json, validate};

const VALID_FILES: [&str; 3] = [
    include_str!("valid/everything.yaml"),
    include_str!("valid/design.yaml"),
    include_str!("valid/aliases.yaml"),
];

/// Fragments of YAML, rules and common errors.
const RULE_FRAGMENTS: [&str; 43] = [
    "rules",
    ": ",
    "\n",
    "\n  - ",
    "\n    ",
    "id",
    "limit",
    "limits",
    "100/min",
    "match",
    "path",
    "/a/{b}",
    "/a/*",
    "path_regex",
    "^/(a",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "&a ",
    "*a",
    "<<",
    "'",
    "\"",
    "#",
    "---\n",
    "!!str ",
    "params",
    "capacity",
    "1.67",
    "-1",
    "99999999999999999999",
    "override",
    "tiers",
    "whitelist",
    "10.0.0.0/8",
    "\t",
    "descriptor",
    "domain",
    "unlimited",
    "\u{feff}",
    "é",
];

fn check_read(text: &str) {
    let parsed = read(text, Micros::new(1_767_225_600_000_000));
    report("rules.yaml", text, &parsed.diagnostics);
    report_json("rules.yaml", text, &parsed.diagnostics);
    match &parsed.spec {
        Some(spec) => {
            assert_eq!(parsed.errors(), 0);
            assert_eq!(diff(spec, spec), [], "{text}");
            let again = validate(spec);
            assert!(again.iter().all(|found| found.severity == Severity::Warning), "{text}: {again:#?}");
        }
        None => assert!(parsed.errors() > 0, "{text}"),
    }
}

#[test]
fn rule_files_of_any_bytes() {
    bolero::check!()
        .with_type::<Vec<u8>>()
        .for_each(|bytes: &Vec<u8>| check_read(&String::from_utf8_lossy(bytes)));
}

#[test]
fn rule_files_of_fragments() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|choices: &Vec<u8>| {
        let text: String = choices
            .iter()
            .map(|choice| RULE_FRAGMENTS[usize::from(*choice) % RULE_FRAGMENTS.len()])
            .collect();
        check_read(&text);
    });
}

#[test]
fn valid_files_with_random_edits() {
    bolero::check!().with_type::<(u8, Vec<(u16, u8, u8)>)>().for_each(|(file, changes)| {
        let mut text = VALID_FILES[usize::from(*file) % VALID_FILES.len()].as_bytes().to_vec();
        for (at, length, piece) in changes.iter().take(8) {
            let start = usize::from(*at) % (text.len() + 1);
            let end = (start + usize::from(*length) % 16).min(text.len());
            text.splice(start..end, RULE_FRAGMENTS[usize::from(*piece) % RULE_FRAGMENTS.len()].bytes());
        }
        check_read(&String::from_utf8_lossy(&text));
    });
}

/// Fragments of paths, with tricks to evade limits.
const PATH_FRAGMENTS: [&str; 40] = [
    "/", "//", ".", "..", "/./", "/../", "%2e", "%2E%2e", "%2f", "%2F", "%", "%%", "%2", "%25", "%252f",
    "%00", "%0a", "%3f", "%23", "%c3%a9", "%C3", "%a9", "%c0%af", "%e2%82", "?", "#", "a", "A", "%41", "%61",
    "b;x=1", "\\", " ", "\0", "\n", "é", "..;/", "%3b", "http://", "://",
];

fn styles() -> impl Iterator<Item = PathStyle> {
    (0..8_u8).map(|bits| PathStyle {
        keep_escaped_slashes: bits & 1 != 0,
        ignore_case: bits & 2 != 0,
        keep_matrix_parameters: bits & 4 != 0,
    })
}

/// Normalises a path, checks every guarantee of the form, and checks that other spellings give the same form.
fn check_normalise(path: &str, seed: u8) {
    for style in styles() {
        let form = normalise(path, style).into_owned();
        let context = || format!("{path:?} as {form:?}, {style:?}");
        assert_eq!(normalise(&form, style), form, "not idempotent: {}", context());
        assert!(form.starts_with('/') && (form == "/" || !form.ends_with('/')), "{}", context());
        assert!(!form.contains("//") && !form.contains(['?', '#']), "{}", context());
        assert!(!form.chars().any(|c| c.is_ascii_control()), "{}", context());
        assert!(form.split('/').all(|segment| segment != "." && segment != ".."), "{}", context());
        for (at, _) in form.match_indices('%') {
            assert!(stays_escaped(&form[at..], style), "{}", context());
        }
        for spelling in spellings(&form, seed) {
            assert_eq!(normalise(&spelling, style), form, "{spelling:?}, {style:?}");
        }
    }
}

/// Whether the escape at the start of the text had to stay: in upper case, and for a character that has another meaning
/// when decoded. Bytes that may be invalid UTF-8 are not checked further.
fn stays_escaped(text: &str, style: PathStyle) -> bool {
    let Some(digits) = text.get(1..3) else { return false };
    let Ok(byte) = u8::from_str_radix(digits, 16) else { return false };
    let is_special = matches!(byte, b'%' | b'?' | b'#' | 0..=0x1f | 0x7f..);
    digits == digits.to_ascii_uppercase() && (is_special || byte == b'/' && style.keep_escaped_slashes)
}

/// Other spellings of a canonical path.
fn spellings(form: &str, seed: u8) -> Vec<String> {
    let escaped: String = form
        .char_indices()
        .map(|(at, c)| match c {
            '/' | '%' => c.to_string(),
            // The digits of an escape are not escaped again.
            _ if form[..at].bytes().rev().take(2).any(|byte| byte == b'%') => c.to_string(),
            _ if (at as u64).wrapping_mul(u64::from(seed) | 1).is_multiple_of(3) => c.to_string(),
            _ => c.to_string().bytes().map(|byte| format!("%{byte:02x}")).collect(),
        })
        .collect();
    vec![
        escaped,
        form.replace('/', "//"),
        form.replace('/', "/./"),
        form.replace('/', "/x/../"),
        form.replace('/', "/%2e/"),
        format!("{form}/"),
        format!("{form}?/../x"),
        format!("{form}#/../x"),
        format!("/..{form}"),
        form[1..].to_owned(),
    ]
}

#[test]
fn paths_of_any_bytes() {
    bolero::check!().with_type::<(u8, Vec<u8>)>().for_each(|(seed, bytes): &(u8, Vec<u8>)| {
        check_normalise(&String::from_utf8_lossy(bytes), *seed);
    });
}

#[test]
fn paths_of_fragments() {
    bolero::check!().with_type::<(u8, Vec<u8>)>().for_each(|(seed, choices): &(u8, Vec<u8>)| {
        let path: String = choices
            .iter()
            .map(|choice| PATH_FRAGMENTS[usize::from(*choice) % PATH_FRAGMENTS.len()])
            .collect();
        check_normalise(&path, *seed);
    });
}

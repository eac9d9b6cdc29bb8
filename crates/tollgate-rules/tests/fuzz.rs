//! Whatever the reader is fed, it answers: a spec or complaints, and the complaints can be shown. Whatever path is made
//! canonical, one form comes of it, however it was spelled.

use tollgate_core::Micros;
use tollgate_rules::{PathStyle, Severity, diff, normalise, read, report, report_json, validate};

const GOOD: [&str; 3] = [
    include_str!("good/everything.yaml"),
    include_str!("good/design.yaml"),
    include_str!("good/aliases.yaml"),
];

/// Pieces that YAML, rules and mistakes in them are made of.
const PIECES: [&str; 43] = [
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

fn try_to_read(text: &str) {
    let review = read(text, Micros::new(1_767_225_600_000_000));
    report("rules.yaml", text, &review.complaints);
    report_json("rules.yaml", text, &review.complaints);
    match &review.spec {
        Some(spec) => {
            assert_eq!(review.errors(), 0);
            assert_eq!(diff(spec, spec), [""; 0], "{text}");
            let again = validate(spec);
            assert!(
                again.iter().all(|complaint| complaint.severity == Severity::Warning),
                "{text}: {again:#?}"
            );
        }
        None => assert!(review.errors() > 0, "{text}"),
    }
}

#[test]
fn any_bytes() {
    bolero::check!()
        .with_type::<Vec<u8>>()
        .for_each(|bytes: &Vec<u8>| try_to_read(&String::from_utf8_lossy(bytes)));
}

#[test]
fn files_that_nearly_read() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|choices: &Vec<u8>| {
        let text: String = choices.iter().map(|choice| PIECES[usize::from(*choice) % PIECES.len()]).collect();
        try_to_read(&text);
    });
}

#[test]
fn good_files_with_something_changed() {
    bolero::check!().with_type::<(u8, Vec<(u16, u8, u8)>)>().for_each(|(file, changes)| {
        let mut text = GOOD[usize::from(*file) % GOOD.len()].as_bytes().to_vec();
        for (at, length, piece) in changes.iter().take(8) {
            let start = usize::from(*at) % (text.len() + 1);
            let end = (start + usize::from(*length) % 16).min(text.len());
            text.splice(start..end, PIECES[usize::from(*piece) % PIECES.len()].bytes());
        }
        try_to_read(&String::from_utf8_lossy(&text));
    });
}

/// Pieces that paths and tricks with them are made of.
const STEPS: [&str; 36] = [
    "/", "//", ".", "..", "/./", "/../", "%2e", "%2E%2e", "%2f", "%2F", "%", "%%", "%2", "%25", "%252f",
    "%00", "%0a", "%3f", "%23", "%c3%a9", "%C3", "%a9", "%c0%af", "%e2%82", "?", "#", "a", "A", "%41", "%61",
    "b;x=1", "\\", " ", "\0", "\n", "é",
];

fn styles() -> impl Iterator<Item = PathStyle> {
    [(false, false), (false, true), (true, false), (true, true)]
        .into_iter()
        .map(|(keep_escaped_slashes, ignore_case)| PathStyle { keep_escaped_slashes, ignore_case })
}

/// Makes a path canonical, holds the form to every promise, and spells it in other ways that must come to the same.
fn try_to_normalise(path: &str, seed: u8) {
    for style in styles() {
        let form = normalise(path, style).into_owned();
        let told = || format!("{path:?} as {form:?}, {style:?}");
        assert_eq!(normalise(&form, style), form, "not its own form: {}", told());
        assert!(form.starts_with('/') && (form == "/" || !form.ends_with('/')), "{}", told());
        assert!(!form.contains("//") && !form.contains(['?', '#']), "{}", told());
        assert!(!form.chars().any(|c| c.is_ascii_control()), "{}", told());
        assert!(form.split('/').all(|segment| segment != "." && segment != ".."), "{}", told());
        for (at, _) in form.match_indices('%') {
            assert!(stays_escaped(&form[at..], style), "{}", told());
        }
        for spelling in spellings(&form, seed) {
            assert_eq!(normalise(&spelling, style), form, "{spelling:?}, {style:?}");
        }
    }
}

/// Whether what begins with this escape had to stay escaped: in capitals, and for something that means something else
/// when it is undone. Bytes that are no text are not looked at any further.
fn stays_escaped(text: &str, style: PathStyle) -> bool {
    let Some(digits) = text.get(1..3) else { return false };
    let Ok(byte) = u8::from_str_radix(digits, 16) else { return false };
    let is_special = matches!(byte, b'%' | b'?' | b'#' | 0..=0x1f | 0x7f..);
    digits == digits.to_ascii_uppercase() && (is_special || byte == b'/' && style.keep_escaped_slashes)
}

/// Other ways to write a canonical path.
fn spellings(form: &str, seed: u8) -> Vec<String> {
    let escaped: String = form
        .char_indices()
        .map(|(at, c)| match c {
            '/' | '%' => c.to_string(),
            // Within an escape nothing more is escaped.
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
        try_to_normalise(&String::from_utf8_lossy(bytes), *seed);
    });
}

#[test]
fn paths_of_tricks() {
    bolero::check!().with_type::<(u8, Vec<u8>)>().for_each(|(seed, choices): &(u8, Vec<u8>)| {
        let path: String = choices.iter().map(|choice| STEPS[usize::from(*choice) % STEPS.len()]).collect();
        try_to_normalise(&path, *seed);
    });
}

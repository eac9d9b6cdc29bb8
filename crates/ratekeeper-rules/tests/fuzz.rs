//! Whatever the reader is fed, it answers: a spec or complaints, and the complaints can be shown. Whatever path is made
//! canonical, one form comes of it, however it was spelled.

use ratekeeper_core::Micros;
use ratekeeper_rules::{
    ImportSource, PathStyle, Severity, diff, import, normalise, read, report, report_json, validate,
};

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

/// Pieces that files of other limiters and mistakes in them are made of.
const FOREIGN: [&str; 32] = [
    "domain: edge\n",
    "descriptors:\n",
    "  - key: a\n",
    "    value: x\n",
    "    value: x*\n",
    "    value: '*'\n",
    "    rate_limit: {unit: day, requests_per_unit: 5}\n",
    "    rate_limit: {unlimited: true}\n",
    "    descriptors: [{key: b, rate_limit: {unit: week, requests_per_unit: 0}}, {key: c}]\n",
    "    descriptors: [{key: b, value: y, share_threshold: true}]\n",
    "    shadow_mode: true\n",
    "    share_threshold: true\n",
    "---\n",
    "- namespace: n\n",
    "  max_value: 5\n",
    "  max_value: 6\n",
    "  seconds: 60\n",
    "  seconds: 99999999999\n",
    "  conditions: [\"descriptors[0].a == 'x'\"]\n",
    "  conditions: [\"b == 'x' && descriptors[0]['c'] == \\\"y\\\"\"]\n",
    "  conditions: [a, \"'\", '==']\n",
    "  variables: [a]\n",
    "  variables: [b, path, \"descriptors[0].c\"]\n",
    "  name: é\n",
    "  - key: \"\\u2028\"\n",
    "    value: \"\\x07\"\n",
    "    value: ' '\n",
    "  - {key: null}\n",
    "  - []\n",
    "x",
    ": ",
    "'",
];

fn try_to_import(text: &str) {
    for source in [ImportSource::Envoy, ImportSource::Limitador] {
        let import = import(source, &[("f.yaml", text)]);
        report("f.yaml", text, &import.complaints[0]);
        let Some(rules) = import.text else { continue };
        let review = read(&rules, Micros::EPOCH);
        assert!(review.spec.is_some(), "{text}\n{rules}\n{}", review.report("rules.yaml", &rules));
    }
}

#[test]
fn files_of_other_limiters() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|choices: &Vec<u8>| {
        let piece = |choice: &u8| FOREIGN[usize::from(*choice) % FOREIGN.len()];
        try_to_import(&choices.iter().map(piece).collect::<String>());
    });
}

#[test]
fn files_of_other_limiters_of_any_bytes() {
    bolero::check!()
        .with_type::<Vec<u8>>()
        .for_each(|bytes: &Vec<u8>| try_to_import(&String::from_utf8_lossy(bytes)));
}

/// Pieces that paths and tricks with them are made of.
const STEPS: [&str; 40] = [
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

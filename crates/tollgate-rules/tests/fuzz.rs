//! Whatever the reader is fed, it answers: a spec or complaints, and the complaints can be shown.

use tollgate_core::Micros;
use tollgate_rules::{Severity, diff, read, report, report_json, validate};

const GOOD: [&str; 3] = [
    include_str!("good/everything.yaml"),
    include_str!("good/design.yaml"),
    include_str!("good/aliases.yaml"),
];

/// Pieces that YAML, rules and mistakes in them are made of.
const PIECES: [&str; 40] = [
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

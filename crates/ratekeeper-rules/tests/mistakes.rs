//! One file for each kind of mistake in `mistakes/`, with all that is said of it beside it.
//!
//! Whoever changes what is said runs this with `RATEKEEPER_BLESS=1`, which writes the reports anew, and reads them as
//! somebody would who wrote the file: does it say where, what, and what to write instead?

use ratekeeper_core::Micros;
use ratekeeper_rules::{Severity, read, report_json, schema};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// 2026-01-01. What has expired is told by it.
const NOW: Micros = Micros::new(1_767_225_600_000_000);

/// The mistakes that a schema can't tell: each is about what a value means, or about several together.
const BEYOND_SCHEMA: [&str; 46] = [
    "address-taken-for-a-key",
    "algorithm-without-limit",
    "allow-everybody",
    "bad-method",
    "bad-regex",
    "bad-template",
    "burst-in-a-window",
    "contradictory-tiers",
    "custom-tag",
    "denied-client",
    "duplicate-id",
    "empty-client",
    "expired",
    "fields-of-another-algorithm",
    "foreign-parameter",
    "hidden-by-pattern",
    "hidden-by-tier",
    "hidden-by-unlimited",
    "hidden-descriptor",
    "hidden-rule",
    "incomplete-params",
    "key-from-elsewhere",
    "keyless-passes-default",
    "keyless-unbound",
    "leased-file-with-a-log",
    "leased-log",
    "long-log",
    "matrix-parameter-in-path",
    "misspelled-key",
    "misspelled-method",
    "no-rule-enabled",
    "no-rules",
    "nothing-to-inherit",
    "on-both-lists",
    "override-needs-a-window",
    "rate-and-window-differ",
    "refuse-everybody",
    "regex-that-never-matches",
    "star-in-override",
    "tier-key-hidden",
    "too-fine",
    "too-many-decimals",
    "too-many-limits",
    "unknown-tier",
    "whole-address-as-path",
    "zone",
];

#[test]
fn every_mistake_is_told_as_written() {
    let bless = std::env::var_os("RATEKEEPER_BLESS").is_some();
    let mut wrong = Vec::new();
    for path in files("mistakes") {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let review = read(&text, NOW);
        let report = review.report(name, &text);
        let has_error = review.complaints.iter().any(|complaint| complaint.severity == Severity::Error);
        assert_eq!(review.spec.is_none(), has_error, "{name}: {report}");
        assert!(!review.complaints.is_empty(), "{name} has no mistake");
        let beside = path.with_extension("txt");
        if bless {
            fs::write(&beside, &report).unwrap();
        } else if fs::read_to_string(&beside).unwrap_or_default() != report {
            wrong.push(report);
        }
    }
    assert!(
        wrong.is_empty(),
        "these reports are not what is written beside their files:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_report_has_its_mistake() {
    let stems = |ending: &str| -> BTreeSet<PathBuf> {
        let all = fs::read_dir(folder("mistakes")).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.extension().is_some_and(|found| found == ending))
            .map(|path| path.with_extension(""))
            .collect()
    };
    assert_eq!(stems("txt"), stems("yaml"));
    assert!(stems("yaml").len() >= 45);
}

#[test]
fn the_same_is_told_in_json() {
    let text = "rules:\n  - id: orders\n    limt: 3\n";
    let told = report_json("rules.yaml", text, &read(text, NOW).complaints);
    let said = told[0]["message"].as_str().unwrap();
    assert!(said.starts_with("unknown field \"limt\": did you mean limit?"), "{said}");
    for (field, value) in [("file", "rules.yaml"), ("severity", "error"), ("source", "    limt: 3")] {
        assert_eq!(told[0][field], value);
    }
    assert_eq!((&told[0]["line"], &told[0]["column"]), (&Value::from(3), &Value::from(5)));
    assert_eq!(told.as_array().unwrap().len(), 1);
}

#[test]
fn good_files_bring_no_complaint_and_fit_the_schema() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    for path in files("good") {
        let text = fs::read_to_string(&path).unwrap();
        let review = read(&text, NOW);
        assert!(review.complaints.is_empty(), "{}", review.report(&path.display().to_string(), &text));
        let value: Value = serde_saphyr::from_str(&text).unwrap();
        let told: Vec<_> = validator
            .iter_errors(&value)
            .map(|error| format!("{} at {}", error, error.instance_path()))
            .collect();
        assert!(told.is_empty(), "{}: {told:#?}", path.display());
    }
}

#[test]
fn the_schema_refuses_what_is_out_of_shape_and_nothing_else() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let mut passed = BTreeSet::new();
    for path in files("mistakes") {
        let text = fs::read_to_string(&path).unwrap();
        // What is no YAML has no shape at all.
        let Ok(value) = serde_saphyr::from_str::<Value>(&text) else { continue };
        if validator.is_valid(&value) {
            passed.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
        }
    }
    let expected: BTreeSet<_> = BEYOND_SCHEMA.map(str::to_owned).into();
    assert_eq!(passed, expected);
}

fn files(name: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(folder(name))
        .expect("the folder is there")
        .map(|entry| entry.expect("it is listed").path());
    let mut files: Vec<_> =
        all.filter(|path| path.extension().is_some_and(|found| found == "yaml")).collect();
    files.sort();
    files
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

//! Snapshot tests of diagnostics: `diagnostics/` has a file for each kind of error, and the expected report beside it.
//!
//! To update the reports, run with `RATEKEEPER_BLESS=1`, then review the diff as the author of the file would read
//! it: does each report say where the error is, what it is, and what to write instead?

use ratekeeper_core::Micros;
use ratekeeper_rules::yaml::{self, YamlNode, YamlValue};
use ratekeeper_rules::{Diagnostics, Severity, read, report_json, schema};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// 2026-01-01: the time that expiry dates are compared with.
const NOW: Micros = Micros::new(1_767_225_600_000_000);

/// The errors that a JSON schema can't detect: each is about the meaning of a value, or about several values.
const BEYOND_SCHEMA: [&str; 46] = [
    "address-taken-for-a-key",
    "algorithm-without-limit",
    "allow-all",
    "bad-method",
    "bad-regex",
    "bad-template",
    "burst-in-a-window",
    "contradictory-tiers",
    "custom-tag",
    "denied-client",
    "deny-all",
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
fn reports_match_their_snapshots() {
    let bless = std::env::var_os("RATEKEEPER_BLESS").is_some();
    let mut changed = Vec::new();
    for path in files("diagnostics") {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let parsed = read(&text, NOW);
        let report = parsed.report(name, &text);
        let has_error = parsed.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error);
        assert_eq!(parsed.spec.is_none(), has_error, "{name}: {report}");
        assert!(!parsed.diagnostics.is_empty(), "{name} has no diagnostics");
        let beside = path.with_extension("txt");
        if bless {
            fs::write(&beside, &report).unwrap();
        } else if fs::read_to_string(&beside).unwrap_or_default() != report {
            changed.push(report);
        }
    }
    assert!(
        changed.is_empty(),
        "these reports differ from the snapshots beside their files:\n{}",
        changed.join("\n")
    );
}

#[test]
fn every_report_has_its_file() {
    let stems = |extension: &str| -> BTreeSet<PathBuf> {
        let all = fs::read_dir(folder("diagnostics")).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.extension().is_some_and(|found| found == extension))
            .map(|path| path.with_extension(""))
            .collect()
    };
    assert_eq!(stems("txt"), stems("yaml"));
    assert!(stems("yaml").len() >= 45);
}

#[test]
fn diagnostics_are_reported_as_json() {
    let text = "rules:\n  - id: orders\n    limt: 3\n";
    let reported = report_json("rules.yaml", text, &read(text, NOW).diagnostics);
    let message = reported[0]["message"].as_str().unwrap();
    assert!(message.starts_with("unknown field \"limt\": did you mean limit?"), "{message}");
    for (field, value) in [("file", "rules.yaml"), ("severity", "error"), ("source", "    limt: 3")] {
        assert_eq!(reported[0][field], value);
    }
    assert_eq!((&reported[0]["line"], &reported[0]["column"]), (&Value::from(3), &Value::from(5)));
    assert_eq!(reported.as_array().unwrap().len(), 1);
}

#[test]
fn valid_files_have_no_diagnostics_and_fit_the_schema() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    for path in files("valid") {
        let text = fs::read_to_string(&path).unwrap();
        let parsed = read(&text, NOW);
        assert!(parsed.diagnostics.is_empty(), "{}", parsed.report(&path.display().to_string(), &text));
        let value = json_value(&text).unwrap();
        let errors: Vec<_> = validator
            .iter_errors(&value)
            .map(|error| format!("{} at {}", error, error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{}: {errors:#?}", path.display());
    }
}

#[test]
fn the_schema_rejects_all_errors_of_shape() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let mut passed = BTreeSet::new();
    for path in files("diagnostics") {
        let text = fs::read_to_string(&path).unwrap();
        // Invalid YAML can't be validated against a schema.
        let Some(value) = json_value(&text) else { continue };
        if validator.is_valid(&value) {
            passed.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
        }
    }
    let expected: BTreeSet<_> = BEYOND_SCHEMA.map(str::to_owned).into();
    assert_eq!(passed, expected);
}

/// The file as an editor sees it, which validates it against the schema: with types as in YAML's core schema. Returns
/// `None` if it is not valid YAML.
fn json_value(text: &str) -> Option<Value> {
    let mut diagnostics = Diagnostics::default();
    let root = yaml::parse(text, &mut diagnostics);
    // Editors ignore the tags that rule files must not have.
    if diagnostics.finish().iter().any(|error| !error.message.starts_with("the tag ")) {
        return None;
    }
    root.as_ref().map_or(Some(Value::Null), typed)
}

/// Returns `None` if a field appears twice.
fn typed(node: &YamlNode<'_>) -> Option<Value> {
    match &node.value {
        YamlValue::Map(pairs) => {
            let mut fields = Map::new();
            for (name, value) in pairs {
                let before = fields.insert(name.text().unwrap_or("null").to_owned(), typed(value)?);
                if before.is_some() {
                    return None;
                }
            }
            Some(fields.into())
        }
        YamlValue::List(items) => items.iter().map(typed).collect(),
        YamlValue::Scalar { .. } if node.is_null() => Some(Value::Null),
        YamlValue::Scalar { text, is_plain: true } => Some(match &**text {
            "true" | "True" | "TRUE" => true.into(),
            "false" | "False" | "FALSE" => false.into(),
            text if text.ends_with(|c: char| c.is_ascii_digit()) => {
                text.parse::<serde_json::Number>().map_or_else(|_| text.into(), Value::Number)
            }
            text => text.into(),
        }),
        YamlValue::Scalar { text, is_plain: false } => Some(text.as_ref().into()),
        YamlValue::Broken => None,
    }
}

fn files(name: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(folder(name))
        .expect("the folder can be read")
        .map(|entry| entry.expect("the entry can be read").path());
    let mut files: Vec<_> =
        all.filter(|path| path.extension().is_some_and(|found| found == "yaml")).collect();
    files.sort();
    files
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

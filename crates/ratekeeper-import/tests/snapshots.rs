//! Snapshot tests of importing the rules of other limiters.
//!
//! Beside each file in `import/` are the expected rules (`.rules.yaml`) and diagnostics (`.txt`). To update them, run
//! with `RATEKEEPER_BLESS=1`, then review the diff as the author of the file would read it.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use ratekeeper_core::Micros;
use ratekeeper_import::{ImportOutcome, ImportSource, import};
use ratekeeper_rules::{Severity, read, report};
use std::fs;
use std::path::{Path, PathBuf};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import").join(folder);
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_source = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.ends_with(".yaml") && !name.ends_with(".rules.yaml")
    };
    let mut files: Vec<_> = all.filter(is_source).collect();
    files.sort();
    files
}

#[track_caller]
fn check(source: ImportSource, folder: &str) {
    let bless = std::env::var_os("RATEKEEPER_BLESS").is_some();
    let files = files(folder);
    assert!(files.len() >= 3, "{folder}");
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let import = import(source, &[(name, &text)]);
        let rules = import.text.unwrap_or_default();
        let diagnostics = format!("{:?}\n{}", import.outcome, report(name, &text, &import.diagnostics[0]));
        for (extension, found) in [("rules.yaml", rules.as_str()), ("txt", diagnostics.as_str())] {
            let beside = path.with_extension(extension);
            if bless {
                fs::write(&beside, found).unwrap();
            } else {
                assert_eq!(fs::read_to_string(&beside).unwrap_or_default(), found, "{}", beside.display());
            }
        }
        let parsed = read(&rules, Micros::EPOCH);
        let is_valid = parsed.diagnostics.iter().all(|diagnostic| diagnostic.severity == Severity::Warning);
        assert!(is_valid, "{}", parsed.report(name, &rules));
    }
}

#[test]
fn envoy_imports_match_their_snapshots() {
    check(ImportSource::Envoy, "envoy");
}

#[test]
fn limitador_imports_match_their_snapshots() {
    check(ImportSource::Limitador, "limitador");
}

#[test]
fn an_unreadable_file_is_reported_and_others_are_imported() {
    let good = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 5}}]";
    let first_line = |source, text: &str| {
        let import = import(
            source,
            &[("f.yaml", text), ("good.yaml", if source == ImportSource::Envoy { good } else { "[]" })],
        );
        assert_eq!((import.outcome, import.text.is_some()), (ImportOutcome::Unreadable, true), "{text}");
        assert!(import.diagnostics[1].is_empty(), "{text}");
        report("f.yaml", text, &import.diagnostics[0]).lines().next().unwrap().to_owned()
    };
    for (text, expected) in [
        ("", "f.yaml: error: the file is empty: it has no domain"),
        ("descriptors: []", "f.yaml:1:1: error: the domain is missing: add it, like domain: edge"),
        (
            "[]",
            "f.yaml:1:1: error: this is not a configuration of envoyproxy/ratelimit, which begins with domain:",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap",
            "f.yaml:1:1: error: this is a Kubernetes resource: import the configuration",
        ),
        ("domain: [", "f.yaml:1:9: error: [ is opened here and never closed: add ]"),
    ] {
        let found = first_line(ImportSource::Envoy, text);
        assert!(found.starts_with(expected), "{found}");
    }
    for (text, expected) in [
        ("", "f.yaml: error: the file is empty: it has no limits"),
        ("apiVersion: v1", "f.yaml:1:1: error: this is a Kubernetes resource: import the list inside it"),
        (
            "limits: []",
            "f.yaml:1:1: error: this is more than a list of limits: import the list below limits:",
        ),
        ("namespace: a", "f.yaml:1:1: error: Limitador's limits are a list: each begins with - namespace:"),
    ] {
        let found = first_line(ImportSource::Limitador, text);
        assert!(found.starts_with(expected), "{found}");
    }
    let unreadable = import(ImportSource::Envoy, &[("f.yaml", "[]")]);
    assert_eq!((unreadable.text, unreadable.outcome), (None, ImportOutcome::Unreadable));
}

#[test]
fn documents_of_one_domain_are_merged() {
    let wide = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 5}}]\n";
    let narrow =
        "domain: edge\ndescriptors: [{key: a, value: x, rate_limit: {unit: second, requests_per_unit: 6}}]\n";
    let separate = import(ImportSource::Envoy, &[("wide.yaml", wide), ("narrow.yaml", narrow)]);
    let text = separate.text.unwrap();
    assert!(text.find("limit: 6/s").unwrap() < text.find("limit: 5/s").unwrap(), "{text}");
    let together = import(ImportSource::Envoy, &[("both.yaml", &format!("{wide}---\n{narrow}---\n"))]);
    assert_eq!((separate.outcome, together.outcome), (ImportOutcome::Complete, ImportOutcome::Complete));
    assert_eq!(
        together.text.unwrap().lines().skip(1).collect::<Vec<_>>(),
        text.lines().skip(1).collect::<Vec<_>>()
    );
}

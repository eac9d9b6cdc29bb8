//! Rules of other limiters become rules of ours that say the same, and what they can't say is told.
//!
//! Beside each file in `import/` stand the rules that come of it and what is said of it. Whoever changes either runs
//! this with `RATEKEEPER_BLESS=1`, which writes them anew, and reads them as somebody would who wrote the file.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use ratekeeper_core::Micros;
use ratekeeper_rules::{ImportOutcome, ImportSource, Severity, import, read, report};
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
        let said = format!("{:?}\n{}", import.outcome, report(name, &text, &import.complaints[0]));
        for (ending, found) in [("rules.yaml", rules.as_str()), ("txt", said.as_str())] {
            let beside = path.with_extension(ending);
            if bless {
                fs::write(&beside, found).unwrap();
            } else {
                assert_eq!(fs::read_to_string(&beside).unwrap_or_default(), found, "{}", beside.display());
            }
        }
        let review = read(&rules, Micros::EPOCH);
        let is_fine = review.complaints.iter().all(|complaint| complaint.severity == Severity::Warning);
        assert!(is_fine, "{}", review.report(name, &rules));
    }
}

#[test]
fn envoys_files_become_what_is_written_beside_them() {
    check(ImportSource::Envoy, "envoy");
}

#[test]
fn limitadors_files_become_what_is_written_beside_them() {
    check(ImportSource::Limitador, "limitador");
}

#[test]
fn what_cannot_be_read_at_all_is_told_and_hides_no_other_file() {
    let good = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 5}}]";
    let told = |source, text: &str| {
        let import = import(
            source,
            &[("f.yaml", text), ("good.yaml", if source == ImportSource::Envoy { good } else { "[]" })],
        );
        assert_eq!((import.outcome, import.text.is_some()), (ImportOutcome::Unread, true), "{text}");
        assert!(import.complaints[1].is_empty(), "{text}");
        report("f.yaml", text, &import.complaints[0]).lines().next().unwrap().to_owned()
    };
    for (text, said) in [
        ("", "f.yaml: error: the file says nothing: there is no domain in it"),
        ("descriptors: []", "f.yaml:1:1: error: the domain is missing: add it, like domain: edge"),
        (
            "[]",
            "f.yaml:1:1: error: this is no configuration of envoyproxy/ratelimit, which begins with domain:",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap",
            "f.yaml:1:1: error: this is a resource of Kubernetes: import the",
        ),
        ("domain: [", "f.yaml:1:9: error: [ is opened here and never closed: add ]"),
    ] {
        let found = told(ImportSource::Envoy, text);
        assert!(found.starts_with(said), "{found}");
    }
    for (text, said) in [
        ("", "f.yaml: error: the file says nothing: there are no limits in it"),
        (
            "apiVersion: v1",
            "f.yaml:1:1: error: this is a resource of Kubernetes: import the list that stands in it",
        ),
        ("limits: []", "f.yaml:1:1: error: this has more in it than limits: import the list below limits:"),
        ("namespace: a", "f.yaml:1:1: error: limits of Limitador are a list: each begins with - namespace:"),
    ] {
        let found = told(ImportSource::Limitador, text);
        assert!(found.starts_with(said), "{found}");
    }
    let nothing = import(ImportSource::Envoy, &[("f.yaml", "[]")]);
    assert_eq!((nothing.text, nothing.outcome), (None, ImportOutcome::Unread));
}

#[test]
fn documents_of_one_domain_are_one_tree() {
    let wide = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 5}}]\n";
    let narrow =
        "domain: edge\ndescriptors: [{key: a, value: x, rate_limit: {unit: second, requests_per_unit: 6}}]\n";
    let apart = import(ImportSource::Envoy, &[("wide.yaml", wide), ("narrow.yaml", narrow)]);
    let text = apart.text.unwrap();
    assert!(text.find("limit: 6/s").unwrap() < text.find("limit: 5/s").unwrap(), "{text}");
    let together = import(ImportSource::Envoy, &[("both.yaml", &format!("{wide}---\n{narrow}---\n"))]);
    assert_eq!((apart.outcome, together.outcome), (ImportOutcome::Whole, ImportOutcome::Whole));
    assert_eq!(
        together.text.unwrap().lines().skip(1).collect::<Vec<_>>(),
        text.lines().skip(1).collect::<Vec<_>>()
    );
}

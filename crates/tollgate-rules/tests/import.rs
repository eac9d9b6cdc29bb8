//! Rules of other limiters become rules of ours that say the same, and what they can't say is told.
//!
//! Beside each file in `import/` stand the rules that come of it and what is said of it. Whoever changes either runs
//! this with `TOLLGATE_BLESS=1`, which writes them anew, and reads them as somebody would who wrote the file.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use tollgate_core::Micros;
use tollgate_rules::{Severity, Source, import, read, report};

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
fn check(source: Source, folder: &str) {
    let bless = std::env::var_os("TOLLGATE_BLESS").is_some();
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
    check(Source::Envoy, "envoy");
}

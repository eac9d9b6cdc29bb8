//! Rules of the project that no compiler checks.
//!
//! Every file that git tracks or would add is read. Each violation is printed as `file:line: what`, and then the step
//! fails. Text that a rule forbids is written here in two halves, so that this file keeps the rule too.

mod module_graph;
mod source;
mod type_names;
mod words;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use source::Source;

/// Paths that exist on one machine only.
const MACHINE_PATHS: [&str; 2] = [concat!("/ro", "ot/"), concat!("/wo", "rk/")];

/// Marks of unfinished work and of tests that do not run.
const UNFINISHED: [&str; 3] =
    [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("#[", "ignore")];

/// A longer file usually defines more than one concept.
const MAX_LINES: usize = 600;

/// A README that readers finish.
const MAX_README_BYTES: usize = 6_000;

/// Where a package may come from. Any other line names a mirror, or code that was never published.
const LOCKED_SOURCE: &str = r#"source = "registry+https://github.com/rust-lang/crates.io-index""#;

/// Checks every file, and fails if any breaks a rule.
pub(crate) fn check() -> Result<()> {
    let mut violations = Vec::new();
    let mut sources = Vec::new();
    for path in files()? {
        // A file that is not UTF-8 is an image or a captured packet.
        if let Ok(text) = String::from_utf8(fs::read(&path)?) {
            violations.extend(violations_in(&path, &text));
        }
        if source::is_source(&path) {
            sources.push(Source::read(&path)?);
        }
    }
    violations.extend(type_names::check(&sources));
    violations.extend(module_graph::check(&sources));
    for violation in &violations {
        println!("{violation}");
    }
    ensure!(violations.is_empty(), "{} violations", violations.len());
    Ok(())
}

/// The files of the work tree that git tracks or would add.
fn files() -> Result<Vec<PathBuf>> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(list).output().context("cannot start git")?;
    ensure!(output.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    // A file that is removed but not yet committed is still listed.
    Ok(names.split_terminator('\0').map(PathBuf::from).filter(|path| path.is_file()).collect())
}

fn violations_in(path: &Path, text: &str) -> Vec<String> {
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    let is_lock = path.file_name().is_some_and(|name| name == "Cargo.lock");
    let has_words = words::applies_to(path);
    let mut found = Vec::new();
    if path == Path::new("README.md") && text.len() > MAX_README_BYTES {
        found.push(format!("README.md: has {} bytes, at most {MAX_README_BYTES} are allowed", text.len()));
    }
    for (number, line) in (1..).zip(text.lines()) {
        let mut report = |what: &str| found.push(format!("{}:{number}: {what}", path.display()));
        if MACHINE_PATHS.iter().any(|start| begins_path(line, start)) {
            report("contains a path of one machine");
        }
        if is_rust && UNFINISHED.iter().any(|mark| line.contains(mark)) {
            report("contains unfinished work or a test that does not run");
        }
        if is_rust && number == 1 && !line.starts_with("//!") {
            report("has no //! header that says what the file is for");
        }
        if is_rust && number == MAX_LINES + 1 {
            report("has more than 600 lines: split it by concept");
        }
        if is_lock && line.starts_with("source = ") && line != LOCKED_SOURCE {
            report("locks a package from elsewhere than the registry");
        }
        if has_words {
            for (word, better) in words::retired_in(line) {
                report(&format!("contains {word:?}: write {better}"));
            }
        }
    }
    found
}

/// Whether a path in `line` begins with `start`. The same folder further down a path or in an address is no match.
fn begins_path(line: &str, start: &str) -> bool {
    let continues = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || "._-~}".contains(c));
    line.match_indices(start).any(|(at, _)| !continues(&line[..at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        assert_eq!(violations_in(Path::new(path), text), expected);
    }

    #[test]
    fn machine_paths_are_found_where_a_path_begins() {
        let [home, _] = MACHINE_PATHS;
        check("a.md", &format!("see\n`{home}notes`"), &["a.md:2: contains a path of one machine"]);
        check("a.md", &format!("https://example.com{home}notes"), &[]);
    }

    #[test]
    fn unfinished_work_is_found_in_rust_only() {
        let text = format!("//! A file.\nfn f() {{ {}) }}\n", UNFINISHED[0]);
        check("a.rs", &text, &["a.rs:2: contains unfinished work or a test that does not run"]);
        check("a.md", &text, &[]);
    }

    #[test]
    fn rust_files_say_what_they_are_for() {
        check("a.rs", "use std::io;\n", &["a.rs:1: has no //! header that says what the file is for"]);
        check("a.rs", "//! A file.\n", &[]);
    }

    #[test]
    fn long_files_are_found_at_the_first_line_too_many() {
        let text = "//! A file.\n".repeat(MAX_LINES);
        check("a.rs", &text, &[]);
        check("a.rs", &(text + "\n"), &["a.rs:601: has more than 600 lines: split it by concept"]);
    }

    #[test]
    fn a_long_readme_is_found() {
        check("README.md", &"a".repeat(MAX_README_BYTES), &[]);
        let long = "a".repeat(MAX_README_BYTES + 1);
        check("README.md", &long, &["README.md: has 6001 bytes, at most 6000 are allowed"]);
        check("docs/README.md", &long, &[]);
    }

    #[test]
    fn packages_come_from_the_registry() {
        check("Cargo.lock", LOCKED_SOURCE, &[]);
        check(
            "bench/Cargo.lock",
            "source = \"registry+https://mirror.example/index\"",
            &["bench/Cargo.lock:1: locks a package from elsewhere than the registry"],
        );
    }
}

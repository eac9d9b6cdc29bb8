//! House rules that no compiler checks.
//!
//! Every file git knows of, or would add, is read as text and held against the rules below; all that is wrong is
//! printed, as `file:line: what`, before the step fails. What the rules forbid is spelled here in two halves,
//! so that this file keeps them too.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// Folders that exist on somebody's machine only.
const MACHINE_PATHS: [&str; 2] = [concat!("/ro", "ot/"), concat!("/wo", "rk/")];

/// What stands for work not done, or for a test not run.
const UNFINISHED: [&str; 3] =
    [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("#[", "ignore")];

/// Longer than this, a file most often holds a second noun.
const MOST_LINES: usize = 600;

/// Where a package may come from. Any other line tells of a mirror, or of code nobody published.
const LOCKED_SOURCE: &str = r#"source = "registry+https://github.com/rust-lang/crates.io-index""#;

/// Checks every file, and fails if any breaks a rule.
pub(crate) fn check() -> Result<()> {
    let mut complaints = Vec::new();
    for path in files()? {
        // What is not UTF-8 is no text: an image or a captured packet.
        if let Ok(text) = String::from_utf8(fs::read(&path)?) {
            complaints.extend(complaints_about(&path, &text));
        }
    }
    for complaint in &complaints {
        println!("{complaint}");
    }
    ensure!(complaints.is_empty(), "{} places break a house rule", complaints.len());
    Ok(())
}

/// The files of the work tree that git tracks or would add.
fn files() -> Result<Vec<PathBuf>> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(list).output().context("cannot start git")?;
    ensure!(output.status.success(), "git lists no files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    // A file removed but not yet committed is still listed.
    Ok(names.split_terminator('\0').map(PathBuf::from).filter(|path| path.is_file()).collect())
}

fn complaints_about(path: &Path, text: &str) -> Vec<String> {
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    let is_lock = path.file_name().is_some_and(|name| name == "Cargo.lock");
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut complain = |what: &str| found.push(format!("{}:{number}: {what}", path.display()));
        if MACHINE_PATHS.iter().any(|start| begins_path(line, start)) {
            complain("names a folder of one machine");
        }
        if is_rust && UNFINISHED.iter().any(|mark| line.contains(mark)) {
            complain("leaves work open or a test unrun");
        }
        if is_rust && number == 1 && !line.starts_with("//!") {
            complain("does not begin by saying what the file is for");
        }
        if is_rust && number == MOST_LINES + 1 {
            complain("is past 600 lines: is there a second noun inside?");
        }
        if is_lock && line.starts_with("source = ") && line != LOCKED_SOURCE {
            complain("locks a package from somewhere else than the registry");
        }
    }
    found
}

/// Whether a path in `line` begins with `start`; the same folder name further down a path or address is no match.
fn begins_path(line: &str, start: &str) -> bool {
    let goes_on = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || "._-~}".contains(c));
    line.match_indices(start).any(|(at, _)| !goes_on(&line[..at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        assert_eq!(complaints_about(Path::new(path), text), expected);
    }

    #[test]
    fn machine_paths_are_found_where_a_path_begins() {
        let [home, _] = MACHINE_PATHS;
        check("a.md", &format!("see\n`{home}notes`"), &["a.md:2: names a folder of one machine"]);
        check("a.md", &format!("https://example.com{home}notes"), &[]);
    }

    #[test]
    fn open_work_is_found_in_rust_only() {
        let text = format!("//! A file.\nfn f() {{ {}) }}\n", UNFINISHED[0]);
        check("a.rs", &text, &["a.rs:2: leaves work open or a test unrun"]);
        check("a.md", &text, &[]);
    }

    #[test]
    fn rust_files_say_what_they_are_for() {
        check("a.rs", "use std::io;\n", &["a.rs:1: does not begin by saying what the file is for"]);
        check("a.rs", "//! A file.\n", &[]);
    }

    #[test]
    fn long_files_are_found_at_the_first_line_too_many() {
        let text = "//! A file.\n".repeat(MOST_LINES);
        check("a.rs", &text, &[]);
        check("a.rs", &(text + "\n"), &["a.rs:601: is past 600 lines: is there a second noun inside?"]);
    }

    #[test]
    fn packages_come_from_the_registry() {
        check("Cargo.lock", LOCKED_SOURCE, &[]);
        check(
            "bench/Cargo.lock",
            "source = \"registry+https://mirror.example/index\"",
            &["bench/Cargo.lock:1: locks a package from somewhere else than the registry"],
        );
    }
}

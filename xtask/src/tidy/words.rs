//! Words that the project does not use, because the field has a better-known one.
//!
//! Checked are sources, benchmarks, manifests, docs and the test scripts. Rust integration tests are not: a key may be
//! called anything.

use std::path::Path;

/// A retired word and what to write instead. Words are matched whole, in any case, also as parts of identifiers.
const RETIRED: [(&str, &str); 22] = [
    ("tollgate", "ratekeeper"),
    ("law", "algorithm"),
    ("laws", "algorithms"),
    ("docket", "batch"),
    ("verdict", "decision"),
    ("parcel", "script call"),
    ("courier", "worker"),
    ("errand", "request"),
    ("clerk", "executor"),
    ("lane", "queue, batcher or fast path"),
    ("broom", "sweep"),
    ("whim", "jitter"),
    ("patience", "timeout or deadline"),
    ("complaint", "diagnostic"),
    ("complaints", "diagnostics"),
    ("misfit", "mismatch"),
    ("whoever", "the caller, the client, the operator"),
    ("somebody", "the client, the caller"),
    ("nobody", "no client, no caller"),
    ("in hand", "unspent"),
    ("in vain", "false denial"),
    ("desk", "connection, handler"),
];

/// Files in other languages that are checked: scripts, schemas and manifests.
const SUFFIXES: [&str; 5] = [".lua", ".mjs", ".proto", ".py", ".toml"];

/// Whether the words in a file are checked.
pub(super) fn applies_to(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let is_doc = text.ends_with(".md") && text != "CHANGELOG.md";
    let is_bench = text.starts_with("bench/src/");
    let is_other_text = SUFFIXES.iter().any(|suffix| text.ends_with(suffix));
    // These files list the words themselves.
    (is_doc || super::source::is_source(path) || is_bench || is_other_text)
        && !text.starts_with("xtask/src/tidy")
}

/// The retired words of a line, each with what to write instead.
pub(super) fn retired_in(line: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let line = split_identifiers(line);
    RETIRED.into_iter().filter(move |(word, _)| contains_word(&line, word))
}

/// The line in lower case, with the words of identifiers apart: `fooBar_baz` is `foo bar baz`.
fn split_identifiers(line: &str) -> String {
    let mut split = String::with_capacity(line.len() + 16);
    let mut was_lower = false;
    for c in line.chars() {
        if c == '_' || (c.is_uppercase() && was_lower) {
            split.push(' ');
        }
        if c != '_' {
            split.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    split
}

fn contains_word(line: &str, word: &str) -> bool {
    let is_inside = |c: char| c.is_alphanumeric();
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_inside) && !line[at + word.len()..].starts_with(is_inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: &[&str]) {
        assert_eq!(retired_in(line).map(|(word, _)| word).collect::<Vec<_>>(), expected, "{line}");
    }

    #[test]
    fn retired_words_are_found_in_prose_and_identifiers() {
        check("/// The verdict of a docket.", &["docket", "verdict"]);
        check("let old_verdict = DocketEntry::new();", &["docket", "verdict"]);
        check("units in hand", &["in hand"]);
        check("the planet has a flaw", &[]);
        check("nobodys", &[]);
    }

    #[test]
    fn which_files_are_checked() {
        for path in [
            "README.md",
            "docs/http.md",
            "crates/x/src/a.rs",
            "crates/x/src/draw.lua",
            "bench/src/run.rs",
            "tests/envoy/edge.py",
            "Cargo.toml",
        ] {
            assert!(applies_to(Path::new(path)), "{path}");
        }
        for path in ["CHANGELOG.md", "crates/x/tests/a.rs", "xtask/src/tidy/words.rs", "bench/runs/a.txt"] {
            assert!(!applies_to(Path::new(path)), "{path}");
        }
    }
}

//! Rules on their way into a file that people read.

use crate::diagnostic::quoted;
use crate::dimension::Dimension;
use crate::spec::MOST_ID;
use ratekeeper_core::Quota;
use std::collections::HashSet;
use std::fmt::Write as _;

/// The longest line that is still read at a glance.
const LINE: usize = 110;

/// A rule as it will be written.
#[derive(Clone, Debug, Default)]
pub(super) struct DraftRule {
    pub(super) id: String,
    /// What stands above it, a line each.
    pub(super) comments: Vec<String>,
    pub(super) description: Option<String>,
    pub(super) is_shadow: bool,
    pub(super) domain: String,
    /// Names and patterns; without a pattern, any value.
    pub(super) descriptor: Vec<(String, Option<String>)>,
    pub(super) attributes: Vec<(String, String)>,
    /// What it counts by; if empty, what it would without saying so.
    pub(super) key: Vec<String>,
    /// None if it is unlimited.
    pub(super) limits: Vec<Quota>,
    /// Whether its windows begin with the first hit.
    pub(super) starts_with_hit: bool,
}

/// A rule file.
pub(super) fn write(files: &[&str], about: &str, rules: &[DraftRule]) -> String {
    let mut text = String::new();
    for line in about.lines() {
        comment(&mut text, "", &line.replace("FILE", &files.join(", ")));
    }
    match rules {
        [] => text.push_str("rules: []\n"),
        rules => {
            text.push_str("rules:\n");
            rules.iter().for_each(|rule| rule.write(&mut text));
        }
    }
    text
}

/// A line of comment, or an empty line if nothing is said. A comment can't hold what ends a line, however a file is named.
fn comment(text: &mut String, indent: &str, said: &str) {
    if said.is_empty() {
        text.push('\n');
        return;
    }
    let said = said.replace(needs_escape, " ");
    text.push_str(format!("{indent}# {said}").trim_end());
    text.push('\n');
}

impl DraftRule {
    fn write(&self, text: &mut String) {
        for line in &self.comments {
            comment(text, "  ", line);
        }
        // Writing into a string can't fail.
        let _ = writeln!(text, "  - id: {}", scalar(&self.id));
        if let Some(description) = &self.description {
            let _ = writeln!(text, "    description: {}", scalar(description));
        }
        if self.is_shadow {
            text.push_str("    shadow: true\n");
        }
        self.write_match(text);
        if !self.key.is_empty() {
            let _ = writeln!(text, "    key: {}", one_or_list(&self.key));
        }
        let limits: Vec<_> = self.limits.iter().map(ToString::to_string).collect();
        let _ = match limits.as_slice() {
            [] => writeln!(text, "    limit: unlimited"),
            [limit] => writeln!(text, "    limit: {limit}"),
            limits => writeln!(text, "    limits: [{}]", limits.join(", ")),
        };
        if !limits.is_empty() {
            text.push_str("    algorithm: fixed_window\n");
        }
        if !limits.is_empty() && self.starts_with_hit {
            text.push_str("    starts: first_hit\n");
        }
    }

    /// On one line if it is short.
    fn write_match(&self, text: &mut String) {
        let mut parts = vec![format!("domain: {}", scalar(&self.domain))];
        let entries: Vec<_> = self.descriptor.iter().map(entry).collect();
        let pair = |(name, value): &(String, String)| format!("{}: {}", scalar(name), scalar(value));
        let attributes: Vec<_> = self.attributes.iter().map(pair).collect();
        if !entries.is_empty() {
            parts.push(format!("descriptor: [{}]", entries.join(", ")));
        }
        if !attributes.is_empty() {
            parts.push(format!("attributes: {{{}}}", attributes.join(", ")));
        }
        let short = format!("    match: {{{}}}", parts.join(", "));
        if short.chars().count() <= LINE {
            text.push_str(&short);
            text.push('\n');
            return;
        }
        let _ = write!(text, "    match:\n      {}\n", parts[0]);
        for (field, mark, lines) in [("descriptor", "- ", &entries), ("attributes", "", &attributes)] {
            if !lines.is_empty() {
                let _ = writeln!(text, "      {field}:");
            }
            for line in lines {
                let _ = writeln!(text, "        {mark}{line}");
            }
        }
    }
}

fn entry((name, value): &(String, Option<String>)) -> String {
    match value {
        Some(value) => format!("{}: {}", scalar(name), scalar(value)),
        None => scalar(name),
    }
}

fn one_or_list(names: &[String]) -> String {
    let names: Vec<_> = names.iter().map(|name| scalar(name)).collect();
    match names.as_slice() {
        [name] => name.clone(),
        names => format!("[{}]", names.join(", ")),
    }
}

/// A text as YAML has it: bare if nothing could take it for something else, else in quotes.
fn scalar(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    // A colon is plain within a word, as ids have it.
    let is_bare = text.starts_with(|c: char| c.is_ascii_alphanumeric() || "_/".contains(c))
        && text.chars().all(|c| is_plain(c) || c == ':')
        && !text.ends_with(':')
        && !looks_typed(text);
    if is_bare {
        return text.to_owned();
    }
    if !text.contains(needs_escape) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if needs_escape(c) => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// Whether YAML has no such character outside an escape: controls, line separators, the byte order mark and the two
/// code points of the first plane that are no characters.
fn needs_escape(c: char) -> bool {
    c.is_control() || "\u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}".contains(c)
}

/// Whether a bare text would be a number, a date, a flag or nothing to some reader of YAML.
fn looks_typed(text: &str) -> bool {
    const WORDS: [&str; 8] = ["null", "true", "false", "yes", "no", "on", "off", "y"];
    let is_number = text.starts_with(|c: char| c.is_ascii_digit())
        && text.matches('.').count() < 2
        && text.chars().all(|c| c.is_ascii_hexdigit() || "._-+:xo".contains(c));
    is_number || WORDS.iter().any(|word| text.eq_ignore_ascii_case(word)) || text == "n" || text == "N"
}

/// Names for rules, each given once.
#[derive(Debug, Default)]
pub(super) struct Ids(HashSet<String>);

impl Ids {
    /// The nearest to a text that a rule's name may be, and that no other rule has.
    pub(super) fn name(&mut self, text: &str) -> String {
        let known = |c: char| if c.is_ascii_alphanumeric() || "._:/-".contains(c) { c } else { '-' };
        let clean: String = text.chars().map(known).collect();
        let clean = clean.trim_matches(['-', '/', ':', '.']);
        let clean = if clean.is_empty() { "rule" } else { clean };
        let shorten = |room: usize| clean.chars().take(room).collect::<String>();
        let mut id = shorten(MOST_ID);
        let mut number = 1;
        while !self.0.insert(id.clone()) {
            number += 1;
            let suffix = format!("-{number}");
            id = shorten(MOST_ID - suffix.len()) + &suffix;
        }
        id
    }
}

/// Why an attribute of this name can't be counted by, if it can't.
pub(super) fn unfit_for_key(name: &str) -> Option<String> {
    if Dimension::NAMES.contains(&name) {
        return Some(format!("a rule's key takes {name} for the request's own {name}, not for the entry"));
    }
    unfit_as_attribute(name)
}

/// Why a rule can't ask for an attribute of this name, if it can't.
pub(super) fn unfit_as_attribute(name: &str) -> Option<String> {
    let is_fit = !name.is_empty() && Dimension::is_attribute(name);
    (!is_fit).then(|| {
        format!("an attribute has letters, digits, _, - and . only in its name, and {} is none", quoted(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_clean_and_each_given_once() {
        let mut ids = Ids::default();
        assert_eq!(ids.name("edge:a b/é"), "edge:a-b");
        assert_eq!(ids.name("edge:a b/é"), "edge:a-b-2");
        assert_eq!(ids.name("***"), "rule");
        let long = "x".repeat(100);
        assert_eq!((ids.name(&long).len(), ids.name(&long).len()), (64, 64));
    }

    #[test]
    fn characters_that_yaml_does_not_take_as_they_are_are_escaped() {
        for c in (0..=0x1_ffff).filter_map(char::from_u32).filter(|&c| needs_escape(c)) {
            let text = format!("a{c}b");
            let rule = DraftRule {
                id: "r".to_owned(),
                comments: vec![text.clone()],
                domain: text.clone(),
                limits: vec!["1/s".parse().unwrap()],
                ..DraftRule::default()
            };
            let written = write(&[&text], "of FILE", &[rule]);
            let spec = crate::read(&written, ratekeeper_core::Micros::EPOCH)
                .spec
                .unwrap_or_else(|| panic!("{written}"));
            assert_eq!(spec.rules[0].when.domain.as_ref().map(crate::Pattern::as_str), Some(text.as_str()));
        }
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_read_as_it_was(name in "[^*\\s]\\PC{0,8}[^*\\s]", value in ".{1,12}") {
            let name = name.replace('*', "-");
            prop_assume!(!value.trim().is_empty());
            let rule = DraftRule {
                id: "r".to_owned(),
                comments: vec![value.clone()],
                domain: value.clone(),
                descriptor: vec![(name.clone(), Some(value.clone())), (name.clone(), None)],
                attributes: vec![("n".to_owned(), value.clone())],
                limits: vec!["1/s".parse().unwrap()],
                ..DraftRule::default()
            };
            for rule in [rule.clone(), DraftRule { description: Some("x".repeat(200)), domain: value.repeat(10), ..rule }] {
                let text = write(&[&value], "of FILE", std::slice::from_ref(&rule));
                let review = crate::read(&text, ratekeeper_core::Micros::EPOCH);
                let report = review.report("", &text);
                let Some(spec) = review.spec else { return Err(TestCaseError::fail(format!("{text}\n{report}"))) };
                let when = &spec.rules[0].when;
                prop_assert_eq!(when.domain.as_ref().map(crate::Pattern::as_str), Some(rule.domain.as_str()));
                prop_assert_eq!((&when.descriptor[0].0, when.descriptor[0].1.as_str()), (&name, value.as_str()));
                prop_assert!(when.descriptor[1].0 == name && when.descriptor[1].1.is_any());
                prop_assert_eq!(when.attributes[0].1[0].as_str(), value.as_str());
            }
        }
    }
}

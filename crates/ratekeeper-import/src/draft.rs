//! Draft rules, and how they are written to a rule file.

use ratekeeper_core::Quota;
use ratekeeper_rules::Dimension;
use ratekeeper_rules::bounds::MAX_ID_BYTES;
use ratekeeper_rules::quoted;
use std::collections::HashSet;
use std::fmt::Write as _;

/// The longest `match` that is written on one line, in characters.
const MAX_LINE_CHARS: usize = 110;

/// A rule to be written.
#[derive(Clone, Debug, Default)]
pub(super) struct DraftRule {
    pub(super) id: String,
    /// The comment lines above it.
    pub(super) comments: Vec<String>,
    pub(super) description: Option<String>,
    pub(super) is_shadow: bool,
    pub(super) domain: String,
    /// Names and patterns; `None` matches any value.
    pub(super) descriptor: Vec<(String, Option<String>)>,
    pub(super) attributes: Vec<(String, String)>,
    /// The dimensions to count by; if empty, the default key of a rule.
    pub(super) key: Vec<String>,
    /// Empty if the rule is unlimited.
    pub(super) limits: Vec<Quota>,
    /// Whether windows begin with the first hit.
    pub(super) starts_at_first_hit: bool,
}

/// Writes a rule file. `header` becomes a comment at the top, with `FILE` replaced by the names of `files`.
pub(super) fn write(files: &[&str], header: &str, rules: &[DraftRule]) -> String {
    let mut text = String::new();
    for line in header.lines() {
        write_comment(&mut text, "", &line.replace("FILE", &files.join(", ")));
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

/// Writes a comment line, or an empty line if it has no text. Characters that would end the line, as a file name may
/// have them, are replaced by spaces.
fn write_comment(text: &mut String, indent: &str, line: &str) {
    if line.is_empty() {
        text.push('\n');
        return;
    }
    let line = line.replace(needs_escape, " ");
    text.push_str(format!("{indent}# {line}").trim_end());
    text.push('\n');
}

impl DraftRule {
    fn write(&self, text: &mut String) {
        for line in &self.comments {
            write_comment(text, "  ", line);
        }
        // Writing to a string never fails.
        let _ = writeln!(text, "  - id: {}", scalar(&self.id));
        if let Some(description) = &self.description {
            let _ = writeln!(text, "    description: {}", scalar(description));
        }
        if self.is_shadow {
            text.push_str("    shadow: true\n");
        }
        self.write_match(text);
        if !self.key.is_empty() {
            let _ = writeln!(text, "    key: {}", scalar_or_list(&self.key));
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
        if !limits.is_empty() && self.starts_at_first_hit {
            text.push_str("    starts: first_hit\n");
        }
    }

    /// Writes the `match` on one line if it is short.
    fn write_match(&self, text: &mut String) {
        let mut parts = vec![format!("domain: {}", scalar(&self.domain))];
        let entries: Vec<_> = self.descriptor.iter().map(entry_text).collect();
        let pair = |(name, value): &(String, String)| format!("{}: {}", scalar(name), scalar(value));
        let attributes: Vec<_> = self.attributes.iter().map(pair).collect();
        if !entries.is_empty() {
            parts.push(format!("descriptor: [{}]", entries.join(", ")));
        }
        if !attributes.is_empty() {
            parts.push(format!("attributes: {{{}}}", attributes.join(", ")));
        }
        let short = format!("    match: {{{}}}", parts.join(", "));
        if short.chars().count() <= MAX_LINE_CHARS {
            text.push_str(&short);
            text.push('\n');
            return;
        }
        let _ = write!(text, "    match:\n      {}\n", parts[0]);
        for (field, bullet, lines) in [("descriptor", "- ", &entries), ("attributes", "", &attributes)] {
            if !lines.is_empty() {
                let _ = writeln!(text, "      {field}:");
            }
            for line in lines {
                let _ = writeln!(text, "        {bullet}{line}");
            }
        }
    }
}

fn entry_text((name, value): &(String, Option<String>)) -> String {
    match value {
        Some(value) => format!("{}: {}", scalar(name), scalar(value)),
        None => scalar(name),
    }
}

fn scalar_or_list(names: &[String]) -> String {
    let names: Vec<_> = names.iter().map(|name| scalar(name)).collect();
    match names.as_slice() {
        [name] => name.clone(),
        names => format!("[{}]", names.join(", ")),
    }
}

/// A text as a YAML scalar: bare if no parser could misread it, else quoted.
fn scalar(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    // A colon within a word, as in ids, does not need quotes.
    let is_bare = text.starts_with(|c: char| c.is_ascii_alphanumeric() || "_/".contains(c))
        && text.chars().all(|c| is_plain(c) || c == ':')
        && !text.ends_with(':')
        && !is_ambiguous(text);
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

/// Whether YAML allows the character only as an escape: control characters, line separators, the byte order mark and
/// the two noncharacters U+FFFE and U+FFFF.
fn needs_escape(c: char) -> bool {
    c.is_control() || "\u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}".contains(c)
}

/// Whether some YAML parser would read a bare text as a number, a date, a boolean or null.
fn is_ambiguous(text: &str) -> bool {
    const WORDS: [&str; 8] = ["null", "true", "false", "yes", "no", "on", "off", "y"];
    let is_number = text.starts_with(|c: char| c.is_ascii_digit())
        && text.matches('.').count() < 2
        && text.chars().all(|c| c.is_ascii_hexdigit() || "._-+:xo".contains(c));
    is_number || WORDS.iter().any(|word| text.eq_ignore_ascii_case(word)) || text == "n" || text == "N"
}

/// Assigns unique rule ids.
#[derive(Debug, Default)]
pub(super) struct RuleIds(HashSet<String>);

impl RuleIds {
    /// Returns the valid rule id closest to the text that is not taken yet.
    pub(super) fn unique_id(&mut self, text: &str) -> String {
        let allowed = |c: char| if c.is_ascii_alphanumeric() || "._:/-".contains(c) { c } else { '-' };
        let clean: String = text.chars().map(allowed).collect();
        let clean = clean.trim_matches(['-', '/', ':', '.']);
        let clean = if clean.is_empty() { "rule" } else { clean };
        let shorten = |length: usize| clean.chars().take(length).collect::<String>();
        let mut id = shorten(MAX_ID_BYTES);
        let mut number = 1;
        while !self.0.insert(id.clone()) {
            number += 1;
            let suffix = format!("-{number}");
            id = shorten(MAX_ID_BYTES - suffix.len()) + &suffix;
        }
        id
    }
}

/// Returns why a rule can't count by an attribute of this name, or `None` if it can.
pub(super) fn key_name_error(name: &str) -> Option<String> {
    if Dimension::BUILT_IN_NAMES.contains(&name) {
        return Some(format!("in a rule's key, {name} means the request's own {name}, not the entry"));
    }
    attribute_name_error(name)
}

/// Returns why a rule can't match an attribute of this name, or `None` if it can.
pub(super) fn attribute_name_error(name: &str) -> Option<String> {
    let is_valid = !name.is_empty() && Dimension::is_attribute_name(name);
    (!is_valid).then(|| {
        format!("{} is not an attribute name, which has letters, digits, _, - and . only", quoted(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_are_valid_and_unique() {
        let mut ids = RuleIds::default();
        assert_eq!(ids.unique_id("edge:a b/é"), "edge:a-b");
        assert_eq!(ids.unique_id("edge:a b/é"), "edge:a-b-2");
        assert_eq!(ids.unique_id("***"), "rule");
        let long = "x".repeat(100);
        assert_eq!((ids.unique_id(&long).len(), ids.unique_id(&long).len()), (64, 64));
    }

    #[test]
    fn characters_that_yaml_forbids_are_escaped() {
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
            let spec = ratekeeper_rules::read(&written, ratekeeper_core::Micros::EPOCH)
                .spec
                .unwrap_or_else(|| panic!("{written}"));
            assert_eq!(
                spec.rules[0].when.domain.as_ref().map(ratekeeper_rules::Pattern::as_str),
                Some(text.as_str())
            );
        }
    }

    proptest! {
        #[test]
        fn written_rules_are_read_back_unchanged(name in "[^*\\s]\\PC{0,8}[^*\\s]", value in ".{1,12}") {
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
                let parsed = ratekeeper_rules::read(&text, ratekeeper_core::Micros::EPOCH);
                let report = parsed.report("", &text);
                let Some(spec) = parsed.spec else { return Err(TestCaseError::fail(format!("{text}\n{report}"))) };
                let when = &spec.rules[0].when;
                prop_assert_eq!(when.domain.as_ref().map(ratekeeper_rules::Pattern::as_str), Some(rule.domain.as_str()));
                prop_assert_eq!((&when.descriptor[0].0, when.descriptor[0].1.as_str()), (&name, value.as_str()));
                prop_assert!(when.descriptor[1].0 == name && when.descriptor[1].1.is_any());
                prop_assert_eq!(when.attributes[0].1[0].as_str(), value.as_str());
            }
        }
    }
}

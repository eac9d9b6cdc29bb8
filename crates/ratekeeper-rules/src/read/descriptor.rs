//! Parses `match.descriptor` (the entries of a proxy's descriptor), with specific errors for common mistakes.

use super::RuleReader;
use super::fields::FieldItem;
use crate::bounds::MAX_DESCRIPTOR_ENTRIES;
use crate::diagnostic::quoted;
use crate::pattern::Pattern;
use crate::yaml::{YamlNode, YamlValue};
use std::collections::HashMap;

impl<'n> RuleReader<'n> {
    /// The entries to match, in order. Invalid entries are reported and left out.
    pub(super) fn descriptor(&mut self, item: &FieldItem<'n>) -> Vec<(String, Pattern)> {
        let entries = match &item.node.value {
            YamlValue::List(items) if items.is_empty() => {
                item.report_empty(&mut self.diagnostics);
                Vec::new()
            }
            YamlValue::List(items) => {
                items.iter().filter_map(|node| self.entry(&item.with_node(node))).collect()
            }
            YamlValue::Map(pairs) => self.entries_of_map(item, pairs),
            YamlValue::Scalar { .. } | YamlValue::Broken => self.entry(item).into_iter().collect(),
        };
        if entries.len() > MAX_DESCRIPTOR_ENTRIES {
            let message = format!(
                "a descriptor can have at most {MAX_DESCRIPTOR_ENTRIES} entries, not {}: use match.attributes to match only some \
                 of them",
                entries.len()
            );
            self.diagnostics.error(item.place(), message);
        }
        entries
    }

    /// Reads a name and its value, or a name alone, which matches any value.
    fn entry(&mut self, item: &FieldItem<'n>) -> Option<(String, Pattern)> {
        match &item.node.value {
            YamlValue::Map(pairs) => match pairs.as_slice() {
                [(name, value)] => self.entry_pair(item, name, value),
                pairs => self.diagnostics.reject(item.place(), entry_shape_error(pairs)),
            },
            YamlValue::List(_) => {
                let message = "an entry is a name, or a name and its value: write - generic_key: slowpath, or \
                            - remote_address for any value";
                self.diagnostics.reject(item.place(), message)
            }
            YamlValue::Scalar { .. } | YamlValue::Broken => {
                let name = self.entry_name(item)?;
                Some((name.to_owned(), Pattern::new("*")))
            }
        }
    }

    fn entries_of_map(
        &mut self,
        item: &FieldItem<'n>,
        pairs: &'n [(YamlNode<'n>, YamlNode<'n>)],
    ) -> Vec<(String, Pattern)> {
        if pairs.is_empty() {
            item.report_empty(&mut self.diagnostics);
        }
        if is_envoy_entry(pairs) {
            self.diagnostics.error(item.place(), entry_shape_error(pairs));
            return Vec::new();
        }
        let mut lines = HashMap::new();
        let mut entries = Vec::new();
        for (name, value) in pairs {
            let again = name.text().and_then(|text| lines.insert(text, name.place.line));
            if let Some(line) = again {
                let message = format!(
                    "{} appears twice, first in line {line}: write a list, where names may repeat, like [a: x, a: \
                     y]",
                    quoted(name.text().unwrap_or_default())
                );
                self.diagnostics.error(name.place, message);
                continue;
            }
            entries.extend(self.entry_pair(item, name, value));
        }
        entries
    }

    fn entry_pair(
        &mut self,
        item: &FieldItem<'n>,
        name: &'n YamlNode<'n>,
        value: &'n YamlNode<'n>,
    ) -> Option<(String, Pattern)> {
        let text = self.entry_name(&item.with_node(name))?;
        let shown = quoted(text);
        if value.is_null() {
            let message =
                format!("{shown} has no value: write it alone, as - {text}, or {text}: \"*\" for any value");
            return self.diagnostics.reject(name.place, message);
        }
        if matches!(value.value, YamlValue::List(_) | YamlValue::Map(_)) {
            let message = format!(
                "{shown} takes one value, which may be a pattern like \"/api/*\", not {}: write one rule per value",
                value.kind()
            );
            return self.diagnostics.reject(value.place, message);
        }
        let pattern = match value.text() {
            // Proxies do send empty values, although patterns elsewhere are never empty.
            Some("") => Pattern::new(""),
            _ => self.pattern(&item.with_node(value))?,
        };
        if text == "key" {
            let message = format!(
                "this matches an entry named key: if the entry is named {0}, write only {0}",
                escaped(pattern.as_str())
            );
            self.diagnostics.warn(name.place, message);
        }
        Some((text.to_owned(), pattern))
    }

    fn entry_name(&mut self, item: &FieldItem<'n>) -> Option<&'n str> {
        if item.node.text() == Some("") {
            let message = "the entry's name is empty: write the name that the proxy sends";
            return self.diagnostics.reject(item.place(), message);
        }
        let text = item.text(&mut self.diagnostics)?;
        if text.contains('*') {
            let message = format!(
                "{} is an entry name, and * is a wildcard only in values: write the full name, like remote_address: \"*\"",
                quoted(text)
            );
            return self.diagnostics.reject(item.place(), message);
        }
        Some(text)
    }
}

/// The error for an entry that has several names, or none.
fn entry_shape_error(pairs: &[(YamlNode<'_>, YamlNode<'_>)]) -> String {
    let text = |name: &str| {
        let found = pairs.iter().find(|(known, _)| known.text() == Some(name));
        found.and_then(|(_, value)| value.text())
    };
    match (is_envoy_entry(pairs), text("key"), text("value")) {
        (true, Some(key), Some(value)) => format!(
            "an entry is written as name: value, without the words key and value: write {}: {}",
            escaped(key),
            escaped(value)
        ),
        _ if pairs.is_empty() => "the entry is empty: write a name, or a name and its value".to_owned(),
        _ => {
            "an entry has one name and one value: put each on its own line, starting with -, in the order in \
              which the proxy sends them"
                .to_owned()
        }
    }
}

/// The text escaped like [`quoted`] does, without the quotes, and shortened for use in a message.
fn escaped(text: &str) -> String {
    let quoted = quoted(text);
    quoted[1..quoted.len() - 1].to_owned()
}

/// Whether an entry is written as in Envoy's configuration: `{key: …, value: …}`.
fn is_envoy_entry(pairs: &[(YamlNode<'_>, YamlNode<'_>)]) -> bool {
    let has = |name: &str| pairs.iter().any(|(known, _)| known.text() == Some(name));
    pairs.len() == 2 && has("key") && has("value")
}

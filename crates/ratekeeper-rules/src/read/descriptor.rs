//! The entries of a proxy's descriptor, and what people write there by mistake.

use super::RuleReader;
use super::fields::FieldItem;
use crate::diagnostic::quoted;
use crate::pattern::Pattern;
use crate::yaml::{YamlNode, YamlValue};
use std::collections::HashMap;

/// The most entries that a descriptor may have. Proxies send two or three.
pub(crate) const MOST_ENTRIES: usize = 16;

impl<'n> RuleReader<'n> {
    /// The entries that a match asks for, in order. Those that can't be read are missing, and then there is a complaint.
    pub(super) fn descriptor(&mut self, item: &FieldItem<'n>) -> Vec<(String, Pattern)> {
        let entries = match &item.node.value {
            YamlValue::List(items) if items.is_empty() => {
                item.complain_of_emptiness(&mut self.complaints);
                Vec::new()
            }
            YamlValue::List(items) => items.iter().filter_map(|node| self.entry(&item.with(node))).collect(),
            YamlValue::Map(pairs) => self.entries_of_map(item, pairs),
            YamlValue::Scalar { .. } | YamlValue::Broken => self.entry(item).into_iter().collect(),
        };
        if entries.len() > MOST_ENTRIES {
            let said = format!(
                "a descriptor has at most {MOST_ENTRIES} entries, not {}: match.attributes asks for some of \
                 them only",
                entries.len()
            );
            self.complaints.error(item.place(), said);
        }
        entries
    }

    /// A name and its value, or a name alone, which stands for any value.
    fn entry(&mut self, item: &FieldItem<'n>) -> Option<(String, Pattern)> {
        match &item.node.value {
            YamlValue::Map(pairs) => match pairs.as_slice() {
                [(name, value)] => self.pair(item, name, value),
                pairs => {
                    self.complain_of_pairs(item, pairs);
                    None
                }
            },
            YamlValue::List(_) => {
                let said = "an entry is a name, or a name and its value: write - generic_key: slowpath, or \
                            - remote_address for any value";
                self.complaints.error(item.place(), said);
                None
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
            item.complain_of_emptiness(&mut self.complaints);
        }
        if is_envoys(pairs) {
            self.complain_of_pairs(item, pairs);
            return Vec::new();
        }
        let mut lines = HashMap::new();
        let mut entries = Vec::new();
        for (name, value) in pairs {
            let again = name.text().and_then(|text| lines.insert(text, name.place.line));
            if let Some(line) = again {
                let said = format!(
                    "{} is there twice, first in line {line}: write a list, in which names may repeat, like [a: \
                     x, a: y]",
                    quoted(name.text().unwrap_or_default())
                );
                self.complaints.error(name.place, said);
                continue;
            }
            entries.extend(self.pair(item, name, value));
        }
        entries
    }

    fn pair(
        &mut self,
        item: &FieldItem<'n>,
        name: &'n YamlNode<'n>,
        value: &'n YamlNode<'n>,
    ) -> Option<(String, Pattern)> {
        let text = self.entry_name(&item.with(name))?;
        let shown = quoted(text);
        if value.is_null() {
            let said =
                format!("{shown} has no value: write it alone, as - {text}, or {text}: \"*\" for any value");
            self.complaints.error(name.place, said);
            return None;
        }
        if matches!(value.value, YamlValue::List(_) | YamlValue::Map(_)) {
            let said = format!(
                "{shown} has one value, which may be a pattern like \"/api/*\", not {}: write a rule for each",
                value.kind()
            );
            self.complaints.error(value.place, said);
            return None;
        }
        let pattern = match value.text() {
            // Proxies do send empty values, though a pattern elsewhere is never empty.
            Some("") => Pattern::new(""),
            _ => self.pattern(&item.with(value))?,
        };
        if text == "key" {
            let said = format!(
                "this asks for an entry that is named key: if the entry's name is {0}, write {0} alone",
                bare(pattern.as_str())
            );
            self.complaints.warn(name.place, said);
        }
        Some((text.to_owned(), pattern))
    }

    fn entry_name(&mut self, item: &FieldItem<'n>) -> Option<&'n str> {
        if item.node.text() == Some("") {
            let said = "an entry's name is empty: write the name by which the proxy sends it";
            self.complaints.error(item.place(), said);
            return None;
        }
        let text = item.text(&mut self.complaints)?;
        if text.contains('*') {
            let said = format!(
                "{} is the name of an entry, and * stands for values only: write the name out, like {}: \"*\"",
                quoted(text),
                "remote_address"
            );
            self.complaints.error(item.place(), said);
            return None;
        }
        Some(text)
    }

    /// Complains of an entry with several names.
    fn complain_of_pairs(&mut self, item: &FieldItem<'n>, pairs: &[(YamlNode<'n>, YamlNode<'n>)]) {
        let text = |name: &str| {
            let found = pairs.iter().find(|(known, _)| known.text() == Some(name));
            found.and_then(|(_, value)| value.text())
        };
        let said = match (is_envoys(pairs), text("key"), text("value")) {
            (true, Some(key), Some(value)) => format!(
                "an entry is written by its name, without the words key and value: write {}: {}",
                bare(key),
                bare(value)
            ),
            _ if pairs.is_empty() => {
                "an entry is a name, or a name and its value, and here is nothing: leave the braces out".to_owned()
            }
            _ => "an entry has one name and one value: begin each with - in a line of its own, in the order in which \
                  the proxy sends them"
                .to_owned(),
        };
        self.complaints.error(item.place(), said);
    }
}

/// What somebody wrote, as it is to be written, and no more of it than one wants to read in a message.
fn bare(text: &str) -> String {
    let quoted = quoted(text);
    quoted[1..quoted.len() - 1].to_owned()
}

/// Whether an entry is written as Envoy's own configuration has it.
fn is_envoys(pairs: &[(YamlNode<'_>, YamlNode<'_>)]) -> bool {
    let has = |name: &str| pairs.iter().any(|(known, _)| known.text() == Some(name));
    pairs.len() == 2 && has("key") && has("value")
}

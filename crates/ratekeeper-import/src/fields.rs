//! Typed access to the fields of maps in files of other limiters.

use super::{ImportPlace, ImportReports};
use ratekeeper_rules::quoted;
use ratekeeper_rules::yaml::{YamlNode, YamlValue};
use std::collections::HashMap;

/// The fields of a map.
#[derive(Debug)]
pub(super) struct ImportFields<'n> {
    /// The position of the map.
    pub(super) place: ImportPlace,
    by_name: HashMap<&'n str, (ImportPlace, &'n YamlNode<'n>)>,
}

impl<'n> ImportFields<'n> {
    /// Reads a map that should be `what`, with the fields `known`. Other fields are reported; `subject` is the part
    /// of the message that says what is left out because of them. Returns `None` if the node is not a map.
    pub(super) fn read(
        node: &'n YamlNode<'n>,
        file: usize,
        what: &str,
        known: &[&str],
        subject: &str,
        reports: &mut ImportReports,
    ) -> Option<ImportFields<'n>> {
        let place = ImportPlace { file, position: node.place };
        let YamlValue::Map(pairs) = &node.value else {
            let message = format!("expected {what} with its fields, found {}: it is left out", node.kind());
            return reports.reject(place, message);
        };
        let mut fields = ImportFields { place, by_name: HashMap::new() };
        for (name, value) in pairs {
            let place = ImportPlace { file, position: name.place };
            match name.text() {
                Some(text) if !known.contains(&text) => {
                    let message = format!(
                        "unknown field {}: {subject} left out; the fields of {what} are {}",
                        quoted(text),
                        known.join(", ")
                    );
                    reports.error(place, message);
                }
                Some(text) if fields.by_name.contains_key(text) => {
                    reports.error(place, format!("the field {text:?} appears twice: only the first is used"));
                }
                Some(text) => drop(fields.by_name.insert(text, (place, value))),
                None => reports.error(place, "expected a field name: this entry is left out"),
            }
        }
        // Like the other limiters, treat a field without a value as absent.
        fields.by_name.retain(|_, (_, value)| !value.is_null());
        Some(fields)
    }

    /// The position of an item of a list in this map.
    pub(super) fn place_of(&self, node: &YamlNode<'_>) -> ImportPlace {
        ImportPlace { file: self.place.file, position: node.place }
    }

    pub(super) fn find(&self, name: &str) -> Option<(ImportPlace, &'n YamlNode<'n>)> {
        self.by_name.get(name).map(|(_, node)| (self.place_of(node), *node))
    }

    /// Returns the position of a field's name, or `None` if the field is absent.
    pub(super) fn name_place(&self, name: &str) -> Option<ImportPlace> {
        self.by_name.get(name).map(|(place, _)| *place)
    }

    pub(super) fn text(&self, name: &str, reports: &mut ImportReports) -> Option<(ImportPlace, &'n str)> {
        let (place, node) = self.find(name)?;
        let Some(text) = node.text() else {
            let message = format!("{name} must be a single value, not {}: it is left out", node.kind());
            return reports.reject(place, message);
        };
        Some((place, text))
    }

    /// Whether a flag is present and true.
    pub(super) fn is_set(&self, name: &str, reports: &mut ImportReports) -> bool {
        let Some((place, text)) = self.text(name, reports) else { return false };
        match text {
            "true" | "True" | "TRUE" => true,
            "false" | "False" | "FALSE" => false,
            text => {
                let message = format!("{name} must be true or false, not {}: false is assumed", quoted(text));
                reports.error(place, message);
                false
            }
        }
    }

    pub(super) fn number(&self, name: &str, reports: &mut ImportReports) -> Option<u64> {
        let (place, text) = self.text(name, reports)?;
        let message =
            || format!("{name} must be a whole number, not {}: the limit is left out", quoted(text));
        text.parse().map_err(|_| reports.error(place, message())).ok()
    }

    /// The items of a list; empty if the field is absent or not a list.
    pub(super) fn list(&self, name: &str, reports: &mut ImportReports) -> &'n [YamlNode<'n>] {
        match self.find(name) {
            Some((_, YamlNode { value: YamlValue::List(items), .. })) => items,
            Some((place, node)) => {
                reports.error(place, format!("{name} must be a list, not {}: it is left out", node.kind()));
                &[]
            }
            None => &[],
        }
    }
}

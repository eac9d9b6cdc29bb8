//! Maps in files of other limiters: their fields by name, and what they may hold.

use super::{ImportPlace, ImportReports};
use crate::diagnostic::quoted;
use crate::yaml::{YamlNode, YamlValue};
use std::collections::HashMap;

/// The fields of a map.
#[derive(Debug)]
pub(super) struct ImportFields<'n> {
    file: usize,
    /// Where the map begins.
    pub(super) spot: ImportPlace,
    found: HashMap<&'n str, (ImportPlace, &'n YamlNode<'n>)>,
}

impl<'n> ImportFields<'n> {
    /// Reads a map that is to be `what`, with these fields. Whatever else is in it is complained of, and `lost` says what
    /// is left out for it.
    pub(super) fn read(
        node: &'n YamlNode<'n>,
        file: usize,
        what: &str,
        known: &[&str],
        lost: &str,
        reports: &mut ImportReports,
    ) -> Option<ImportFields<'n>> {
        let spot = ImportPlace { file, place: node.place };
        let YamlValue::Map(pairs) = &node.value else {
            let said = format!("{what} belongs here, with its fields, not {}: it is left out", node.kind());
            reports.error(spot, said);
            return None;
        };
        let mut fields = ImportFields { file, spot, found: HashMap::new() };
        for (name, value) in pairs {
            let spot = ImportPlace { file, place: name.place };
            match name.text() {
                Some(text) if !known.contains(&text) => {
                    let said = format!(
                        "unknown field {}: {lost} left out; the fields of {what} are {}",
                        quoted(text),
                        known.join(", ")
                    );
                    reports.error(spot, said);
                }
                Some(text) if fields.found.contains_key(text) => {
                    reports.error(spot, format!("the field {text:?} is there twice: only the first is used"));
                }
                Some(text) => drop(fields.found.insert(text, (spot, value))),
                None => reports.error(spot, "a field's name belongs here: what stands here is left out"),
            }
        }
        // A field without a value is as good as none, to them as to us.
        fields.found.retain(|_, (_, value)| !value.is_null());
        Some(fields)
    }

    pub(super) fn find(&self, name: &str) -> Option<(ImportPlace, &'n YamlNode<'n>)> {
        self.found.get(name).map(|(_, node)| (ImportPlace { file: self.file, place: node.place }, *node))
    }

    /// Where a field's name stands, if the field is there.
    pub(super) fn named_at(&self, name: &str) -> Option<ImportPlace> {
        self.found.get(name).map(|(spot, _)| *spot)
    }

    pub(super) fn text(&self, name: &str, reports: &mut ImportReports) -> Option<(ImportPlace, &'n str)> {
        let (spot, node) = self.find(name)?;
        match node.text() {
            Some(text) => Some((spot, text)),
            None => {
                reports.error(spot, format!("{name} is a single value, not {}: it is left out", node.kind()));
                None
            }
        }
    }

    /// Whether a flag is there and set.
    pub(super) fn is_set(&self, name: &str, reports: &mut ImportReports) -> bool {
        let Some((spot, text)) = self.text(name, reports) else { return false };
        match text {
            "true" | "True" | "TRUE" => true,
            "false" | "False" | "FALSE" => false,
            text => {
                let said = format!("{name} is true or false, not {}: it is taken for false", quoted(text));
                reports.error(spot, said);
                false
            }
        }
    }

    pub(super) fn number(&self, name: &str, reports: &mut ImportReports) -> Option<u64> {
        let (spot, text) = self.text(name, reports)?;
        let number = text.parse().ok();
        if number.is_none() {
            reports.error(
                spot,
                format!("{name} is a whole number, not {}: the limit is left out", quoted(text)),
            );
        }
        number
    }

    /// The entries of a list, with their places.
    pub(super) fn list(&self, name: &str, reports: &mut ImportReports) -> &'n [YamlNode<'n>] {
        match self.find(name) {
            Some((_, YamlNode { value: YamlValue::List(items), .. })) => items,
            Some((spot, node)) => {
                reports.error(spot, format!("{name} is a list, not {}: it is left out", node.kind()));
                &[]
            }
            None => &[],
        }
    }
}

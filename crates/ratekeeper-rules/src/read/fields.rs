//! Reads a YAML map with a fixed set of fields.
//!
//! Every field of the map must be known, appear once, and have a value. Debug assertions check that the code asks only
//! for fields of the table, and for all of them.

use crate::bounds::MAX_TEXT_BYTES;
use crate::diagnostic::{Diagnostics, closest_name, quoted};
use crate::schema::field::{Field, FieldForm, FieldTable};
use crate::schema::table::{FILE, TABLES};
use crate::spec::{At, Position};
use crate::yaml::{YamlNode, YamlValue};
use std::cell::Cell;
use std::collections::HashMap;

/// The valid fields of a map.
#[derive(Debug)]
pub(super) struct FieldReader<'n> {
    table: &'static FieldTable,
    /// The start of the map.
    pub(super) place: Position,
    found: Vec<(usize, FieldItem<'n>)>,
    /// One bit per field of the table: whether the code asked for it.
    requested: Cell<u32>,
}

/// A value and the field that it belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldItem<'n> {
    pub(super) node: &'n YamlNode<'n>,
    pub(super) field: &'static Field,
    /// The name used in the file, which may be an alias of the field.
    pub(super) name: &'n str,
    /// The position of the name.
    pub(super) name_place: Position,
}

impl<'n> FieldReader<'n> {
    /// Reads the fields of a map. Reports an error and returns `None` if the node is not a map.
    pub(super) fn new(
        node: &'n YamlNode<'n>,
        table: &'static FieldTable,
        diagnostics: &mut Diagnostics,
    ) -> Option<FieldReader<'n>> {
        let YamlValue::Map(pairs) = &node.value else {
            if matches!(node.value, YamlValue::Broken) {
                diagnostics.count_error();
            } else {
                let message = format!(
                    "{} must be a map of fields, not {}: write {}",
                    table.title,
                    node.kind(),
                    table.example
                );
                diagnostics.error(node.place, message);
            }
            return None;
        };
        let mut fields = FieldReader { table, place: node.place, found: Vec::new(), requested: Cell::new(0) };
        for (name, value) in pairs {
            fields.add_field(name, value, diagnostics);
        }
        fields.check_required(diagnostics);
        fields.check_exclusive(diagnostics);
        // A field without a value counts as present for the checks above, but there is nothing to read.
        fields.found.retain(|(_, item)| !item.node.is_null());
        Some(fields)
    }

    fn add_field(&mut self, name: &'n YamlNode<'n>, node: &'n YamlNode<'n>, diagnostics: &mut Diagnostics) {
        let Some(text) = name.text() else {
            if matches!(name.value, YamlValue::Broken) {
                diagnostics.count_error();
            } else {
                diagnostics.error(name.place, "expected a field name: write a word, a colon and a space");
            }
            return;
        };
        let Some(index) = self.table.position(text) else {
            // A place to define anchors, like `x-common: &common {…}`.
            if !(std::ptr::eq(self.table, &FILE) && text.starts_with("x-")) {
                diagnostics.error(name.place, unknown_field_error(text, self.table));
            }
            return;
        };
        let field = &self.table.fields[index];
        let item = FieldItem { node, field, name: text, name_place: name.place };
        if let Some(message) = self
            .found
            .iter()
            .find_map(|(other, first)| (*other == index).then(|| item.duplicate_error(first))?)
        {
            diagnostics.error(name.place, message);
            return;
        }
        if node.is_null() {
            let message =
                format!("{text} has no value: write one, like {text}: {}{}", field.example, field.or_omit());
            diagnostics.error(name.place, message);
        }
        self.found.push((index, item));
    }

    fn check_required(&self, diagnostics: &mut Diagnostics) {
        for (index, field) in self.table.fields.iter().enumerate().filter(|(_, field)| field.is_required) {
            if !self.found.iter().any(|(found, _)| *found == index) {
                let message =
                    format!("the field {0:?} is missing: add it, like {0}: {1}", field.name, field.example);
                diagnostics.error(self.place, message);
            }
        }
    }

    fn check_exclusive(&self, diagnostics: &mut Diagnostics) {
        for group in self.table.exclusive {
            let mut found = self.found.iter().filter(|(_, item)| group.contains(&item.field.name));
            if let (Some((_, first)), Some((_, second))) = (found.next(), found.next()) {
                let message = format!(
                    "{} takes either {} or {}, not both: leave one out",
                    self.table.title, first.name, second.name
                );
                diagnostics.error(second.name_place, message);
            }
        }
    }

    /// Reads the value of a field. Returns `None` if the map does not have it, or if the value is invalid.
    pub(super) fn read<T>(
        &self,
        name: &'static str,
        diagnostics: &mut Diagnostics,
        value: impl FnOnce(&FieldItem<'n>, &mut Diagnostics) -> Option<T>,
    ) -> Option<T> {
        self.find(name).and_then(|item| value(&item, diagnostics))
    }

    /// The field with this name. Returns `None` if the map does not have it.
    pub(super) fn find(&self, name: &'static str) -> Option<FieldItem<'n>> {
        self.find_all(name).next()
    }

    /// All occurrences of a field, one per alias used.
    pub(super) fn find_all(&self, name: &'static str) -> impl Iterator<Item = FieldItem<'n>> {
        let index = self.table.fields.iter().position(|field| field.name == name);
        debug_assert!(index.is_some(), "{} has no field {name}", self.table.title);
        self.requested.set(self.requested.get() | index.map_or(0, |index| 1 << index));
        self.found.iter().filter(move |(found, _)| Some(*found) == index).map(|(_, item)| *item)
    }

    /// Whether the map has any of these fields.
    pub(super) fn has_any(&self, names: &[&'static str]) -> bool {
        self.found.iter().any(|(_, item)| names.contains(&item.field.name))
    }

    /// Must be called after the map has been read: asserts in debug builds that no field of the table was forgotten.
    pub(super) fn finish(self) {
        let all = (1 << self.table.fields.len()) - 1;
        debug_assert_eq!(self.requested.get(), all, "a field of {} is never read", self.table.title);
    }
}

/// The error for an unknown field.
fn unknown_field_error(name: &str, table: &'static FieldTable) -> String {
    let shown = quoted(name);
    match table.hints.iter().find(|(known, _)| *known == name) {
        Some((_, hint)) if hint.starts_with(name) => return (*hint).to_owned(),
        Some((_, hint)) => return format!("unknown field {shown}: {hint}"),
        None => {}
    }
    let inner = table.fields.iter().find(|field| match &field.form {
        FieldForm::Fields(inner) => inner.position(name).is_some(),
        _ => false,
    });
    if let Some(inner) = inner {
        return format!("unknown field {shown}: it belongs in {0}, like {0}: {{{name}: …}}", inner.name);
    }
    let names = table.names().collect::<Vec<_>>().join(", ");
    if let Some(near) = closest_name(name, table.names()) {
        return format!("unknown field {shown}: did you mean {near}? The fields here are {names}");
    }
    match TABLES.iter().find(|other| other.position(name).is_some()) {
        Some(other) => {
            format!("unknown field {shown}: it is a field of {}; the fields here are {names}", other.title)
        }
        None => format!("unknown field {shown}: the fields here are {names}"),
    }
}

impl Field {
    /// For an optional field, the hint that it may be left out.
    fn or_omit(&self) -> &'static str {
        if self.is_required { "" } else { ", or leave it out" }
    }
}

impl<'n> FieldItem<'n> {
    /// The error for a field that was already given as `first`. Returns `None` if the field allows both.
    fn duplicate_error(&self, first: &FieldItem<'_>) -> Option<String> {
        let line = first.name_place.line;
        if self.name == first.name {
            Some(format!("the field {:?} appears twice, first in line {line}: keep one of them", self.name))
        } else if !self.field.is_joined {
            Some(format!(
                "{} is another name for {}, which is set in line {line}: keep one of them",
                self.name, first.name
            ))
        } else {
            None
        }
    }

    /// The position of the value.
    pub(super) fn place(&self) -> Position {
        self.node.place
    }

    /// Attaches the position of this item to a value.
    pub(super) fn at<T>(&self, value: T) -> At<T> {
        At { value, place: self.place() }
    }

    /// An item for another value of the same field.
    pub(super) fn with_node(&self, node: &'n YamlNode<'n>) -> FieldItem<'n> {
        FieldItem { node, ..*self }
    }

    /// Reports the error if there is one.
    pub(super) fn accept<T>(
        &self,
        read: Result<T, impl Into<String>>,
        diagnostics: &mut Diagnostics,
    ) -> Option<T> {
        read.map_err(|message| diagnostics.error(self.place(), message)).ok()
    }

    /// Reports that the value is of the wrong kind.
    pub(super) fn report_wrong_kind(&self, expected: &str, diagnostics: &mut Diagnostics) {
        if matches!(self.node.value, YamlValue::Broken) {
            diagnostics.count_error();
        } else {
            let message = format!(
                "expected {expected}, found {}: write {}: {}",
                self.node.kind(),
                self.name,
                self.field.example
            );
            diagnostics.error(self.place(), message);
        }
    }

    pub(super) fn report_empty(&self, diagnostics: &mut Diagnostics) {
        let Field { example, .. } = self.field;
        let message = format!("{0} is empty: write {0}: {example}{1}", self.name, self.field.or_omit());
        diagnostics.error(self.place(), message);
    }

    /// The value as text. Reports an error and returns `None` if it is empty, too long, or not a single value.
    pub(super) fn text(&self, diagnostics: &mut Diagnostics) -> Option<&'n str> {
        let Some(text) = self.node.text() else {
            self.report_wrong_kind("a single value", diagnostics);
            return None;
        };
        if text.trim().is_empty() {
            self.report_empty(diagnostics);
            return None;
        }
        if text.len() > MAX_TEXT_BYTES {
            let message = format!(
                "{} is {} bytes long, but at most {MAX_TEXT_BYTES} are allowed: shorten it",
                self.name,
                text.len()
            );
            return diagnostics.reject(self.place(), message);
        }
        Some(text)
    }

    /// The entries of a list.
    pub(super) fn list(&self, diagnostics: &mut Diagnostics) -> Vec<FieldItem<'n>> {
        match &self.node.value {
            YamlValue::List(items) => items.iter().map(|node| self.with_node(node)).collect(),
            _ => {
                self.report_wrong_kind("a list", diagnostics);
                Vec::new()
            }
        }
    }

    /// The entries of a non-empty list, or a single value as the only entry.
    pub(super) fn one_or_list(&self, diagnostics: &mut Diagnostics) -> Vec<FieldItem<'n>> {
        match &self.node.value {
            YamlValue::List(items) if items.is_empty() => {
                self.report_empty(diagnostics);
                Vec::new()
            }
            YamlValue::List(items) => items.iter().map(|node| self.with_node(node)).collect(),
            _ => vec![*self],
        }
    }

    /// The entries of a map whose names the author chooses. Reports names that appear twice.
    pub(super) fn map(&self, diagnostics: &mut Diagnostics) -> Vec<(At<&'n str>, FieldItem<'n>)> {
        let YamlValue::Map(pairs) = &self.node.value else {
            self.report_wrong_kind("a map (name: value)", diagnostics);
            return Vec::new();
        };
        let mut lines = HashMap::new();
        let mut entries = Vec::new();
        for (name, node) in pairs {
            let Some(text) = self.with_node(name).text(diagnostics) else { continue };
            if let Some(line) = lines.insert(text, name.place.line) {
                let message =
                    format!("{} appears twice, first in line {line}: keep one of them", quoted(text));
                diagnostics.error(name.place, message);
                continue;
            }
            entries.push((At { value: text, place: name.place }, self.with_node(node)));
        }
        entries
    }
}

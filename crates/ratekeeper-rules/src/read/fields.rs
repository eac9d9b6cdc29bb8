//! A map with known fields.
//!
//! Every field that is there must be known, be there once, and have a value. What is asked for must be in the table;
//! what is in the table must be asked for.

use crate::diagnostic::{Diagnostics, near, quoted};
use crate::schema::table::{FILE, Field, FieldForm, FieldTable, TABLES};
use crate::spec::{At, Position};
use crate::yaml::{YamlNode, YamlValue};
use std::cell::Cell;
use std::collections::HashMap;

/// The longest text that a name or a value may be, in bytes.
pub(crate) const MOST_TEXT: usize = 4096;

/// The fields of a map, as far as they are in order.
#[derive(Debug)]
pub(super) struct FieldReader<'n> {
    table: &'static FieldTable,
    /// Where the map begins.
    pub(super) place: Position,
    found: Vec<(usize, FieldItem<'n>)>,
    /// A bit for each field of the table that was asked for.
    asked: Cell<u32>,
}

/// A value, and the field that it was written for.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldItem<'n> {
    pub(super) node: &'n YamlNode<'n>,
    pub(super) field: &'static Field,
    /// The name by which the field was written.
    pub(super) name: &'n str,
    /// Where the name was written.
    pub(super) named_at: Position,
}

impl<'n> FieldReader<'n> {
    /// Reads the fields of a map. If the node is none, there is a complaint.
    pub(super) fn read(
        node: &'n YamlNode<'n>,
        table: &'static FieldTable,
        complaints: &mut Diagnostics,
    ) -> Option<FieldReader<'n>> {
        let YamlValue::Map(pairs) = &node.value else {
            if matches!(node.value, YamlValue::Broken) {
                complaints.broken();
            } else {
                let said =
                    format!("{} takes fields, not {}: write {}", table.title, node.kind(), table.example);
                complaints.error(node.place, said);
            }
            return None;
        };
        let mut fields = FieldReader { table, place: node.place, found: Vec::new(), asked: Cell::new(0) };
        for (name, value) in pairs {
            fields.take(name, value, complaints);
        }
        fields.complain_of_missing(complaints);
        fields.complain_of_exclusive(complaints);
        // A field without a value counts as there, and has nothing to be read.
        fields.found.retain(|(_, item)| !item.node.is_null());
        Some(fields)
    }

    fn take(&mut self, name: &'n YamlNode<'n>, node: &'n YamlNode<'n>, complaints: &mut Diagnostics) {
        let Some(text) = name.text() else {
            if matches!(name.value, YamlValue::Broken) {
                complaints.broken();
            } else {
                complaints
                    .error(name.place, "a field's name belongs here: write a word, a colon and a space");
            }
            return;
        };
        let Some(index) = self.table.position(text) else {
            // A place for what aliases name, like `x-common: &common {…}`.
            if !(std::ptr::eq(self.table, &FILE) && text.starts_with("x-")) {
                complaints.error(name.place, unknown(text, self.table));
            }
            return;
        };
        let field = &self.table.fields[index];
        let item = FieldItem { node, field, name: text, named_at: name.place };
        if let Some(said) =
            self.found.iter().find_map(|(other, first)| (*other == index).then(|| item.repeats(first))?)
        {
            complaints.error(name.place, said);
            return;
        }
        if node.is_null() {
            let said =
                format!("{text} has no value: write one, like {text}: {}{}", field.example, field.or_not());
            complaints.error(name.place, said);
        }
        self.found.push((index, item));
    }

    fn complain_of_missing(&self, complaints: &mut Diagnostics) {
        for (index, field) in self.table.fields.iter().enumerate().filter(|(_, field)| field.is_required) {
            if !self.found.iter().any(|(found, _)| *found == index) {
                let said =
                    format!("the field {0:?} is missing: add it, like {0}: {1}", field.name, field.example);
                complaints.error(self.place, said);
            }
        }
    }

    fn complain_of_exclusive(&self, complaints: &mut Diagnostics) {
        for group in self.table.exclusive {
            let mut found = self.found.iter().filter(|(_, item)| group.contains(&item.field.name));
            if let (Some((_, first)), Some((_, second))) = (found.next(), found.next()) {
                let said = format!(
                    "{} is written with {} or with {}, not with both: leave one out",
                    self.table.title, first.name, second.name
                );
                complaints.error(second.named_at, said);
            }
        }
    }

    /// The field of a name, if it is there.
    pub(super) fn find(&self, name: &'static str) -> Option<FieldItem<'n>> {
        self.find_all(name).next()
    }

    /// The field of a name, under each of its names that is there.
    pub(super) fn find_all(&self, name: &'static str) -> impl Iterator<Item = FieldItem<'n>> {
        let index = self.table.fields.iter().position(|field| field.name == name);
        debug_assert!(index.is_some(), "{} has no field {name}", self.table.title);
        self.asked.set(self.asked.get() | index.map_or(0, |index| 1 << index));
        self.found.iter().filter(move |(found, _)| Some(*found) == index).map(|(_, item)| *item)
    }

    /// Whether any of these fields is there.
    pub(super) fn has_any(&self, names: &[&'static str]) -> bool {
        self.found.iter().any(|(_, item)| names.contains(&item.field.name))
    }

    /// To be called when the map has been read.
    pub(super) fn finish(self) {
        let all = (1 << self.table.fields.len()) - 1;
        debug_assert_eq!(self.asked.get(), all, "a field of {} is never read", self.table.title);
    }
}

/// What to say of a name that is no field.
fn unknown(name: &str, table: &'static FieldTable) -> String {
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
        return format!("unknown field {shown}: it belongs into {0}, like {0}: {{{name}: …}}", inner.name);
    }
    let names = table.names().collect::<Vec<_>>().join(", ");
    if let Some(near) = near(name, table.names()) {
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
    /// What else one may do than write a value.
    fn or_not(&self) -> &'static str {
        if self.is_required { "" } else { ", or leave it out" }
    }
}

impl<'n> FieldItem<'n> {
    /// What is wrong with writing a field again.
    fn repeats(&self, first: &FieldItem<'_>) -> Option<String> {
        let line = first.named_at.line;
        if self.name == first.name {
            Some(format!("the field {:?} is there twice, first in line {line}: keep one of them", self.name))
        } else if !self.field.is_joined {
            Some(format!(
                "{} is another name of {}, which is in line {line}: keep one of them",
                self.name, first.name
            ))
        } else {
            None
        }
    }

    /// Where the value was written.
    pub(super) fn place(&self) -> Position {
        self.node.place
    }

    /// The value with its place.
    pub(super) fn at<T>(&self, value: T) -> At<T> {
        At { value, place: self.place() }
    }

    /// Another value that was written for the same field.
    pub(super) fn with(&self, node: &'n YamlNode<'n>) -> FieldItem<'n> {
        FieldItem { node, ..*self }
    }

    /// Complains that something else belongs here.
    pub(super) fn complain_of_kind(&self, belongs: &str, complaints: &mut Diagnostics) {
        if matches!(self.node.value, YamlValue::Broken) {
            complaints.broken();
        } else {
            let said = format!(
                "{belongs} belongs here, not {}: write {}: {}",
                self.node.kind(),
                self.name,
                self.field.example
            );
            complaints.error(self.place(), said);
        }
    }

    pub(super) fn complain_of_emptiness(&self, complaints: &mut Diagnostics) {
        let Field { example, .. } = self.field;
        let said = format!("{0} is empty: write {0}: {example}{1}", self.name, self.field.or_not());
        complaints.error(self.place(), said);
    }

    /// Its text, which is not empty.
    pub(super) fn text(&self, complaints: &mut Diagnostics) -> Option<&'n str> {
        let Some(text) = self.node.text() else {
            self.complain_of_kind("a single value", complaints);
            return None;
        };
        if text.trim().is_empty() {
            self.complain_of_emptiness(complaints);
            return None;
        }
        if text.len() > MOST_TEXT {
            let said = format!(
                "{} has {} bytes, and at most {MOST_TEXT} are read: shorten it",
                self.name,
                text.len()
            );
            complaints.error(self.place(), said);
            return None;
        }
        Some(text)
    }

    /// The entries of a list.
    pub(super) fn list(&self, complaints: &mut Diagnostics) -> Vec<FieldItem<'n>> {
        match &self.node.value {
            YamlValue::List(items) => items.iter().map(|node| self.with(node)).collect(),
            _ => {
                self.complain_of_kind("a list", complaints);
                Vec::new()
            }
        }
    }

    /// The entries of a list that is not empty, or what stands there alone.
    pub(super) fn one_or_list(&self, complaints: &mut Diagnostics) -> Vec<FieldItem<'n>> {
        match &self.node.value {
            YamlValue::List(items) if items.is_empty() => {
                self.complain_of_emptiness(complaints);
                Vec::new()
            }
            YamlValue::List(items) => items.iter().map(|node| self.with(node)).collect(),
            _ => vec![*self],
        }
    }

    /// The entries of a map by names that the author chose, each once.
    pub(super) fn map(&self, complaints: &mut Diagnostics) -> Vec<(At<&'n str>, FieldItem<'n>)> {
        let YamlValue::Map(pairs) = &self.node.value else {
            self.complain_of_kind("a map (name: value)", complaints);
            return Vec::new();
        };
        let mut lines = HashMap::new();
        let mut entries = Vec::new();
        for (name, node) in pairs {
            let Some(text) = self.with(name).text(complaints) else { continue };
            if let Some(line) = lines.insert(text, name.place.line) {
                let said = format!("{} is there twice, first in line {line}: keep one of them", quoted(text));
                complaints.error(name.place, said);
                continue;
            }
            entries.push((At { value: text, place: name.place }, self.with(node)));
        }
        entries
    }
}

//! The config file: settings in YAML, one field each.
//!
//! It is written by people, so every error names the line and what to write instead. A structural error ends parsing;
//! unknown fields are reported all at once. A value is taken as the text that was written, not as YAML types it, so
//! `off` is not `false` and `1.10` is not `1.1`.

use super::{SettingDiagnostic, SettingOrigin, SourcedText, nearest, table::TABLE};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::{Error as YamlError, MessageFormatter, Spanned, UserMessageFormatter};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The maximum size of a config file in bytes. All settings together take a few hundred.
const MAX_BYTES: u64 = 1024 * 1024;

/// The fields of a config file, and its errors.
#[derive(Debug, Default)]
pub(super) struct FileFields {
    /// The settings by name, without duplicates.
    pub(super) values: Vec<(&'static str, SourcedText)>,
    pub(super) diagnostics: Vec<SettingDiagnostic>,
}

impl FileFields {
    /// Reads a file; `origin` is where its path was set.
    pub(super) fn read(path: &Path, origin: &SettingOrigin) -> FileFields {
        match read_text(path) {
            Ok(text) => FileFields::parse(path, &text),
            Err(error) => {
                let message = format!("cannot read the config file {}: {error}", path.display());
                FileFields {
                    diagnostics: vec![SettingDiagnostic::new(origin.clone(), message)],
                    ..FileFields::default()
                }
            }
        }
    }

    pub(super) fn parse(path: &Path, text: &str) -> FileFields {
        let mut fields = FileFields::default();
        // Otherwise `off` in a list would be `false`.
        let options = serde_saphyr::options! { strict_booleans: true };
        let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| {
            yaml.deserialize_map(FieldsVisitor { path, fields: &mut fields })
        });
        match read {
            // A file with only comments is valid.
            Ok(()) | Err(YamlError::Eof { .. }) => {}
            Err(error) => fields.diagnostics.push(shape_diagnostic(path, &error)),
        }
        fields
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    // Reads one byte more than allowed, to tell a file that is too large from one that just fits.
    let length = File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if length as u64 > MAX_BYTES {
        Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes")))
    } else {
        Ok(text)
    }
}

struct FieldsVisitor<'a> {
    path: &'a Path,
    fields: &'a mut FileFields,
}

impl<'de> Visitor<'de> for FieldsVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let origin = |line| SettingOrigin::File { path: self.path.into(), line };
        while let Some(name) = map.next_key::<Spanned<String>>()? {
            let known = TABLE.iter().find(|setting| setting.name == name.value && !setting.shape.is_secret);
            if let Some(setting) = known {
                let value = map.next_value_seed(TextSeed { is_list: setting.shape.is_list })?;
                let value = SourcedText { text: value.value, origin: origin(value.referenced.line()) };
                self.fields.values.push((setting.name, value));
            } else {
                map.next_value::<IgnoredAny>()?;
                let diagnostic = SettingDiagnostic::new(
                    origin(name.referenced.line()),
                    unknown_field_message(&name.value),
                );
                self.fields.diagnostics.push(diagnostic);
            }
        }
        Ok(())
    }
}

/// The error message for a field that is not allowed in the file.
fn unknown_field_message(name: &str) -> String {
    if let Some(secret) = TABLE.iter().find(|setting| setting.name == name && setting.shape.is_secret) {
        return format!(
            "{name} is a secret and not allowed in a config file: put it into a separate file and set {name}_file, \
             or into the variable {}",
            secret.variable()
        );
    }
    let names = TABLE.iter().filter(|setting| !setting.shape.is_secret).map(|setting| setting.name);
    match nearest(name, names.clone()) {
        Some(nearest) => format!("unknown field {name:?}: did you mean {nearest}?"),
        None => format!("unknown field {name:?}: the fields are {}", names.collect::<Vec<_>>().join(", ")),
    }
}

/// Reads a value as text; list items are joined with commas.
struct TextSeed {
    is_list: bool,
}

impl<'de> DeserializeSeed<'de> for TextSeed {
    type Value = Spanned<String>;

    fn deserialize<D: Deserializer<'de>>(self, yaml: D) -> Result<Spanned<String>, D::Error> {
        if self.is_list {
            Spanned::<ListValue>::deserialize(yaml)
                .map(|listed| Spanned::new(listed.value.0, listed.referenced, listed.defined))
        } else {
            Spanned::<String>::deserialize(yaml)
        }
    }
}

/// A list in brackets, in block style, or as text separated by commas.
struct ListValue(String);

impl<'de> Deserialize<'de> for ListValue {
    fn deserialize<D: Deserializer<'de>>(yaml: D) -> Result<ListValue, D::Error> {
        yaml.deserialize_any(ListedVisitor)
    }
}

struct ListedVisitor;

impl<'de> Visitor<'de> for ListedVisitor {
    type Value = ListValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list, like [one, another]")
    }

    fn visit_str<E>(self, text: &str) -> Result<ListValue, E> {
        Ok(ListValue(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<ListValue, A::Error> {
        let mut listed = Vec::new();
        while let Some(value) = values.next_element::<String>()? {
            listed.push(value);
        }
        Ok(ListValue(listed.join(",")))
    }
}

/// The diagnostic for a structural error of the file.
fn shape_diagnostic(path: &Path, error: &YamlError) -> SettingDiagnostic {
    let line = error.location().map_or(0, |location| location.line());
    let message = match error.without_snippet() {
        YamlError::DuplicateMappingKey { key: Some(field), .. } => {
            format!("duplicate field {field:?}: keep one of them")
        }
        YamlError::NullIntoString { .. } => "missing value: write one, or remove the field".to_owned(),
        YamlError::Unexpected { expected: "mapping start", .. } => {
            "expected fields: write them like http: 127.0.0.1:8080".to_owned()
        }
        YamlError::Unexpected { expected: "string scalar", .. } => {
            "expected a single value: write it without brackets or fields".to_owned()
        }
        other => UserMessageFormatter.format_message(other).into_owned(),
    };
    SettingDiagnostic::new(SettingOrigin::File { path: path.into(), line }, message)
}

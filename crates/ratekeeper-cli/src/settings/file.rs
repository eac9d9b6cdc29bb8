//! The config file: settings in YAML, one field each.
//!
//! It is written by people, so every complaint names the line and what to write instead. What is wrong with the file's
//! shape ends the reading; fields that nobody knows are told of all at once. A value is taken as it was written, not as
//! what YAML makes of it, so `off` is no `false` and `1.10` no `1.1`.

use super::{SettingDiagnostic, SettingOrigin, SourcedText, nearest, table::TABLE};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::{Error as YamlError, MessageFormatter, Spanned, UserMessageFormatter};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The most bytes of a config file, of which all settings take a few hundred.
const MOST_BYTES: u64 = 1024 * 1024;

/// What a file says, and what is wrong with it.
#[derive(Debug, Default)]
pub(super) struct FileFields {
    /// The settings by name, none twice.
    pub(super) said: Vec<(&'static str, SourcedText)>,
    pub(super) complaints: Vec<SettingDiagnostic>,
}

impl FileFields {
    /// Reads a file; `named` is who named it.
    pub(super) fn read(path: &Path, named: &SettingOrigin) -> FileFields {
        match text(path) {
            Ok(text) => FileFields::parse(path, &text),
            Err(error) => {
                let wrong = format!("cannot read the settings in {}: {error}", path.display());
                FileFields {
                    complaints: vec![SettingDiagnostic::new(named.clone(), wrong)],
                    ..FileFields::default()
                }
            }
        }
    }

    pub(super) fn parse(path: &Path, text: &str) -> FileFields {
        let mut fields = FileFields::default();
        // Else `off` in a list would be `false`.
        let options = serde_saphyr::options! { strict_booleans: true };
        let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| {
            yaml.deserialize_map(FieldsVisitor { path, fields: &mut fields })
        });
        match read {
            // A file of comments alone says nothing, which is in order.
            Ok(()) | Err(YamlError::Eof { .. }) => {}
            Err(error) => fields.complaints.push(about_shape(path, &error)),
        }
        fields
    }
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    // One byte more than it may have tells a file that is too long from one that just fits.
    let length = File::open(path)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    match length as u64 > MOST_BYTES {
        true => Err(io::Error::other(format!("it has more than {MOST_BYTES} bytes"))),
        false => Ok(text),
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
                let said = SourcedText { text: value.value, origin: origin(value.referenced.line()) };
                self.fields.said.push((setting.name, said));
            } else {
                map.next_value::<IgnoredAny>()?;
                let complaint = SettingDiagnostic::new(origin(name.referenced.line()), unknown(&name.value));
                self.fields.complaints.push(complaint);
            }
        }
        Ok(())
    }
}

/// What to say of a field that can't be in the file.
fn unknown(name: &str) -> String {
    if let Some(secret) = TABLE.iter().find(|setting| setting.name == name && setting.shape.is_secret) {
        return format!(
            "{name} is a secret, and a config file is seen by many: put it into a file of its own and name that \
             with {name}_file, or into the variable {}",
            secret.variable()
        );
    }
    let names = TABLE.iter().filter(|setting| !setting.shape.is_secret).map(|setting| setting.name);
    match nearest(name, names.clone()) {
        Some(near) => format!("unknown field {name:?}: did you mean {near}?"),
        None => format!("unknown field {name:?}: the fields are {}", names.collect::<Vec<_>>().join(", ")),
    }
}

/// Takes a value's text; that of a list with commas between.
struct TextSeed {
    is_list: bool,
}

impl<'de> DeserializeSeed<'de> for TextSeed {
    type Value = Spanned<String>;

    fn deserialize<D: Deserializer<'de>>(self, yaml: D) -> Result<Spanned<String>, D::Error> {
        match self.is_list {
            true => Spanned::<ListValue>::deserialize(yaml)
                .map(|listed| Spanned::new(listed.value.0, listed.referenced, listed.defined)),
            false => Spanned::<String>::deserialize(yaml),
        }
    }
}

/// A list in brackets, one value behind each `-`, or values with commas between them.
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

/// What keeps the file from being read to its end.
fn about_shape(path: &Path, error: &YamlError) -> SettingDiagnostic {
    let line = error.location().map_or(0, |location| location.line());
    let wrong = match error.without_snippet() {
        YamlError::DuplicateMappingKey { key: Some(field), .. } => {
            format!("the field {field:?} is there twice: keep one of them")
        }
        YamlError::NullIntoString { .. } => {
            "there is no value here: write one, or leave the field out".to_owned()
        }
        YamlError::Unexpected { expected: "mapping start", .. } => {
            "fields belong here: write them like http: 127.0.0.1:8080".to_owned()
        }
        YamlError::Unexpected { expected: "string scalar", .. } => {
            "a single value belongs here: write it without brackets or fields".to_owned()
        }
        other => UserMessageFormatter.format_message(other).into_owned(),
    };
    SettingDiagnostic::new(SettingOrigin::File { path: path.into(), line }, wrong)
}

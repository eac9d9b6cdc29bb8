//! The config file: settings in YAML, one field each.
//!
//! It is parsed like a rule file, so every error is shown with its position and what to write instead. A value is taken
//! as the text that was written, not as YAML types it, so `off` is not `false` and `1.10` is not `1.1`.

use super::table::{Setting, TABLE};
use super::{
    CONFIG_VARIABLE, Environment, SettingErrors, SettingOrigin, SettingValues, SourcedText, closest_name,
    flag_value,
};
use clap::ArgMatches;
use ratekeeper::rules::yaml::{self, YamlNode, YamlValue};
use ratekeeper::rules::{Diagnostic, Diagnostics, quoted, report};
use ratekeeper_server::file;
use std::io;
use std::path::PathBuf;

/// The maximum size of a config file in bytes. All settings together take a few hundred.
const MAX_BYTES: u64 = 1024 * 1024;

/// The text of a config file.
#[derive(Debug)]
pub(super) struct ConfigFile {
    path: PathBuf,
    text: String,
}

impl ConfigFile {
    /// Reads the file that `--config` or its variable names, if any.
    pub(super) fn named_by(
        matches: &ArgMatches,
        environment: &Environment,
        errors: &mut SettingErrors,
    ) -> Option<ConfigFile> {
        let (path, origin) = match flag_value(matches, "config") {
            Some(path) => (path, SettingOrigin::Flag("config".to_owned())),
            None => (
                environment.variable(CONFIG_VARIABLE)?.to_owned(),
                SettingOrigin::Variable(CONFIG_VARIABLE.to_owned()),
            ),
        };
        let path = PathBuf::from(path);
        let text = file::read(&path, MAX_BYTES)
            .and_then(|bytes| String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text")));
        match text {
            Ok(text) => Some(ConfigFile { path, text }),
            Err(error) => {
                errors.add(&origin, format!("cannot read the config file {}: {error}", path.display()));
                None
            }
        }
    }

    /// The settings in the file.
    pub(super) fn values(&self, errors: &mut SettingErrors) -> SettingValues {
        let errors = &mut errors.in_file;
        let mut values = SettingValues::new();
        let Some(root) = yaml::parse(&self.text, errors).filter(|root| !root.is_null()) else {
            return values;
        };
        let YamlValue::Map(fields) = &root.value else {
            errors.error(root.place, "expected fields: write them like http: 127.0.0.1:8080");
            return values;
        };
        for (name, node) in fields {
            let text = name.text().unwrap_or_default();
            let Some(setting) = TABLE.iter().find(|setting| setting.name == text && !setting.shape.is_secret)
            else {
                errors.error(name.place, unknown_field_error(text));
                continue;
            };
            if node.is_null() {
                errors.error(name.place, "missing value: write one, or remove the field");
                continue;
            }
            let Some(value) = text_of(setting, node, errors) else { continue };
            let origin = SettingOrigin::File(self.path.clone(), node.place);
            if values.insert(setting.name, SourcedText { text: value, origin }).is_some() {
                errors.error(name.place, format!("duplicate field {text:?}: keep one of them"));
            }
        }
        values
    }

    /// Formats errors in the file like a compiler does, but without secrets in the source lines.
    pub(super) fn report(&self, diagnostics: &[Diagnostic]) -> String {
        let text: String = self.text.split_inclusive(['\n', '\r']).map(without_secret).collect();
        report(&self.path.display().to_string(), &text, diagnostics)
    }
}

/// The line with `***` in place of a value that may be a secret. The file may be malformed, so only what follows the name
/// of a public setting is shown, and not if it looks like a URL, which may contain a password.
fn without_secret(line: &str) -> String {
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    let is_public = |setting: &Setting| !setting.shape.is_secret && setting.name == name.trim();
    if TABLE.iter().any(is_public) && !value.contains("://") && !value.contains('@') {
        return line.to_owned();
    }
    let end = &line[line.trim_end_matches(['\n', '\r']).len()..];
    if name.len() < line.len() {
        format!("{name}: ***{end}")
    } else {
        let indent = line.len() - line.trim_start_matches([' ', '-']).len();
        format!("{}***{end}", &line[..indent])
    }
}

/// The error for a field that is not allowed in the file.
fn unknown_field_error(name: &str) -> String {
    if let Some(secret) = TABLE.iter().find(|setting| setting.name == name) {
        return format!(
            "{name} is a secret and not allowed in a config file: put it into a separate file and set {name}_file, \
             or into the variable {}",
            secret.variable()
        );
    }
    let names = TABLE.iter().filter(|setting| !setting.shape.is_secret).map(|setting| setting.name);
    let advice = match closest_name(name, names.clone()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("the fields are {}", names.collect::<Vec<_>>().join(", ")),
    };
    format!("unknown field {}: {advice}", quoted(name))
}

/// The text of a value. The items of a list are joined with commas, as in a flag.
fn text_of(setting: &Setting, node: &YamlNode<'_>, errors: &mut Diagnostics) -> Option<String> {
    match &node.value {
        YamlValue::List(items) if setting.shape.is_list => {
            let texts: Option<Vec<_>> = items.iter().map(|item| single_text(item, errors)).collect();
            texts.map(|texts| texts.join(","))
        }
        YamlValue::Map(_) if setting.shape.is_list => {
            errors.error(node.place, "expected a list, not a map: write it like [one, another]");
            None
        }
        _ => single_text(node, errors).map(str::to_owned),
    }
}

fn single_text<'n>(node: &'n YamlNode<'_>, errors: &mut Diagnostics) -> Option<&'n str> {
    match &node.value {
        YamlValue::Scalar { text, .. } => return Some(text),
        YamlValue::List(_) | YamlValue::Map(_) => {
            errors.error(node.place, "expected a single value: write it without brackets or fields");
        }
        // Reported by the parser.
        YamlValue::Broken => {}
    }
    None
}

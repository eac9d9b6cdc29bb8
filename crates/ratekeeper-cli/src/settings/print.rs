//! `--print-config`: all settings with their origins, as a valid config file.

use super::table::{DefaultValue, Setting, TABLE};
use super::{SettingOrigin, SettingValues, SourcedText};
use std::fmt::Write as _;

/// Prints all settings in the order of the table.
pub(super) fn print(values: &SettingValues) -> String {
    let mut printed =
        format!("# Settings of ratekeeper {}, each with its origin.\n", env!("CARGO_PKG_VERSION"));
    let mut heading = "";
    for setting in TABLE {
        if setting.heading != heading {
            heading = setting.heading;
            let _ = writeln!(printed, "\n# {heading}");
        }
        let _ = writeln!(printed, "{}", line(setting, values.get(setting.name)));
    }
    printed
}

fn line(setting: &Setting, value: Option<&SourcedText>) -> String {
    let name = setting.name;
    match (value, &setting.fallback) {
        (Some(SourcedText { origin, .. }), _) if setting.shape.is_secret => {
            format!("# {name}: (hidden)  # {origin}")
        }
        (Some(SourcedText { text, origin }), DefaultValue::Terminal) if *origin == SettingOrigin::Default => {
            format!("{name}: {text}  # default: json if stderr is not a terminal")
        }
        (Some(SourcedText { text, origin }), _) => {
            let shown = (setting.shape.show)(text);
            let hidden = if shown == *text { "" } else { ", password hidden" };
            format!("{name}: {}  # {origin}{hidden}", scalar(setting, &shown))
        }
        (None, DefaultValue::Unset(meaning)) => format!("# {name}:  # default: {meaning}"),
        (None, _) => format!("# {name}:"),
    }
}

/// Formats a value as YAML that is read as the same text.
fn scalar(setting: &Setting, text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:-".contains(c);
    let quote = |text: &str| {
        if text.chars().all(is_plain)
            && text.starts_with(|c: char| c.is_ascii_alphanumeric() || "./".contains(c))
            && !text.ends_with(':')
            && !["null", "true", "false"].contains(&text.to_ascii_lowercase().as_str())
        {
            text.to_owned()
        } else {
            // A JSON string is a valid YAML string.
            serde_json::Value::from(text).to_string()
        }
    };
    if setting.shape.is_list {
        format!("[{}]", text.split(',').map(|word| quote(word.trim())).collect::<Vec<_>>().join(", "))
    } else {
        quote(text)
    }
}

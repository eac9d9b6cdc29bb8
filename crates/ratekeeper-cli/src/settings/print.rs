//! `--print-config`: all settings and where each came from, in a form that is a config file again.

use super::table::{DefaultValue, Setting, TABLE};
use super::{SettingOrigin, SourcedText};
use std::fmt::Write as _;

/// All settings, in the order of the table; `said` is what is in force for each.
pub(super) fn print(said: &[Option<SourcedText>]) -> String {
    let mut printed = format!(
        "# The settings of ratekeeper {}, each with where it came from.\n",
        env!("CARGO_PKG_VERSION")
    );
    let mut heading = "";
    for (setting, said) in TABLE.iter().zip(said) {
        if setting.heading != heading {
            heading = setting.heading;
            let _ = writeln!(printed, "\n# {heading}");
        }
        let _ = writeln!(printed, "{}", line(setting, said.as_ref()));
    }
    printed
}

fn line(setting: &Setting, said: Option<&SourcedText>) -> String {
    let name = setting.name;
    match (said, &setting.fallback) {
        (Some(SourcedText { origin, .. }), _) if setting.shape.is_secret => {
            format!("# {name}: (hidden)  # {origin}")
        }
        (Some(SourcedText { text, origin }), DefaultValue::Reader) if *origin == SettingOrigin::Default => {
            format!("{name}: {text}  # default: json if stderr is no terminal")
        }
        (Some(SourcedText { text, origin }), _) => {
            let shown = (setting.shape.show)(text);
            let hidden = if shown == *text { "" } else { ", its password is not shown" };
            format!("{name}: {}  # {origin}{hidden}", scalar(setting, &shown))
        }
        (None, DefaultValue::Nothing(meaning)) => format!("# {name}:  # default: {meaning}"),
        (None, _) => format!("# {name}:"),
    }
}

/// A value in YAML that is read as the same text.
fn scalar(setting: &Setting, text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:-".contains(c);
    let quote = |text: &str| match text.chars().all(is_plain)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || "./".contains(c))
        && !text.ends_with(':')
        && !["null", "true", "false"].contains(&text)
    {
        true => text.to_owned(),
        // A string in JSON is one in YAML.
        false => serde_json::Value::from(text).to_string(),
    };
    match setting.shape.is_list {
        true => {
            format!("[{}]", text.split(',').map(|word| quote(word.trim())).collect::<Vec<_>>().join(", "))
        }
        false => quote(text),
    }
}

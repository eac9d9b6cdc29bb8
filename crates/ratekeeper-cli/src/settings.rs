//! The server's settings, and the origin of each.
//!
//! All settings are defined in one table ([`table`]). A setting comes from its default, a field of the config file, an
//! environment variable or a flag; later sources override earlier ones. The origin of each value is kept, so that
//! `--print-config` and every error can name it. All errors are reported at once.
//!
//! Nothing here reads the process directly: its variables, cores and terminal are passed in, so that tests can choose
//! them.

mod cross_checks;
mod errors;
mod file;
mod print;
mod store;
mod table;
mod value;

use anyhow::Result;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use errors::SettingErrors;
use file::ConfigFile;
use ratekeeper::rules::closest_name;
use ratekeeper::rules::spec::Position;
use ratekeeper_server::tls::ListenerTlsFiles;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::thread::available_parallelism;
use table::{DefaultValue, Setting, TABLE};

pub(crate) use table::Settings;
pub(crate) use value::{ClientAddress, DenyStatus, HeaderProfile, Listen, ListenerChoice, LogFormat, Reset};

/// The prefix of all environment variables of Ratekeeper.
const PREFIX: &str = "RATEKEEPER_";
/// The variable with the path of the config file.
const CONFIG_VARIABLE: &str = "RATEKEEPER_CONFIG";
/// The conventional variable for the log filter, which overrides all others.
const RUST_LOG: &str = "RUST_LOG";

/// The parts of the process environment that settings depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Environment {
    /// The environment variables.
    pub(crate) variables: BTreeMap<String, String>,
    /// The number of available cores.
    pub(crate) cores: usize,
    /// Whether stderr is a terminal.
    pub(crate) stderr_is_terminal: bool,
}

impl Environment {
    /// Reads the environment of this process.
    pub(crate) fn current() -> Environment {
        let lossy = |text: &OsStr| text.to_string_lossy().into_owned();
        Environment {
            variables: std::env::vars_os().map(|(name, value)| (lossy(&name), lossy(&value))).collect(),
            cores: available_parallelism().map_or(1, Into::into),
            stderr_is_terminal: std::io::stderr().is_terminal(),
        }
    }

    /// The value of a variable. An empty one counts as unset, since compose and unit files leave variables empty.
    fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Valid settings, their origins, and warnings about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) settings: Settings,
    /// Probable errors that do not prevent the start.
    pub(crate) warnings: Vec<String>,
    values: SettingValues,
}

/// The effective value of each setting that has one, by name.
type SettingValues = BTreeMap<&'static str, SourcedText>;

impl Settings {
    /// Adds a flag for every setting to the command, and the flags `--config` and `--print-config`.
    pub(crate) fn add_to(command: Command) -> Command {
        let config = Arg::new("config").long("config").value_name("FILE").value_hint(ValueHint::FilePath);
        let config = config.env(CONFIG_VARIABLE).hide_env_values(true).help("A config file in YAML");
        let config = config.long_help(
            "A config file in YAML\n\nEvery flag below is also a field of the file, with _ for -, like max_keys: \
             1_000_000. The environment overrides the file, and flags override both. --print-config prints such \
             a file.",
        );
        let print = Arg::new("print-config").long("print-config").action(ArgAction::SetTrue);
        let print = print.help("Print all settings with their origins, as a config file, and exit");
        let flags = TABLE.iter().filter(|setting| !setting.shape.is_secret).map(flag);
        command.arg(config).arg(print).args(flags)
    }

    /// Resolves the settings from flags, environment and config file.
    ///
    /// # Errors
    /// Returns all errors in the settings.
    pub(crate) fn resolve(matches: &ArgMatches, environment: &Environment) -> Result<Resolved> {
        let mut errors = SettingErrors::default();
        let file = ConfigFile::named_by(matches, environment, &mut errors);
        let mut values = default_values(environment);
        values.extend(file.as_ref().map(|file| file.values(&mut errors)).unwrap_or_default());
        values.extend(values_of_variables(environment));
        values.extend(values_of_flags(matches));
        if let Some(filter) = variable_value(environment, RUST_LOG) {
            values.insert("log", filter);
        }
        let settings = Settings::read(&values, &mut errors);
        cross_checks::check(&values, &mut errors);
        errors.finish(|in_file| Some(file.as_ref()?.report(in_file)))?;
        let settings = settings.expect("an invalid setting is an error");
        Ok(Resolved { settings, warnings: warnings(environment), values })
    }

    /// The TLS files. Returns `None` if TLS is off.
    pub(crate) fn tls_files(&self) -> Option<ListenerTlsFiles> {
        let (cert, key) = self.tls_cert.clone().zip(self.tls_key.clone())?;
        Some(ListenerTlsFiles { cert, key, client_ca: self.tls_client_ca.clone() })
    }
}

impl Resolved {
    /// Prints all settings with their origins, as a valid config file.
    pub(crate) fn print(&self) -> String {
        print::print(&self.values)
    }
}

fn flag(setting: &'static Setting) -> Arg {
    let lines = setting.text.iter().map(|line| line.trim());
    let paragraphs: Vec<_> =
        lines.collect::<Vec<_>>().split(|line| line.is_empty()).map(|lines| lines.join(" ")).collect();
    let note = match setting.fallback {
        DefaultValue::Text(_) => String::new(),
        DefaultValue::Cores => "[default: number of cores]".to_owned(),
        DefaultValue::Terminal => "[default: text if stderr is a terminal, else json]".to_owned(),
        DefaultValue::Unset(meaning) => format!("[default: {meaning}]"),
    };
    let help = format!("{} {note}", paragraphs[0]);
    let long_help = format!("{}\n\n{note}", paragraphs.join("\n\n"));
    let arg = Arg::new(setting.name).long(setting.flag()).value_name(setting.shape.placeholder);
    let arg = arg.env(setting.variable()).hide_env_values(true).help_heading(setting.heading);
    let arg = arg
        .help(help.trim_end().to_owned())
        .long_help(long_help.trim_end().to_owned())
        .value_hint(setting.shape.hint);
    let arg = arg.value_parser(AnyText { choices: setting.shape.choices });
    let arg = if setting.shape.is_list { arg.action(ArgAction::Append) } else { arg.action(ArgAction::Set) };
    match setting.fallback {
        DefaultValue::Text(text) => arg.default_value(text),
        DefaultValue::Cores | DefaultValue::Terminal | DefaultValue::Unset(_) => arg,
    }
}

/// Accepts any text and only lists the choices for help and completion: errors are collected and reported later, all at
/// once.
#[derive(Clone)]
struct AnyText {
    choices: fn() -> Vec<PossibleValue>,
}

impl TypedValueParser for AnyText {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let choices = (self.choices)();
        (!choices.is_empty()).then(|| Box::new(choices.into_iter()) as Box<_>)
    }
}

fn default_values(environment: &Environment) -> SettingValues {
    let text_of = |setting: &Setting| match setting.fallback {
        DefaultValue::Text(text) => Some(text.to_owned()),
        // Cores beyond the maximum number of threads are left idle.
        DefaultValue::Cores => {
            Some((environment.cores as u64).clamp(*setting.range.start(), *setting.range.end()).to_string())
        }
        DefaultValue::Terminal if environment.stderr_is_terminal => Some("text".to_owned()),
        DefaultValue::Terminal => Some("json".to_owned()),
        DefaultValue::Unset(_) => None,
    };
    let value = |setting: &Setting| {
        Some((setting.name, SourcedText { text: text_of(setting)?, origin: SettingOrigin::Default }))
    };
    TABLE.iter().filter_map(value).collect()
}

fn values_of_variables(environment: &Environment) -> SettingValues {
    let value = |setting: &Setting| Some((setting.name, variable_value(environment, &setting.variable())?));
    TABLE.iter().filter_map(value).collect()
}

fn variable_value(environment: &Environment, name: &str) -> Option<SourcedText> {
    let text = environment.variable(name)?.trim().to_owned();
    Some(SourcedText { text, origin: SettingOrigin::Variable(name.to_owned()) })
}

fn values_of_flags(matches: &ArgMatches) -> SettingValues {
    let value = |setting: &Setting| {
        let text = flag_value(matches, setting.name)?.trim().to_owned();
        Some((setting.name, SourcedText { text, origin: SettingOrigin::Flag(setting.flag()) }))
    };
    TABLE.iter().filter_map(value).collect()
}

/// The value of a flag, if it was given. Values that clap read from the environment are ignored: variables are passed
/// in.
fn flag_value(matches: &ArgMatches, id: &str) -> Option<String> {
    let is_flag =
        matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine);
    let values = is_flag.then(|| matches.get_many::<String>(id)).flatten()?;
    Some(values.map(String::as_str).collect::<Vec<_>>().join(","))
}

/// Warns of variables with our prefix that are not known.
fn warnings(environment: &Environment) -> Vec<String> {
    // The variables of `--config` and of `ratekeeper check` are not settings.
    let known: Vec<_> = TABLE.iter().map(|setting| setting.name).chain(["config", "server"]).collect();
    let warning = |variable: &String| {
        let name = variable.strip_prefix(PREFIX).filter(|_| !is_from_kubernetes(variable))?;
        if known.iter().any(|known| known.to_uppercase() == name) {
            return None;
        }
        let advice = match closest_name(name, known.iter().copied()) {
            Some(near) => format!("did you mean {PREFIX}{}?", near.to_uppercase()),
            None => "it is ignored".to_owned(),
        };
        Some(format!("unknown environment variable {variable}: {advice}"))
    };
    environment.variables.keys().filter_map(warning).collect()
}

/// Whether Kubernetes sets this variable in every pod, for a service whose name begins with `ratekeeper`.
fn is_from_kubernetes(name: &str) -> bool {
    name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.contains("_PORT_")
}

/// The text of a setting, and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SourcedText {
    text: String,
    origin: SettingOrigin,
}

/// The origin of a setting's value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SettingOrigin {
    Default,
    /// A position in the config file.
    File(PathBuf, Position),
    /// An environment variable.
    Variable(String),
    /// A flag, without its dashes.
    Flag(String),
}

/// `default`, `ratekeeper.yaml:3`, `RATEKEEPER_HTTP` or `--http`.
impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::Default => f.write_str("default"),
            SettingOrigin::File(path, place) => write!(f, "{}:{}", path.display(), place.line),
            SettingOrigin::Variable(name) => f.write_str(name),
            SettingOrigin::Flag(name) => write!(f, "--{name}"),
        }
    }
}

#[cfg(test)]
mod tests;

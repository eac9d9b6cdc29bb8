//! The server's settings, and the origin of each.
//!
//! All settings are defined in one table ([`table`]). A setting comes from its default, a field of the config file, an
//! environment variable or a flag; later sources override earlier ones. The origin of each value is kept, so that
//! `--print-config` and every diagnostic can name it. All errors are reported at once.
//!
//! Nothing here reads the process directly: its variables, cores and terminal are passed in, so that tests can choose
//! them.

mod cross_checks;
mod file;
mod print;
mod store;
mod table;
mod value;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use ratekeeper_server::tls::ListenerTlsFiles;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::thread::available_parallelism;
use table::{DefaultValue, Setting, TABLE, TextReader};
use value::SettingValue;

pub(crate) use table::Settings;
pub(crate) use value::{ClientAddress, DenyStatus, HeaderProfile, Listen, ListenerChoice, LogFormat, Reset};

/// The prefix of all environment variables of Ratekeeper.
const PREFIX: &str = "RATEKEEPER_";
/// Variables with that prefix that are not settings.
const OTHER_VARIABLES: [&str; 2] = ["RATEKEEPER_CONFIG", "RATEKEEPER_SERVER"];
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
    values: Vec<Option<SourcedText>>,
}

impl Settings {
    /// Adds a flag for every setting to the command, and the flags `--config` and `--print-config`.
    pub(crate) fn add_to(command: Command) -> Command {
        let config = Arg::new("config").long("config").value_name("FILE").value_hint(ValueHint::FilePath);
        let config = config.env("RATEKEEPER_CONFIG").hide_env_values(true).help("A config file in YAML");
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
    pub(crate) fn resolve(
        matches: &ArgMatches,
        environment: &Environment,
    ) -> Result<Resolved, SettingDiagnostics> {
        let config = config_path(matches, environment);
        let file = config.map(|(path, origin)| file::FileFields::read(&path, &origin)).unwrap_or_default();
        let values: Vec<_> = TABLE
            .iter()
            .map(|setting| effective_value(setting, matches, environment, &file.values))
            .collect();
        let mut reader = SettingsReader { next: TABLE.iter().zip(&values), diagnostics: file.diagnostics };
        let settings = Settings::read(&mut reader);
        let mut diagnostics = reader.diagnostics;
        diagnostics.extend(cross_checks::check_all(&values));
        match settings {
            Some(settings) if diagnostics.is_empty() => {
                Ok(Resolved { settings, warnings: warnings(environment), values })
            }
            _ => Err(SettingDiagnostics(diagnostics)),
        }
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

    /// The settings that were set explicitly, and their origins.
    #[cfg(test)]
    pub(crate) fn explicit(&self) -> impl Iterator<Item = (&'static str, &SettingOrigin)> {
        let values = TABLE
            .iter()
            .zip(&self.values)
            .filter_map(|(setting, value)| Some((setting.name, value.as_ref()?)));
        values
            .map(|(name, value)| (name, &value.origin))
            .filter(|(_, origin)| **origin != SettingOrigin::Default)
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

/// The path of the config file, and where it was set.
fn config_path(matches: &ArgMatches, environment: &Environment) -> Option<(PathBuf, SettingOrigin)> {
    let flag = flag_value(matches, "config").map(|path| (path, SettingOrigin::Flag("config".to_owned())));
    let variable = || {
        let path = environment.variable("RATEKEEPER_CONFIG")?;
        Some((path.to_owned(), SettingOrigin::Variable("RATEKEEPER_CONFIG".to_owned())))
    };
    flag.or_else(variable).map(|(path, origin)| (PathBuf::from(path), origin))
}

/// The value of a flag, if it was given. Values that clap read from the environment are ignored: variables are passed
/// in.
fn flag_value(matches: &ArgMatches, id: &str) -> Option<String> {
    let is_flag =
        matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine);
    let values = is_flag.then(|| matches.get_many::<String>(id)).flatten()?;
    Some(values.map(String::as_str).collect::<Vec<_>>().join(","))
}

/// The effective value of a setting, and its origin.
fn effective_value(
    setting: &Setting,
    matches: &ArgMatches,
    environment: &Environment,
    file: &[(&'static str, SourcedText)],
) -> Option<SourcedText> {
    let from_variable = |name: &str| {
        let text = environment.variable(name)?.trim().to_owned();
        Some(SourcedText { text, origin: SettingOrigin::Variable(name.to_owned()) })
    };
    let usual = || (setting.name == "log").then(|| from_variable(RUST_LOG)).flatten();
    let flag = || {
        let text = flag_value(matches, setting.name)?.trim().to_owned();
        Some(SourcedText { text, origin: SettingOrigin::Flag(setting.flag()) })
    };
    let field = || file.iter().find(|(name, _)| *name == setting.name).map(|(_, value)| value.clone());
    usual()
        .or_else(flag)
        .or_else(|| from_variable(&setting.variable()))
        .or_else(field)
        .or_else(|| default_value(setting, environment))
}

fn default_value(setting: &Setting, environment: &Environment) -> Option<SourcedText> {
    let text = match setting.fallback {
        DefaultValue::Text(text) => text.to_owned(),
        // Cores beyond the maximum number of threads are left idle.
        DefaultValue::Cores => {
            (environment.cores as u64).clamp(*setting.range.start(), *setting.range.end()).to_string()
        }
        DefaultValue::Terminal if environment.stderr_is_terminal => "text".to_owned(),
        DefaultValue::Terminal => "json".to_owned(),
        DefaultValue::Unset(_) => return None,
    };
    Some(SourcedText { text, origin: SettingOrigin::Default })
}

/// Parses the values in the order of the table and collects the errors.
struct SettingsReader<I> {
    next: I,
    diagnostics: Vec<SettingDiagnostic>,
}

impl<'a, I: Iterator<Item = (&'a Setting, &'a Option<SourcedText>)>> TextReader for SettingsReader<I> {
    fn next<T: SettingValue>(&mut self) -> Option<T> {
        let (setting, value) = self.next.next().expect("settings are read in the order of the table");
        let Some(value) = value else { return T::absent() };
        let read = T::read(&value.text, &setting.range);
        read.map_err(|message| self.diagnostics.push(SettingDiagnostic::new(value.origin.clone(), message)))
            .ok()
    }
}

/// Warns of variables with our prefix that are not known.
fn warnings(environment: &Environment) -> Vec<String> {
    let known: Vec<_> =
        TABLE.iter().map(Setting::variable).chain(OTHER_VARIABLES.map(str::to_owned)).collect();
    let unknown = environment
        .variables
        .keys()
        .filter(|name| name.starts_with(PREFIX) && !known.contains(name) && !is_from_kubernetes(name));
    // The common prefix would make any two names similar.
    let short = |name: &str| name.trim_start_matches(PREFIX).to_owned();
    let names: Vec<_> = known.iter().map(|name| short(name)).collect();
    let warn = |name: &String| match nearest(&short(name), names.iter().map(String::as_str)) {
        Some(nearest_name) => {
            format!("unknown environment variable {name}: did you mean {PREFIX}{nearest_name}?")
        }
        None => format!("unknown environment variable {name}: it is ignored"),
    };
    unknown.map(warn).collect()
}

/// Whether Kubernetes sets this variable in every pod, for a service whose name begins with `ratekeeper`.
fn is_from_kubernetes(name: &str) -> bool {
    name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.contains("_PORT_")
}

/// The name that was probably meant: it differs in at most a third of its letters. Returns `None` if no name is that
/// similar.
fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distances = names.into_iter().map(|known| (strsim::damerau_levenshtein(name, known), known));
    distances.min().filter(|(distance, known)| distance * 3 <= known.len()).map(|(_, known)| known)
}

/// The text of a setting, and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SourcedText {
    text: String,
    origin: SettingOrigin,
}

/// The origin of a setting's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingOrigin {
    Default,
    /// A line of a config file.
    File {
        path: PathBuf,
        line: u64,
    },
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
            SettingOrigin::File { path, line: 0 } => path.display().fmt(f),
            SettingOrigin::File { path, line } => write!(f, "{}:{line}", path.display()),
            SettingOrigin::Variable(name) => f.write_str(name),
            SettingOrigin::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// An error in one setting, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SettingDiagnostic {
    origin: SettingOrigin,
    message: String,
}

impl SettingDiagnostic {
    fn new(origin: SettingOrigin, message: impl Into<String>) -> SettingDiagnostic {
        SettingDiagnostic { origin, message: message.into() }
    }
}

/// A place in a file comes first, as in compiler output; a flag or a variable is named at the end.
impl fmt::Display for SettingDiagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SettingDiagnostic { origin, message } = self;
        match origin {
            SettingOrigin::File { .. } => write!(f, "{origin}: {message}"),
            SettingOrigin::Default | SettingOrigin::Variable(_) | SettingOrigin::Flag(_) => {
                write!(f, "{message} (from {origin})")
            }
        }
    }
}

/// All errors in the settings, one per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SettingDiagnostics(Vec<SettingDiagnostic>);

impl fmt::Display for SettingDiagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for SettingDiagnostics {}

#[cfg(test)]
mod tests;

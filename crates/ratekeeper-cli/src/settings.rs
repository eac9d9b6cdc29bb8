//! What the server is told, and by whom.
//!
//! Everything that can be set stands in one table ([`table`]). A setting is said by its default, by a field of the
//! config file, by an environment variable or by a flag; of several, the last of these wins. What came from where is
//! remembered, so that `--print-config` and every complaint can say it. All that is wrong is told at once.
//!
//! The process is not asked for anything here: its variables, its cores and its terminal are handed in, so that a test
//! can make them up.

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

/// What all our variables begin with.
const PREFIX: &str = "RATEKEEPER_";
/// Variables that are ours but no setting's.
const OTHER_VARIABLES: [&str; 2] = ["RATEKEEPER_CONFIG", "RATEKEEPER_SERVER"];
/// The variable that says what is logged in programs like this one, and wins over our own.
const USUAL_LOG: &str = "RUST_LOG";

/// What of the process and the machine matters to settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Environment {
    /// The environment variables.
    pub(crate) variables: BTreeMap<String, String>,
    /// How many threads can run at once.
    pub(crate) cores: usize,
    /// Whether somebody reads the log as it is written.
    pub(crate) has_reader: bool,
}

impl Environment {
    /// Those of this process.
    pub(crate) fn of_this_process() -> Environment {
        let lossy = |text: &OsStr| text.to_string_lossy().into_owned();
        Environment {
            variables: std::env::vars_os().map(|(name, value)| (lossy(&name), lossy(&value))).collect(),
            cores: available_parallelism().map_or(1, Into::into),
            has_reader: std::io::stderr().is_terminal(),
        }
    }

    /// A variable's value. An empty one says nothing, as compose files and unit files leave them so.
    fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Settings that can be used, and what there is to say about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) settings: Settings,
    /// What is probably a mistake, but stops nobody.
    pub(crate) warnings: Vec<String>,
    said: Vec<Option<SourcedText>>,
}

impl Settings {
    /// The command with a flag for every setting, and those that say where more settings are and show them all.
    pub(crate) fn add_to(command: Command) -> Command {
        let config = Arg::new("config").long("config").value_name("FILE").value_hint(ValueHint::FilePath);
        let config =
            config.env("RATEKEEPER_CONFIG").hide_env_values(true).help("A file with settings, in YAML");
        let config = config.long_help(
            "A file with settings, in YAML\n\nEvery flag below is also a field there, with _ for -, like max_keys: \
             1_000_000. The environment wins over the file, and flags win over both. --print-config prints such a file.",
        );
        let print = Arg::new("print-config").long("print-config").action(ArgAction::SetTrue);
        let print = print.help("Print all settings and where each came from, as a config file, and stop");
        let flags = TABLE.iter().filter(|setting| !setting.shape.is_secret).map(flag);
        command.arg(config).arg(print).args(flags)
    }

    /// What the flags, the environment and the config file say together.
    ///
    /// # Errors
    /// With all that is wrong with it.
    pub(crate) fn resolve(
        matches: &ArgMatches,
        around: &Environment,
    ) -> Result<Resolved, SettingDiagnostics> {
        let config = config_path(matches, around);
        let file = config.map(|(path, named)| file::FileFields::read(&path, &named)).unwrap_or_default();
        let said: Vec<_> =
            TABLE.iter().map(|setting| said_of(setting, matches, around, &file.said)).collect();
        let mut reading = SettingsReader { next: TABLE.iter().zip(&said), complaints: file.complaints };
        let settings = Settings::read(&mut reading);
        let mut complaints = reading.complaints;
        complaints.extend(cross_checks::complaints(&said));
        match settings {
            Some(settings) if complaints.is_empty() => {
                Ok(Resolved { settings, warnings: warnings(around), said })
            }
            _ => Err(SettingDiagnostics(complaints)),
        }
    }

    /// The files for TLS, if there are any.
    pub(crate) fn tls_files(&self) -> Option<ListenerTlsFiles> {
        let (cert, key) = self.tls_cert.clone().zip(self.tls_key.clone())?;
        Some(ListenerTlsFiles { cert, key, client_ca: self.tls_client_ca.clone() })
    }
}

impl Resolved {
    /// All settings, each with where it came from. What is printed can be read as a config file.
    pub(crate) fn print(&self) -> String {
        print::print(&self.said)
    }

    /// The settings that somebody set, and who.
    #[cfg(test)]
    pub(crate) fn set(&self) -> impl Iterator<Item = (&'static str, &SettingOrigin)> {
        let said =
            TABLE.iter().zip(&self.said).filter_map(|(setting, said)| Some((setting.name, said.as_ref()?)));
        said.map(|(name, said)| (name, &said.origin)).filter(|(_, origin)| **origin != SettingOrigin::Default)
    }
}

fn flag(setting: &'static Setting) -> Arg {
    let lines = setting.text.iter().map(|line| line.trim());
    let paragraphs: Vec<_> =
        lines.collect::<Vec<_>>().split(|line| line.is_empty()).map(|lines| lines.join(" ")).collect();
    let note = match setting.fallback {
        DefaultValue::Text(_) => String::new(),
        DefaultValue::Cores => "[default: as many as there are cores]".to_owned(),
        DefaultValue::Reader => "[default: text if stderr is a terminal, else json]".to_owned(),
        DefaultValue::Nothing(meaning) => format!("[default: {meaning}]"),
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
    let arg = match setting.shape.is_list {
        true => arg.action(ArgAction::Append),
        false => arg.action(ArgAction::Set),
    };
    match setting.fallback {
        DefaultValue::Text(text) => arg.default_value(text),
        DefaultValue::Cores | DefaultValue::Reader | DefaultValue::Nothing(_) => arg,
    }
}

/// Takes any text, and only tells of the choices: what is wrong is found later, all at once.
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

/// The config file, and who named it.
fn config_path(matches: &ArgMatches, around: &Environment) -> Option<(PathBuf, SettingOrigin)> {
    let flag = from_flag(matches, "config").map(|path| (path, SettingOrigin::Flag("config".to_owned())));
    let variable = || {
        let path = around.variable("RATEKEEPER_CONFIG")?;
        Some((path.to_owned(), SettingOrigin::Variable("RATEKEEPER_CONFIG".to_owned())))
    };
    flag.or_else(variable).map(|(path, origin)| (PathBuf::from(path), origin))
}

/// What a flag says, if it is there. What clap found in the environment does not count: ours is handed in.
fn from_flag(matches: &ArgMatches, id: &str) -> Option<String> {
    let is_flag =
        matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine);
    let values = is_flag.then(|| matches.get_many::<String>(id)).flatten()?;
    Some(values.map(String::as_str).collect::<Vec<_>>().join(","))
}

/// What is in force for a setting, and who says so.
fn said_of(
    setting: &Setting,
    matches: &ArgMatches,
    around: &Environment,
    file: &[(&'static str, SourcedText)],
) -> Option<SourcedText> {
    let from_variable = |name: &str| {
        let text = around.variable(name)?.trim().to_owned();
        Some(SourcedText { text, origin: SettingOrigin::Variable(name.to_owned()) })
    };
    let usual = || (setting.name == "log").then(|| from_variable(USUAL_LOG)).flatten();
    let flag = || {
        let text = from_flag(matches, setting.name)?.trim().to_owned();
        Some(SourcedText { text, origin: SettingOrigin::Flag(setting.flag()) })
    };
    let field = || file.iter().find(|(name, _)| *name == setting.name).map(|(_, said)| said.clone());
    usual()
        .or_else(flag)
        .or_else(|| from_variable(&setting.variable()))
        .or_else(field)
        .or_else(|| default_of(setting, around))
}

fn default_of(setting: &Setting, around: &Environment) -> Option<SourcedText> {
    let text = match setting.fallback {
        DefaultValue::Text(text) => text.to_owned(),
        // More cores than threads can be asked for are left idle.
        DefaultValue::Cores => {
            (around.cores as u64).clamp(*setting.range.start(), *setting.range.end()).to_string()
        }
        DefaultValue::Reader if around.has_reader => "text".to_owned(),
        DefaultValue::Reader => "json".to_owned(),
        DefaultValue::Nothing(_) => return None,
    };
    Some(SourcedText { text, origin: SettingOrigin::Default })
}

/// Reads what was said, one setting after the other, and collects what is wrong.
struct SettingsReader<I> {
    next: I,
    complaints: Vec<SettingDiagnostic>,
}

impl<'a, I: Iterator<Item = (&'a Setting, &'a Option<SourcedText>)>> TextReader for SettingsReader<I> {
    fn next<T: SettingValue>(&mut self) -> Option<T> {
        let (setting, said) = self.next.next().expect("settings are read in the order of the table");
        let Some(said) = said else { return T::absent() };
        let read = T::read(&said.text, &setting.range);
        read.map_err(|wrong| self.complaints.push(SettingDiagnostic::new(said.origin.clone(), wrong))).ok()
    }
}

/// Tells of variables that look like ours, but say nothing.
fn warnings(around: &Environment) -> Vec<String> {
    let known: Vec<_> =
        TABLE.iter().map(Setting::variable).chain(OTHER_VARIABLES.map(str::to_owned)).collect();
    let strange = around
        .variables
        .keys()
        .filter(|name| name.starts_with(PREFIX) && !known.contains(name) && !is_from_kubernetes(name));
    // What they all have in common would bring any two near to each other.
    let short = |name: &str| name.trim_start_matches(PREFIX).to_owned();
    let names: Vec<_> = known.iter().map(|name| short(name)).collect();
    let warn = |name: &String| match nearest(&short(name), names.iter().map(String::as_str)) {
        Some(near) => format!("unknown variable {name}: did you mean {PREFIX}{near}?"),
        None => format!("unknown variable {name}: it says nothing to ratekeeper"),
    };
    strange.map(warn).collect()
}

/// Whether Kubernetes sets this variable, in every pod, for a service whose name begins with `ratekeeper`.
fn is_from_kubernetes(name: &str) -> bool {
    name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.contains("_PORT_")
}

/// Of `names`, the one that was probably meant: it differs in no more than a third of its letters.
fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distances = names.into_iter().map(|known| (strsim::damerau_levenshtein(name, known), known));
    distances.min().filter(|(distance, known)| distance * 3 <= known.len()).map(|(_, known)| known)
}

/// The text of a setting, and who wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SourcedText {
    text: String,
    origin: SettingOrigin,
}

/// Where the value of a setting came from.
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

/// What is wrong with one setting, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SettingDiagnostic {
    origin: SettingOrigin,
    wrong: String,
}

impl SettingDiagnostic {
    fn new(origin: SettingOrigin, wrong: impl Into<String>) -> SettingDiagnostic {
        SettingDiagnostic { origin, wrong: wrong.into() }
    }
}

/// Behind a place in a file, as compilers write it; a flag or a variable is named at the end.
impl fmt::Display for SettingDiagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SettingDiagnostic { origin, wrong } = self;
        match origin {
            SettingOrigin::File { .. } => write!(f, "{origin}: {wrong}"),
            SettingOrigin::Default | SettingOrigin::Variable(_) | SettingOrigin::Flag(_) => {
                write!(f, "{wrong} (from {origin})")
            }
        }
    }
}

/// All that is wrong with the settings, one a line.
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

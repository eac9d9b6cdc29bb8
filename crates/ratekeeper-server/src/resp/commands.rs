//! The table of supported commands.
//!
//! Commands are found, their arguments counted, and the replies to `COMMAND` written from this one table.

use super::arguments::Arguments;

/// A supported command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Throttle,
    Check,
    Ping,
    Echo,
    Hello,
    Auth,
    Select,
    Client,
    /// `COMMAND`, which lists the commands.
    List,
    Config,
    Info,
    Multi,
    Exec,
    Discard,
    Reset,
    Quit,
}

/// A row of the command table.
#[derive(Debug)]
pub(super) struct CommandEntry {
    pub(super) command: Command,
    /// The name in lower case.
    pub(super) name: &'static str,
    /// The number of arguments with the name; if negative, the minimum number, as in Redis.
    pub(super) arity: i64,
    /// The arguments after the name.
    pub(super) arguments: &'static [Argument],
    pub(super) summary: &'static str,
    /// The position of the key, or `None` if it has no key.
    pub(super) key: Option<i64>,
    /// The flags in `COMMAND INFO`, as in Redis.
    pub(super) flags: &'static [&'static str],
}

/// An argument in `COMMAND DOCS`, which clients show as a hint while the user types.
#[derive(Debug)]
pub(super) struct Argument {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    /// The keyword before it.
    pub(super) token: Option<&'static str>,
    pub(super) is_optional: bool,
}

const fn required(name: &'static str, kind: &'static str) -> Argument {
    Argument { name, kind, token: None, is_optional: false }
}

const fn optional(name: &'static str, kind: &'static str) -> Argument {
    Argument { name, kind, token: None, is_optional: true }
}

const fn keyword(token: &'static str, name: &'static str) -> Argument {
    Argument { name, kind: "string", token: Some(token), is_optional: true }
}

const CONNECTION: &[&str] = &["loading", "stale", "fast"];
const NO_AUTH: &[&str] = &["loading", "stale", "fast", "no_auth"];
const DECISION: &[&str] = &["write", "fast"];

pub(super) static COMMANDS: [CommandEntry; 16] = [
    command(
        Command::Throttle,
        "cl.throttle",
        -5,
        DECISION,
        &[
            required("key", "key"),
            required("max_burst", "integer"),
            required("count_per_period", "integer"),
            required("period", "integer"),
            optional("quantity", "integer"),
        ],
        "Takes a quantity from the limit given in the call, if enough is left, and returns what is left",
    ),
    command(
        Command::Check,
        "rk.check",
        -3,
        DECISION,
        &[
            required("key", "key"),
            required("endpoint", "string"),
            optional("cost", "integer"),
            keyword("METHOD", "method"),
            keyword("IP", "address"),
            keyword("TIER", "tier"),
            keyword("ATTR", "name value"),
        ],
        "Takes a cost from the limits that the rules apply to a request, and returns what is left",
    ),
    command(
        Command::Ping,
        "ping",
        -1,
        CONNECTION,
        &[optional("message", "string")],
        "Returns PONG, or the message",
    ),
    command(Command::Echo, "echo", 2, CONNECTION, &[required("message", "string")], "Returns the message"),
    command(
        Command::Hello,
        "hello",
        -1,
        NO_AUTH,
        &[
            optional("protover", "integer"),
            keyword("AUTH", "username password"),
            keyword("SETNAME", "clientname"),
        ],
        "Selects the protocol version, and describes the server",
    ),
    command(
        Command::Auth,
        "auth",
        -2,
        NO_AUTH,
        &[optional("username", "string"), required("password", "string")],
        "Authenticates with the API token, if one is required",
    ),
    command(
        Command::Select,
        "select",
        2,
        CONNECTION,
        &[required("index", "integer")],
        "Selects a database; the only one is 0",
    ),
    command(
        Command::Client,
        "client",
        -2,
        CONNECTION,
        &[required("subcommand", "string")],
        "Names or describes this connection",
    ),
    command(
        Command::List,
        "command",
        -1,
        CONNECTION,
        &[optional("subcommand", "string")],
        "Describes the supported commands",
    ),
    command(
        Command::Config,
        "config",
        -2,
        CONNECTION,
        &[required("subcommand", "string")],
        "Returns the Redis settings that clients ask for",
    ),
    command(
        Command::Info,
        "info",
        -1,
        CONNECTION,
        &[optional("section", "string")],
        "Describes the server, like Redis",
    ),
    command(Command::Multi, "multi", 1, CONNECTION, &[], "Queues the following commands for EXEC"),
    command(Command::Exec, "exec", 1, CONNECTION, &[], "Runs the commands queued since MULTI, in order"),
    command(Command::Discard, "discard", 1, CONNECTION, &[], "Discards the commands queued since MULTI"),
    command(Command::Reset, "reset", 1, NO_AUTH, &[], "Resets the connection to its initial state"),
    command(Command::Quit, "quit", -1, NO_AUTH, &[], "Closes the connection"),
];

/// A row. Only the commands that make a decision have a key.
const fn command(
    command: Command,
    name: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    arguments: &'static [Argument],
    summary: &'static str,
) -> CommandEntry {
    let key = match command {
        Command::Throttle | Command::Check => Some(1),
        _ => None,
    };
    CommandEntry { command, name, arity, arguments, summary, key, flags }
}

impl CommandEntry {
    /// Finds a command by name, ignoring case.
    #[inline]
    pub(super) fn find(name: &[u8]) -> Option<&'static CommandEntry> {
        COMMANDS.iter().find(|entry| is_word(name, entry.name))
    }

    /// Whether the number of arguments is valid.
    #[inline]
    pub(super) fn accepts(&self, args: Arguments<'_>) -> bool {
        let count = i64::try_from(args.len()).unwrap_or(i64::MAX);
        if self.arity < 0 { count >= -self.arity } else { count == self.arity }
    }

    /// The syntax of the command, for error messages.
    pub(super) fn usage(&self) -> String {
        let mut usage = self.name.to_ascii_uppercase();
        for Argument { name, token, is_optional, .. } in self.arguments {
            let token = token.map_or_else(String::new, |token| format!("{token} "));
            let (open, close) = if *is_optional { ("[", "]") } else { ("", "") };
            usage.push_str(&format!(" {open}{token}{name}{close}"));
        }
        usage
    }
}

/// Whether a word is `known`, ignoring case.
#[inline]
pub(super) fn is_word(word: &[u8], known: &str) -> bool {
    word.len() == known.len() && word.eq_ignore_ascii_case(known.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_either_case_and_their_usage_matches_their_arity() {
        for entry in &COMMANDS {
            assert_eq!(entry.name, entry.name.to_ascii_lowercase());
            for name in [entry.name.to_owned(), entry.name.to_ascii_uppercase()] {
                assert_eq!(
                    CommandEntry::find(name.as_bytes()).map(|found| found.command),
                    Some(entry.command)
                );
            }
            let needed = entry.arguments.iter().filter(|argument| !argument.is_optional).count();
            let least = usize::try_from(entry.arity.abs()).unwrap() - 1;
            assert_eq!(needed, least, "{}", entry.name);
        }
        assert!(
            CommandEntry::find(b"").is_none()
                && CommandEntry::find(b"pin").is_none()
                && CommandEntry::find(b"pings").is_none()
        );
        let usage = CommandEntry::find(b"RK.check").unwrap().usage();
        assert_eq!(
            usage,
            "RK.CHECK key endpoint [cost] [METHOD method] [IP address] [TIER tier] [ATTR name value]"
        );
    }
}

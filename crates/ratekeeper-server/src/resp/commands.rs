//! The commands there are.
//!
//! One table says what each is called and what it takes: commands are recognised by it, their arguments counted by it, and
//! clients told by it what there is.

use super::decode::Arguments;

/// A command.
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
    /// `COMMAND`: a list of what there is.
    List,
    Config,
    Info,
    Multi,
    Exec,
    Discard,
    Reset,
    Quit,
}

/// What is known of a command.
#[derive(Debug)]
pub(super) struct CommandEntry {
    pub(super) command: Command,
    /// What it is called, in lower case.
    pub(super) name: &'static str,
    /// How many arguments it takes with its name; if negative, at least so many.
    pub(super) arity: i64,
    /// What may come behind its name.
    pub(super) arguments: &'static [Argument],
    pub(super) summary: &'static str,
    /// Where its key is, if it has one.
    pub(super) key: Option<i64>,
    /// What clients are told of its nature, in Redis's words.
    pub(super) flags: &'static [&'static str],
}

/// What a command takes, as clients show it while somebody types.
#[derive(Debug)]
pub(super) struct Argument {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    /// The word that stands before it.
    pub(super) token: Option<&'static str>,
    pub(super) is_optional: bool,
}

const fn needed(name: &'static str, kind: &'static str) -> Argument {
    Argument { name, kind, token: None, is_optional: false }
}

const fn optional(name: &'static str, kind: &'static str) -> Argument {
    Argument { name, kind, token: None, is_optional: true }
}

const fn option(token: &'static str, name: &'static str) -> Argument {
    Argument { name, kind: "string", token: Some(token), is_optional: true }
}

const CONNECTION: &[&str] = &["loading", "stale", "fast"];
const OPEN: &[&str] = &["loading", "stale", "fast", "no_auth"];
const DECISION: &[&str] = &["write", "fast"];

pub(super) static COMMANDS: [CommandEntry; 16] = [
    CommandEntry {
        command: Command::Throttle,
        name: "cl.throttle",
        arity: -5,
        arguments: &[
            needed("key", "key"),
            needed("max_burst", "integer"),
            needed("count_per_period", "integer"),
            needed("period", "integer"),
            optional("quantity", "integer"),
        ],
        summary: "Takes a quantity from a limit of its own, if as much is left, and says what is",
        key: Some(1),
        flags: DECISION,
    },
    CommandEntry {
        command: Command::Check,
        name: "rk.check",
        arity: -3,
        arguments: &[
            needed("key", "key"),
            needed("endpoint", "string"),
            optional("cost", "integer"),
            option("METHOD", "method"),
            option("IP", "address"),
            option("TIER", "tier"),
            option("ATTR", "name value"),
        ],
        summary: "Takes a cost from the limits that the rules hold a request to, and says what is left",
        key: Some(1),
        flags: DECISION,
    },
    CommandEntry {
        command: Command::Ping,
        name: "ping",
        arity: -1,
        arguments: &[optional("message", "string")],
        summary: "Answers PONG, or the message",
        key: None,
        flags: CONNECTION,
    },
    CommandEntry {
        command: Command::Echo,
        name: "echo",
        arity: 2,
        arguments: &[needed("message", "string")],
        summary: "Answers the message",
        key: None,
        flags: CONNECTION,
    },
    CommandEntry {
        command: Command::Hello,
        name: "hello",
        arity: -1,
        arguments: &[
            optional("protover", "integer"),
            option("AUTH", "username password"),
            option("SETNAME", "clientname"),
        ],
        summary: "Chooses the version of the protocol, and says who answers",
        key: None,
        flags: OPEN,
    },
    CommandEntry {
        command: Command::Auth,
        name: "auth",
        arity: -2,
        arguments: &[optional("username", "string"), needed("password", "string")],
        summary: "Shows the API token, where one is needed",
        key: None,
        flags: OPEN,
    },
    CommandEntry {
        command: Command::Select,
        name: "select",
        arity: 2,
        arguments: &[needed("index", "integer")],
        summary: "Chooses a database, of which there is one: 0",
        key: None,
        flags: CONNECTION,
    },
    CommandEntry {
        command: Command::Client,
        name: "client",
        arity: -2,
        arguments: &[needed("subcommand", "string")],
        summary: "Names this connection, or tells of it",
        key: None,
        flags: CONNECTION,
    },
    CommandEntry {
        command: Command::List,
        name: "command",
        arity: -1,
        arguments: &[optional("subcommand", "string")],
        summary: "Tells which commands there are",
        key: None,
        flags: CONNECTION,
    },
    CommandEntry {
        command: Command::Config,
        name: "config",
        arity: -2,
        arguments: &[needed("subcommand", "string")],
        summary: "Tells what clients of Redis ask for of its settings",
        key: None,
        flags: CONNECTION,
    },
    CommandEntry {
        command: Command::Info,
        name: "info",
        arity: -1,
        arguments: &[optional("section", "string")],
        summary: "Tells of the server, as Redis would",
        key: None,
        flags: CONNECTION,
    },
    CommandEntry {
        command: Command::Multi,
        name: "multi",
        arity: 1,
        arguments: &[],
        summary: "Has the commands that follow wait for EXEC",
        key: None,
        flags: CONNECTION,
    },
    CommandEntry {
        command: Command::Exec,
        name: "exec",
        arity: 1,
        arguments: &[],
        summary: "Runs the commands since MULTI, one behind the other",
        key: None,
        flags: CONNECTION,
    },
    CommandEntry {
        command: Command::Discard,
        name: "discard",
        arity: 1,
        arguments: &[],
        summary: "Forgets the commands since MULTI",
        key: None,
        flags: CONNECTION,
    },
    CommandEntry {
        command: Command::Reset,
        name: "reset",
        arity: 1,
        arguments: &[],
        summary: "Makes the connection as it was when it began",
        key: None,
        flags: OPEN,
    },
    CommandEntry {
        command: Command::Quit,
        name: "quit",
        arity: -1,
        arguments: &[],
        summary: "Closes the connection",
        key: None,
        flags: OPEN,
    },
];

impl CommandEntry {
    /// The command of this name, in either case.
    #[inline]
    pub(super) fn find(name: &[u8]) -> Option<&'static CommandEntry> {
        COMMANDS.iter().find(|entry| is(name, entry.name))
    }

    /// Whether the command takes as many arguments.
    #[inline]
    pub(super) fn takes(&self, args: Arguments<'_>) -> bool {
        let count = i64::try_from(args.len()).unwrap_or(i64::MAX);
        if self.arity < 0 { count >= -self.arity } else { count == self.arity }
    }

    /// How it is written.
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

/// Whether a word that a client sent is this one, in either case.
#[inline]
pub(super) fn is(word: &[u8], known: &str) -> bool {
    word.len() == known.len() && word.eq_ignore_ascii_case(known.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_either_case_and_say_how_they_are_written() {
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

//! What clients of Redis ask a server about itself before they do anything else.

use super::commands::{Argument, COMMANDS, CommandEntry, is};
use super::decode::Arguments;
use super::error::CommandError;
use super::reply::{ReplyWriter, Shown};
use std::fmt::Write as _;

/// The version of Redis whose clients are told that all is as they know it. What they look for in it is which commands
/// there are to greet a server with, and those are as they were then.
const REDIS_VERSION: &str = "7.2.0";

/// What tools look for among the settings of Redis.
const SETTINGS: [(&str, &str); 4] =
    [("appendonly", "no"), ("databases", "1"), ("save", ""), ("timeout", "0")];

/// What a server knows of itself without looking far: everybody may ask, as often as they like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Introspection {
    pub(super) uptime_secs: u64,
    /// All that there were on this port.
    pub(super) connections: u64,
}

/// The answer to `HELLO`, in the order that Redis has it.
pub(super) fn hello(id: u64, reply: &mut ReplyWriter<'_>) {
    let text = |name: &str, value: &str, reply: &mut ReplyWriter<'_>| {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    };
    reply.map(7);
    text("server", "ratekeeper", reply);
    text("version", env!("CARGO_PKG_VERSION"), reply);
    reply.bulk(b"proto");
    reply.integer(reply.protocol.number());
    reply.bulk(b"id");
    reply.integer(i64::try_from(id).unwrap_or(i64::MAX));
    text("mode", "standalone", reply);
    text("role", "master", reply);
    reply.bulk(b"modules");
    reply.array(0);
}

/// The answer to `COMMAND` and its subcommands.
pub(super) fn commands<'a>(args: Arguments<'a>, reply: &mut ReplyWriter<'_>) -> Result<(), CommandError<'a>> {
    let Some(word) = args.get(1) else {
        reply.array(COMMANDS.len());
        COMMANDS.iter().for_each(|entry| entry_info(entry, reply));
        return Ok(());
    };
    if is(word, "count") {
        reply.integer(i64::try_from(COMMANDS.len()).unwrap_or(i64::MAX));
    } else if is(word, "list") {
        reply.set(COMMANDS.len());
        COMMANDS.iter().for_each(|entry| reply.bulk(entry.name.as_bytes()));
    } else if is(word, "info") && args.len() == 2 {
        reply.array(COMMANDS.len());
        COMMANDS.iter().for_each(|entry| entry_info(entry, reply));
    } else if is(word, "info") {
        // Whoever asks for the same one a thousand times gets no more than for all of them.
        let asked = args.from(2).take(COMMANDS.len());
        reply.array(asked.clone().count());
        asked.for_each(|name| match CommandEntry::find(name) {
            Some(entry) => entry_info(entry, reply),
            None => reply.null(),
        });
    } else if is(word, "docs") {
        let asked = |entry: &&CommandEntry| args.len() == 2 || args.from(2).any(|name| is(name, entry.name));
        reply.map(COMMANDS.iter().filter(asked).count());
        COMMANDS.iter().filter(asked).for_each(|entry| entry_docs(entry, reply));
    } else {
        let known = "COUNT, DOCS, INFO and LIST";
        return Err(CommandError::UnknownSubcommand { command: "command", found: Shown(word), known });
    }
    Ok(())
}

/// A command as `COMMAND INFO` has it since Redis 7: ten things, of which the last four are empty here.
fn entry_info(entry: &CommandEntry, reply: &mut ReplyWriter<'_>) {
    reply.array(10);
    reply.bulk(entry.name.as_bytes());
    reply.integer(entry.arity);
    reply.set(entry.flags.len());
    for flag in entry.flags {
        reply.simple(flag);
    }
    let first = entry.key.unwrap_or(0);
    for number in [first, first, first.min(1)] {
        reply.integer(number);
    }
    reply.set(0);
    (0..3).for_each(|_| reply.array(0));
}

fn entry_docs(entry: &CommandEntry, reply: &mut ReplyWriter<'_>) {
    reply.bulk(entry.name.as_bytes());
    reply.map(if entry.arguments.is_empty() { 3 } else { 4 });
    // Those that are not Redis's own are listed as what they would be there.
    let group = if entry.key.is_some() { "module" } else { "connection" };
    for (name, value) in [("summary", entry.summary), ("since", "0.1.0"), ("group", group)] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    if !entry.arguments.is_empty() {
        reply.bulk(b"arguments");
        reply.array(entry.arguments.len());
        entry.arguments.iter().for_each(|argument| argument_docs(argument, reply));
    }
}

fn argument_docs(argument: &Argument, reply: &mut ReplyWriter<'_>) {
    let Argument { name, kind, token, is_optional } = argument;
    reply.map(2 + usize::from(token.is_some()) + usize::from(*is_optional));
    for (field, value) in [("name", Some(*name)), ("type", Some(*kind)), ("token", *token)] {
        if let Some(value) = value {
            reply.bulk(field.as_bytes());
            reply.bulk(value.as_bytes());
        }
    }
    if *is_optional {
        reply.bulk(b"flags");
        reply.set(1);
        reply.simple("optional");
    }
}

/// The answer to `CONFIG GET`.
pub(super) fn config<'a>(args: Arguments<'a>, reply: &mut ReplyWriter<'_>) -> Result<(), CommandError<'a>> {
    match (args.get(1), args.get(2)) {
        (Some(word), Some(_)) if is(word, "get") => {
            let asked =
                |(name, _): &&(&str, &str)| args.from(2).any(|asked| asked == b"*" || is(asked, name));
            reply.map(SETTINGS.iter().filter(asked).count());
            for (name, value) in SETTINGS.iter().filter(asked) {
                reply.bulk(name.as_bytes());
                reply.bulk(value.as_bytes());
            }
            Ok(())
        }
        (word, _) => {
            let known =
                "GET name; the server's own settings are in its file, see `ratekeeper serve --print-config`";
            Err(CommandError::UnknownSubcommand {
                command: "config",
                found: Shown(word.unwrap_or_default()),
                known,
            })
        }
    }
}

/// The answer to `INFO`: all of it, or the sections that are asked for.
pub(super) fn info(args: Arguments<'_>, about: Introspection, reply: &mut ReplyWriter<'_>) {
    let all = ["all", "default", "everything"];
    let is_asked = |section: &str| {
        args.len() == 1
            || args.from(1).any(|asked| is(asked, section) || all.iter().any(|all| is(asked, all)))
    };
    let mut text = String::new();
    let mut section = |name: &str, lines: &[(&str, &str)]| {
        if is_asked(name) {
            let _ = write!(text, "{}# {name}\r\n", if text.is_empty() { "" } else { "\r\n" });
            for (field, value) in lines {
                let _ = write!(text, "{field}:{value}\r\n");
            }
        }
    };
    let process = u64::from(std::process::id());
    let [uptime, connections, process] =
        [about.uptime_secs, about.connections, process].map(|number| number.to_string());
    section(
        "Server",
        &[
            ("redis_version", REDIS_VERSION),
            ("ratekeeper_version", env!("CARGO_PKG_VERSION")),
            ("redis_mode", "standalone"),
            ("process_id", &process),
            ("uptime_in_seconds", &uptime),
        ],
    );
    // Clients wait for as long as a server says that it is loading.
    section("Persistence", &[("loading", "0")]);
    section("Stats", &[("total_connections_received", &connections)]);
    section("Replication", &[("role", "master"), ("connected_slaves", "0")]);
    section("Cluster", &[("cluster_enabled", "0")]);
    reply.text(&text);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, office, told};
    use super::*;

    const RULES: &str = "default: {limit: 100/min}";

    #[test]
    fn tools_hear_what_they_ask_for_first() {
        check(
            RULES,
            None,
            "CONFIG GET save => save
             CONFIG GET appendonly => appendonly no
             config get SAVE appendonly => appendonly no save
             CONFIG GET maxmemory =>
             CONFIG GET => -ERR unknown subcommand 'GET': CONFIG has GET name...
             CONFIG SET save x => -ERR unknown subcommand 'SET': CONFIG has GET name; the server's own settings...
             COMMAND COUNT => 16
             COMMAND NONSENSE => -ERR unknown subcommand 'NONSENSE': COMMAND has COUNT, DOCS, INFO and LIST
             COMMAND INFO get CL.THROTTLE => $-1 cl.throttle -5 +write +fast 1 1 1
             COMMAND INFO ping => ping -1 +loading +stale +fast 0 0 0
             COMMAND DOCS echo => echo summary Answers the message since 0.1.0 group connection arguments name message type string
             COMMAND DOCS get =>
             INFO replication => # Replication role:master connected_slaves:0
             INFO persistence cluster => # Persistence loading:0 # Cluster cluster_enabled:0
             INFO nonsense =>
             PING => +PONG
             PING hello => hello
             PING a b => -ERR wrong number of arguments for 'ping' command: write PING [message]
             ECHO => -ERR wrong number of arguments for 'echo' command: write ECHO message",
        );
    }

    #[test]
    fn all_is_told_in_either_version() {
        let (office, _) = office(RULES, None);
        for greeting in ["HELLO 2\r\n", "HELLO 3\r\n"] {
            let (said, _) = told(
                &office,
                format!("{greeting}COMMAND\r\nCOMMAND DOCS\r\nINFO\r\nCOMMAND LIST\r\n").as_bytes(),
            );
            for entry in &COMMANDS {
                assert_eq!(said.matches(&format!("\r\n{}\r\n", entry.name)).count(), 3, "{}", entry.name);
            }
            assert!(
                said.contains("redis_version:7.2.0\r\nratekeeper_version:")
                    && said.contains("\r\nloading:0\r\n"),
                "{said}"
            );
        }
        assert!(
            told(&office, b"HELLO 3\r\nINFO cluster\r\n")
                .0
                .ends_with("=34\r\ntxt:# Cluster\r\ncluster_enabled:0\r\n\r\n")
        );
        // No more for a small question than for a large one.
        let (said, _) = told(&office, format!("COMMAND INFO{}\r\n", " ping".repeat(1000)).as_bytes());
        assert!(said.starts_with("*16\r\n"));
    }
}

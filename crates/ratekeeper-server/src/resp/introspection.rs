//! Replies to `HELLO`, `COMMAND`, `CONFIG GET` and `INFO`, which Redis clients send before other commands.

use super::arguments::Arguments;
use super::commands::{Argument, COMMANDS, CommandEntry, is_word};
use super::error::CommandError;
use super::reply::{Printable, ReplyWriter};
use std::fmt::Write as _;

/// The Redis version in `INFO`. Clients derive from it which handshake commands exist, and those of this version do.
const REDIS_VERSION: &str = "7.2.0";

/// The Redis settings that tools ask for.
const REDIS_SETTINGS: [(&str, &str); 4] =
    [("appendonly", "no"), ("databases", "1"), ("save", ""), ("timeout", "0")];

/// Facts for `INFO` that are cheap to get, since any client may ask as often as it likes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Introspection {
    pub(super) uptime_secs: u64,
    /// The number of connections accepted by the listener so far.
    pub(super) connections: u64,
}

/// Writes the reply to `HELLO`, with the fields in the order of Redis.
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

/// Writes the reply to `COMMAND` and its subcommands.
pub(super) fn commands<'a>(args: Arguments<'a>, reply: &mut ReplyWriter<'_>) -> Result<(), CommandError<'a>> {
    let Some(word) = args.get(1) else {
        reply.array(COMMANDS.len());
        COMMANDS.iter().for_each(|entry| entry_info(entry, reply));
        return Ok(());
    };
    if is_word(word, "count") {
        reply.integer(i64::try_from(COMMANDS.len()).unwrap_or(i64::MAX));
    } else if is_word(word, "list") {
        reply.set(COMMANDS.len());
        COMMANDS.iter().for_each(|entry| reply.bulk(entry.name.as_bytes()));
    } else if is_word(word, "info") && args.len() == 2 {
        reply.array(COMMANDS.len());
        COMMANDS.iter().for_each(|entry| entry_info(entry, reply));
    } else if is_word(word, "info") {
        // Asking for one command a thousand times must not give a longer reply than asking for all.
        let requested = args.starting_at(2).take(COMMANDS.len());
        reply.array(requested.clone().count());
        requested.for_each(|name| match CommandEntry::find(name) {
            Some(entry) => entry_info(entry, reply),
            None => reply.null(),
        });
    } else if is_word(word, "docs") {
        let requested = |entry: &&CommandEntry| {
            args.len() == 2 || args.starting_at(2).any(|name| is_word(name, entry.name))
        };
        reply.map(COMMANDS.iter().filter(requested).count());
        COMMANDS.iter().filter(requested).for_each(|entry| entry_docs(entry, reply));
    } else {
        let known = "COUNT, DOCS, INFO and LIST";
        return Err(CommandError::UnknownSubcommand { command: "command", found: Printable(word), known });
    }
    Ok(())
}

/// Writes a command in the format of `COMMAND INFO` since Redis 7: ten elements, of which the last four are empty here.
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
    // In Redis, the commands that are not its own would be those of a module.
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

/// Writes the reply to `CONFIG GET`.
pub(super) fn config<'a>(args: Arguments<'a>, reply: &mut ReplyWriter<'_>) -> Result<(), CommandError<'a>> {
    match (args.get(1), args.get(2)) {
        (Some(word), Some(_)) if is_word(word, "get") => {
            let requested = |(name, _): &&(&str, &str)| {
                args.starting_at(2).any(|requested| requested == b"*" || is_word(requested, name))
            };
            reply.map(REDIS_SETTINGS.iter().filter(requested).count());
            for (name, value) in REDIS_SETTINGS.iter().filter(requested) {
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
                found: Printable(word.unwrap_or_default()),
                known,
            })
        }
    }
}

/// Writes the reply to `INFO`: all sections, or those in the arguments.
pub(super) fn info(args: Arguments<'_>, introspection: Introspection, reply: &mut ReplyWriter<'_>) {
    let all = ["all", "default", "everything"];
    let is_requested = |section: &str| {
        args.len() == 1
            || args
                .starting_at(1)
                .any(|requested| is_word(requested, section) || all.iter().any(|all| is_word(requested, all)))
    };
    let mut text = String::new();
    let mut section = |name: &str, lines: &[(&str, &str)]| {
        if is_requested(name) {
            let _ = write!(text, "{}# {name}\r\n", if text.is_empty() { "" } else { "\r\n" });
            for (field, value) in lines {
                let _ = write!(text, "{field}:{value}\r\n");
            }
        }
    };
    let process = u64::from(std::process::id());
    let [uptime, connections, process] =
        [introspection.uptime_secs, introspection.connections, process].map(|number| number.to_string());
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
    // Clients wait while a server reports that it is loading.
    section("Persistence", &[("loading", "0")]);
    section("Stats", &[("total_connections_received", &connections)]);
    section("Replication", &[("role", "master"), ("connected_slaves", "0")]);
    section("Cluster", &[("cluster_enabled", "0")]);
    reply.text(&text);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, replies_to, test_shared};
    use super::*;

    const RULES: &str = "default: {limit: 100/min}";

    #[test]
    fn handshake_queries_of_tools_are_answered() {
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
             COMMAND DOCS echo => echo summary Returns the message since 0.1.0 group connection \
                arguments name message type string
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
    fn replies_are_complete_in_both_protocol_versions() {
        let (shared, _) = test_shared(RULES, None);
        for greeting in ["HELLO 2\r\n", "HELLO 3\r\n"] {
            let (replies, _) = replies_to(
                &shared,
                format!("{greeting}COMMAND\r\nCOMMAND DOCS\r\nINFO\r\nCOMMAND LIST\r\n").as_bytes(),
            );
            for entry in &COMMANDS {
                assert_eq!(replies.matches(&format!("\r\n{}\r\n", entry.name)).count(), 3, "{}", entry.name);
            }
            assert!(
                replies.contains("redis_version:7.2.0\r\nratekeeper_version:")
                    && replies.contains("\r\nloading:0\r\n"),
                "{replies}"
            );
        }
        assert!(
            replies_to(&shared, b"HELLO 3\r\nINFO cluster\r\n")
                .0
                .ends_with("=34\r\ntxt:# Cluster\r\ncluster_enabled:0\r\n\r\n")
        );
        // The reply is bounded.
        let (replies, _) =
            replies_to(&shared, format!("COMMAND INFO{}\r\n", " ping".repeat(1000)).as_bytes());
        assert!(replies.starts_with("*16\r\n"));
    }
}

//! Commands that can't be carried out, and what to write instead.
//!
//! Each is answered with an error, takes nothing, and leaves the connection as it was. The first word is for programs:
//! clients know `NOAUTH`, `WRONGPASS`, `NOPROTO` and `EXECABORT`, and take everything else for `ERR`.

use super::commands::{COMMANDS, CommandEntry};
use super::reply::Shown;
use ratekeeper::{LimitError, MAX_KEY_BYTES};
use std::fmt;

/// Why a command can't be carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError<'a> {
    #[error("ERR unknown command '{name}', this port has {AllCommands}")]
    UnknownCommand { name: Shown<'a> },
    #[error("ERR wrong number of arguments for '{}' command: write {}", .0.name, .0.usage())]
    Arity(&'static CommandEntry),
    #[error("ERR unknown subcommand '{found}': {} has {known}", command.to_ascii_uppercase())]
    UnknownSubcommand { command: &'static str, found: Shown<'a>, known: &'static str },
    #[error("ERR syntax error near '{near}': write {usage}")]
    Syntax { near: Shown<'a>, usage: &'static str },
    #[error("ERR {what} is written twice: write it once")]
    Twice { what: &'static str },
    #[error("ERR ATTR '{name}' is written twice: each name has one value")]
    AttributeTwice { name: Shown<'a> },

    #[error("ERR {what} is not a whole number: '{found}': write digits, like {like}")]
    NotANumber { what: &'static str, found: Shown<'a>, like: &'static str },
    #[error("ERR {what} is negative: write at least {least}")]
    Negative { what: &'static str, least: u32 },
    #[error("ERR zero rates are not supported: {what} is 0: write at least 1")]
    ZeroRate { what: &'static str },
    #[error("ERR {what} is too large: write at most {most}")]
    TooLarge { what: &'static str, most: u64 },
    #[error("ERR {0}")]
    Limit(LimitError),

    #[error("ERR key is empty: say whom to count for")]
    NoKey,
    #[error("ERR nobody is named: give a key, or IP, or ATTR")]
    Nobody,
    #[error("ERR key has {bytes} bytes: write at most {MAX_KEY_BYTES}")]
    LongKey { bytes: usize },
    #[error("ERR {what} is not UTF-8 text: send other bytes as hex or base64")]
    NotText { what: &'static str },
    #[error("ERR {what} is too long: write at most {most} characters")]
    LongText { what: &'static str, most: usize },
    #[error("ERR ATTR name is empty: write ATTR name value, like ATTR tenant acme")]
    NoName,
    #[error("ERR too many attributes: write at most {most}")]
    TooManyAttributes { most: usize },
    #[error("ERR IP is no address: '{found}': write one like 192.0.2.7 or 2001:db8::1")]
    NoAddress { found: Shown<'a> },

    #[error("NOAUTH Authentication required.")]
    NoAuth,
    #[error(
        "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> \
         <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"
    )]
    NoAuthHello,
    #[error("WRONGPASS invalid username-password pair or user is disabled.")]
    WrongPass,
    #[error(
        "ERR AUTH <password> called without any password configured: this server needs none, so send no AUTH"
    )]
    NoPassword,
    #[error("NOPROTO unsupported protocol version")]
    NoProto,
    #[error("ERR DB index is out of range: there is one database, 0")]
    NoDatabase,
    #[error(
        "ERR Client names cannot contain spaces, newlines or special characters, and have at most {most} bytes"
    )]
    BadName { most: usize },
    #[error("ERR CLIENT {what} is not supported: {instead}")]
    NotForClients { what: &'static str, instead: &'static str },

    #[error("ERR MULTI calls can not be nested")]
    Nested,
    #[error("ERR {0} without MULTI")]
    NoMulti(&'static str),
    #[error("ERR {} can't wait for EXEC: send it before MULTI", .0.name.to_ascii_uppercase())]
    CannotWait(&'static CommandEntry),
    #[error("ERR too much waits for EXEC: send fewer commands behind one MULTI, or none")]
    TooMuchWaits,
    #[error("EXECABORT Transaction discarded because of previous errors.")]
    Aborted,
}

/// The names of all commands.
struct AllCommands;

impl fmt::Display for AllCommands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, entry) in COMMANDS.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}", entry.name.to_ascii_uppercase())?;
        }
        Ok(())
    }
}

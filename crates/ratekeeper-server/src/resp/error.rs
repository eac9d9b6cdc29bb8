//! Errors of commands, each with a remedy.
//!
//! An erroneous command takes nothing and does not change the connection. The first word of the message is for
//! programs: clients know `NOAUTH`, `WRONGPASS`, `NOPROTO` and `EXECABORT`, and treat any other error as `ERR`.

use super::commands::{COMMANDS, CommandEntry};
use super::reply::Printable;
use ratekeeper::LimitError;
use ratekeeper::rules::{FieldBound, LengthUnit, MAX_ATTRIBUTES, RequestError, RequestField};
use std::fmt;

/// Why a command can't be executed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError<'a> {
    #[error("ERR unknown command '{name}', supported commands: {AllCommands}")]
    UnknownCommand { name: Printable<'a> },
    #[error("ERR wrong number of arguments for '{}' command: write {}", .0.name, .0.usage())]
    WrongArity(&'static CommandEntry),
    #[error("ERR unknown subcommand '{found}': {} has {known}", command.to_ascii_uppercase())]
    UnknownSubcommand { command: &'static str, found: Printable<'a>, known: &'static str },
    #[error("ERR syntax error near '{near}': write {usage}")]
    Syntax { near: Printable<'a>, usage: &'static str },
    #[error("ERR {what} is written twice: write it once")]
    Repeated { what: &'static str },

    #[error("ERR {what} is not a whole number: '{found}': write digits, like {like}")]
    NotAnInteger { what: &'static str, found: Printable<'a>, like: &'static str },
    #[error("ERR {what} is negative: write at least {least}")]
    Negative { what: &'static str, least: u32 },
    #[error("ERR zero rates are not supported: {what} is 0: write at least 1")]
    ZeroRate { what: &'static str },
    #[error("ERR {what} is too large: write at most {most}")]
    TooLarge { what: &'static str, most: u64 },
    #[error("ERR {0}")]
    Limit(LimitError),

    #[error("ERR key is empty: write the client to count for")]
    EmptyKey,
    #[error("ERR {}", InCommandWords(.0))]
    Request(#[from] RequestError),

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
    NoTokenConfigured,
    #[error("NOPROTO unsupported protocol version")]
    NoProto,
    #[error("ERR DB index is out of range: there is one database, 0")]
    InvalidDatabase,
    #[error(
        "ERR Client names cannot contain spaces, newlines or special characters, and have at most {most} bytes"
    )]
    InvalidName { most: usize },
    #[error("ERR CLIENT {what} is not supported: {instead}")]
    UnsupportedClientOption { what: &'static str, instead: &'static str },

    #[error("ERR MULTI calls can not be nested")]
    NestedMulti,
    #[error("ERR {0} without MULTI")]
    NoMulti(&'static str),
    #[error("ERR {} is not allowed in a transaction: send it before MULTI", .0.name.to_ascii_uppercase())]
    NotInTransaction(&'static CommandEntry),
    #[error("ERR too many commands queued for EXEC: send fewer after one MULTI, or use none")]
    QueueFull,
    #[error("EXECABORT Transaction discarded because of previous errors.")]
    Aborted,
}

/// Displays the names of all commands.
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

/// Displays the error of a request in the words of commands.
struct InCommandWords<'e>(&'e RequestError);

impl fmt::Display for InCommandWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            RequestError::Length { field, length } => {
                let FieldBound { max, unit, .. } = field.bound();
                match unit {
                    LengthUnit::Bytes => {
                        write!(f, "{} has {length} bytes: write at most {max}", argument(*field))
                    }
                    LengthUnit::Characters => {
                        write!(f, "{} is too long: write at most {max} characters", argument(*field))
                    }
                }
            }
            RequestError::NotUtf8 { field } => {
                write!(f, "{} is not UTF-8 text: send other bytes as hex or base64", argument(*field))
            }
            RequestError::InvalidAddress { found } => {
                let found = Printable(found.as_bytes());
                write!(f, "IP is not an address: '{found}': write one like 192.0.2.7 or 2001:db8::1")
            }
            RequestError::CostTooHigh => write!(f, "cost is too large: write at most {}", u32::MAX),
            RequestError::NamelessAttribute => {
                f.write_str("ATTR name is empty: write ATTR name value, like ATTR tenant acme")
            }
            RequestError::TooManyAttributes => {
                write!(f, "too many attributes: write at most {MAX_ATTRIBUTES}")
            }
            RequestError::RepeatedAttribute { name } => {
                write!(f, "ATTR '{}' is written twice: each name has one value", Printable(name.as_bytes()))
            }
            RequestError::NoClient => f.write_str("no client is given: write a key, or IP, or ATTR"),
            other => other.fmt(f),
        }
    }
}

/// The name of a field in the syntax of commands.
fn argument(field: RequestField) -> &'static str {
    match field {
        RequestField::ClientKey => "key",
        RequestField::Method => "METHOD",
        RequestField::Tier => "TIER",
        RequestField::AttributeName => "ATTR name",
        RequestField::AttributeValue => "ATTR value",
        other => other.name(),
    }
}

//! Classifies a server's reply to a command.

use crate::client::failure::cause;
use ratekeeper::StoreErrorCause;
use ratekeeper_core::StoreFailure;
use redis::{ServerError, ServerErrorKind, Value};

/// Where a command has to be sent instead.
#[derive(Debug)]
pub(crate) enum Redirect {
    /// Its slot has moved to another server.
    Moved(String),
    /// Its slot is being migrated, and its keys are on another server already.
    Ask(String),
    /// Its slot is being migrated, and only some of its keys have moved. A command with fewer keys may run.
    TryAgain,
}

/// A server's reply to one command.
pub(crate) enum CommandReply {
    Value(Value),
    /// Not run: the server does not know the script.
    NoScript,
    /// Not run: its keys are on another server.
    Redirect(Redirect),
    /// The server can't run any command in its current state.
    ServerUnusable(ServerError),
    Error(ServerError, StoreFailure),
    Failed(StoreFailure),
}

impl CommandReply {
    pub(crate) fn parse(value: Value) -> CommandReply {
        let Value::ServerError(error) = value else { return CommandReply::Value(value) };
        match error.kind() {
            Some(ServerErrorKind::NoScript) => CommandReply::NoScript,
            Some(ServerErrorKind::Moved) => redirect(&error, Redirect::Moved),
            Some(ServerErrorKind::Ask) => redirect(&error, Redirect::Ask),
            _ if matches!(cause(&error), StoreErrorCause::Replica | StoreErrorCause::Password) => {
                CommandReply::ServerUnusable(error)
            }
            // Unlike a slot without a node, which leaves the other slots usable.
            Some(ServerErrorKind::ClusterDown)
                if error.details().is_some_and(|details| details.contains("cluster is down")) =>
            {
                CommandReply::ServerUnusable(error)
            }
            Some(ServerErrorKind::TryAgain) => CommandReply::Redirect(Redirect::TryAgain),
            // None of these ran the command, and all of them are temporary.
            Some(
                ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown | ServerErrorKind::ClusterDown,
            ) => CommandReply::Error(error, StoreFailure::Unreachable),
            _ if error.code() == "BUSY" => CommandReply::Error(error, StoreFailure::Busy),
            _ => CommandReply::Error(error, StoreFailure::StoreError),
        }
    }

    /// Whether the error concerns the server as a whole, and so counts as a failed call for the breaker.
    pub(crate) fn is_server_failure(&self) -> bool {
        let is_server_error = |error: &ServerError| {
            let is_loading =
                matches!(error.kind(), Some(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown));
            is_loading || error.code() == "BUSY"
        };
        matches!(self, CommandReply::Error(error, _) if is_server_error(error))
    }
}

/// The error of a redirect names the slot, then the server. One that names no server is invalid.
fn redirect(error: &ServerError, kind: fn(String) -> Redirect) -> CommandReply {
    match error.details().and_then(|details| details.split_ascii_whitespace().nth(1)) {
        Some(target) => CommandReply::Redirect(kind(target.to_owned())),
        None => CommandReply::Failed(StoreFailure::StoreError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::parse_redis_value;

    fn read(line: &str) -> CommandReply {
        CommandReply::parse(parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap())
    }

    #[test]
    fn commands_that_did_not_run_are_told_from_errors() {
        assert!(matches!(read("NOSCRIPT No matching script."), CommandReply::NoScript));
        assert!(
            matches!(read("MOVED 3999 127.0.0.1:6381"), CommandReply::Redirect(Redirect::Moved(to)) if to == "127.0.0.1:6381")
        );
        assert!(matches!(read("ASK 3999 :6381"), CommandReply::Redirect(Redirect::Ask(to)) if to == ":6381"));
        assert!(matches!(read("MOVED"), CommandReply::Failed(StoreFailure::StoreError)));
        assert!(matches!(
            read("TRYAGAIN Multiple keys request during rehashing of slot"),
            CommandReply::Redirect(Redirect::TryAgain)
        ));
        for line in ["LOADING x", "MASTERDOWN x", "CLUSTERDOWN Hash slot not served"] {
            assert!(matches!(read(line), CommandReply::Error(_, StoreFailure::Unreachable)), "{line}");
        }
        assert!(matches!(
            read("BUSY Redis is busy running a script."),
            CommandReply::Error(_, StoreFailure::Busy)
        ));
        for line in ["OOM x", "NOPERM x", "WRONGTYPE x", "ERR x", "MISCONF x", "NOREPLICAS x"] {
            assert!(matches!(read(line), CommandReply::Error(_, StoreFailure::StoreError)), "{line}");
        }
    }

    #[test]
    fn a_server_that_rejects_every_command_is_unusable() {
        let wrapped =
            "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -READONLY You can't";
        let lines = [
            "READONLY You can't write against a read only replica.",
            wrapped,
            "NOAUTH Authentication required.",
            "WRONGPASS invalid username-password pair or user is disabled.",
        ];
        for line in lines {
            assert!(matches!(read(line), CommandReply::ServerUnusable(_)), "{line}");
        }
    }

    #[test]
    fn a_cluster_that_is_down_is_told_from_an_uncovered_slot() {
        for line in ["The cluster is down", "The cluster is down and only accepts read commands"] {
            assert!(
                matches!(read(&format!("CLUSTERDOWN {line}")), CommandReply::ServerUnusable(_)),
                "{line}"
            );
        }
    }

    #[test]
    fn only_some_errors_count_as_failures_of_the_server() {
        for (line, is_failure) in
            [("LOADING x", true), ("BUSY x", true), ("OOM x", false), ("TRYAGAIN x", false)]
        {
            assert_eq!(read(line).is_server_failure(), is_failure, "{line}");
        }
    }
}

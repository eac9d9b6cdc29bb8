//! What a server replies, and what that means for a command.

use super::failure::cause;
use crate::health::StoreErrorCause;
use ::redis::{ServerError, ServerErrorKind, Value};
use ratekeeper_core::StoreFailure;

/// What a server replied to one command.
pub(super) enum CommandReply {
    Value(Value),
    /// It did not run, since the script is not known.
    NoScript,
    Moved(String),
    Ask(String),
    /// It did not run: of its slot, which is on its way elsewhere, some keys are here and some are there.
    Torn,
    /// As it is now the server takes no command of ours.
    Unfit(ServerError),
    Error(ServerError, StoreFailure),
    Failed(StoreFailure),
}

impl CommandReply {
    pub(super) fn read(value: Value) -> CommandReply {
        let Value::ServerError(error) = value else { return CommandReply::Value(value) };
        match error.kind() {
            Some(ServerErrorKind::NoScript) => CommandReply::NoScript,
            Some(ServerErrorKind::Moved) => {
                redirect(&error).map_or(CommandReply::Failed(StoreFailure::Refused), CommandReply::Moved)
            }
            Some(ServerErrorKind::Ask) => {
                redirect(&error).map_or(CommandReply::Failed(StoreFailure::Refused), CommandReply::Ask)
            }
            _ if matches!(cause(&error), StoreErrorCause::Replica | StoreErrorCause::Password) => {
                CommandReply::Unfit(error)
            }
            // As opposed to a slot that nobody has, which leaves all others.
            Some(ServerErrorKind::ClusterDown)
                if error.details().is_some_and(|details| details.contains("cluster is down")) =>
            {
                CommandReply::Unfit(error)
            }
            Some(ServerErrorKind::TryAgain) => CommandReply::Torn,
            // None of these has run anything, and all of them pass.
            Some(
                ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown | ServerErrorKind::ClusterDown,
            ) => CommandReply::Error(error, StoreFailure::Unreachable),
            _ if error.code() == "BUSY" => CommandReply::Error(error, StoreFailure::Busy),
            _ => CommandReply::Error(error, StoreFailure::Refused),
        }
    }

    /// Whether it says of the server as a whole that it can't serve.
    pub(super) fn is_of_ailing_server(&self) -> bool {
        let is_ailing = |error: &ServerError| {
            let is_loading =
                matches!(error.kind(), Some(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown));
            is_loading || error.code() == "BUSY"
        };
        matches!(self, CommandReply::Error(error, _) if is_ailing(error))
    }
}

/// Where an error sends a command on to: it says the slot, then the server.
fn redirect(error: &ServerError) -> Option<String> {
    error.details()?.split_ascii_whitespace().nth(1).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::redis::parse_redis_value;

    fn read(line: &str) -> CommandReply {
        CommandReply::read(parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap())
    }

    #[test]
    fn what_did_not_run_is_told_from_what_was_refused() {
        assert!(matches!(read("NOSCRIPT No matching script."), CommandReply::NoScript));
        assert!(
            matches!(read("MOVED 3999 127.0.0.1:6381"), CommandReply::Moved(to) if to == "127.0.0.1:6381")
        );
        assert!(matches!(read("ASK 3999 :6381"), CommandReply::Ask(to) if to == ":6381"));
        assert!(matches!(read("MOVED"), CommandReply::Failed(StoreFailure::Refused)));
        assert!(matches!(
            read("TRYAGAIN Multiple keys request during rehashing of slot"),
            CommandReply::Torn
        ));
        for line in ["LOADING x", "MASTERDOWN x", "CLUSTERDOWN Hash slot not served"] {
            assert!(matches!(read(line), CommandReply::Error(_, StoreFailure::Unreachable)), "{line}");
        }
        assert!(matches!(
            read("BUSY Redis is busy running a script."),
            CommandReply::Error(_, StoreFailure::Busy)
        ));
        for line in ["OOM x", "NOPERM x", "WRONGTYPE x", "ERR x", "MISCONF x", "NOREPLICAS x"] {
            assert!(matches!(read(line), CommandReply::Error(_, StoreFailure::Refused)), "{line}");
        }
    }

    #[test]
    fn a_server_that_refuses_every_command_is_unfit() {
        let wrapped =
            "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -READONLY You can't";
        let lines = [
            "READONLY You can't write against a read only replica.",
            wrapped,
            "NOAUTH Authentication required.",
            "WRONGPASS invalid username-password pair or user is disabled.",
        ];
        for line in lines {
            assert!(matches!(read(line), CommandReply::Unfit(_)), "{line}");
        }
    }

    #[test]
    fn a_cluster_that_is_down_is_told_from_a_slot_that_nobody_has() {
        for line in ["The cluster is down", "The cluster is down and only accepts read commands"] {
            assert!(matches!(read(&format!("CLUSTERDOWN {line}")), CommandReply::Unfit(_)), "{line}");
        }
    }

    #[test]
    fn only_some_errors_are_held_against_the_server() {
        for (line, is_ailing) in
            [("LOADING x", true), ("BUSY x", true), ("OOM x", false), ("TRYAGAIN x", false)]
        {
            assert_eq!(read(line).is_of_ailing_server(), is_ailing, "{line}");
        }
    }
}

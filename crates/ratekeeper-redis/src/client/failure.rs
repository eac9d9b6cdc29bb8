//! Failures of a server: a cause for metrics, and a message with the remedy for the operator.
//!
//! This is the only place that classifies errors of servers. A message says what is wrong and what to do about it. It
//! may quote the server's error, which never contains a password.

use ratekeeper::{StoreErrorCause, Topology};
use redis::{ErrorKind, RedisError, ServerError};
use std::fmt;
use std::io;
use std::time::Duration;

/// Why a server can't be used, or can be used only in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerFailure {
    pub(crate) cause: StoreErrorCause,
    pub(crate) message: String,
}

impl ServerFailure {
    pub(crate) fn new(cause: StoreErrorCause, message: impl Into<String>) -> ServerFailure {
        ServerFailure { cause, message: message.into() }
    }

    pub(crate) fn unreachable(error: &io::Error) -> ServerFailure {
        ServerFailure::new(StoreErrorCause::Unreachable, format!("cannot connect: {error}"))
    }

    pub(crate) fn timeout(timeout: Duration) -> ServerFailure {
        let message = format!("no reply within {} ms", timeout.as_millis());
        ServerFailure::new(StoreErrorCause::Timeout, message)
    }

    pub(crate) fn tls(error: &io::Error) -> ServerFailure {
        ServerFailure::new(StoreErrorCause::Tls, format!("TLS handshake failed: {error}"))
    }

    pub(crate) fn replica(error: Option<&str>) -> ServerFailure {
        let quote = error.map(|error| format!(" ({error})")).unwrap_or_default();
        let message = format!("the server is a read-only replica{quote}: name its master in the URL");
        ServerFailure::new(StoreErrorCause::Replica, message)
    }
}

impl fmt::Display for ServerFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

/// The cause of an error reply.
pub(crate) fn cause(error: &ServerError) -> StoreErrorCause {
    let details = error.details().unwrap_or_default();
    // Before Redis 7, an error inside a script is wrapped in an error of the script.
    let code = if details.contains("-READONLY ") { "READONLY" } else { error.code() };
    match code {
        "NOAUTH" | "WRONGPASS" => StoreErrorCause::Password,
        "NOPERM" => StoreErrorCause::Permission,
        "READONLY" => StoreErrorCause::Replica,
        "CLUSTERDOWN" => StoreErrorCause::ClusterDown,
        "LOADING" | "MASTERDOWN" => StoreErrorCause::Loading,
        "BUSY" => StoreErrorCause::Busy,
        code => match write_error_cause(code) {
            Some(cause) => cause,
            None if details.starts_with("unknown command") => StoreErrorCause::Unsupported,
            None if details.contains("cluster support disabled") => StoreErrorCause::Topology,
            // Missing permissions inside a script, as worded by Redis 7.0 and by later servers.
            None if details.starts_with("The user executing the script can't")
                || details.starts_with("ACL failure in script") =>
            {
                StoreErrorCause::Permission
            }
            None => StoreErrorCause::Other,
        },
    }
}

/// The cause of an error code that rejects writes only. Returns `None` for any other code.
pub(crate) fn write_error_cause(code: &str) -> Option<StoreErrorCause> {
    match code {
        "OOM" => Some(StoreErrorCause::OutOfMemory),
        "MISCONF" => Some(StoreErrorCause::Persistence),
        "NOREPLICAS" => Some(StoreErrorCause::Replicas),
        _ => None,
    }
}

/// The text of an error reply.
pub(crate) fn error_text(error: &ServerError) -> String {
    // Drop the position in the script, which does not help an operator.
    let details = error.details().unwrap_or_default();
    let details = details.split_once(" script: ").map_or(details, |(details, _)| details);
    format!("{} {details}", error.code())
}

/// User, topology and scheme of the connections, on which the advice in messages depends.
#[derive(Clone, Debug)]
pub(crate) struct LoginContext {
    user: String,
    topology: Topology,
    is_tls: bool,
    /// Whether the connections go to sentinels, which have their own users.
    is_for_sentinels: bool,
}

impl LoginContext {
    pub(crate) fn new(user: Option<&str>, topology: Topology, is_tls: bool) -> LoginContext {
        LoginContext { user: user.unwrap_or("default").to_owned(), topology, is_tls, is_for_sentinels: false }
    }

    /// The same context for connections to sentinels.
    pub(crate) fn for_sentinels(self) -> LoginContext {
        LoginContext { is_for_sentinels: true, ..self }
    }

    /// The URL scheme of a topology, with or without TLS.
    fn scheme(topology: Topology, is_tls: bool) -> String {
        let tls = if is_tls { "s" } else { "" };
        match topology {
            Topology::Standalone => format!("redis{tls}://"),
            topology => format!("redis{tls}+{}://", topology.name()),
        }
    }

    fn own_scheme(&self) -> String {
        LoginContext::scheme(self.topology, self.is_tls)
    }

    fn scheme_advice(&self, topology: Topology, is_tls: bool) -> String {
        format!("write {} instead of {}", LoginContext::scheme(topology, is_tls), self.own_scheme())
    }

    /// Explains an error reply.
    pub(crate) fn explain(&self, error: &ServerError) -> ServerFailure {
        let (cause, text) = (cause(error), error_text(error));
        let message = match cause {
            StoreErrorCause::Password if error.code() == "NOAUTH" => return self.password_required(&text),
            StoreErrorCause::Password => return self.wrong_password(),
            StoreErrorCause::Permission => return self.explain_permission(&text),
            StoreErrorCause::Topology => return self.not_a_cluster(),
            StoreErrorCause::Replica => return ServerFailure::replica(Some(&text)),
            StoreErrorCause::Unsupported => format!(
                "unknown command ({text}): Redis 7 or Valkey with scripting is required, without a proxy in between"
            ),
            StoreErrorCause::Loading => format!("the server is not ready yet ({text})"),
            StoreErrorCause::Busy => format!("the server is busy running a script ({text}): see SCRIPT KILL"),
            StoreErrorCause::OutOfMemory | StoreErrorCause::Persistence | StoreErrorCause::Replicas => {
                return LoginContext::writes_rejected(cause, &text);
            }
            _ => text,
        };
        ServerFailure::new(cause, message)
    }

    /// A failure of a server that rejects writes only.
    pub(crate) fn writes_rejected(cause: StoreErrorCause, text: &str) -> ServerFailure {
        let message = match cause {
            StoreErrorCause::OutOfMemory => {
                format!("writes rejected, memory is full ({text}): raise maxmemory")
            }
            StoreErrorCause::Persistence => format!(
                "writes rejected, the server can't save to disk ({text}): see its log, and free space on its disk"
            ),
            _ => format!(
                "writes rejected, too few replicas ({text}): check the replicas, or min-replicas-to-write"
            ),
        };
        ServerFailure::new(cause, message)
    }

    /// Explains an error that ended a connection or an attempt to connect.
    pub(crate) fn explain_connection_error(&self, error: &RedisError) -> ServerFailure {
        match (error.kind(), error.code()) {
            (ErrorKind::AuthenticationFailed, _) | (_, Some("WRONGPASS")) => self.wrong_password(),
            (_, Some("NOAUTH")) => self.password_required("NOAUTH"),
            (_, Some("NOPERM")) => self.explain_permission(&error.to_string()),
            (ErrorKind::Io, _) => {
                ServerFailure::new(StoreErrorCause::Unreachable, format!("connection closed: {error}"))
            }
            _ if error.is_timeout() => ServerFailure::new(StoreErrorCause::Timeout, error.to_string()),
            _ => ServerFailure::new(StoreErrorCause::Other, format!("connection rejected: {error}")),
        }
    }

    fn password_required(&self, text: &str) -> ServerFailure {
        let (scheme, parameter) = (self.own_scheme(), "sentinel_password");
        let message = if self.is_for_sentinels {
            format!("password required ({text}): put it into the URL, {scheme}…?{parameter}=PASSWORD")
        } else {
            format!("password required ({text}): put it into the URL, {scheme}USER:PASSWORD@HOST")
        };
        ServerFailure::new(StoreErrorCause::Password, message)
    }

    fn wrong_password(&self) -> ServerFailure {
        let (user, scheme) = (&self.user, self.own_scheme());
        let message = format!(
            "authentication failed for user {user}: correct the user or the password in the URL, \
             {scheme}USER:PASSWORD@HOST, with %40 for @ and so on"
        );
        ServerFailure::new(StoreErrorCause::Password, message)
    }

    /// `NOPERM this user has no permissions to run the 'evalsha' command`.
    fn explain_permission(&self, text: &str) -> ServerFailure {
        match text.split('\'').nth(1).filter(|_| text.contains("run the '")) {
            Some(command) => self.missing_permissions([command]),
            None if text.contains("key") => {
                let user = &self.user;
                let message = format!(
                    "user {user} may not access the keys ({text}): run ACL SETUSER {user} ~rk1:* ~{{rk1:nodes}} on the \
                     server"
                );
                ServerFailure::new(StoreErrorCause::Permission, message)
            }
            None => {
                let message =
                    format!("user {} lacks permissions ({text}): docs/stores.md lists them", self.user);
                ServerFailure::new(StoreErrorCause::Permission, message)
            }
        }
    }

    /// The user lacks permissions for these commands.
    pub(crate) fn missing_permissions<'a>(
        &self,
        commands: impl IntoIterator<Item = &'a str>,
    ) -> ServerFailure {
        let commands: Vec<&str> = commands.into_iter().collect();
        let names = commands.iter().map(|command| command.to_uppercase()).collect::<Vec<_>>().join(", ");
        let rights = commands
            .iter()
            .map(|command| format!("+{}", command.to_lowercase()))
            .collect::<Vec<_>>()
            .join(" ");
        let user = &self.user;
        let message =
            format!("user {user} may not run {names}: run ACL SETUSER {user} {rights} on the server");
        ServerFailure::new(StoreErrorCause::Permission, message)
    }

    pub(crate) fn not_a_cluster(&self) -> ServerFailure {
        let advice = self.scheme_advice(Topology::Standalone, self.is_tls);
        ServerFailure::new(
            StoreErrorCause::Topology,
            format!("the server is not a Cluster (cluster_enabled:0): {advice}"),
        )
    }

    pub(crate) fn unexpected_cluster(&self) -> ServerFailure {
        let advice = self.scheme_advice(Topology::Cluster, self.is_tls);
        ServerFailure::new(StoreErrorCause::Topology, format!("the server belongs to a Cluster: {advice}"))
    }

    pub(crate) fn not_a_sentinel(&self) -> ServerFailure {
        let advice = self.scheme_advice(Topology::Standalone, self.is_tls);
        let message =
            format!("the server is not a Sentinel: name the sentinels, usually on port 26379, or {advice}");
        ServerFailure::new(StoreErrorCause::Topology, message)
    }

    pub(crate) fn unexpected_sentinel(&self) -> ServerFailure {
        let advice = self.scheme_advice(Topology::Sentinel, self.is_tls);
        let message = format!(
            "the server is a Sentinel: {advice}, and append /NAME, the sentinels' name for the master"
        );
        ServerFailure::new(StoreErrorCause::Topology, message)
    }

    pub(crate) fn unknown_master(&self, name: &str) -> ServerFailure {
        let message = format!("unknown master {name}: use a name that `SENTINEL MASTERS` lists");
        ServerFailure::new(StoreErrorCause::Topology, message)
    }

    /// Only one side uses TLS.
    pub(crate) fn tls_mismatch(&self) -> ServerFailure {
        let advice = self.scheme_advice(self.topology, !self.is_tls);
        let message = if self.is_tls {
            format!("the server does not use TLS on this port: {advice}")
        } else {
            format!("the server expects TLS on this port: {advice}")
        };
        ServerFailure::new(StoreErrorCause::TlsMismatch, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::{Value, parse_redis_value};

    fn error(line: &str) -> ServerError {
        match parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap() {
            Value::ServerError(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_error_has_its_cause_on_every_server() {
        for (line, expected) in [
            ("NOAUTH Authentication required.", StoreErrorCause::Password),
            ("WRONGPASS invalid username-password pair", StoreErrorCause::Password),
            ("NOPERM this user has no permissions to run the 'evalsha' command", StoreErrorCause::Permission),
            (
                "ERR ACL failure in script: User a has no permissions to run the 'x' command",
                StoreErrorCause::Permission,
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                StoreErrorCause::Permission,
            ),
            ("READONLY You can't write against a read only replica.", StoreErrorCause::Replica),
            ("ERR Error running script: @user_script: 1: -READONLY You can't", StoreErrorCause::Replica),
            ("OOM command not allowed when used memory > 'maxmemory'.", StoreErrorCause::OutOfMemory),
            ("MISCONF Redis is configured to save RDB snapshots", StoreErrorCause::Persistence),
            ("NOREPLICAS Not enough good replicas to write.", StoreErrorCause::Replicas),
            ("LOADING Redis is loading the dataset in memory", StoreErrorCause::Loading),
            ("MASTERDOWN Link with MASTER is down", StoreErrorCause::Loading),
            ("CLUSTERDOWN The cluster is down", StoreErrorCause::ClusterDown),
            ("BUSY Redis is busy running a script.", StoreErrorCause::Busy),
            ("ERR unknown command 'EVALSHA', with args beginning with: 'a'", StoreErrorCause::Unsupported),
            ("ERR This instance has cluster support disabled", StoreErrorCause::Topology),
            ("WRONGTYPE Operation against a key", StoreErrorCause::Other),
        ] {
            assert_eq!(cause(&error(line)), expected, "{line}");
        }
    }

    #[test]
    fn messages_name_the_remedy() {
        let plain = LoginContext::new(Some("gate"), Topology::Standalone, false);
        let cluster = LoginContext::new(None, Topology::Cluster, true);
        let noperm = |line: &str| plain.explain(&error(line)).message;
        for (message, remedy) in [
            (plain.explain(&error("NOAUTH x")).message, "redis://USER:PASSWORD@HOST"),
            (
                noperm("NOPERM User gate has no permissions to run the 'evalsha' command"),
                "ACL SETUSER gate +evalsha",
            ),
            (noperm("NOPERM No permissions to access a key"), "ACL SETUSER gate ~rk1:*"),
            (
                plain.missing_permissions(["PSETEX", "DEL"]).message,
                "may not run PSETEX, DEL: run ACL SETUSER gate +psetex +del on the server",
            ),
            (plain.tls_mismatch().message, "write rediss:// instead of redis://"),
            (cluster.tls_mismatch().message, "write redis+cluster:// instead of rediss+cluster://"),
            (cluster.not_a_cluster().message, "write rediss:// instead of rediss+cluster://"),
            (plain.unexpected_cluster().message, "write redis+cluster:// instead of redis://"),
            (plain.explain(&error("OOM x")).message, "raise maxmemory"),
            (plain.explain(&error("READONLY x")).message, "name its master"),
        ] {
            assert!(message.contains(remedy), "{message:?} lacks {remedy:?}");
        }
    }
}

//! What is wrong with a server: a cause for metrics, and words for the person who has to put it right.
//!
//! Errors of servers are told apart here and nowhere else. Words say what is wrong and what to do about it. They hold what
//! the server said, which never repeats a password.

use crate::health::{StoreErrorCause, Topology};
use ::redis::{ErrorKind, RedisError, ServerError};
use std::fmt;
use std::io;
use std::time::Duration;

/// What is wrong with a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::redis) struct ServerFailure {
    pub(in crate::redis) cause: StoreErrorCause,
    pub(in crate::redis) words: String,
}

impl ServerFailure {
    pub(in crate::redis) fn new(cause: StoreErrorCause, words: impl Into<String>) -> ServerFailure {
        ServerFailure { cause, words: words.into() }
    }

    pub(in crate::redis) fn unreachable(error: &io::Error) -> ServerFailure {
        ServerFailure::new(StoreErrorCause::Unreachable, format!("it can't be reached: {error}"))
    }

    pub(in crate::redis) fn too_slow(patience: Duration) -> ServerFailure {
        let words = format!("it doesn't answer within {} ms", patience.as_millis());
        ServerFailure::new(StoreErrorCause::Timeout, words)
    }

    pub(in crate::redis) fn of_tls(error: &io::Error) -> ServerFailure {
        ServerFailure::new(StoreErrorCause::Tls, format!("TLS with it fails: {error}"))
    }

    pub(in crate::redis) fn replica(said: Option<&str>) -> ServerFailure {
        let said = said.map(|said| format!(" ({said})")).unwrap_or_default();
        let words = format!("it is a replica, and takes no writes{said}: name its master in the URL");
        ServerFailure::new(StoreErrorCause::Replica, words)
    }
}

impl fmt::Display for ServerFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.words)
    }
}

/// Which cause an error has that a server answered with.
pub(in crate::redis) fn cause(error: &ServerError) -> StoreErrorCause {
    let details = error.details().unwrap_or_default();
    // Before Redis 7 what a script ran into comes wrapped into an error of the script.
    let code = if details.contains("-READONLY ") { "READONLY" } else { error.code() };
    match code {
        "NOAUTH" | "WRONGPASS" => StoreErrorCause::Password,
        "NOPERM" => StoreErrorCause::Permission,
        "READONLY" => StoreErrorCause::Replica,
        "CLUSTERDOWN" => StoreErrorCause::ClusterDown,
        "LOADING" | "MASTERDOWN" => StoreErrorCause::Loading,
        "BUSY" => StoreErrorCause::Busy,
        code => match write_refusal(code) {
            Some(cause) => cause,
            None if details.starts_with("unknown command") => StoreErrorCause::Unsupported,
            None if details.contains("cluster support disabled") => StoreErrorCause::Topology,
            // What a script may not do: in the words of Redis 7.0, and of later servers.
            None if details.starts_with("The user executing the script can't")
                || details.starts_with("ACL failure in script") =>
            {
                StoreErrorCause::Permission
            }
            None => StoreErrorCause::Other,
        },
    }
}

/// Which cause an error code stands for that refuses writes and nothing else.
pub(in crate::redis) fn write_refusal(code: &str) -> Option<StoreErrorCause> {
    match code {
        "OOM" => Some(StoreErrorCause::OutOfMemory),
        "MISCONF" => Some(StoreErrorCause::Persistence),
        "NOREPLICAS" => Some(StoreErrorCause::Replicas),
        _ => None,
    }
}

/// What a server said, in its own words.
pub(in crate::redis) fn words(error: &ServerError) -> String {
    // Where in a script it happened is of no use to anybody.
    let details = error.details().unwrap_or_default();
    let details = details.split_once(" script: ").map_or(details, |(details, _)| details);
    format!("{} {details}", error.code())
}

/// As whom servers are asked, and as what: advice depends on it.
#[derive(Clone, Debug)]
pub(in crate::redis) struct LoginContext {
    user: String,
    topology: Topology,
    is_tls: bool,
    /// Whether sentinels are asked, who know users of their own.
    asks_sentinels: bool,
}

impl LoginContext {
    pub(super) fn new(user: Option<&str>, topology: Topology, is_tls: bool) -> LoginContext {
        LoginContext { user: user.unwrap_or("default").to_owned(), topology, is_tls, asks_sentinels: false }
    }

    /// The same for sentinels.
    pub(super) fn of_sentinels(self) -> LoginContext {
        LoginContext { asks_sentinels: true, ..self }
    }

    /// How the URL begins, or would begin otherwise.
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

    fn write_instead(&self, topology: Topology, is_tls: bool) -> String {
        format!("write {} instead of {}", LoginContext::scheme(topology, is_tls), self.own_scheme())
    }

    /// What an error means that a server answered with.
    pub(in crate::redis) fn explain(&self, error: &ServerError) -> ServerFailure {
        let (cause, said) = (cause(error), words(error));
        let words = match cause {
            StoreErrorCause::Password if error.code() == "NOAUTH" => return self.no_password(&said),
            StoreErrorCause::Password => return self.wrong_password(),
            StoreErrorCause::Permission => return self.explain_permission(&said),
            StoreErrorCause::Topology => return self.not_a_cluster(),
            StoreErrorCause::Replica => return ServerFailure::replica(Some(&said)),
            StoreErrorCause::Unsupported => format!(
                "it does not know a command ({said}): it has to be Redis 7 or Valkey, with scripts, and no proxy before it"
            ),
            StoreErrorCause::Loading => format!("it is not ready yet ({said})"),
            StoreErrorCause::Busy => format!("it is busy with a script ({said}): see SCRIPT KILL"),
            StoreErrorCause::OutOfMemory | StoreErrorCause::Persistence | StoreErrorCause::Replicas => {
                return LoginContext::no_writes(cause, &said);
            }
            _ => said,
        };
        ServerFailure::new(cause, words)
    }

    /// Why a server takes no writes, and nothing else.
    pub(in crate::redis) fn no_writes(cause: StoreErrorCause, said: &str) -> ServerFailure {
        let words = match cause {
            StoreErrorCause::OutOfMemory => {
                format!("it takes no writes, because its memory is full ({said}): raise maxmemory")
            }
            StoreErrorCause::Persistence => format!(
                "it takes no writes, because it can't save to disk ({said}): see its log, and free space on its disk"
            ),
            _ => format!(
                "it takes no writes, because too few replicas follow it ({said}): see its replicas, or \
                 min-replicas-to-write"
            ),
        };
        ServerFailure::new(cause, words)
    }

    /// What an error means that ended an attempt to connect.
    pub(in crate::redis) fn explain_connect(&self, error: &RedisError) -> ServerFailure {
        match (error.kind(), error.code()) {
            (ErrorKind::AuthenticationFailed, _) | (_, Some("WRONGPASS")) => self.wrong_password(),
            (_, Some("NOAUTH")) => self.no_password("NOAUTH"),
            (_, Some("NOPERM")) => self.explain_permission(&error.to_string()),
            (ErrorKind::Io, _) => {
                ServerFailure::new(StoreErrorCause::Unreachable, format!("the connection ends: {error}"))
            }
            _ if error.is_timeout() => ServerFailure::new(StoreErrorCause::Timeout, error.to_string()),
            _ => ServerFailure::new(StoreErrorCause::Other, format!("it refuses: {error}")),
        }
    }

    fn no_password(&self, said: &str) -> ServerFailure {
        let (scheme, parameter) = (self.own_scheme(), "sentinel_password");
        let words = match self.asks_sentinels {
            true => {
                format!("it wants a password ({said}): put it into the URL, {scheme}…?{parameter}=PASSWORD")
            }
            false => format!("it wants a password ({said}): put it into the URL, {scheme}USER:PASSWORD@HOST"),
        };
        ServerFailure::new(StoreErrorCause::Password, words)
    }

    fn wrong_password(&self) -> ServerFailure {
        let (user, scheme) = (&self.user, self.own_scheme());
        let words = format!(
            "it does not accept the user {user} with the password in the URL: write the right ones, \
             {scheme}USER:PASSWORD@HOST, with %40 for @ and so on"
        );
        ServerFailure::new(StoreErrorCause::Password, words)
    }

    /// `NOPERM this user has no permissions to run the 'evalsha' command`.
    fn explain_permission(&self, said: &str) -> ServerFailure {
        match said.split('\'').nth(1).filter(|_| said.contains("run the '")) {
            Some(command) => self.may_not_run([command]),
            None if said.contains("key") => {
                let user = &self.user;
                let words = format!(
                    "user {user} may not access its keys ({said}): on the server, ACL SETUSER {user} ~rk1:* ~{{rk1:nodes}}"
                );
                ServerFailure::new(StoreErrorCause::Permission, words)
            }
            None => {
                let words =
                    format!("user {} has too few rights ({said}): docs/stores.md lists them", self.user);
                ServerFailure::new(StoreErrorCause::Permission, words)
            }
        }
    }

    /// Which commands the user lacks, and how to allow them.
    pub(in crate::redis) fn may_not_run<'a>(
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
        let words = format!("user {user} may not run {names}: on the server, ACL SETUSER {user} {rights}");
        ServerFailure::new(StoreErrorCause::Permission, words)
    }

    pub(in crate::redis) fn not_a_cluster(&self) -> ServerFailure {
        let advice = self.write_instead(Topology::Standalone, self.is_tls);
        ServerFailure::new(
            StoreErrorCause::Topology,
            format!("it is not a Cluster (cluster_enabled:0): {advice}"),
        )
    }

    pub(in crate::redis) fn is_a_cluster(&self) -> ServerFailure {
        let advice = self.write_instead(Topology::Cluster, self.is_tls);
        ServerFailure::new(StoreErrorCause::Topology, format!("it belongs to a Cluster: {advice}"))
    }

    pub(in crate::redis) fn not_a_sentinel(&self) -> ServerFailure {
        let advice = self.write_instead(Topology::Standalone, self.is_tls);
        let words = format!("it is no Sentinel: name the sentinels, mostly on port 26379, or {advice}");
        ServerFailure::new(StoreErrorCause::Topology, words)
    }

    pub(in crate::redis) fn is_a_sentinel(&self) -> ServerFailure {
        let advice = self.write_instead(Topology::Sentinel, self.is_tls);
        let words =
            format!("it is a Sentinel: {advice}, and behind the sentinels /NAME, their name of the master");
        ServerFailure::new(StoreErrorCause::Topology, words)
    }

    pub(in crate::redis) fn no_such_master(&self, name: &str) -> ServerFailure {
        let words = format!("it knows no master called {name}: write the name that `SENTINEL MASTERS` lists");
        ServerFailure::new(StoreErrorCause::Topology, words)
    }

    /// TLS is spoken by one side only.
    pub(super) fn tls_mismatch(&self) -> ServerFailure {
        let advice = self.write_instead(self.topology, !self.is_tls);
        let words = match self.is_tls {
            true => format!("it does not speak TLS on this port: {advice}"),
            false => format!("it speaks TLS on this port: {advice}"),
        };
        ServerFailure::new(StoreErrorCause::TlsMismatch, words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::redis::{Value, parse_redis_value};

    fn error(line: &str) -> ServerError {
        match parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap() {
            Value::ServerError(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_error_has_its_cause_whatever_server_says_it() {
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
    fn words_name_the_remedy() {
        let plain = LoginContext::new(Some("gate"), Topology::Standalone, false);
        let cluster = LoginContext::new(None, Topology::Cluster, true);
        let noperm = |line: &str| plain.explain(&error(line)).words;
        for (said, remedy) in [
            (plain.explain(&error("NOAUTH x")).words, "redis://USER:PASSWORD@HOST"),
            (
                noperm("NOPERM User gate has no permissions to run the 'evalsha' command"),
                "ACL SETUSER gate +evalsha",
            ),
            (noperm("NOPERM No permissions to access a key"), "ACL SETUSER gate ~rk1:*"),
            (
                plain.may_not_run(["PSETEX", "DEL"]).words,
                "may not run PSETEX, DEL: on the server, ACL SETUSER gate +psetex +del",
            ),
            (plain.tls_mismatch().words, "write rediss:// instead of redis://"),
            (cluster.tls_mismatch().words, "write redis+cluster:// instead of rediss+cluster://"),
            (cluster.not_a_cluster().words, "write rediss:// instead of rediss+cluster://"),
            (plain.is_a_cluster().words, "write redis+cluster:// instead of redis://"),
            (plain.explain(&error("OOM x")).words, "raise maxmemory"),
            (plain.explain(&error("READONLY x")).words, "name its master"),
        ] {
            assert!(said.contains(remedy), "{said:?} lacks {remedy:?}");
        }
    }
}

//! The session of one connection: protocol version, authentication, client name, and the transaction queue.

use super::arguments::Arguments;
use super::commands::{CommandEntry, is_word};
use super::error::CommandError;
use super::reply::{Printable, ReplyWriter, RespVersion};
use crate::conn::{BodyPermit, BodyPermits};
use crate::token::Token;
use std::fmt::Write as _;
use std::net::IpAddr;

/// The maximum size of a client's name, and of its library's name and version.
const MAX_NAME_BYTES: usize = 128;
/// The maximum number and size of queued commands without a permit.
const MAX_QUEUED: usize = 1000;
const MAX_QUEUED_BYTES: usize = 64 * 1024;
/// The maximum number and size of queued commands with a permit for large bodies.
const MAX_QUEUED_WITH_PERMIT: usize = 10_000;
const MAX_QUEUED_BYTES_WITH_PERMIT: usize = 1 << 20;

const CLIENT_SUBCOMMANDS: &str =
    "GETNAME, ID, INFO, LIST, NO-EVICT, NO-TOUCH, REPLY ON, SETINFO, SETNAME and TRACKING OFF";

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) protocol: RespVersion,
    /// Whether the client has sent the token, or none is required.
    pub(super) is_authenticated: bool,
    /// The commands queued since `MULTI`; `None` outside of a transaction.
    pub(super) queue: Option<TransactionQueue>,
    peer: IpAddr,
    name: Box<[u8]>,
    library: [Box<[u8]>; 2],
}

impl Session {
    pub(super) fn new(id: u64, peer: IpAddr, token: Option<&Token>) -> Session {
        Session {
            id,
            protocol: RespVersion::default(),
            is_authenticated: token.is_none(),
            queue: None,
            peer,
            name: Box::default(),
            library: Default::default(),
        }
    }

    /// Whether commands are executed at once: the client is authenticated and not in a transaction.
    #[inline]
    pub(super) fn executes_at_once(&self) -> bool {
        self.is_authenticated && self.queue.is_none()
    }

    /// Resets the session to its initial state. The library's name and version stay.
    pub(super) fn reset(&mut self, token: Option<&Token>) {
        let library = std::mem::take(&mut self.library);
        *self = Session { library, ..Session::new(self.id, self.peer, token) };
    }

    /// `AUTH [username] token`. The username is ignored.
    pub(super) fn auth<'a>(
        &mut self,
        args: Arguments<'a>,
        token: Option<&Token>,
    ) -> Result<(), CommandError<'a>> {
        match (args.get(1), args.get(2), args.get(3)) {
            (Some(secret), None, _) | (Some(_), Some(secret), None) => self.authenticate(secret, token),
            _ => Err(CommandError::WrongArity(CommandEntry::find(b"auth").expect("AUTH is in the table"))),
        }
    }

    fn authenticate(&mut self, secret: &[u8], token: Option<&Token>) -> Result<(), CommandError<'static>> {
        match token {
            None => Err(CommandError::NoTokenConfigured),
            Some(token) if token.matches(secret) => {
                self.is_authenticated = true;
                Ok(())
            }
            Some(_) => Err(CommandError::WrongPass),
        }
    }

    /// `HELLO [version [AUTH username token] [SETNAME name]]`. An error changes nothing.
    pub(super) fn hello<'a>(
        &mut self,
        args: Arguments<'a>,
        token: Option<&Token>,
    ) -> Result<(), CommandError<'a>> {
        let protocol = match args.get(1) {
            None => self.protocol,
            Some(b"2") => RespVersion::Resp2,
            Some(b"3") => RespVersion::Resp3,
            Some(_) => return Err(CommandError::NoProto),
        };
        let (mut secret, mut name, mut at) = (None, None, 2);
        while let Some(word) = args.get(at) {
            match (args.get(at + 1), args.get(at + 2)) {
                (Some(_), Some(password)) if is_word(word, "auth") => {
                    secret = Some(password);
                    at += 3;
                }
                (Some(given), _) if is_word(word, "setname") => {
                    name = Some(given);
                    at += 2;
                }
                _ => {
                    let usage = "HELLO [2|3 [AUTH username password] [SETNAME clientname]]";
                    return Err(CommandError::Syntax { near: Printable(word), usage });
                }
            }
        }
        let name = name.map(validate_name).transpose()?;
        match secret {
            Some(secret) => self.authenticate(secret, token)?,
            None if !self.is_authenticated => return Err(CommandError::NoAuthHello),
            None => {}
        }
        self.protocol = protocol;
        if let Some(name) = name {
            self.name = name.into();
        }
        Ok(())
    }

    /// `CLIENT subcommand`.
    pub(super) fn client<'a>(
        &mut self,
        args: Arguments<'a>,
        out: &mut Vec<u8>,
    ) -> Result<(), CommandError<'a>> {
        let mut reply = ReplyWriter { out, protocol: self.protocol };
        let (word, first, second) = (args.get(1).unwrap_or_default(), args.get(2), args.get(3));
        let unsupported = |what, instead| Err(CommandError::UnsupportedClientOption { what, instead });
        if is_word(word, "id") {
            reply.integer(i64::try_from(self.id).unwrap_or(i64::MAX));
        } else if is_word(word, "getname") && self.name.is_empty() {
            reply.null();
        } else if is_word(word, "getname") {
            reply.bulk(&self.name);
        } else if is_word(word, "info") || is_word(word, "list") {
            reply.text(&self.client_list_line());
        } else if let (true, Some(name), None) = (is_word(word, "setname"), first, second) {
            self.name = validate_name(name)?.into();
            reply.ok();
        } else if let (true, Some(which), Some(value)) = (is_word(word, "setinfo"), first, second) {
            let index = match which {
                which if is_word(which, "lib-name") => 0,
                which if is_word(which, "lib-ver") => 1,
                which => {
                    let usage = "CLIENT SETINFO LIB-NAME name, or LIB-VER version";
                    return Err(CommandError::Syntax { near: Printable(which), usage });
                }
            };
            self.library[index] = validate_name(value)?.into();
            reply.ok();
        } else if is_word(word, "no-evict") || is_word(word, "no-touch") {
            // Nothing is evicted or touched for a client here, so both settings are no-ops.
            reply.ok();
        } else if let (true, Some(mode), None) = (is_word(word, "reply"), first, second) {
            if !is_word(mode, "on") {
                return unsupported("REPLY OFF and SKIP", "every command is answered");
            }
            reply.ok();
        } else if let (true, Some(mode)) = (is_word(word, "tracking"), first) {
            if !is_word(mode, "off") {
                return unsupported("TRACKING ON", "there is nothing to cache");
            }
            reply.ok();
        } else {
            return Err(CommandError::UnknownSubcommand {
                command: "client",
                found: Printable(word),
                known: CLIENT_SUBCOMMANDS,
            });
        }
        Ok(())
    }

    /// This connection in the format of `CLIENT LIST`. Other connections are never shown.
    fn client_list_line(&self) -> String {
        let [library, version] = &self.library;
        let [name, library, version] =
            [&self.name, library, version].map(|bytes| String::from_utf8_lossy(bytes));
        let mut line = String::new();
        let _ = writeln!(
            line,
            "id={} addr={} name={name} db=0 user=default lib-name={library} lib-ver={version} resp={}",
            self.id,
            self.peer,
            self.protocol.number()
        );
        line
    }
}

/// Validates a name: printable ASCII without spaces, and not too long.
fn validate_name(name: &[u8]) -> Result<&[u8], CommandError<'static>> {
    let is_clean = name.len() <= MAX_NAME_BYTES && name.iter().all(u8::is_ascii_graphic);
    if is_clean { Ok(name) } else { Err(CommandError::InvalidName { most: MAX_NAME_BYTES }) }
}

/// The commands queued for `EXEC`.
#[derive(Debug, Default)]
pub(super) struct TransactionQueue {
    /// The encoded commands.
    pub(super) bytes: Vec<u8>,
    pub(super) count: usize,
    /// Whether one of them could not be queued: then `EXEC` runs none.
    pub(super) is_aborted: bool,
    /// The permit of a large transaction.
    permit: Option<BodyPermit>,
}

impl TransactionQueue {
    /// Queues a command.
    pub(super) fn push(
        &mut self,
        args: Arguments<'_>,
        permits: &BodyPermits,
    ) -> Result<(), CommandError<'static>> {
        let bytes = self.bytes.len() + args.starting_at(0).map(|arg| arg.len() + 16).sum::<usize>();
        if (self.count >= MAX_QUEUED || bytes > MAX_QUEUED_BYTES) && self.permit.is_none() {
            self.permit = permits.try_acquire();
        }
        let (max_count, max_bytes) = match self.permit {
            Some(_) => (MAX_QUEUED_WITH_PERMIT, MAX_QUEUED_BYTES_WITH_PERMIT),
            None => (MAX_QUEUED, MAX_QUEUED_BYTES),
        };
        if self.count >= max_count || bytes > max_bytes {
            return Err(CommandError::QueueFull);
        }
        let mut reply = ReplyWriter { out: &mut self.bytes, protocol: RespVersion::Resp2 };
        // A command has the same encoding as an array reply.
        reply.array(args.len());
        args.starting_at(0).for_each(|arg| reply.bulk(arg));
        self.count += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, encode_words, replies_to, test_shared};
    use super::*;

    const RULES: &str = "default: {limit: 100/min}";
    const TOKEN: &str = "0123456789abcdef";

    #[test]
    fn without_the_token_commands_are_rejected() {
        check(
            RULES,
            Some(TOKEN),
            "PING => -NOAUTH Authentication required.
             CL.THROTTLE a 1 1 1 => -NOAUTH Authentication required.
             CL.THROTTLE => -NOAUTH Authentication required.
             RK.CHECK a / => -NOAUTH Authentication required.
             MULTI => -NOAUTH Authentication required.
             NONSENSE => -NOAUTH Authentication required.
             HELLO => -NOAUTH HELLO must be called with the client already authenticated...
             HELLO 3 => -NOAUTH HELLO must be...
             HELLO 3 AUTH default wrong => -WRONGPASS invalid username-password pair or user is disabled.
             AUTH wrong => -WRONGPASS invalid username-password pair or user is disabled.
             AUTH default 0123456789abcde => -WRONGPASS...
             AUTH => -ERR wrong number of arguments for 'auth' command: write AUTH [username] password
             AUTH a b c => -ERR wrong number of arguments...
             RESET => +RESET
             AUTH 0123456789abcdef => +OK
             RK.CHECK a / => 0 100 99 -1 1
             AUTH wrong => -WRONGPASS...
             PING => +PONG
             RESET => +RESET
             PING => -NOAUTH Authentication required.
             AUTH anybody 0123456789abcdef => +OK
             RESET => +RESET
             HELLO 2 AUTH default 0123456789abcdef => server ratekeeper version ...
             PING => +PONG",
        );
        let (shared, _) = test_shared(RULES, Some(TOKEN));
        assert_eq!(replies_to(&shared, b"QUIT\r\nPING\r\n"), ("+OK\r\n".to_owned(), true));
    }

    #[test]
    fn auth_without_a_configured_token_is_an_error() {
        let error = "-ERR AUTH <password> called without any password configured...";
        let script =
            ["AUTH x", "AUTH default x", "HELLO 3 AUTH default x"].map(|line| format!("{line} => {error}\n"));
        check(RULES, None, &script.concat());
    }

    #[test]
    fn hello_selects_the_protocol_or_changes_nothing() {
        let version = env!("CARGO_PKG_VERSION");
        let greeting = |proto| {
            format!(
                "server ratekeeper version {version} proto {proto} id 1 mode standalone role master modules"
            )
        };
        check(
            RULES,
            None,
            &format!(
                "HELLO => {}
                 HELLO 4 => -NOPROTO unsupported protocol version
                 HELLO x => -NOPROTO unsupported protocol version
                 HELLO 3 SETNAME => -ERR syntax error near 'SETNAME': write HELLO [2|3 [AUTH...
                 HELLO 3 AUTH x => -ERR syntax error near 'AUTH'...
                 HELLO 3 SETNAME a,b SETNAME => -ERR syntax error...
                 CLIENT GETNAME => $-1
                 HELLO 3 SETNAME a,b => {}
                 CLIENT GETNAME => a,b
                 HELLO => {}
                 RESET => +RESET
                 HELLO => {}
                 CLIENT GETNAME => $-1",
                greeting(2),
                greeting(3),
                greeting(3),
                greeting(2)
            ),
        );
        let (shared, _) = test_shared(RULES, None);
        let (replies, _) = replies_to(&shared, b"HELLO 3\r\nCLIENT GETNAME\r\n");
        let expected = replies.starts_with("%7\r\n$6\r\nserver\r\n") && replies.ends_with("\r\n*0\r\n_\r\n");
        assert!(expected, "{replies}");
    }

    #[test]
    fn client_libraries_can_describe_themselves() {
        check(
            RULES,
            None,
            "CLIENT SETINFO LIB-NAME redis-py => +OK
             client setinfo lib-ver 8.1.0 => +OK
             CLIENT SETINFO LIB-COLOUR red => -ERR syntax error near 'LIB-COLOUR'...
             CLIENT SETNAME worker-7 => +OK
             CLIENT GETNAME => worker-7
             CLIENT ID => 1
             CLIENT INFO => id=1 addr=127.0.0.1 name=worker-7 db=0 user=default lib-name=redis-py \
                lib-ver=8.1.0 resp=2...
             CLIENT LIST => id=1 addr=127.0.0.1 name=worker-7...
             CLIENT SETNAME '' => +OK
             CLIENT GETNAME => $-1
             CLIENT NO-EVICT on => +OK
             CLIENT NO-TOUCH off => +OK
             CLIENT REPLY ON => +OK
             CLIENT REPLY OFF => -ERR CLIENT REPLY OFF and SKIP is not supported: every command is answered
             CLIENT TRACKING OFF => +OK
             CLIENT TRACKING ON => -ERR CLIENT TRACKING ON is not supported: there is nothing to cache
             CLIENT => -ERR wrong number of arguments for 'client' command...
             CLIENT KILL 1 => -ERR unknown subcommand 'KILL': CLIENT has GETNAME, ID, INFO...
             SELECT 0 => +OK
             SELECT 1 => -ERR DB index is out of range: there is one database, 0
             SELECT x => -ERR DB index is out of range...",
        );
        let (shared, _) = test_shared(RULES, None);
        for name in ["a b", "a\\nb", "\\xff", &"x".repeat(129)] {
            let replies = replies_to(&shared, format!("CLIENT SETNAME \"{name}\"\r\n").as_bytes()).0;
            assert!(replies.starts_with("-ERR Client names cannot contain spaces"), "{name}: {replies}");
        }
    }

    #[test]
    fn a_transaction_runs_as_a_whole_or_not_at_all() {
        check(
            RULES,
            None,
            "EXEC => -ERR EXEC without MULTI
             DISCARD => -ERR DISCARD without MULTI
             MULTI => +OK
             CL.THROTTLE a 1 1 60 => +QUEUED
             CL.THROTTLE a 1 1 60 => +QUEUED
             PING => +QUEUED
             CL.THROTTLE a x 1 60 => +QUEUED
             cl.throttle a 1 1 60 => +QUEUED
             ECHO hi => +QUEUED
             SELECT 0 => +QUEUED
             EXEC => 0 2 1 -1 60 0 2 0 -1 120 +PONG -ERR max_burst is not a whole number: 'x': write digits, like 15 \
                1 2 0 60 120 hi +OK
             MULTI => +OK
             CL.THROTTLE b 1 1 60 => +QUEUED
             MULTI => -ERR MULTI calls can not be nested
             EXEC => -EXECABORT Transaction discarded because of previous errors.
             MULTI => +OK
             CL.THROTTLE b => -ERR wrong number of arguments...
             CL.THROTTLE b 1 1 60 => +QUEUED
             EXEC => -EXECABORT...
             MULTI => +OK
             INFO => -ERR INFO is not allowed in a transaction: send it before MULTI
             EXEC => -EXECABORT...
             MULTI => +OK
             NONSENSE => -ERR unknown command 'NONSENSE'...
             EXEC => -EXECABORT...
             MULTI => +OK
             CL.THROTTLE b 1 1 60 => +QUEUED
             DISCARD => +OK
             EXEC => -ERR EXEC without MULTI
             MULTI => +OK
             CL.THROTTLE b 1 1 60 => +QUEUED
             RESET => +RESET
             EXEC => -ERR EXEC without MULTI
             CL.THROTTLE b 1 1 60 => 0 2 1 -1 60",
        );
        let (shared, _) = test_shared(RULES, None);
        assert_eq!(replies_to(&shared, b"MULTI\r\nEXEC\r\n").0, "+OK\r\n*0\r\n");
        assert_eq!(replies_to(&shared, b"MULTI\r\nQUIT\r\nPING\r\n"), ("+OK\r\n+OK\r\n".to_owned(), true));
    }

    #[test]
    fn the_transaction_queue_is_bounded() {
        let (shared, _) = test_shared(RULES, None);
        let many = |count: usize| {
            [b"MULTI\r\n".to_vec(), encode_words("RK.CHECK a / 0").repeat(count), b"EXEC\r\n".to_vec()]
                .concat()
        };
        for (count, is_done) in
            [(MAX_QUEUED, true), (MAX_QUEUED_WITH_PERMIT, true), (MAX_QUEUED_WITH_PERMIT + 1, false)]
        {
            let (replies, _) = replies_to(&shared, &many(count));
            assert_eq!(replies.matches("+QUEUED").count(), count.min(MAX_QUEUED_WITH_PERMIT));
            assert_eq!(replies.matches("*5\r\n").count(), if is_done { count } else { 0 }, "{count}");
            assert_eq!(replies.contains("-ERR too many commands queued for EXEC"), !is_done);
            assert_eq!(
                replies.ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"),
                !is_done
            );
        }
        // All permits for large transactions are taken.
        let permits: Vec<_> = std::iter::from_fn(|| shared.body_permits.try_acquire()).collect();
        assert!(replies_to(&shared, &many(MAX_QUEUED)).0.ends_with(":0\r\n"));
        assert!(replies_to(&shared, &many(MAX_QUEUED + 1)).0.contains("-ERR too many commands queued"));
        drop(permits);
        assert!(replies_to(&shared, &many(MAX_QUEUED + 1)).0.ends_with(":0\r\n"));
        let long = ["ECHO ", &"x".repeat(10_000)].concat();
        let bytes = [b"MULTI\r\n".to_vec(), encode_words(&long).repeat(200), b"EXEC\r\n".to_vec()].concat();
        let (replies, _) = replies_to(&shared, &bytes);
        assert_eq!(replies.matches("+QUEUED").count(), MAX_QUEUED_BYTES_WITH_PERMIT / 10_032);
        assert!(replies.ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"));
    }
}

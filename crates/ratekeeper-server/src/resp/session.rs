//! What one connection has said of itself: its version of the protocol, who it is, and what waits for `EXEC`.

use super::commands::{CommandEntry, is};
use super::decode::Arguments;
use super::error::CommandError;
use super::reply::{ReplyWriter, RespVersion, Shown};
use crate::http::{BodyPermit, BodyPermits};
use crate::token::Token;
use std::fmt::Write as _;
use std::net::IpAddr;

/// The most bytes of a connection's name, and of its library's.
const MAX_NAME_BYTES: usize = 128;
/// How many commands may wait for `EXEC`, and how many bytes of them, for anybody.
const FEW_QUEUED: usize = 1000;
const FEW_QUEUED_BYTES: usize = 64 * 1024;
/// The same for those who find a place in the room for more.
const MANY_QUEUED: usize = 10_000;
const MANY_QUEUED_BYTES: usize = 1 << 20;

const CLIENT_SUBCOMMANDS: &str =
    "GETNAME, ID, INFO, LIST, NO-EVICT, NO-TOUCH, REPLY ON, SETINFO, SETNAME and TRACKING OFF";

/// What is known of one connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) protocol: RespVersion,
    /// Whether it may ask: it has shown the token, or there is none.
    pub(super) is_admitted: bool,
    /// What waits for `EXEC`, if the client has said `MULTI`.
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
            is_admitted: token.is_none(),
            queue: None,
            peer,
            name: Box::default(),
            library: Default::default(),
        }
    }

    /// Whether what it asks is decided at once.
    #[inline]
    pub(super) fn may_ask(&self) -> bool {
        self.is_admitted && self.queue.is_none()
    }

    /// Makes it as it was when it began.
    pub(super) fn reset(&mut self, token: Option<&Token>) {
        let library = std::mem::take(&mut self.library);
        *self = Session { library, ..Session::new(self.id, self.peer, token) };
    }

    /// `AUTH [username] token`. The user's name is not looked at.
    pub(super) fn auth<'a>(
        &mut self,
        args: Arguments<'a>,
        token: Option<&Token>,
    ) -> Result<(), CommandError<'a>> {
        match (args.get(1), args.get(2), args.get(3)) {
            (Some(secret), None, _) | (Some(_), Some(secret), None) => self.admit(secret, token),
            _ => Err(CommandError::Arity(CommandEntry::find(b"auth").expect("it is in the table"))),
        }
    }

    fn admit(&mut self, secret: &[u8], token: Option<&Token>) -> Result<(), CommandError<'static>> {
        match token {
            None => Err(CommandError::NoPassword),
            Some(token) if token.matches(secret) => {
                self.is_admitted = true;
                Ok(())
            }
            Some(_) => Err(CommandError::WrongPass),
        }
    }

    /// `HELLO [version [AUTH username token] [SETNAME name]]`. If anything is wrong with it, nothing changes.
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
                (Some(_), Some(password)) if is(word, "auth") => {
                    secret = Some(password);
                    at += 3;
                }
                (Some(given), _) if is(word, "setname") => {
                    name = Some(given);
                    at += 2;
                }
                _ => {
                    let usage = "HELLO [2|3 [AUTH username password] [SETNAME clientname]]";
                    return Err(CommandError::Syntax { near: Shown(word), usage });
                }
            }
        }
        let name = name.map(clean).transpose()?;
        match secret {
            Some(secret) => self.admit(secret, token)?,
            None if !self.is_admitted => return Err(CommandError::NoAuthHello),
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
        let unsupported = |what, instead| Err(CommandError::NotForClients { what, instead });
        if is(word, "id") {
            reply.integer(i64::try_from(self.id).unwrap_or(i64::MAX));
        } else if is(word, "getname") && self.name.is_empty() {
            reply.null();
        } else if is(word, "getname") {
            reply.bulk(&self.name);
        } else if is(word, "info") || is(word, "list") {
            reply.text(&self.line());
        } else if let (true, Some(name), None) = (is(word, "setname"), first, second) {
            self.name = clean(name)?.into();
            reply.ok();
        } else if let (true, Some(which), Some(value)) = (is(word, "setinfo"), first, second) {
            let place = match which {
                which if is(which, "lib-name") => 0,
                which if is(which, "lib-ver") => 1,
                which => {
                    let usage = "CLIENT SETINFO LIB-NAME name, or LIB-VER version";
                    return Err(CommandError::Syntax { near: Shown(which), usage });
                }
            };
            self.library[place] = clean(value)?.into();
            reply.ok();
        } else if is(word, "no-evict") || is(word, "no-touch") {
            // Nothing of a client's is evicted or touched here, so either way is how it is.
            reply.ok();
        } else if let (true, Some(mode), None) = (is(word, "reply"), first, second) {
            if !is(mode, "on") {
                return unsupported("REPLY OFF and SKIP", "every command is answered");
            }
            reply.ok();
        } else if let (true, Some(mode)) = (is(word, "tracking"), first) {
            if !is(mode, "off") {
                return unsupported("TRACKING ON", "there is nothing to cache");
            }
            reply.ok();
        } else {
            return Err(CommandError::UnknownSubcommand {
                command: "client",
                found: Shown(word),
                known: CLIENT_SUBCOMMANDS,
            });
        }
        Ok(())
    }

    /// This connection as `CLIENT LIST` has it. Others are nobody's business.
    fn line(&self) -> String {
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

/// A name that can stand in a list: bytes that can be seen, and not too many.
fn clean(name: &[u8]) -> Result<&[u8], CommandError<'static>> {
    let is_clean = name.len() <= MAX_NAME_BYTES && name.iter().all(u8::is_ascii_graphic);
    if is_clean { Ok(name) } else { Err(CommandError::BadName { most: MAX_NAME_BYTES }) }
}

/// Commands that wait for `EXEC`.
#[derive(Debug, Default)]
pub(super) struct TransactionQueue {
    /// The commands, one behind the other, as lists.
    pub(super) bytes: Vec<u8>,
    pub(super) count: usize,
    /// Whether one of them could not be taken in: then none is carried out.
    pub(super) is_spoiled: bool,
    /// Held by those who have many.
    place: Option<BodyPermit>,
}

impl TransactionQueue {
    /// Takes a command in.
    pub(super) fn push(
        &mut self,
        args: Arguments<'_>,
        room: &BodyPermits,
    ) -> Result<(), CommandError<'static>> {
        let bytes = self.bytes.len() + args.from(0).map(|arg| arg.len() + 16).sum::<usize>();
        if (self.count >= FEW_QUEUED || bytes > FEW_QUEUED_BYTES) && self.place.is_none() {
            self.place = room.place();
        }
        let (most, most_bytes) = match self.place {
            Some(_) => (MANY_QUEUED, MANY_QUEUED_BYTES),
            None => (FEW_QUEUED, FEW_QUEUED_BYTES),
        };
        if self.count >= most || bytes > most_bytes {
            return Err(CommandError::TooMuchWaits);
        }
        let mut reply = ReplyWriter { out: &mut self.bytes, protocol: RespVersion::Resp2 };
        // A command is written as a list of replies would be.
        reply.array(args.len());
        args.from(0).for_each(|arg| reply.bulk(arg));
        self.count += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, office, told, words};
    use super::*;

    const RULES: &str = "default: {limit: 100/min}";
    const TOKEN: &str = "0123456789abcdef";

    #[test]
    fn without_the_token_nothing_is_answered() {
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
        let (office, _) = office(RULES, Some(TOKEN));
        assert_eq!(told(&office, b"QUIT\r\nPING\r\n"), ("+OK\r\n".to_owned(), true));
    }

    #[test]
    fn a_token_that_nobody_asked_for_is_a_mistake_of_the_client() {
        let said = "-ERR AUTH <password> called without any password configured...";
        let script =
            ["AUTH x", "AUTH default x", "HELLO 3 AUTH default x"].map(|line| format!("{line} => {said}\n"));
        check(RULES, None, &script.concat());
    }

    #[test]
    fn a_greeting_chooses_the_protocol_or_changes_nothing() {
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
        let (office, _) = office(RULES, None);
        let (said, _) = told(&office, b"HELLO 3\r\nCLIENT GETNAME\r\n");
        assert!(said.starts_with("%7\r\n$6\r\nserver\r\n") && said.ends_with("\r\n*0\r\n_\r\n"), "{said}");
    }

    #[test]
    fn what_libraries_say_of_themselves_is_taken_in() {
        check(
            RULES,
            None,
            "CLIENT SETINFO LIB-NAME redis-py => +OK
             client setinfo lib-ver 8.1.0 => +OK
             CLIENT SETINFO LIB-COLOUR red => -ERR syntax error near 'LIB-COLOUR'...
             CLIENT SETNAME worker-7 => +OK
             CLIENT GETNAME => worker-7
             CLIENT ID => 1
             CLIENT INFO => id=1 addr=127.0.0.1 name=worker-7 db=0 user=default lib-name=redis-py lib-ver=8.1.0 resp=2...
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
        let (office, _) = office(RULES, None);
        for name in ["a b", "a\\nb", "\\xff", &"x".repeat(129)] {
            let said = told(&office, format!("CLIENT SETNAME \"{name}\"\r\n").as_bytes()).0;
            assert!(said.starts_with("-ERR Client names cannot contain spaces"), "{name}: {said}");
        }
    }

    #[test]
    fn what_waits_is_carried_out_together_or_not_at_all() {
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
             INFO => -ERR INFO can't wait for EXEC: send it before MULTI
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
        let (office, _) = office(RULES, None);
        assert_eq!(told(&office, b"MULTI\r\nEXEC\r\n").0, "+OK\r\n*0\r\n");
        assert_eq!(told(&office, b"MULTI\r\nQUIT\r\nPING\r\n"), ("+OK\r\n+OK\r\n".to_owned(), true));
    }

    #[test]
    fn not_everything_can_wait() {
        let (office, _) = office(RULES, None);
        let many = |count: usize| {
            [b"MULTI\r\n".to_vec(), words("RK.CHECK a / 0").repeat(count), b"EXEC\r\n".to_vec()].concat()
        };
        for (count, is_done) in [(FEW_QUEUED, true), (MANY_QUEUED, true), (MANY_QUEUED + 1, false)] {
            let (said, _) = told(&office, &many(count));
            assert_eq!(said.matches("+QUEUED").count(), count.min(MANY_QUEUED));
            assert_eq!(said.matches("*5\r\n").count(), if is_done { count } else { 0 }, "{count}");
            assert_eq!(said.contains("-ERR too much waits for EXEC"), !is_done);
            assert_eq!(
                said.ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"),
                !is_done
            );
        }
        // The places for more are all taken.
        let places: Vec<_> = std::iter::from_fn(|| office.room.place()).collect();
        assert!(told(&office, &many(FEW_QUEUED)).0.ends_with(":0\r\n"));
        assert!(told(&office, &many(FEW_QUEUED + 1)).0.contains("-ERR too much waits"));
        drop(places);
        assert!(told(&office, &many(FEW_QUEUED + 1)).0.ends_with(":0\r\n"));
        let long = ["ECHO ", &"x".repeat(10_000)].concat();
        let bytes = [b"MULTI\r\n".to_vec(), words(&long).repeat(200), b"EXEC\r\n".to_vec()].concat();
        let (said, _) = told(&office, &bytes);
        assert_eq!(said.matches("+QUEUED").count(), MANY_QUEUED_BYTES / 10_032);
        assert!(said.ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"));
    }
}

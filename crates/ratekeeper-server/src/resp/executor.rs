//! Who answers the commands of one connection.
//!
//! All commands that have come are answered together. Those that ask for a decision go onto one docket, which is settled
//! once, before anything else is answered: so replies are in the order of their commands. A warm clerk allocates nothing
//! for a decision, allowed or not.

use super::check;
use super::commands::{Command, CommandEntry, is};
use super::decode::{Arguments, DecodedFront, Decoder};
use super::encode;
use super::error::CommandError;
use super::introspection::{self, Introspection};
use super::repeat_cache::RepeatCache;
use super::reply::{ReplyWriter, Shown};
use super::session::{Session, TransactionQueue};
use super::throttle::ThrottleCall;
use crate::denial_log::DenialLog;
use crate::http::BodyPermits;
use crate::token::Token;
use ratekeeper::rules::{CheckRequest, InlineLimit, Verb};
use ratekeeper::{CheckBatch, Micros, RuleDecision, RuleLimiter, Store};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The most commands that are answered at once. Clients that pipeline much send some hundreds.
pub(super) const MAX_BATCH: usize = 512;
/// With so many bytes of replies, they are sent before more is answered. So a client that does not read has no more of
/// them than this, and one reply.
const MAX_HELD_BYTES: usize = 32 * 1024;

/// What all clerks of a port share.
#[derive(Debug)]
pub(super) struct ExecutorShared<S> {
    pub(super) gate: RuleLimiter<S>,
    pub(super) token: Option<Token>,
    pub(super) denials: Arc<DenialLog>,
    /// For those who have much wait for `EXEC`.
    pub(super) room: BodyPermits,
    /// How many connections there were.
    pub(super) connections: AtomicU64,
    pub(super) started_at: Micros,
}

/// Answers the commands of one connection.
#[derive(Debug)]
pub(super) struct Executor<'o, S> {
    office: &'o ExecutorShared<S>,
    session: Session,
    /// Commands that wait to be decided together.
    docket: Option<CheckBatch>,
    /// Where each of them begins.
    filed: Vec<usize>,
    /// The call that is expected to come again.
    refrain: Option<RepeatCache>,
    /// Reads a command once more, to tell what was denied.
    again: Decoder,
    /// Replies on their way out.
    pub(super) out: Vec<u8>,
    /// How many commands were taken from a client that may ask.
    pub(super) begun: u64,
}

/// What comes behind the commands that were answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterCommands {
    /// Perhaps more, once the replies are sent.
    Batch,
    /// Nothing that is complete: there is more to read.
    Read,
    /// Nothing at all.
    Close,
}

/// What became of a command that asks for no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandEnd {
    GoOn,
    /// What waits is to be carried out.
    Exec,
    Close,
}

impl<'o, S: Store> Executor<'o, S> {
    pub(super) fn new(office: &'o ExecutorShared<S>, peer: IpAddr) -> Executor<'o, S> {
        let id = office.connections.fetch_add(1, Relaxed) + 1;
        let session = Session::new(id, peer, office.token.as_ref());
        let (docket, filed, out) = (None, Vec::new(), Vec::new());
        let (refrain, again) = (None, Decoder::default());
        Executor { office, session, docket, filed, refrain, again, out, begun: 0 }
    }

    /// Answers the complete commands that `bytes` begin with, and gives how many bytes those were.
    pub(super) async fn answer(&mut self, decoder: &mut Decoder, bytes: &[u8]) -> (usize, AfterCommands) {
        let (mut at, mut count) = (0, 0);
        let next = loop {
            if count == MAX_BATCH || self.out.len() >= MAX_HELD_BYTES {
                break AfterCommands::Batch;
            }
            count += 1;
            let rest = &bytes[at..];
            if decoder.is_fresh()
                && let Some(length) = self.file_again(rest)
            {
                self.filed.push(at);
                self.begun += 1;
                at += length;
                continue;
            }
            let length = match decoder.find(rest) {
                DecodedFront::Command { bytes } => bytes,
                DecodedFront::Nothing { bytes } => {
                    at += bytes;
                    continue;
                }
                DecodedFront::Unfinished => break AfterCommands::Read,
                DecodedFront::Broken(breach) => {
                    self.settle(bytes).await;
                    self.refuse(&breach);
                    break AfterCommands::Close;
                }
            };
            let then = self.take(decoder.args(rest), at, &bytes[..at + length]).await;
            self.begun += u64::from(self.session.is_admitted);
            at += length;
            match then {
                CommandEnd::GoOn => {}
                CommandEnd::Exec => self.exec().await,
                CommandEnd::Close => break AfterCommands::Close,
            }
        };
        self.settle(bytes).await;
        (at, next)
    }

    /// Tells that nothing behind this can be understood.
    pub(super) fn refuse(&mut self, breach: &impl std::fmt::Display) {
        self.reply().error(&format_args!("ERR Protocol error: {breach}"));
    }

    /// Puts the call that comes again onto the docket, if that is what `bytes` begin with, and gives how long it is.
    #[inline]
    fn file_again(&mut self, bytes: &[u8]) -> Option<usize> {
        let refrain = self.refrain.as_ref().filter(|_| self.session.may_ask())?;
        let (key, length) = refrain.hear(bytes)?;
        let gate = &self.office.gate;
        let docket = self.docket.get_or_insert_with(|| gate.begin());
        let request = CheckRequest { cost: refrain.cost, ..CheckRequest::new(key) };
        gate.add_stated(docket, InlineLimit::Key, &refrain.limit, refrain.verb, &request);
        Some(length)
    }

    /// Puts a command that asks for a decision onto the docket, and answers any other at once. It is what `bytes` end with,
    /// from `at` on.
    async fn take(&mut self, args: Arguments<'_>, at: usize, bytes: &[u8]) -> CommandEnd {
        let decisive = if self.session.may_ask() { DecisionCommand::of(args.name()) } else { None };
        match decisive.map(|decisive| self.file(decisive, args, &bytes[at..])) {
            Some(Ok(())) => {
                self.filed.push(at);
                CommandEnd::GoOn
            }
            Some(Err(mistake)) => {
                self.settle(bytes).await;
                self.reply().error(&mistake);
                CommandEnd::GoOn
            }
            None => {
                self.settle(bytes).await;
                self.answer_aside(args)
            }
        }
    }

    fn file<'a>(
        &mut self,
        decisive: DecisionCommand,
        args: Arguments<'a>,
        bytes: &[u8],
    ) -> Result<(), CommandError<'a>> {
        let ExecutorShared { gate, .. } = self.office;
        let docket = self.docket.get_or_insert_with(|| gate.begin());
        match decisive {
            DecisionCommand::Throttle => {
                let throttle = ThrottleCall::read(args)?;
                let refrain = &mut self.refrain;
                throttle.terms.with_limit(|limit| {
                    gate.add_stated(docket, InlineLimit::Key, limit, throttle.verb, &throttle.request());
                    *refrain = RepeatCache::learn(bytes, args, &throttle, limit);
                })
            }
            DecisionCommand::Check => {
                check::with_request(args, |request| gate.add(docket, Verb::Check, request))
            }
        }
    }

    /// Has everything on the docket decided, and tells. `bytes` are those that its commands came in.
    async fn settle(&mut self, bytes: &[u8]) {
        let Some(mut docket) = self.docket.take() else { return };
        if !docket.is_empty() {
            self.office.gate.settle(&mut docket).await;
        }
        let mut unlogged = 0;
        for (verdict, at) in docket.verdicts().zip(&self.filed) {
            let now = encode::write(&verdict, &mut self.out);
            if !verdict.is_allowed() {
                match self.office.denials.is_full(now) {
                    true => unlogged += 1,
                    false => log_denial(self.office, &mut self.again, &bytes[*at..], &verdict),
                }
            }
        }
        self.office.denials.pass_over(unlogged);
        self.filed.clear();
        self.filed.shrink_to(MAX_BATCH);
        self.again.shrink();
    }

    /// Answers a command that is not on the docket.
    fn answer_aside(&mut self, args: Arguments<'_>) -> CommandEnd {
        match self.carry_out(args) {
            Ok(then) => then,
            Err(mistake) => {
                // What can't be understood spoils what waits with it.
                if let Some(queue) = &mut self.session.queue {
                    queue.is_spoiled = true;
                }
                self.reply().error(&mistake);
                CommandEnd::GoOn
            }
        }
    }

    fn carry_out<'a>(&mut self, args: Arguments<'a>) -> Result<CommandEnd, CommandError<'a>> {
        let Some(entry) = CommandEntry::find(args.name()) else {
            return self.turn_away(args.name());
        };
        let is_open =
            matches!(entry.command, Command::Hello | Command::Auth | Command::Reset | Command::Quit);
        if !self.session.is_admitted && !is_open {
            return Err(CommandError::NoAuth);
        }
        if !entry.takes(args) {
            return Err(CommandError::Arity(entry));
        }
        if self.session.queue.is_some() {
            return self.carry_out_later(entry, args);
        }
        let token = self.office.token.as_ref();
        match entry.command {
            Command::Throttle | Command::Check => unreachable!("who may ask has it put onto the docket"),
            Command::Ping => match (args.get(1), args.len()) {
                (None, _) => self.reply().simple("PONG"),
                (Some(message), 2) => self.reply().bulk(message),
                _ => return Err(CommandError::Arity(entry)),
            },
            Command::Echo => self.reply().bulk(args.get(1).unwrap_or_default()),
            Command::Hello => {
                self.session.hello(args, token)?;
                introspection::hello(self.session.id, &mut self.reply());
            }
            Command::Auth => {
                self.session.auth(args, token)?;
                self.reply().ok();
            }
            Command::Select => match args.get(1) {
                Some(b"0") => self.reply().ok(),
                _ => return Err(CommandError::NoDatabase),
            },
            Command::Client => self.session.client(args, &mut self.out)?,
            Command::List => introspection::commands(args, &mut self.reply())?,
            Command::Config => introspection::config(args, &mut self.reply())?,
            Command::Info => {
                let about = self.about();
                introspection::info(args, about, &mut self.reply());
            }
            Command::Multi => {
                self.session.queue = Some(TransactionQueue::default());
                self.reply().ok();
            }
            Command::Exec => return Err(CommandError::NoMulti("EXEC")),
            Command::Discard => return Err(CommandError::NoMulti("DISCARD")),
            Command::Reset => {
                self.session.reset(token);
                self.reply().simple("RESET");
            }
            Command::Quit => {
                self.reply().ok();
                return Ok(CommandEnd::Close);
            }
        }
        Ok(CommandEnd::GoOn)
    }

    /// Takes a command in behind `MULTI`, or ends that.
    fn carry_out_later<'a>(
        &mut self,
        entry: &'static CommandEntry,
        args: Arguments<'a>,
    ) -> Result<CommandEnd, CommandError<'a>> {
        let Some(queue) = &mut self.session.queue else { return Ok(CommandEnd::GoOn) };
        match entry.command {
            Command::Throttle | Command::Check | Command::Ping | Command::Echo | Command::Select => {
                queue.push(args, &self.office.room)?;
                self.reply().simple("QUEUED");
            }
            Command::Exec if queue.is_spoiled => {
                self.session.queue = None;
                return Err(CommandError::Aborted);
            }
            Command::Exec => return Ok(CommandEnd::Exec),
            Command::Discard => {
                self.session.queue = None;
                self.reply().ok();
            }
            Command::Reset => {
                self.session.reset(self.office.token.as_ref());
                self.reply().simple("RESET");
            }
            Command::Quit => {
                self.reply().ok();
                return Ok(CommandEnd::Close);
            }
            Command::Multi => return Err(CommandError::Nested),
            Command::Hello
            | Command::Auth
            | Command::Client
            | Command::List
            | Command::Config
            | Command::Info => return Err(CommandError::CannotWait(entry)),
        }
        Ok(CommandEnd::GoOn)
    }

    /// Carries out what has waited, all in one list.
    async fn exec(&mut self) {
        let Some(queue) = self.session.queue.take() else { return };
        self.reply().array(queue.count);
        let (mut decoder, mut at) = (Decoder::default(), 0);
        while let DecodedFront::Command { bytes } = decoder.find(&queue.bytes[at..]) {
            self.take(decoder.args(&queue.bytes[at..]), at, &queue.bytes[..at + bytes]).await;
            at += bytes;
        }
        self.settle(&queue.bytes).await;
    }

    /// Answers a command that nobody knows.
    fn turn_away<'a>(&mut self, name: &'a [u8]) -> Result<CommandEnd, CommandError<'a>> {
        // A web page can have a browser send anything in the body of a request, but not keep it from sending these first.
        if is(name, "post") || is(name, "host:") {
            self.refuse(&"this port speaks RESP, not HTTP");
            return Ok(CommandEnd::Close);
        }
        match self.session.is_admitted {
            true => Err(CommandError::UnknownCommand { name: Shown(name) }),
            false => Err(CommandError::NoAuth),
        }
    }

    fn about(&self) -> Introspection {
        let ExecutorShared { gate, started_at, connections, .. } = self.office;
        let uptime_secs = gate.clock().now().since(*started_at).get() / 1_000_000;
        Introspection { uptime_secs, connections: connections.load(Relaxed) }
    }

    fn reply(&mut self) -> ReplyWriter<'_> {
        ReplyWriter { out: &mut self.out, protocol: self.session.protocol }
    }
}

/// The commands that ask for a decision.
#[derive(Clone, Copy, Debug)]
enum DecisionCommand {
    Throttle,
    Check,
}

impl DecisionCommand {
    #[inline]
    fn of(name: &[u8]) -> Option<DecisionCommand> {
        match name.len() {
            11 if is(name, "cl.throttle") => Some(DecisionCommand::Throttle),
            8 if is(name, "rk.check") => Some(DecisionCommand::Check),
            _ => None,
        }
    }
}

/// Logs a denial. What was asked is read once more: that is rare, and keeping it would cost
/// everybody.
#[cold]
fn log_denial<S: Store>(
    office: &ExecutorShared<S>,
    again: &mut Decoder,
    bytes: &[u8],
    verdict: &RuleDecision<'_>,
) {
    let ExecutorShared { gate, denials, .. } = office;
    if !matches!(again.find(bytes), DecodedFront::Command { .. }) {
        return;
    }
    let args = again.args(bytes);
    let note = |request: &CheckRequest<'_>| denials.note(gate.clock(), request, verdict);
    // It was read before, so it can be read again.
    let _ = match DecisionCommand::of(args.name()) {
        Some(DecisionCommand::Throttle) => ThrottleCall::read(args).map(|throttle| note(&throttle.request())),
        Some(DecisionCommand::Check) => check::with_request(args, note),
        None => Ok(()),
    };
}

#[cfg(test)]
mod tests {
    use super::super::testing::{now, office, told, words};
    use super::*;
    use ratekeeper::{Algorithm, Limit};

    const RULES: &str = "default: {limit: 100/min}";

    #[test]
    fn replies_are_in_the_order_of_their_commands() {
        let (office, _) = office(RULES, None);
        let mut pipeline = Vec::new();
        for line in
            ["CL.THROTTLE a 1 1 60", "PING", "RK.CHECK b / 2", "CL.THROTTLE a 1 1 60", "ECHO x", "NONSENSE"]
        {
            pipeline.extend(words(line));
        }
        pipeline.extend_from_slice(b"CL.THROTTLE a 1 1 60\r\n\r\n*0\r\nRK.CHECK c\r\nPING \"last\"\n");
        let (said, is_closed) = told(&office, &pipeline);
        let expected = "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n+PONG\r\n*5\r\n:0\r\n:100\r\n:98\r\n:-1\r\n:2\r\n\
            *5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:120\r\n$1\r\nx\r\n-ERR unknown command 'NONSENSE', this port has CL.THROTTLE, \
            RK.CHECK, PING, ECHO, HELLO, AUTH, SELECT, CLIENT, COMMAND, CONFIG, INFO, MULTI, EXEC, DISCARD, RESET, QUIT\r\n\
            *5\r\n:1\r\n:2\r\n:0\r\n:60\r\n:120\r\n-ERR wrong number of arguments for 'rk.check' command: write RK.CHECK \
            key endpoint [cost] [METHOD method] [IP address] [TIER tier] [ATTR name value]\r\n$4\r\nlast\r\n";
        assert_eq!(said, expected);
        assert!(!is_closed);
    }

    #[test]
    fn what_comes_behind_the_end_is_not_answered() {
        let (office, _) = office(RULES, None);
        let breach = "-ERR Protocol error: expected '$', got ':': every argument comes behind its length\r\n";
        let cases = [
            ("PING\r\nQUIT\r\nPING\r\n", "+PONG\r\n+OK\r\n"),
            ("quit now\r\nPING\r\n", "+OK\r\n"),
            (
                "CL.THROTTLE a 9 1 1\r\n*1\r\n:1\r\nPING\r\n",
                &format!("*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:1\r\n{breach}"),
            ),
            ("POST /check HTTP/1.1\r\nPING\r\n", "-ERR Protocol error: this port speaks RESP, not HTTP\r\n"),
            ("Host: a\r\nPING\r\n", "-ERR Protocol error: this port speaks RESP, not HTTP\r\n"),
        ];
        for (sent, expected) in cases {
            assert_eq!(told(&office, sent.as_bytes()), (expected.to_owned(), true), "{sent}");
        }
    }

    /// Whatever is cut where, it is the same conversation.
    #[test]
    fn commands_may_come_in_pieces() {
        let mut bytes = Vec::new();
        for line in
            ["RK.CHECK a / 0", "MULTI", "ECHO hello", "EXEC", "HELLO 3", "CLIENT GETNAME", "CL.THROTTLE"]
        {
            bytes.extend(words(line));
        }
        bytes.extend_from_slice(b"PING \"a\\x20b\"\r\n\r\n*0\r\n*1\r\n$4\r\nQUIT\r\n");
        let whole = told(&office(RULES, None).0, &bytes);
        for pace in 1..bytes.len() {
            let (office, _) = office(RULES, None);
            let (mut clerk, mut decoder, mut said, mut taken) =
                (office.clerk(), Decoder::default(), Vec::new(), 0);
            let mut is_closed = false;
            for come in (pace..bytes.len()).step_by(pace).chain([bytes.len()]) {
                let (length, next) = now(clerk.answer(&mut decoder, &bytes[taken..come]));
                taken += length;
                said.append(&mut clerk.out);
                is_closed = next == AfterCommands::Close;
            }
            assert_eq!((String::from_utf8(said).unwrap(), is_closed), whole, "in pieces of {pace}");
        }
    }

    #[test]
    fn few_replies_are_held_and_few_commands_answered_at_once() {
        let (office, _) = office(RULES, None);
        let (mut clerk, mut decoder) = (office.clerk(), Decoder::default());
        let list = b"COMMAND\r\n".repeat(1000);
        let (taken, next) = now(clerk.answer(&mut decoder, &list));
        assert_eq!(next, AfterCommands::Batch);
        assert!(taken < 30 * 9 && clerk.out.len() < MAX_HELD_BYTES + 4096, "{taken}, {}", clerk.out.len());
        clerk.out.clear();
        let pings = b"PING\r\n".repeat(2 * MAX_BATCH);
        assert_eq!(now(clerk.answer(&mut decoder, &pings)), (6 * MAX_BATCH, AfterCommands::Batch));
    }

    #[test]
    fn the_emergency_limit_comes_first() {
        let (office, _) = office(RULES, None);
        let limit = Limit::new(Algorithm::TokenBucket, "1/min".parse().unwrap()).unwrap();
        office.gate.emergency().switch_on(limit);
        let said = told(
            &office,
            b"CL.THROTTLE a 9 1 1\r\nCL.THROTTLE a 9 1 1\r\nRK.CHECK a /\r\nCL.THROTTLE a 9 1 1 0\r\n",
        )
        .0;
        let refused = "*5\r\n:1\r\n:1\r\n:0\r\n:60\r\n:60\r\n";
        let expected = [
            "*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:1\r\n",
            refused,
            refused,
            "*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:1\r\n",
        ];
        assert_eq!(said, expected.concat());
    }

    #[test]
    fn decisions_are_counted_where_they_belong() {
        let (office, _) = office("default: {limit: 2/min}", None);
        told(&office, &words("CL.THROTTLE a 0 1 60").repeat(3));
        told(&office, &words("CL.THROTTLE a 0 1 60 0").repeat(3));
        told(&office, &words("RK.CHECK a /").repeat(5));
        let outcomes = office.gate.outcomes();
        assert_eq!((outcomes.stated.allowed, outcomes.stated.denied), (1, 2));
        let rule = outcomes
            .rules
            .iter()
            .find(|(id, _)| id == "default")
            .map(|(_, rule)| (rule.allowed, rule.denied));
        assert_eq!(rule, Some((2, 3)));
    }
}

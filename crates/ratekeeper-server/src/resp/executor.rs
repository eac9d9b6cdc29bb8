//! Executes the commands of one connection.
//!
//! Consecutive commands that need a decision are collected into one batch. The batch is decided before any other
//! command is answered, so replies are in the order of their commands. After warm-up, a decision allocates nothing,
//! whether it is allowed or denied.

use super::arguments::Arguments;
use super::check;
use super::commands::{Command, CommandEntry, is_word};
use super::decode::{DecodedFront, Decoder};
use super::encode;
use super::error::CommandError;
use super::introspection::{self, Introspection};
use super::repeat_cache::RepeatCache;
use super::reply::{Printable, ReplyWriter};
use super::session::{Session, TransactionQueue};
use super::throttle::ThrottleCall;
use crate::conn::BodyPermits;
use crate::denial_log::DenialLog;
use crate::token::Token;
use ratekeeper::rules::{CheckRequest, InlineLimit, Verb};
use ratekeeper::{CheckBatch, Micros, RuleDecision, RuleLimiter, Store};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The maximum number of commands executed at once. Clients that pipeline heavily send some hundreds.
pub(super) const MAX_BATCH: usize = 512;
/// Replies are sent once they take this many bytes. So at most this much and one reply is held for a client that does
/// not read.
const MAX_HELD_BYTES: usize = 32 * 1024;

/// State shared by all connections of the listener.
#[derive(Debug)]
pub(super) struct ExecutorShared<S> {
    pub(super) limiter: RuleLimiter<S>,
    pub(super) token: Option<Token>,
    pub(super) denials: Arc<DenialLog>,
    /// Permits for large `MULTI` transactions.
    pub(super) body_permits: BodyPermits,
    /// The number of connections accepted so far.
    pub(super) connections: AtomicU64,
    pub(super) started_at: Micros,
}

/// Executes the commands of one connection.
#[derive(Debug)]
pub(super) struct Executor<'o, S> {
    shared: &'o ExecutorShared<S>,
    session: Session,
    /// The commands to be decided together.
    batch: Option<CheckBatch>,
    /// The offset of each command in the batch.
    offsets: Vec<usize>,
    /// The last `CL.THROTTLE`, which is likely to be repeated for another key.
    repeat_cache: Option<RepeatCache>,
    /// Decodes a denied command a second time, to log it.
    log_decoder: Decoder,
    /// Encoded replies to be sent.
    pub(super) out: Vec<u8>,
    /// The number of commands executed while the client was authenticated.
    pub(super) command_count: u64,
}

/// What follows the executed commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterCommands {
    /// Possibly more commands, once the replies are sent.
    More,
    /// No complete command: more has to be read.
    Read,
    /// The end of the connection.
    Close,
}

/// What to do after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandEnd {
    Continue,
    /// Run the queued transaction.
    Exec,
    Close,
}

impl<'o, S: Store> Executor<'o, S> {
    pub(super) fn new(shared: &'o ExecutorShared<S>, peer: IpAddr) -> Executor<'o, S> {
        let id = shared.connections.fetch_add(1, Relaxed) + 1;
        let session = Session::new(id, peer, shared.token.as_ref());
        Executor {
            shared,
            session,
            batch: None,
            offsets: Vec::new(),
            repeat_cache: None,
            log_decoder: Decoder::default(),
            out: Vec::new(),
            command_count: 0,
        }
    }

    /// Executes the complete commands at the start of `bytes`, and returns how many bytes they took.
    pub(super) async fn execute(&mut self, decoder: &mut Decoder, bytes: &[u8]) -> (usize, AfterCommands) {
        let (mut at, mut count) = (0, 0);
        let next = loop {
            if count == MAX_BATCH || self.out.len() >= MAX_HELD_BYTES {
                break AfterCommands::More;
            }
            count += 1;
            let rest = &bytes[at..];
            if decoder.is_at_start()
                && let Some(length) = self.add_repeated(rest)
            {
                self.offsets.push(at);
                self.command_count += 1;
                at += length;
                continue;
            }
            let length = match decoder.decode(rest) {
                DecodedFront::Command { bytes } => bytes,
                DecodedFront::Empty { bytes } => {
                    at += bytes;
                    continue;
                }
                DecodedFront::Incomplete => break AfterCommands::Read,
                DecodedFront::Invalid(error) => {
                    self.decide_batch(bytes).await;
                    self.reply_protocol_error(&error);
                    break AfterCommands::Close;
                }
            };
            let then = self.dispatch(decoder.args(rest), at, &bytes[..at + length]).await;
            self.command_count += u64::from(self.session.is_authenticated);
            at += length;
            match then {
                CommandEnd::Continue => {}
                CommandEnd::Exec => self.run_transaction().await,
                CommandEnd::Close => break AfterCommands::Close,
            }
        };
        self.decide_batch(bytes).await;
        (at, next)
    }

    /// Replies with a protocol error, after which the connection is closed.
    pub(super) fn reply_protocol_error(&mut self, error: &impl std::fmt::Display) {
        self.reply().error(&format_args!("ERR Protocol error: {error}"));
    }

    /// Adds the command at the start of `bytes` to the batch if it repeats the cached call, and returns its length.
    #[inline]
    fn add_repeated(&mut self, bytes: &[u8]) -> Option<usize> {
        let repeated = self.repeat_cache.as_ref().filter(|_| self.session.executes_at_once())?;
        let (key, length) = repeated.match_call(bytes)?;
        let limiter = &self.shared.limiter;
        let batch = self.batch.get_or_insert_with(|| limiter.begin());
        let request = CheckRequest { cost: repeated.cost, ..CheckRequest::new(key) };
        limiter.add_inline(batch, InlineLimit::Key, &repeated.limit, repeated.verb, &request);
        Some(length)
    }

    /// Adds a command that needs a decision to the batch, and answers any other at once. The command is `bytes[at..]`.
    async fn dispatch(&mut self, args: Arguments<'_>, at: usize, bytes: &[u8]) -> CommandEnd {
        let command = if self.session.executes_at_once() { DecisionCommand::of(args.name()) } else { None };
        match command.map(|command| self.add_to_batch(command, args, &bytes[at..])) {
            Some(Ok(())) => {
                self.offsets.push(at);
                CommandEnd::Continue
            }
            Some(Err(error)) => {
                self.decide_batch(bytes).await;
                self.reply().error(&error);
                CommandEnd::Continue
            }
            None => {
                self.decide_batch(bytes).await;
                self.answer_now(args)
            }
        }
    }

    fn add_to_batch<'a>(
        &mut self,
        command: DecisionCommand,
        args: Arguments<'a>,
        bytes: &[u8],
    ) -> Result<(), CommandError<'a>> {
        let ExecutorShared { limiter, .. } = self.shared;
        let batch = self.batch.get_or_insert_with(|| limiter.begin());
        match command {
            DecisionCommand::Throttle => {
                let throttle = ThrottleCall::read(args)?;
                let cache = &mut self.repeat_cache;
                throttle.params.with_limit(|limit| {
                    limiter.add_inline(batch, InlineLimit::Key, limit, throttle.verb, &throttle.request());
                    *cache = RepeatCache::of_call(bytes, args, &throttle, limit);
                })
            }
            DecisionCommand::Check => {
                check::with_request(args, |request| limiter.add(batch, Verb::Check, request))
            }
        }
    }

    /// Decides the batch and writes the replies. `bytes` are the bytes that the offsets of its commands refer to.
    async fn decide_batch(&mut self, bytes: &[u8]) {
        let Some(mut batch) = self.batch.take() else { return };
        if !batch.is_empty() {
            self.shared.limiter.decide(&mut batch).await;
        }
        let mut unlogged = 0;
        for (decision, at) in batch.decisions().zip(&self.offsets) {
            let now = encode::write(&decision, &mut self.out);
            if !decision.is_allowed() {
                if self.shared.denials.is_full(now) {
                    unlogged += 1;
                } else {
                    log_denial(self.shared, &mut self.log_decoder, &bytes[*at..], &decision);
                }
            }
        }
        self.shared.denials.count_suppressed(unlogged);
        self.offsets.clear();
        self.offsets.shrink_to(MAX_BATCH);
        self.log_decoder.shrink();
    }

    /// Answers a command that needs no decision.
    fn answer_now(&mut self, args: Arguments<'_>) -> CommandEnd {
        match self.run_command(args) {
            Ok(then) => then,
            Err(error) => {
                // As in Redis, an invalid command aborts the transaction.
                if let Some(queue) = &mut self.session.queue {
                    queue.is_aborted = true;
                }
                self.reply().error(&error);
                CommandEnd::Continue
            }
        }
    }

    fn run_command<'a>(&mut self, args: Arguments<'a>) -> Result<CommandEnd, CommandError<'a>> {
        let Some(entry) = CommandEntry::find(args.name()) else {
            return self.unknown_command(args.name());
        };
        let is_open =
            matches!(entry.command, Command::Hello | Command::Auth | Command::Reset | Command::Quit);
        if !self.session.is_authenticated && !is_open {
            return Err(CommandError::NoAuth);
        }
        if !entry.accepts(args) {
            return Err(CommandError::WrongArity(entry));
        }
        if self.session.queue.is_some() {
            return self.run_in_transaction(entry, args);
        }
        let token = self.shared.token.as_ref();
        match entry.command {
            Command::Throttle | Command::Check => unreachable!("`dispatch` adds it to the batch"),
            Command::Ping => match (args.get(1), args.len()) {
                (None, _) => self.reply().simple("PONG"),
                (Some(message), 2) => self.reply().bulk(message),
                _ => return Err(CommandError::WrongArity(entry)),
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
                _ => return Err(CommandError::InvalidDatabase),
            },
            Command::Client => self.session.client(args, &mut self.out)?,
            Command::List => introspection::commands(args, &mut self.reply())?,
            Command::Config => introspection::config(args, &mut self.reply())?,
            Command::Info => {
                let introspection = self.introspection();
                introspection::info(args, introspection, &mut self.reply());
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
        Ok(CommandEnd::Continue)
    }

    /// Queues a command after `MULTI`, or ends the transaction.
    fn run_in_transaction<'a>(
        &mut self,
        entry: &'static CommandEntry,
        args: Arguments<'a>,
    ) -> Result<CommandEnd, CommandError<'a>> {
        let Some(queue) = &mut self.session.queue else { return Ok(CommandEnd::Continue) };
        match entry.command {
            Command::Throttle | Command::Check | Command::Ping | Command::Echo | Command::Select => {
                queue.push(args, &self.shared.body_permits)?;
                self.reply().simple("QUEUED");
            }
            Command::Exec if queue.is_aborted => {
                self.session.queue = None;
                return Err(CommandError::Aborted);
            }
            Command::Exec => return Ok(CommandEnd::Exec),
            Command::Discard => {
                self.session.queue = None;
                self.reply().ok();
            }
            Command::Reset => {
                self.session.reset(self.shared.token.as_ref());
                self.reply().simple("RESET");
            }
            Command::Quit => {
                self.reply().ok();
                return Ok(CommandEnd::Close);
            }
            Command::Multi => return Err(CommandError::NestedMulti),
            Command::Hello
            | Command::Auth
            | Command::Client
            | Command::List
            | Command::Config
            | Command::Info => return Err(CommandError::NotInTransaction(entry)),
        }
        Ok(CommandEnd::Continue)
    }

    /// Runs the queued commands and replies with one array.
    async fn run_transaction(&mut self) {
        let Some(queue) = self.session.queue.take() else { return };
        self.reply().array(queue.count);
        let (mut decoder, mut at) = (Decoder::default(), 0);
        while let DecodedFront::Command { bytes } = decoder.decode(&queue.bytes[at..]) {
            self.dispatch(decoder.args(&queue.bytes[at..]), at, &queue.bytes[..at + bytes]).await;
            at += bytes;
        }
        self.decide_batch(&queue.bytes).await;
    }

    /// Answers an unknown command.
    fn unknown_command<'a>(&mut self, name: &'a [u8]) -> Result<CommandEnd, CommandError<'a>> {
        // As in Redis: a web page can make a browser send any request body, but not without one of these words before
        // it.
        if is_word(name, "post") || is_word(name, "host:") {
            self.reply_protocol_error(&"this port speaks RESP, not HTTP");
            return Ok(CommandEnd::Close);
        }
        if self.session.is_authenticated {
            Err(CommandError::UnknownCommand { name: Printable(name) })
        } else {
            Err(CommandError::NoAuth)
        }
    }

    fn introspection(&self) -> Introspection {
        let ExecutorShared { limiter, started_at, connections, .. } = self.shared;
        let uptime_secs = limiter.clock().now().since(*started_at).get() / 1_000_000;
        Introspection { uptime_secs, connections: connections.load(Relaxed) }
    }

    fn reply(&mut self) -> ReplyWriter<'_> {
        ReplyWriter { out: &mut self.out, protocol: self.session.protocol }
    }
}

/// The commands that need a decision.
#[derive(Clone, Copy, Debug)]
enum DecisionCommand {
    Throttle,
    Check,
}

impl DecisionCommand {
    #[inline]
    fn of(name: &[u8]) -> Option<DecisionCommand> {
        match name.len() {
            11 if is_word(name, "cl.throttle") => Some(DecisionCommand::Throttle),
            8 if is_word(name, "rk.check") => Some(DecisionCommand::Check),
            _ => None,
        }
    }
}

/// Logs a denial. Decodes the command a second time: denials are rare, and keeping the request would slow every
/// command.
#[cold]
fn log_denial<S: Store>(
    shared: &ExecutorShared<S>,
    decoder: &mut Decoder,
    bytes: &[u8],
    decision: &RuleDecision<'_>,
) {
    let ExecutorShared { limiter, denials, .. } = shared;
    if !matches!(decoder.decode(bytes), DecodedFront::Command { .. }) {
        return;
    }
    let args = decoder.args(bytes);
    let log = |request: &CheckRequest<'_>| denials.record(limiter.clock(), request, decision);
    // It can't fail: the same bytes were decoded before.
    let _ = match DecisionCommand::of(args.name()) {
        Some(DecisionCommand::Throttle) => ThrottleCall::read(args).map(|throttle| log(&throttle.request())),
        Some(DecisionCommand::Check) => check::with_request(args, log),
        None => Ok(()),
    };
}

#[cfg(test)]
mod tests {
    use super::super::testing::{encode_words, poll_now, replies_to, test_shared};
    use super::*;
    use ratekeeper::{Algorithm, Limit};

    const RULES: &str = "default: {limit: 100/min}";

    #[test]
    fn replies_are_in_the_order_of_their_commands() {
        let (shared, _) = test_shared(RULES, None);
        let mut pipeline = Vec::new();
        for line in
            ["CL.THROTTLE a 1 1 60", "PING", "RK.CHECK b / 2", "CL.THROTTLE a 1 1 60", "ECHO x", "NONSENSE"]
        {
            pipeline.extend(encode_words(line));
        }
        pipeline.extend_from_slice(b"CL.THROTTLE a 1 1 60\r\n\r\n*0\r\nRK.CHECK c\r\nPING \"last\"\n");
        let (replies, is_closed) = replies_to(&shared, &pipeline);
        let expected = "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n+PONG\r\n*5\r\n:0\r\n:100\r\n:98\r\n:-1\r\n:2\r\n\
            *5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:120\r\n$1\r\nx\r\n-ERR unknown command 'NONSENSE', supported commands: \
            CL.THROTTLE, RK.CHECK, PING, ECHO, HELLO, AUTH, SELECT, CLIENT, COMMAND, CONFIG, INFO, MULTI, EXEC, \
            DISCARD, RESET, QUIT\r\n\
            *5\r\n:1\r\n:2\r\n:0\r\n:60\r\n:120\r\n-ERR wrong number of arguments for 'rk.check' command: write \
            RK.CHECK key endpoint [cost] [METHOD method] [IP address] [TIER tier] [ATTR name value]\r\n$4\r\nlast\r\n";
        assert_eq!(replies, expected);
        assert!(!is_closed);
    }

    #[test]
    fn commands_after_the_connection_ends_are_not_answered() {
        let (shared, _) = test_shared(RULES, None);
        let error = "-ERR Protocol error: expected '$', got ':': each argument must follow its length\r\n";
        let cases = [
            ("PING\r\nQUIT\r\nPING\r\n", "+PONG\r\n+OK\r\n"),
            ("quit now\r\nPING\r\n", "+OK\r\n"),
            (
                "CL.THROTTLE a 9 1 1\r\n*1\r\n:1\r\nPING\r\n",
                &format!("*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:1\r\n{error}"),
            ),
            ("POST /check HTTP/1.1\r\nPING\r\n", "-ERR Protocol error: this port speaks RESP, not HTTP\r\n"),
            ("Host: a\r\nPING\r\n", "-ERR Protocol error: this port speaks RESP, not HTTP\r\n"),
        ];
        for (sent, expected) in cases {
            assert_eq!(replies_to(&shared, sent.as_bytes()), (expected.to_owned(), true), "{sent}");
        }
    }

    /// Replies do not depend on how the bytes are split.
    #[test]
    fn commands_may_arrive_in_pieces() {
        let mut bytes = Vec::new();
        for line in
            ["RK.CHECK a / 0", "MULTI", "ECHO hello", "EXEC", "HELLO 3", "CLIENT GETNAME", "CL.THROTTLE"]
        {
            bytes.extend(encode_words(line));
        }
        bytes.extend_from_slice(b"PING \"a\\x20b\"\r\n\r\n*0\r\n*1\r\n$4\r\nQUIT\r\n");
        let whole = replies_to(&test_shared(RULES, None).0, &bytes);
        for pace in 1..bytes.len() {
            let (shared, _) = test_shared(RULES, None);
            let (mut executor, mut decoder, mut replies, mut taken) =
                (shared.executor(), Decoder::default(), Vec::new(), 0);
            let mut is_closed = false;
            for end in (pace..bytes.len()).step_by(pace).chain([bytes.len()]) {
                let (length, next) = poll_now(executor.execute(&mut decoder, &bytes[taken..end]));
                taken += length;
                replies.append(&mut executor.out);
                is_closed = next == AfterCommands::Close;
            }
            assert_eq!((String::from_utf8(replies).unwrap(), is_closed), whole, "in pieces of {pace}");
        }
    }

    #[test]
    fn held_replies_and_commands_per_batch_are_bounded() {
        let (shared, _) = test_shared(RULES, None);
        let (mut executor, mut decoder) = (shared.executor(), Decoder::default());
        let list = b"COMMAND\r\n".repeat(1000);
        let (taken, next) = poll_now(executor.execute(&mut decoder, &list));
        assert_eq!(next, AfterCommands::More);
        assert!(
            taken < 30 * 9 && executor.out.len() < MAX_HELD_BYTES + 4096,
            "{taken}, {}",
            executor.out.len()
        );
        executor.out.clear();
        let pings = b"PING\r\n".repeat(2 * MAX_BATCH);
        assert_eq!(poll_now(executor.execute(&mut decoder, &pings)), (6 * MAX_BATCH, AfterCommands::More));
    }

    #[test]
    fn the_emergency_limit_is_checked_first() {
        let (shared, _) = test_shared(RULES, None);
        let limit = Limit::new(Algorithm::TokenBucket, "1/min".parse().unwrap()).unwrap();
        shared.limiter.emergency().switch_on(limit);
        let replies = replies_to(
            &shared,
            b"CL.THROTTLE a 9 1 1\r\nCL.THROTTLE a 9 1 1\r\nRK.CHECK a /\r\nCL.THROTTLE a 9 1 1 0\r\n",
        )
        .0;
        let denied = "*5\r\n:1\r\n:1\r\n:0\r\n:60\r\n:60\r\n";
        let expected = [
            "*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:1\r\n",
            denied,
            denied,
            "*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:1\r\n",
        ];
        assert_eq!(replies, expected.concat());
    }

    #[test]
    fn decisions_are_counted_by_rule_or_as_inline() {
        let (shared, _) = test_shared("default: {limit: 2/min}", None);
        replies_to(&shared, &encode_words("CL.THROTTLE a 0 1 60").repeat(3));
        replies_to(&shared, &encode_words("CL.THROTTLE a 0 1 60 0").repeat(3));
        replies_to(&shared, &encode_words("RK.CHECK a /").repeat(5));
        let counts = shared.limiter.decision_counts();
        assert_eq!((counts.inline.allowed, counts.inline.denied), (1, 2));
        let rule =
            counts.rules.iter().find(|(id, _)| id == "default").map(|(_, rule)| (rule.allowed, rule.denied));
        assert_eq!(rule, Some((2, 3)));
    }

    #[test]
    fn each_limit_is_evaluated_at_most_once_per_command() {
        let (shared, _) = test_shared("rules: [{id: both, limits: [2/min, 3/h]}]", None);
        let command = encode_words("RK.CHECK a /x");
        let before = ratekeeper_core::forecast_count();
        let (replies, _) = replies_to(&shared, &command.repeat(4));
        assert_eq!(replies.matches("*5\r\n:1\r\n").count(), 2, "two of four are denied: {replies}");
        assert_eq!(ratekeeper_core::forecast_count() - before, 4 * 2);
    }
}

//! Scenarios as text: operations at given times, and the expected reply of each limit.
//!
//! A file of the folder `scenarios` has any number of them. A line that is not indented names the next scenario; its
//! limits and steps follow:
//!
//! ```text
//! burst then steady
//!     limit token_bucket 10/s burst 3
//!       0ms  take 1  allow, 2 left
//!       1ms  take 3  deny, retry in 99ms
//!     100ms  give 1  allow, 3 left
//!     100ms  take 4  deny, never
//! ```
//!
//! - `limit ALGORITHM QUOTA`, with the word `queue` after `leaky_bucket`, and `first_hit` or the name of a time zone
//!   after `fixed_window`. A request must pass all limits of consecutive lines; `shadow` instead of `limit` makes one
//!   that denies no request. Limits that follow a step replace the earlier ones: the quota has changed.
//! - The time of a step: how long after 2024-01-01 00:00 UTC, a Monday. Spans are added with `+`, as in `89d+23h`.
//! - The operation: `take` or `look` with a number of units or a range like `2..5`, `give` with a number of units, or
//!   `clear`. Options follow: `within` the longest delay in a queue, and `as` the number of the permit.
//! - The reply of each limit, in order, separated by `|`. A grant of a range names its units, as in
//!   `allow 3, 0 left`.

use crate::engine::{Engine, EngineReply};
use crate::wait::{OrFail, fail};
use ratekeeper_core::{
    Algorithm, Align, Amount, DrawOptions, DrawOutcome, Draws, Leak, Limit, LogSize, Micros, Op, PermitId,
    Quota, Retry, Scope, Span, Zone,
};
use std::fmt;
use std::fs;
use std::path::Path;

/// 2024-01-01 00:00 UTC: a Monday, and the first day of a month.
const SCENARIO_START: Micros = Micros::new(1_704_067_200_000_000);

/// One scenario.
#[derive(Debug)]
pub(crate) struct Scenario {
    name: String,
    steps: Vec<ScenarioStep>,
}

/// One step of a scenario.
#[derive(Debug)]
struct ScenarioStep {
    position: ScenarioPosition,
    now: Micros,
    draws: Draws,
    expected: Vec<String>,
}

/// The file and line of a step.
#[derive(Clone, Debug)]
struct ScenarioPosition {
    file: String,
    line: usize,
}

impl fmt::Display for ScenarioPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

impl Scenario {
    /// Reads all scenarios.
    ///
    /// # Panics
    /// If a line is invalid: the message names it and says what to write.
    pub(crate) fn all() -> Vec<Scenario> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let files = fs::read_dir(folder).or_fail("cannot list the scenarios");
        let mut paths: Vec<_> =
            files.map(|file| file.or_fail("cannot list a file of scenarios").path()).collect();
        paths.sort();
        let read = |path: &Path| {
            let text = fs::read_to_string(path).or_fail("cannot read a file of scenarios");
            let name = path.file_name().unwrap_or_default().display();
            Scenario::parse(&format!("scenarios/{name}"), &text)
        };
        paths.iter().flat_map(|path| read(path)).collect()
    }

    /// Parses the scenarios of one file.
    fn parse(file: &str, text: &str) -> Vec<Scenario> {
        let mut scenarios: Vec<Scenario> = Vec::new();
        let mut limits = ScenarioLimits::default();
        for (number, line) in (1..).zip(text.lines()) {
            let place = ScenarioPosition { file: file.to_owned(), line: number };
            let words = line.trim();
            if words.is_empty() || words.starts_with('#') {
                continue;
            }
            if !line.starts_with(char::is_whitespace) {
                limits = ScenarioLimits::default();
                scenarios.push(Scenario { name: words.to_owned(), steps: Vec::new() });
                continue;
            }
            let scenario = scenarios.last_mut().or_fail(&format!("{place}: a scenario begins with its name"));
            match read_line(words, &mut limits) {
                Ok(None) => {}
                Ok(Some((now, request, expected))) => {
                    scenario.steps.push(ScenarioStep { position: place, now, draws: request, expected });
                }
                Err(why) => fail(&format!("{place}: {words:?}: {why}")),
            }
        }
        if let Some(empty) = scenarios.iter().find(|scenario| scenario.steps.is_empty()) {
            fail(&format!("{file}: {:?} has no steps", empty.name));
        }
        scenarios
    }

    /// Runs the scenario through an engine.
    ///
    /// # Panics
    /// If a reply differs from the text.
    pub(crate) fn check(&self, engine: &mut impl Engine) {
        for ScenarioStep { position: place, now, draws: request, expected } in &self.steps {
            let replies = engine.decide(*now, request);
            let actual: Vec<_> =
                request.all().iter().zip(replies).map(|(draw, reply)| describe(draw.op(), reply)).collect();
            assert!(
                actual == *expected,
                "{place}: {}\n   expected  {}\n        got  {}",
                self.name,
                expected.join(" | "),
                actual.join(" | ")
            );
        }
    }
}

/// The limits in force.
#[derive(Debug, Default)]
struct ScenarioLimits {
    limits: Vec<(Limit, DrawOptions)>,
    /// Whether a step has used them: further limits then replace them.
    are_used: bool,
}

type ScenarioLine = (Micros, Draws, Vec<String>);

/// Parses a line: another limit (`None`), or a step.
fn read_line(line: &str, limits: &mut ScenarioLimits) -> Result<Option<ScenarioLine>, String> {
    let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    if !["limit", "shadow"].contains(&first) {
        limits.are_used = true;
        return read_step(line, &limits.limits).map(Some);
    }
    if limits.are_used {
        *limits = ScenarioLimits::default();
    }
    limits
        .limits
        .push((read_limit(rest)?, DrawOptions { is_shadow: first == "shadow", ..DrawOptions::EXACT }));
    Ok(None)
}

fn read_limit(text: &str) -> Result<Limit, String> {
    let at = text.find(|c: char| c.is_ascii_digit()).ok_or("write an algorithm and a quota here")?;
    let (algorithm, quota) = text.split_at(at);
    let words: Vec<_> = algorithm.split_whitespace().collect();
    let algorithm = match words[..] {
        ["token_bucket"] => Algorithm::TokenBucket,
        ["leaky_bucket"] => Algorithm::LeakyBucket(Leak::Meter),
        ["leaky_bucket", "queue"] => Algorithm::LeakyBucket(Leak::Queue),
        ["fixed_window"] => Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
        ["fixed_window", "first_hit"] => Algorithm::FixedWindow(Align::FirstHit),
        ["fixed_window", zone] => {
            Algorithm::FixedWindow(Align::WallClock(zone.parse::<Zone>().map_err(|error| error.to_string())?))
        }
        ["sliding_window_counter"] => Algorithm::SlidingWindowCounter,
        ["sliding_window_log"] => Algorithm::SlidingWindowLog(LogSize::Standard),
        ["concurrency"] => Algorithm::Concurrency,
        _ => return Err(format!("there is no algorithm {:?}", words.join(" "))),
    };
    let quota = quota.parse::<Quota>().map_err(|error| error.to_string())?;
    Limit::new(algorithm, quota).map_err(|error| error.to_string())
}

fn read_step(line: &str, limits: &[(Limit, DrawOptions)]) -> Result<ScenarioLine, String> {
    let mut words = line.split_whitespace().peekable();
    let mut next = |what: &str| words.next().ok_or(format!("write {what} here"));
    let now = read_time(next("a time")?)?;
    let verb = next("an operation")?;
    let mut op = match verb {
        "take" => Op::Take(read_amount(next("a number of units")?)?),
        "look" => Op::Peek(read_amount(next("a number of units")?)?),
        "give" => Op::Refund(read_number(next("a number of units")?)?),
        "clear" => Op::Reset,
        _ => return Err("the operations are take, look, give and clear".to_owned()),
    };
    let mut permit = PermitId::default();
    while let Some(option @ ("as" | "within")) = words.peek().copied() {
        words.next();
        let value = words.next().ok_or("write the value of the option here")?;
        match option {
            "as" => permit = PermitId(read_number(value)?),
            _ => op = with_max_delay(op, read_span(value)?),
        }
    }
    let rest: Vec<_> = words.collect();
    let expected: Vec<_> = rest.join(" ").split(" | ").map(str::to_owned).collect();
    if expected.len() != limits.len() {
        return Err(format!("write {} replies, one per limit, not {}", limits.len(), expected.len()));
    }
    let mut request = Draws::new();
    for (scope, (limit, terms)) in (0..).zip(limits) {
        request.push("the key".into(), Scope(scope), *limit, op, permit);
        request.set_options(*terms);
    }
    Ok((now, request, expected))
}

/// The same operation, denied if a queue would delay it by more than `max_delay`.
fn with_max_delay(op: Op, max_delay: Span) -> Op {
    match op {
        Op::Take(amount) => Op::Take(amount.with_max_delay(max_delay)),
        Op::Peek(amount) => Op::Peek(amount.with_max_delay(max_delay)),
        Op::Refund(_) | Op::Reset => op,
    }
}

fn read_time(text: &str) -> Result<Micros, String> {
    text.split('+').try_fold(SCENARIO_START, |at, span| Ok(at.plus(read_span(span)?)))
}

/// Parses a span, which is written like a quota's period.
fn read_span(text: &str) -> Result<Span, String> {
    match text.trim_start_matches(|c: char| c.is_ascii_digit()) {
        unit if text.strip_suffix(unit) == Some("0") => Ok(Span::ZERO),
        _ => format!("1/{text}").parse::<Quota>().map(|quota| quota.per()).map_err(|error| error.to_string()),
    }
}

fn read_amount(text: &str) -> Result<Amount, String> {
    match text.split_once("..") {
        Some((least, most)) => Ok(Amount::between(read_number(least)?, read_number(most)?)),
        None => read_number(text).map(Amount::exactly),
    }
}

fn read_number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

fn describe(op: Op, reply: EngineReply) -> String {
    let left = reply.remaining;
    let is_range = op.amount().at_least() < op.amount().at_most();
    let granted = match (reply.outcome, reply.retry) {
        (DrawOutcome::Denied, Some(Retry::After(span))) => return format!("deny, retry in {span}"),
        (DrawOutcome::Denied, _) => return "deny, never".to_owned(),
        (DrawOutcome::Granted(units), _) if is_range => format!("allow {units}"),
        (DrawOutcome::Granted(_) | DrawOutcome::WouldGrant, _) => "allow".to_owned(),
    };
    if reply.delay.is_zero() {
        format!("{granted}, {left} left")
    } else {
        format!("{granted} after {}, {left} left", reply.delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_engines::KeyEngines;

    fn check(text: &str) {
        let scenarios = Scenario::parse("some.txt", text);
        scenarios.iter().for_each(|scenario| scenario.check(&mut KeyEngines::of_algorithms()));
    }

    fn panic_message(failing: impl FnOnce() + std::panic::UnwindSafe) -> String {
        *std::panic::catch_unwind(failing).unwrap_err().downcast::<String>().unwrap()
    }

    #[test]
    fn a_different_reply_is_reported_with_its_file_and_line() {
        let text = "# Two.\nfirst\n limit token_bucket 2/s\n 0s take 1 allow, 1 left\n\n\
                    second\n limit token_bucket 2/s\n 0s take 1 allow, 2 left\n";
        let message = panic_message(|| check(text));
        assert!(message.starts_with("some.txt:8: second"), "{message}");
        assert!(
            message.contains("expected  allow, 2 left") && message.contains("got  allow, 1 left"),
            "{message}"
        );
    }

    #[test]
    fn an_invalid_line_is_reported_with_its_file_and_line() {
        for (line, why) in [
            ("limit leaking_bucket 2/s", "no algorithm \"leaking_bucket\""),
            ("limit token_bucket 2/parsec", "period"),
            ("limit token_bucket", "an algorithm and a quota"),
            ("limit fixed_window Mars/Olympus 2/day", "IANA name"),
            ("soon take 1 allow, 1 left", "soon"),
            ("0s steal 1 allow, 1 left", "take, look, give and clear"),
            ("0s take one allow, 1 left", "\"one\" is not a number"),
            ("0s take 1 allow, 1 left | allow, 1 left", "write 1 replies, one per limit, not 2"),
        ] {
            let text = format!("name\n  limit token_bucket 2/s\n  {line}\n");
            let message = panic_message(move || check(&text));
            assert!(message.starts_with("some.txt:3: ") && message.contains(why), "{line}: {message}");
        }
        let message = panic_message(|| check("name\n  limit token_bucket 2/s\n"));
        assert!(message.contains("\"name\" has no steps"), "{message}");
        let message = panic_message(|| check("  0s take 1 allow, 1 left"));
        assert!(message.contains("some.txt:1") && message.contains("begins with its name"), "{message}");
    }
}

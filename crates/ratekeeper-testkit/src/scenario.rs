//! Scenarios as text: what happens when, and what the limits say.
//!
//! A file of the folder `scenarios` has any number of them. A line that is not indented names the next one; then come the
//! limits it is under, and what happens:
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
//! - `limit LAW QUOTA`, with the word `queue` behind `leaky_bucket`, and `first_hit` or the name of a zone behind
//!   `fixed_window`. Of several limits in a row a request must pass all; with `shadow` instead of `limit`, one of them
//!   refuses nobody. Limits that come later take the place of those before: the quota has changed.
//! - When: how long after midnight in universal time on Monday, 1 January 2024; spans are added with `+`, as in `89d+23h`.
//! - `take` or `look`, how many units, or between how many as in `2..5`; `give` and how many; `clear`. Then, where it
//!   matters, `within` how long a queue may delay it, and `as` which permit.
//! - What each limit says, in order, with `|` in between. What is granted of a range is told as in `allow 3, 0 left`.

use crate::engine::{Engine, EngineReply};
use crate::patience::{Must, fail};
use ratekeeper_core::{
    Algorithm, Align, Amount, DrawOptions, DrawOutcome, Draws, Leak, Limit, LogSize, Micros, Op, PermitId,
    Quota, Retry, Scope, Span, Zone,
};
use std::fmt;
use std::fs;
use std::path::Path;

/// Midnight in universal time, on a Monday that begins a month: 2024-01-01.
const START: Micros = Micros::new(1_704_067_200_000_000);

/// One scenario.
#[derive(Debug)]
pub(crate) struct Scenario {
    name: String,
    steps: Vec<ScenarioStep>,
}

/// One line of it.
#[derive(Debug)]
struct ScenarioStep {
    place: ScenarioPosition,
    now: Micros,
    request: Draws,
    expected: Vec<String>,
}

/// Where a line is.
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
    /// All there are.
    ///
    /// # Panics
    /// If a line can't be read: it says which and what to write.
    pub(crate) fn all() -> Vec<Scenario> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let files = fs::read_dir(folder).must("the scenarios can't be found");
        let mut paths: Vec<_> = files.map(|file| file.must("a file can't be found").path()).collect();
        paths.sort();
        let read = |path: &Path| {
            let text = fs::read_to_string(path).must("a file of scenarios can't be read");
            let name = path.file_name().unwrap_or_default().display();
            Scenario::parse(&format!("scenarios/{name}"), &text)
        };
        paths.iter().flat_map(|path| read(path)).collect()
    }

    /// Those of one file.
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
            let scenario = scenarios.last_mut().must(&format!("{place}: a scenario begins with its name"));
            match read_line(words, &mut limits) {
                Ok(None) => {}
                Ok(Some((now, request, expected))) => {
                    scenario.steps.push(ScenarioStep { place, now, request, expected });
                }
                Err(why) => fail(&format!("{place}: {words:?}: {why}")),
            }
        }
        if let Some(empty) = scenarios.iter().find(|scenario| scenario.steps.is_empty()) {
            fail(&format!("{file}: nothing happens in {:?}", empty.name));
        }
        scenarios
    }

    /// Runs it through an engine.
    ///
    /// # Panics
    /// If the engine says something else than the text.
    pub(crate) fn check(&self, engine: &mut impl Engine) {
        for ScenarioStep { place, now, request, expected } in &self.steps {
            let replies = engine.decide(*now, request);
            let said: Vec<_> =
                request.all().iter().zip(replies).map(|(draw, reply)| words(draw.act(), reply)).collect();
            assert!(
                said == *expected,
                "{place}: {}\n   expected  {}\n       said  {}",
                self.name,
                expected.join(" | "),
                said.join(" | ")
            );
        }
    }
}

/// The limits that requests are under.
#[derive(Debug, Default)]
struct ScenarioLimits {
    limits: Vec<(Limit, DrawOptions)>,
    /// Whether a request has come since: further limits are others.
    are_used: bool,
}

type ScenarioLine = (Micros, Draws, Vec<String>);

/// Reads a line: another limit, or what happens.
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
    let at = text.find(|c: char| c.is_ascii_digit()).ok_or("a limit has a law and a quota")?;
    let (law, quota) = text.split_at(at);
    let words: Vec<_> = law.split_whitespace().collect();
    let law = match words[..] {
        ["token_bucket"] => Algorithm::TokenBucket,
        ["leaky_bucket"] => Algorithm::LeakyBucket(Leak::Meter),
        ["leaky_bucket", "queue"] => Algorithm::LeakyBucket(Leak::Queue),
        ["fixed_window"] => Algorithm::FixedWindow(Align::Wall(Zone::UTC)),
        ["fixed_window", "first_hit"] => Algorithm::FixedWindow(Align::FirstHit),
        ["fixed_window", zone] => {
            Algorithm::FixedWindow(Align::Wall(zone.parse::<Zone>().map_err(|error| error.to_string())?))
        }
        ["sliding_window_counter"] => Algorithm::SlidingWindowCounter,
        ["sliding_window_log"] => Algorithm::SlidingWindowLog(LogSize::Modest),
        ["concurrency"] => Algorithm::Concurrency,
        _ => return Err(format!("there is no law {:?}", words.join(" "))),
    };
    let quota = quota.parse::<Quota>().map_err(|error| error.to_string())?;
    Limit::new(law, quota).map_err(|error| error.to_string())
}

fn read_step(line: &str, limits: &[(Limit, DrawOptions)]) -> Result<ScenarioLine, String> {
    let mut words = line.split_whitespace().peekable();
    let mut next = |what: &str| words.next().ok_or(format!("write {what} here"));
    let now = read_time(next("when it happens")?)?;
    let verb = next("what happens")?;
    let mut act = match verb {
        "take" => Op::Take(read_ask(next("how many units")?)?),
        "look" => Op::Look(read_ask(next("how many units")?)?),
        "give" => Op::Give(read_number(next("how many units")?)?),
        "clear" => Op::Clear,
        _ => return Err("it takes, looks, gives or clears".to_owned()),
    };
    let mut permit = PermitId::default();
    while let Some(option @ ("as" | "within")) = words.peek().copied() {
        words.next();
        let value = words.next().ok_or("an option has a value")?;
        match option {
            "as" => permit = PermitId(read_number(value)?),
            _ => act = wait(act, read_span(value)?),
        }
    }
    let rest: Vec<_> = words.collect();
    let expected: Vec<_> = rest.join(" ").split(" | ").map(str::to_owned).collect();
    if expected.len() != limits.len() {
        return Err(format!("{} limits say something, not {}", limits.len(), expected.len()));
    }
    let mut request = Draws::new();
    for (scope, (limit, terms)) in (0..).zip(limits) {
        request.push("the key".into(), Scope(scope), *limit, act, permit);
        request.set_terms(*terms);
    }
    Ok((now, request, expected))
}

/// The same, refused if a queue would delay it by more.
fn wait(act: Op, patience: Span) -> Op {
    match act {
        Op::Take(ask) => Op::Take(ask.within(patience)),
        Op::Look(ask) => Op::Look(ask.within(patience)),
        Op::Give(_) | Op::Clear => act,
    }
}

fn read_time(text: &str) -> Result<Micros, String> {
    text.split('+').try_fold(START, |at, span| Ok(at.plus(read_span(span)?)))
}

/// A span is written like a quota's period.
fn read_span(text: &str) -> Result<Span, String> {
    match text.trim_start_matches(|c: char| c.is_ascii_digit()) {
        unit if text.strip_suffix(unit) == Some("0") => Ok(Span::ZERO),
        _ => format!("1/{text}").parse::<Quota>().map(|quota| quota.per()).map_err(|error| error.to_string()),
    }
}

fn read_ask(text: &str) -> Result<Amount, String> {
    match text.split_once("..") {
        Some((least, most)) => Ok(Amount::between(read_number(least)?, read_number(most)?)),
        None => read_number(text).map(Amount::exactly),
    }
}

fn read_number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

fn words(act: Op, reply: EngineReply) -> String {
    let left = reply.remaining;
    let is_range = act.ask().at_least() < act.ask().at_most();
    let granted = match (reply.answer, reply.retry) {
        (DrawOutcome::Refused, Some(Retry::After(span))) => return format!("deny, retry in {span}"),
        (DrawOutcome::Refused, _) => return "deny, never".to_owned(),
        (DrawOutcome::Granted(units), _) if is_range => format!("allow {units}"),
        (DrawOutcome::Granted(_) | DrawOutcome::Spared, _) => "allow".to_owned(),
    };
    match reply.delay.is_zero() {
        true => format!("{granted}, {left} left"),
        false => format!("{granted} after {}, {left} left", reply.delay),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_engine::KeyEngines;

    fn check(text: &str) {
        let scenarios = Scenario::parse("some.txt", text);
        scenarios.iter().for_each(|scenario| scenario.check(&mut KeyEngines::of_cells()));
    }

    fn said_by(failing: impl FnOnce() + std::panic::UnwindSafe) -> String {
        *std::panic::catch_unwind(failing).unwrap_err().downcast::<String>().unwrap()
    }

    #[test]
    fn what_is_told_otherwise_is_named_with_its_place() {
        let text = "# Two.\nfirst\n limit token_bucket 2/s\n 0s take 1 allow, 1 left\n\nsecond\n limit token_bucket 2/s\n 0s take 1 \
                    allow, 2 left\n";
        let said = said_by(|| check(text));
        assert!(said.starts_with("some.txt:8: second"), "{said}");
        assert!(said.contains("expected  allow, 2 left") && said.contains("said  allow, 1 left"), "{said}");
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named_with_its_place() {
        for (line, why) in [
            ("limit leaking_bucket 2/s", "no law \"leaking_bucket\""),
            ("limit token_bucket 2/parsec", "period"),
            ("limit token_bucket", "a law and a quota"),
            ("limit fixed_window Mars/Olympus 2/day", "IANA name"),
            ("soon take 1 allow, 1 left", "soon"),
            ("0s steal 1 allow, 1 left", "takes, looks, gives or clears"),
            ("0s take one allow, 1 left", "\"one\" is no number"),
            ("0s take 1 allow, 1 left | allow, 1 left", "1 limits say something, not 2"),
        ] {
            let text = format!("name\n  limit token_bucket 2/s\n  {line}\n");
            let said = said_by(move || check(&text));
            assert!(said.starts_with("some.txt:3: ") && said.contains(why), "{line}: {said}");
        }
        let said = said_by(|| check("name\n  limit token_bucket 2/s\n"));
        assert!(said.contains("nothing happens in \"name\""), "{said}");
        let said = said_by(|| check("  0s take 1 allow, 1 left"));
        assert!(said.contains("some.txt:1") && said.contains("begins with its name"), "{said}");
    }
}

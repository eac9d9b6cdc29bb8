//! Scenarios as text: what happens when, and what the limit says.
//!
//! ```text
//!       0ms  take 1  allow, 2 left
//!       1ms  take 1  deny, retry in 99ms
//!     100ms  give 1  allow, 3 left
//!     5000ms take 9  deny, never
//! ```

use crate::cell::Cell;
use crate::engine::{Engine, Reply};
use crate::model::Model;
use tollgate_core::{Act, Answer, Ask, Limit, Micros, PermitId, Quota, Retry, Span};

/// Midnight in universal time, on a Monday that begins a month: 2024-01-01.
const START: Micros = Micros::new(1_704_067_200_000_000);

/// Runs a scenario through the laws, the model and every engine in `others`, and compares what each said with the text.
///
/// # Panics
/// If any of them says something else, or the text can't be read.
pub fn check(limit: &Limit, scenario: &str, others: &mut [&mut dyn Engine]) {
    let (mut cell, mut model) = (Cell::default(), Model::new(limit));
    let mut engines: Vec<&mut dyn Engine> = vec![&mut cell, &mut model];
    engines.extend(others.iter_mut().map(|engine| &mut **engine as &mut dyn Engine));
    for line in scenario.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (now, act, expected) = parse(line).unwrap_or_else(|| panic!("can't read the line {line:?}"));
        for (index, engine) in engines.iter_mut().enumerate() {
            let said = words(engine.act(now, limit, act, PermitId(0)));
            assert_eq!(said, expected, "engine {index} under {limit} at {line:?}");
        }
    }
}

fn parse(line: &str) -> Option<(Micros, Act, String)> {
    let mut rest = line;
    let mut next = || {
        let (word, behind) = rest.trim_start().split_once(char::is_whitespace)?;
        rest = behind;
        Some(word)
    };
    let at = START.plus(span(next()?)?);
    let verb = next()?;
    let act = match verb {
        "take" => Act::Take(Ask::exactly(next()?.parse().ok()?)),
        "look" => Act::Look(Ask::exactly(next()?.parse().ok()?)),
        "give" => Act::Give(next()?.parse().ok()?),
        "clear" => Act::Clear,
        _ => return None,
    };
    Some((at, act, rest.trim().to_owned()))
}

/// A span is written like a quota's period.
fn span(text: &str) -> Option<Span> {
    match text.trim_start_matches(|c: char| c.is_ascii_digit()) {
        unit if text.strip_suffix(unit) == Some("0") => Some(Span::ZERO),
        _ => format!("1/{text}").parse::<Quota>().ok().map(|quota| quota.per()),
    }
}

fn words(reply: Reply) -> String {
    let left = reply.remaining;
    match (reply.answer, reply.retry) {
        (Answer::Refused, Some(Retry::After(span))) => format!("deny, retry in {span}"),
        (Answer::Refused, _) => "deny, never".to_owned(),
        (Answer::Granted(_) | Answer::Spared, _) if !reply.delay.is_zero() => {
            format!("allow after {}, {left} left", reply.delay)
        }
        (Answer::Granted(_) | Answer::Spared, _) => format!("allow, {left} left"),
    }
}

//! `POST /check`: a body becomes a request, a decision becomes a body.

use super::fault::Fault;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::fmt;
use tollgate::{Clock, Decision, Limiter, MAX_KEY_BYTES, MemoryStore, Request, Retry};

/// Reads a check, has it decided, and words the decision.
pub(super) fn check<C: Clock>(limiter: &Limiter<MemoryStore<C>>, body: &[u8]) -> Result<CheckAnswer, Fault> {
    let asked = CheckRequest::read(body)?;
    let decision =
        limiter.check_now(Request::from(&*asked.client_key.0).cost(asked.cost.unwrap_or_default().0));
    Ok(CheckAnswer::new(&decision))
}

/// A check on the wire.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckRequest<'a> {
    #[serde(borrow)]
    client_key: ClientKey<'a>,
    #[serde(borrow)]
    #[expect(dead_code, reason = "no rule matches endpoints yet; clients may already send them")]
    endpoint: Option<Endpoint<'a>>,
    cost: Option<Cost>,
}

impl<'a> CheckRequest<'a> {
    fn read(body: &'a [u8]) -> Result<CheckRequest<'a>, Fault> {
        // Serde would also take the fields as a list, in an order that nobody was told.
        match body.trim_ascii_start().first() {
            Some(b'{') => serde_json::from_slice(body).map_err(|error| Fault::unreadable(&error)),
            _ => Err(Fault::NoObject),
        }
    }
}

/// Whom the request is counted for: never empty, never too long.
struct ClientKey<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for ClientKey<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ClientKey<'a>, D::Error> {
        let expected = "client_key to be text of 1 to 4096 bytes";
        let key = deserializer.deserialize_str(Text { expected })?;
        match key.len() {
            1..=MAX_KEY_BYTES => Ok(ClientKey(key)),
            length => Err(D::Error::invalid_length(length, &expected)),
        }
    }
}

/// What the request is for.
struct Endpoint<'a>(#[expect(dead_code, reason = "no rule matches endpoints yet")] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Endpoint<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Endpoint<'a>, D::Error> {
        deserializer.deserialize_str(Text { expected: "endpoint to be text" }).map(Endpoint)
    }
}

/// Text that stays where it is, unless it has escapes to be undone.
struct Text {
    expected: &'static str,
}

impl<'de> Visitor<'de> for Text {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// How many units the request takes.
struct Cost(u32);

impl Default for Cost {
    fn default() -> Cost {
        Cost(1)
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cost, D::Error> {
        deserializer.deserialize_u32(WholeNumber).map(Cost)
    }
}

struct WholeNumber;

impl Visitor<'_> for WholeNumber {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cost to be a whole number from 0 to 4294967295")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u32, E> {
        u32::try_from(number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }
}

/// A decision on the wire: these four fields, in this order.
#[derive(Serialize)]
pub(super) struct CheckAnswer {
    allowed: bool,
    remaining: u32,
    /// Unix seconds at which the binding limit has everything back, rounded up.
    reset_at: u64,
    /// Seconds, rounded up; nothing if it was allowed, or if it never can be.
    retry_after: Option<u64>,
}

impl CheckAnswer {
    fn new(decision: &Decision) -> CheckAnswer {
        CheckAnswer {
            allowed: decision.is_allowed(),
            remaining: decision.remaining(),
            // Where no limit binds, nothing was ever out.
            reset_at: decision.reset_at().unwrap_or_default().get().div_ceil(1_000_000),
            retry_after: match decision.retry() {
                // At least one: a client that is told 0 comes back at once and is refused again.
                Some(Retry::After(wait)) => Some(wait.secs_up().max(1)),
                Some(Retry::Never) | None => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tollgate::{Cap, ManualClock, Micros, Span};

    /// A limiter whose clock begins a quarter of a second past 1 700 000 000 and then stands still.
    fn limiter(limits: &[&str]) -> (Limiter<MemoryStore<Arc<ManualClock>>>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_250_000)));
        let store = MemoryStore::with(Arc::clone(&clock), Cap::keys(100)).unwrap();
        (Limiter::with_store(limits.to_vec(), store).unwrap(), clock)
    }

    fn answer<C: Clock>(limiter: &Limiter<MemoryStore<C>>, body: &[u8]) -> String {
        check(limiter, body)
            .map_or_else(|fault| fault.to_string(), |answer| serde_json::to_string(&answer).unwrap())
    }

    #[track_caller]
    fn refused(body: impl AsRef<[u8]>, said: &str) {
        let (limiter, _) = limiter(&["100/min"]);
        let answer = answer(&limiter, body.as_ref());
        assert!(answer.starts_with(said), "{answer:?} does not begin with {said:?}");
        assert_eq!(limiter.store().stats().keys, 0, "a body that can't be read costs nothing");
    }

    #[test]
    fn a_decision_has_four_fields_in_whole_seconds_rounded_up() {
        let (limiter, clock) = limiter(&["100/min"]);
        let ask = |body: &str| answer(&limiter, body.as_bytes());
        assert_eq!(
            ask(r#"{"client_key":"a"}"#),
            r#"{"allowed":true,"remaining":99,"reset_at":1700000001,"retry_after":null}"#
        );
        assert_eq!(
            ask(r#" {"cost": 99, "endpoint": "/orders", "client_key": "a"} "#),
            r#"{"allowed":true,"remaining":0,"reset_at":1700000061,"retry_after":null}"#
        );
        assert_eq!(
            ask(r#"{"client_key":"a","cost":2}"#),
            r#"{"allowed":false,"remaining":0,"reset_at":1700000061,"retry_after":2}"#
        );
        clock.advance(Span::millis(1199));
        assert_eq!(
            ask(r#"{"client_key":"a","cost":2}"#),
            r#"{"allowed":false,"remaining":1,"reset_at":1700000061,"retry_after":1}"#
        );
        clock.advance(Span::millis(1));
        assert_eq!(
            ask(r#"{"client_key":"a","cost":2}"#),
            r#"{"allowed":true,"remaining":0,"reset_at":1700000062,"retry_after":null}"#
        );
    }

    #[test]
    fn a_cost_that_never_fits_has_no_time_to_come_back_at() {
        let (limiter, _) = limiter(&["100/min"]);
        assert_eq!(
            answer(&limiter, br#"{"client_key":"a","cost":4294967295}"#),
            r#"{"allowed":false,"remaining":100,"reset_at":1700000001,"retry_after":null}"#
        );
        assert_eq!(
            answer(&limiter, br#"{"client_key":"a","cost":0}"#),
            r#"{"allowed":true,"remaining":100,"reset_at":1700000001,"retry_after":null}"#
        );
    }

    #[test]
    fn a_key_is_what_its_escapes_stand_for() {
        let (limiter, _) = limiter(&["1/min"]);
        assert!(
            answer(&limiter, br#"{"client_key":"caf\u00e9","endpoint":null,"cost":null}"#).contains("true")
        );
        assert!(
            answer(&limiter, "{\"client_key\":\"café\",\"endpoint\":\"\\n\"}".as_bytes()).contains("false")
        );
        let longest = format!(r#"{{"client_key":"{}"}}"#, "é".repeat(2048));
        assert!(answer(&limiter, longest.as_bytes()).contains("true"));
    }

    #[test]
    fn a_body_that_cannot_be_read_is_refused_with_the_reason() {
        for body in ["", " ", "alice", "7", "null", r#"["alice"]"#, r#""alice""#] {
            refused(body, "the body is not a JSON object: write one like {\"client_key\"");
        }
        refused("{", "cannot read the body: EOF while parsing an object at line 1 column 1; write it like {");
        refused(
            r#"{"client_key":"a"} x"#,
            "cannot read the body: trailing characters at line 1 column 20; write",
        );
        refused("{}", "cannot read the body: missing field `client_key` at line 1 column 2; write");
        refused(
            r#"{"client_key":"a","client_key":"b"}"#,
            "cannot read the body: duplicate field `client_key`",
        );
        refused(
            r#"{"client_key":"a","weight":2}"#,
            "cannot read the body: unknown field `weight`, expected one of `client_key`, `endpoint`, `cost`",
        );
        let name = "x".repeat(5000);
        refused(format!(r#"{{"{name}":1}}"#), "cannot read the body: unknown field `xxx");
        let length = |bytes: usize| {
            format!(
                "cannot read the body: invalid length {bytes}, expected client_key to be text of 1 to 4096 bytes"
            )
        };
        refused(r#"{"client_key":""}"#, &length(0));
        refused(format!(r#"{{"client_key":"{}"}}"#, "é".repeat(2049)), &length(4098));
        refused(
            r#"{"client_key":7}"#,
            "cannot read the body: invalid type: integer `7`, expected client_key to be text",
        );
        refused(
            r#"{"client_key":null}"#,
            "cannot read the body: invalid type: null, expected client_key to be text",
        );
        refused(
            r#"{"client_key":"a","endpoint":[]}"#,
            "cannot read the body: invalid type: sequence, expected endpoint",
        );
        refused(b"{\"client_key\":\"\xff\"}", "cannot read the body: invalid unicode code point at line 1");
        refused(r#"{"client_key":"\ud800"}"#, "cannot read the body: ");
        refused(format!(r#"{{"client_key":{}"#, "[".repeat(60_000)), "cannot read the body: ");
    }

    #[test]
    fn a_cost_that_is_no_count_is_refused_with_the_reason() {
        for cost in [
            "-1",
            "0.5",
            "1.0",
            "4294967296",
            "18446744073709551616",
            "1e3",
            "-1e300",
            r#""1""#,
            "true",
            "[1]",
        ] {
            refused(format!(r#"{{"client_key":"a","cost":{cost}}}"#), "cannot read the body: invalid ");
            let (limiter, _) = limiter(&["100/min"]);
            let said = answer(&limiter, format!(r#"{{"client_key":"a","cost":{cost}}}"#).as_bytes());
            assert!(said.contains(", expected cost to be a whole number from 0 to 4294967295"), "{said}");
        }
        refused(r#"{"client_key":"a","cost":1e999}"#, "cannot read the body: number out of range");
        refused(r#"{"client_key":"a","cost":01}"#, "cannot read the body: invalid number");
    }
}

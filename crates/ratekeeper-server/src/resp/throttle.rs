//! `CL.THROTTLE`: a limit given in each call, as in redis-cell.
//!
//! A bucket of `max_burst + 1` units is refilled with `count_per_period` units per `period`. Calls use the same few
//! limits again and again, so each thread caches the last ones it has built. The store bounds how many different limits
//! are kept, and drops the least recently used.

use super::arguments::Arguments;
use super::commands::CommandEntry;
use super::error::CommandError;
use super::reply::Printable;
use ratekeeper::rules::{CheckRequest, RequestField, Verb};
use ratekeeper::{Algorithm, Limit, Quota, Span};
use std::cell::RefCell;

/// The largest burst. It leaves room for a quantity above the capacity, which is denied.
const MAX_BURST: u32 = u32::MAX - 2;
/// The number of limits that a thread caches.
const CACHED_LIMITS: usize = 64;

/// A parsed call.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThrottleCall<'a> {
    pub(super) key: &'a str,
    pub(super) cost: u32,
    pub(super) verb: Verb,
    pub(super) params: ThrottleParams,
}

/// The limit of a call, as the client writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ThrottleParams {
    burst: i64,
    count: i64,
    period: i64,
}

impl<'a> ThrottleCall<'a> {
    #[inline]
    pub(super) fn read(args: Arguments<'a>) -> Result<ThrottleCall<'a>, CommandError<'a>> {
        let quantity = match args.len() {
            5 => 1,
            6 => integer_argument("quantity", args, 5, "1")?,
            _ => return Err(wrong_arity(args.name())),
        };
        let params = ThrottleParams {
            burst: integer_argument("max_burst", args, 2, "15")?,
            count: integer_argument("count_per_period", args, 3, "30")?,
            period: integer_argument("period", args, 4, "60")?,
        };
        // A saturated check is denied anyway, and a saturated refund returns all that was taken.
        let cost = u32::try_from(quantity.unsigned_abs()).unwrap_or(u32::MAX);
        let verb = match quantity {
            ..0 => Verb::Refund,
            0 => Verb::Peek,
            1.. => Verb::Check,
        };
        Ok(ThrottleCall { key: key(args.get(1).unwrap_or_default())?, cost, verb, params })
    }

    /// The request to decide.
    #[inline]
    pub(super) fn request(&self) -> CheckRequest<'a> {
        CheckRequest { cost: self.cost, ..CheckRequest::new(self.key) }
    }
}

impl ThrottleParams {
    /// Passes the limit with these parameters to `visit`.
    #[inline]
    pub(super) fn with_limit<T>(self, visit: impl FnOnce(&Limit) -> T) -> Result<T, CommandError<'static>> {
        thread_local! {
            static LIMITS: RefCell<[Option<(ThrottleParams, Limit)>; CACHED_LIMITS]> =
                const { RefCell::new([None; CACHED_LIMITS]) };
        }
        LIMITS.with_borrow_mut(|limits| {
            let slot = &mut limits[self.cache_slot()];
            let limit = match slot {
                Some((params, limit)) if *params == self => limit,
                slot => &mut slot.insert((self, self.limit()?)).1,
            };
            Ok(visit(limit))
        })
    }

    /// The slot of the thread's cache.
    fn cache_slot(self) -> usize {
        let ThrottleParams { burst, count, period } = self;
        let mixed = burst.wrapping_mul(31).wrapping_add(count).wrapping_mul(31).wrapping_add(period);
        // Fibonacci hashing: the upper bits of the product depend on all input bits.
        let spread = mixed.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        usize::try_from(spread).unwrap_or(0)
    }

    #[cold]
    fn limit(self) -> Result<Limit, CommandError<'static>> {
        for (what, number, least) in
            [("max_burst", self.burst, 0), ("count_per_period", self.count, 1), ("period", self.period, 1)]
        {
            match number {
                ..0 => return Err(CommandError::Negative { what, least }),
                0 if least > 0 => return Err(CommandError::ZeroRate { what }),
                _ => {}
            }
        }
        let most = |what, most: u64| move |_| CommandError::TooLarge { what, most };
        let burst = u32::try_from(self.burst).ok().filter(|burst| *burst <= MAX_BURST);
        let capacity = burst.ok_or(()).map_err(most("max_burst", MAX_BURST.into()))? + 1;
        let longest = Span::MAX.get() / 1_000_000;
        let period = u64::try_from(self.period).ok().filter(|period| *period <= longest);
        let period = period.ok_or(()).map_err(most("period", longest))?;
        let count = self.count.unsigned_abs();
        // A count above `u32` may fit once the fraction is reduced: 9 billion in 60 s are 150 million in 1 s.
        let common = if count > u64::from(u32::MAX) { gcd(count, period) } else { 1 };
        let amount = u32::try_from(count / common).map_err(|_| ());
        let amount = amount.map_err(most("count_per_period", u32::MAX.into()))?;
        let quota =
            Quota::new(amount, Span::secs(period / common)).and_then(|quota| quota.with_burst(capacity));
        let quota = quota.expect("none of the numbers is zero");
        Limit::new(Algorithm::TokenBucket, quota).map_err(CommandError::Limit)
    }
}

/// Reads a key: UTF-8 text that is neither empty nor too long, as on every listener.
#[inline]
fn key(bytes: &[u8]) -> Result<&str, CommandError<'_>> {
    if bytes.is_empty() {
        return Err(CommandError::EmptyKey);
    }
    let key = RequestField::ClientKey.read(bytes)?;
    RequestField::ClientKey.check(key)?;
    Ok(key)
}

#[cold]
pub(super) fn wrong_arity<'a>(name: &[u8]) -> CommandError<'a> {
    CommandError::WrongArity(CommandEntry::find(name).expect("the command was found by this name"))
}

/// Parses the argument at `index` as an integer; `like` is an example for the error message.
#[inline]
fn integer_argument<'a>(
    what: &'static str,
    args: Arguments<'a>,
    index: usize,
    like: &'static str,
) -> Result<i64, CommandError<'a>> {
    let bytes = args.get(index).unwrap_or_default();
    parse_integer(bytes).ok_or(CommandError::NotAnInteger { what, found: Printable(bytes), like })
}

/// Parses an integer with an optional sign.
#[inline]
pub(super) fn parse_integer(bytes: &[u8]) -> Option<i64> {
    // Fast path: up to 18 digits can't overflow.
    if let 1..=18 = bytes.len()
        && bytes.iter().all(u8::is_ascii_digit)
    {
        return Some(bytes.iter().fold(0, |value, byte| value * 10 + i64::from(byte - b'0')));
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, encode_words, replies_to, test_shared};
    use super::*;

    #[track_caller]
    fn throttle(script: &str) {
        check("default: {limit: 1/day}", None, script);
    }

    /// Replies recorded from redis-cell.
    #[test]
    fn replies_are_those_of_redis_cell() {
        throttle(
            "CL.THROTTLE a 15 30 60 => 0 16 15 -1 2
             CL.THROTTLE a 15 30 60 1 => 0 16 14 -1 4
             CL.THROTTLE a 15 30 60 5 => 0 16 9 -1 14
             CL.THROTTLE a 15 30 60 9 => 0 16 0 -1 32
             CL.THROTTLE a 15 30 60 1 => 1 16 0 2 32
             CL.THROTTLE a 15 30 60 1 => 1 16 0 2 32

             CL.THROTTLE q 9 10 60 0 => 0 10 10 -1 0
             CL.THROTTLE q 9 10 60 10 => 0 10 0 -1 60
             CL.THROTTLE q 9 10 60 0 => 0 10 0 -1 60
             CL.THROTTLE q 9 10 60 1 => 1 10 0 6 60
             CL.THROTTLE q2 9 10 60 11 => 1 10 10 -1 0
             CL.THROTTLE q2 9 10 60 1000000 => 1 10 10 -1 0
             CL.THROTTLE q2 9 10 60 1 => 0 10 9 -1 6

             CL.THROTTLE z 0 1 1 => 0 1 0 -1 1
             CL.THROTTLE z 0 1 1 => 1 1 0 1 1
             wait 1100
             CL.THROTTLE z 0 1 1 => 0 1 0 -1 1

             CL.THROTTLE n 4 5 60 3 => 0 5 2 -1 36
             CL.THROTTLE n 4 5 60 -1 => 0 5 3 -1 24

             CL.THROTTLE r1 10 1000 1 => 0 11 10 -1 1

             CL.THROTTLE t 4 5 60 2 => 0 5 3 -1 24
             cl.throttle lc 4 5 60 => 0 5 4 -1 12
             Cl.Throttle lc 4 5 60 => 0 5 3 -1 24",
        );
    }

    /// Calls for which redis-cell fails or miscounts.
    #[test]
    fn replies_differ_where_redis_cell_fails_or_miscounts() {
        throttle(
            // A bucket never holds more than its capacity.
            "CL.THROTTLE n 4 5 60 3 => 0 5 2 -1 36
             CL.THROTTLE n 4 5 60 -10 => 0 5 5 -1 0
             CL.THROTTLE n 4 5 60 1 => 0 5 4 -1 12
             CL.THROTTLE n 4 5 60 -9223372036854775808 => 0 5 5 -1 0
             CL.THROTTLE never-seen 4 5 60 -1 => 0 5 5 -1 0

             CL.THROTTLE r2 10 1001 1 => 0 11 10 -1 1
             CL.THROTTLE r3 10 5000 1 => 0 11 10 -1 1
             CL.THROTTLE r4 10 1000000 60 => 0 11 10 -1 1
             CL.THROTTLE r5 1000000 10000000 1 => 0 1000001 1000000 -1 1
             CL.THROTTLE r5 1000000 10000000 1 1000000 => 0 1000001 0 -1 1
             CL.THROTTLE r5 1000000 10000000 1 => 1 1000001 0 1 1
             wait 1
             CL.THROTTLE r5 1000000 10000000 1 10001 => 1 1000001 10000 1 1
             CL.THROTTLE r5 1000000 10000000 1 10000 => 0 1000001 0 -1 1

             CL.THROTTLE p 4 5 60 5 => 0 5 0 -1 60
             CL.THROTTLE p 9 10 60 1 => 1 10 0 6 60
             CL.THROTTLE p 9 100 60 1 => 1 10 0 1 6
             wait 600
             CL.THROTTLE p 9 100 60 1 => 0 10 0 -1 6",
        );
    }

    #[test]
    fn bad_arguments_say_what_to_write_and_take_nothing() {
        throttle(
            "CL.THROTTLE => -ERR wrong number of arguments for 'cl.throttle' command: write CL.THROTTLE key max_burst \
                count_per_period period [quantity]
             CL.THROTTLE k => -ERR wrong number of arguments...
             CL.THROTTLE k 1 => -ERR wrong number of arguments...
             CL.THROTTLE k 1 2 => -ERR wrong number of arguments...
             CL.THROTTLE k 1 2 3 4 5 => -ERR wrong number of arguments...
             CL.THROTTLE k x 2 3 => -ERR max_burst is not a whole number: 'x': write digits, like 15
             CL.THROTTLE k 1 x 3 => -ERR count_per_period is not a whole number: 'x': write digits, like 30
             CL.THROTTLE k 1 2 x => -ERR period is not a whole number: 'x': write digits, like 60
             CL.THROTTLE k 1 2 3 x => -ERR quantity is not a whole number: 'x': write digits, like 1
             CL.THROTTLE k 1.5 2 3 => -ERR max_burst is not a whole number: '1.5'...
             CL.THROTTLE k '' 2 3 => -ERR max_burst is not a whole number: ''...
             CL.THROTTLE k - 2 3 => -ERR max_burst is not a whole number...
             CL.THROTTLE k 0x1 2 3 => -ERR max_burst is not a whole number...
             CL.THROTTLE k 1e3 2 3 => -ERR max_burst is not a whole number...
             CL.THROTTLE k 1 0 60 => -ERR zero rates are not supported: count_per_period is 0: write at least 1
             CL.THROTTLE k 1 60 0 => -ERR zero rates are not supported: period is 0: write at least 1
             CL.THROTTLE k -1 10 60 => -ERR max_burst is negative: write at least 0
             CL.THROTTLE k 1 -10 60 => -ERR count_per_period is negative: write at least 1
             CL.THROTTLE k 1 10 -60 => -ERR period is negative: write at least 1
             CL.THROTTLE k 99999999999999999999 10 60 => -ERR max_burst is not a whole number: '99999999999999999999'...
             CL.THROTTLE k 4294967294 10 60 => -ERR max_burst is too large: write at most 4294967293
             CL.THROTTLE k 1 9223372036854775807 60 => -ERR count_per_period is too large: write at most 4294967295
             CL.THROTTLE k 1 10 9007199255 => -ERR period is too large: write at most 9007199254
             CL.THROTTLE k 1000 1 86400000 => -ERR 1 per 1000 days burst 1001 would take 285 years to be full again...
             CL.THROTTLE k 4294967290 4294967291 3000000000 => -ERR 4294967291 per 50000000min burst \
                4294967291 is too fine...
             CL.THROTTLE '' 15 30 60 => -ERR key is empty: write the client to count for
             CL.THROTTLE k 15 30 60 => 0 16 15 -1 2",
        );
        let (shared, _) = test_shared("default: {limit: 1/day}", None);
        let key = |key: &[u8]| {
            replies_to(&shared, &super::super::testing::encode_array([b"CL.THROTTLE", key, b"1", b"1", b"1"]))
                .0
        };
        assert_eq!(key(&[b'k'; 4097]), "-ERR key has 4097 bytes: write at most 4096\r\n");
        assert_eq!(key(&[b'k'; 4096]), "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:1\r\n");
        assert_eq!(key(b"\xff"), "-ERR key is not UTF-8 text: send other bytes as hex or base64\r\n");
    }

    #[test]
    fn large_numbers_are_exact() {
        throttle(
            "CL.THROTTLE a 4294967293 4294967295 1 4294967294 => 0 4294967294 0 -1 1
             CL.THROTTLE b 4294967293 4294967295 1 4294967295 => 1 4294967294 4294967294 -1 0
             CL.THROTTLE b 4294967293 4294967295 1 9223372036854775807 => 1 4294967294 4294967294 -1 0
             CL.THROTTLE c 0 9000000000 60 => 0 1 0 -1 1
             CL.THROTTLE d +15 0030 060 +1 => 0 16 15 -1 2
             CL.THROTTLE e 0 1 3153599999 => 0 1 0 -1 3153599999",
        );
    }

    /// Neither rules nor access lists apply to `CL.THROTTLE`, and its keys are counted apart from those of rules.
    #[test]
    fn throttle_calls_are_independent_of_rules() {
        check(
            "{default: {limit: 2/h}, deny: [refused]}",
            None,
            "RK.CHECK a / => 0 2 1 -1 1800
             CL.THROTTLE a 0 1 3600 => 0 1 0 -1 3600
             RK.CHECK a / => 0 2 0 -1 3600
             CL.THROTTLE refused 0 1 60 => 0 1 0 -1 60
             RK.CHECK refused / => 1 0 0 -1 0",
        );
    }

    /// A client that invents parameter sets must not use up a table, so that new sets fail until a restart.
    #[test]
    fn new_parameter_sets_work_however_many_there_were() {
        let (shared, _) = test_shared("default: {limit: 1/day}", None);
        assert!(
            replies_to(&shared, &encode_words("CL.THROTTLE early 1 1 86400 2")).0.starts_with("*5\r\n:0\r\n")
        );
        let sets = 150_000;
        for first in (0..sets).step_by(1000) {
            let mut calls = Vec::new();
            for burst in first..first + 1000 {
                calls.extend(encode_words(&format!("CL.THROTTLE a {burst} 1 1")));
            }
            assert_eq!(replies_to(&shared, &calls).0.matches("*5\r\n").count(), 1000);
        }
        let next = encode_words("CL.THROTTLE b 2 1 3600").repeat(10);
        assert_eq!(replies_to(&shared, &next).0.matches("*5\r\n:0\r\n").count(), 3);
        let early = replies_to(&shared, &encode_words("CL.THROTTLE early 1 1 86400")).0;
        assert!(early.starts_with("*5\r\n:1\r\n"), "a set that is used again still counts: {early}");
    }

    #[test]
    fn integers_are_parsed_like_rust_does() {
        for text in
            ["0", "7", "-7", "+7", "007", "999999999999999999", "9223372036854775807", "-9223372036854775808"]
        {
            assert_eq!(parse_integer(text.as_bytes()), text.parse().ok(), "{text}");
        }
        for text in ["", "-", "+", " 1", "1 ", "1_0", "9223372036854775808", "é", "1\0"] {
            assert_eq!(parse_integer(text.as_bytes()), None, "{text}");
        }
    }
}

//! `CL.THROTTLE`: a limit that comes with each call, as redis-cell has it.
//!
//! A bucket of `max_burst + 1` units is refilled at `count_per_period` for each `period`. The same few limits come again
//! and again, so each thread remembers the last ones it worked out. How many different ones are kept is up to the store, which
//! drops those that were used least recently: nothing is kept here for each.

use super::commands::CommandEntry;
use super::decode::Arguments;
use super::error::CommandError;
use super::reply::Shown;
use ratekeeper::rules::{CheckRequest, Verb};
use ratekeeper::{Algorithm, Limit, MAX_KEY_BYTES, Quota, Span};
use std::cell::RefCell;

/// The largest burst: a quantity above what fits can still be told from one that fits.
const MAX_BURST: u32 = u32::MAX - 2;
/// How many limits a thread remembers.
const REMEMBERED: usize = 64;

/// What one call asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThrottleCall<'a> {
    pub(super) key: &'a str,
    pub(super) cost: u32,
    pub(super) verb: Verb,
    pub(super) terms: ThrottleParams,
}

/// How much per how long, as a client writes it.
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
            6 => number("quantity", args, 5, "1")?,
            _ => return Err(wrong_arity(args.name())),
        };
        let terms = ThrottleParams {
            burst: number("max_burst", args, 2, "15")?,
            count: number("count_per_period", args, 3, "30")?,
            period: number("period", args, 4, "60")?,
        };
        // More than fits is more than fits; more than is out gives back all that is.
        let cost = u32::try_from(quantity.unsigned_abs()).unwrap_or(u32::MAX);
        let verb = match quantity {
            ..0 => Verb::Refund,
            0 => Verb::Peek,
            1.. => Verb::Check,
        };
        Ok(ThrottleCall { key: key(args.get(1).unwrap_or_default())?, cost, verb, terms })
    }

    /// The request that it stands for.
    #[inline]
    pub(super) fn request(&self) -> CheckRequest<'a> {
        CheckRequest { cost: self.cost, ..CheckRequest::new(self.key) }
    }
}

impl ThrottleParams {
    /// Has `use_it` look at the limit that these are.
    #[inline]
    pub(super) fn with_limit<T>(self, use_it: impl FnOnce(&Limit) -> T) -> Result<T, CommandError<'static>> {
        thread_local! {
            static LIMITS: RefCell<[Option<(ThrottleParams, Limit)>; REMEMBERED]> = const { RefCell::new([None; REMEMBERED]) };
        }
        LIMITS.with_borrow_mut(|limits| {
            let place = &mut limits[self.place()];
            let limit = match place {
                Some((terms, limit)) if *terms == self => limit,
                place => &mut place.insert((self, self.limit()?)).1,
            };
            Ok(use_it(limit))
        })
    }

    /// Where a thread remembers the limit.
    fn place(self) -> usize {
        let ThrottleParams { burst, count, period } = self;
        let mixed = burst.wrapping_mul(31).wrapping_add(count).wrapping_mul(31).wrapping_add(period);
        // The upper bits of such a product depend on all that went in.
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
        // A rate that is too large for its words may have smaller ones: 9 billion in 60 s are 150 million in 1 s.
        let common = if count > u64::from(u32::MAX) { gcd(count, period) } else { 1 };
        let amount = u32::try_from(count / common).map_err(|_| ());
        let amount = amount.map_err(most("count_per_period", u32::MAX.into()))?;
        let quota =
            Quota::new(amount, Span::secs(period / common)).and_then(|quota| quota.with_burst(capacity));
        let quota = quota.expect("none of its numbers is zero");
        Limit::new(Algorithm::TokenBucket, quota).map_err(CommandError::Limit)
    }
}

/// A key as every edge has it: text, not empty, not too long.
#[inline]
pub(super) fn key(bytes: &[u8]) -> Result<&str, CommandError<'_>> {
    match bytes.len() {
        0 => Err(CommandError::NoKey),
        1..=MAX_KEY_BYTES => std::str::from_utf8(bytes).map_err(|_| CommandError::NotText { what: "key" }),
        bytes => Err(CommandError::LongKey { bytes }),
    }
}

#[cold]
pub(super) fn wrong_arity<'a>(name: &[u8]) -> CommandError<'a> {
    CommandError::Arity(CommandEntry::find(name).expect("it was recognised by its name"))
}

/// The argument at `index` as a whole number; `like` is an example of one.
#[inline]
fn number<'a>(
    what: &'static str,
    args: Arguments<'a>,
    index: usize,
    like: &'static str,
) -> Result<i64, CommandError<'a>> {
    let bytes = args.get(index).unwrap_or_default();
    whole(bytes).ok_or(CommandError::NotANumber { what, found: Shown(bytes), like })
}

/// Reads a whole number, with a sign if it has one.
#[inline]
pub(super) fn whole(bytes: &[u8]) -> Option<i64> {
    // Nearly all numbers have few digits, which can't overflow.
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
    use super::super::testing::{check, office, told, words};
    use super::*;

    #[track_caller]
    fn throttle(script: &str) {
        check("default: {limit: 1/day}", None, script);
    }

    /// What redis-cell itself answered to the same calls.
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

    /// Where redis-cell fails or loses count.
    #[test]
    fn replies_differ_from_redis_cell_only_for_the_better() {
        throttle(
            // It can't store more than a full bucket.
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
             CL.THROTTLE k 4294967290 4294967291 3000000000 => -ERR 4294967291 per 50000000min burst 4294967291 is too fine...
             CL.THROTTLE '' 15 30 60 => -ERR key is empty: say whom to count for
             CL.THROTTLE k 15 30 60 => 0 16 15 -1 2",
        );
        let (office, _) = office("default: {limit: 1/day}", None);
        let key = |key: &[u8]| {
            told(&office, &super::super::testing::list([b"CL.THROTTLE", key, b"1", b"1", b"1"])).0
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

    /// No rule binds it, not even a list; keys of rules and of calls are counted apart.
    #[test]
    fn a_limit_that_comes_with_its_call_is_nobody_elses() {
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

    /// Trap: one client makes up so many parameter sets that every new one is an error until a restart.
    #[test]
    fn however_many_parameter_sets_there_were_the_next_one_holds() {
        let (office, _) = office("default: {limit: 1/day}", None);
        assert!(told(&office, &words("CL.THROTTLE early 1 1 86400 2")).0.starts_with("*5\r\n:0\r\n"));
        let sets = 150_000;
        for first in (0..sets).step_by(1000) {
            let mut calls = Vec::new();
            for burst in first..first + 1000 {
                calls.extend(words(&format!("CL.THROTTLE a {burst} 1 1")));
            }
            assert_eq!(told(&office, &calls).0.matches("*5\r\n").count(), 1000);
        }
        let next = words("CL.THROTTLE b 2 1 3600").repeat(10);
        assert_eq!(told(&office, &next).0.matches("*5\r\n:0\r\n").count(), 3);
        let early = told(&office, &words("CL.THROTTLE early 1 1 86400")).0;
        assert!(early.starts_with("*5\r\n:1\r\n"), "a set that comes back still counts: {early}");
    }

    #[test]
    fn numbers_are_read_as_rust_reads_them() {
        for text in
            ["0", "7", "-7", "+7", "007", "999999999999999999", "9223372036854775807", "-9223372036854775808"]
        {
            assert_eq!(whole(text.as_bytes()), text.parse().ok(), "{text}");
        }
        for text in ["", "-", "+", " 1", "1 ", "1_0", "9223372036854775808", "é", "1\0"] {
            assert_eq!(whole(text.as_bytes()), None, "{text}");
        }
    }
}

//! The same comparison with real servers, whose own clock the laws are then given.

use super::fake::FakeValueKind;
use super::orders::{self, Ledger};
use super::twin::Twin;
use super::{ClockSteps, RandomTurn, compare_beside, fill_turn, normalized, settle_beside, turns};
use crate::redis::script;
use crate::redis::script_call::ScriptCall;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};
use ratekeeper_core::{Algorithm, Align, Draws, Leak, Limit, LogSize, Micros, Zone};
use ratekeeper_testkit::servers::{Brand, RedisServer, RespClient, RespReply};

/// A connection to a server that has the script.
pub(super) struct ServerFixture {
    pub(super) server: RedisServer,
    connection: RespClient,
}

impl ServerFixture {
    pub(super) fn start(brand: Brand) -> ServerFixture {
        let server = RedisServer::setup(brand).start();
        let mut connection = server.connect().unwrap();
        let digest = connection.ask(&["SCRIPT", "LOAD", script::SOURCE]).unwrap().text();
        assert_eq!(digest, script::digest(), "a server knows the script by the name that we call it");
        ServerFixture { server, connection }
    }

    /// Runs the script on a parcel.
    pub(super) fn run(&mut self, parcel: &ScriptCall) -> Vec<u8> {
        let count = parcel.key_names().count().to_string();
        let mut words: Vec<&[u8]> = vec![b"EVALSHA", script::digest().as_bytes(), count.as_bytes()];
        words.extend(parcel.key_names());
        words.extend(parcel.arguments());
        match self.connection.ask(&words).unwrap() {
            RespReply::Bulk(bytes) => bytes,
            other => panic!("the script said {other:?}"),
        }
    }

    pub(super) fn ask<A: AsRef<[u8]>>(&mut self, words: &[A]) -> RespReply {
        self.connection.ask(words).unwrap().done()
    }

    pub(super) fn now(&mut self) -> Micros {
        let time = self.ask(&["TIME"]);
        let number = |index: usize| u64::try_from(time.array()[index].integer()).unwrap();
        Micros::new(number(0) * 1_000_000 + number(1))
    }

    /// What is kept under a name, and for how many milliseconds more.
    fn kept(&mut self, name: &[u8], like: &FakeValueKind) -> Option<(FakeValueKind, i64)> {
        let bulk = |reply: &RespReply| match reply {
            RespReply::Bulk(bytes) => bytes.clone(),
            other => panic!("{other:?} is no string"),
        };
        let ttl = self.ask(&[b"PTTL", name]).integer();
        if ttl == -2 {
            return None;
        }
        let data = match like {
            FakeValueKind::Text(_) => FakeValueKind::Text(bulk(&self.ask(&[b"GET", name]))),
            FakeValueKind::List(_) => FakeValueKind::List(
                self.ask(&[b"LRANGE", name, b"0", b"-1"]).array().iter().map(bulk).collect(),
            ),
            FakeValueKind::Sorted(_) => {
                let reply = self.ask(&[b"ZRANGE", name, b"0", b"-1", b"WITHSCORES"]);
                let pairs = reply.array().chunks(2);
                let mut set: Vec<_> =
                    pairs.map(|pair| (u64::try_from(pair[1].integer()).unwrap(), bulk(&pair[0]))).collect();
                set.sort();
                FakeValueKind::Sorted(set)
            }
        };
        Some((normalized(&data), ttl))
    }
}

/// Limits that refill within the milliseconds that a test takes.
fn quick_limits() -> Vec<Limit> {
    let limit = |law, quota: &str| Limit::new(law, quota.parse().unwrap()).unwrap();
    let wall = Algorithm::FixedWindow(Align::Wall(Zone::UTC));
    vec![
        limit(Algorithm::TokenBucket, "2000/s burst 4"),
        limit(Algorithm::TokenBucket, "700/s burst 9"),
        limit(Algorithm::LeakyBucket(Leak::Meter), "3000/s burst 3"),
        limit(Algorithm::LeakyBucket(Leak::Queue), "1100/s burst 5"),
        limit(Algorithm::FixedWindow(Align::FirstHit), "5 per 10ms"),
        limit(wall, "9 per 20ms"),
        limit(Algorithm::FixedWindow(Align::Wall("Europe/Berlin".parse().unwrap())), "12/day"),
        limit(Algorithm::SlidingWindowCounter, "6 per 10ms"),
        limit(Algorithm::SlidingWindowCounter, "300 per 15ms"),
        limit(Algorithm::SlidingWindowLog(LogSize::Modest), "7 per 10ms"),
        limit(Algorithm::SlidingWindowLog(LogSize::Modest), "30 per 4ms"),
        limit(Algorithm::Concurrency, "8 per 10ms"),
        limit(Algorithm::Concurrency, "5 per 3ms"),
        limit(wall, "3/month"),
    ]
}

fn check(brand: Brand) {
    let (limits, mut store) = (quick_limits(), ServerFixture::start(brand));
    let mut runner = TestRunner::new(Config::default());
    for _ in 0..60 {
        let turns = turns(&limits, ClockSteps::Seconds).new_tree(&mut runner).unwrap().current();
        store.ask(&["FLUSHALL"]);
        run_turns(&turns, &limits, &mut store);
    }
}

fn run_turns(turns: &[RandomTurn], limits: &[Limit], store: &mut ServerFixture) {
    let (mut twin, mut draws, mut ledger) = (Twin::default(), Draws::new(), Ledger::default());
    for turn in turns {
        let times = fill_turn(&mut draws, turn, limits);
        let guess = store.now();
        let wanted = orders::undisputed(&turn.orders, &draws, limits);
        let orders = ledger.word(&wanted, limits);
        let (settled, now, loans) =
            settle_beside(&mut |parcel: &ScriptCall| store.run(parcel), &draws, &times, guess, |parcel| {
                orders::add(&orders, parcel);
            });
        if let Err(error) = compare_beside(&mut twin, &draws, &settled, now, &orders, &loans) {
            panic!("{:?}: {error}\n{turns:?}", store.server.brand());
        }
        ledger.note(&wanted, &loans);
        let kept: Vec<_> =
            twin.kept().map(|(name, data, lapses_ms)| (name.to_vec(), data, lapses_ms)).collect();
        for (name, data, lapses_ms) in kept {
            let now_ms = store.now().get() / 1000;
            match store.kept(&name, &data) {
                Some((there, ttl)) => {
                    assert_eq!(there, data, "{} in {turns:?}", name.escape_ascii());
                    assert!(ttl > 0, "{} stays for ever", name.escape_ascii());
                    let lapses_ms = if lapses_ms == u64::MAX { now_ms + 86_400_000 } else { lapses_ms };
                    // A server counts from when the command runs, which may be a while after the script read the time.
                    assert!(
                        now_ms + u64::try_from(ttl).unwrap() <= lapses_ms + 5_000,
                        "{}",
                        name.escape_ascii()
                    );
                }
                None => {
                    assert!(
                        now_ms + 100 >= lapses_ms || lapses_ms == u64::MAX,
                        "{} is gone",
                        name.escape_ascii()
                    );
                }
            }
        }
    }
}

#[test]
fn redis_equals_the_laws() {
    check(Brand::Redis);
}

#[test]
fn valkey_equals_the_laws() {
    check(Brand::Valkey);
}

//! The same comparison with real servers: the algorithms in Rust run with the time of the server's clock.

use super::fake::FakeValueKind;
use super::renewals::{self, GrantedTerms};
use super::twin::Twin;
use super::{
    ClockSteps, RandomTurn, compare_with_renewals, normalize_log, push_turn, quick_limits, run_with_renewals,
    turns,
};
use crate::batch::codec::ScriptCall;
use crate::batch::script;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};
use ratekeeper_core::{Draws, Limit, Micros};
use ratekeeper_testkit::servers::{Brand, RedisServer, RespClient, RespReply};

/// A server with the script loaded, and a connection to it.
pub(crate) struct ServerFixture {
    pub(crate) server: RedisServer,
    connection: RespClient,
}

impl ServerFixture {
    pub(crate) fn start(brand: Brand) -> ServerFixture {
        let server = RedisServer::setup(brand).start();
        let mut connection = server.connect().unwrap();
        let digest = connection.call(&["SCRIPT", "LOAD", script::SOURCE]).unwrap().text();
        assert_eq!(digest, script::digest(), "the server and the client agree on the digest");
        ServerFixture { server, connection }
    }

    /// Runs the script on a call.
    pub(crate) fn run(&mut self, call: &ScriptCall, draws: &Draws) -> Vec<u8> {
        let names = call.key_names(draws);
        let count = names.len().to_string();
        let mut words: Vec<&[u8]> = vec![b"EVALSHA", script::digest().as_bytes(), count.as_bytes()];
        words.extend(names.iter().map(Vec::as_slice));
        words.extend(call.arguments());
        match self.connection.call(&words).unwrap() {
            RespReply::Bulk(bytes) => bytes,
            other => panic!("the script returned {other:?}"),
        }
    }

    pub(crate) fn command<A: AsRef<[u8]>>(&mut self, words: &[A]) -> RespReply {
        self.connection.call(words).unwrap().expect_ok()
    }

    pub(crate) fn now(&mut self) -> Micros {
        let time = self.command(&["TIME"]);
        let number = |index: usize| u64::try_from(time.array()[index].integer()).unwrap();
        Micros::new(number(0) * 1_000_000 + number(1))
    }

    /// The value under a name and its time to live in milliseconds. Returns `None` if there is none.
    fn stored(&mut self, name: &[u8], like: &FakeValueKind) -> Option<(FakeValueKind, i64)> {
        let bulk = |reply: &RespReply| match reply {
            RespReply::Bulk(bytes) => bytes.clone(),
            other => panic!("{other:?} is not a string"),
        };
        let ttl = self.command(&[b"PTTL", name]).integer();
        if ttl == -2 {
            return None;
        }
        let data = match like {
            FakeValueKind::Text(_) => FakeValueKind::Text(bulk(&self.command(&[b"GET", name]))),
            FakeValueKind::List(_) => FakeValueKind::List(
                self.command(&[b"LRANGE", name, b"0", b"-1"]).array().iter().map(bulk).collect(),
            ),
            FakeValueKind::Sorted(_) => {
                let reply = self.command(&[b"ZRANGE", name, b"0", b"-1", b"WITHSCORES"]);
                let pairs = reply.array().chunks(2);
                let mut set: Vec<_> =
                    pairs.map(|pair| (u64::try_from(pair[1].integer()).unwrap(), bulk(&pair[0]))).collect();
                set.sort();
                FakeValueKind::Sorted(set)
            }
        };
        Some((normalize_log(&data), ttl))
    }
}

fn check(brand: Brand) {
    let (limits, mut store) = (quick_limits(), ServerFixture::start(brand));
    let mut runner = TestRunner::new(Config::default());
    for _ in 0..60 {
        let turns = turns(&limits, ClockSteps::Seconds).new_tree(&mut runner).unwrap().current();
        store.command(&["FLUSHALL"]);
        run_turns(&turns, &limits, &mut store);
    }
}

fn run_turns(turns: &[RandomTurn], limits: &[Limit], store: &mut ServerFixture) {
    let (mut twin, mut draws, mut ledger) = (Twin::default(), Draws::new(), GrantedTerms::default());
    for turn in turns {
        let times = push_turn(&mut draws, turn, limits);
        let guess = store.now();
        let undisputed = renewals::undisputed(&turn.renewals, &draws, limits);
        let renewals = ledger.with_terms(&undisputed, limits);
        let (decided_groups, now, results) = run_with_renewals(
            &mut |call: &ScriptCall, draws: &Draws| store.run(call, draws),
            &draws,
            &times,
            guess,
            |call, draws| {
                renewals::add_all(&renewals, call, draws);
            },
        );
        if let Err(error) =
            compare_with_renewals(&mut twin, &draws, &decided_groups, now, &renewals, &results)
        {
            panic!("{:?}: {error}\n{turns:?}", store.server.brand());
        }
        ledger.record(&undisputed, &results);
        let expected: Vec<_> =
            twin.stored_values().map(|(name, data, expires_ms)| (name.to_vec(), data, expires_ms)).collect();
        for (name, data, expires_ms) in expected {
            let now_ms = store.now().get() / 1000;
            match store.stored(&name, &data) {
                Some((stored, ttl)) => {
                    assert_eq!(stored, data, "{} in {turns:?}", name.escape_ascii());
                    assert!(ttl > 0, "{} never expires", name.escape_ascii());
                    let expires_ms = if expires_ms == u64::MAX { now_ms + 86_400_000 } else { expires_ms };
                    // The server counts from when the command runs, which may be some time after the script read the
                    // time.
                    assert!(
                        now_ms + u64::try_from(ttl).unwrap() <= expires_ms + 5_000,
                        "{}",
                        name.escape_ascii()
                    );
                }
                None => {
                    assert!(
                        now_ms + 100 >= expires_ms || expires_ms == u64::MAX,
                        "{} expired too early",
                        name.escape_ascii()
                    );
                }
            }
        }
    }
}

#[test]
fn redis_equals_the_algorithms() {
    check(Brand::Redis);
}

#[test]
fn valkey_equals_the_algorithms() {
    check(Brand::Valkey);
}

//! Rules are swapped while clients ask as fast as they can: nothing fails, no answer mixes two versions, and nobody gains
//! or loses a unit by it.
//!
//! The store's clock stands still but where it is moved, so what a key may be granted is known to the unit.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

mod support;

use ratekeeper::{ManualClock, Span};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use support::{Answer, Client, Server, TestGate, compile, field, gate, post};
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// One version of the rules, and what tells that an answer is by it.
struct Version {
    file: &'static str,
    /// All that a request must pass, as the header field has it.
    policies: &'static str,
    /// What its own rules' ids begin with.
    mark: char,
    /// How much its own limits have, none of which the other version has.
    limits: [u64; 3],
}

static A: Version = Version {
    file: "
rules:
  - {id: kept, match: {api_key: kept}, key: [api_key], limit: 100/s burst 200}
  - {id: moved, match: {api_key: moved}, key: [api_key], limit: 1000/day}
  - {id: a1, key: [api_key], limits: [1000000001/day, 1000000002/day]}
  - {id: a2, key: [tenant], limit: 1000000003/day}
",
    policies: r#""a1";q=1000000001;w=86400, "a1-2";q=1000000002;w=86400, "a2";q=1000000003;w=86400"#,
    mark: 'a',
    limits: [1_000_000_001, 1_000_000_002, 1_000_000_003],
};

/// Other ids, limits and keys, and what stayed stands elsewhere.
static B: Version = Version {
    file: "
rules:
  - {id: moved, match: {api_key: moved}, key: [api_key], limit: 2000/day}
  - {id: b2, key: [tenant], limits: [2000000001/day, 2000000002/day]}
  - {id: kept, match: {api_key: kept}, key: [api_key], limit: 100/s burst 200}
  - {id: b1, key: [api_key], limit: 2000000003/day}
",
    policies: r#""b2";q=2000000001;w=86400, "b2-2";q=2000000002;w=86400, "b1";q=2000000003;w=86400"#,
    mark: 'b',
    limits: [2_000_000_001, 2_000_000_002, 2_000_000_003],
};

impl Version {
    /// The version that this verdict is by; it must be by one.
    fn of(verdict: &Value) -> &'static Version {
        let rule = verdict["rule"].as_str().unwrap();
        let version = if rule.starts_with(A.mark) { &A } else { &B };
        assert!(rule.starts_with(version.mark), "{verdict}");
        assert!(version.limits.contains(&verdict["limit"].as_u64().unwrap()), "{verdict}");
        assert!(verdict["allowed"] == true && verdict["window"] == 86_400, "{verdict}");
        version
    }

    /// The version that a whole answer is by, its header fields included.
    fn of_all(answer: &Answer) -> &'static Version {
        assert_eq!(answer.status, 200, "{answer:?}");
        let verdict = answer.json();
        let version = Version::of(&verdict);
        assert_eq!(field(&answer.head, "ratelimit-policy"), Some(version.policies), "{answer:?}");
        let binding = field(&answer.head, "ratelimit").unwrap();
        assert!(binding.starts_with(&format!("\"{}", version.mark)), "{answer:?}");
        assert_eq!(field(&answer.head, "x-ratelimit-limit").unwrap(), verdict["limit"].to_string());
        version
    }

    fn is_in_force(&self, gate: &TestGate) -> bool {
        gate.with_rules(|rules| rules.rules().iter().any(|rule| rule.id().starts_with(self.mark)))
    }
}

/// What all clients share.
#[derive(Default)]
struct Fire {
    is_over: AtomicBool,
    /// How many exchanges by each version.
    by_a: AtomicU64,
    by_b: AtomicU64,
}

impl Fire {
    fn note(&self, version: &Version, pace: &Semaphore) {
        if version.mark == A.mark { &self.by_a } else { &self.by_b }.fetch_add(1, Relaxed);
        pace.add_permits(1);
    }
}

#[derive(Clone, Copy, Debug)]
enum Manner {
    Single,
    /// In chunks, which the lane leaves to hyper.
    Chunked,
    Pipelined,
    Batches,
}

fn check(index: usize) -> String {
    format!(r#"{{"client_key":"k{}","endpoint":"/","attributes":{{"tenant":"t{}"}}}}"#, index % 7, index % 3)
}

/// Asks in one manner on one connection until the fire is over. Whatever is decided together must be by one version.
async fn hammer(manner: Manner, mut client: Client, fire: Arc<Fire>, pace: Arc<Semaphore>) {
    let single = post("/v1/check", check(1).as_bytes());
    let body = check(2);
    let chunked = format!(
        "POST /v1/check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let pipeline: Vec<u8> = (0..16).flat_map(|index| post("/v1/check", check(index).as_bytes())).collect();
    let checks: Vec<_> = (0..50).map(check).collect();
    let batch = post("/v1/check/batch", format!(r#"{{"checks":[{}]}}"#, checks.join(",")).as_bytes());
    while !fire.is_over.load(Relaxed) {
        let (request, answers) = match manner {
            Manner::Single => (&single[..], 1),
            Manner::Chunked => (chunked.as_bytes(), 1),
            // It leaves in one piece, comes in one piece, and is answered as one.
            Manner::Pipelined => (&pipeline[..], 16),
            Manner::Batches => (&batch[..], 1),
        };
        client.send(request).await;
        let mut by: Option<&Version> = None;
        for _ in 0..answers {
            let answer = client.answer().await.expect("no connection is dropped");
            let versions: Vec<_> = match manner {
                Manner::Batches => {
                    let results = answer.json()["results"].take();
                    results.as_array().unwrap().iter().map(Version::of).collect()
                }
                Manner::Single | Manner::Chunked | Manner::Pipelined => vec![Version::of_all(&answer)],
            };
            for version in versions {
                let first = by.get_or_insert(version);
                assert_eq!(first.mark, version.mark, "{manner:?} by two versions");
            }
        }
        fire.note(by.unwrap(), &pace);
    }
}

/// What a key was granted and denied by one rule that is in both versions.
#[derive(Default)]
struct Tally {
    granted: AtomicU64,
    denied: AtomicU64,
}

impl Tally {
    /// Draws from a key without pause.
    async fn draw(&self, key: &str, mut client: Client, fire: &Fire) {
        let body = format!(r#"{{"client_key":"{key}","attributes":{{"tenant":"t"}}}}"#);
        while !fire.is_over.load(Relaxed) {
            let verdict = client.post("/v1/check", body.as_bytes()).await.json();
            assert_eq!(verdict["rule"], key, "{verdict}");
            let count = if verdict["allowed"] == true { &self.granted } else { &self.denied };
            count.fetch_add(1, Relaxed);
        }
    }

    /// Waits until nothing is left. Of the denials counted from now on, the first may have been decided before now.
    async fn run_dry(&self, pace: &Semaphore) {
        let denied = self.denied.load(Relaxed) + 2;
        while self.denied.load(Relaxed) < denied {
            exchanges(1, pace).await;
        }
    }
}

/// Waits for so many exchanges more.
async fn exchanges(count: u32, pace: &Semaphore) {
    pace.forget_permits(usize::MAX);
    let passed = timeout(Duration::from_secs(30), pace.acquire_many(count)).await;
    passed.expect("clients are answered").unwrap().forget();
}

#[test]
fn rules_are_swapped_under_fire() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, A.file).unwrap();
    let (gate, clock) = gate(A.file);
    let (reload, reloads) = mpsc::channel(1);
    let server = Server::start(gate.clone(), Some(file.clone()), reloads);
    let clients = Builder::new_current_thread().enable_all().build().unwrap();
    clients.block_on(async {
        let (fire, pace) = (Arc::new(Fire::default()), Arc::new(Semaphore::new(0)));
        let mut crowd: Vec<JoinHandle<()>> = Vec::new();
        let manners = [Manner::Single, Manner::Chunked, Manner::Pipelined, Manner::Batches];
        for manner in manners.into_iter().chain(manners) {
            let client = server.connect().await;
            crowd.push(tokio::spawn(hammer(manner, client, Arc::clone(&fire), Arc::clone(&pace))));
        }
        let (kept, moved) = (Arc::new(Tally::default()), Arc::new(Tally::default()));
        for (key, tally) in [("kept", &kept), ("moved", &moved)] {
            let (client, tally, fire) = (server.connect().await, Arc::clone(tally), Arc::clone(&fire));
            crowd.push(tokio::spawn(async move { tally.draw(key, client, &fire).await }));
        }
        // What the second has under the first version is what it has for good.
        while moved.granted.load(Relaxed) == 0 {
            exchanges(1, &pace).await;
        }

        swap_in_memory(&gate, &pace, &kept, &clock).await;
        swap_in_file(&file, &gate, &pace, &reload).await;

        kept.run_dry(&pace).await;
        moved.run_dry(&pace).await;
        fire.is_over.store(true, Relaxed);
        for client in crowd {
            client.await.unwrap();
        }
        assert_eq!(kept.granted.load(Relaxed), 200 + 100 * ADVANCES);
        assert_eq!(moved.granted.load(Relaxed), 1000);
        assert!(gate.installs() > SWAPS + FILES);
        for exchanges in [&fire.by_a, &fire.by_b] {
            assert!(exchanges.load(Relaxed) > SWAPS, "both versions were asked for much");
        }
    });
}

const SWAPS: u64 = 1000;
/// How often the clock is moved meanwhile, by a second.
const ADVANCES: u64 = 10;
const FILES: u64 = 60;

async fn swap_in_memory(gate: &TestGate, pace: &Semaphore, kept: &Tally, clock: &ManualClock) {
    for swap in 0..SWAPS {
        let version = if swap % 2 == 0 { &B } else { &A };
        gate.install(compile(version.file));
        exchanges(16, pace).await;
        if swap % (SWAPS / ADVANCES) == 0 {
            // A second brings half of what the bucket holds, so nothing spills over.
            kept.run_dry(pace).await;
            clock.advance(Span::SECOND);
        }
    }
}

async fn swap_in_file(file: &Path, gate: &TestGate, pace: &Semaphore, reload: &mpsc::Sender<()>) {
    let next = file.with_extension("next");
    for swap in 0..FILES {
        let version = if swap % 2 == 0 { &B } else { &A };
        fs::write(&next, version.file).unwrap();
        fs::rename(&next, file).unwrap();
        // Now and then nobody says that it has changed.
        if swap % 20 != 0 {
            reload.send(()).await.unwrap();
        }
        while !version.is_in_force(gate) {
            exchanges(1, pace).await;
        }
        exchanges(16, pace).await;
    }
}

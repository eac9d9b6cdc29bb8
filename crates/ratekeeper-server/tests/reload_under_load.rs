//! Rules are swapped under full load: no request fails, no response mixes two versions, and no key gains or loses a
//! unit.
//!
//! The store's clock is manual, so the units that a key may be granted are known exactly.

#![expect(clippy::unwrap_used, reason = "an unwrap in a test helper should fail the test")]

mod support;

use ratekeeper::{ManualClock, Span};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use support::{HttpClient, HttpResponse, TestLimiter, TestServer, compile, field, post, test_limiter};
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// One version of the rules, and how to recognise its responses.
struct RuleVersion {
    file: &'static str,
    /// All limits that a request must pass, as in the `RateLimit-Policy` header.
    policies: &'static str,
    /// The prefix of the ids of its own rules.
    id_prefix: char,
    /// The capacities of its own limits, none of which occurs in the other version.
    limits: [u64; 3],
}

static A: RuleVersion = RuleVersion {
    file: "
rules:
  - {id: kept, match: {api_key: kept}, key: [api_key], limit: 100/s burst 200}
  - {id: moved, match: {api_key: moved}, key: [api_key], limit: 1000/day}
  - {id: a1, key: [api_key], limits: [1000000001/day, 1000000002/day]}
  - {id: a2, key: [tenant], limit: 1000000003/day}
",
    policies: r#""a1";q=1000000001;w=86400, "a1-2";q=1000000002;w=86400, "a2";q=1000000003;w=86400"#,
    id_prefix: 'a',
    limits: [1_000_000_001, 1_000_000_002, 1_000_000_003],
};

/// Other ids, limits and keys; the rules in both versions have another position.
static B: RuleVersion = RuleVersion {
    file: "
rules:
  - {id: moved, match: {api_key: moved}, key: [api_key], limit: 2000/day}
  - {id: b2, key: [tenant], limits: [2000000001/day, 2000000002/day]}
  - {id: kept, match: {api_key: kept}, key: [api_key], limit: 100/s burst 200}
  - {id: b1, key: [api_key], limit: 2000000003/day}
",
    policies: r#""b2";q=2000000001;w=86400, "b2-2";q=2000000002;w=86400, "b1";q=2000000003;w=86400"#,
    id_prefix: 'b',
    limits: [2_000_000_001, 2_000_000_002, 2_000_000_003],
};

impl RuleVersion {
    /// The version that made this decision. Panics if none matches.
    fn deciding(decision: &Value) -> &'static RuleVersion {
        let rule = decision["rule"].as_str().unwrap();
        let version = if rule.starts_with(A.id_prefix) { &A } else { &B };
        assert!(rule.starts_with(version.id_prefix), "{decision}");
        assert!(version.limits.contains(&decision["limit"].as_u64().unwrap()), "{decision}");
        assert!(decision["allowed"] == true && decision["window"] == 86_400, "{decision}");
        version
    }

    /// The version that made a response, including its headers. Panics if they disagree.
    fn deciding_response(response: &HttpResponse) -> &'static RuleVersion {
        assert_eq!(response.status, 200, "{response:?}");
        let decision = response.json();
        let version = RuleVersion::deciding(&decision);
        assert_eq!(field(&response.head, "ratelimit-policy"), Some(version.policies), "{response:?}");
        let binding = field(&response.head, "ratelimit").unwrap();
        assert!(binding.starts_with(&format!("\"{}", version.id_prefix)), "{response:?}");
        assert_eq!(field(&response.head, "x-ratelimit-limit").unwrap(), decision["limit"].to_string());
        version
    }

    fn is_installed(&self, limiter: &TestLimiter) -> bool {
        limiter.with_rules(|rules| rules.rules().iter().any(|rule| rule.id().starts_with(self.id_prefix)))
    }
}

/// State shared by all clients.
#[derive(Default)]
struct LoadState {
    is_over: AtomicBool,
    /// Exchanges decided by each version.
    by_a: AtomicU64,
    by_b: AtomicU64,
}

impl LoadState {
    fn record(&self, version: &RuleVersion, completed: &Semaphore) {
        if version.id_prefix == A.id_prefix { &self.by_a } else { &self.by_b }.fetch_add(1, Relaxed);
        completed.add_permits(1);
    }
}

#[derive(Clone, Copy, Debug)]
enum RequestStyle {
    Single,
    /// With a chunked body, which the fast path leaves to hyper.
    Chunked,
    Pipelined,
    Batches,
}

fn check(index: usize) -> String {
    format!(r#"{{"client_key":"k{}","endpoint":"/","attributes":{{"tenant":"t{}"}}}}"#, index % 7, index % 3)
}

/// Sends requests of one style on one connection until the test ends. Checks decided together must be by one version.
async fn send_requests(
    style: RequestStyle,
    mut client: HttpClient,
    state: Arc<LoadState>,
    completed: Arc<Semaphore>,
) {
    let single = post("/v1/check", check(1).as_bytes());
    let body = check(2);
    let chunked = format!(
        "POST /v1/check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let pipeline: Vec<u8> = (0..16).flat_map(|index| post("/v1/check", check(index).as_bytes())).collect();
    let checks: Vec<_> = (0..50).map(check).collect();
    let batch = post("/v1/check/batch", format!(r#"{{"checks":[{}]}}"#, checks.join(",")).as_bytes());
    while !state.is_over.load(Relaxed) {
        let (request, responses) = match style {
            RequestStyle::Single => (&single[..], 1),
            RequestStyle::Chunked => (chunked.as_bytes(), 1),
            // Sent in one write, received in one read, and decided as one batch.
            RequestStyle::Pipelined => (&pipeline[..], 16),
            RequestStyle::Batches => (&batch[..], 1),
        };
        client.send(request).await;
        let mut by: Option<&RuleVersion> = None;
        for _ in 0..responses {
            let response = client.read_response().await.expect("the connection is kept");
            let versions: Vec<_> = match style {
                RequestStyle::Batches => {
                    let results = response.json()["results"].take();
                    results.as_array().unwrap().iter().map(RuleVersion::deciding).collect()
                }
                RequestStyle::Single | RequestStyle::Chunked | RequestStyle::Pipelined => {
                    vec![RuleVersion::deciding_response(&response)]
                }
            };
            for version in versions {
                let first = by.get_or_insert(version);
                assert_eq!(first.id_prefix, version.id_prefix, "{style:?} decided by two versions");
            }
        }
        state.record(by.unwrap(), &completed);
    }
}

/// Decisions for one key, by a rule that is in both versions.
#[derive(Default)]
struct KeyTally {
    granted: AtomicU64,
    denied: AtomicU64,
}

impl KeyTally {
    /// Checks the key continuously.
    async fn draw(&self, key: &str, mut client: HttpClient, state: &LoadState) {
        let body = format!(r#"{{"client_key":"{key}","attributes":{{"tenant":"t"}}}}"#);
        while !state.is_over.load(Relaxed) {
            let decision = client.post("/v1/check", body.as_bytes()).await.json();
            assert_eq!(decision["rule"], key, "{decision}");
            let count = if decision["allowed"] == true { &self.granted } else { &self.denied };
            count.fetch_add(1, Relaxed);
        }
    }

    /// Waits until the key is exhausted: two denials from now on, since the first may have been decided earlier.
    async fn until_exhausted(&self, completed: &Semaphore) {
        let denied = self.denied.load(Relaxed) + 2;
        while self.denied.load(Relaxed) < denied {
            wait_for_exchanges(1, completed).await;
        }
    }
}

/// Waits for `count` more exchanges.
async fn wait_for_exchanges(count: u32, completed: &Semaphore) {
    completed.forget_permits(usize::MAX);
    let passed = timeout(Duration::from_secs(30), completed.acquire_many(count)).await;
    passed.expect("clients get responses").unwrap().forget();
}

#[test]
fn rules_are_swapped_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, A.file).unwrap();
    let (limiter, clock) = test_limiter(A.file);
    let (reload, reloads) = mpsc::channel(1);
    let server = TestServer::start(limiter.clone(), Some(file.clone()), reloads);
    let clients = Builder::new_current_thread().enable_all().build().unwrap();
    clients.block_on(async {
        let (state, completed) = (Arc::new(LoadState::default()), Arc::new(Semaphore::new(0)));
        let mut tasks: Vec<JoinHandle<()>> = Vec::new();
        let styles =
            [RequestStyle::Single, RequestStyle::Chunked, RequestStyle::Pipelined, RequestStyle::Batches];
        for style in styles.into_iter().chain(styles) {
            let client = server.connect().await;
            tasks.push(tokio::spawn(send_requests(
                style,
                client,
                Arc::clone(&state),
                Arc::clone(&completed),
            )));
        }
        let (kept, moved) = (Arc::new(KeyTally::default()), Arc::new(KeyTally::default()));
        for (key, tally) in [("kept", &kept), ("moved", &moved)] {
            let (client, tally, state) = (server.connect().await, Arc::clone(tally), Arc::clone(&state));
            tasks.push(tokio::spawn(async move { tally.draw(key, client, &state).await }));
        }
        // `moved` must be counted under the first version: a quota change keeps the remaining units.
        while moved.granted.load(Relaxed) == 0 {
            wait_for_exchanges(1, &completed).await;
        }

        swap_in_memory(&limiter, &completed, &kept, &clock).await;
        swap_in_file(&file, &limiter, &completed, &reload).await;

        kept.until_exhausted(&completed).await;
        moved.until_exhausted(&completed).await;
        state.is_over.store(true, Relaxed);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(kept.granted.load(Relaxed), 200 + 100 * ADVANCES);
        assert_eq!(moved.granted.load(Relaxed), 1000);
        assert!(limiter.installs() > SWAPS + FILE_SWAPS);
        for exchanges in [&state.by_a, &state.by_b] {
            assert!(exchanges.load(Relaxed) > SWAPS, "both versions decided many exchanges");
        }
    });
}

const SWAPS: u64 = 1000;
/// How often the clock is advanced by a second meanwhile.
const ADVANCES: u64 = 10;
const FILE_SWAPS: u64 = 60;

async fn swap_in_memory(limiter: &TestLimiter, completed: &Semaphore, kept: &KeyTally, clock: &ManualClock) {
    for swap in 0..SWAPS {
        let version = if swap % 2 == 0 { &B } else { &A };
        limiter.install(compile(version.file));
        wait_for_exchanges(16, completed).await;
        if swap % (SWAPS / ADVANCES) == 0 {
            // A second refills half of the bucket, so it never overflows.
            kept.until_exhausted(completed).await;
            clock.advance(Span::SECOND);
        }
    }
}

async fn swap_in_file(file: &Path, limiter: &TestLimiter, completed: &Semaphore, reload: &mpsc::Sender<()>) {
    let next = file.with_extension("next");
    for swap in 0..FILE_SWAPS {
        let version = if swap % 2 == 0 { &B } else { &A };
        fs::write(&next, version.file).unwrap();
        fs::rename(&next, file).unwrap();
        // Sometimes no reload is requested: the file watcher must notice.
        if swap % 20 != 0 {
            reload.send(()).await.unwrap();
        }
        while !version.is_installed(limiter) {
            wait_for_exchanges(1, completed).await;
        }
        wait_for_exchanges(16, completed).await;
    }
}

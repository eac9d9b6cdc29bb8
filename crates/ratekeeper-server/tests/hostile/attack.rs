//! Invariants of a server under attack: nothing panics, memory stays bounded, and a well-behaved client gets prompt
//! responses throughout.

use crate::support::{HttpClient, TestServer, post, test_limiter};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Once};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, timeout};

/// The longest that a bystander may wait. An idle machine responds within a millisecond. On a busy one, where
/// attackers, server and bystander share two cores, a packet dropped among a thousand new connections is retransmitted
/// after one or three seconds; a starved client waits until the attack ends.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Upper bound on the duration of an attack.
const ATTACK_TIMEOUT: Duration = Duration::from_secs(60);
/// The responses that the bystander gets before the attack, and at least as many until it ends.
const MIN_RESPONSES: u64 = 100;

/// A limit that no attack here exhausts by accident.
pub(crate) const RULES: &str = "default: {limit: 1000000000/day}";

/// Memory and panics are counted per process, so if tests run as threads, only one attack runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Attacks a new server and asserts the invariants. This process, which includes the attacker, may never grow by more
/// than `growth_mib` MiB.
#[expect(clippy::print_stdout, reason = "prints the measurements under --no-capture")]
pub(crate) fn under_attack(rules: &str, growth_mib: u64, attack: impl AsyncFnOnce(&TestServer)) {
    let _alone = ONE_AT_A_TIME.lock();
    count_panics();
    let panics = PANICS.load(SeqCst);
    let server = TestServer::start(test_limiter(rules).0, None, mpsc::channel(1).1);
    let attackers = runtime();
    let bystander = Bystander::start(server.address);
    let before = resident_mib();
    let in_time = attackers.block_on(async { timeout(ATTACK_TIMEOUT, attack(&server)).await.is_ok() });
    let seen = bystander.stop();
    let grown = seen.max_mib.saturating_sub(before);
    println!(
        "{} responses, the slowest after {:?}; grew by {grown} MiB from {before} MiB",
        seen.responses.load(Relaxed),
        seen.slowest
    );
    assert!(in_time, "the attack did not end in time");
    assert_eq!(PANICS.load(SeqCst), panics, "something panicked");
    assert!(seen.slowest < MAX_WAIT, "a bystander waited for {:?}", seen.slowest);
    assert!(grown <= growth_mib, "memory grew by {grown} MiB");
    attackers.block_on(async {
        assert_eq!(
            server.connect().await.post("/check", CHECK_BODY).await.status,
            200,
            "the server still responds"
        );
    });
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn count_panics() {
    static COUNTED: Once = Once::new();
    COUNTED.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, SeqCst);
            previous(panic);
        }));
    });
}

const CHECK_BODY: &[u8] = br#"{"client_key":"bystander","endpoint":"/orders","cost":1}"#;

/// A well-behaved client that keeps sending requests from its own thread.
struct Bystander {
    thread: JoinHandle<BystanderStats>,
    responses: Arc<AtomicU64>,
    stop_flag: Arc<AtomicBool>,
}

/// The bystander's measurements.
struct BystanderStats {
    responses: Arc<AtomicU64>,
    slowest: Duration,
    max_mib: u64,
}

impl Bystander {
    /// Starts sending requests, and returns after the first `MIN_RESPONSES` responses.
    fn start(address: SocketAddr) -> Bystander {
        let (answers, leaves) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut seen =
            BystanderStats { responses: Arc::clone(&answers), slowest: Duration::ZERO, max_mib: 0 };
        let leave = Arc::clone(&leaves);
        let thread = std::thread::spawn(move || {
            runtime().block_on(seen.send_until(address, &leave));
            seen
        });
        let bystander = Bystander { thread, responses: answers, stop_flag: leaves };
        bystander.wait_for(MIN_RESPONSES);
        bystander
    }

    fn wait_for(&self, answers: u64) {
        let until = self.responses.load(Relaxed) + answers;
        while self.responses.load(Relaxed) < until && !self.thread.is_finished() {
            std::thread::yield_now();
        }
    }

    fn stop(self) -> BystanderStats {
        self.wait_for(MIN_RESPONSES);
        self.stop_flag.store(true, Relaxed);
        self.thread.join().expect("the bystander always gets a response")
    }
}

impl BystanderStats {
    async fn send_until(&mut self, address: SocketAddr, leave: &AtomicBool) {
        let mut pace = interval(Duration::from_millis(2));
        let mut regular = HttpClient::new(TcpStream::connect(address).await.unwrap());
        while !leave.load(Relaxed) {
            pace.tick().await;
            let begun = Instant::now();
            // Every fourth time on a new connection.
            let response = match self.responses.load(Relaxed) % 4 {
                0 => {
                    HttpClient::new(TcpStream::connect(address).await.unwrap())
                        .post("/check", CHECK_BODY)
                        .await
                }
                _ => {
                    regular.send(&post("/check", CHECK_BODY)).await;
                    regular.read_response().await.expect("the bystander's connection is kept")
                }
            };
            assert!(
                response.status == 200 && response.body.starts_with(r#"{"allowed":true,"#),
                "{response:?}"
            );
            self.slowest = self.slowest.max(begun.elapsed());
            self.max_mib = self.max_mib.max(resident_mib());
            self.responses.fetch_add(1, Relaxed);
        }
    }
}

/// The resident memory of this process in MiB; 0 if the system does not report it.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

//! Invariants of a RESP listener under attack: nothing panics, memory stays bounded, and a well-behaved client gets
//! prompt replies throughout.

use crate::server::{RespTestClient, serve_until};
use parking_lot::Mutex;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, interval, timeout};

/// The longest that a bystander may wait. Attackers, server, bystander and other tests share two cores; a starved
/// client waits until the attack ends.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Upper bound on the duration of an attack.
const ATTACK_TIMEOUT: Duration = Duration::from_secs(60);
/// The responses that the bystander gets before the attack, and at least as many until it ends.
const MIN_REPLIES: u64 = 100;

/// Memory and panics are counted per process, so if tests run as threads, only one attack runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Attacks a new listener and asserts the invariants. This process, which includes the attacker, may never grow by more
/// than `growth_mib` MiB.
#[expect(clippy::print_stdout, reason = "prints the measurements under --no-capture")]
pub(crate) fn under_attack(growth_mib: u64, attack: impl AsyncFnOnce(SocketAddr)) {
    let _alone = ONE_AT_A_TIME.lock();
    count_panics();
    let panics = PANICS.load(SeqCst);
    let server = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (address, _serving) = server.block_on(serve_until(None, pending()));
    let attackers = runtime();
    let seen = Arc::new(BystanderCounters::default());
    let bystander = {
        let seen = Arc::clone(&seen);
        std::thread::spawn(move || runtime().block_on(seen.run(address)))
    };
    seen.wait_for(MIN_REPLIES, &bystander);
    let before = resident_mib();
    seen.max_mib.store(before, Relaxed);
    let in_time = attackers.block_on(async { timeout(ATTACK_TIMEOUT, attack(address)).await.is_ok() });
    seen.wait_for(MIN_REPLIES, &bystander);
    seen.stop.store(1, Relaxed);
    bystander.join().expect("the bystander always gets a response");
    let slowest = Duration::from_micros(seen.slowest_micros.load(Relaxed));
    let grown = seen.max_mib.load(Relaxed).saturating_sub(before);
    println!(
        "{} replies, the slowest after {slowest:?}; grew by {grown} MiB from {before} MiB",
        seen.replies.load(Relaxed)
    );
    assert!(in_time, "the attack did not end in time");
    assert_eq!(PANICS.load(SeqCst), panics, "something panicked");
    assert!(slowest < MAX_WAIT, "a bystander waited for {slowest:?}");
    assert!(grown <= growth_mib, "memory grew by {grown} MiB");
    server.shutdown_background();
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

/// Measurements of a well-behaved client that keeps sending commands.
#[derive(Debug, Default)]
struct BystanderCounters {
    replies: AtomicU64,
    slowest_micros: AtomicU64,
    max_mib: AtomicU64,
    stop: AtomicU64,
}

impl BystanderCounters {
    async fn run(&self, address: SocketAddr) {
        let mut pace = interval(Duration::from_millis(2));
        let mut regular = RespTestClient::connect(address).await;
        let command = "CL.THROTTLE bystander 1000000 1000000 1";
        while self.stop.load(Relaxed) == 0 {
            pace.tick().await;
            let begun = Instant::now();
            // Every fourth time on a new connection.
            let reply = match self.replies.load(Relaxed) % 4 {
                0 => RespTestClient::connect(address).await.send_command(command, 6).await,
                _ => regular.send_command(command, 6).await,
            };
            assert!(reply.starts_with("*5\r\n:0\r\n:1000001\r\n"), "{reply}");
            let took = u64::try_from(begun.elapsed().as_micros()).unwrap();
            self.slowest_micros.fetch_max(took, Relaxed);
            self.max_mib.fetch_max(resident_mib(), Relaxed);
            self.replies.fetch_add(1, Relaxed);
        }
    }

    fn wait_for(&self, answers: u64, bystander: &std::thread::JoinHandle<()>) {
        let until = self.replies.load(Relaxed) + answers;
        while self.replies.load(Relaxed) < until && !bystander.is_finished() {
            std::thread::yield_now();
        }
    }
}

/// The resident memory of this process in MiB; 0 if the system does not report it.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

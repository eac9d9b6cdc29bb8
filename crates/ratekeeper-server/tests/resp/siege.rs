//! What must hold while a port is under attack: nothing panics, memory stays as it was, and somebody else who keeps asking
//! is answered promptly throughout.

use crate::server::{Client, serve_until};
use parking_lot::Mutex;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, interval, timeout};

/// The longest that a bystander may wait. Two cores are shared by attackers, server, bystander and other tests; whoever is
/// starved waits for the attack to end.
const PROMPT: Duration = Duration::from_secs(5);
/// How long an attack may last.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many answers a bystander has before the attack, and at least during it.
const ANSWERS: u64 = 100;

/// Memory is the process's, and so are panics: where tests are threads, one goes at a time.
static ALONE: Mutex<()> = Mutex::new(());
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Attacks a port of its own, and sees that all that must hold does. Meanwhile this process, which is also the attacker's,
/// may at no time have more than so many MiB above what it had before.
#[expect(clippy::print_stdout, reason = "what was measured is for whoever asks for it with --no-capture")]
pub(crate) fn siege(growth_mib: u64, attack: impl AsyncFnOnce(SocketAddr)) {
    let _alone = ALONE.lock();
    count_panics();
    let panics = PANICS.load(SeqCst);
    let server = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (address, _serving) = server.block_on(serve_until(None, pending()));
    let attackers = runtime();
    let seen = Arc::new(Seen::default());
    let bystander = {
        let seen = Arc::clone(&seen);
        std::thread::spawn(move || runtime().block_on(seen.ask(address)))
    };
    seen.wait_for(ANSWERS, &bystander);
    let before = resident_mib();
    seen.most_mib.store(before, Relaxed);
    let in_time = attackers.block_on(async { timeout(PATIENCE, attack(address)).await.is_ok() });
    seen.wait_for(ANSWERS, &bystander);
    seen.leaves.store(1, Relaxed);
    bystander.join().expect("a bystander is always answered");
    let slowest = Duration::from_micros(seen.slowest_micros.load(Relaxed));
    let grown = seen.most_mib.load(Relaxed).saturating_sub(before);
    println!(
        "{} answers, the slowest after {slowest:?}; {grown} MiB above {before}",
        seen.answers.load(Relaxed)
    );
    assert!(in_time, "the attack goes on and on");
    assert_eq!(PANICS.load(SeqCst), panics, "something panicked");
    assert!(slowest < PROMPT, "a bystander had to wait for {slowest:?}");
    assert!(grown <= growth_mib, "memory grew by {grown} MiB");
    server.shutdown_background();
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn count_panics() {
    static COUNTED: Once = Once::new();
    COUNTED.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, SeqCst);
            tell(panic);
        }));
    });
}

/// What somebody saw who means no harm and keeps asking.
#[derive(Debug, Default)]
struct Seen {
    answers: AtomicU64,
    slowest_micros: AtomicU64,
    most_mib: AtomicU64,
    leaves: AtomicU64,
}

impl Seen {
    async fn ask(&self, address: SocketAddr) {
        let mut pace = interval(Duration::from_millis(2));
        let mut regular = Client::connect(address).await;
        let ask = "CL.THROTTLE bystander 1000000 1000000 1";
        while self.leaves.load(Relaxed) == 0 {
            pace.tick().await;
            let begun = Instant::now();
            // Every fourth time as somebody new.
            let said = match self.answers.load(Relaxed) % 4 {
                0 => Client::connect(address).await.ask(ask, 6).await,
                _ => regular.ask(ask, 6).await,
            };
            assert!(said.starts_with("*5\r\n:0\r\n:1000001\r\n"), "{said}");
            let took = u64::try_from(begun.elapsed().as_micros()).unwrap();
            self.slowest_micros.fetch_max(took, Relaxed);
            self.most_mib.fetch_max(resident_mib(), Relaxed);
            self.answers.fetch_add(1, Relaxed);
        }
    }

    fn wait_for(&self, answers: u64, bystander: &std::thread::JoinHandle<()>) {
        let until = self.answers.load(Relaxed) + answers;
        while self.answers.load(Relaxed) < until && !bystander.is_finished() {
            std::thread::yield_now();
        }
    }
}

/// How much memory this process has, where the system tells.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

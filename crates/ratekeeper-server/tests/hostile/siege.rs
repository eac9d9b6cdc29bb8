//! What must hold while a server is under attack: nothing panics, memory stays as it was, and somebody else who keeps
//! asking is answered promptly throughout.

use crate::support::{Client, Server, gate, post};
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

/// The longest that a bystander may wait. An idle machine answers within a millisecond. On a busy one with two cores, which
/// attackers, server and bystander share, a packet that the system drops among a thousand newcomers comes again after
/// one second or three; whoever is starved waits for the attack to end.
const PROMPT: Duration = Duration::from_secs(5);
/// How long an attack may last.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many answers a bystander has before the attack, and at least during it.
const ANSWERS: u64 = 100;

/// Rules that no attack in here exhausts by accident.
pub(crate) const RULES: &str = "default: {limit: 1000000000/day}";

/// Memory is the process's, and so are panics: where tests are threads, one goes at a time.
static ALONE: Mutex<()> = Mutex::new(());
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Attacks a server of its own, and sees that all that must hold does. Meanwhile this process, which is also the
/// attacker's, may at no time have more than so many MiB above what it had before.
#[expect(clippy::print_stdout, reason = "what was measured is for whoever asks for it with --no-capture")]
pub(crate) fn siege(rules: &str, growth_mib: u64, attack: impl AsyncFnOnce(&Server)) {
    let _alone = ALONE.lock();
    count_panics();
    let panics = PANICS.load(SeqCst);
    let server = Server::start(gate(rules).0, None, mpsc::channel(1).1);
    let attackers = runtime();
    let bystander = Bystander::start(server.address);
    let before = resident_mib();
    let in_time = attackers.block_on(async { timeout(PATIENCE, attack(&server)).await.is_ok() });
    let seen = bystander.leave();
    let grown = seen.most_mib.saturating_sub(before);
    println!(
        "{} answers, the slowest after {:?}; {grown} MiB above {before}",
        seen.answers.load(Relaxed),
        seen.slowest
    );
    assert!(in_time, "the attack goes on and on");
    assert_eq!(PANICS.load(SeqCst), panics, "something panicked");
    assert!(seen.slowest < PROMPT, "a bystander had to wait for {:?}", seen.slowest);
    assert!(grown <= growth_mib, "memory grew by {grown} MiB");
    attackers.block_on(async {
        assert_eq!(server.connect().await.post("/check", ASK).await.status, 200, "it still answers");
    });
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

const ASK: &[u8] = br#"{"client_key":"bystander","endpoint":"/orders","cost":1}"#;

/// Somebody who means no harm and keeps asking, from a thread of its own.
struct Bystander {
    thread: JoinHandle<Seen>,
    answers: Arc<AtomicU64>,
    leaves: Arc<AtomicBool>,
}

/// What a bystander saw.
struct Seen {
    answers: Arc<AtomicU64>,
    slowest: Duration,
    most_mib: u64,
}

impl Bystander {
    /// Begins to ask, and returns once it has been answered for a while.
    fn start(address: SocketAddr) -> Bystander {
        let (answers, leaves) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut seen = Seen { answers: Arc::clone(&answers), slowest: Duration::ZERO, most_mib: 0 };
        let leave = Arc::clone(&leaves);
        let thread = std::thread::spawn(move || {
            runtime().block_on(seen.ask_until(address, &leave));
            seen
        });
        let bystander = Bystander { thread, answers, leaves };
        bystander.wait_for(ANSWERS);
        bystander
    }

    fn wait_for(&self, answers: u64) {
        let until = self.answers.load(Relaxed) + answers;
        while self.answers.load(Relaxed) < until && !self.thread.is_finished() {
            std::thread::yield_now();
        }
    }

    fn leave(self) -> Seen {
        self.wait_for(ANSWERS);
        self.leaves.store(true, Relaxed);
        self.thread.join().expect("a bystander is always answered")
    }
}

impl Seen {
    async fn ask_until(&mut self, address: SocketAddr, leave: &AtomicBool) {
        let mut pace = interval(Duration::from_millis(2));
        let mut regular = Client::of(TcpStream::connect(address).await.unwrap());
        while !leave.load(Relaxed) {
            pace.tick().await;
            let begun = Instant::now();
            // Every fourth time as somebody new.
            let answer = match self.answers.load(Relaxed) % 4 {
                0 => Client::of(TcpStream::connect(address).await.unwrap()).post("/check", ASK).await,
                _ => {
                    regular.send(&post("/check", ASK)).await;
                    regular.answer().await.expect("a bystander's connection is kept")
                }
            };
            assert!(answer.status == 200 && answer.body.starts_with(r#"{"allowed":true,"#), "{answer:?}");
            self.slowest = self.slowest.max(begun.elapsed());
            self.most_mib = self.most_mib.max(resident_mib());
            self.answers.fetch_add(1, Relaxed);
        }
    }
}

/// How much memory this process has, where the system tells.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

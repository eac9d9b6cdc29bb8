//! A server in a process of its own, on one core.
//!
//! The process is this same program under a hidden name, which pins itself and then becomes the server: whatever asks
//! how many cores there are, as runtimes do when they choose their threads, is told of one. Between its turns it is
//! stopped, so that no timer of its own falls into another's turn.

use anyhow::{Context, Result, bail, ensure};
use core_affinity::CoreId;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// The cores of the servers and of the generator.
pub(crate) const CORES: [usize; 2] = [0, 1];
/// How long a server may take to start.
const START: Duration = Duration::from_secs(10);

/// A running server. It dies with this value, and with the bench.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// Held open: a server that says more must not find its reader gone.
    said: Option<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a server that says where it listens, and waits until it does.
    pub(crate) fn start(program: &Path, arguments: &[OsString]) -> Result<(Process, SocketAddr)> {
        let mut child = spawn(program, arguments, Stdio::piped())?;
        let said = child.stdout.take().map(BufReader::new);
        let mut process = Process { child, said };
        let mut line = String::new();
        if let Some(said) = &mut process.said {
            said.read_line(&mut line)?;
        }
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_whitespace().next());
        let address = address.with_context(|| {
            format!("{} does not say where it listens, but {:?}", program.display(), line.trim_end())
        })?;
        let address = address.trim_end_matches('/').parse().with_context(|| format!("in {line:?}"))?;
        Ok((process, address))
    }

    /// Starts a server that has been told where to listen, and waits until it does.
    pub(crate) fn start_at(address: SocketAddr, program: &Path, arguments: &[OsString]) -> Result<Process> {
        let child = spawn(program, arguments, Stdio::null())?;
        let mut process = Process { child, said: None };
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = process.child.try_wait()? {
                bail!("{} ended with {status}", program.display());
            }
            ensure!(begin.elapsed() < START, "{} does not listen on {address}", program.display());
            thread::sleep(Duration::from_millis(10));
        }
        Ok(process)
    }

    /// Stops it where it is, until it is resumed.
    pub(crate) fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("a server has ended before its time")
    }

    /// How long it has had its core, in its own code and in the kernel's.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let ticks = ticks(&stat).context("the system does not tell a server's time")?;
        Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Neither can fail for a child that has not been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Of a process's line in `/proc`, the ticks it ran for: the fourteenth and the fifteenth field. The second is its
/// name, in brackets, and may have spaces and brackets of its own.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(ticks()? + ticks()?)
}

/// An address that nobody listens on: for a server that can't choose its own port, or does not tell it.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// It is given no environment: a server's settings are those written down here, whoever runs the bench.
fn spawn(program: &Path, arguments: &[OsString], stdout: Stdio) -> Result<Child> {
    let mut command = Command::new(env::current_exe().context("this program can't be found again")?);
    command.arg("pinned").arg(program).args(arguments).env_clear().stdin(Stdio::null()).stdout(stdout);
    command.spawn().with_context(|| format!("can't start {}", program.display()))
}

/// A program to become.
#[derive(clap::Args)]
pub(crate) struct Pinned {
    program: PathBuf,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// The child's part: it goes on as another program, on the servers' core.
pub(crate) fn take_over(pinned: &Pinned) -> Result<Infallible> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    pin(CORES[0])?;
    let error = Command::new(&pinned.program).args(&pinned.arguments).exec();
    Err(error).with_context(|| format!("can't start {}", pinned.program.display()))
}

/// Binds this thread, and what it starts, to one core.
pub(crate) fn pin(core: usize) -> Result<()> {
    ensure!(core_affinity::set_for_current(CoreId { id: core }), "a process can't be pinned to core {core}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 123 45 6 7 20 0 2 0 99";
        assert_eq!(ticks(stat), Some(168));
        assert_eq!(ticks("7 (a) S 1"), None);
    }
}

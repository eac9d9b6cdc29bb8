//! A server in its own process, pinned to its own cores.
//!
//! The process is this same program with a hidden command, which pins itself and then executes the server. So a runtime
//! that asks for the number of cores gets the pinned ones. Between its measurements it is stopped, so that its timers
//! don't disturb others.

use super::program::Program;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::ParseIntError;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};
use std::{fmt, fs, thread};

/// The cores of the servers and of the generator.
pub(crate) const SERVERS: &[usize] = &[0];
pub(crate) const GENERATOR: &[usize] = &[1];
/// Both cores, for servers that share them with the generator.
pub(crate) const SHARED: &[usize] = &[0, 1];
/// The last line of output in which a server may print its address.
const MAX_BANNER_LINES: usize = 3;
/// How long a server may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A running server. It is killed when this value is dropped, and when this program ends.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// Kept open: a server that prints more must not find its pipe closed.
    _stdout: Option<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a server that prints its address, and waits until it does.
    pub(crate) fn start(
        program: &Program,
        arguments: &[OsString],
        cores: &[usize],
    ) -> Result<(Process, SocketAddr)> {
        let mut child = spawn(program, arguments, cores, Stdio::piped())?;
        let mut stdout = BufReader::new(child.stdout.take().context("a server's output can't be read")?);
        let mut text = String::new();
        while listen_address(&text).is_none()
            && text.lines().count() < MAX_BANNER_LINES
            && stdout.read_line(&mut text)? > 0
        {}
        let process = Process { child, _stdout: Some(stdout) };
        let address = listen_address(&text).with_context(|| {
            format!("{} does not print its address, but {:?}", program.path.display(), text.trim_end())
        })?;
        Ok((process, address.parse().with_context(|| format!("in {text:?}"))?))
    }

    /// Starts a server that listens on a given address, and waits until it does.
    pub(crate) fn start_at(
        address: SocketAddr,
        program: &Program,
        arguments: &[OsString],
        cores: &[usize],
    ) -> Result<Process> {
        let child = spawn(program, arguments, cores, Stdio::null())?;
        let mut process = Process { child, _stdout: None };
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = process.child.try_wait()? {
                bail!("{} ended with {status}", program.path.display());
            }
            ensure!(
                begin.elapsed() < START_TIMEOUT,
                "{} does not listen on {address}",
                program.path.display()
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(process)
    }

    /// Stops it (SIGSTOP) until it is resumed.
    pub(crate) fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Resumes it (SIGCONT).
    pub(crate) fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("a server ended early")
    }

    /// Its CPU time, in user and kernel mode.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let ticks = ticks(&stat).context("/proc has no CPU time of a server")?;
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

/// The CPU ticks in a process's line of `/proc`: the 14th and 15th field. The 2nd is its name in parentheses, which may
/// contain spaces and parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(ticks()? + ticks()?)
}

/// A free address, for a server that can't choose its own port or does not print it.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Finds the address a server listens on in its output, as part of a URL.
fn listen_address(text: &str) -> Option<&str> {
    text.split_once("://")?.1.split_terminator(char::is_whitespace).next()
}

/// The environment is empty, so that only the settings written here apply.
fn spawn(program: &Program, arguments: &[OsString], cores: &[usize], stdout: Stdio) -> Result<Child> {
    let mut command = Command::new(&Program::this()?.path);
    command.arg("pinned").arg(Cores(cores.to_vec()).to_string()).arg(&program.path).args(arguments);
    command.env_clear().stdin(Stdio::null()).stdout(stdout);
    if let Some(libraries) = &program.libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command.spawn().with_context(|| format!("can't start {}", program.path.display()))
}

/// A program to execute, and its cores.
#[derive(clap::Args)]
pub(crate) struct Pinned {
    cores: Cores,
    program: PathBuf,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Cores on a command line, separated by commas.
#[derive(Clone, Debug)]
struct Cores(Vec<usize>);

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

impl FromStr for Cores {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Cores, ParseIntError> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Cores)
    }
}

/// Runs in the child: pins itself to its cores and executes the program.
pub(crate) fn exec(pinned: &Pinned) -> Result<Infallible> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    pin(&pinned.cores.0)?;
    let error = Command::new(&pinned.program).args(&pinned.arguments).exec();
    Err(error).with_context(|| format!("can't start {}", pinned.program.display()))
}

/// Pins this thread, and what it starts, to these cores.
pub(crate) fn pin(cores: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core);
    }
    sched_setaffinity(None, &set).with_context(|| format!("a process can't be pinned to cores {cores:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parentheses_in_a_process_name_do_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 123 45 6 7 20 0 2 0 99";
        assert_eq!(ticks(stat), Some(168));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn the_listen_address_is_found_in_a_url() {
        assert_eq!(
            listen_address("ratekeeper 0.1.0 listening on http://127.0.0.1:80\n"),
            Some("127.0.0.1:80")
        );
        assert_eq!(listen_address("ratekeeper listens\nRESP: redis://[::1]:6380\nrules"), Some("[::1]:6380"));
        assert_eq!(listen_address("ratekeeper listens\n"), None);
    }

    #[test]
    fn cores_parse_what_they_print() {
        let cores: Cores = Cores(vec![0, 12]).to_string().parse().unwrap();
        assert_eq!(cores.0, [0, 12]);
        assert!("0,".parse::<Cores>().is_err());
    }
}

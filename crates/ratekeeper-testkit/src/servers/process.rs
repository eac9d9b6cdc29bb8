//! A child process that does not outlive its test.
//!
//! Dropping a [`ChildProcess`] kills it. A killed test drops nothing, so the shell that becomes the program first forks
//! a watchdog, which reads from a pipe that only the test holds open. A line on the pipe ends the watchdog; the end of
//! the pipe means that the test is gone, and the watchdog kills the program. `PR_SET_PDEATHSIG` would not do: it fires
//! when the thread that started the child ends, and a guard may outlive that thread.

use crate::wait::{OrFail, TEST_TIMEOUT, fail, wait_for};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

/// Forks the watchdog, then execs the program, which thus keeps the shell's pid. `read` fails only at the end of the
/// pipe.
const WATCHDOG_SCRIPT: &str = r#"exec 3<&0 </dev/null
(read -r line <&3 || kill -KILL $$) >/dev/null 2>&1 &
exec "$@" 3<&-"#;

/// A running program, killed when this is dropped.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    watchdog: Option<ChildStdin>,
    log: PathBuf,
    name: String,
}

impl ChildProcess {
    /// Starts a program. Its output is appended to the file `log`. Of the command's settings only arguments,
    /// environment and working directory are used.
    pub fn start(command: &Command, log: &Path) -> ChildProcess {
        ChildProcess::start_with_stdout(command, log, log)
    }

    /// Starts a program whose standard output goes to another file than its standard error.
    pub fn start_with_stdout(command: &Command, printed: &Path, log: &Path) -> ChildProcess {
        let name = Path::new(command.get_program()).file_name().unwrap_or_default().display().to_string();
        let mut leashed = Command::new("/bin/sh");
        leashed.args(["-c", WATCHDOG_SCRIPT, "leash"]).arg(command.get_program()).args(command.get_args());
        copy_env_and_dir(command, &mut leashed);
        let open =
            |path| File::options().create(true).append(true).open(path).or_fail("cannot open a log file");
        leashed.stdin(Stdio::piped()).stdout(open(printed)).stderr(open(log));
        let mut child = leashed.spawn().or_fail("cannot start /bin/sh");
        let watchdog = child.stdin.take();
        ChildProcess { child, watchdog, log: log.to_owned(), name }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, or `None` while it runs.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().or_fail("cannot query a child process")
    }

    /// Sends it a signal, by its name without `SIG`.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -s {name} {}", self.pid());
        let status = Command::new("/bin/sh").args(["-c", &kill]).status().or_fail("cannot start /bin/sh");
        if !status.success() {
            fail(&format!("cannot send SIG{name} to {}", self.name));
        }
    }

    /// Stops the process with SIGSTOP, its connections open and unanswered, until [`resume`](ChildProcess::resume).
    pub fn pause(&self) {
        self.signal("STOP");
        wait_for(TEST_TIMEOUT, "a process stops after SIGSTOP", || self.is_paused().then_some(()));
    }

    /// Resumes the process with SIGCONT.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Kills the process with SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.stop_watchdog();
        // Fails only if the process has ended already.
        let _ = self.child.kill();
        self.child.wait().or_fail("cannot wait for a child process");
    }

    /// Sends SIGTERM, and waits until the process has ended.
    pub fn stop(&mut self) -> ExitStatus {
        if self.exit_status().is_none() {
            self.signal("TERM");
        }
        let status =
            wait_for(TEST_TIMEOUT, &format!("{} ends after SIGTERM", self.name), || self.exit_status());
        self.stop_watchdog();
        status
    }

    /// Everything in the log file, including output of earlier processes that used the same file.
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    fn is_paused(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        // The name, in parentheses, may contain any character.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Ends the watchdog, before another process can get the pid that it would kill.
    fn stop_watchdog(&mut self) {
        if let Some(mut leash) = self.watchdog.take() {
            // Fails only if the watchdog is gone.
            let _ = leash.write_all(b"\n");
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.stop_watchdog();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Copies the environment and working directory of one command to another.
pub(crate) fn copy_env_and_dir(from: &Command, to: &mut Command) {
    for (variable, value) in from.get_envs() {
        match value {
            Some(value) => to.env(variable, value),
            None => to.env_remove(variable),
        };
    }
    if let Some(folder) = from.get_current_dir() {
        to.current_dir(folder);
    }
}

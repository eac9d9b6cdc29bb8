//! A process that does not outlive the test that started it.
//!
//! Dropping a [`ChildProcess`] kills it. A test that is killed drops nothing: so the shell that becomes the program leaves a watch
//! behind, which reads from a pipe that only the test holds open. A line means that all is well; the pipe's end means that
//! the test is gone, and the watch kills what it left. The kernel's own signal for a parent's death would not do: it comes
//! when the starting thread ends, and a guard may well be made on a thread that is gone long before it.

use crate::patience::{Must, PATIENCE, fail, within};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

/// Forks the watch and becomes the program, which thus has the number of the shell. `read` fails only at the pipe's end.
const LEASH: &str = r#"exec 3<&0 </dev/null
(read -r line <&3 || kill -KILL $$) >/dev/null 2>&1 &
exec "$@" 3<&-"#;

/// A running program, killed when this is dropped.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    leash: Option<ChildStdin>,
    log: PathBuf,
    name: String,
}

impl ChildProcess {
    /// Starts a program. What it says goes to the end of the file `log`; of the command's settings its arguments, its
    /// environment and its folder count.
    pub fn start(command: &Command, log: &Path) -> ChildProcess {
        ChildProcess::start_apart(command, log, log)
    }

    /// Starts a program of which what it prints goes to another file than what it logs.
    pub fn start_apart(command: &Command, printed: &Path, log: &Path) -> ChildProcess {
        let name = Path::new(command.get_program()).file_name().unwrap_or_default().display().to_string();
        let mut leashed = Command::new("/bin/sh");
        leashed.args(["-c", LEASH, "leash"]).arg(command.get_program()).args(command.get_args());
        copy_settings(command, &mut leashed);
        let open = |path| File::options().create(true).append(true).open(path).must("cannot write a log");
        leashed.stdin(Stdio::piped()).stdout(open(printed)).stderr(open(log));
        let mut child = leashed.spawn().must("cannot start /bin/sh");
        let leash = child.stdin.take();
        ChildProcess { child, leash, log: log.to_owned(), name }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().must("cannot ask after a child")
    }

    /// Sends it a signal, by its name without `SIG`.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -s {name} {}", self.id());
        let status = Command::new("/bin/sh").args(["-c", &kill]).status().must("cannot start /bin/sh");
        if !status.success() {
            fail(&format!("{} cannot be sent SIG{name}", self.name));
        }
    }

    /// Stops it where it is, its connections open and unanswered, until [`resume`](ChildProcess::resume).
    pub fn pause(&self) {
        self.signal("STOP");
        within(PATIENCE, "a process that was sent SIGSTOP stops", || self.is_paused().then_some(()));
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Kills it, without a chance to say goodbye, and waits until it is gone.
    pub fn kill(&mut self) {
        self.unleash();
        // It fails only if it has ended already.
        let _ = self.child.kill();
        self.child.wait().must("cannot wait for a child");
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(&mut self) -> ExitStatus {
        if self.ended().is_none() {
            self.signal("TERM");
        }
        let status = within(PATIENCE, &format!("{} ends when it is asked to", self.name), || self.ended());
        self.unleash();
        status
    }

    /// All that it has said, and those before it that used the same file.
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|said| String::from_utf8_lossy(&said).into_owned()).unwrap_or_default()
    }

    fn is_paused(&self) -> bool {
        let told = fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap_or_default();
        // The name, in parentheses, may itself have any character.
        told.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Ends the watch, before the number that it would kill can become somebody else's.
    fn unleash(&mut self) {
        if let Some(mut leash) = self.leash.take() {
            // It fails only if the watch is gone.
            let _ = leash.write_all(b"\n");
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.unleash();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Gives one command the environment and the folder of another.
pub(crate) fn copy_settings(from: &Command, to: &mut Command) {
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

//! A fake wall clock for a server, by libfaketime.
//!
//! libfaketime intercepts a program's clock calls, and reads from a file on each call what to return: an offset to the
//! real clock, or a frozen time. Only the wall clock is faked; durations stay real.

use super::program;
use crate::wait::OrFail;
use ratekeeper_core::Micros;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The folder of the clock file: in memory, since the file may be replaced thousands of times a second.
const SHARED_MEMORY: &str = "/dev/shm";

/// Valkey 9 reads the clock once a millisecond, and the TSC in between if `/proc/cpuinfo` says that it is constant. So
/// it is started with an empty `/proc/cpuinfo`.
const HIDE_CPUINFO: &str = "mount --bind /dev/null /proc/cpuinfo && exec \"$@\"";

/// The clock of one program.
#[derive(Debug)]
pub(crate) struct FakeTime {
    file: PathBuf,
    _folder: TempDir,
}

impl FakeTime {
    /// A clock that is ahead of the machine's by this many seconds, or behind it if negative.
    pub(crate) fn new(ahead_seconds: f64) -> FakeTime {
        let folder = tempfile::tempdir_in(SHARED_MEMORY).or_fail("cannot create a temporary folder");
        let clock = FakeTime { file: folder.path().join("clock"), _folder: folder };
        clock.set_offset(ahead_seconds);
        clock
    }

    /// A command for the program with this clock, ready for arguments.
    pub(crate) fn command(&self, program: &Path) -> Command {
        self.preload(Command::new("env"), program)
    }

    /// The same for a program that would read the TSC instead.
    pub(crate) fn command_without_tsc(&self, program: &Path) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", HIDE_CPUINFO, "sh", "env"]);
        self.preload(command, program)
    }

    fn preload(&self, mut command: Command, program: &Path) -> Command {
        let library = program::find_library("RATEKEEPER_LIBFAKETIME", "libfaketimeMT.so.1");
        // Debian's Redis uses jemalloc, which asks for the time before libfaketime is initialised, and hangs. With libc
        // before it in the list, libc's allocator is used.
        command.arg(format!("LD_PRELOAD={}:libc.so.6", library.display()));
        command.arg(format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display()));
        command.args(["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"]);
        // A frozen time is written as seconds since the epoch, whatever the time zone.
        command.args(["FAKETIME_FMT=%s", "TZ=UTC"]).arg(program);
        command
    }

    /// Removes the shared memory that libfaketime leaves for child processes. Servers have none, and a killed server
    /// would never remove it.
    pub(crate) fn remove_shared_memory(&self, process: u32) {
        for name in ["faketime_shm_", "sem.faketime_sem_"] {
            // Some versions create none.
            let _ = fs::remove_file(format!("{SHARED_MEMORY}/{name}{process}"));
        }
    }

    /// Lets the clock run, with a new offset.
    pub(crate) fn set_offset(&self, ahead_seconds: f64) {
        self.write(&format!("{ahead_seconds:+.6}\n"));
    }

    /// Freezes the clock.
    pub(crate) fn freeze(&self, at: Micros) {
        let (seconds, micros) = (at.get() / 1_000_000, at.get() % 1_000_000);
        // Half a microsecond more, because libfaketime parses it as a binary fraction and truncates.
        self.write(&format!("{seconds}.{micros:06}5\n"));
    }

    /// Replaces the file atomically, so that a partial number is never read.
    fn write(&self, time: &str) {
        let new = self.file.with_extension("new");
        fs::write(&new, time).or_fail("cannot write the clock file");
        fs::rename(new, &self.file).or_fail("cannot write the clock file");
    }
}

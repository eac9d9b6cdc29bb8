//! A clock of its own for a server.
//!
//! libfaketime stands between a program and the system's clock, and reads from a file what to show each time it is asked: by
//! how much to differ, or at which time to stand still. Only the time of day is changed: how long something takes stays true.

use super::program;
use crate::patience::Must;
use ratekeeper_core::Micros;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Where the file is: in memory, since it may be replaced thousands of times a second and disks are asked to be careful then.
const MEMORY: &str = "/dev/shm";

/// Valkey 9 looks at the clock once a millisecond and in between at the processor's own counter, if the system says that
/// this one is steady. So it is started where the system says nothing of the kind.
const WITHOUT_COUNTER: &str = "mount --bind /dev/null /proc/cpuinfo && exec \"$@\"";

/// The clock of one program.
#[derive(Debug)]
pub(crate) struct FakeTime {
    file: PathBuf,
    _folder: TempDir,
}

impl FakeTime {
    /// So many seconds ahead of the machine's, or behind it if there is a minus.
    pub(crate) fn new(ahead_seconds: f64) -> FakeTime {
        let folder = tempfile::tempdir_in(MEMORY).must("cannot make a folder");
        let clock = FakeTime { file: folder.path().join("clock"), _folder: folder };
        clock.set(ahead_seconds);
        clock
    }

    /// The program, ready for its arguments, with this clock.
    pub(crate) fn command(&self, program: &Path) -> Command {
        self.complete(Command::new("env"), program)
    }

    /// The same for one that would look at the processor's counter instead.
    pub(crate) fn command_without_counter(&self, program: &Path) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", WITHOUT_COUNTER, "sh", "env"]);
        self.complete(command, program)
    }

    fn complete(&self, mut command: Command, program: &Path) -> Command {
        let library = program::library("RATEKEEPER_LIBFAKETIME", "libfaketimeMT.so.1");
        // Debian's Redis allocates through jemalloc, which asks for the time before libfaketime is ready to tell it, and never
        // starts. With the C library before it in the list, that one's own allocator is taken.
        command.arg(format!("LD_PRELOAD={}:libc.so.6", library.display()));
        command.arg(format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display()));
        command.args(["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"]);
        // A time to stand still at is written as seconds since the epoch, which are the same everywhere.
        command.args(["FAKETIME_FMT=%s", "TZ=UTC"]).arg(program);
        command
    }

    /// Removes what libfaketime leaves in shared memory for children of the program, which a server has none of; a killed one would
    /// leave it there for good.
    pub(crate) fn tidy(&self, process: u32) {
        for name in ["faketime_shm_", "sem.faketime_sem_"] {
            // Some versions have none.
            let _ = fs::remove_file(format!("{MEMORY}/{name}{process}"));
        }
    }

    /// Has it go on, with a new difference.
    pub(crate) fn set(&self, ahead_seconds: f64) {
        self.write(&format!("{ahead_seconds:+.6}\n"));
    }

    /// Has it stand still.
    pub(crate) fn stop(&self, at: Micros) {
        let (seconds, micros) = (at.get() / 1_000_000, at.get() % 1_000_000);
        // Half a microsecond more, because it is read as a binary fraction and then cut short.
        self.write(&format!("{seconds}.{micros:06}5\n"));
    }

    /// The file is replaced whole: half a number is never read.
    fn write(&self, time: &str) {
        let new = self.file.with_extension("new");
        fs::write(&new, time).must("cannot write a clock");
        fs::rename(new, &self.file).must("cannot write a clock");
    }
}

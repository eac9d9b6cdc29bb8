//! A clock of its own for a server.
//!
//! libfaketime stands between a program and the system's clock, and reads from a file by how much to differ each time it is
//! asked. Only the time of day is changed: how long something takes stays true.

use super::program;
use crate::patience::Must;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How much one program's clock differs from the machine's.
#[derive(Debug)]
pub(crate) struct FakeTime {
    file: PathBuf,
}

impl FakeTime {
    /// So many seconds ahead of the machine's, or behind it if there is a minus. The folder keeps the file.
    pub(crate) fn new(folder: &Path, ahead_seconds: f64) -> FakeTime {
        let clock = FakeTime { file: folder.join("clock") };
        clock.set(ahead_seconds);
        clock
    }

    /// The program, ready for its arguments, with this clock.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let library = program::library("TOLLGATE_LIBFAKETIME", "libfaketimeMT.so.1");
        let mut command = Command::new("env");
        // Debian's Redis allocates through jemalloc, which asks for the time before libfaketime is ready to tell it, and never
        // starts. With the C library before it in the list, that one's own allocator is taken.
        command.arg(format!("LD_PRELOAD={}:libc.so.6", library.display()));
        command.arg(format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display()));
        command.args(["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"]).arg(program);
        command
    }

    /// Removes what libfaketime leaves in shared memory for children of the program, which a server has none of; a killed one would
    /// leave it there for good.
    pub(crate) fn tidy(&self, process: u32) {
        for name in ["faketime_shm_", "sem.faketime_sem_"] {
            // Some versions have none.
            let _ = fs::remove_file(format!("/dev/shm/{name}{process}"));
        }
    }

    /// Changes it. The file is replaced whole: half a number is never read.
    pub(crate) fn set(&self, ahead_seconds: f64) {
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{ahead_seconds:+.6}\n")).must("cannot write a clock");
        fs::rename(new, &self.file).must("cannot write a clock");
    }
}

//! What a process has taken of its machine.

use crate::patience::Must;
use std::fs;

/// What a process has taken of its machine, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// How many files and connections are open.
    pub descriptors: usize,
    /// How many threads there are.
    pub threads: usize,
    /// How much of its memory is in use, in KiB.
    pub memory_kib: usize,
}

impl Footprint {
    /// Of the process with this number.
    #[track_caller]
    pub(crate) fn of(process: u32) -> Footprint {
        let descriptors =
            fs::read_dir(format!("/proc/{process}/fd")).must("cannot see what a process has open").count();
        let status = fs::read_to_string(format!("/proc/{process}/status")).must("cannot see a process");
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            number.must(&format!("its status says no {name}"))
        };
        Footprint { descriptors, threads: number("Threads"), memory_kib: number("VmRSS") }
    }
}

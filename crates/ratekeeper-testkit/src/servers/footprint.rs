//! The resources that a process uses.

use crate::wait::OrFail;
use std::fs;

/// The resources that a process uses at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Open file descriptors, including connections.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Resident memory, in KiB.
    pub memory_kib: usize,
}

impl Footprint {
    /// The resources of the process with this id.
    #[track_caller]
    pub(crate) fn of(process: u32) -> Footprint {
        let descriptors = fs::read_dir(format!("/proc/{process}/fd"))
            .or_fail("cannot list a process's file descriptors")
            .count();
        let status =
            fs::read_to_string(format!("/proc/{process}/status")).or_fail("cannot read a process's status");
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            number.or_fail(&format!("/proc/{process}/status has no {name}"))
        };
        Footprint { descriptors, threads: number("Threads"), memory_kib: number("VmRSS") }
    }
}

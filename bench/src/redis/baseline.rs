//! The usual alternative to Ratekeeper: one script call per check.
//!
//! The script does about the minimum for a limiter of its kind: it reads the server's clock and one value, and writes
//! one value with an expiry. redis-benchmark sends the calls, which parses almost nothing.

use super::host::Host;
use super::measurement::{Measurement, Stopwatch};
use crate::server::process::GENERATOR;
use crate::server::program::Program;
use crate::server::rounds::LoadSchedule;
use crate::server::template::KEYS;
use anyhow::{Context, Result, ensure};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The state is the time at which the bucket will be full again, in microseconds.
const SCRIPT: &str = "
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local interval, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local full = tonumber(redis.call('GET', KEYS[1]) or now)
if full < now then full = now end
full = full + interval
if full - now > most then return {0, full - most - now} end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
return {1, math.floor((most - full + now) / interval)}
";

/// Microseconds until one unit refills, and until a million do: 1000/h burst 1000000.
const INTERVAL: &str = "3600000";
const MOST: &str = "3600000000000";

/// The number of connections.
const CONNECTIONS: usize = 64;

/// Pipeline depths.
pub(crate) const DEPTHS: [usize; 4] = [1, 16, 64, 256];

/// redis-benchmark with a pipeline depth.
pub(crate) struct ScriptPerCheck<'a> {
    program: &'a Program,
    digest: String,
    pub(crate) depth: usize,
    /// The approximate number of calls per second.
    pace: f64,
}

impl<'a> ScriptPerCheck<'a> {
    /// Finds the depth with the highest throughput.
    pub(crate) fn at_its_best(program: &'a Program, host: &Host) -> Result<ScriptPerCheck<'a>> {
        let digest = host.command(&["SCRIPT", "LOAD", SCRIPT])?;
        let mut best = ScriptPerCheck { program, digest, depth: 0, pace: 0.0 };
        for depth in DEPTHS {
            let pace = best.run(host, depth, 60_000)?;
            if pace > best.pace {
                (best.depth, best.pace) = (depth, pace);
            }
        }
        Ok(best)
    }

    /// Runs one measurement.
    pub(crate) fn measure(&self, host: &Host, schedule: LoadSchedule) -> Result<Measurement> {
        let calls = |time: Duration| (self.pace * time.as_secs_f64()) as u64;
        self.run(host, self.depth, calls(schedule.warm_up))?;
        let stopwatch = Stopwatch::start(host, None)?;
        let pace = self.run(host, self.depth, calls(schedule.time))?;
        let measurement = stopwatch.stop(0)?;
        // redis-benchmark's own rate, because its start takes a while.
        Ok(Measurement { checks: measurement.calls, elapsed: measurement.calls / pace, ..measurement })
    }

    /// Makes `calls` calls. Returns calls per second.
    fn run(&self, host: &Host, depth: usize, calls: u64) -> Result<f64> {
        let (port, depth, calls) = (host.address.port().to_string(), depth.to_string(), calls.to_string());
        let (connections, keys) = (CONNECTIONS.to_string(), KEYS.to_string());
        let mut command = Command::new(&Program::this()?.path);
        command.arg("pinned").arg(GENERATOR[0].to_string()).arg(&self.program.path);
        command.args(["-p", &port, "-c", &connections, "-P", &depth, "-n", &calls, "-r", &keys, "--csv"]);
        command.args(["EVALSHA", &self.digest, "1", "user:__rand_int__", INTERVAL, MOST]);
        command.env_clear().stdin(Stdio::null()).stderr(Stdio::inherit());
        command.envs(self.program.libraries.iter().map(|folder| ("LD_LIBRARY_PATH", folder)));
        let output = command.output().context("can't start redis-benchmark")?;
        ensure!(output.status.success(), "redis-benchmark ended with {}", output.status);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // One line of names, then one of figures in quotes: the command, then calls per second.
        let line = text.lines().last().unwrap_or_default();
        let pace = line.split("\",\"").nth(1).and_then(|word| word.trim_matches('"').parse().ok());
        pace.with_context(|| format!("redis-benchmark printed {text:?}"))
    }
}

//! A flood of new keys: memory stays within the cap, and denied keys stay denied.

use crate::child::{self, Figures, resident};
use crate::keys;
use crate::run::Run;
use crate::table::Table;
use anyhow::{Result, ensure};
use ratekeeper::{Capacity, Limiter, MemoryStore, SystemClock};
use std::time::{Duration, Instant};

/// A unit takes about 15 minutes to refill, so a key that is denied before the flood must still be denied after it.
const QUOTA: &str = "100/day";
/// Keys that are denied when the flood begins. A single one could survive by chance.
const DENIED_KEYS: u64 = 1000;
/// What the process may grow by besides the store: code pages that are loaded on first use, and allocator overhead.
const SLACK: u64 = 1 << 20;

/// Floods a store of `cap` keys with `newcomers` new keys.
pub(crate) fn measure(run: &mut Run, cap: u64, newcomers: u64) -> Result<()> {
    let figures = child::run("flood", &[cap.to_string(), newcomers.to_string()])?;
    let read = |name: &str| figures.read(name);
    let (grown, max_bytes) = (read("bytes")?, read("max_bytes")?);
    let (held, still) = (read("held")?, read("still_denied")?);
    let mut table = Table::new(1, ["", "", "bar", ""]);
    let mut fact = |what: &str, figure: String, bar: String, result: &str| {
        table.row([what.to_owned(), figure, bar, result.to_owned()]);
    };
    let result = run.check_bar(grown <= max_bytes + SLACK);
    fact("growth of VmRSS, bytes", grown.to_string(), format!("<= {max_bytes} + 1 MiB"), result);
    fact("keys held", held.to_string(), format!("<= {cap}"), run.check_bar(held <= cap));
    fact(
        "denied keys still denied",
        still.to_string(),
        format!("= {DENIED_KEYS}"),
        run.check_bar(still == DENIED_KEYS),
    );
    fact(
        "new keys denied",
        read("denied")?.to_string(),
        "= 0".to_owned(),
        run.check_bar(read("denied")? == 0),
    );
    fact("evicted", read("evicted")?.to_string(), String::new(), "");
    fact("uncounted", read("uncounted")?.to_string(), String::new(), "");
    fact("ns/check while filling", read("filling_ns")?.to_string(), String::new(), "");
    fact("ns/check at the cap", read("flooding_ns")?.to_string(), String::new(), "");
    run.say(format_args!(
        "\nflood: cap of {cap} keys, {DENIED_KEYS} denied keys, then {newcomers} new keys, checked once each"
    ));
    run.say(table);
    Ok(())
}

/// Runs in the child process.
pub(crate) fn take(cap: u64, newcomers: u64) -> Result<Figures> {
    keys::warm_up();
    let before = resident("VmRSS")?;
    let store = MemoryStore::with(SystemClock::new(), Capacity::keys(cap as usize))?;
    let limiter = Limiter::with_store(QUOTA, store)?;
    let is_denied = |key: &String| !limiter.check_now(key).is_allowed();
    let mut exhausted = 0;
    let exhaust = |key: &&String| (0..=limiter.limits()[0].capacity()).any(|_| is_denied(key));
    keys::in_chunks(0, DENIED_KEYS, |keys| exhausted += keys.iter().filter(exhaust).count() as u64);
    ensure!(exhausted == DENIED_KEYS, "{exhausted} of {DENIED_KEYS} keys are denied before the flood");

    let (mut time, mut checks, mut denied) = ([Duration::ZERO; 2], [0; 2], 0);
    keys::in_chunks(DENIED_KEYS, DENIED_KEYS + newcomers, |keys| {
        // Shards fill unevenly; above 90 % of the cap, some of them are full.
        let phase = usize::from(checks[0] >= cap * 9 / 10);
        let start = Instant::now();
        denied += keys.iter().filter(|key| is_denied(key)).count() as u64;
        time[phase] += start.elapsed();
        checks[phase] += keys.len() as u64;
    });

    let grown = resident("VmRSS")?.saturating_sub(before);
    let mut still_denied = 0;
    keys::in_chunks(0, DENIED_KEYS, |keys| {
        still_denied += keys.iter().filter(|key| is_denied(key)).count() as u64;
    });
    let stats = limiter.store().stats();
    let each = |phase: usize| time[phase].as_nanos() as u64 / checks[phase].max(1);
    let mut figures = Figures::default();
    figures.note("bytes", grown);
    figures.note("max_bytes", stats.max_bytes as u64);
    figures.note("held", stats.keys as u64);
    figures.note("evicted", stats.evicted);
    figures.note("uncounted", stats.uncounted);
    figures.note("denied", denied);
    figures.note("still_denied", still_denied);
    figures.note("filling_ns", each(0));
    figures.note("flooding_ns", each(1));
    Ok(figures)
}

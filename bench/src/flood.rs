//! A flood of keys never seen before: memory stays within the cap, and whoever was being refused still is.

use crate::child::{self, Figures, resident};
use crate::keys;
use crate::run::Run;
use crate::table::Table;
use anyhow::{Result, ensure};
use ratekeeper::{Capacity, Limiter, MemoryStore, SystemClock};
use std::time::{Duration, Instant};

/// A unit takes a quarter of an hour to come back: whoever is refused before the flood must be refused after it.
const QUOTA: &str = "100/day";
/// Keys that are being refused when the flood begins. One might stay by luck.
const VICTIMS: u64 = 1000;
/// What the process itself may grow by: code that is read in when it is first run, and the allocator's own.
const SLACK: u64 = 1 << 20;

/// Floods a store of `cap` keys with `newcomers`.
pub(crate) fn measure(run: &mut Run, cap: u64, newcomers: u64) -> Result<()> {
    let figures = child::ask("flood", &[cap.to_string(), newcomers.to_string()])?;
    let read = |name: &str| figures.read(name);
    let (grown, max_bytes) = (read("bytes")?, read("max_bytes")?);
    let (held, still) = (read("held")?, read("still_refused")?);
    let mut table = Table::new(1, ["", "", "bar", ""]);
    let mut fact = |what: &str, figure: String, bar: String, result: &str| {
        table.row([what.to_owned(), figure, bar, result.to_owned()]);
    };
    let result = run.check_bar(grown <= max_bytes + SLACK);
    fact("growth of VmRSS, bytes", grown.to_string(), format!("<= {max_bytes} + 1 MiB"), result);
    fact("keys held", held.to_string(), format!("<= {cap}"), run.check_bar(held <= cap));
    fact(
        "refused keys still refused",
        still.to_string(),
        format!("= {VICTIMS}"),
        run.check_bar(still == VICTIMS),
    );
    fact(
        "newcomers refused",
        read("refused")?.to_string(),
        "= 0".to_owned(),
        run.check_bar(read("refused")? == 0),
    );
    fact("evicted", read("evicted")?.to_string(), String::new(), "");
    fact("unremembered", read("unremembered")?.to_string(), String::new(), "");
    fact("ns/check while filling", read("filling_ns")?.to_string(), String::new(), "");
    fact("ns/check at the cap", read("flooding_ns")?.to_string(), String::new(), "");
    run.say(format_args!(
        "\nflood: cap of {cap} keys, {VICTIMS} being refused, then {newcomers} new ones, once each"
    ));
    run.say(table);
    Ok(())
}

/// The child's part.
pub(crate) fn take(cap: u64, newcomers: u64) -> Result<Figures> {
    keys::warm_up();
    let before = resident("VmRSS")?;
    let store = MemoryStore::with(SystemClock::new(), Capacity::keys(cap as usize))?;
    let limiter = Limiter::with_store(QUOTA, store)?;
    let is_refused = |key: &String| !limiter.check_now(key).is_allowed();
    let mut exhausted = 0;
    let exhaust = |key: &&String| (0..=limiter.limits()[0].capacity()).any(|_| is_refused(key));
    keys::in_chunks(0, VICTIMS, |keys| exhausted += keys.iter().filter(exhaust).count() as u64);
    ensure!(exhausted == VICTIMS, "{exhausted} of {VICTIMS} keys are refused before the flood");

    let (mut time, mut checks, mut refused) = ([Duration::ZERO; 2], [0; 2], 0);
    keys::in_chunks(VICTIMS, VICTIMS + newcomers, |keys| {
        // Shards fill unevenly; past nine tenths some of them are at their cap.
        let phase = usize::from(checks[0] >= cap * 9 / 10);
        let start = Instant::now();
        refused += keys.iter().filter(|key| is_refused(key)).count() as u64;
        time[phase] += start.elapsed();
        checks[phase] += keys.len() as u64;
    });

    let grown = resident("VmRSS")?.saturating_sub(before);
    let mut still_refused = 0;
    keys::in_chunks(0, VICTIMS, |keys| {
        still_refused += keys.iter().filter(|key| is_refused(key)).count() as u64;
    });
    let stats = limiter.store().stats();
    let each = |phase: usize| time[phase].as_nanos() as u64 / checks[phase].max(1);
    let mut figures = Figures::default();
    figures.note("bytes", grown);
    figures.note("max_bytes", stats.max_bytes as u64);
    figures.note("held", stats.keys as u64);
    figures.note("evicted", stats.evicted);
    figures.note("unremembered", stats.uncounted);
    figures.note("refused", refused);
    figures.note("still_refused", still_refused);
    figures.note("filling_ns", each(0));
    figures.note("flooding_ns", each(1));
    Ok(figures)
}

//! Resident bytes per key, with each limiter in its own process.

use crate::child::{self, Figures, resident};
use crate::keys;
use crate::other_limiters::{Governor, Throttlecrab};
use crate::run::Run;
use crate::subject::{Allowance, Ratekeeper, Subject};
use crate::table::Table;
use anyhow::{Result, ensure};
use ratekeeper::Capacity;

/// The maximum bytes per key.
const BAR: f64 = 40.0;

/// A thousand units, of which one refills per day: the debt of one check outlasts the run, and no key drains.
const SLOW: Allowance = Allowance { amount: 1, per_secs: 86_400, burst: 1000 };

/// The limiter library memory is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Library {
    Ratekeeper,
    Governor,
    Throttlecrab,
}

/// Measures all limiters with `keys` keys.
pub(crate) fn measure(run: &mut Run, keys: u64) -> Result<()> {
    let mut table = Table::new(1, ["", "keys held", "bytes/key", "peak", "bar", ""]);
    // Ratekeeper twice: with spare capacity, and with a cap just above the number of keys.
    let (roomy, tight) = (keys * 12 / 10, keys * 105 / 100);
    let rows = [
        (Library::Ratekeeper, roomy),
        (Library::Ratekeeper, tight),
        (Library::Governor, 0),
        (Library::Throttlecrab, keys),
    ];
    for (library, cap) in rows {
        let name = format!("{library:?}").to_lowercase();
        let figures = child::run("footprint", &[name.clone(), keys.to_string(), cap.to_string()])?;
        let bytes = figures.read("bytes")? as f64 / keys as f64;
        let peak = format!("{:.1}", figures.read("peak_bytes")? as f64 / keys as f64);
        let (name, held, bar, result) = match library {
            Library::Ratekeeper => {
                let held = figures.read("held")?;
                ensure!(
                    held >= keys / 1000 * 999,
                    "ratekeeper holds only {held} of {keys} keys, so the figure would be wrong"
                );
                let result = run.check_bar(bytes <= BAR);
                (format!("ratekeeper, cap {cap}"), held.to_string(), format!("<= {BAR}"), result)
            }
            Library::Governor => (name, figures.read("held")?.to_string(), String::new(), ""),
            Library::Throttlecrab => (name + " periodic", "unknown".to_owned(), String::new(), ""),
        };
        table.row([name, held, format!("{bytes:.1}"), peak, bar, result.to_owned()]);
    }
    run.say(format_args!("\nfootprint: growth of VmRSS for {keys} keys, each checked once"));
    run.say(table);
    Ok(())
}

/// Runs in the child process: fills a limiter and returns how much this process grew.
pub(crate) fn take(library: Library, keys: u64, cap: u64) -> Result<Figures> {
    keys::warm_up();
    let before = resident("VmRSS")?;
    let subject: Box<dyn Subject> = match library {
        Library::Ratekeeper => Box::new(Ratekeeper::new(SLOW, Capacity::keys(cap as usize))?),
        Library::Governor => Box::new(Governor::new(SLOW)?),
        Library::Throttlecrab => Box::new(Throttlecrab::periodic(SLOW, cap)),
    };
    let mut allowed = 0;
    keys::in_chunks(0, keys, |keys| allowed += subject.check_all(keys, 1));
    ensure!(allowed == keys as usize, "{} of {keys} new keys were denied", keys as usize - allowed);
    let mut figures = Figures::default();
    figures.note("bytes", resident("VmRSS")?.saturating_sub(before));
    figures.note("peak_bytes", resident("VmHWM")?.saturating_sub(before));
    if let Some(held) = subject.held() {
        figures.note("held", held as u64);
    }
    Ok(figures)
}

//! Resident bytes for a key, each limiter in a process of its own.

use crate::child::{self, Figures, resident};
use crate::keys;
use crate::other_limiters::{Governor, Throttlecrab};
use crate::run::Run;
use crate::subject::{Allowance, Ratekeeper, Subject};
use crate::table::Table;
use anyhow::{Result, ensure};
use ratekeeper::Capacity;

/// The most bytes that a key may take.
const BAR: f64 = 40.0;

/// A thousand units, of which one comes back each day: what one check takes outlasts the run, and no key drains.
const SLOW: Allowance = Allowance { amount: 1, per_secs: 86_400, burst: 1000 };

/// Whose memory is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Whose {
    Ratekeeper,
    Governor,
    Throttlecrab,
}

/// Measures all of them with `keys` keys.
pub(crate) fn measure(run: &mut Run, keys: u64) -> Result<()> {
    let mut table = Table::new(1, ["", "keys held", "bytes/key", "at the peak", "bar", ""]);
    // Ratekeeper twice: with room to spare, and with its cap just above the keys.
    let (roomy, tight) = (keys * 12 / 10, keys * 105 / 100);
    let rows = [
        (Whose::Ratekeeper, roomy),
        (Whose::Ratekeeper, tight),
        (Whose::Governor, 0),
        (Whose::Throttlecrab, keys),
    ];
    for (whose, cap) in rows {
        let name = format!("{whose:?}").to_lowercase();
        let figures = child::ask("footprint", &[name.clone(), keys.to_string(), cap.to_string()])?;
        let bytes = figures.read("bytes")? as f64 / keys as f64;
        let peak = format!("{:.1}", figures.read("peak_bytes")? as f64 / keys as f64);
        let (name, held, bar, result) = match whose {
            Whose::Ratekeeper => {
                let held = figures.read("held")?;
                ensure!(
                    held >= keys / 1000 * 999,
                    "ratekeeper holds only {held} of {keys} keys: no figure to quote"
                );
                let result = run.check_bar(bytes <= BAR);
                (format!("ratekeeper, cap {cap}"), held.to_string(), format!("<= {BAR}"), result)
            }
            Whose::Governor => (name, figures.read("held")?.to_string(), String::new(), ""),
            Whose::Throttlecrab => (name + " periodic", "not told".to_owned(), String::new(), ""),
        };
        table.row([name, held, format!("{bytes:.1}"), peak, bar, result.to_owned()]);
    }
    run.say(format_args!("\nfootprint: growth of VmRSS for {keys} keys, each checked once"));
    run.say(table);
    Ok(())
}

/// The child's part: fills a limiter and says how much this process grew.
pub(crate) fn take(whose: Whose, keys: u64, cap: u64) -> Result<Figures> {
    keys::warm_up();
    let before = resident("VmRSS")?;
    let subject: Box<dyn Subject> = match whose {
        Whose::Ratekeeper => Box::new(Ratekeeper::new(SLOW, Capacity::keys(cap as usize))?),
        Whose::Governor => Box::new(Governor::new(SLOW)?),
        Whose::Throttlecrab => Box::new(Throttlecrab::periodic(SLOW, cap)),
    };
    let mut allowed = 0;
    keys::in_chunks(0, keys, |keys| allowed += subject.check_all(keys, 1));
    ensure!(allowed == keys as usize, "{} of {keys} new keys were refused", keys as usize - allowed);
    let mut figures = Figures::default();
    figures.note("bytes", resident("VmRSS")?.saturating_sub(before));
    figures.note("peak_bytes", resident("VmHWM")?.saturating_sub(before));
    if let Some(held) = subject.held() {
        figures.note("held", held as u64);
    }
    Ok(figures)
}

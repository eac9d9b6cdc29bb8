//! What is different with windows: they end, and what is in hand then is lost, and so is what has come by then and nobody
//! asked for.
//!
//! Where so much more is drawn than there is that a good part is refused, those who are refused now make up for those who were
//! refused a moment ago in vain, as long as enough of them come before the window ends. So a busy node asks once in a
//! while, as with buckets, but the more often the nearer the end is, and in the last moments each draw is decided by the store.

use super::super::demand::Demand;
use super::super::entry::{LEAST_MARGIN, LEAST_USE};
use super::{float, seconds, span};
use ratekeeper_core::{Algorithm, Limit, Micros, Span, State};

/// A window of this length is spent or over in no time.
const SHORT: Span = Span::secs(10);
/// From how many draws a second on a window's key costs the store enough for that to matter more than the last unit.
const BUSY: f32 = 800.0;
/// Near the limit, a node takes for this part of what is left of a window, in time, and if it is short in units too; for the
/// greater part if there are so many units that chance makes a greater difference. The last part, which is too short to be
/// taken ahead for, comes after a few such steps. What is in one node's hand is missing at the others, but in a short window
/// not for long.
const PARTS: (f32, f32) = (0.5, 0.65);
/// What is taken for this part of a short window of many units is hardly missed even if little is left.
const BRIEF: f32 = 0.06;
const MANY: f32 = 10_000.0;
/// By chance a window of `c` units that is drawn as fast as it allows refuses about `0.4 / √c` of what is drawn; this over the
/// root is surely more than chance. What is refused is counted over so many units at least.
const CHANCE: f32 = 2.5;
const COUNTED: f32 = 1_000.0;
/// What share of some draws is refused varies by chance: by this over the root of their number, mostly.
const VARIES: f32 = 0.5;
/// The part of those who will be refused that may have to make up for those refused in vain.
const MADE_UP: f32 = 0.9;
/// How many trips of a question and its answer before the window ends everything must have been made up for.
const TRIPS: f32 = 3.0;
/// If most are refused, the part of what is left of a window for which not to ask.
const PAUSE: f32 = 0.25;
/// What comes in this part of a window, for each time that it is granted, is hardly missed.
const HARDLY_MISSED: f32 = 0.000_5;

/// How a window stands when the store hears of it.
#[derive(Clone, Copy, Debug)]
pub(in crate::lease) struct WindowView {
    /// For how many seconds it lasts.
    lasts: f32,
    /// How many seconds it takes to ask the store.
    trip: f32,
}

impl WindowView {
    /// The window that a state is of at the store's time `at`, where answers take so long; nothing if the law has none.
    pub(in crate::lease) fn of(
        limit: &Limit,
        seen: Option<State>,
        at: Micros,
        trip: Span,
    ) -> Option<WindowView> {
        let lasts = match limit.law() {
            Algorithm::FixedWindow(_) => {
                let ends = seen.map(|seen| Micros::new(limit.parts_of(seen)[0])).filter(|ends| *ends > at);
                ends.or_else(|| limit.window_end(at))?.since(at)
            }
            Algorithm::SlidingWindowCounter => {
                let per = limit.quota().per().get();
                Span::micros(per - at.get() % per)
            }
            _ => return None,
        };
        Some(WindowView { lasts: seconds(lasts), trip: seconds(trip) })
    }

    /// For how many seconds what is asked for now can be spent; nothing if that is not worth it. It comes when the answer has
    /// come, and ends before the window does. Of a window that has just begun it is not sure that it has.
    pub(super) fn useful(self, limit: &Limit) -> Option<f32> {
        let is_sure = seconds(limit.window()) - self.lasts >= self.trip / 2.0;
        let useful = self.lasts - self.trip - seconds(LEAST_MARGIN);
        (is_sure && useful >= seconds(LEAST_USE)).then_some(useful)
    }

    /// For how long it lasts.
    pub(super) fn lasts(self) -> Span {
        span(self.lasts)
    }

    /// How many seconds pass before there is another answer, if so long nobody asks.
    pub(super) fn until_asked(self, pause: Span) -> f32 {
        seconds(pause) + self.trip
    }

    /// For how many seconds it need not be asked for. What comes meanwhile is still there afterwards, but lost unless it is
    /// spent before the window ends: so a part of those who will be refused until then has to make up for it.
    pub(super) fn bearable(self, limit: &Limit, demand: &Demand) -> f32 {
        let refused = demand.refused_share();
        let hardly = HARDLY_MISSED * seconds(limit.window()) / (1.0 - refused) - self.trip;
        if demand.is_mostly_refused() {
            return hardly.max(PAUSE * self.lasts);
        }
        if !is_overdrawn(limit, demand) {
            return 0.0;
        }
        let surely = refused - chance(limit, demand) - VARIES / (demand.draws_here() * self.lasts).sqrt();
        // In the last moments neither is left, and two negatives must not make a pause.
        let (surely, until_late) = (surely.max(0.0), (self.lasts - TRIPS * self.trip).max(0.0));
        hardly.max(surely * MADE_UP * until_late - self.trip)
    }
}

/// Whether what a state says of a fixed window is over by then, so that nothing is known of how much is left.
pub(in crate::lease) fn is_over(limit: &Limit, seen: Option<State>, at: Micros) -> bool {
    matches!(limit.law(), Algorithm::FixedWindow(_))
        && seen.is_some_and(|seen| Micros::new(limit.parts_of(seen)[0]) <= at)
}

/// Whether so much more is drawn of a busy key than its short window allows that it can't be chance.
pub(super) fn is_overdrawn(limit: &Limit, demand: &Demand) -> bool {
    is_short(limit) && is_busy(demand) && demand.refused_share() > chance(limit, demand)
}

fn chance(limit: &Limit, demand: &Demand) -> f32 {
    CHANCE / (float(limit.capacity()) / demand.cost()).sqrt()
}

/// Whether a window's key is drawn so often that asking the store matters more than the last unit.
pub(super) fn is_busy(demand: &Demand) -> bool {
    demand.draws_here() > BUSY
}

/// How many units make up what is known of how many are refused: those of a window, which is now full and now not.
pub(in crate::lease) fn counted(limit: &Limit) -> f32 {
    if has_windows(limit) { float(limit.capacity()).max(COUNTED) } else { COUNTED }
}

/// The part of what is left of a window for which to take ahead near the limit.
pub(super) fn part(limit: &Limit, demand: &Demand) -> f32 {
    PARTS.0 + (PARTS.1 - PARTS.0) * share_of_many(limit, demand)
}

/// For how many seconds a window can spare units though little is left.
pub(super) fn brief(limit: &Limit, demand: &Demand) -> f32 {
    BRIEF * seconds(limit.window()) * share_of_many(limit, demand)
}

fn share_of_many(limit: &Limit, demand: &Demand) -> f32 {
    (float(limit.capacity()) / demand.cost() / MANY).min(1.0)
}

/// Whether what is lent lapses with a window, so that it can't be renewed.
pub(in crate::lease) fn has_windows(limit: &Limit) -> bool {
    matches!(limit.law(), Algorithm::FixedWindow(_) | Algorithm::SlidingWindowCounter)
}

/// Whether what is in hand is spent or lapses in no time.
pub(super) fn is_short(limit: &Limit) -> bool {
    has_windows(limit) && limit.window() < SHORT
}

#[cfg(test)]
mod tests {
    use super::super::super::demand::DrawCounters;
    use super::*;

    /// A key that is drawn 1350 times a second, of which a third is refused.
    fn demand() -> Demand {
        let mut demand = Demand::new(Micros::EPOCH);
        for second in 1..=20_u32 {
            let drawn = 1_350 * second;
            demand.refuse(450);
            demand.count(
                DrawCounters { draws: drawn, units: drawn },
                2_000.0,
                Micros::new(u64::from(second) * 1_000_000),
            );
        }
        demand
    }

    #[test]
    fn the_nearer_its_end_is_the_more_often_a_window_is_asked_for() {
        let limit = Limit::new(Algorithm::SlidingWindowCounter, "1000/s".parse().unwrap()).unwrap();
        let demand = demand();
        assert!(is_overdrawn(&limit, &demand));
        let pauses = [1.0, 0.1, 0.03, 0.005, 0.001, 1e-4, 1e-6, 0.0].map(|lasts| {
            let pause = WindowView { lasts, trip: 0.001 }.bearable(&limit, &demand);
            assert!(pause < lasts.max(1e-9) / 3.0, "{pause} s of {lasts} s");
            pause
        });
        assert!(pauses[0] > 0.1 && pauses.is_sorted_by(|before, after| before >= after), "{pauses:?}");
    }
}

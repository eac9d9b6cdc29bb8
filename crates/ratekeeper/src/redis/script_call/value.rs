//! A key's state as bytes: which limit wrote it, then its numbers.
//!
//! The limit comes first and in full, so that whoever finds the state under another limit can tell what it meant. The
//! numbers follow, each in as many bytes as the limit allows it to need. Of the time since which a bucket owes, only the
//! low bytes are kept, because the time now tells the others: a state that could be mistaken for a later one has lapsed
//! long before. So the usual states have 12 bytes, which is as much as a server keeps in its smallest piece but one.
//!
//! Behind a bucket's state stands what is lent of it, older and recent, in four bytes each; if nothing is, nothing does.
//!
//! Last comes what other quotas have left of the key, if any has: when all of that will have drained, from when on the own
//! state is void, and then each state, written as it would be alone, behind its length and when it will have drained. A
//! time that was cut short can't be read after that. Before all this a bucket always tells what is lent.

use ratekeeper_core::{
    Algorithm, Align, Leak, LeasedState, LentUnits, Limit, LimitParams, Micros, PriorStates, Quota, Span,
    State, Zone,
};

/// The longest value there is: the script tells of its length in one byte.
const LONGEST: usize = 255;

/// By how much a server's clock may be set back or forth before the time in a state is read wrongly.
const CLOCK_STEP: Span = Span::micros(2 * Span::DAY.get());

/// How the states of one limit are written.
#[derive(Clone, Debug)]
pub(crate) struct Codec {
    limit: Limit,
    prefix: Vec<u8>,
    /// How many bytes each number of a state takes.
    widths: [usize; 3],
    /// If the second number is a time that may be cut short, the length of its unit in microseconds.
    tick: Option<u64>,
}

impl Codec {
    pub(crate) fn new(limit: &Limit) -> Codec {
        let mut prefix = Vec::new();
        write_limit(limit, &mut prefix);
        let (mut widths, mut tick) = (limit.part_bytes(), None);
        if let LimitParams::Bucket { refill, capacity, tick: micros, .. } = limit.figures() {
            let ticks = capacity.div_ceil(refill) + CLOCK_STEP.get() / u64::from(micros);
            // As far again into the future, where a clock that was set back finds it.
            let bits = u64::BITS - (2 * ticks).leading_zeros();
            widths[1] = widths[1].min(bits.div_ceil(8) as usize);
            tick = Some(u64::from(micros));
        }
        Codec { limit: *limit, prefix, widths, tick }
    }

    pub(crate) fn limit(&self) -> &Limit {
        &self.limit
    }

    /// What every state of the limit begins with.
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// How long every state of the limit is.
    pub(crate) fn length(&self) -> usize {
        self.prefix.len() + self.widths.iter().sum::<usize>()
    }

    /// How long the limit's own part of a value is that has so many bytes: what other quotas have left stands behind it.
    fn own_length(&self, length: usize) -> usize {
        let own = self.length();
        match self.tick {
            Some(_) if length > own => own + 8,
            _ => own,
        }
    }

    /// How many bytes of the time are kept, if they may be fewer than it has.
    pub(crate) fn time_bytes(&self) -> usize {
        self.tick.map_or(7, |_| self.widths[1])
    }

    /// The form of a state, as the script's `struct` reads it.
    pub(crate) fn form(&self) -> String {
        let numbers = self.widths.iter().filter(|width| **width > 0).map(|width| format!("I{width}"));
        format!(">c{}{}", self.prefix.len(), numbers.collect::<String>())
    }

    /// Writes a state.
    pub(crate) fn write(&self, state: State, value: &mut Vec<u8>) {
        value.extend_from_slice(&self.prefix);
        for (number, width) in self.limit.parts_of(state).into_iter().zip(self.widths) {
            value.extend_from_slice(&number.to_be_bytes()[8 - width..]);
        }
    }

    /// Writes a state, and what is lent beside it.
    pub(crate) fn write_held(&self, held: LeasedState, value: &mut Vec<u8>) {
        self.write(held.state.unwrap_or_default(), value);
        if held.lent.units() > 0 {
            value.extend_from_slice(&held.lent.older.to_be_bytes());
            value.extend_from_slice(&held.lent.recent.to_be_bytes());
        }
    }

    /// Reads a state that this limit wrote, and what is lent beside it, about `now`; nothing if it did not.
    pub(crate) fn read_held(&self, value: &[u8], now: Micros) -> Option<LeasedState> {
        let (state, lent) = value.split_at_checked(self.length())?;
        let state = self.read(state, now)?;
        let &[a, b, c, d, e, f, g, h] = lent else {
            return lent.is_empty().then_some(LeasedState { state: Some(state), lent: LentUnits::default() });
        };
        let lent =
            LentUnits { older: u32::from_be_bytes([a, b, c, d]), recent: u32::from_be_bytes([e, f, g, h]) };
        let LimitParams::Bucket { unit, capacity, .. } = self.limit.figures() else { return None };
        let [owed, ..] = self.limit.parts_of(state);
        let units = u64::from(lent.older) + u64::from(lent.recent);
        let fits = units <= (capacity - owed) / unit;
        fits.then_some(LeasedState { state: Some(state), lent })
    }

    /// Reads a state that this limit wrote, about `now`; nothing if it did not.
    pub(crate) fn read(&self, value: &[u8], now: Micros) -> Option<State> {
        let mut rest = value.strip_prefix(&self.prefix[..]).filter(|_| value.len() == self.length())?;
        let mut parts = [0_u64; 3];
        for (part, width) in parts.iter_mut().zip(self.widths) {
            let (bytes, behind) = rest.split_at_checked(width)?;
            *part = bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            rest = behind;
        }
        if let Some(tick) = self.tick {
            parts[1] = nearest(parts[1], 8 * self.widths[1], now.get() / tick);
        }
        self.limit.state_of(parts)
    }
}

/// The number nearest to `near` that has these low bits.
fn nearest(low: u64, bits: usize, near: u64) -> u64 {
    let span = 1_u64 << bits;
    // Below zero there is no time, and `low` is below `span`.
    low + (near + span / 2).saturating_sub(low) / span * span
}

/// A value, read in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredValue {
    /// The limit that wrote it.
    pub(crate) limit: Limit,
    /// What it wrote.
    pub(crate) held: LeasedState,
    /// From when on that is void, if it stands beside what others have left. Alone it would have lapsed.
    pub(crate) void: Micros,
    /// What other quotas have left of the key.
    pub(crate) former: PriorStates,
}

impl StoredValue {
    /// Reads a value, about `now`; nothing if no limit wrote it.
    pub(crate) fn read(value: &[u8], now: Micros) -> Option<StoredValue> {
        let limit = read_limit(&mut { value })?;
        let codec = Codec::new(&limit);
        let (own, mut rest) = value.split_at_checked(codec.own_length(value.len()))?;
        let mut former = PriorStates::default();
        if rest.is_empty() {
            return Some(StoredValue { limit, held: codec.read_held(own, now)?, void: Micros::MAX, former });
        }
        let (_, void) = (read_time(&mut rest)?, read_time(&mut rest)?);
        let held = if void > now { codec.read_held(own, now)? } else { LeasedState::default() };
        while let Some(length) = rest.split_off_first() {
            let drained = read_time(&mut rest)?;
            let value = rest.split_off(..usize::from(*length))?;
            if drained > now {
                let limit = read_limit(&mut { value })?;
                former.push(limit, Codec::new(&limit).read_held(value, now)?, now);
            }
        }
        Some(StoredValue { limit, held, void, former })
    }

    /// Writes it, at `now`: nothing if it is empty. What no longer fits is left out, first what drains first.
    pub(crate) fn write(mut self, now: Micros, value: &mut Vec<u8>) {
        let codec = Codec::new(&self.limit);
        let start = value.len();
        loop {
            value.truncate(start);
            codec.write_held(self.held, value);
            if !self.former.is_empty() {
                value.resize(start + codec.own_length(usize::MAX), 0);
                self.write_former(now, value);
            }
            if value.len() - start <= LONGEST || self.former.is_empty() {
                break;
            }
            self.former.drop_first(now);
        }
        if self.former.is_empty() && self.held == LeasedState::default() {
            value.truncate(start);
        }
    }

    fn write_former(&self, now: Micros, value: &mut Vec<u8>) {
        write_time(self.former.until(now), value);
        write_time(self.void, value);
        for (limit, held) in self.former.iter() {
            let place = value.len();
            value.push(0);
            write_time(now.plus(limit.drains_in(*held, now)), value);
            Codec::new(limit).write_held(*held, value);
            value[place] = u8::try_from(value.len() - place - 8).expect("a state is below 100 bytes");
        }
    }
}

fn write_time(time: Micros, value: &mut Vec<u8>) {
    value.extend_from_slice(&time.get().to_be_bytes()[1..]);
}

fn read_time(bytes: &mut &[u8]) -> Option<Micros> {
    let time = bytes.split_off(..7)?;
    Some(Micros::new(time.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))))
}

// What a value's first byte has in its upper half.
const TOKENS: u8 = 0;
const METER: u8 = 1;
const QUEUE: u8 = 2;
const FIRST_HIT: u8 = 3;
const WALL: u8 = 4;
const WALL_IN_ZONE: u8 = 5;
const SLIDING: u8 = 6;
/// Laws that keep no such state. Their limits are written only to be told apart.
const ROLL: u8 = 7;
/// Added to one of the first three, if the quota says what its burst is.
const BURST: u8 = 8;

/// Writes which limit it is. Most periods are a few digits and many zeros, and are written so.
fn write_limit(limit: &Limit, bytes: &mut Vec<u8>) {
    let (law, quota) = (limit.law(), limit.quota());
    let kind = match law {
        Algorithm::TokenBucket => TOKENS,
        Algorithm::LeakyBucket(Leak::Meter) => METER,
        Algorithm::LeakyBucket(Leak::Queue) => QUEUE,
        Algorithm::FixedWindow(Align::FirstHit) => FIRST_HIT,
        Algorithm::FixedWindow(Align::Wall(Zone::UTC)) => WALL,
        Algorithm::FixedWindow(Align::Wall(_)) => WALL_IN_ZONE,
        Algorithm::SlidingWindowCounter => SLIDING,
        Algorithm::SlidingWindowLog(_) | Algorithm::Concurrency => ROLL,
    };
    let (mut digits, mut zeros) = (quota.per().get(), 0_u8);
    while zeros < 15 && digits.is_multiple_of(10) {
        (digits, zeros) = (digits / 10, zeros + 1);
    }
    let has_burst = if quota.burst().is_some() { BURST } else { 0 };
    bytes.push((kind | has_burst) << 4 | zeros);
    write_number(digits, bytes);
    write_number(u64::from(quota.amount()), bytes);
    if let Some(burst) = quota.burst() {
        write_number(u64::from(burst), bytes);
    }
    if let Algorithm::FixedWindow(Align::Wall(zone)) = law
        && kind == WALL_IN_ZONE
    {
        // By its name: a zone's number is another one in every edition of the time zones.
        write_number(zone.name().len() as u64, bytes);
        bytes.extend_from_slice(zone.name().as_bytes());
    }
}

/// Reads what [`write_limit`] wrote, and moves on behind it.
fn read_limit(bytes: &mut &[u8]) -> Option<Limit> {
    let first = *bytes.split_off_first()?;
    let (kind, has_burst, zeros) = (first >> 4 & !BURST, first >> 4 & BURST != 0, first & 15);
    let per = read_number(bytes)?.checked_mul(10_u64.pow(u32::from(zeros)))?;
    let amount = u32::try_from(read_number(bytes)?).ok()?;
    let mut quota = Quota::new(amount, Span::micros(per)).ok().filter(|_| per <= Span::MAX.get())?;
    if has_burst {
        quota = quota.with_burst(u32::try_from(read_number(bytes)?).ok()?).ok()?;
    }
    let law = match kind {
        TOKENS => Algorithm::TokenBucket,
        METER => Algorithm::LeakyBucket(Leak::Meter),
        QUEUE => Algorithm::LeakyBucket(Leak::Queue),
        FIRST_HIT => Algorithm::FixedWindow(Align::FirstHit),
        WALL => Algorithm::FixedWindow(Align::Wall(Zone::UTC)),
        WALL_IN_ZONE => {
            let length = usize::try_from(read_number(bytes)?).ok()?;
            let name = std::str::from_utf8(bytes.split_off(..length)?).ok()?;
            Algorithm::FixedWindow(Align::Wall(name.parse().ok()?))
        }
        SLIDING => Algorithm::SlidingWindowCounter,
        _ => return None,
    };
    Limit::new(law, quota).ok()
}

/// Seven bits a byte, the lowest first; all but the last byte have the eighth set.
fn write_number(mut number: u64, bytes: &mut Vec<u8>) {
    loop {
        let [low, ..] = (number & 0x7f).to_le_bytes();
        number >>= 7;
        if number == 0 {
            return bytes.push(low);
        }
        bytes.push(low | 0x80);
    }
}

fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let byte = *bytes.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper_core::{Amount, Micros};

    const NOW: Micros = Micros::new(1_700_000_000_123_457);

    /// The limit that wrote a value, and what it wrote.
    fn decode(value: &[u8], now: Micros) -> Option<(Limit, LeasedState)> {
        let stored = StoredValue::read(value, now)?;
        assert!(stored.former.is_empty());
        Some((stored.limit, stored.held))
    }

    fn laws() -> Vec<Algorithm> {
        let berlin = "Europe/Berlin".parse().unwrap();
        vec![
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket(Leak::Meter),
            Algorithm::LeakyBucket(Leak::Queue),
            Algorithm::FixedWindow(Align::FirstHit),
            Algorithm::FixedWindow(Align::Wall(Zone::UTC)),
            Algorithm::FixedWindow(Align::Wall(berlin)),
            Algorithm::SlidingWindowCounter,
        ]
    }

    #[test]
    fn a_value_tells_who_wrote_it_and_what() {
        let quotas =
            ["1/s", "100/min", "5000/day", "10000000/s", "999983 per 7s", "3 per 100us", "4294967295/month"];
        let mut seen = 0;
        for law in laws() {
            for quota in quotas {
                for burst in [None, Some(1), Some(4000)] {
                    let quota: Quota = quota.parse().unwrap();
                    let quota = burst.map_or(quota, |burst| quota.with_burst(burst).unwrap());
                    let Ok(limit) = Limit::new(law, quota) else { continue };
                    for units in [1, limit.capacity()] {
                        let state = limit.step(None, NOW, Amount::exactly(units)).state;
                        let (codec, mut value) = (Codec::new(&limit), Vec::new());
                        codec.write(state, &mut value);
                        let held = LeasedState { state: Some(state), lent: LentUnits::default() };
                        assert_eq!(decode(&value, NOW), Some((limit, held)), "{limit}");
                        assert_eq!((value.len(), codec.read(&value, NOW)), (codec.length(), Some(state)));
                        for cut in 0..value.len() {
                            assert_eq!(decode(&value[..cut], NOW), None);
                        }
                        seen += 1;
                    }
                }
            }
        }
        assert!(seen > 60, "{seen}");
    }

    #[test]
    fn what_nobody_wrote_is_read_as_nothing() {
        let limit = Limit::new(Algorithm::TokenBucket, "10/s burst 3".parse().unwrap()).unwrap();
        let (codec, mut value) = (Codec::new(&limit), Vec::new());
        codec.write(limit.step(None, NOW, Amount::exactly(3)).state, &mut value);
        let owed = codec.prefix().len();
        value[owed] = 0xff;
        assert_eq!(decode(&value, NOW), None, "more is owed than may be");
        assert_eq!(decode(b"hello, world", NOW), None);
        assert_eq!(decode(&[0xff; 40], NOW), None);
    }

    #[test]
    fn what_is_lent_stands_behind_the_state() {
        let limit = Limit::new(Algorithm::TokenBucket, "10/s burst 8".parse().unwrap()).unwrap();
        let (codec, mut value) = (Codec::new(&limit), Vec::new());
        let state = Some(limit.step(None, NOW, Amount::exactly(3)).state);
        let held = LeasedState { state, lent: LentUnits { older: 1, recent: 4 } };
        codec.write_held(held, &mut value);
        assert_eq!((value.len(), decode(&value, NOW)), (codec.length() + 8, Some((limit, held))));
        for cut in 1..8 {
            assert_eq!(decode(&value[..value.len() - cut], NOW), None, "it is cut short");
        }
        *value.last_mut().unwrap() += 1;
        assert_eq!(decode(&value, NOW), None, "more is owed and lent than may be");

        let window = Limit::new(Algorithm::FixedWindow(Align::FirstHit), "8/s".parse().unwrap()).unwrap();
        let (codec, mut value) = (Codec::new(&window), Vec::new());
        codec.write(window.step(None, NOW, Amount::exactly(3)).state, &mut value);
        value.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(decode(&value, NOW), None, "a window has nothing behind it");
    }

    #[test]
    fn the_usual_states_are_small() {
        let length =
            |law, quota: &str| Codec::new(&Limit::new(law, quota.parse().unwrap()).unwrap()).length();
        assert_eq!(length(Algorithm::TokenBucket, "100/min"), 3 + 4 + 5);
        assert_eq!(length(Algorithm::TokenBucket, "1000/s"), 4 + 3 + 5);
        assert_eq!(length(Algorithm::TokenBucket, "5000/h burst 200"), 6 + 4 + 5);
        assert_eq!(length(Algorithm::TokenBucket, "1000000/month"), 6 + 6 + 6);
        assert_eq!(length(Algorithm::SlidingWindowCounter, "1000/h"), 4 + 3 + 2 + 2);
        assert_eq!(length(Algorithm::FixedWindow(Align::FirstHit), "10/s"), 3 + 7 + 1);
    }

    /// A state is read as it was written for as long as it can matter, and for days of a clock set wrongly.
    #[test]
    fn a_time_that_was_cut_short_is_read_in_full() {
        for quota in ["1/s", "100/min", "10000000/s", "7 per 90s burst 3", "1/month", "3/year burst 40"] {
            let limit = Limit::new(Algorithm::TokenBucket, quota.parse().unwrap()).unwrap();
            let (codec, mut value) = (Codec::new(&limit), Vec::new());
            let state = limit.step(None, NOW, Amount::exactly(limit.capacity())).state;
            codec.write(state, &mut value);
            let longest = Span::micros(limit.ttl().get() + CLOCK_STEP.get() - 1);
            for now in [NOW, NOW.plus(longest), NOW.less(longest), NOW.less(CLOCK_STEP)] {
                assert_eq!(codec.read(&value, now), Some(state), "{quota} at {now:?}");
            }
        }
    }
}

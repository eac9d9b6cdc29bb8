//! Encoding of a key's state: the limit that wrote it, then its numbers.
//!
//! The limit comes first and in full, so that a node that finds the state under another limit can interpret it.
//! The numbers follow, each in as many bytes as the limit allows it to need. Of the time since which a bucket
//! owes, only the low bytes are stored, because the current time determines the others: a state that could be
//! mistaken for a later one has expired long before. So the usual states have 12 bytes, which fit the
//! second-smallest allocation of a server.
//!
//! A bucket's state is followed by its leased units, older and recent, in four bytes each; they are omitted if
//! nothing is leased.
//!
//! The states that other quotas have left under the key come last, if there are any: when all of them will have
//! drained, from when on the own state is void, and then each state, encoded as it would be alone, after its
//! length and the time when it will have drained. A truncated time can't be reconstructed after that. Before
//! these, a bucket always has its leased units.

use ratekeeper_core::{
    Algorithm, Align, Leak, LeasedState, LentUnits, Limit, LimitParams, Micros, PriorStates, Quota, Span,
    State, Zone,
};

/// The longest value: the script sends its length in one byte.
const MAX_VALUE_BYTES: usize = 255;

/// How far a server's clock may be set back or forward before the time in a state is misread.
const MAX_CLOCK_STEP: Span = Span::micros(2 * Span::DAY.get());

/// Encodes and decodes the states of one limit.
#[derive(Clone, Debug)]
pub(crate) struct Codec {
    limit: Limit,
    prefix: Vec<u8>,
    /// The size of each number of a state in bytes.
    widths: [usize; 3],
    /// If the second number is a time that may be truncated, its unit in microseconds.
    tick: Option<u64>,
}

impl Codec {
    pub(crate) fn new(limit: &Limit) -> Codec {
        let mut prefix = Vec::new();
        write_limit(limit, &mut prefix);
        let (mut widths, mut tick) = (limit.state_part_bytes(), None);
        if let LimitParams::Bucket { refill, capacity, tick: micros, .. } = limit.params() {
            let ticks = capacity.div_ceil(refill) + MAX_CLOCK_STEP.get() / u64::from(micros);
            // As far again into the future, for a clock that was set back.
            let bits = u64::BITS - (2 * ticks).leading_zeros();
            widths[1] = widths[1].min(bits.div_ceil(8) as usize);
            tick = Some(u64::from(micros));
        }
        Codec { limit: *limit, prefix, widths, tick }
    }

    pub(crate) fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The start of every state of the limit.
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// The size of every state of the limit.
    pub(crate) fn length(&self) -> usize {
        self.prefix.len() + self.widths.iter().sum::<usize>()
    }

    /// The size of the limit's own part in a value of `length` bytes: the states of other quotas follow it.
    fn own_length(&self, length: usize) -> usize {
        let own = self.length();
        match self.tick {
            Some(_) if length > own => own + 8,
            _ => own,
        }
    }

    /// How many bytes of the time are stored, if it may be truncated.
    pub(crate) fn time_bytes(&self) -> usize {
        self.tick.map_or(7, |_| self.widths[1])
    }

    /// The format of a state for the script's `struct` library.
    pub(crate) fn format(&self) -> String {
        let numbers = self.widths.iter().filter(|width| **width > 0).map(|width| format!("I{width}"));
        format!(">c{}{}", self.prefix.len(), numbers.collect::<String>())
    }

    /// Writes a state.
    pub(crate) fn write(&self, state: State, value: &mut Vec<u8>) {
        value.extend_from_slice(&self.prefix);
        for (number, width) in self.limit.state_parts(state).into_iter().zip(self.widths) {
            value.extend_from_slice(&number.to_be_bytes()[8 - width..]);
        }
    }

    /// Writes a state and its leased units.
    pub(crate) fn write_leased(&self, leased: LeasedState, value: &mut Vec<u8>) {
        self.write(leased.state.unwrap_or_default(), value);
        if leased.lent.total() > 0 {
            value.extend_from_slice(&leased.lent.older.to_be_bytes());
            value.extend_from_slice(&leased.lent.recent.to_be_bytes());
        }
    }

    /// Reads a state and its leased units, near `now`. `None` if this limit did not write it.
    pub(crate) fn read_leased(&self, value: &[u8], now: Micros) -> Option<LeasedState> {
        let (state, lent) = value.split_at_checked(self.length())?;
        let state = self.read(state, now)?;
        let &[a, b, c, d, e, f, g, h] = lent else {
            return lent.is_empty().then_some(LeasedState { state: Some(state), lent: LentUnits::default() });
        };
        let lent =
            LentUnits { older: u32::from_be_bytes([a, b, c, d]), recent: u32::from_be_bytes([e, f, g, h]) };
        let LimitParams::Bucket { unit, capacity, .. } = self.limit.params() else { return None };
        let [owed, ..] = self.limit.state_parts(state);
        let units = u64::from(lent.older) + u64::from(lent.recent);
        let fits = units <= (capacity - owed) / unit;
        fits.then_some(LeasedState { state: Some(state), lent })
    }

    /// Reads a state, near `now`. `None` if this limit did not write it.
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
        self.limit.state_from_parts(parts)
    }
}

/// The number nearest to `near` that has these low bits.
fn nearest(low: u64, bits: usize, near: u64) -> u64 {
    let span = 1_u64 << bits;
    // There is no time below zero, and `low` is below `span`.
    low + (near + span / 2).saturating_sub(low) / span * span
}

/// A decoded value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredValue {
    /// The limit that wrote it.
    pub(crate) limit: Limit,
    /// The limit's own state.
    pub(crate) leased: LeasedState,
    /// From when on the own state is void, if the value has states of other quotas. A value without them expires
    /// instead.
    pub(crate) void_from: Micros,
    /// The states that other quotas have left under the key.
    pub(crate) prior: PriorStates,
}

impl StoredValue {
    /// Reads a value, near `now`. `None` if no limit wrote it.
    pub(crate) fn read(value: &[u8], now: Micros) -> Option<StoredValue> {
        let limit = read_limit(&mut { value })?;
        let codec = Codec::new(&limit);
        let (own, mut rest) = value.split_at_checked(codec.own_length(value.len()))?;
        let mut prior = PriorStates::default();
        if rest.is_empty() {
            return Some(StoredValue {
                limit,
                leased: codec.read_leased(own, now)?,
                void_from: Micros::MAX,
                prior,
            });
        }
        let (_, void_from) = (read_time(&mut rest)?, read_time(&mut rest)?);
        let leased = if void_from > now { codec.read_leased(own, now)? } else { LeasedState::default() };
        while let Some(length) = rest.split_off_first() {
            let drained = read_time(&mut rest)?;
            let value = rest.split_off(..usize::from(*length))?;
            if drained > now {
                let limit = read_limit(&mut { value })?;
                prior.push(limit, Codec::new(&limit).read_leased(value, now)?, now);
            }
        }
        Some(StoredValue { limit, leased, void_from, prior })
    }

    /// Writes the value at `now`. Writes nothing if it is empty. Prior states that don't fit are dropped,
    /// starting with those that drain first.
    pub(crate) fn write(mut self, now: Micros, value: &mut Vec<u8>) {
        let codec = Codec::new(&self.limit);
        let start = value.len();
        loop {
            value.truncate(start);
            codec.write_leased(self.leased, value);
            if !self.prior.is_empty() {
                value.resize(start + codec.own_length(usize::MAX), 0);
                self.write_prior(now, value);
            }
            if value.len() - start <= MAX_VALUE_BYTES || self.prior.is_empty() {
                break;
            }
            self.prior.drop_soonest_expiring(now);
        }
        if self.prior.is_empty() && self.leased == LeasedState::default() {
            value.truncate(start);
        }
    }

    fn write_prior(&self, now: Micros, value: &mut Vec<u8>) {
        write_time(self.prior.expires_at(now), value);
        write_time(self.void_from, value);
        for (limit, leased) in self.prior.iter() {
            let length_at = value.len();
            value.push(0);
            write_time(now.plus(limit.expires_in(*leased, now)), value);
            Codec::new(limit).write_leased(*leased, value);
            value[length_at] =
                u8::try_from(value.len() - length_at - 8).expect("a state is shorter than 100 bytes");
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

// The upper half of a value's first byte.
const TOKENS: u8 = 0;
const METER: u8 = 1;
const QUEUE: u8 = 2;
const FIRST_HIT: u8 = 3;
const WALL: u8 = 4;
const WALL_IN_ZONE: u8 = 5;
const SLIDING: u8 = 6;
/// Algorithms with a list state. Their limits are encoded only to be told apart.
const LIST: u8 = 7;
/// Added to one of the first three if the quota has an explicit burst.
const BURST: u8 = 8;

/// Encodes a limit. Most periods are a few digits followed by zeros, and are encoded so.
fn write_limit(limit: &Limit, bytes: &mut Vec<u8>) {
    let (algorithm, quota) = (limit.algorithm(), limit.quota());
    let kind = match algorithm {
        Algorithm::TokenBucket => TOKENS,
        Algorithm::LeakyBucket(Leak::Meter) => METER,
        Algorithm::LeakyBucket(Leak::Queue) => QUEUE,
        Algorithm::FixedWindow(Align::FirstHit) => FIRST_HIT,
        Algorithm::FixedWindow(Align::WallClock(Zone::UTC)) => WALL,
        Algorithm::FixedWindow(Align::WallClock(_)) => WALL_IN_ZONE,
        Algorithm::SlidingWindowCounter => SLIDING,
        Algorithm::SlidingWindowLog(_) | Algorithm::Concurrency => LIST,
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
    if let Algorithm::FixedWindow(Align::WallClock(zone)) = algorithm
        && kind == WALL_IN_ZONE
    {
        // By its name: the index of a zone changes with every edition of the time zone database.
        write_number(zone.name().len() as u64, bytes);
        bytes.extend_from_slice(zone.name().as_bytes());
    }
}

/// Decodes what [`write_limit`] wrote, and advances past it.
fn read_limit(bytes: &mut &[u8]) -> Option<Limit> {
    let first = *bytes.split_off_first()?;
    let (kind, has_burst, zeros) = (first >> 4 & !BURST, first >> 4 & BURST != 0, first & 15);
    let per = read_number(bytes)?.checked_mul(10_u64.pow(u32::from(zeros)))?;
    let amount = u32::try_from(read_number(bytes)?).ok()?;
    let mut quota = Quota::new(amount, Span::micros(per)).ok().filter(|_| per <= Span::MAX.get())?;
    if has_burst {
        quota = quota.with_burst(u32::try_from(read_number(bytes)?).ok()?).ok()?;
    }
    let algorithm = match kind {
        TOKENS => Algorithm::TokenBucket,
        METER => Algorithm::LeakyBucket(Leak::Meter),
        QUEUE => Algorithm::LeakyBucket(Leak::Queue),
        FIRST_HIT => Algorithm::FixedWindow(Align::FirstHit),
        WALL => Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
        WALL_IN_ZONE => {
            let length = usize::try_from(read_number(bytes)?).ok()?;
            let name = std::str::from_utf8(bytes.split_off(..length)?).ok()?;
            Algorithm::FixedWindow(Align::WallClock(name.parse().ok()?))
        }
        SLIDING => Algorithm::SlidingWindowCounter,
        _ => return None,
    };
    Limit::new(algorithm, quota).ok()
}

/// LEB128: seven bits per byte, the lowest first; all bytes but the last have the eighth bit set.
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

    /// The limit that wrote a value, and the state it wrote.
    fn decode(value: &[u8], now: Micros) -> Option<(Limit, LeasedState)> {
        let stored = StoredValue::read(value, now)?;
        assert!(stored.prior.is_empty());
        Some((stored.limit, stored.leased))
    }

    fn algorithms() -> Vec<Algorithm> {
        let berlin = "Europe/Berlin".parse().unwrap();
        vec![
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket(Leak::Meter),
            Algorithm::LeakyBucket(Leak::Queue),
            Algorithm::FixedWindow(Align::FirstHit),
            Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
            Algorithm::FixedWindow(Align::WallClock(berlin)),
            Algorithm::SlidingWindowCounter,
        ]
    }

    #[test]
    fn a_value_round_trips_with_its_limit() {
        let quotas =
            ["1/s", "100/min", "5000/day", "10000000/s", "999983 per 7s", "3 per 100us", "4294967295/month"];
        let mut seen = 0;
        for algorithm in algorithms() {
            for quota in quotas {
                for burst in [None, Some(1), Some(4000)] {
                    let quota: Quota = quota.parse().unwrap();
                    let quota = burst.map_or(quota, |burst| quota.with_burst(burst).unwrap());
                    let Ok(limit) = Limit::new(algorithm, quota) else { continue };
                    for units in [1, limit.capacity()] {
                        let state = limit.step(None, NOW, Amount::exactly(units)).state;
                        let (codec, mut value) = (Codec::new(&limit), Vec::new());
                        codec.write(state, &mut value);
                        let leased = LeasedState { state: Some(state), lent: LentUnits::default() };
                        assert_eq!(decode(&value, NOW), Some((limit, leased)), "{limit}");
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
    fn a_value_that_no_limit_wrote_is_rejected() {
        let limit = Limit::new(Algorithm::TokenBucket, "10/s burst 3".parse().unwrap()).unwrap();
        let (codec, mut value) = (Codec::new(&limit), Vec::new());
        codec.write(limit.step(None, NOW, Amount::exactly(3)).state, &mut value);
        let owed = codec.prefix().len();
        value[owed] = 0xff;
        assert_eq!(decode(&value, NOW), None, "more is owed than the limit allows");
        assert_eq!(decode(b"hello, world", NOW), None);
        assert_eq!(decode(&[0xff; 40], NOW), None);
    }

    #[test]
    fn leased_units_follow_the_state() {
        let limit = Limit::new(Algorithm::TokenBucket, "10/s burst 8".parse().unwrap()).unwrap();
        let (codec, mut value) = (Codec::new(&limit), Vec::new());
        let state = Some(limit.step(None, NOW, Amount::exactly(3)).state);
        let leased = LeasedState { state, lent: LentUnits { older: 1, recent: 4 } };
        codec.write_leased(leased, &mut value);
        assert_eq!((value.len(), decode(&value, NOW)), (codec.length() + 8, Some((limit, leased))));
        for cut in 1..8 {
            assert_eq!(decode(&value[..value.len() - cut], NOW), None, "truncated");
        }
        *value.last_mut().unwrap() += 1;
        assert_eq!(decode(&value, NOW), None, "more is owed and leased than the limit allows");

        let window = Limit::new(Algorithm::FixedWindow(Align::FirstHit), "8/s".parse().unwrap()).unwrap();
        let (codec, mut value) = (Codec::new(&window), Vec::new());
        codec.write(window.step(None, NOW, Amount::exactly(3)).state, &mut value);
        value.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(decode(&value, NOW), None, "a window has no leased units");
    }

    #[test]
    fn the_usual_states_are_small() {
        let length = |algorithm, quota: &str| {
            Codec::new(&Limit::new(algorithm, quota.parse().unwrap()).unwrap()).length()
        };
        assert_eq!(length(Algorithm::TokenBucket, "100/min"), 3 + 4 + 5);
        assert_eq!(length(Algorithm::TokenBucket, "1000/s"), 4 + 3 + 5);
        assert_eq!(length(Algorithm::TokenBucket, "5000/h burst 200"), 6 + 4 + 5);
        assert_eq!(length(Algorithm::TokenBucket, "1000000/month"), 6 + 6 + 6);
        assert_eq!(length(Algorithm::SlidingWindowCounter, "1000/h"), 4 + 3 + 2 + 2);
        assert_eq!(length(Algorithm::FixedWindow(Align::FirstHit), "10/s"), 3 + 7 + 1);
    }

    /// A state is read as it was written for as long as it matters, and with a clock that is days off.
    #[test]
    fn a_truncated_time_is_reconstructed() {
        for quota in ["1/s", "100/min", "10000000/s", "7 per 90s burst 3", "1/month", "3/year burst 40"] {
            let limit = Limit::new(Algorithm::TokenBucket, quota.parse().unwrap()).unwrap();
            let (codec, mut value) = (Codec::new(&limit), Vec::new());
            let state = limit.step(None, NOW, Amount::exactly(limit.capacity())).state;
            codec.write(state, &mut value);
            let longest = Span::micros(limit.ttl().get() + MAX_CLOCK_STEP.get() - 1);
            for now in [NOW, NOW.plus(longest), NOW.minus(longest), NOW.minus(MAX_CLOCK_STEP)] {
                assert_eq!(codec.read(&value, now), Some(state), "{quota} at {now:?}");
            }
        }
    }
}

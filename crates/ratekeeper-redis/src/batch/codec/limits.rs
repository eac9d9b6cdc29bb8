//! The distinct limits of a call.

use super::value::Codec;
use ratekeeper_core::{Limit, LimitParams, MAX_CLOCK_STEP_BACK, Micros, Span, WindowStart};
use std::collections::HashMap;

/// The most encoded limits that are cached between calls.
const MAX_CACHED_LIMITS: usize = 4096;

/// The limits of a call, numbered from 1, with a cache of their encodings.
#[derive(Debug, Default)]
pub(crate) struct CallLimits {
    cached: Vec<EncodedLimit>,
    indices: HashMap<Limit, usize>,
    /// The last limit that was used. Most calls use few limits.
    last: Option<usize>,
    bytes: Vec<u8>,
    count: u16,
    call_id: u64,
    now: Micros,
}

#[derive(Debug)]
struct EncodedLimit {
    codec: Codec,
    record: Vec<u8>,
    /// The time range in which the calendar windows of the record are valid.
    valid: (Micros, Micros),
    /// The last call that used the limit, and its number there.
    call_id: u64,
    number: u16,
}

impl CallLimits {
    /// Starts the next call.
    pub(crate) fn reset(&mut self, now: Micros) {
        if self.cached.len() > MAX_CACHED_LIMITS {
            self.cached.clear();
            self.indices.clear();
        }
        self.last = None;
        self.bytes.clear();
        self.bytes.extend_from_slice(&[0, 0]);
        self.count = 0;
        self.call_id += 1;
        self.now = now;
    }

    /// The index of a limit for [`CallLimits::codec`], and its number in this call.
    pub(crate) fn intern(&mut self, limit: &Limit) -> (usize, u16) {
        let index = match self.last.filter(|last| self.cached[*last].codec.limit() == limit) {
            Some(last) => last,
            None => self.intern_slow(limit),
        };
        self.last = Some(index);
        (index, self.cached[index].number)
    }

    fn intern_slow(&mut self, limit: &Limit) -> usize {
        let index = self.indices.get(limit).copied().unwrap_or_else(|| {
            let encoded = EncodedLimit::new(limit, self.now);
            self.indices.insert(*limit, self.cached.len());
            self.cached.push(encoded);
            self.cached.len() - 1
        });
        let encoded = &mut self.cached[index];
        if encoded.call_id != self.call_id {
            if self.now < encoded.valid.0 || self.now >= encoded.valid.1 {
                *encoded = EncodedLimit::new(limit, self.now);
            }
            self.count += 1;
            (encoded.call_id, encoded.number) = (self.call_id, self.count);
            self.bytes.extend_from_slice(&encoded.record);
        }
        index
    }

    pub(crate) fn codec(&self, index: usize) -> &Codec {
        &self.cached[index].codec
    }

    /// Sets the number of keys with a string state, which the script reads first.
    pub(crate) fn set_string_count(&mut self, strings: usize) {
        let strings = u16::try_from(strings).expect("a call has fewer than 2^16 draws, and so fewer keys");
        self.bytes[..2].copy_from_slice(&strings.to_be_bytes());
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl EncodedLimit {
    fn new(limit: &Limit, now: Micros) -> EncodedLimit {
        let codec = Codec::new(limit);
        let (mut ends, mut valid) = (Vec::new(), (Micros::EPOCH, Micros::MAX));
        if let LimitParams::FixedWindow { per, start: WindowStart::Calendar, .. } = limit.params() {
            (ends, valid) = calendar_ends(limit, per, now);
        }
        let (algorithm, a, b, c, d, tick) = match limit.params() {
            LimitParams::Bucket { unit, refill, capacity, burst, tick, .. } => {
                (0, unit, refill, capacity, burst, tick)
            }
            LimitParams::FixedWindow { amount, per, start, max_end_ahead: farthest } => {
                let start = match start {
                    WindowStart::FirstHit => 0,
                    WindowStart::Multiples => 1,
                    WindowStart::Calendar => 2,
                };
                // By how many whole seconds a calendar window may be longer than its period.
                let longer = farthest.get() - per.get() - MAX_CLOCK_STEP_BACK.get();
                (1, u64::from(amount), per.get(), start, u32::try_from(longer / 1_000_000).unwrap_or(0), 1)
            }
            LimitParams::SlidingWindow { amount, window, tick } => (2, u64::from(amount), window, 0, 0, tick),
            LimitParams::SlidingLog { amount, per } => (3, u64::from(amount), per.get(), 0, 0, 1),
            LimitParams::Concurrency { amount, permit_ttl: lapse } => {
                (4, u64::from(amount), lapse.get(), 0, 0, 1)
            }
        };
        let mut record = vec![algorithm, length_byte(codec.length()), length_byte(codec.time_bytes())];
        for text in [codec.format().as_bytes(), codec.prefix(), &ends] {
            record.push(length_byte(text.len()));
            record.extend_from_slice(text);
        }
        for number in [a, b, c] {
            record.extend_from_slice(&number.to_be_bytes()[1..]);
        }
        record.extend_from_slice(&d.to_be_bytes());
        record.extend_from_slice(&tick.to_be_bytes());
        EncodedLimit { codec, record, valid, call_id: 0, number: 0 }
    }
}

fn length_byte(length: usize) -> u8 {
    u8::try_from(length).expect("a limit is encoded in fewer than 256 bytes")
}

/// The ends of calendar windows around `now`: at least one before it and two after it, so that a store whose
/// clock is a day off still finds its window. Also returns the time range in which they are valid.
fn calendar_ends(limit: &Limit, per: Span, now: Micros) -> (Vec<u8>, (Micros, Micros)) {
    let (mut ends, mut valid) = (Vec::new(), (Micros::EPOCH, Micros::MAX));
    let mut end = now.minus(Span::micros(per.get() + 2 * Span::DAY.get()));
    let mut ahead = 0;
    while ahead < 2 {
        let next = limit.window_end(end).unwrap_or(Micros::MAX);
        if next <= end {
            break;
        }
        end = next;
        ends.extend_from_slice(&end.get().to_be_bytes()[1..]);
        if end <= now {
            valid.0 = end;
        } else if ahead == 0 {
            valid.1 = end;
        }
        ahead += i32::from(end > now);
    }
    (ends, valid)
}

//! The limits of a parcel, each written once.

use super::value::Codec;
use ratekeeper_core::{Limit, LimitParams, MOST_BACK, Micros, Span, WindowStart};
use std::collections::HashMap;

/// How many limits are kept written down from one parcel to the next.
const KEPT: usize = 4096;

/// The limits of a parcel, numbered from 1 on, and how they are written: that is worked out once and kept.
#[derive(Debug, Default)]
pub(super) struct CallLimits {
    known: Vec<EncodedLimit>,
    places: HashMap<Limit, usize>,
    /// The last one asked for. Most parcels draw from few limits.
    last: Option<usize>,
    bytes: Vec<u8>,
    count: u16,
    parcel: u64,
    now: Micros,
}

#[derive(Debug)]
struct EncodedLimit {
    codec: Codec,
    record: Vec<u8>,
    /// When the calendar that the record tells of must be written anew: before the first, from the second on.
    good: (Micros, Micros),
    /// The parcel that it was last a part of, and its number there.
    parcel: u64,
    number: u16,
}

impl CallLimits {
    /// Begins the next parcel.
    pub(super) fn start(&mut self, now: Micros) {
        if self.known.len() > KEPT {
            self.known.clear();
            self.places.clear();
        }
        self.last = None;
        self.bytes.clear();
        self.bytes.extend_from_slice(&[0, 0]);
        self.count = 0;
        self.parcel += 1;
        self.now = now;
    }

    /// Where a limit is, for [`CallLimits::codec`], and its number in this parcel.
    pub(super) fn place(&mut self, limit: &Limit) -> (usize, u16) {
        let place = match self.last.filter(|last| self.known[*last].codec.limit() == limit) {
            Some(last) => last,
            None => self.find(limit),
        };
        self.last = Some(place);
        (place, self.known[place].number)
    }

    fn find(&mut self, limit: &Limit) -> usize {
        let place = self.places.get(limit).copied().unwrap_or_else(|| {
            let known = EncodedLimit::new(limit, self.now);
            self.places.insert(*limit, self.known.len());
            self.known.push(known);
            self.known.len() - 1
        });
        let known = &mut self.known[place];
        if known.parcel != self.parcel {
            if self.now < known.good.0 || self.now >= known.good.1 {
                *known = EncodedLimit::new(limit, self.now);
            }
            self.count += 1;
            (known.parcel, known.number) = (self.parcel, self.count);
            self.bytes.extend_from_slice(&known.record);
        }
        place
    }

    pub(super) fn codec(&self, place: usize) -> &Codec {
        &self.known[place].codec
    }

    /// Notes how many keys have strings for their states: the script reads that first.
    pub(super) fn count_strings(&mut self, strings: usize) {
        let strings = u16::try_from(strings).expect("a parcel has fewer draws than 2^16, and so fewer keys");
        self.bytes[..2].copy_from_slice(&strings.to_be_bytes());
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl EncodedLimit {
    fn new(limit: &Limit, now: Micros) -> EncodedLimit {
        let codec = Codec::new(limit);
        let (mut ends, mut good) = (Vec::new(), (Micros::EPOCH, Micros::MAX));
        if let LimitParams::FixedWindow { per, start: WindowStart::Calendar, .. } = limit.figures() {
            (ends, good) = calendar(limit, per, now);
        }
        let (law, a, b, c, d, tick) = match limit.figures() {
            LimitParams::Bucket { unit, refill, capacity, burst, tick, .. } => {
                (0, unit, refill, capacity, burst, tick)
            }
            LimitParams::FixedWindow { amount, per, start, farthest } => {
                let start = match start {
                    WindowStart::FirstHit => 0,
                    WindowStart::Multiples => 1,
                    WindowStart::Calendar => 2,
                };
                // By how many whole seconds a window of the calendar may be longer than its period.
                let longer = farthest.get() - per.get() - MOST_BACK.get();
                (1, u64::from(amount), per.get(), start, u32::try_from(longer / 1_000_000).unwrap_or(0), 1)
            }
            LimitParams::SlidingWindow { amount, window, tick } => (2, u64::from(amount), window, 0, 0, tick),
            LimitParams::SlidingLog { amount, per } => (3, u64::from(amount), per.get(), 0, 0, 1),
            LimitParams::Concurrency { amount, lapse } => (4, u64::from(amount), lapse.get(), 0, 0, 1),
        };
        let mut record = vec![law, length_byte(codec.length()), length_byte(codec.time_bytes())];
        for text in [codec.form().as_bytes(), codec.prefix(), &ends] {
            record.push(length_byte(text.len()));
            record.extend_from_slice(text);
        }
        for number in [a, b, c] {
            record.extend_from_slice(&number.to_be_bytes()[1..]);
        }
        record.extend_from_slice(&d.to_be_bytes());
        record.extend_from_slice(&tick.to_be_bytes());
        EncodedLimit { codec, record, good, parcel: 0, number: 0 }
    }
}

fn length_byte(length: usize) -> u8 {
    u8::try_from(length).expect("a limit is written in fewer than 256 bytes")
}

/// When windows end around `now`: at least one before it and two after it, so that a store whose clock is a day off
/// still knows where it is; and the window for which that holds.
fn calendar(limit: &Limit, per: Span, now: Micros) -> (Vec<u8>, (Micros, Micros)) {
    let (mut ends, mut good) = (Vec::new(), (Micros::EPOCH, Micros::MAX));
    let mut end = now.less(Span::micros(per.get() + 2 * Span::DAY.get()));
    let mut ahead = 0;
    while ahead < 2 {
        let next = limit.window_end(end).unwrap_or(Micros::MAX);
        if next <= end {
            break;
        }
        end = next;
        ends.extend_from_slice(&end.get().to_be_bytes()[1..]);
        match end <= now {
            true => good.0 = end,
            false if ahead == 0 => good.1 = end,
            false => {}
        }
        ahead += i32::from(end > now);
    }
    (ends, good)
}

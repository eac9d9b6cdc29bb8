//! Conversions between whole units, times and the floating-point numbers of estimates.

use ratekeeper_core::Span;

pub(super) fn seconds(span: Span) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "this is an estimate")]
    let micros = span.get() as f32;
    micros / 1e6
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast from a float saturates")]
pub(super) fn span(seconds: f32) -> Span {
    Span::micros((seconds * 1e6) as u64)
}

#[expect(clippy::cast_precision_loss, reason = "this is an estimate")]
pub(super) fn float(units: u32) -> f32 {
    units as f32
}

/// Whole units, saturating at the bounds of `u32`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast from a float saturates")]
pub(super) fn whole_units(units: f32) -> u32 {
    units as u32
}

/// Longer round trips count as this long.
const MAX_ROUND_TRIP: Span = Span::millis(50);

/// Smooths the round-trip time: a slow reply counts at once, a fast one gradually.
pub(super) fn smooth_round_trip(before: Span, latest: Span) -> Span {
    latest.max(Span::micros((3 * before.get() + latest.get()) / 4)).min(MAX_ROUND_TRIP)
}

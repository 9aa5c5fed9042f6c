//! Number conversions, precise enough for a benchmark.

/// Converts to `f64`. Exact below 2^53.
#[expect(clippy::as_conversions, reason = "rates need no more than 53 bits")]
pub(crate) fn to_f64(number: u64) -> f64 {
    number as f64
}

/// Returns `count` times `factor`, rounded, at least `least`.
#[expect(clippy::as_conversions, reason = "a float becomes the nearest integer, within bounds")]
pub(crate) fn scaled(count: u64, factor: f64, least: u64) -> u64 {
    ((to_f64(count) * factor).round() as u64).max(least)
}

pub(crate) fn to_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Converts to `usize`, saturating.
pub(crate) fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

//! Integer conversions of values that fit. Narrowing ones panic otherwise.

#[must_use]
pub(crate) fn index(value: u32) -> usize {
    usize::try_from(value).expect("usize has at least 32 bits")
}

/// Converts a 64-bit count of objects in memory.
#[must_use]
pub(crate) fn index_wide(value: u64) -> usize {
    usize::try_from(value).expect("counts things in memory")
}

#[must_use]
pub(crate) fn wide(value: usize) -> u64 {
    u64::try_from(value).expect("usize has at most 64 bits")
}

/// Converts a value below 2^32.
#[must_use]
pub(crate) fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("bounded by the geometry")
}

//! Conversions between integers that cannot fail, named once.

/// Returns a 32-bit count as an index.
#[must_use]
pub(crate) fn index(value: u32) -> usize {
    usize::try_from(value).expect("usize has at least 32 bits")
}

/// Returns a 64-bit count of things in memory as an index.
#[must_use]
pub(crate) fn index_wide(value: u64) -> usize {
    usize::try_from(value).expect("counts things in memory")
}

/// Returns an index or length as 64 bits.
#[must_use]
pub(crate) fn wide(value: usize) -> u64 {
    u64::try_from(value).expect("usize has at most 64 bits")
}

/// Returns a value below 2^32 as 32 bits.
#[must_use]
pub(crate) fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("bounded by the geometry")
}

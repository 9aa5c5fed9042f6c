//! Conversions between integers that cannot fail on the machines Holdfast runs on.

/// Converts a count in memory to `u64`.
pub fn to_u64(number: usize) -> u64 {
    u64::try_from(number).expect("usize has 64 bits")
}

/// Converts to an index or a length in memory.
pub fn to_usize(number: u64) -> usize {
    usize::try_from(number).expect("usize has 64 bits")
}

/// Converts to an index in memory.
pub fn index_of(number: u32) -> usize {
    usize::try_from(number).expect("usize has 64 bits")
}

//! Conversions between integers that cannot fail on the machines we run on.

/// Returns `count` as a length in memory.
pub(crate) fn usize_of(count: u64) -> usize {
    usize::try_from(count).expect("a length in memory fits a 64-bit machine word")
}

/// Returns `length` as a count of bytes.
pub(crate) fn u64_of(length: usize) -> u64 {
    u64::try_from(length).expect("a machine word has at most 64 bits")
}

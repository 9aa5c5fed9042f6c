//! Time, always passed in.

/// A moment of wall-clock time, as POSIX has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 UTC; negative before.
    pub seconds: i64,
    /// Nanoseconds past `seconds`: 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// Where time comes from.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Returns the time of day.
    fn now(&self) -> Timestamp;
    /// Returns nanoseconds since some fixed moment; never goes back.
    fn monotonic_ns(&self) -> u64;
}

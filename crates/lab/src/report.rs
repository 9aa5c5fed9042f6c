//! The report of a lab.

use serde::Serialize;

/// The report of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabReport {
    /// Lab name, as on the command line.
    pub lab: String,
    /// Subject and paper.
    pub title: String,
    /// Disks, sizes, and costs left out.
    pub setting: Vec<String>,
    /// Measurements.
    pub grids: Vec<Grid>,
    /// Comparison with the paper's figures.
    pub beside: Vec<PaperComparison>,
    /// Comparison with goals.
    pub goals: Vec<Goal>,
}

/// Rates by request size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Grid {
    /// Subject, and the paper's figures.
    pub title: String,
    /// Request sizes, one per row.
    pub request_bytes: Vec<u64>,
    /// Columns.
    pub series: Vec<Series>,
}

/// A column of a [`Grid`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Series {
    /// Heading.
    pub name: String,
    /// Hundredths of a megabyte (10^6 bytes) a second, by row.
    pub centimegabytes_per_second: Vec<u64>,
}

/// A figure of the paper and its counterpart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PaperComparison {
    /// Subject, and its place in the paper.
    pub what: String,
    /// The paper's figure, with its unit.
    pub paper: String,
    /// The lab's figure.
    pub ours: String,
    /// Reason for a difference. Empty if the difference is below a quarter.
    pub why: String,
}

/// A ratio with a goal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Goal {
    /// Dividend and divisor.
    pub what: String,
    /// Ratio in hundredths.
    pub ratio: u64,
    /// Minimum in hundredths.
    pub at_least: u64,
}

impl Goal {
    /// Whether the goal is met.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        self.ratio >= self.at_least
    }
}

/// Formats hundredths as a decimal fraction.
pub(crate) fn hundredths(number: u64) -> String {
    format!("{}.{:02}", number / 100, number % 100)
}

/// Formats a request size.
pub(crate) fn size_of(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MB", bytes >> 20),
        _ => format!("{} KB", bytes >> 10),
    }
}

pub(crate) fn to_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

pub(crate) fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

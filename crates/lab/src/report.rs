//! What came out of a lab.

use serde::Serialize;

/// What came out of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Name of the lab, as its command has it.
    pub lab: String,
    /// What was measured, and of which paper.
    pub title: String,
    /// The setting: disks, sizes, and what costs nothing.
    pub setting: Vec<String>,
    /// What was measured.
    pub grids: Vec<Grid>,
    /// The paper's figures beside ours.
    pub beside: Vec<Beside>,
    /// What is held against a goal.
    pub goals: Vec<Goal>,
}

/// Rates by size of request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Grid {
    /// What these are, and which figures of the paper.
    pub title: String,
    /// Bytes of a request, a row each.
    pub request_bytes: Vec<u64>,
    /// Columns.
    pub series: Vec<Series>,
}

/// A column of a [`Grid`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Series {
    /// Its heading.
    pub name: String,
    /// For each size: hundredths of a megabyte (10^6 bytes) a second.
    pub centimegabytes_per_second: Vec<u64>,
}

/// A figure of the paper beside ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Beside {
    /// What, and where in the paper.
    pub what: String,
    /// The paper's, with its unit.
    pub paper: String,
    /// Ours.
    pub ours: String,
    /// Why they differ; empty: they do not, by more than a quarter.
    pub why: String,
}

/// A ratio that is held against a goal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Goal {
    /// What is divided by what.
    pub what: String,
    /// Hundredths.
    pub ratio: u64,
    /// Hundredths: at least this.
    pub at_least: u64,
}

impl Goal {
    /// Whether it is reached.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        self.ratio >= self.at_least
    }
}

/// Returns hundredths as people read them.
pub(crate) fn hundredths(number: u64) -> String {
    format!("{}.{:02}", number / 100, number % 100)
}

/// Returns bytes as sizes of requests are written.
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

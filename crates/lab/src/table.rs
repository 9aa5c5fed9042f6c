//! Formats a report as text.

use std::fmt::Write;

use crate::report::{LabReport, hundredths, size_of};

const COLUMN: usize = 12;

/// Formats a report as tables.
#[must_use]
pub fn text_of(report: &LabReport) -> String {
    let mut text = format!("{}\n", report.title);
    for line in &report.setting {
        let _ = writeln!(text, "  {line}");
    }
    for grid in &report.grids {
        let _ = write!(text, "\n{} (MB/s)\n{:>COLUMN$}", grid.title, "request");
        for series in &grid.series {
            let _ = write!(text, "  {:>COLUMN$}", series.name);
        }
        text.push('\n');
        for (row, &bytes) in grid.request_bytes.iter().enumerate() {
            let _ = write!(text, "{:>COLUMN$}", size_of(bytes));
            for series in &grid.series {
                let rate = series.centimegabytes_per_second[row];
                let width = COLUMN.max(series.name.chars().count());
                let _ = write!(text, "  {:>width$}", hundredths(rate));
            }
            text.push('\n');
        }
    }
    if !report.beside.is_empty() {
        let _ = writeln!(text, "\nbeside the paper");
    }
    for line in &report.beside {
        let _ = writeln!(text, "  {}: paper {}, here {}", line.what, line.paper, line.ours);
        if !line.why.is_empty() {
            let _ = writeln!(text, "      {}", line.why);
        }
    }
    if !report.goals.is_empty() {
        let _ = writeln!(text, "\ngoals");
    }
    for goal in &report.goals {
        let verdict = if goal.is_reached() { "reached" } else { "MISSED" };
        let (ratio, least) = (hundredths(goal.ratio), hundredths(goal.at_least));
        let _ = writeln!(text, "  {}: {ratio} (at least {least}): {verdict}", goal.what);
    }
    text
}

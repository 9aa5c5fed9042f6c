//! Progress of long commands: one line on a terminal, lines in the log of a laboratory run, else
//! nothing.
//!
//! Bytes are in scaled units. A percentage and the remaining time are shown only where the total is
//! known.

use std::fmt::Write as _;
use std::io::Write;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use control::size::ByteSize;
use control::wire::TransferProgress;

/// Step between two progress lines in a log, in percent.
const PLAIN_STEP_PERCENT: u64 = 10;

const BYTES_OF: &str = "{prefix} [{bar:16}] {percent}% ETA {eta}  {binary_bytes} of \
                        {binary_total_bytes}  {binary_bytes_per_sec}{msg}";
const BYTES: &str = "{prefix} {binary_bytes}  {binary_bytes_per_sec}{msg}  {elapsed}";
const ITEMS_OF: &str =
    "{prefix} [{bar:16}] {percent}% ETA {eta}  {human_pos} of {human_len}{msg}  {per_sec}";
const ITEMS: &str = "{prefix} {human_pos}{msg}  {elapsed}";
const SHARE: &str = "{prefix} [{bar:16}] {percent}% ETA {eta}";

/// Unit of the work that a command shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkUnit {
    /// Bytes, with the name of the items that they belong to. Empty for none.
    Bytes(&'static str),
    /// Items of this name.
    Items(&'static str),
    /// No unit that means something to a user: shown as a percentage.
    Share,
}

/// How a long command reports progress.
#[derive(Debug)]
pub enum ProgressOutput {
    /// No report.
    Silent,
    /// One line on a terminal.
    Bar(ProgressLine),
    /// Lines in a log.
    Plain(PlainProgress),
}

impl ProgressOutput {
    /// Reports that `done` of `total` items of the task `what` are finished. A `total` of 0 means
    /// unknown.
    pub fn tell(&mut self, what: &str, done: u64, total: u64) {
        self.tell_in(WorkUnit::Items(""), what, done, total);
    }

    /// Reports `done` of `total` in `unit`. A `total` of 0 means unknown.
    pub fn tell_in(&mut self, unit: WorkUnit, what: &str, done: u64, total: u64) {
        let at = match unit {
            WorkUnit::Bytes(_) => {
                TransferProgress { bytes: done, bytes_total: total, ..TransferProgress::default() }
            }
            WorkUnit::Items(_) | WorkUnit::Share => {
                TransferProgress { items: done, items_total: total, ..TransferProgress::default() }
            }
        };
        self.show(unit, what, at);
    }

    /// Reports progress in bytes and items.
    pub fn show(&mut self, unit: WorkUnit, what: &str, at: TransferProgress) {
        match self {
            ProgressOutput::Silent => {}
            ProgressOutput::Bar(line) => line.show(unit, what, at),
            ProgressOutput::Plain(plain) => {
                if let Some(line) = plain.line(what, at.items, at.items_total) {
                    let _ = writeln!(std::io::stderr(), "{line}");
                }
            }
        }
    }

    /// Removes the line from the terminal.
    pub fn finish(self) {
        if let ProgressOutput::Bar(line) = self {
            line.bar.finish_and_clear();
        }
    }
}

/// The line on a terminal.
#[derive(Debug)]
pub struct ProgressLine {
    bar: ProgressBar,
    template: &'static str,
}

impl ProgressLine {
    pub(crate) fn new(target: ProgressDrawTarget) -> ProgressLine {
        ProgressLine { bar: ProgressBar::with_draw_target(None, target), template: "" }
    }

    fn show(&mut self, unit: WorkUnit, what: &str, at: TransferProgress) {
        let (template, done, total) = match unit {
            WorkUnit::Share => (SHARE, at.items, at.items_total),
            _ if at.bytes_total > 0 => (BYTES_OF, at.bytes, at.bytes_total),
            _ if at.items_total > 0 => (ITEMS_OF, at.items, at.items_total),
            WorkUnit::Bytes(_) => (BYTES, at.bytes, 0),
            WorkUnit::Items(_) => (ITEMS, at.items, 0),
        };
        if self.template != template {
            self.template = template;
            let style =
                ProgressStyle::with_template(template).expect("the template is well formed");
            self.bar.set_style(style.progress_chars("=> "));
        }
        if total > 0 {
            self.bar.set_length(total);
        }
        if self.bar.prefix() != what {
            self.bar.set_prefix(what.to_owned());
        }
        self.bar.set_message(rest_of(unit, template, at));
        // Work may grow after it was counted.
        self.bar.set_position(if total > 0 { done.min(total) } else { done });
    }
}

/// Returns what a line shows behind its main amount.
fn rest_of(unit: WorkUnit, template: &str, at: TransferProgress) -> String {
    let mut rest = String::new();
    let (WorkUnit::Bytes(name) | WorkUnit::Items(name)) = unit else { return rest };
    if template == ITEMS_OF || template == ITEMS {
        if !name.is_empty() {
            let _ = write!(rest, " {name}");
        }
        if at.bytes > 0 {
            let _ = write!(rest, ", {}", ByteSize(at.bytes));
        }
    } else if !name.is_empty() {
        let _ = match at.items_total {
            0 => write!(rest, ", {} {name}", at.items),
            total => write!(rest, ", {} of {total} {name}", at.items.min(total)),
        };
    }
    rest
}

/// State of the progress lines in a log.
#[derive(Debug, Default)]
pub struct PlainProgress {
    what: String,
    next_percent: u64,
}

impl PlainProgress {
    /// Returns a line when a kind of work begins, and at each tenth of it. `None` in between.
    fn line(&mut self, what: &str, done: u64, total: u64) -> Option<String> {
        if self.what != what {
            what.clone_into(&mut self.what);
            self.next_percent = 0;
        }
        let percent = done.saturating_mul(100).checked_div(total).unwrap_or(0);
        if percent < self.next_percent {
            return None;
        }
        self.next_percent = percent - percent % PLAIN_STEP_PERCENT + PLAIN_STEP_PERCENT;
        Some(if total == 0 {
            format!("{what}: {done}")
        } else {
            format!("{what}: {done} of {total} ({percent}%)")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_progress_is_a_line_at_each_tenth() {
        let mut plain = PlainProgress::default();
        let lines: Vec<String> =
            (0..=1000).filter_map(|done| plain.line("seeds", done, 1000)).collect();
        assert_eq!(lines.len(), 11, "{lines:?}");
        assert_eq!(lines[0], "seeds: 0 of 1000 (0%)");
        assert_eq!(lines[10], "seeds: 1000 of 1000 (100%)");
        assert!(plain.line("pages", 5, 0).is_some(), "other work starts anew");
        assert!(plain.line("pages", 6, 0).is_none());
    }

    /// Goal: a percentage and the remaining time are shown only where the total is known, and bytes
    /// are scaled. The bar draws to no terminal.
    #[test]
    fn a_line_has_a_percentage_where_the_total_is_known() {
        let mut line = ProgressLine::new(ProgressDrawTarget::hidden());
        let at = |bytes, bytes_total, items, items_total| TransferProgress {
            bytes,
            bytes_total,
            items,
            items_total,
        };
        let files = WorkUnit::Bytes("files");
        for (unit, at, template, rest, length) in [
            (files, at(5 << 30, 0, 7, 0), BYTES, ", 7 files", None),
            (files, at(5 << 30, 9 << 30, 7, 8), BYTES_OF, ", 7 of 8 files", Some(9 << 30)),
            (files, at(9, 9, 7, 0), BYTES_OF, ", 7 files", Some(9)),
            (files, at(0, 0, 7, 8), ITEMS_OF, " files", Some(8)),
            (WorkUnit::Items("inodes"), at(3 << 20, 0, 7, 8), ITEMS_OF, " inodes, 3M", Some(8)),
            (WorkUnit::Share, at(0, 0, 7, 8), SHARE, "", Some(8)),
        ] {
            line.show(unit, "copied", at);
            assert_eq!((line.template, &*line.bar.message()), (template, rest), "{at:?}");
            assert_eq!(line.bar.length().filter(|_| length.is_some()), length, "{at:?}");
            assert_eq!(template.contains("percent"), length.is_some(), "{at:?}");
            assert_eq!(template.contains("eta"), length.is_some(), "{at:?}");
        }
        line.show(files, "copied", at(20, 10, 1, 1));
        assert_eq!(line.bar.position(), 10, "no more than all");
    }
}

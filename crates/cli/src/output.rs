//! What the program prints: text for people, JSON for programs, progress for whoever watches.
//!
//! Facts go to standard output, everything else to standard error, so that `--json` is one object a
//! line and nothing between. A reader that has gone away is not an error. Progress is a bar on a
//! terminal; a pipe, a file and the journal of a timer get none, but of the runs of a laboratory
//! that take hours and whose log is read meanwhile. With `--quiet` there are facts, warnings and
//! errors.

use std::io::{IsTerminal, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serializer;
use serde_json::{Value, json};

/// Progress in a log is a line at each of these steps, in percent.
const PLAIN_STEP_PERCENT: u64 = 10;

/// Where facts go.
#[derive(Debug)]
pub(crate) struct Output {
    is_json: bool,
    is_quiet: bool,
}

impl Output {
    /// Returns an output for people, or for programs.
    pub(crate) fn new(is_json: bool) -> Output {
        Output { is_json, is_quiet: false }
    }

    /// Says neither what is being done nor what to do next, if `is_quiet`.
    pub(crate) fn quiet(self, is_quiet: bool) -> Output {
        Output { is_quiet, ..self }
    }

    /// Whether facts are for programs.
    pub(crate) fn is_json(&self) -> bool {
        self.is_json
    }

    /// Prints a fact: `text` for people or `value` for programs.
    pub(crate) fn fact(&self, text: &str, value: &Value) {
        let line = if self.is_json { value.to_string() } else { text.trim_end().to_owned() };
        let mut stdout = std::io::stdout().lock();
        let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    }

    /// Says something that is no fact: what is being done, what to do next.
    pub(crate) fn remark(&self, text: &str) {
        if !self.is_json && !self.is_quiet {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// Says what was not asked for and should be known.
    pub(crate) fn warning(&self, text: &str) {
        if !self.is_json {
            let _ = writeln!(std::io::stderr(), "Warning: {text}");
        }
    }

    /// Says why the program fails.
    pub(crate) fn failure(&self, error: &anyhow::Error, code: u8) {
        let message = format!("{error:#}");
        if self.is_json {
            self.fact("", &json!({ "error": message, "exit": code }));
        } else {
            let _ = writeln!(std::io::stderr(), "holdfast: {message}");
        }
    }

    /// Returns a progress report: a bar on a terminal, else nothing.
    pub(crate) fn progress(&self) -> Progress {
        if self.is_json || self.is_quiet || !std::io::stderr().is_terminal() {
            return Progress::Silent;
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(bar_style());
        Progress::Bar(bar)
    }

    /// As [`Output::progress`], of a run of the laboratory: plain lines for a log.
    pub(crate) fn progress_of_run(&self) -> Progress {
        let is_log = !self.is_json && !self.is_quiet && !std::io::stderr().is_terminal();
        if is_log { Progress::Plain(PlainProgress::default()) } else { self.progress() }
    }
}

/// Returns `text` with its control characters escaped: what a pool says of itself must not command
/// a terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            printable.extend(c.escape_default());
        } else {
            printable.push(c);
        }
    }
    printable
}

/// Writes a path as text, for JSON that is read: bytes that are no UTF-8 become U+FFFD. JSON has no
/// other strings, and a path may be any bytes.
pub(crate) fn path_as_text<S: Serializer>(
    path: impl AsRef<Path>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.as_ref().display())
}

fn bar_style() -> ProgressStyle {
    let template = "{msg} [{bar:40}] {pos}/{len} {percent}% {elapsed} (ETA {eta})";
    ProgressStyle::with_template(template)
        .expect("the template is well formed")
        .progress_chars("=> ")
}

/// How far a long command is.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Nobody watches.
    Silent,
    /// Somebody watches.
    Bar(ProgressBar),
    /// A log is written.
    Plain(PlainProgress),
}

impl Progress {
    /// Tells that `done` of `total` (0: not known) of `what` is done.
    pub(crate) fn tell(&mut self, what: &str, done: u64, total: u64) {
        match self {
            Progress::Silent => {}
            Progress::Bar(bar) => {
                if total > 0 {
                    bar.set_length(total);
                }
                if bar.message() != what {
                    bar.set_message(what.to_owned());
                }
                bar.set_position(done);
            }
            Progress::Plain(plain) => {
                if let Some(line) = plain.line(what, done, total) {
                    let _ = writeln!(std::io::stderr(), "{line}");
                }
            }
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Which lines were printed.
#[derive(Debug, Default)]
pub(crate) struct PlainProgress {
    what: String,
    next_percent: u64,
}

impl PlainProgress {
    /// Returns a line at the start of each kind of work and at each tenth of it.
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
    fn what_is_printed_commands_no_terminal() {
        assert_eq!(printable("a\nb\u{1b}[31m\u{9b}"), "a\\nb\\u{1b}[31m\\u{9b}");
        assert_eq!(printable("caf\u{e9} 1"), "caf\u{e9} 1");
    }

    /// Goal: where no terminal is, only the runs of a laboratory tell how far they are, and with
    /// `--quiet` or `--json` those neither. Method: standard error of a test is no terminal, or
    /// nothing is looked at.
    #[test]
    fn progress_is_for_a_terminal_and_for_the_logs_of_runs() {
        if std::io::stderr().is_terminal() {
            return;
        }
        let output = || Output::new(false);
        assert!(matches!(output().progress(), Progress::Silent));
        assert!(matches!(output().progress_of_run(), Progress::Plain(_)));
        for output in [output().quiet(true), Output::new(true)] {
            assert!(matches!(output.progress(), Progress::Silent));
            assert!(matches!(output.progress_of_run(), Progress::Silent));
        }
    }

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
}

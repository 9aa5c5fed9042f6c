//! Program output: facts as text or JSON on standard output, all else on standard error.
//!
//! With `--json`, standard output has one object per line, each with the `version` of the protocol.
//! A closed pipe is no error. `--quiet` suppresses remarks and progress.

use std::io::{IsTerminal, Write};

use indicatif::ProgressDrawTarget;
use serde::Serialize;
use serde_json::{Value, json};

use crate::progress::{PlainProgress, ProgressLine, ProgressOutput};
use crate::table::{Column, table};

/// Output settings: text or JSON, quiet or not.
#[derive(Debug)]
pub struct Output {
    is_json: bool,
    is_quiet: bool,
}

impl Output {
    /// Returns an output that prints JSON if `is_json`, else text.
    pub fn new(is_json: bool) -> Output {
        Output { is_json, is_quiet: false }
    }

    /// Suppresses remarks and progress if `is_quiet`.
    pub fn quiet(self, is_quiet: bool) -> Output {
        Output { is_quiet, ..self }
    }

    /// Whether facts are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.is_json
    }

    /// Prints a fact: `text`, or `value` with `--json`.
    pub fn fact(&self, text: &str, value: &Value) {
        let line = if self.is_json { versioned(value) } else { text.trim_end().to_owned() };
        let mut stdout = std::io::stdout().lock();
        let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    }

    /// Prints a list of facts: a table, or with `--json` an object for each. Of an empty list, the
    /// remark `none`.
    pub fn list<T: Serialize, const N: usize>(
        &self,
        items: &[T],
        none: &str,
        columns: [Column; N],
        row: impl Fn(&T) -> [String; N],
    ) {
        match self.is_json {
            true => items.iter().for_each(|item| self.fact("", &json!(item))),
            false if items.is_empty() => self.remark(none),
            false => {
                let rows = items.iter().map(row);
                self.fact(&table(columns, rows, self.width()), &Value::Null);
            }
        }
    }

    /// Returns the width of standard output. `None` if it is no terminal.
    pub fn width(&self) -> Option<usize> {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        Some(usize::from(size.ws_col)).filter(|width| *width > 0)
    }

    /// Prints a remark on standard error.
    pub fn remark(&self, text: &str) {
        if !self.is_json && !self.is_quiet {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// Prints a warning, even with `--quiet`.
    pub fn warning(&self, text: &str) {
        if !self.is_json {
            let _ = writeln!(std::io::stderr(), "Warning: {text}");
        }
    }

    /// Prints the program's final error.
    pub fn failure(&self, error: &anyhow::Error, code: u8) {
        let message = format!("{error:#}");
        if self.is_json {
            self.fact("", &json!({ "error": message, "exit": code }));
        } else {
            let _ = writeln!(std::io::stderr(), "holdfast: {message}");
        }
    }

    /// Returns a progress bar on a terminal, else [`ProgressOutput::Silent`].
    pub fn progress(&self) -> ProgressOutput {
        if self.is_json || self.is_quiet || !std::io::stderr().is_terminal() {
            return ProgressOutput::Silent;
        }
        ProgressOutput::Bar(ProgressLine::new(ProgressDrawTarget::stderr()))
    }

    /// Returns the progress of a laboratory run: log lines if there is no terminal.
    pub fn progress_of_run(&self) -> ProgressOutput {
        let is_log = !self.is_json && !self.is_quiet && !std::io::stderr().is_terminal();
        if is_log { ProgressOutput::Plain(PlainProgress::default()) } else { self.progress() }
    }
}

fn versioned(value: &Value) -> String {
    let mut value = value.clone();
    if let Some(object) = value.as_object_mut() {
        object.insert("version".to_owned(), json!(control::VERSION));
    }
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: without a terminal, only laboratory runs report progress, and none with `--quiet` or
    /// `--json`. Skipped on a terminal.
    #[test]
    fn progress_is_for_a_terminal_and_for_the_logs_of_runs() {
        if std::io::stderr().is_terminal() {
            return;
        }
        let output = || Output::new(false);
        assert!(matches!(output().progress(), ProgressOutput::Silent));
        assert!(matches!(output().progress_of_run(), ProgressOutput::Plain(_)));
        for output in [output().quiet(true), Output::new(true)] {
            assert!(matches!(output.progress(), ProgressOutput::Silent));
            assert!(matches!(output.progress_of_run(), ProgressOutput::Silent));
        }
    }
}

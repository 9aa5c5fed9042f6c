//! Results of a check: as text, as JSON, and as an exit code.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use format::defect::{Defect, DefectCode, Severity};

/// Most defects that a report describes; further ones are only counted.
pub const DEFECTS_KEPT_MAX: usize = 1000;

/// A defect, with its path and device offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefectFinding {
    /// Code, subject and place.
    pub defect: Defect,
    /// Path of the subject, where one was found.
    pub path: Option<String>,
    /// Byte offset on the device.
    pub device_offset: Option<u64>,
}

/// Results of a check.
#[derive(Clone, Debug, Default)]
pub struct ConsistencyReport {
    /// The pool and the device that were checked.
    pub title: String,
    /// Remarks for the user, for example that the log was replayed in memory.
    pub notes: Vec<String>,
    /// Defects of spare copies while another copy serves. No data is lost, and the next clean close
    /// rewrites the copy. A pool with only these is clean.
    pub noted: Vec<DefectFinding>,
    /// The first [`DEFECTS_KEPT_MAX`] defects, in the order of detection.
    pub findings: Vec<DefectFinding>,
    /// Number of defects by code, including those not described.
    pub counts: BTreeMap<DefectCode, u64>,
    /// The reason if the check stopped early.
    pub stopped: Option<String>,
    /// Amount of work.
    pub totals: CheckTotals,
}

/// Amount of work of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckTotals {
    /// Metadata pages read.
    pub pages: u64,
    /// Blocks of files found.
    pub blocks: u64,
    /// Bytes of blocks with a verified checksum.
    pub data_bytes: u64,
    /// Filesets.
    pub filesets: u64,
    /// Anodes in use.
    pub anodes: u64,
    /// Names in directories.
    pub names: u64,
    /// Initialised allocation groups.
    pub groups: u64,
    /// Fragments in use.
    pub fragments: u64,
}

impl ConsistencyReport {
    /// Returns an exit code in the manner of fsck(8): 0 clean, 4 defects, 8 the check stopped
    /// early.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.stopped.is_some() {
            8
        } else if self.counts.is_empty() {
            0
        } else {
            4
        }
    }

    /// Returns whether the whole pool was checked without a defect.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.exit_code() == 0
    }

    /// Returns the number of defects.
    #[must_use]
    pub fn defect_count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Returns the severity of the worst defect.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.counts.keys().map(|code| code.severity()).max()
    }

    pub(crate) fn add(&mut self, finding: DefectFinding) {
        *self.counts.entry(finding.defect.code).or_insert(0) += 1;
        if self.findings.len() < DEFECTS_KEPT_MAX {
            self.findings.push(finding);
        }
    }

    pub(crate) fn note(&mut self, finding: DefectFinding) {
        self.noted.push(finding);
    }

    /// Returns the remarks and the defects of spare copies, a line each.
    pub fn note_lines(&self) -> impl Iterator<Item = String> {
        let noted = self.noted.iter().map(|finding| {
            format!(
                "{}; another copy serves, and the next clean close writes it anew",
                line_of(finding)
            )
        });
        self.notes.iter().cloned().chain(noted)
    }

    /// Returns the report as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{}\n", self.title);
        for note in self.note_lines() {
            let _ = writeln!(text, "note: {note}");
        }
        for finding in &self.findings {
            let _ = writeln!(text, "{}", line_of(finding));
        }
        let described = u64::try_from(self.findings.len()).unwrap_or(u64::MAX);
        let more = self.defect_count().saturating_sub(described);
        if more > 0 {
            let _ = writeln!(text, "and {more} more defects");
        }
        for (code, count) in &self.counts {
            let _ = writeln!(
                text,
                "{} x {count} ({}): {}",
                code.name(),
                code.severity().word(),
                code.meaning()
            );
        }
        let totals = &self.totals;
        let _ = writeln!(
            text,
            "checked {} filesets, {} anodes, {} names, {} pages, {} blocks ({} bytes verified), \
             {} groups, {} fragments in use",
            totals.filesets,
            totals.anodes,
            totals.names,
            totals.pages,
            totals.blocks,
            totals.data_bytes,
            totals.groups,
            totals.fragments
        );
        let verdict = match (&self.stopped, self.defect_count()) {
            (Some(why), _) => format!("the check could not be done: {why}"),
            (None, 0) => "clean".to_owned(),
            (None, count) => format!("{count} defects; docs/CHECK.md says what each means"),
        };
        let _ = writeln!(text, "{verdict}");
        text
    }

    /// Returns the report as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        let defects: Vec<String> = self.findings.iter().map(finding_json).collect();
        let counts: Vec<String> = self
            .counts
            .iter()
            .map(|(code, count)| format!("\"{}\":{count}", code.name()))
            .collect();
        let notes: Vec<String> = self.note_lines().map(|note| json_string(&note)).collect();
        let noted: Vec<String> = self.noted.iter().map(finding_json).collect();
        let totals = &self.totals;
        format!(
            "{{\"title\":{},\"exit_code\":{},\"clean\":{},\"stopped\":{},\"notes\":[{}],\
             \"noted\":[{}],\"defect_count\":{},\"counts\":{{{}}},\"defects\":[{}],\"totals\":{{\
             \"filesets\":{},\"anodes\":{},\"names\":{},\"pages\":{},\"blocks\":{},\
             \"data_bytes\":{},\"groups\":{},\"fragments\":{}}}}}",
            json_string(&self.title),
            self.exit_code(),
            self.is_clean(),
            json_option(self.stopped.as_deref()),
            notes.join(","),
            noted.join(","),
            self.defect_count(),
            counts.join(","),
            defects.join(","),
            totals.filesets,
            totals.anodes,
            totals.names,
            totals.pages,
            totals.blocks,
            totals.data_bytes,
            totals.groups,
            totals.fragments
        )
    }
}

/// Returns a finding as a line of text, without a line break.
#[must_use]
pub fn line_of(finding: &DefectFinding) -> String {
    let defect = &finding.defect;
    let mut line = format!("{} {}: {}", defect.code.name(), severity_of(defect), defect.what);
    if let Some(path) = &finding.path {
        let _ = write!(line, " [{path}]");
    } else if defect.subject.anode.0 != 0 {
        let _ = write!(line, " [{} of {}]", defect.subject.anode, defect.subject.fileset);
    }
    if let Some(place) = defect.place {
        let _ = write!(line, " at {place}");
    }
    if let Some(offset) = finding.device_offset {
        let _ = write!(line, " (device byte {offset})");
    }
    line
}

fn severity_of(defect: &Defect) -> &'static str {
    defect.code.severity().word()
}

fn finding_json(finding: &DefectFinding) -> String {
    let defect = &finding.defect;
    let place = defect.place.map(|place| place.to_string());
    format!(
        "{{\"code\":\"{}\",\"severity\":\"{}\",\"meaning\":{},\"what\":{},\"fileset\":{},\
         \"anode\":{},\"path\":{},\"place\":{},\"device_offset\":{}}}",
        defect.code.name(),
        severity_of(defect),
        json_string(defect.code.meaning()),
        json_string(&defect.what),
        defect.subject.fileset.0,
        defect.subject.anode.0,
        json_option(finding.path.as_deref()),
        json_option(place.as_deref()),
        finding.device_offset.map_or("null".to_owned(), |offset| offset.to_string())
    )
}

fn json_option(text: Option<&str>) -> String {
    text.map_or("null".to_owned(), json_string)
}

/// Returns `text` as a JSON string, quotes included (RFC 8259, section 7).
pub fn json_string(text: &str) -> String {
    let mut json = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            control if control < ' ' => {
                let _ = write!(json, "\\u{:04x}", u32::from(control));
            }
            other => json.push(other),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding() -> DefectFinding {
        let defect = DefectCode::LN001.found("says \"2\"\n\\");
        DefectFinding { defect, path: None, device_offset: Some(4096) }
    }

    #[test]
    fn exit_code_tells_clean_defects_and_failure_apart() {
        let mut report = ConsistencyReport::default();
        assert_eq!(report.exit_code(), 0);
        report.add(finding());
        assert_eq!(report.exit_code(), 4);
        assert_eq!(report.worst(), Some(Severity::Major));
        report.stopped = Some("no device".to_owned());
        assert_eq!(report.exit_code(), 8);
    }

    #[test]
    fn json_escapes_quotes_backslashes_and_control_characters() {
        let mut report = ConsistencyReport::default();
        report.add(finding());
        let json = report.to_json();
        assert!(json.contains("\"what\":\"says \\\"2\\\"\\u000a\\\\\""), "{json}");
        assert!(json.contains("\"device_offset\":4096"), "{json}");
    }

    #[test]
    fn defects_past_the_bound_are_counted() {
        let mut report = ConsistencyReport::default();
        for _ in 0..=DEFECTS_KEPT_MAX {
            report.add(finding());
        }
        assert_eq!(report.findings.len(), DEFECTS_KEPT_MAX);
        assert_eq!(report.defect_count(), 1001);
        assert!(report.to_text().contains("and 1 more defects"));
    }
}

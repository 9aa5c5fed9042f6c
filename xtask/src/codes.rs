//! Defect codes: one table, one meaning, and `docs/CHECK.md` explains each.
//!
//! 1. Each code of the table has a section whose first line is its meaning and its severity.
//! 2. Each is given out somewhere (`DefectCode::X` outside tests). One that neither the checker nor
//!    `format` gives out says in its section that the check does not report it.
//! 3. No code is spelled out in a string: it would not follow the table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::sources::Source;

const TABLE: &str = "crates/format/src/defect.rs";
const DOCUMENT: &str = "docs/CHECK.md";
/// What the document says of each code, under its heading.
const PARTS: [&str; 4] = ["**Meaning.**", "**Cause.**", "**Repair.**", "**Lost.**"];
/// How the section of a code says that only the engine gives it out.
const NOT_REPORTED: &str = "the check does not)";
/// Where codes are given out that the check reports.
const REPORTED: [&str; 2] = ["crates/check/", "crates/format/"];

/// A line of the table.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    severity: String,
    meaning: String,
}

/// Checks the codes of all crates against the document.
pub(crate) fn check(root: &Path, sources: &[Source], findings: &mut Vec<String>) -> io::Result<()> {
    let path = root.join(DOCUMENT);
    let document = if path.is_file() { fs::read_to_string(path)? } else { String::new() };
    compare(sources, &document, findings);
    Ok(())
}

fn compare(sources: &[Source], document: &str, findings: &mut Vec<String>) {
    let mut table = BTreeMap::new();
    let (mut given, mut reported) = (BTreeSet::new(), BTreeSet::new());
    for source in sources {
        for (number, line) in source.code_lines() {
            if source.path == TABLE {
                table.extend(listed(line));
                continue;
            }
            for code in uses(line) {
                if REPORTED.iter().any(|part| source.path.starts_with(part)) {
                    reported.insert(code.clone());
                }
                given.insert(code);
            }
            if let Some(code) = spelled(line) {
                findings.push(format!(
                    "{}:{number}: {code} is spelled out; use DefectCode",
                    source.path
                ));
            }
        }
    }
    let sections = sections(document);
    for (code, listed) in &table {
        if !given.contains(code) {
            findings.push(format!("{TABLE}: {code} is a code that nothing gives out"));
        }
        let Some(text) = sections.get(code) else {
            findings.push(format!("{DOCUMENT}: no section on {code}"));
            continue;
        };
        section(code, listed, text, reported.contains(code), findings);
    }
    for code in sections.keys().filter(|code| !table.contains_key(*code)) {
        findings.push(format!("{DOCUMENT}: {code} is not in the table of {TABLE}"));
    }
}

/// Compares the section on `code` with its line of the table.
fn section(code: &str, listed: &Listed, text: &str, is_reported: bool, findings: &mut Vec<String>) {
    let said = text.lines().nth(1).unwrap_or("");
    let meaning = format!("{} ({}", listed.meaning, listed.severity);
    let rest = said.strip_prefix(&meaning);
    if !rest.is_some_and(|rest| rest == ")" || rest.starts_with("; ") && rest.ends_with(')')) {
        findings.push(format!("{DOCUMENT}: {code} must begin with `{meaning})`, not `{said}`"));
    }
    if is_reported == said.ends_with(NOT_REPORTED) {
        let does = if is_reported { "does" } else { "does not" };
        findings.push(format!("{DOCUMENT}: {code}: the check {does} report it"));
    }
    for part in PARTS.iter().filter(|part| !text.contains(*part)) {
        findings.push(format!("{DOCUMENT}: {code} has no {part}"));
    }
}

/// Returns the code that `text` begins with: two capitals and three digits.
fn code_at(text: &str) -> Option<&str> {
    let code = text.get(..5)?;
    let (letters, digits) = code.split_at_checked(2)?;
    let is_code = letters.chars().all(|c| c.is_ascii_uppercase())
        && digits.chars().all(|c| c.is_ascii_digit());
    is_code.then_some(code)
}

/// Returns what a line of the table says.
fn listed(line: &str) -> Option<(String, Listed)> {
    let line = line.strip_prefix("    ")?;
    let code = code_at(line)?;
    let (severity, meaning) = line.get(6..)?.split_once(' ')?;
    let meaning = meaning.trim_matches('"').to_owned();
    Some((code.to_owned(), Listed { severity: severity.to_lowercase(), meaning }))
}

/// Returns the codes that `line` gives out.
fn uses(line: &str) -> impl Iterator<Item = String> {
    line.split("DefectCode::").skip(1).filter_map(code_at).map(str::to_owned)
}

/// Returns a code that is spelled out at the start of a string of `line`.
fn spelled(line: &str) -> Option<&str> {
    line.split('"').skip(1).step_by(2).find_map(code_at)
}

/// Returns the text under each heading of the third level that is a code.
fn sections(document: &str) -> BTreeMap<String, String> {
    let mut sections = BTreeMap::new();
    for section in document.split("\n### ").skip(1) {
        if let Some(code) = code_at(section) {
            let end = section.find("\n## ").unwrap_or(section.len());
            sections.insert(code.to_owned(), section.get(..end).unwrap_or("").to_owned());
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, line: &str, document: &str) -> usize {
        let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let table = "//! D.\n    AG001 Minor \"Meant.\"\n";
        let mut findings = Vec::new();
        compare(&[source(TABLE, table), source(path, line)], document, &mut findings);
        findings.len()
    }

    #[test]
    fn codes_are_used_documented_and_mean_one_thing() {
        let (check, engine) = ("crates/check/src/a.rs", "crates/engine/src/a.rs");
        let given = "    defect(DefectCode::AG001)\n";
        let parts = PARTS.map(|part| format!("{part} x\n")).concat();
        let whole = format!("# Codes\n\n### AG001\nMeant. (minor)\n{parts}");
        assert_eq!(findings(check, given, &whole), 0);
        assert_eq!(findings(check, "", &whole), 2, "nothing gives it out, and so no check");
        assert_eq!(findings(check, given, "# Codes\n"), 1, "no section");
        let bare = "# Codes\n\n### AG001\nMeant. (minor)\n";
        assert_eq!(findings(check, given, bare), 4, "no parts");
        for other in ["Else. (minor)", "Meant. (severe)", "Meant."] {
            let document = whole.replace("Meant. (minor)", other);
            assert_eq!(findings(check, given, &document), 1, "{other}");
        }
        let unlisted = format!("{whole}\n### AG002\nMeant. (minor)\n{parts}");
        assert_eq!(findings(check, given, &unlisted), 1, "not in the table");
        assert_eq!(findings(engine, given, &whole), 1, "the check does not report it");
        let said = whole.replace("(minor)", "(minor; an open says it, the check does not)");
        assert_eq!(findings(engine, given, &said), 0);
        assert_eq!(findings(check, given, &said), 1, "the check reports it");
        let spelled = format!("{given}    fail(\"AG001: x\")\n");
        assert_eq!(findings(check, &spelled, &whole), 1, "spelled out");
    }
}

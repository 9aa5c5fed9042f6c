//! Defect codes: each is given out in one place, and `docs/CHECK.md` explains each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::sources::Source;

const DEFECTS: &str = "crates/check/src/defect.rs";
const DOCUMENT: &str = "docs/CHECK.md";
/// What the document says of each code, under its heading.
const PARTS: [&str; 4] = ["**Meaning.**", "**Cause.**", "**Repair.**", "**Lost.**"];

/// Checks the codes of all crates against the document.
pub(crate) fn check(root: &Path, sources: &[Source], findings: &mut Vec<String>) -> io::Result<()> {
    let path = root.join(DOCUMENT);
    let document = if path.is_file() { fs::read_to_string(path)? } else { String::new() };
    compare(sources, &document, findings);
    Ok(())
}

fn compare(sources: &[Source], document: &str, findings: &mut Vec<String>) {
    let mut given: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut known = BTreeSet::new();
    for source in sources {
        for (number, line) in source.code_lines() {
            if source.path == DEFECTS {
                known.extend(listed_code(line));
            }
            if let Some(code) = error_code(line) {
                given.entry(code).or_default().push(format!("{}:{number}", source.path));
            }
        }
    }
    for (code, places) in &given {
        if places.len() > 1 {
            findings.push(format!("{code} is given out in {}", places.join(" and ")));
        }
    }
    known.extend(given.into_keys());
    let sections = sections(document);
    for code in &known {
        let Some(text) = sections.get(code) else {
            findings.push(format!("{DOCUMENT}: no section on {code}"));
            continue;
        };
        for part in PARTS {
            if !text.contains(part) {
                findings.push(format!("{DOCUMENT}: {code} has no {part}"));
            }
        }
    }
    for code in sections.keys().filter(|code| !known.contains(*code)) {
        findings.push(format!("{DOCUMENT}: {code} is a code that nothing gives out"));
    }
}

/// Returns the code that `text` begins with: two capitals and three digits.
fn code_at(text: &str) -> Option<String> {
    let code = text.get(..5)?;
    let (letters, digits) = code.split_at(2);
    let is_code = letters.chars().all(|c| c.is_ascii_uppercase())
        && digits.chars().all(|c| c.is_ascii_digit());
    is_code.then(|| code.to_owned())
}

/// Returns the code of a line of the table of defects.
fn listed_code(line: &str) -> Option<String> {
    let code = code_at(line.strip_prefix("    ")?)?;
    line.contains('"').then_some(code)
}

/// Returns the code at the start of an error's message.
fn error_code(line: &str) -> Option<String> {
    let text = line.trim_start();
    let text = text.strip_prefix("#[error(").unwrap_or(text);
    code_at(text.strip_prefix('"')?)
}

/// Returns the text under each heading of the third level that is a code.
fn sections(document: &str) -> BTreeMap<String, String> {
    let mut sections = BTreeMap::new();
    for section in document.split("\n### ").skip(1) {
        if let Some(code) = code_at(section) {
            let end = section.find("\n## ").unwrap_or(section.len());
            sections.insert(code, section.get(..end).unwrap_or("").to_owned());
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(error: &str, document: &str) -> usize {
        let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let defects = "//! D.\n    AG001 Minor \"Meaning.\"\n";
        let mut findings = Vec::new();
        let sources = [source(DEFECTS, defects), source("crates/format/src/a.rs", error)];
        compare(&sources, document, &mut findings);
        findings.len()
    }

    #[test]
    fn codes_are_unique_and_documented() {
        let whole = PARTS.map(|part| format!("{part} x\n")).concat();
        let one = format!("# Codes\n\n### AG001\n{whole}");
        assert_eq!(findings("", &one), 0);
        assert_eq!(findings("", "# Codes\n"), 1, "no section");
        assert_eq!(findings("", "# Codes\n\n### AG001\n"), 4, "no parts");
        assert_eq!(findings("", &format!("{one}\n### AG002\n{whole}")), 1, "nothing gives it out");
        let error = "    #[error(\"PG001 at {place}\")]\n";
        assert_eq!(findings(error, &one), 1, "not documented");
        let both = format!("{one}\n### PG001\n{whole}");
        assert_eq!(findings(error, &both), 0);
        assert_eq!(findings(&error.repeat(2), &both), 1, "given out twice");
    }
}

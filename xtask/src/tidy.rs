//! The rules of style that a machine can check.
//!
//! 1. Every file has a header and is ASCII (tests apart), and has lines of at most 100 columns.
//! 2. A file has at most 1,200 lines, and says in its header why if it has more than 800.
//! 3. `unsafe` only in the files listed here, which say so at their top.
//! 4. No `unwrap` outside tests; no mark of unfinished work without the number of an issue.
//! 5. Layers: see `layers.rs`; arrows between crates: see `arrows.rs`. Defect codes: see
//!    `codes.rs`. Invariants: see `invariants.rs`.
//! 6. Tables of documents: see `results.rs`. Citations of decisions: see `citations.rs`.

use std::io;
use std::path::Path;

use crate::sources::{self, Source};
use crate::{arrows, citations, codes, invariants, layers, results};

const COLUMNS_MAX: usize = 100;
const LINES_MAX: usize = 1200;
const LINES_WITHOUT_REASON_MAX: usize = 800;
/// How a header begins the reason for a long file.
const REASON: &str = "//! Long:";
/// The files that may have unsafe code: small, and read with care.
const UNSAFE_FILES: [&str; 10] = [
    "crates/cli/tests/mounted/calls.rs",
    "crates/front/src/fuse/kernel/device.rs",
    "crates/front/src/fuse/kernel/uring/ring.rs",
    "crates/front/src/peer.rs",
    "crates/storage/src/device/buffer.rs",
    "crates/storage/src/device/long.rs",
    "crates/storage/src/device/file/block.rs",
    "crates/storage/src/device/file/uring.rs",
    "crates/storage/src/parity.rs",
    "tests/beside/calls.rs",
];

/// Returns what breaks a rule.
pub(crate) fn run(root: &Path) -> io::Result<Vec<String>> {
    let sources = sources::all(root)?;
    let mut findings = Vec::new();
    for source in &sources {
        whole_file(source, &mut findings);
        lines(source, &mut findings);
    }
    invariants::check(&sources, &citations::documents(root)?, &mut findings);
    layers::check(&sources, &mut findings);
    arrows::check(root, &mut findings)?;
    codes::check(root, &sources, &mut findings)?;
    citations::check(root, &sources, &mut findings)?;
    findings.append(&mut results::check(root)?);
    Ok(findings)
}

fn whole_file(source: &Source, findings: &mut Vec<String>) {
    let path = &source.path;
    let header = source.header();
    // The name of a test says what it is.
    if header.is_empty() && !source.is_test() {
        findings.push(format!("{path}: no module header (//!)"));
    }
    let count = source.text.lines().count();
    if count > LINES_MAX {
        findings.push(format!("{path}: {count} lines, at most {LINES_MAX}"));
    } else if count > LINES_WITHOUT_REASON_MAX
        && !header.iter().any(|line| line.starts_with(REASON))
    {
        findings.push(format!("{path}: {count} lines, and no `{REASON} reason` in its header"));
    }
    let is_listed = UNSAFE_FILES.contains(&path.as_str());
    let allows = source.text.lines().any(|line| line.trim() == "#![allow(unsafe_code)]");
    if allows && !is_listed {
        findings.push(format!("{path}: allows unsafe code, but is not in the list of xtask"));
    }
}

fn lines(source: &Source, findings: &mut Vec<String>) {
    let path = &source.path;
    for (number, line) in (1..).zip(source.text.lines()) {
        if line.chars().count() > COLUMNS_MAX {
            findings.push(format!("{path}:{number}: longer than {COLUMNS_MAX} columns"));
        }
        for mark in marks(line) {
            findings.push(format!("{path}:{number}: {mark}"));
        }
    }
    let is_listed = UNSAFE_FILES.contains(&path.as_str());
    for (number, line) in source.code_lines() {
        if !line.is_ascii() {
            findings.push(format!("{path}:{number}: not ASCII"));
        }
        let code = without_strings(line.split("//").next().unwrap_or(""));
        if code.contains(concat!(".unw", "rap()")) {
            findings.push(format!("{path}:{number}: unwrap outside tests; use expect"));
        }
        let is_unsafe = words(&code).any(|word| word == concat!("uns", "afe"));
        if is_unsafe && !is_listed {
            findings.push(format!("{path}:{number}: unsafe code outside the list of xtask"));
        }
    }
}

/// Returns `code` without what stands between quotation marks.
fn without_strings(code: &str) -> String {
    code.replace("\\\"", "").split('"').step_by(2).collect()
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Returns what is wrong with the marks of unfinished work in `line`.
fn marks(line: &str) -> Vec<String> {
    let never = [concat!("FIX", "ME"), concat!("X", "XX"), concat!("HA", "CK")];
    let mut found: Vec<String> = words(line)
        .filter(|word| never.contains(word))
        .map(|word| format!("the mark {word} does not land"))
        .collect();
    let later = concat!("TO", "DO");
    if words(line).any(|word| word == later) {
        let behind = line.split(later).nth(1).unwrap_or("");
        let digits = behind.trim_start_matches(['(', ' ']).strip_prefix('#');
        if !digits.is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit())) {
            found.push(format!("{later} without the number of an issue: {later}(#12)"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let source = Source { path: path.to_owned(), text: text.to_owned() };
        let mut findings = Vec::new();
        whole_file(&source, &mut findings);
        lines(&source, &mut findings);
        findings
    }

    #[test]
    fn each_rule_is_enforced() {
        let path = "crates/x/src/a.rs";
        assert_eq!(findings(path, "//! Header.\nfn f() {}\n"), Vec::<String>::new());
        let late = concat!("TO", "DO");
        let bad = [
            "fn f() {}\n".to_owned(),
            format!("//! Header.\n// {}\n", "long ".repeat(30)),
            "//! Header.\n".repeat(801),
            "//! Header.\n".repeat(1201),
            "//! Header.\n#![allow(unsafe_code)]\n".to_owned(),
            format!("//! Header.\n{} fn f() {{}}\n", concat!("uns", "afe")),
            format!("//! Header.\nfn f() {{ x{}; }}\n", concat!(".unw", "rap()")),
            "//! Header.\nfn f() { \"\u{e9}\" }\n".to_owned(),
            format!("//! Header.\n// {late}: later\n"),
            format!("//! Header.\n// {}\n", concat!("HA", "CK")),
        ];
        for text in bad {
            assert_eq!(findings(path, &text).len(), 1, "{text:?}");
        }
        let quoted = format!("//! Header.\nlet x = \"{} \\\" code\";\n", concat!("uns", "afe"));
        assert_eq!(findings(path, &quoted).len(), 0);
        assert_eq!(findings(path, &format!("//! Header.\n// {late}(#3): x\n")).len(), 0);
        let reason = "//! Header.\n//! Long: one match.\n".to_owned() + &"\n".repeat(900);
        assert_eq!(findings(path, &reason).len(), 0);
    }
}

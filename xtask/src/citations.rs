//! Citations of decisions: each names a record that exists, or an old number that the index has.
//!
//! Records that were merged keep one number; the table at the end of `docs/decisions/README.md`
//! says where the others went. These forms are citations, in sources and documents:
//!
//! 1. A number in parentheses, below [`PLAIN_END`]: modes of files look alike, and are above it.
//! 2. The word "decision", or "decisions", and the numbers behind it: "0001, 0002 and 0003".
//! 3. A path below `decisions/`, with a title or without, and a link from one record to another. A
//!    path with a title is that of a file.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use crate::sources::Source;

const FOLDER: &str = "docs/decisions/";
const INDEX: &str = "docs/decisions/README.md";
/// What the table of old numbers is under.
const TABLE: &str = "\n## Where old numbers went\n";
/// Numbers in parentheses from here on are no citations: 0400 is the first mode of a file.
const PLAIN_END: &str = "0400";
/// What stands between two numbers of a list.
const BETWEEN: [&str; 2] = ["and", "or"];

/// What can be cited.
#[derive(Debug, Default)]
struct Known {
    /// Files below the folder: records, their proofs, the index.
    files: BTreeSet<String>,
    /// Numbers of records, and old ones.
    numbers: BTreeSet<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Citation {
    Number(String),
    /// A path below the folder.
    File(String),
}

/// Checks the citations of all sources and documents.
pub(crate) fn check(root: &Path, sources: &[Source], findings: &mut Vec<String>) -> io::Result<()> {
    let documents = documents(root)?;
    let known = known(&documents, findings);
    for text in sources.iter().chain(&documents) {
        compare(text, &known, findings);
    }
    Ok(())
}

/// Returns the documents in the root, and all below `docs`.
pub(crate) fn documents(root: &Path) -> io::Result<Vec<Source>> {
    let mut documents = Vec::new();
    collect(root, root, &mut documents)?;
    Ok(documents)
}

/// Adds the documents in the root, and all below `docs`.
fn collect(root: &Path, folder: &Path, documents: &mut Vec<Source>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        let is_below = relative == "docs" || relative.starts_with("docs/");
        if path.is_dir() && is_below {
            collect(root, &path, documents)?;
        } else if relative.ends_with(".md") {
            documents.push(Source { text: fs::read_to_string(&path)?, path: relative });
        }
    }
    Ok(())
}

/// Returns what can be cited. An old number has no file, and leads to one that has.
fn known(documents: &[Source], findings: &mut Vec<String>) -> Known {
    let mut known = Known::default();
    for document in documents {
        if let Some(file) = document.path.strip_prefix(FOLDER) {
            known.files.insert(file.to_owned());
            known.numbers.extend(number_at(file).map(str::to_owned));
        }
    }
    let index = documents.iter().find(|document| document.path == INDEX);
    let table = index.and_then(|index| index.text.split_once(TABLE)).map_or("", |(_, table)| table);
    let mut old = BTreeSet::new();
    for line in table.lines() {
        let Some(number) = line.strip_prefix("| ").and_then(number_at) else { continue };
        let target = line.rsplit('[').next().and_then(number_at);
        if !target.is_some_and(|target| known.numbers.contains(target)) {
            findings.push(format!("{INDEX}: {number} went to no record"));
        }
        if known.numbers.contains(number) || !old.insert(number.to_owned()) {
            findings.push(format!("{INDEX}: {number} is there twice"));
        }
    }
    known.numbers.append(&mut old);
    known
}

fn compare(source: &Source, known: &Known, findings: &mut Vec<String>) {
    for (line, citation) in cited(source) {
        let path = &source.path;
        match citation {
            Citation::Number(number) if !known.numbers.contains(&number) => {
                findings.push(format!("{path}:{line}: there is no decision {number}"));
            }
            Citation::File(file) if !known.files.contains(&file) => {
                findings.push(format!("{path}:{line}: there is no {FOLDER}{file}"));
            }
            Citation::Number(_) | Citation::File(_) => {}
        }
    }
}

/// Returns the citations of `source`, each with its line.
fn cited(source: &Source) -> Vec<(usize, Citation)> {
    let mut found = Vec::new();
    // Whether the words behind are numbers of a list: it may go on in the next line.
    let mut is_list = false;
    for (number, line) in (1..).zip(source.text.lines()) {
        let mut add = |citation| found.push((number, citation));
        in_parentheses(line).for_each(|it| add(Citation::Number(it.to_owned())));
        line.split("decisions/").skip(1).filter_map(path_at).for_each(&mut add);
        if source.path.starts_with(FOLDER) {
            line.split("](").skip(1).filter_map(|it| link_at(&source.path, it)).for_each(&mut add);
        }
        for word in line.split_whitespace().filter(|word| !matches!(*word, "//" | "///" | "//!")) {
            let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
            let listed = number_at(word).filter(|_| is_list);
            listed.iter().for_each(|it| add(Citation::Number((*it).to_owned())));
            is_list = matches!(bare.to_lowercase().as_str(), "decision" | "decisions")
                || is_list && (BETWEEN.contains(&bare) || listed.is_some() && !word.ends_with('.'));
        }
    }
    found
}

/// Returns the number of a record that `text` begins with: four digits.
fn number_at(text: &str) -> Option<&str> {
    let (number, rest) = text.split_at_checked(4)?;
    let is_number = number.starts_with('0') && number.chars().all(|c| c.is_ascii_digit());
    (is_number && !rest.starts_with(|c: char| c.is_ascii_alphanumeric())).then_some(number)
}

fn in_parentheses(line: &str) -> impl Iterator<Item = &str> {
    let inner = line.split('(').skip(1).filter_map(|rest| rest.split_once(')'));
    inner.filter_map(|(inner, _)| number_at(inner).filter(|it| *it == inner && *it < PLAIN_END))
}

/// Returns what is cited by a path that goes on with `rest` behind the folder.
fn path_at(rest: &str) -> Option<Citation> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '/' | '_');
    let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
    let path = rest.get(..end)?.trim_end_matches('.');
    let name = path.rsplit('/').next()?;
    let number = number_at(name)?;
    let is_alone = number == path;
    Some(if is_alone { Citation::Number(path.into()) } else { Citation::File(path.into()) })
}

/// Returns what the document at `path`, below the folder, cites by a link to what `rest` begins
/// with. A link that names the folder is found by [`path_at`].
fn link_at(path: &str, rest: &str) -> Option<Citation> {
    let target = rest.split([')', '#']).next()?;
    let below = path.strip_prefix(FOLDER)?.rsplit_once('/').map_or("", |(below, _)| below);
    let target = match target.strip_prefix("../") {
        Some(target) => target.to_owned(),
        None if below.is_empty() => target.to_owned(),
        None => format!("{below}/{target}"),
    };
    number_at(target.rsplit('/').next()?)?;
    Some(Citation::File(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    /// Returns the path of a file that is not there, so it is put together.
    fn below(file: &str) -> String {
        format!("{FOLDER}{file}")
    }

    /// Returns what is found in a file with `text`, beside records 0001 and 0003 with a proof, and
    /// an old number 0002.
    fn findings(path: &str, text: &str) -> Vec<String> {
        let table = format!("# Index\n{TABLE}| old | now |\n|---|---|\n| 0002 | [0001](x) |\n");
        let documents = [
            source(&below("0001-first.md"), "# 0001: First\n"),
            source(&below("0003-third.md"), "# 0003: Third\n"),
            source(&below("proofs/0003-proof.md"), "# 0003\n"),
            source(INDEX, &table),
        ];
        let mut findings = Vec::new();
        let known = known(&documents, &mut findings);
        assert_eq!(findings, Vec::<String>::new());
        compare(&source(path, text), &known, &mut findings);
        findings
    }

    #[test]
    fn a_citation_names_a_record_or_an_old_number() {
        let rust = "crates/x/src/a.rs";
        let (record, proof) = (&*below("0001-first.md"), &*below("proofs/0003-proof.md"));
        // `N` is the number, so that nothing here is a citation of this file.
        for form in [
            "// See (N).",
            "// See decision N.",
            "// Decisions 0001, N and 0003 say why.",
            "// Decisions 0001 and\n// N say why.",
            "// `docs/decisions/N`.",
        ] {
            for good in ["0001", "0002", "0003"] {
                let text = form.replace('N', good);
                assert_eq!(findings(rust, &text), Vec::<String>::new(), "{text}");
            }
            let text = form.replace('N', "0004");
            assert_eq!(findings(rust, &text).len(), 1, "{text}");
        }
        for (path, form, good) in [
            (rust, "// docs/decisions/N.", "0003-third.md"),
            ("docs/A.md", "[it](decisions/N)", "0003-third.md"),
            (record, "[it](N)", "0003-third.md"),
            (record, "[it](proofs/N)", "0003-proof.md"),
            (proof, "[it](N)", "0003-proof.md"),
            (proof, "[it](../N)", "0003-third.md"),
        ] {
            assert_eq!(findings(path, &form.replace('N', good)), Vec::<String>::new(), "{form}");
            let bad = form.replace('N', "0003-gone.md");
            assert_eq!(findings(path, &bad).len(), 1, "{path}: {form}");
        }
        for other in ["mode (0600)", "in 0004 bytes", "decision by 0004", "decisions/README.md"] {
            assert_eq!(findings(rust, other), Vec::<String>::new(), "{other}");
        }
    }

    #[test]
    fn an_old_number_leads_to_a_record_and_has_no_file() {
        let table = format!("{TABLE}| 0001 | [0001](x) |\n| 0002 | [0009](x) |\n");
        let documents = [source(&below("0001-first.md"), "# 0001\n"), source(INDEX, &table)];
        let mut findings = Vec::new();
        known(&documents, &mut findings);
        assert_eq!(findings.len(), 2, "{findings:?}");
    }
}

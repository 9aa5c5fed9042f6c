//! Numbered invariants: one or two capitals, then a number, as in `K2`.
//!
//! A module states its invariants as a list in its header, and comments anywhere cite them. So the
//! capitals must lead to one header: each prefix belongs to one file, and a number is given once.
//! A number that is cited is stated, in a header or in a list of a document.

use std::collections::{BTreeMap, BTreeSet};

use crate::sources::Source;

/// How a line of a header begins that states an invariant.
const BULLET: &str = "//! - ";

/// How a line of a document begins that states an invariant.
const ITEM: &str = "- ";

/// Finds prefixes that two files use, numbers that are given twice, and cited ones that are not
/// stated.
pub(crate) fn check(sources: &[Source], documents: &[Source], findings: &mut Vec<String>) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    let mut stated: BTreeMap<&str, &str> = BTreeMap::new();
    for source in sources {
        for label in source.header().into_iter().filter_map(stated_label) {
            let path = source.path.as_str();
            let prefix = label.trim_end_matches(|c: char| c.is_ascii_digit());
            let owner = *owners.entry(prefix).or_insert(path);
            if owner != path {
                findings
                    .push(format!("{path}: invariant {label}: {owner} has the prefix {prefix}"));
            } else if stated.insert(label, path).is_some() {
                findings.push(format!("{path}: invariant {label} is stated twice"));
            }
        }
    }
    let lines = documents.iter().flat_map(|document| document.text.lines());
    let items = lines.filter_map(|line| label_in(line.strip_prefix(ITEM)?));
    let headers = sources.iter().flat_map(|source| source.header());
    let known: BTreeSet<&str> = headers.filter_map(stated_label).chain(items).collect();
    for source in sources {
        let comments = (1..)
            .zip(source.text.lines())
            .filter_map(|(number, line)| Some(number).zip(line.trim_start().strip_prefix("//")));
        // A drawing has its own names.
        for (number, text) in comments.filter(|(_, text)| !text.trim().contains("   ")) {
            let cited = text.split(|c: char| !c.is_ascii_alphanumeric());
            let is_lost = |label: &&str| {
                let prefix = label.trim_end_matches(|c: char| c.is_ascii_digit());
                let digits = label.len() - prefix.len();
                owners.contains_key(prefix) && (1..=2).contains(&digits) && !known.contains(label)
            };
            for label in cited.filter(is_lost) {
                let path = &source.path;
                findings.push(format!("{path}:{number}: invariant {label} is stated nowhere"));
            }
        }
    }
}

/// Returns the label of the invariant that a line of a header states: `K2` of `//! - K2: text` and
/// of `//! - K2 (home order): text`.
fn stated_label(line: &str) -> Option<&str> {
    label_in(line.strip_prefix(BULLET)?)
}

/// Returns the label with which the text of a list's item begins.
fn label_in(text: &str) -> Option<&str> {
    let label = text.split([':', ' ']).next()?;
    let rest = text.get(label.len()..)?;
    let capitals = label.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_stated = [":", " ("].iter().any(|next| rest.starts_with(next))
        && (1..=2).contains(&capitals.len())
        && capitals.chars().all(|c| c.is_ascii_uppercase())
        && (1..=2).contains(&(label.len() - capitals.len()));
    is_stated.then_some(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[&str]) -> Vec<String> {
        let named = |(index, text): (usize, &&str)| Source {
            path: format!("crates/x/src/{index}.rs"),
            text: (*text).to_owned(),
        };
        let sources: Vec<Source> = files.iter().enumerate().map(named).collect();
        let mut findings = Vec::new();
        let document = Source { path: "d.md".to_owned(), text: "Text.\n- K9: Last.\n".to_owned() };
        check(&sources, &[document], &mut findings);
        findings
    }

    #[test]
    fn a_prefix_belongs_to_one_file_and_a_number_is_given_once() {
        let pages = "//! Pages.\n//! - K1: Durable.\n//! - K2 (home order): First.\n";
        assert_eq!(findings(&[pages, "//! Names.\n//! - N1: One.\n"]), Vec::<String>::new());
        assert_eq!(findings(&[pages, "//! Names.\n//! - K3: One.\n"]).len(), 1, "one prefix");
        assert_eq!(findings(&["//! Names.\n//! - K1: One.\n//! - K1: Two.\n"]).len(), 1, "twice");
        assert_eq!(
            findings(&["//! - ABC1: x.\n//! - A: x.\n//! - K1 of y.\n", pages]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn what_is_cited_is_stated() {
        let pages = "//! Pages.\n//! - K1: Durable.\n//! - K2 (home order): First.\n";
        let cites = |text: &str| findings(&[pages, &format!("fn f() {{}}\n    // {text}\n")]);
        assert_eq!(cites("After the page (K1, K2, K9): Z1, x86, KK3."), Vec::<String>::new());
        let said = cites("After the page (K1, K3).");
        assert_eq!(said, ["crates/x/src/1.rs:2: invariant K3 is stated nowhere"]);
    }
}

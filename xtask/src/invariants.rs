//! Numbered invariants: one or two capitals, then a number, as in `K2`.
//!
//! A module states its invariants as a list in its header, and comments anywhere cite them. So the
//! capitals must lead to one header: each prefix belongs to one file, and a number is given once.

use std::collections::BTreeMap;

use crate::sources::Source;

/// How a line of a header begins that states an invariant.
const BULLET: &str = "//! - ";

/// Finds prefixes that two files use, and numbers that are given twice.
pub(crate) fn check(sources: &[Source], findings: &mut Vec<String>) {
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
}

/// Returns the label of the invariant that a line of a header states: `K2` of `//! - K2: text` and
/// of `//! - K2 (home order): text`.
fn stated_label(line: &str) -> Option<&str> {
    let text = line.strip_prefix(BULLET)?;
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
        check(&sources, &mut findings);
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
}

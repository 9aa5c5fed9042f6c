//! Do the documents say what is so?
//!
//! What the program's help says is compared in the program's own tests; codes of defects and the
//! format's tables by `xtask`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Words of other systems that are nobody's here: the glossary says what to say instead.
const FOREIGN: [&str; 8] =
    ["zpool", "vdev", "txg", "subvolume", "resilver", "intent log", "garbage collector", "patrol"];
const GLOSSARY: &str = "docs/GLOSSARY.md";
/// Most words of a decision, with its tables: one that needs more has an appendix.
const DECISION_WORDS_MAX: usize = 400;
/// Where appendices of decisions are: `NNNN-title.md`.
const PROOFS: &str = "docs/decisions/proofs/";
/// Where foreign words may be: the glossary itself, and what translates them.
const FOREIGN_HOMES: [&str; 2] = [GLOSSARY, "docs/FROM-ZFS.md"];
/// What each decision says, in this order.
const PARTS: [&str; 6] = [
    "**Status.**",
    "**Context.**",
    "**Decision.**",
    "**Alternatives.**",
    "**Consequences.**",
    "**Would show it wrong.**",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the workspace").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the files below `folder` that end in one of `endings`, by their path from the root.
fn files(folder: &str, endings: &[&str]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("it is a folder of ours") {
            let path = entry.expect("readable").path();
            let name = path.strip_prefix(root()).expect("below it").display().to_string();
            if path.is_dir() {
                let is_source = !name.starts_with("target") && !name.contains("/target");
                if is_source && !name.starts_with('.') && !name.starts_with("demo-pool") {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                found.insert(name.clone(), read(&name));
            }
        }
    }
    found
}

/// Returns the records of decisions, without their index and their appendices.
fn decisions() -> BTreeMap<String, String> {
    let mut decisions = files("docs/decisions", &[".md"]);
    decisions.retain(|name, _| !name.ends_with("README.md") && !name.starts_with(PROOFS));
    decisions
}

fn documents() -> BTreeMap<String, String> {
    let mut documents = files("docs", &[".md"]);
    for entry in fs::read_dir(root()).expect("the root is there") {
        let name = entry.expect("readable").file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            documents.insert(name.clone(), read(&name));
        }
    }
    documents
}

/// Returns what stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Returns the cells of each row of the document's tables.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let rows = text.lines().filter(|line| line.starts_with('|') && !line.starts_with("|-"));
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
}

/// Goal: each promise names a test, and the test is there.
#[test]
fn every_test_named_in_semantics_exists() {
    let text = read("docs/SEMANTICS.md");
    let mut count = 0;
    for name in quoted(&text).filter(|name| name.contains(".rs::")) {
        let (path, test) = name.split_once("::").expect("filtered");
        let path = if path.starts_with("crates/") { path.into() } else { format!("tests/{path}") };
        let source = read(&path);
        let is_there = ["()", "(at)", "(transport: "].map(|rest| format!("fn {test}{rest}"));
        assert!(is_there.iter().any(|found| source.contains(found)), "{path} has no test {test}");
        count += 1;
    }
    assert!(count > 50, "only {count} tests are named");
    let (promises, notes) = text.split_once("\n## Tests\n").expect("the notes are at the end");
    let notes: Vec<_> = notes.lines().filter_map(|line| line.strip_prefix("[^")).collect();
    for note in &notes {
        let (label, tests) = note.split_once("]: ").expect("a note has a label");
        assert!(tests.contains("::"), "note {label} names no test");
        let uses = promises.matches(&format!("[^{label}]")).count();
        assert_eq!(uses, 1, "note {label} is of one promise");
    }
    assert_eq!(promises.matches("[^").count(), notes.len(), "each promise has its note");
}

/// Goal: a link leads somewhere.
#[test]
fn every_link_to_a_file_leads_to_it() {
    let mut count = 0;
    for (name, text) in documents() {
        let folder = root().join(&name).parent().expect("a file").to_owned();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            if path.contains("://") {
                continue;
            }
            let path = if path.is_empty() { root().join(&name) } else { folder.join(path) };
            assert!(path.exists(), "{name}: {target} leads nowhere");
            if !heading.is_empty() {
                let text = fs::read_to_string(&path).expect("a document");
                let has = text.lines().any(|line| line.starts_with('#') && anchor(line) == heading);
                assert!(has, "{name}: {target}: no such heading");
            }
            count += 1;
        }
    }
    assert!(count > 20, "only {count} links");
}

fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().replace(' ', "-")
}

/// Goal: a path in a document is that of a file.
#[test]
fn every_source_named_in_a_document_exists() {
    let mut count = 0;
    for (name, text) in documents() {
        for path in quoted(&text) {
            let is_path = ["crates/", "tests/", "scripts/", "xtask/", "docs/"]
                .iter()
                .any(|folder| path.starts_with(folder));
            let path = path.split("::").next().unwrap_or(path);
            let is_pattern = path.contains(['*', '{', 'N', ' ', '<']);
            if is_path && !is_pattern {
                assert!(root().join(path).exists(), "{name}: there is no {path}");
                count += 1;
            }
        }
    }
    assert!(count > 30, "only {count} paths");
}

/// Goal: a decision can be judged: it says why, against what, and what would refute it. And it can
/// be read in a few minutes.
#[test]
fn every_decision_has_all_its_parts() {
    let mut numbers = Vec::new();
    for (name, text) in decisions() {
        let number = name.trim_start_matches("docs/decisions/").get(..4).expect("NNNN-title");
        assert!(text.starts_with(&format!("# {number}: ")), "{name}: the title has its number");
        let places: Vec<_> = PARTS.iter().map(|part| text.find(part)).collect();
        assert!(places.iter().all(Option::is_some), "{name} lacks a part: {places:?}");
        assert!(places.is_sorted(), "{name}: the parts are in another order");
        let length =
            |part: &str| text.split(part).nth(1).and_then(|rest| rest.split("\n\n**").next());
        let (decided, measured) = (length("**Decision.**"), length("**Measured"));
        let is_short = measured.map_or(0, str::len) < decided.map_or(0, str::len);
        assert!(is_short, "{name}: what was measured is longer than what was decided");
        let words = text.split_whitespace().count();
        assert!(words <= DECISION_WORDS_MAX, "{name} has {words} words");
        numbers.push(number.parse::<usize>().expect("a number"));
    }
    // A gap is a decision that went into another; no number comes twice.
    assert!(numbers.is_sorted_by(|before, after| before < after), "{numbers:?}");
}

/// Goal: an appendix is found by its decision, which has the same number and leads to it.
#[test]
fn every_proof_belongs_to_a_decision() {
    let decisions = decisions();
    for path in files("docs/decisions/proofs", &[".md"]).keys() {
        let name = path.trim_start_matches(PROOFS);
        let of = format!("docs/decisions/{}-", name.get(..4).expect("NNNN-title"));
        let decision = decisions.iter().find(|(name, _)| name.starts_with(&of));
        let (_, text) = decision.unwrap_or_else(|| panic!("{path}: there is no such decision"));
        assert!(text.contains(&format!("(proofs/{name})")), "{path}: its decision has no link");
    }
}

/// Goal: a decision can be found by what it is about. Method: the index lists each once, with its
/// title; behind it may stand what became of it.
#[test]
fn the_index_of_decisions_lists_each_with_its_title() {
    let index = read("docs/decisions/README.md");
    for (path, text) in decisions() {
        let name = path.trim_start_matches("docs/decisions/");
        let (number, title) =
            text.lines().next().and_then(|line| line[2..].split_once(": ")).expect("# NNNN: title");
        let entry = format!("- [{number}]({name}): {title}");
        let count = index.lines().filter(|line| line.starts_with(&entry)).count();
        assert_eq!(count, 1, "docs/decisions/README.md: {entry}");
    }
}

/// Goal: documents say what is, not what was when: a run is a line of a file in `docs/results`.
#[test]
fn no_document_names_a_commit() {
    for (name, text) in documents() {
        for word in text.split(|c: char| !c.is_ascii_alphanumeric()) {
            let is_hex = word.chars().all(|c| c.is_ascii_digit() || matches!(c, 'a'..='f'));
            let is_mixed = word.contains(|c: char| c.is_ascii_digit())
                && word.contains(|c: char| c.is_ascii_lowercase());
            let is_commit = is_hex && is_mixed && (7..=12).contains(&word.len());
            assert!(!is_commit, "{name} names the commit {word}");
        }
    }
}

/// Goal: one word for one thing. A word of the glossary is used, and no foreign one is.
#[test]
fn words_of_the_glossary_are_used_and_foreign_ones_are_not() {
    let glossary = read(GLOSSARY);
    let mut texts = files("crates", &[".rs"]);
    texts.extend(documents());
    let glossary_rows: Vec<Vec<&str>> = rows(&glossary).skip(1).collect();
    let never: BTreeSet<&str> = glossary_rows.iter().flat_map(|row| row[2].split(", ")).collect();
    let elsewhere: String = texts
        .iter()
        .filter(|(name, _)| *name != GLOSSARY)
        .map(|(_, text)| text.to_lowercase())
        .collect();
    let is_built =
        |row: &Vec<&str>| !row[1].contains("(specified)") && !row[1].contains("(intended)");
    let built = glossary_rows.iter().filter(|row| is_built(row));
    for word in built.flat_map(|row| row[0].split(", ")) {
        assert!(elsewhere.contains(&word.to_lowercase()), "nobody says {word}");
    }
    for word in FOREIGN {
        assert!(never.contains(word), "the glossary does not say what to say for {word}");
        let who = texts
            .iter()
            .filter(|(name, _)| !FOREIGN_HOMES.contains(&name.as_str()))
            .find(|(_, text)| text.to_lowercase().contains(word));
        assert!(who.is_none(), "{word} is in {}", who.map_or("", |(name, _)| name));
    }
}

/// Goal: a suite that nobody lists in `./test` would never run in CI.
#[test]
fn every_suite_is_a_step_of_the_tests() {
    let script = read("test");
    let lines = script.lines().skip_while(|line| !line.starts_with("SUITES=("));
    let listed: BTreeSet<&str> = lines
        .take_while(|line| !line.is_empty() && !line.starts_with("# "))
        .chain(script.lines().filter(|line| line.starts_with("beside suites")))
        .flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .collect();
    let manifest = read("tests/Cargo.toml");
    let own = manifest.split("[[test]]").skip(1).filter_map(|test| test.split('"').nth(1));
    let mut suites: BTreeSet<String> = own.map(str::to_owned).collect();
    for path in files("crates", &[".rs"]).keys() {
        // A file there is a suite, and so is a folder.
        let suite = path.split_once("/tests/").filter(|(krate, _)| krate.matches('/').count() == 1);
        let name = suite.and_then(|(_, path)| path.split('/').next());
        suites.extend(name.map(|name| name.trim_end_matches(".rs").to_owned()));
    }
    assert!(suites.len() > 20, "{suites:?}");
    let missing: Vec<&String> = suites.iter().filter(|it| !listed.contains(it.as_str())).collect();
    assert!(missing.is_empty(), "not in ./test: {missing:?}");
}

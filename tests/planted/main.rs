//! Each planted bug is found by a suite.
//!
//! A bug is woken in a process of its own, which is one of the suites as it is: so each suite shows
//! what it is worth. The suites run in order of their cost until one fails; a bug that none finds
//! is a hole in the tests. What found a bug last is in [`found::FOUND`], and is asked first.
//!
//! A suite that takes more processor time than [`suites::SUITE_PROCESSOR_SECONDS_MAX`] has found
//! something too: the bug made it hang.

mod found;
mod suites;

use std::fmt::Write as _;

use runtime::planted::PLANTED;

use self::found::FOUND;
use self::suites::{Finding, Suite, Suites};

/// What is asked in CI: suites of which one test takes seconds.
const FAST: &[&str] =
    &["engine", "orders", "members", "posix", "fault", "full", "filesets", "nfs", "crash"];

/// Runs of a test that does not find its bug, before it counts as missed.
const TRIES: usize = 3;

fn row(name: &str, what: &str, finding: Option<&Finding>) -> String {
    let mut row = format!("{name},\"{what}\",");
    match finding {
        Some(found) => {
            write!(row, "{},{}", found.test, found.seeds).expect("a String takes it");
        }
        None => row.push_str("NOTHING,"),
    }
    row
}

/// Goal: what the table says still finds its bug. Method: of the suites that take seconds, the test
/// that found each bug runs with the bug awake, and must fail; asleep, it passes elsewhere in CI.
#[test]
fn what_found_a_bug_finds_it_again() {
    let suites = Suites::build();
    let mut missed = Vec::new();
    for (bug, suite, test) in FOUND.iter().filter(|(_, suite, _)| FAST.contains(suite)) {
        let suite = Suite::named(suite);
        // Some tests let threads meet by chance.
        if (0..TRIES).all(|_| suites.run(&suite, Some(test), bug).is_none()) {
            missed.push(format!("{bug} is not found by {test}"));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// Every bug has a row, and every row a bug.
#[test]
fn every_bug_is_in_the_table() {
    let found: Vec<&str> = FOUND.iter().map(|(bug, ..)| *bug).collect();
    let names: Vec<&str> = PLANTED.iter().map(|(_, name, _)| *name).collect();
    assert_eq!(found, names, "one row for each bug, in their order");
    let records = include_str!("../../docs/results/planted.csv");
    for (bug, suite, test) in FOUND {
        let line = records.lines().find(|line| line.starts_with(&format!("{bug},")));
        let line = line.unwrap_or_else(|| panic!("docs/results/planted.csv has no line for {bug}"));
        let by = format!("{suite}::{test}");
        assert!(line.contains(&by), "docs/results/planted.csv does not say {by}: {line}");
    }
}

/// Goal: some suite finds each bug. Method: all suites in order of cost; prints the lines
/// of `docs/results/planted.csv`. `HOLDFAST_BUG` names one bug.
#[test]
#[ignore = "a soak: all suites, once for each bug"]
fn every_bug_is_found() {
    let suites = Suites::build();
    let one = std::env::var("HOLDFAST_BUG").ok();
    let mut missed = Vec::new();
    for (_, name, what) in PLANTED {
        if one.as_ref().is_some_and(|one| one != name) {
            continue;
        }
        let finding = suites.find(name);
        println!("{}", row(name, what, finding.as_ref()));
        if finding.is_none() {
            missed.push(*name);
        }
    }
    assert!(missed.is_empty(), "no suite finds {missed:?}");
}

//! Compares names with link counts: each anode has as many names as its count, each directory has
//! one name, and all directories lead to the root.
//!
//! If a page of the fileset was unusable, the absence of a name or an anode proves nothing, so only
//! contradictions are reported.

use std::collections::BTreeSet;

use format::anode::{AnodeKind, ROOT_ANODE};
use format::ids::AnodeNo;

use crate::context::{Check, CheckError};
use crate::facts::AnodeFacts;
use crate::tree::FilesetCheck;
use format::defect::DefectCode;

/// A dirent keeps this many bits of a generation.
const GENERATION_MASK: u64 = (1 << 48) - 1;
/// A directory with more links than this has a link count of 1.
const LINKS_MAX: u32 = 65_535;

pub(crate) fn run(check: &mut Check<'_>, tree: &mut FilesetCheck) -> Result<(), CheckError> {
    let mut found = Vec::new();
    for (number, facts) in tree.facts.iter() {
        found.clear();
        names_of(check.is_incomplete, number, facts, &mut found);
        for (code, what) in found.drain(..) {
            let what = format!("{}: {what}", AnodeNo(number));
            let subject = tree.subject(number);
            check.defect(code, subject, None, what);
        }
    }
    if !check.is_incomplete {
        reachability(check, tree);
    }
    Ok(())
}

fn names_of(
    is_incomplete: bool,
    number: u64,
    facts: &AnodeFacts,
    found: &mut Vec<(DefectCode, String)>,
) {
    let Some(kind) = facts.kind else {
        if facts.names > 0 && !is_incomplete {
            found.push((DefectCode::DR010, "a name leads here, but it is free".to_owned()));
        }
        return;
    };
    if facts.names > 0 {
        let (stored, named) = (facts.generation & GENERATION_MASK, facts.named_generation);
        if stored != named {
            found.push((DefectCode::DR011, format!("generation {stored}, a name says {named}")));
        } else if facts.named_kind != Some(kind) {
            found
                .push((DefectCode::DR012, format!("{kind:?}, a name says {:?}", facts.named_kind)));
        } else if facts.names_differ {
            found.push((DefectCode::DR011, "its names say different things of it".to_owned()));
        }
    }
    match kind {
        AnodeKind::Internal => {}
        _ if facts.nlink == 0 => orphan(is_incomplete, facts, found),
        AnodeKind::Directory => directory(is_incomplete, number, facts, found),
        AnodeKind::Regular
        | AnodeKind::Symlink
        | AnodeKind::BlockDevice
        | AnodeKind::CharDevice
        | AnodeKind::Fifo
        | AnodeKind::Socket => file(is_incomplete, facts, found),
    }
}

fn file(is_incomplete: bool, facts: &AnodeFacts, found: &mut Vec<(DefectCode, String)>) {
    if is_incomplete {
        return;
    }
    if facts.names == 0 {
        found.push((DefectCode::LN004, format!("{} links, but no name", facts.nlink)));
    } else if facts.names != facts.nlink {
        found.push((DefectCode::LN001, format!("{} links, {} names", facts.nlink, facts.names)));
    }
}

fn orphan(is_incomplete: bool, facts: &AnodeFacts, found: &mut Vec<(DefectCode, String)>) {
    if facts.names > 0 {
        found.push((DefectCode::LN001, format!("no link, but {} names", facts.names)));
    }
    if !facts.is_listed && !is_incomplete {
        found.push((DefectCode::OR002, "no link, and not in the orphan list".to_owned()));
    }
}

fn directory(
    is_incomplete: bool,
    number: u64,
    facts: &AnodeFacts,
    found: &mut Vec<(DefectCode, String)>,
) {
    let is_root = number == ROOT_ANODE.0;
    let names_max = u32::from(!is_root);
    if facts.names > names_max {
        found.push((DefectCode::LN002, format!("a directory with {} names", facts.names)));
    } else if facts.names < names_max && !is_incomplete {
        found.push((DefectCode::LN004, "a directory without a name".to_owned()));
    }
    let named_in = if is_root { number } else { facts.named_in };
    if (is_root || facts.names > 0) && facts.parent != named_in {
        let (parent, named_in) = (AnodeNo(facts.parent), AnodeNo(named_in));
        found
            .push((DefectCode::LN003, format!("says its parent is {parent}, named in {named_in}")));
    }
    let counted = facts.subdirectories.saturating_add(2);
    let is_right = facts.nlink == counted || (counted > LINKS_MAX && facts.nlink == 1);
    if !is_right && !is_incomplete {
        found.push((DefectCode::LN006, format!("{} links, should have {counted}", facts.nlink)));
    }
}

/// Follows each directory upwards, and reports cycles, which do not end at the root.
fn reachability(check: &mut Check<'_>, tree: &mut FilesetCheck) {
    let is_directory = |facts: &AnodeFacts| facts.kind == Some(AnodeKind::Directory);
    let numbers: Vec<u64> =
        tree.facts.iter().filter(|(_, facts)| is_directory(facts)).map(|(n, _)| n).collect();
    for number in numbers {
        let mut way = BTreeSet::new();
        let mut next = number;
        let mut is_cycle = false;
        while let Some(facts) = tree.facts.get(next) {
            if facts.is_rooted || next == ROOT_ANODE.0 || facts.names == 0 {
                break;
            }
            is_cycle = !way.insert(next);
            if is_cycle {
                break;
            }
            next = facts.named_in;
        }
        for &passed in &way {
            if let Some(facts) = tree.facts.get_mut(passed) {
                facts.is_rooted = true;
            }
        }
        if is_cycle {
            let what = format!("{} and {} above it form a cycle", AnodeNo(number), way.len() - 1);
            let subject = tree.subject(number);
            check.defect(DefectCode::LN005, subject, None, what);
        }
    }
}

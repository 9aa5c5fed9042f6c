//! Giving a defect its name: from an anode upwards, looking for it in the directory that names it.
//!
//! Costs reads, so only the first [`PATHS_MAX`] defects of a fileset get one, and a directory is
//! searched up to a bound.

use std::collections::BTreeMap;

use format::anode::ROOT_ANODE;
use format::fileset::ROOT_FILESET;
use format::ids::AnodeNo;

use crate::Check;
use crate::lookup::{fileset_name, filesets, name_in, read_anode};
use crate::reader::Reader;
use crate::tree::Tree;

/// Most defects of a fileset that get a path.
const PATHS_MAX: usize = 100;
/// Deepest path that is followed.
pub const DEPTH_MAX: usize = 128;

/// Gives the defects from `first` on their paths.
pub(crate) fn name_defects(check: &mut Check<'_>, tree: &Tree, first: usize) {
    let mut names = BTreeMap::new();
    let mut fileset = None;
    for index in first..check.report.findings.len().min(first + PATHS_MAX) {
        let Some(finding) = check.report.findings.get(index) else { return };
        let subject = finding.defect.subject;
        if subject.fileset != tree.fileset.family || subject.anode.0 == 0 {
            continue;
        }
        let mut path = path_of(&check.reader, tree, subject.anode.0, &mut names);
        if let Some(path) = path.as_mut().filter(|_| tree.fileset.id != ROOT_FILESET) {
            let name = || fileset_name(&filesets(&check.reader), tree.fileset.slot);
            path.insert_str(0, &format!("{}:", fileset.get_or_insert_with(name)));
        }
        if let Some(finding) = check.report.findings.get_mut(index) {
            finding.path = path;
        }
    }
}

/// Returns the path of `number`; `None` where it has no name that could be found.
fn path_of(
    reader: &Reader,
    tree: &Tree,
    number: u64,
    names: &mut BTreeMap<u64, Option<String>>,
) -> Option<String> {
    let mut parts = Vec::new();
    let mut next = number;
    while next != ROOT_ANODE.0 {
        let facts = tree.facts.get(next).filter(|facts| facts.names > 0)?;
        let name = names
            .entry(next)
            .or_insert_with(|| {
                let parent = read_anode(reader, &tree.table, AnodeNo(facts.named_in))?;
                name_in(reader, &parent, AnodeNo(next))
            })
            .clone()?;
        parts.push(name);
        if parts.len() > DEPTH_MAX {
            return None;
        }
        next = facts.named_in;
    }
    parts.reverse();
    Some(format!("/{}", parts.join("/")))
}

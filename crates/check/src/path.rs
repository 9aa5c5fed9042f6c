//! Paths of defective anodes, found upwards: each directory is searched for the name.
//!
//! The search costs reads, so only the first [`PATHS_MAX`] defects of a fileset get a path, and the
//! search of a directory is bounded.

use std::collections::BTreeMap;

use format::anode::ROOT_ANODE;
use format::fileset::ROOT_FILESET;
use format::ids::AnodeNo;

use crate::context::Check;
use crate::lookup::{DEPTH_MAX, fileset_name, filesets, name_in, read_anode};
use crate::reader::PoolReader;
use crate::tree::FilesetCheck;

const PATHS_MAX: usize = 100;

pub(crate) fn name_defects(check: &mut Check<'_>, tree: &FilesetCheck, first: usize) {
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

/// Returns the path of `number`; `None` if a name on the way cannot be found.
fn path_of(
    reader: &PoolReader,
    tree: &FilesetCheck,
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

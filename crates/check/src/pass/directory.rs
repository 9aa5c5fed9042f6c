//! Directories: checks their pages, and collects the names that lead to anodes.

use std::collections::BTreeMap;

use format::anode::Anode;
use format::directory::{self, DEPTH_MAX, Dirent};
use format::ids::Place;
use format::page::{PageBytes, PageHeader, PageKind};
use format::pointer::SplitHint;
use format::text::shown;

use crate::context::Check;
use crate::convert::to_u64;
use crate::map::{Indexed, MapContent, subject_of};
use crate::tree::FilesetCheck;
use format::anode::AnodeKind;
use format::defect::{Defect, DefectCode, Severity};

#[derive(Default)]
struct DirectorySums {
    names: u64,
    pages: Vec<(u64, u8)>,
    places: BTreeMap<u64, Place>,
    /// Number, depth and split hint of each page.
    hints: Vec<(u64, u8, SplitHint)>,
    is_damaged: bool,
}

/// Checks the directory of `anode`, and counts its names for their anodes.
pub(crate) fn run(check: &mut Check<'_>, tree: &mut FilesetCheck, anode: &Anode) {
    let mut sums = DirectorySums::default();
    let content = MapContent::Pages(PageKind::Directory);
    let walked = check.walk(anode, content, &mut |check, indexed, page| {
        directory_page(check, tree, anode, indexed, page, &mut sums);
    });
    check.compare_counts(anode, content, &walked);
    if !walked.is_whole || sums.is_damaged {
        return;
    }
    let subject = subject_of(anode);
    if anode.nlink > 0 && u64::from(anode.entries) != sums.names {
        let what = format!("says {} names, has {}", anode.entries, sums.names);
        check.defect(DefectCode::DR013, subject, None, what);
    }
    if let Some(what) = tiling_defect(&mut sums.pages) {
        check.defect(DefectCode::DR008, subject, None, what);
    }
    if let Some((number, what)) = hint_defect(&sums) {
        check.defect(DefectCode::DR014, subject, sums.places.get(&number).copied(), what);
    }
}

fn directory_page(
    check: &mut Check<'_>,
    tree: &mut FilesetCheck,
    anode: &Anode,
    &(index, pointer): &Indexed,
    page: &PageBytes,
    sums: &mut DirectorySums,
) {
    let subject = subject_of(anode);
    let place = PageHeader::parse(page).map_or(Place::NONE, |header| header.place);
    if let Err(defect) = directory::verify(page, index) {
        let defect = Defect::from(defect).at(place);
        let code = defect.code;
        if code.severity() == Severity::Severe && code != DefectCode::DR006 {
            sums.is_damaged = true;
            check.is_incomplete = true;
        }
        check.found(defect, subject);
    }
    sums.pages.push((index, directory::depth(page)));
    sums.places.insert(index, pointer.place);
    sums.hints.extend(pointer.split_hint().map(|hint| (index, directory::depth(page), hint)));
    let mut seen: Vec<(u64, &[u8])> = Vec::new();
    for dirent in directory::dirents(page) {
        sums.names += 1;
        check.report.totals.names += 1;
        let hash = directory::hash_of(anode.key, dirent.name);
        if hash != directory::hash_in(dirent.cookie) {
            let what = format!("name `{}` lies under another hash", shown(dirent.name));
            check.defect(DefectCode::DR007, subject, Some(place), what);
        }
        seen.push((hash, dirent.name));
        one_name(check, tree, anode, &dirent);
    }
    seen.sort_unstable();
    for pair in seen.windows(2) {
        if let [first, second] = pair
            && first == second
        {
            let what = format!("name `{}` is there twice", shown(first.1));
            check.defect(DefectCode::DR009, subject, Some(place), what);
        }
    }
}

fn one_name(
    check: &mut Check<'_>,
    tree: &mut FilesetCheck,
    directory: &Anode,
    dirent: &Dirent<'_>,
) {
    if dirent.kind == AnodeKind::Directory {
        tree.facts_of(check, directory.number.0).subdirectories += 1;
    }
    let facts = tree.facts_of(check, dirent.anode.0);
    facts.names = facts.names.saturating_add(1);
    if facts.names == 1 {
        facts.named_kind = Some(dirent.kind);
        facts.named_generation = dirent.generation.0;
        facts.named_in = directory.number.0;
    } else if facts.named_generation != dirent.generation.0 || facts.named_kind != Some(dirent.kind)
    {
        facts.names_differ = true;
    }
}

fn hint_defect(sums: &DirectorySums) -> Option<(u64, String)> {
    sums.hints.iter().find_map(|&(number, depth, hint)| {
        let sibling = 1_u64.checked_shl(u32::from(hint.depth) - 1).map(|bit| number | bit);
        let is_there = |place| sibling.and_then(|at| sums.places.get(&at)) == Some(&place);
        let is_so = hint.depth == depth && hint.sibling.is_none_or(is_there);
        (!is_so).then(|| (number, format!("page {number} at depth {depth}: {hint:?}")))
    })
}

/// Returns where `pages` do not cover every hash exactly once, if anywhere.
///
/// A page's number is the common prefix of its hashes, reversed. So its hashes begin at the number
/// reversed in 64 bits, and it covers `2^(64 - depth)` of them.
fn tiling_defect(pages: &mut [(u64, u8)]) -> Option<String> {
    if pages.is_empty() {
        return None;
    }
    pages.sort_unstable_by_key(|&(number, _)| number.reverse_bits());
    let mut end = 0_u128;
    for &(number, depth) in pages.iter() {
        let depth = depth.min(DEPTH_MAX);
        if number >> depth != 0 {
            return Some(format!("page {number} has a depth of only {depth}"));
        }
        let start = u128::from(number.reverse_bits());
        if start != end {
            return Some(format!("page {number} at depth {depth} leaves a gap or overlaps"));
        }
        end = start + (1 << (64 - u32::from(depth)));
    }
    let whole = 1_u128 << 64;
    let count = to_u64(pages.len());
    (end != whole).then(|| format!("{count} pages leave the last hashes uncovered"))
}

#[cfg(test)]
mod tests {
    use super::tiling_defect;

    #[test]
    fn pages_that_split_tile_and_others_do_not() {
        assert_eq!(tiling_defect(&mut []), None);
        assert_eq!(tiling_defect(&mut [(0, 0)]), None);
        assert_eq!(tiling_defect(&mut [(0, 1), (1, 1)]), None);
        assert_eq!(tiling_defect(&mut [(0, 2), (1, 1), (2, 2)]), None);
        assert!(tiling_defect(&mut [(0, 1)]).is_some(), "half is missing");
        assert!(tiling_defect(&mut [(1, 1)]).is_some(), "first half is missing");
        assert!(tiling_defect(&mut [(0, 1), (1, 1), (3, 2)]).is_some(), "overlap");
        assert!(tiling_defect(&mut [(0, 0), (1, 0)]).is_some(), "number past the depth");
    }
}

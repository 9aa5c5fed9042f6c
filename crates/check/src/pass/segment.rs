//! Compares each group's free map and live counts with the used fragments.

use std::sync::Arc;

use format::group::SegmentKind;
use format::ids::Place;

use crate::context::{Check, CheckError};
use crate::convert::{index_of, to_u64};
use crate::free_map::read_free_map;
use crate::space::{GroupSpace, StatedGroup, count_set, is_set};
use format::defect::{DefectCode, Subject};

const POOL: Subject =
    Subject { fileset: format::ids::FilesetId(0), anode: format::ids::AnodeNo(0) };

pub(crate) fn run(check: &mut Check<'_>) -> Result<(), CheckError> {
    if check.is_incomplete {
        let note = "some pages can't be used, so what nothing points to is not reported: free \
                    maps, live counts and totals were compared only where more is in use than \
                    they say";
        check.report.notes.push(note.to_owned());
    }
    let mut fragments_used = 0;
    let groups = std::mem::take(&mut check.space.groups);
    for (&group, space) in &groups {
        check.advance(1);
        if space.is_initialised {
            fragments_used += one_group(check, group, space);
        }
    }
    check.space.groups = groups;
    check.report.totals.fragments = fragments_used;
    Ok(())
}

/// Compares one group; returns the number of its fragments in use.
fn one_group(check: &mut Check<'_>, group: u32, space: &GroupSpace) -> u64 {
    let fragments = check.reader.geometry.fragments_of(group);
    let found = count_set(&space.used, 0, fragments);
    let Some(stated) = space.stated else { return u64::from(found) };
    let marked = match free_map(check, group, &stated) {
        Some(marked) => {
            compare_maps(check, group, &space.used, &marked);
            count_set(&marked, 0, fragments)
        }
        None => found,
    };
    let place = check.reader.geometry.descriptor_place(group);
    let is_known = space.segments.iter().all(|segment| segment.kind.is_some());
    if stated.fragments_used != marked {
        let what = format!(
            "group {group} says {} fragments in use, its free map {marked}",
            stated.fragments_used
        );
        check.defect(DefectCode::AG005, POOL, Some(place), what);
    }
    let is_used = |kind: Option<SegmentKind>| kind != Some(SegmentKind::Free);
    let segments_used = space.segments.iter().filter(|segment| is_used(segment.kind)).count();
    if is_known && u64::from(stated.segments_used) != to_u64(segments_used) {
        let what = format!(
            "group {group} says {} segments in use, has {segments_used}",
            stated.segments_used
        );
        check.defect(DefectCode::AG006, POOL, Some(place), what);
    }
    if !check.is_incomplete {
        live_counts(check, group, space);
    }
    u64::from(found)
}

/// Reads a group's free map; `None` if a page of it is unusable.
fn free_map(check: &mut Check<'_>, group: u32, stated: &StatedGroup) -> Option<Vec<u64>> {
    let reader = Arc::clone(&check.reader);
    let mut is_whole = true;
    let marked = read_free_map(&reader, group, stated, &mut |place, failure| match failure {
        None => check.report.totals.pages += 1,
        Some(error) => {
            is_whole = false;
            check.bad_page(POOL, place, error);
        }
    });
    is_whole.then_some(marked)
}

fn compare_maps(check: &mut Check<'_>, group: u32, found: &[u64], marked: &[u64]) {
    let fragments = check.reader.geometry.fragments_of(group);
    let state = |bit: u32| (is_set(found, bit), is_set(marked, bit));
    let mut bit = 0;
    while bit < fragments {
        let word = index_of(bit / 64);
        if bit.is_multiple_of(64) && found.get(word) == marked.get(word) {
            bit += 64;
            continue;
        }
        let (first, kind) = (bit, state(bit));
        while bit < fragments && state(bit) == kind {
            bit += 1;
        }
        let count = bit - first;
        let (code, what) = match kind {
            (true, false) => (DefectCode::AG003, "in use, but marked free"),
            (false, true) if !check.is_incomplete => {
                (DefectCode::AG004, "marked in use, but nothing points there")
            }
            _ => continue,
        };
        let place = Place::new(0, group, first);
        check.defect(code, POOL, Some(place), format!("{count} fragments {what}"));
    }
}

fn live_counts(check: &mut Check<'_>, group: u32, space: &GroupSpace) {
    let length = check.reader.geometry.segment_fragments;
    for (segment, stated) in (0_u32..).zip(&space.segments) {
        let first = segment * length;
        let found = count_set(&space.used, first, first + length);
        if let Some(kind) = stated.kind
            && stated.live != found
        {
            let what = format!(
                "segment {segment} of group {group} ({kind:?}) says {} live fragments, has {found}",
                stated.live
            );
            let place = Place::new(0, group, first);
            check.defect(DefectCode::SG002, POOL, Some(place), what);
        }
    }
}

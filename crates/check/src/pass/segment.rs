//! What each group says of its space against what was found: free maps, live counts.

use std::sync::Arc;

use format::bitmap::BITS_PER_PAGE;
use format::group::{SegmentKind, is_bit_set};
use format::ids::Place;
use format::page::{PAGE_HEADER_BYTES, PageBytes, PageKind};

use crate::convert::{index_of, to_u64};
use crate::reader::{PageWanted, ReadError, Reader};
use crate::space::{GroupSpace, StatedGroup, count_set, is_set};
use crate::{Check, Stop};
use format::defect::{DefectCode, Subject};

const POOL: Subject =
    Subject { fileset: format::ids::FilesetId(0), anode: format::ids::AnodeNo(0) };

/// Compares every group.
pub(crate) fn run(check: &mut Check<'_>) -> Result<(), Stop> {
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

/// Returns how many fragments of the group are in use.
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

/// Reads the free map of a group; `None` if a page of it can't be used.
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

/// Reads the pages of the free map of `group` that its descriptor says are used. Calls `each` with
/// the place of each, and why it can't be used: its bits are 0 then.
pub(crate) fn read_free_map(
    reader: &Reader,
    group: u32,
    stated: &StatedGroup,
    each: &mut dyn FnMut(Place, Option<ReadError>),
) -> Vec<u64> {
    let geometry = &reader.geometry;
    let is_used = |&index: &u32| is_bit_set(&stated.free_map_used, index);
    let indexes: Vec<u32> = (0..geometry.map_pages()).filter(is_used).collect();
    let place_of = |index| geometry.free_map_place(group, index);
    let wanted =
        |&index: &u32| PageWanted { place: place_of(index), kind: PageKind::FreeMap, owner: None };
    let wanted: Vec<PageWanted> = indexes.iter().map(wanted).collect();
    let mut marked = vec![0; index_of(geometry.fragments_of(group).div_ceil(64))];
    for (&index, page) in indexes.iter().zip(reader.read_pages(&wanted)) {
        if let Ok(page) = &page {
            copy_bits(page, index, &mut marked);
        }
        each(place_of(index), page.err());
    }
    marked
}

/// Copies the bits of page `index` of a free map to where they belong in `marked`.
fn copy_bits(page: &PageBytes, index: u32, marked: &mut [u64]) {
    let first_word = index_of(index * (BITS_PER_PAGE / 64));
    let (words, _) = page[PAGE_HEADER_BYTES..].as_chunks::<8>();
    for (to, word) in marked.iter_mut().skip(first_word).zip(words) {
        *to = u64::from_le_bytes(*word);
    }
}

/// Reports runs of fragments whose mark is not what was found.
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

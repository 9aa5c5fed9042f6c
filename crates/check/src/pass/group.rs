//! Reads the pool's own description of its space: group table, descriptors and segment usage.

use format::group::{
    DescriptorDisk, GROUPS_PER_TABLE_PAGE, GroupEntryDisk, SegmentKind, SegmentUsage,
    USAGES_PER_PAGE, entry_offset, is_bit_set, is_table_page_used,
};
use format::ids::Place;
use format::page::{PageBytes, PageKind, PageOwner};
use zerocopy::FromBytes;

use super::lsn;
use crate::context::{Check, CheckError};
use crate::convert::index_of;
use crate::reader::PageRequest;
use crate::space::{StatedGroup, StatedSegment};
use format::defect::{DefectCode, Subject};

const POOL: Subject =
    Subject { fileset: format::ids::FilesetId(0), anode: format::ids::AnodeNo(0) };

pub(crate) fn run(check: &mut Check<'_>) -> Result<(), CheckError> {
    let geometry = check.reader.geometry.clone();
    let wanted = PageRequest {
        place: geometry.group_table_root_place(),
        kind: PageKind::GroupTableRoot,
        owner: Some(PageOwner::default()),
    };
    let root = match check.reader.read_page(&wanted) {
        Ok(root) => root,
        Err(error) => {
            check.bad_page(POOL, wanted.place, error);
            return Ok(());
        }
    };
    check.report.totals.pages += 1;
    lsn::of_table(check);
    for index in 0..geometry.group_table_pages() {
        if is_table_page_used(&root, index) {
            table_page(check, index)?;
        }
    }
    Ok(())
}

fn table_page(check: &mut Check<'_>, index: u64) -> Result<(), CheckError> {
    let first = u32::try_from(index * GROUPS_PER_TABLE_PAGE).expect("groups take 24 bits");
    let wanted = PageRequest {
        place: check.reader.geometry.group_table_place(first),
        kind: PageKind::GroupTable,
        owner: Some(PageOwner { index, ..PageOwner::default() }),
    };
    let page = match check.reader.read_page(&wanted) {
        Ok(page) => page,
        Err(error) => {
            check.bad_page(POOL, wanted.place, error);
            return Ok(());
        }
    };
    check.report.totals.pages += 1;
    let end = first + u32::try_from(GROUPS_PER_TABLE_PAGE).expect("62");
    let groups: Vec<u32> =
        (first..end).filter(|&group| is_initialised(check, &page, wanted.place, group)).collect();
    let wanted: Vec<PageRequest> = groups
        .iter()
        .map(|&group| PageRequest {
            place: check.reader.geometry.descriptor_place(group),
            kind: PageKind::GroupDescriptor,
            owner: Some(PageOwner { index: u64::from(group), ..PageOwner::default() }),
        })
        .collect();
    let pages = check.reader.read_pages(&wanted);
    for ((group, wanted), page) in groups.into_iter().zip(wanted).zip(pages) {
        check.take_memory(check.space.group_bytes(group))?;
        check.space.add_group(group, true);
        check.report.totals.groups += 1;
        check.report.totals.pages += 1;
        check.advance(1);
        match page {
            Ok(page) => {
                descriptor(check, group, wanted.place, &page);
                lsn::of_group(check, group, &page);
            }
            Err(error) => check.bad_page(POOL, wanted.place, error),
        }
    }
    Ok(())
}

fn is_initialised(check: &mut Check<'_>, page: &PageBytes, place: Place, group: u32) -> bool {
    let Some(bytes) = page.get(entry_offset(group)..) else { return false };
    let Ok((entry, _)) = GroupEntryDisk::read_from_prefix(bytes) else { return false };
    let geometry = &check.reader.geometry;
    let is_there = geometry.group_layout().has_group(group);
    let what = match entry.state {
        0 => return false,
        1 | 2 if !is_there => format!("group {group} is of no disk group"),
        1 | 2 => {
            let (stated, expected) = (entry.fragments.get(), geometry.fragments_of(group));
            if geometry.can_have_had(group, stated) {
                return true;
            }
            format!("group {group} has {stated} fragments, the superblock says {expected}")
        }
        state => format!("group {group} is in the unknown state {state}"),
    };
    check.defect(DefectCode::AG001, POOL, Some(place), what);
    is_there
}

fn descriptor(check: &mut Check<'_>, group: u32, place: Place, page: &PageBytes) {
    let geometry = check.reader.geometry.clone();
    let stated = DescriptorDisk::of(page);
    // The last group of an enlarged disk group may still have its former length.
    let is_shorter = geometry.can_have_had(group, stated.fragments.get());
    let fragments = if is_shorter { stated.fragments.get() } else { geometry.fragments_of(group) };
    let pairs = [
        ("number", stated.group.get(), group),
        ("fragments", stated.fragments.get(), fragments),
        ("segment fragments", stated.segment_fragments.get(), geometry.segment_fragments),
        ("segments", stated.segments.get(), fragments / geometry.segment_fragments),
    ];
    for (field, found, expected) in pairs {
        if found != expected {
            let what = format!("group {group}: {field} is {found}, expected {expected}");
            check.defect(DefectCode::AG002, POOL, Some(place), what);
        }
    }
    check.space.fragments_stated += u64::from(stated.fragments_used.get());
    let space = check.space.groups.get_mut(&group).expect("added before");
    space.stated = Some(StatedGroup {
        fragments_used: stated.fragments_used.get(),
        segments_used: stated.segments_used.get(),
        free_map_used: stated.free_map_used,
    });
    for index in 0..geometry.usage_pages() {
        if is_bit_set(&stated.usage_used, index) {
            usage_page(check, group, index);
        } else {
            for segment in segments_of_page(check, group, index) {
                let space = check.space.groups.get_mut(&group).expect("added before");
                space.set_segment(segment, Some(SegmentKind::Free), 0);
            }
        }
    }
    front(check, group, place);
    behind_end(check, (group, fragments / geometry.segment_fragments), place);
}

fn behind_end(check: &mut Check<'_>, (group, segments): (u32, u32), place: Place) {
    let space = check.space.groups.get(&group).expect("added before");
    let behind = (0..).zip(&space.segments).skip(index_of(segments));
    let is_used = |stated: &StatedSegment| {
        stated.live > 0 || !matches!(stated.kind, None | Some(SegmentKind::Free))
    };
    let first = behind.filter(|(_, stated)| is_used(stated)).map(|(segment, _): (u32, _)| segment);
    if let Some(first) = first.min() {
        let what = format!("group {group} has {segments} segments, and segment {first} is in use");
        check.defect(DefectCode::AG002, POOL, Some(place), what);
    }
}

fn segments_of_page(check: &Check<'_>, group: u32, index: u32) -> std::ops::Range<u32> {
    let end = ((index + 1) * USAGES_PER_PAGE).min(check.reader.geometry.segments_of(group));
    (index * USAGES_PER_PAGE).min(end)..end
}

fn usage_page(check: &mut Check<'_>, group: u32, index: u32) {
    let place = check.reader.geometry.usage_place(group, index);
    let wanted = PageRequest { place, kind: PageKind::SegmentUsage, owner: None };
    let page = match check.reader.read_page(&wanted) {
        Ok(page) => page,
        Err(error) => return check.bad_page(POOL, place, error),
    };
    check.report.totals.pages += 1;
    for segment in segments_of_page(check, group, index) {
        let usage = SegmentUsage::of(&page, segment);
        if usage.is_none() {
            let what = format!("segment {segment} of group {group} is of an unknown kind");
            check.defect(DefectCode::SG001, POOL, Some(place), what);
        }
        let live = usage.map_or(0, |usage| usage.live);
        let space = check.space.groups.get_mut(&group).expect("added before");
        space.set_segment(segment, usage.map(|usage| usage.kind), live);
        if let Some(usage) = usage {
            space.set_written(segment, usage.filled, usage.incarnation);
        }
    }
}

fn front(check: &mut Check<'_>, group: u32, place: Place) {
    let geometry = &check.reader.geometry;
    let last = crate::space::front_pages(geometry, group).last();
    for segment in 0..=last.map_or(0, |place| geometry.segment_of(place)) {
        let space = check.space.groups.get(&group).expect("added before");
        let kind = space.segments.get(index_of(segment)).and_then(|stated| stated.kind);
        if let Some(kind) = kind
            && kind != SegmentKind::Metadata
        {
            let what = format!("segment {segment} of group {group}, under its front, is {kind:?}");
            check.defect(DefectCode::SG005, POOL, Some(place), what);
        }
    }
}

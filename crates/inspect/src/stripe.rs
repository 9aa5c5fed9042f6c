//! Members behind a place: units and parity, or copies.

use format::geometry::Geometry;
use format::ids::Place;
use format::members::{Layout, MemberState};
use format::superblock::Superblock;
use format::text::shown;

/// Describes the units and parity of blocks, or both copies of a page. Empty without stripes.
pub(crate) fn members_of(
    geometry: &Geometry,
    place: Place,
    fragments: u32,
    is_page: bool,
) -> Vec<String> {
    let lay = geometry
        .group_layout()
        .disk_group_of(place.group())
        .and_then(|number| geometry.lay_of(number));
    let (Some(lay), Some(start)) = (lay, geometry.device_offset(place, fragments)) else {
        return Vec::new();
    };
    let start = on_members(geometry, place, start);
    let (seen, _) = lay.seen_at(start);
    let is_page = is_page && seen == start;
    let (start, stripes) = (seen, lay.at(seen));
    let end = start + (u64::from(fragments) << geometry.fragment_shift);
    let (mut lines, mut at) = (Vec::new(), start);
    while let Some(unit) = stripes.locate(at).filter(|_| at < end) {
        let (member, byte) = (unit.member, unit.member_offset);
        if is_page {
            let second = stripes.second_copy(&unit).map_or_else(
                || "no room for a second copy".to_owned(),
                |(member, byte)| format!("second copy on member {member}, byte {byte}"),
            );
            lines.push(format!("first copy on member {member}, byte {byte}; {second}"));
        } else {
            let (row, index) = (unit.row, unit.index);
            let from = stripes.row_offset(row);
            let parity = stripes.parity_member(row).map_or_else(
                || "no parity, and no other copy".to_owned(),
                |parity| format!("parity on member {parity}, byte {from}"),
            );
            lines
                .push(format!("row {row}, unit {index} on member {member}, byte {byte}; {parity}"));
        }
        at += unit.rest_bytes;
    }
    lines
}

/// Returns the byte on each member, or in the space of the stripes, for pool byte `start`.
fn on_members(geometry: &Geometry, place: Place, start: u64) -> u64 {
    // Relative to the first allocation group. Bytes of fixed regions are unchanged.
    let range =
        geometry.group_layout().range_of(place.group()).map(|range| (range.first, range.offset));
    let is_main = geometry.group_layout().main_numbers().contains(&place.group());
    let main = (geometry.main_first, geometry.groups_offset);
    let own = range.or_else(|| is_main.then_some(main));
    own.map_or(start, |(first, offset)| start - geometry.group_offset(first) + offset)
}

/// The mirrors of a pool, with descriptions of their devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mirrors(Vec<(u8, Vec<String>)>);

impl Mirrors {
    /// Returns the mirrors in the label.
    pub(crate) fn of(label: &Superblock) -> Mirrors {
        let added = label.added.iter().map(|group| (group.number, group.layout, &group.slots));
        let main = (label.geometry.main, label.layout, &label.slots);
        let all = std::iter::once(main).chain(added);
        let mirrors = all.filter(|(_, layout, _)| *layout == Layout::Mirror);
        let device = |slot: usize| {
            let member = label.members.get(slot)?;
            let is_online = member.state == MemberState::Online;
            let state =
                if is_online { String::new() } else { format!(" ({})", member.state.word()) };
            Some(format!("member {slot} {}{state}", shown(&member.path)))
        };
        let named = mirrors.map(|(number, _, slots)| {
            let devices = slots.iter().filter_map(device).collect();
            (number, devices)
        });
        Mirrors(named.collect())
    }

    /// Describes each copy at `place`, if a mirror has it.
    pub(crate) fn copies_of(
        &self,
        geometry: &Geometry,
        place: Place,
        fragments: u32,
    ) -> Option<String> {
        let number = geometry.group_layout().disk_group_of(place.group())?;
        let (_, devices) = self.0.iter().find(|(own, _)| *own == number)?;
        let start = geometry.device_offset(place, fragments)?;
        let byte = on_members(geometry, place, start);
        let copies: Vec<String> = (1..)
            .zip(devices)
            .map(|(copy, device): (usize, &String)| format!("copy {copy} on {device}, byte {byte}"))
            .collect();
        Some(copies.join("; "))
    }
}

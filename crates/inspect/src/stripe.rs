//! Where a place of a disk group in stripes lies: member, row, unit, parity, and the other copy.

use format::disk_group::ADDED_GROUPS_OFFSET;
use format::geometry::Geometry;
use format::ids::Place;

/// Says on which members what lies at `place` is: of blocks each unit and its parity, of a page
/// both copies. Nothing where it lies in no stripes.
pub(crate) fn members_of(
    geometry: &Geometry,
    place: Place,
    fragments: u32,
    is_page: bool,
) -> Vec<String> {
    let lay = geometry.disk_group_of(place.group()).and_then(|number| geometry.lay_of(number));
    let (Some(lay), Some(start)) = (lay, geometry.device_offset(place, fragments)) else {
        return Vec::new();
    };
    // Of one that was added the members are counted, and its bytes, from its own start.
    let start = geometry
        .range_of(place.group())
        .map_or(start, |range| start - geometry.group_offset(range.first) + ADDED_GROUPS_OFFSET);
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

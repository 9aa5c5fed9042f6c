//! The maps of stale parts in a superblock, at most one per absent member.

use zerocopy::little_endian::U16;

use crate::members::{Member, MemberState};
use crate::missed::{MISSED_MAX, StaleParts, StalePartsDisk};
use crate::superblock_error::SuperblockError;

/// Returns the entries of the members with a map.
pub(crate) fn missed_to_disk(members: &[Member]) -> Vec<StalePartsDisk> {
    let entry = |(slot, member): (u16, &Member)| {
        let parts = member.missed?.0;
        Some(StalePartsDisk { slot: U16::new(slot), reserved: [0; 6], parts })
    };
    // A member without an entry gets a full rebuild, and its contents count as nothing.
    (0..).zip(members).filter_map(entry).take(MISSED_MAX).collect()
}

/// Stores the maps in the members. Each may have one, except online members.
pub(crate) fn note_missed(
    disk: &[StalePartsDisk],
    members: &mut [Member],
) -> Result<(), SuperblockError> {
    for found in disk {
        let member = members.get_mut(usize::from(found.slot.get()));
        let is_away = |member: &&mut Member| match member.state {
            MemberState::Missing | MemberState::Failed | MemberState::Joining => {
                member.missed.is_none()
            }
            MemberState::Online | MemberState::Gone => false,
        };
        let Some(member) = member.filter(is_away) else {
            return Err(SuperblockError::BadField { field: "missed" });
        };
        member.missed = Some(StaleParts(found.parts));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_come_back_as_they_were_written_and_only_of_members_that_are_away() {
        let mut members: Vec<Member> = (1..4).map(|id| Member::new([id; 16], 1 << 30)).collect();
        members[1].state = MemberState::Missing;
        members[2].state = MemberState::Joining;
        let plain = members.clone();
        let mut parts = StaleParts::NONE;
        parts.add(0);
        parts.add(255);
        parts.add(256);
        members[1].missed = Some(parts);
        members[2].missed = Some(StaleParts::NONE);
        let disk = missed_to_disk(&members);
        let mut found = plain.clone();
        assert_eq!(note_missed(&disk, &mut found), Ok(()));
        assert_eq!(found, members);
        let of_slot = |slot| [StalePartsDisk { slot: U16::new(slot), ..StalePartsDisk::default() }];
        for bad in [&of_slot(0)[..], &of_slot(3), &[disk[0], disk[0]]] {
            assert!(note_missed(bad, &mut plain.clone()).is_err(), "{bad:?}");
        }
    }
}

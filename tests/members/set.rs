//! The members at work, beneath any layout.

use format::members::{Layout, MemberState};
use format::missed::StaleParts;
use format::superblock::Superblock;
use storage::device::sim::{Fault, FaultPlan};
use storage::device::{AlignedBuffer, Device, IoPurpose, RequestKind, SharedBytes};
use storage::members::{LabelledDevice, MemberSlotState, judge};
use storage::pool::read_superblock;
use storage::volume::{Volume, VolumeDevices};

use super::{Devices, new_mirror, reopened, shared};

fn volume_of(devices: &Devices) -> (Volume, Superblock) {
    let opening = VolumeDevices { devices: shared(devices), accepts_missing: false };
    Volume::open_members(opening).expect("it is a mirror")
}

fn states(volume: &Volume) -> Vec<MemberState> {
    let members = volume.members().expect("there are several");
    members.view().iter().map(|slot| slot.state).collect()
}

fn persistently(kind: RequestKind) -> FaultPlan {
    FaultPlan { faults: vec![Fault::Fail { kind, nth: 0, persists: true }] }
}

fn page(byte: u8) -> AlignedBuffer {
    AlignedBuffer::copy_of(&[byte; 4096])
}

/// Goal: nothing is answered before a member that has not done it is marked (MS1), and the last
/// never is (MS3).
#[test]
fn a_member_that_fails_a_write_is_left_out_before_the_write_is_answered() {
    let devices = reopened(&new_mirror(2), &[0, 1]);
    let (volume, superblock) = volume_of(&devices);
    assert_eq!(superblock.layout, Layout::Mirror);
    let offset = superblock.geometry.journal_offset;
    devices[1].arm(persistently(RequestKind::Write));
    volume.write_fixed(IoPurpose::Journal, offset, page(1)).expect("one has it");
    assert_eq!(states(&volume), [MemberState::Online, MemberState::Failed]);
    let found = [0, 1].map(|at| {
        let read = read_superblock(devices[at].as_ref()).expect("a label");
        LabelledDevice::new(format!("d{at}"), read)
    });
    let table = &found[0].label.members;
    assert_eq!(table[1].state, MemberState::Failed, "durable on the one that remains");
    let judged = judge(&found).expect("one has all");
    assert_eq!(judged.slots, [MemberSlotState::Current(0), MemberSlotState::Stale(1)]);
    let before = devices[1].counts().writes();
    volume.write_fixed(IoPurpose::Journal, offset, page(2)).expect("it goes to one");
    assert_eq!(devices[1].counts().writes(), before, "nothing more goes to it (MS2)");

    devices[0].arm(persistently(RequestKind::Write));
    volume.write_fixed(IoPurpose::Journal, offset, page(3)).expect_err("the last one never fails");
    assert_eq!(states(&volume)[0], MemberState::Online);
}

/// Goal: where all fail one write none is worse than the others, and the error goes up.
#[test]
fn a_write_that_no_member_does_fails_none_of_them() {
    let devices = reopened(&new_mirror(3), &[0, 1, 2]);
    let (volume, superblock) = volume_of(&devices);
    for device in &devices {
        let kind = RequestKind::Write;
        let faults = vec![Fault::Fail { kind, nth: 0, persists: false }];
        device.arm(FaultPlan { faults });
    }
    let offset = superblock.geometry.journal_offset;
    volume.write_fixed(IoPurpose::Journal, offset, page(1)).expect_err("nobody has it");
    assert_eq!(states(&volume), [MemberState::Online; 3]);
    devices[1].arm(persistently(RequestKind::Flush));
    volume.flush(IoPurpose::Journal).expect("two have it");
    assert_eq!(states(&volume)[1], MemberState::Failed);
}

/// Goal: a flush that passes on a member counts for nothing where one in flight with it fails
/// (FL1): the member is left out before the first is answered, and what was written before both is
/// among what it missed, also after an end.
#[test]
fn a_flush_beside_one_that_fails_counts_for_nothing() {
    let devices = reopened(&new_mirror(2), &[0, 1]);
    let (volume, superblock) = volume_of(&devices);
    let place = superblock.geometry.group_layout().root_place();
    let offset = superblock.geometry.device_offset(place, 1).expect("it is in a group");
    let written = StaleParts::of(&superblock.geometry, &(offset..offset + 4096));
    let write = volume.submit_write(IoPurpose::Home, place, vec![SharedBytes::from(page(1))]);
    write.wait().expect("both have it");
    let faults = vec![Fault::Fail { kind: RequestKind::Flush, nth: 1, persists: false }];
    devices[1].arm(FaultPlan { faults });
    let members = volume.members().expect("there are two");
    let passes = members.submit_flush(IoPurpose::Home);
    let fails = members.submit_flush(IoPurpose::Home);
    passes.wait().expect("one has it");
    assert_eq!(states(&volume), [MemberState::Online, MemberState::Failed]);
    fails.wait().expect("one has it");
    drop(volume);
    let devices = reopened(&devices, &[0, 1]);
    let (_, superblock) = volume_of(&devices);
    let missed = superblock.members[1].missed.expect("it was whole when it went");
    assert!(missed.has_all(&written), "{missed:?}");
}

/// Goal: a read that fails is answered by another member, and fails nobody.
#[test]
fn a_read_goes_to_another_member_where_the_first_fails() {
    let devices = reopened(&new_mirror(2), &[0, 1]);
    let (volume, superblock) = volume_of(&devices);
    let offset = superblock.geometry.journal_offset;
    volume.write_fixed(IoPurpose::Journal, offset, page(7)).expect("both have it");
    devices[0].arm(persistently(RequestKind::Read));
    let read = volume.read_fixed(IoPurpose::Journal, offset, 4096).expect("the other has it");
    assert_eq!(&read[..], &page(7)[..]);
    assert_eq!(states(&volume), [MemberState::Online; 2]);
    let members = volume.members().expect("there are two");
    assert_eq!(members.view()[0].counts().read_errors, 1);
}

/// Goal: a bad copy is written again with the good one, but never while a write is at it (RH1).
#[test]
fn a_copy_that_does_not_verify_is_repaired_unless_a_write_is_at_it() {
    let devices = reopened(&new_mirror(2), &[0, 1]);
    let (volume, superblock) = volume_of(&devices);
    let place = superblock.geometry.group_layout().root_place();
    let offset = superblock.geometry.device_offset(place, 1).expect("it is in a group");
    let write =
        |byte| volume.submit_write(IoPurpose::Home, place, vec![SharedBytes::from(page(byte))]);
    write(5).wait().expect("both have it");
    let heal_of = |length: usize| {
        let is_it = |bytes: &[u8]| bytes[..4096] == page(5)[..];
        volume.heal(IoPurpose::Home, place, length, &is_it).expect("one can be read")
    };
    let heal = || heal_of(4096);
    devices[1].rot(offset, 1);
    let members = volume.members().expect("there are two");
    let in_flight = members.begin_write(offset + 4096..offset + 8192);
    let healed = heal_of(8192);
    assert!(healed.bytes.is_some());
    assert_eq!(healed.repaired, 0, "a write is at it");
    drop(in_flight);
    let healed = heal();
    assert_eq!((healed.good, healed.bad, healed.repaired), (1, 1, 1));
    assert_eq!(healed.bytes.as_deref(), Some(&page(5)[..]));
    assert_eq!((heal().bad, heal().good), (0, 2), "it was written again");
    devices.iter().for_each(|device| device.rot(offset, 1));
    assert!(heal().bytes.is_none(), "no copy verifies");
}

/// Goal: a joining member gets all writes, is not read, and costs nobody else when it fails.
#[test]
fn a_joining_member_gets_every_write_and_is_not_read() {
    let devices = reopened(&new_mirror(2), &[0, 1]);
    let (volume, superblock) = volume_of(&devices);
    let members = volume.members().expect("there are two");
    let joins = members.change(|slots, _| {
        slots[1].state = MemberState::Joining;
        storage::volume::LabelChange::States
    });
    joins.expect("the labels are written");
    let offset = superblock.geometry.journal_offset;
    let reads = devices[1].counts().reads();
    volume.write_fixed(IoPurpose::Journal, offset, page(4)).expect("both have it");
    volume.read_fixed(IoPurpose::Journal, offset, 4096).expect("the first has it");
    assert_eq!(devices[1].counts().reads(), reads);
    let has = devices[1].read(IoPurpose::Journal, offset, 4096).expect("it can be read");
    assert_eq!(&has[..], &page(4)[..]);
    devices[1].arm(persistently(RequestKind::Write));
    volume.write_fixed(IoPurpose::Journal, offset, page(5)).expect("the first has it");
    assert_eq!(states(&volume), [MemberState::Online, MemberState::Failed]);
}

//! Reshaping a raid5 or stripe of an open pool to one member more or less. Segments move one by one
//! from stripes of the old width to stripes of the new one, and keep number and contents.
//! `format::reshape` describes the layout meanwhile.
//!
//! # Invariants
//!
//! - RP1: While a segment is written to its new place, the labels still place this segment, and all
//!   that follow, at the old width. The labels are correct at each moment.
//! - RP2: From the read of a segment until the labels with its new place are durable and in use, no
//!   write changes the segment.
//! - RP3: A segment whose new place overlaps its old one is first copied to another segment. The
//!   labels name that copy, durably, before the old place is overwritten.
//!
//! # Crashes
//!
//! Before the label update the segments are in their old places, which the move has not overwritten
//! (RL1, RP3). After the update they are in their new places, flushed. If the labels name a copy in
//! another segment, an open for writing moves that copy to the new place before all other writes.
//!
//! # Concurrency
//!
//! A batch of segments moves while writes to them wait (`ranges.rs`). Reads do not wait, so a read
//! of an old place may return overwritten bytes. All reads are verified, and repeated at the
//! current place.
//!
//! Not here: the fixed regions of an added member (`joining.rs`), and removals (`narrowing.rs`).
//! Decisions 0090 and 0091 have the argument.

use super::Membership;
use std::ops::Range;
use std::sync::Arc;

use format::disk_group::DiskGroupState;
use format::geometry::Geometry;
use format::members::{Member, MemberState};
use format::reshape::{Reshape, ReshapeDirection, SegmentCopy, StripeMapping};
use format::stripes::Stripes;
use format::superblock::Superblock;
use runtime::{planted, unless_planted};

use super::attaching::{check_place, member_on, put_in};
use super::joining::ReplaceError;
use super::longer::why_no_more;
use super::narrowing::is_lacking;
use super::set::{LabelChange, MemberSet, take_table};
use super::slot::MemberSlot;
use super::striped::Striped;
use super::{AttachError, LayoutChangeGuard};
use crate::device::{DeviceError, IoPurpose, Redundancy, SharedDevice};

/// Progress of a reshape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReshapeProgress {
    /// State in the labels.
    pub reshape: Reshape,
    /// Segments of the disk group.
    pub segments: u64,
    /// Where each segment lies.
    pub lay: StripeMapping,
}

impl ReshapeProgress {
    /// Returns the segments to move next, at most `most`, by number in the disk group, and whether
    /// they must first be copied to another segment (RP3). Empty at the end.
    #[must_use]
    pub fn next(&self, most: u64) -> (Range<u64>, bool) {
        let kept_first = if planted!(ReshapeKeepsNothing) { 0 } else { self.lay.kept_first() };
        let border = self.reshape.moved;
        match self.reshape.towards {
            ReshapeDirection::Wide if border >= self.segments => (border..border, false),
            ReshapeDirection::Wide if border < kept_first => (border..border + 1, true),
            ReshapeDirection::Wide => {
                let to = self.lay.may_move_to(border).min(border + most).min(self.segments);
                (border..to.max(border + 1), false)
            }
            ReshapeDirection::Narrow if border == 0 => (0..0, false),
            ReshapeDirection::Narrow if border <= kept_first => (border - 1..border, true),
            ReshapeDirection::Narrow => {
                let from = self.lay.may_move_from(border).max(border.saturating_sub(most));
                (from.min(border - 1)..border, false)
            }
        }
    }

    /// Returns the number of moved segments.
    #[must_use]
    pub fn moved(&self) -> u64 {
        match self.reshape.towards {
            ReshapeDirection::Wide => self.reshape.moved,
            ReshapeDirection::Narrow => self.segments.saturating_sub(self.reshape.moved),
        }
    }

    fn is_next(&self, segments: &Range<u64>) -> bool {
        self.reshape.moved == border_of(self.reshape.towards, segments, false)
    }
}

fn border_of(towards: ReshapeDirection, segments: &Range<u64>, is_moved: bool) -> u64 {
    match (towards, is_moved) {
        (ReshapeDirection::Wide, false) | (ReshapeDirection::Narrow, true) => segments.start,
        (ReshapeDirection::Wide, true) | (ReshapeDirection::Narrow, false) => segments.end,
    }
}

/// The outcome of a move of segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentMoveOutcome {
    /// The segments are in their new places.
    All,
    /// A write or a change of kind is in flight: retry later.
    Busy,
    /// A member is not online: no segment moves.
    Away,
    /// A segment is unreadable.
    Unread {
        /// Error of the member.
        cause: String,
    },
}

/// How a segment moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentMoveMode {
    /// Directly to places that overlap no segment still to move.
    Straight,
    /// Through a copy in this free segment of the disk group.
    Segment(u64),
    /// Without data, because the segment should be unused.
    Free,
}

/// Returns the redundancy of a segment, or `None` if it is unused.
pub type KindOf<'k> = &'k dyn Fn(u64) -> Result<Option<Redundancy>, SegmentBusyError>;

/// The kind of a segment is changing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentBusyError;

impl LayoutChangeGuard<'_> {
    /// Adds `device` to the raid5 or stripe of the member in slot `beside`, and returns its slot.
    /// The member is joining at first. Sets `superblock`, the current label, to the written one.
    ///
    /// # Errors
    ///
    /// See [`AttachError`].
    pub fn widen(
        &self,
        superblock: &mut Superblock,
        beside: usize,
        device: SharedDevice,
        id: [u8; 16],
    ) -> Result<usize, AttachError> {
        let volume = self.volume();
        let members = volume.members().ok_or(ReplaceError::NotSeveral)?;
        members.label().ok_or(ReplaceError::NotSeveral)?;
        let mut widened = Err(ReplaceError::NoSlot { slot: beside }.into());
        let changed = members.change_with(|slots, label| {
            let number = match volume.membership().may_widen(slots, label, beside, &device) {
                Ok(number) => number,
                Err(refusal) => {
                    widened = Err(refusal);
                    return (LabelChange::Nothing, None);
                }
            };
            let Some((set, _)) = members.of_slot(beside) else {
                return (LabelChange::Nothing, None);
            };
            let slot = label.begin_reshape(number, member_on(&device, id));
            if let Some(lay) = label.geometry.lay_of(number) {
                set.set_lay(lay);
            }
            set.take_last_slot(slot);
            // Without segments yet, the added member, in the last own slot, is idle.
            set.need(set.needed(), Some(set.own_count() - 1));
            put_in(slots, slot, MemberSlot::new(Some(device), MemberState::Joining));
            widened = Ok(slot);
            (LabelChange::States, Some(slot))
        });
        changed.map_err(ReplaceError::Device)?;
        let slot = widened?;
        volume.membership().take_label(superblock);
        volume.show(superblock)?;
        Ok(slot)
    }

    /// Moves `segments`, by number in the reshaped disk group. Durable at the return.
    ///
    /// # Errors
    ///
    /// A needed member failed: the pool must stop writing.
    pub fn move_segments(
        &self,
        segments: Range<u64>,
        way: SegmentMoveMode,
        kind_of: KindOf<'_>,
    ) -> Result<SegmentMoveOutcome, DeviceError> {
        let volume = self.volume();
        let Some(reshaping) = volume.membership().reshaping() else {
            return Ok(SegmentMoveOutcome::All);
        };
        if !reshaping.is_next(&segments) {
            return Ok(SegmentMoveOutcome::Busy);
        }
        let towards = reshaping.reshape.towards;
        let Some((set, striped)) = volume.membership().reshaped() else {
            return Ok(SegmentMoveOutcome::Busy);
        };
        let lay = reshaping.lay;
        let held = start_of(&lay, segments.start)..start_of(&lay, segments.end);
        // Keeps writes out (RP2).
        let hold = set.try_hold(held);
        if hold.is_none() && !planted!(ReshapeNotHeld) {
            return Ok(SegmentMoveOutcome::Busy);
        }
        // Checked under the hold: if a member fails later, its stale parts include the range (MS5).
        if volume.membership().lacks_to_reshape() {
            return Ok(SegmentMoveOutcome::Away);
        }
        let mut kinds = Vec::new();
        for segment in segments.clone() {
            match kind_of(segment) {
                Ok(kind) => kinds.extend(kind.map(|kind| (segment, kind))),
                Err(SegmentBusyError) => return Ok(SegmentMoveOutcome::Busy),
            }
        }
        let changed = match way {
            SegmentMoveMode::Straight => {
                move_straight(&set, &striped, (towards, &segments), &kinds)
            }
            SegmentMoveMode::Free if !kinds.is_empty() => return Ok(SegmentMoveOutcome::Busy),
            SegmentMoveMode::Free => note(&set, border_of(towards, &segments, true), None),
            SegmentMoveMode::Segment(at) => {
                move_by_way(&set, &striped, (towards, segments.start, at), &kinds)
            }
        };
        if let Some(hold) = hold {
            hold.note_written();
        }
        match changed {
            Ok(SegmentMoveOutcome::Unread { .. }) if volume.membership().lacks_to_reshape() => {
                Ok(SegmentMoveOutcome::Away)
            }
            changed => changed,
        }
    }

    /// Ends a reshape to more members, durably. Returns the number of the disk group. `None` if
    /// segments are still to be moved, there is no such reshape, or a member is absent.
    ///
    /// # Errors
    ///
    /// A needed member failed: the pool must stop writing.
    pub fn end_reshape(&self) -> Result<Option<u8>, DeviceError> {
        let volume = self.volume();
        let Some(reshaping) = volume.membership().reshaping() else { return Ok(None) };
        let Some((set, _)) = volume.membership().reshaped() else { return Ok(None) };
        let is_wide = reshaping.reshape.towards == ReshapeDirection::Wide;
        if reshaping.reshape.moved < reshaping.segments || !is_wide {
            return Ok(None);
        }
        let mut ended = Ok(());
        let mut lacks = false;
        set.change(|_, label| {
            // The size of parts changes: maps of stale parts would be wrong.
            lacks = is_lacking(&set, None);
            if lacks {
                return LabelChange::Nothing;
            }
            ended = label.end_reshape();
            if ended.is_err() {
                return LabelChange::Nothing;
            }
            if reshaping.reshape.disk_group == label.geometry.main {
                set.cut_rebuild(&label.geometry);
            }
            LabelChange::Table
        })?;
        if lacks {
            return Ok(None);
        }
        if let Err(error) = ended {
            tracing::error!(%error, "a disk group cannot be what it has become");
            return Ok(None);
        }
        set.set_lay(StripeMapping::from(reshaping.lay.wide));
        volume.membership().show_label();
        Ok(Some(reshaping.reshape.disk_group))
    }

    /// Completes a move that a crash interrupted, from the copy in another segment. Must precede
    /// writes to allocation groups.
    ///
    /// # Errors
    ///
    /// A needed member failed.
    pub fn end_interrupted_move(&self, superblock: &mut Superblock) -> Result<(), DeviceError> {
        let volume = self.volume();
        let Some(reshaping) = volume.membership().reshaping() else { return Ok(()) };
        let (Some(kept), Some((set, striped))) =
            (reshaping.reshape.kept, volume.membership().reshaped())
        else {
            return Ok(());
        };
        let (lay, segment) = (reshaping.lay, reshaping.reshape.moved);
        let towards = reshaping.reshape.towards;
        let stripes = new_of(&lay, towards);
        let kind = if kept.is_pages { Redundancy::Copies } else { Redundancy::Parity };
        let bytes = striped.read_kept(start_of(&lay, kept.at), kind)?;
        // Registered as a write in flight, so that its range becomes stale on absent members (MS5).
        let start = start_of(&lay, segment);
        let in_flight = set.begin_write(start..start + stripes.segment_bytes);
        striped.write_moved(&stripes, (start, kind), &bytes, Some(in_flight))?;
        set.submit_flush(IoPurpose::Cleaner).wait()?;
        note(&set, border_of(towards, &(segment..segment + 1), true), None)?;
        volume.membership().take_label(superblock);
        Ok(())
    }
}

impl Membership<'_> {
    /// Returns the progress of the reshape of a disk group. `None` without one.
    #[must_use]
    pub fn reshaping(&self) -> Option<ReshapeProgress> {
        let label = self.members()?.label()?;
        let reshape = label.geometry.reshape?;
        let lay = label.geometry.lay_of(reshape.disk_group)?;
        let segments = label.geometry.segments_in(reshape.disk_group);
        Some(ReshapeProgress { reshape, segments, lay })
    }

    /// Whether a member of the reshaped disk group is not online: then no segment moves.
    #[must_use]
    pub fn lacks_to_reshape(&self) -> bool {
        self.reshaping().is_some_and(|it| self.lacks_in(it.reshape.disk_group))
    }

    pub(super) fn set_of(&self, disk_group: u8) -> Option<Arc<MemberSet>> {
        let part = self.now().parts.iter().find(|part| part.disk_group == disk_group)?;
        Some(Arc::clone(part.composite.members()))
    }

    fn reshaped(&self) -> Option<(Arc<MemberSet>, Striped)> {
        let label = self.members()?.label()?;
        let number = label.geometry.reshape?.disk_group;
        let part = self.now().parts.iter().find(|part| part.disk_group == number)?;
        let set = self.set_of(number)?;
        let stripes = label.geometry.lay_of(number)?.narrow;
        let info = part.composite.info().clone();
        Some((Arc::clone(&set), Striped::new(info, set, stripes)))
    }

    pub(super) fn show_label(&self) {
        if let Some(label) = self.members().and_then(|members| members.label())
            && let Err(error) = self.show(&label)
        {
            tracing::error!(%error, "a disk group cannot be shown as what it has become");
        }
    }

    pub(super) fn take_label(&self, superblock: &mut Superblock) {
        if let Some(label) = self.members().and_then(|members| members.label()) {
            superblock.sequence = label.sequence;
            take_table(superblock, &label);
        }
    }

    /// Returns the disk group of slot `beside`, if `device` may be added. LOCK: under the label's
    /// lock.
    fn may_widen(
        &self,
        slots: &[MemberSlot],
        label: &Superblock,
        beside: usize,
        device: &SharedDevice,
    ) -> Result<u8, AttachError> {
        let group = label.group_of_slot(beside);
        let (number, layout, own) = group.ok_or(ReplaceError::NoSlot { slot: beside })?;
        if !layout.spreads() {
            return Err(AttachError::NoStripes { number, kind: layout.word() });
        }
        if label.geometry.reshape.is_some() || label.geometry.last_groups.is_some() {
            return Err(AttachError::Reshaped);
        }
        // Own slots are limited, and reused only after the next open.
        let set = self.members().and_then(|members| members.of_slot(beside));
        if set.is_some_and(|(set, _)| set.has_many_gone()) {
            return Err(AttachError::Often);
        }
        let added = label.added.iter().find(|group| group.number == number);
        if added.is_some_and(|group| group.state != DiskGroupState::Online) {
            return Err(AttachError::Leaving { number });
        }
        let most = *layout.widths().end();
        if own.len() >= most {
            return Err(AttachError::Wide { number, most });
        }
        let is_lacking =
            |slot: &usize| slots.get(*slot).is_none_or(|slot| slot.state != MemberState::Online);
        if let Some(slot) = own.iter().find(is_lacking) {
            let state = slots.get(slot).map_or(MemberState::Missing, |slot| slot.state).word();
            return Err(AttachError::Lacking { slot, state });
        }
        check_place(slots, label)?;
        let (now, wide) = (layout.stripe(own.len()), layout.stripe(own.len() + 1));
        let segment_bytes = label.geometry.segment_bytes();
        let rows = |shape: Option<format::stripes::StripeShape>| {
            shape.map_or(0, |shape| shape.segment_rows(segment_bytes))
        };
        if rows(wide) >= rows(now) {
            return Err(AttachError::NoGain { number, segment_bytes });
        }
        self.check_fits(label, beside, device)?;
        check_growth(label, number)?;
        Ok(number)
    }
}

/// Refuses a reshape after which the disk group could not grow.
fn check_growth(label: &Superblock, number: u8) -> Result<(), AttachError> {
    let mut coming = label.clone();
    coming.begin_reshape(number, Member::new([0; 16], 0));
    let ended = coming.end_reshape().is_ok();
    let fragments = |geometry: &Geometry| geometry.fragments_in_all();
    let (gains, limit) = match label.added.iter().find(|group| group.number == number) {
        None => {
            let (grown, limit) = coming.geometry.grown(label.geometry.member_bytes());
            (fragments(&grown) > fragments(&label.geometry), limit)
        }
        Some(group) => {
            let own = coming.added.iter().find(|own| own.number == number);
            let grown =
                own.map(|own| coming.geometry.group_layout().grown_added(own, group.member_bytes));
            let (bytes, limit) = grown.unwrap_or((0, None));
            (own.is_some_and(|own| bytes > own.member_bytes), limit)
        }
    };
    match limit {
        _ if ended && gains => Ok(()),
        Some(limit) => Err(AttachError::NoNumbers { number, why: why_no_more(limit) }),
        None => {
            let segment_bytes = label.geometry.segment_bytes();
            Err(AttachError::NoGain { number, segment_bytes })
        }
    }
}

fn move_straight(
    set: &Arc<MemberSet>,
    striped: &Striped,
    (towards, segments): (ReshapeDirection, &Range<u64>),
    kinds: &[(u64, Redundancy)],
) -> Result<SegmentMoveOutcome, DeviceError> {
    let lay = striped.lay_now();
    for &(segment, kind) in kinds {
        let start = start_of(&lay, segment);
        let bytes = match striped.read_to_move(start, kind) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(unread(&error)),
        };
        striped.write_moved(&new_of(&lay, towards), (start, kind), &bytes, None)?;
    }
    // CRASH: the new places are durable before the labels name them.
    unless_planted!(ReshapeUnflushed, set.submit_flush(IoPurpose::Cleaner).wait()?);
    note(set, border_of(towards, segments, true), None)
}

/// Moves a segment whose new place overlaps its old one, through segment `at` (RP3).
fn move_by_way(
    set: &Arc<MemberSet>,
    striped: &Striped,
    (towards, segment, at): (ReshapeDirection, u64, u64),
    kinds: &[(u64, Redundancy)],
) -> Result<SegmentMoveOutcome, DeviceError> {
    let lay = striped.lay_now();
    if let Some(&(_, kind)) = kinds.first() {
        let (start, copy) = (start_of(&lay, segment), start_of(&lay, at));
        let bytes = match striped.read_to_move(start, kind) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(unread(&error)),
        };
        striped.write_moved(&lay.at(copy), (copy, Redundancy::Parity), &bytes, None)?;
        set.submit_flush(IoPurpose::Cleaner).wait()?;
        let is_pages = kind == Redundancy::Copies;
        // CRASH: from this update on the segment is read from its copy.
        let noted = note(set, segment, Some(SegmentCopy { at, is_pages }))?;
        if noted != SegmentMoveOutcome::All {
            return Ok(noted);
        }
        striped.write_moved(&new_of(&lay, towards), (start, kind), &bytes, None)?;
        set.submit_flush(IoPurpose::Cleaner).wait()?;
    }
    note(set, border_of(towards, &(segment..segment + 1), true), None)
}

fn unread(error: &DeviceError) -> SegmentMoveOutcome {
    SegmentMoveOutcome::Unread { cause: error.to_string() }
}

fn new_of(lay: &StripeMapping, towards: ReshapeDirection) -> Stripes {
    match towards {
        ReshapeDirection::Wide => lay.wide,
        ReshapeDirection::Narrow => lay.narrow,
    }
}

fn start_of(lay: &StripeMapping, segment: u64) -> u64 {
    let ahead = segment.saturating_mul(lay.narrow.segment_bytes);
    lay.narrow.groups_offset.saturating_add(ahead)
}

/// Records the border and the copied segment in the labels, durably, and then in the set. Refuses
/// if segments would then depend on a failed member, which was idle until now.
fn note(
    set: &Arc<MemberSet>,
    moved: u64,
    kept: Option<SegmentCopy>,
) -> Result<SegmentMoveOutcome, DeviceError> {
    let (mut lay, mut noted) = (None, SegmentMoveOutcome::All);
    set.change(|slots, label| {
        let Some(reshape) = label.geometry.reshape else { return LabelChange::Nothing };
        let before = label.geometry.reshape;
        label.geometry.reshape = Some(Reshape { moved, kept, ..reshape });
        if label.coming_slot().is_none() && !set.need_as(label, slots) {
            (label.geometry.reshape, noted) = (before, SegmentMoveOutcome::Away);
            return LabelChange::Nothing;
        }
        lay = label.geometry.lay_of(reshape.disk_group);
        LabelChange::Table
    })?;
    if let Some(lay) = lay {
        set.set_lay(lay);
        // CRASH: the labels are durable before a leaving member counts as idle.
        if let Some(label) = set.label() {
            set.need_as(&label, &set.all());
        }
    }
    Ok(noted)
}

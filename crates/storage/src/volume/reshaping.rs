//! A raid5 or stripe gets a member more, or has one less, while the pool is in use: its segments
//! are moved, one after the other, from stripes of the old width to stripes of the new one.
//!
//! `format::reshape` says how segments lie meanwhile. No place of the pool changes: a segment keeps
//! its number, and so does all that is in it.
//!
//! # Invariants
//!
//! - RP1: The new place of a segment is written while the labels say that it, and all behind it,
//!   lies where it did; what they say of it is true until they say otherwise.
//! - RP2: Nobody writes to a segment between the moment at which it is read to be moved and the one
//!   at which the labels say where it is, durably, and all who ask are told so.
//! - RP3: A segment whose new place meets its old one is written to another segment first, and the
//!   labels say so, durably, before its old place is written to.
//!
//! # Crashes
//!
//! A cut before the labels are written leaves the segments where they were: nothing that is not
//! moved lies in the new places (RL1, RP3). A cut afterwards leaves them in their new places, whole
//! and flushed. A label that keeps a segment elsewhere says what it is: whoever opens the pool for
//! writing moves it to its new place before anything else is written.
//!
//! # Concurrency
//!
//! Writers to segments that are moved wait (`ranges.rs`), for some of them and no longer than it
//! takes to read and write these. Readers do not: who has asked where a segment is and reads late
//! may read what was written over it. All that is read is verified, and read again where it is now.
//!
//! Not here: the new member gets its fixed regions like any that joins (`joining.rs`); what is
//! given up before a member goes, and how it goes (`narrowing.rs`). Decisions 0090 and 0091 have
//! the argument.

use std::ops::Range;
use std::sync::Arc;

use format::disk_group::DiskGroupState;
use format::geometry::Geometry;
use format::members::{Member, MemberState};
use format::reshape::{KeptSegment, Lay, Reshape, Towards};
use format::stripes::Stripes;
use format::superblock::Superblock;
use runtime::planted::{self, Planted};

use super::attaching::{check_place, member_on, put_in};
use super::growth::changes_to_come;
use super::joining::ReplaceError;
use super::longer::why_no_more;
use super::narrowing::is_lacking;
use super::set::{Change, MemberSet, take_table};
use super::slot::Slot;
use super::striped::Striped;
use super::{AttachError, Changing, Volume};
use crate::device::{DeviceError, Purpose, Redundancy, SharedDevice};

/// How far a disk group is that gets a member more, or one less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reshaping {
    /// What the labels say.
    pub reshape: Reshape,
    /// Segments that the disk group has.
    pub segments: u64,
    /// How they lie.
    pub lay: Lay,
}

impl Reshaping {
    /// Returns the segments, by number in the disk group, that can be moved next, `most` at most,
    /// and whether they must be kept elsewhere first; none: all are moved.
    #[must_use]
    pub fn next(&self, most: u64) -> (Range<u64>, bool) {
        let kept_first = match planted::is(Planted::ReshapeKeepsNothing) {
            true => 0,
            false => self.lay.kept_first(),
        };
        let border = self.reshape.moved;
        match self.reshape.towards {
            Towards::Wide if border >= self.segments => (border..border, false),
            Towards::Wide if border < kept_first => (border..border + 1, true),
            Towards::Wide => {
                let to = self.lay.may_move_to(border).min(border + most).min(self.segments);
                (border..to.max(border + 1), false)
            }
            Towards::Narrow if border == 0 => (0..0, false),
            Towards::Narrow if border <= kept_first => (border - 1..border, true),
            Towards::Narrow => {
                let from = self.lay.may_move_from(border).max(border.saturating_sub(most));
                (from.min(border - 1)..border, false)
            }
        }
    }

    /// Returns how many segments are moved.
    #[must_use]
    pub fn moved(&self) -> u64 {
        match self.reshape.towards {
            Towards::Wide => self.reshape.moved,
            Towards::Narrow => self.segments.saturating_sub(self.reshape.moved),
        }
    }

    /// Whether `segments` are those next to the border.
    fn is_next(&self, segments: &Range<u64>) -> bool {
        self.reshape.moved == border_of(self.reshape.towards, segments, false)
    }
}

/// Returns where the border is before `segments` are moved, and afterwards.
fn border_of(towards: Towards, segments: &Range<u64>, is_moved: bool) -> u64 {
    match (towards, is_moved) {
        (Towards::Wide, false) | (Towards::Narrow, true) => segments.start,
        (Towards::Wide, true) | (Towards::Narrow, false) => segments.end,
    }
}

/// What became of segments that were to be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// They are in their new places.
    All,
    /// Somebody writes to them, or changes what they are: to be tried again a little later.
    Busy,
    /// A member is not online, and nothing is moved without it.
    Away,
    /// What is to be moved cannot be read.
    Unread {
        /// What a member said.
        cause: String,
    },
}

/// By which way segments are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Straight to their new places, which meet nothing that is not moved.
    Straight,
    /// One by way of another, by its number in the disk group, that nobody else has.
    Segment(u64),
    /// One in which nothing is in use, as far as is known.
    Free,
}

/// How a segment is kept; `None`: nothing in it is in use. An error: it cannot be told now.
pub type KindOf<'k> = &'k dyn Fn(u64) -> Result<Option<Redundancy>, Busy>;

/// Somebody changes what a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl Changing<'_> {
    /// Makes `device` a further member of the raid5 or stripe that has the member in slot `beside`:
    /// see the module's header. It is joining first, as one that is attached to a mirror
    /// ([`Changing::attach`]). `superblock`, the current label, becomes what the labels say.
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
        let label = members.label().ok_or(ReplaceError::NotSeveral)?;
        // One for the beginning, and one for the end.
        let kept = changes_to_come(&label) + 1;
        let edition = volume.next_edition(kept).map_err(|_| AttachError::Often)?;
        let mut widened = Err(ReplaceError::NoSlot { slot: beside }.into());
        let changed = members.change_with(|slots, label| {
            let number = match volume.may_widen(slots, label, beside, &device) {
                Ok(number) => number,
                Err(refusal) => {
                    widened = Err(refusal);
                    return (Change::Nothing, None);
                }
            };
            let Some((set, _)) = members.of_slot(beside) else { return (Change::Nothing, None) };
            let slot = label.begin_reshape(number, member_on(&device, id));
            if let Some(lay) = label.geometry.lay_of(number) {
                set.set_lay(lay);
            }
            set.take_last_slot(slot);
            // Its number is behind all others; nothing lies on it.
            set.need(set.needed(), Some(set.own_count() - 1));
            put_in(slots, slot, Slot::new(Some(device), MemberState::Joining));
            widened = Ok(slot);
            (Change::States, Some(slot))
        });
        changed.map_err(ReplaceError::Device)?;
        let slot = widened?;
        volume.take_label(superblock);
        volume.show(edition, superblock).map_err(|_| AttachError::Often)?;
        Ok(slot)
    }

    /// Moves `segments`, by their numbers in the disk group that is reshaped. All is durable when
    /// this returns.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs: the pool must stop writing.
    pub fn move_segments(
        &self,
        segments: Range<u64>,
        way: Way,
        kind_of: KindOf<'_>,
    ) -> Result<Moved, DeviceError> {
        let volume = self.volume();
        let Some(reshaping) = volume.reshaping() else { return Ok(Moved::All) };
        if !reshaping.is_next(&segments) {
            return Ok(Moved::Busy);
        }
        let towards = reshaping.reshape.towards;
        let Some((set, striped)) = volume.reshaped() else { return Ok(Moved::Busy) };
        let lay = reshaping.lay;
        let held = start_of(&lay, segments.start)..start_of(&lay, segments.end);
        // RP2.
        let is_planted = planted::is(Planted::ReshapeNotHeld);
        let hold = if is_planted { None } else { set.try_hold(held) };
        if hold.is_none() && !is_planted {
            return Ok(Moved::Busy);
        }
        // Behind it: from now on who fails is told of the range that is held (MS5).
        if volume.lacks_to_reshape() {
            return Ok(Moved::Away);
        }
        let mut kinds = Vec::new();
        for segment in segments.clone() {
            match kind_of(segment) {
                Ok(kind) => kinds.extend(kind.map(|kind| (segment, kind))),
                Err(Busy) => return Ok(Moved::Busy),
            }
        }
        let changed = match way {
            Way::Straight => move_straight(&set, &striped, (towards, &segments), &kinds),
            Way::Free if !kinds.is_empty() => return Ok(Moved::Busy),
            Way::Free => note(&set, border_of(towards, &segments, true), None),
            Way::Segment(at) => move_by_way(&set, &striped, (towards, segments.start, at), &kinds),
        };
        if let Some(hold) = hold {
            hold.note_written();
        }
        match changed {
            Ok(Moved::Unread { .. }) if volume.lacks_to_reshape() => Ok(Moved::Away),
            changed => changed,
        }
    }

    /// Says that the disk group whose segments have all moved lies as any other, durably. Returns
    /// its number; `None`: there is none, or not all have.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs: the pool must stop writing.
    pub fn end_reshape(&self) -> Result<Option<u8>, DeviceError> {
        let volume = self.volume();
        let Some(reshaping) = volume.reshaping() else { return Ok(None) };
        let Some((set, _)) = volume.reshaped() else { return Ok(None) };
        let is_wide = reshaping.reshape.towards == Towards::Wide;
        if reshaping.reshape.moved < reshaping.segments || !is_wide {
            return Ok(None);
        }
        // It was kept for this.
        let Ok(edition) = volume.next_edition(0) else { return Ok(None) };
        let mut ended = Ok(());
        let mut lacks = false;
        set.change(|_, label| {
            // What it has missed goes by parts of the pool, which change.
            lacks = is_lacking(&set, None);
            if lacks {
                return Change::Nothing;
            }
            ended = label.end_reshape();
            if ended.is_err() {
                return Change::Nothing;
            }
            if reshaping.reshape.disk_group == label.geometry.main {
                set.cut_anew(&label.geometry);
            }
            Change::Table
        })?;
        if lacks {
            return Ok(None);
        }
        if let Err(error) = ended {
            tracing::error!(%error, "a disk group cannot be what it has become");
            return Ok(None);
        }
        set.set_lay(Lay::from(reshaping.lay.wide));
        volume.show_label(edition);
        Ok(Some(reshaping.reshape.disk_group))
    }

    /// Moves a segment to its new place that a crash has left elsewhere. To be called before
    /// anything is written to the groups.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs.
    pub fn end_interrupted_move(&self, superblock: &mut Superblock) -> Result<(), DeviceError> {
        let volume = self.volume();
        let Some(reshaping) = volume.reshaping() else { return Ok(()) };
        let (Some(kept), Some((set, striped))) = (reshaping.reshape.kept, volume.reshaped()) else {
            return Ok(());
        };
        let (lay, segment) = (reshaping.lay, reshaping.reshape.moved);
        let towards = reshaping.reshape.towards;
        let stripes = new_of(&lay, towards);
        let kind = if kept.is_pages { Redundancy::Copies } else { Redundancy::Parity };
        let bytes = striped.read_kept(start_of(&lay, kept.at), kind)?;
        if !planted::is(Planted::ReshapeKeptForgotten) {
            // Who is away learns that it has missed this (MS5).
            let start = start_of(&lay, segment);
            let in_flight = set.begin_write(start..start + stripes.segment_bytes);
            striped.write_moved(&stripes, (start, kind), &bytes, Some(in_flight))?;
            set.submit_flush(Purpose::Cleaner).wait()?;
        }
        note(&set, border_of(towards, &(segment..segment + 1), true), None)?;
        volume.take_label(superblock);
        Ok(())
    }
}

impl Volume {
    /// Returns how far the disk group is that gets a member more, or one less; `None`: there is
    /// none.
    #[must_use]
    pub fn reshaping(&self) -> Option<Reshaping> {
        let label = self.members()?.label()?;
        let reshape = label.geometry.reshape?;
        let lay = label.geometry.lay_of(reshape.disk_group)?;
        let segments = label.geometry.segments_in(reshape.disk_group);
        Some(Reshaping { reshape, segments, lay })
    }

    /// Whether one of its members is not online: nothing is moved then.
    #[must_use]
    pub fn lacks_to_reshape(&self) -> bool {
        self.reshaping().is_some_and(|it| self.lacks_in(it.reshape.disk_group))
    }

    /// Returns the members of a disk group in one part.
    pub(super) fn set_of(&self, disk_group: u8) -> Option<Arc<MemberSet>> {
        let part = self.now().parts.iter().find(|part| part.disk_group == disk_group)?;
        Some(Arc::clone(part.composite.members()))
    }

    /// Returns its members, and its layout.
    fn reshaped(&self) -> Option<(Arc<MemberSet>, Striped)> {
        let label = self.members()?.label()?;
        let number = label.geometry.reshape?.disk_group;
        let part = self.now().parts.iter().find(|part| part.disk_group == number)?;
        let set = self.set_of(number)?;
        let stripes = label.geometry.lay_of(number)?.narrow;
        let info = part.composite.info().clone();
        Some((Arc::clone(&set), Striped::new(info, set, stripes)))
    }

    /// Shows the disk groups as the labels say that they have become.
    pub(super) fn show_label(&self, edition: usize) {
        if let Some(label) = self.members().and_then(|members| members.label())
            && let Err(error) = self.show(edition, &label)
        {
            tracing::error!(%error, "a disk group cannot be shown as what it has become");
        }
    }

    /// Makes `superblock` what the labels say.
    pub(super) fn take_label(&self, superblock: &mut Superblock) {
        if let Some(label) = self.members().and_then(|members| members.label()) {
            superblock.sequence = label.sequence;
            take_table(superblock, &label);
        }
    }

    /// Returns the number of the disk group that has the member in slot `beside`, if `device` may
    /// become a further member of it. Called with the label's lock held.
    fn may_widen(
        &self,
        slots: &[Slot],
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
        // Own slots of members that were taken out stay theirs until the pool is opened again.
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

/// Refuses a move after which the disk group could not grow.
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
            let grown = own.map(|own| coming.geometry.grown_added(own, group.member_bytes));
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
    (towards, segments): (Towards, &Range<u64>),
    kinds: &[(u64, Redundancy)],
) -> Result<Moved, DeviceError> {
    let lay = striped.lay_now();
    for &(segment, kind) in kinds {
        let start = start_of(&lay, segment);
        let bytes = match striped.read_to_move(start, kind) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(unread(&error)),
        };
        striped.write_moved(&new_of(&lay, towards), (start, kind), &bytes, None)?;
    }
    if !planted::is(Planted::ReshapeUnflushed) {
        // CRASH: the new places are durable before the labels name them.
        set.submit_flush(Purpose::Cleaner).wait()?;
    }
    note(set, border_of(towards, segments, true), None)
}

/// Moves a segment whose new place meets its old one by way of segment `at` (RP3).
fn move_by_way(
    set: &Arc<MemberSet>,
    striped: &Striped,
    (towards, segment, at): (Towards, u64, u64),
    kinds: &[(u64, Redundancy)],
) -> Result<Moved, DeviceError> {
    let lay = striped.lay_now();
    if let Some(&(_, kind)) = kinds.first() {
        let (start, copy) = (start_of(&lay, segment), start_of(&lay, at));
        let bytes = match striped.read_to_move(start, kind) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(unread(&error)),
        };
        striped.write_moved(&lay.at(copy), (copy, Redundancy::Parity), &bytes, None)?;
        set.submit_flush(Purpose::Cleaner).wait()?;
        let is_pages = kind == Redundancy::Copies;
        // CRASH: from here on it is read there.
        let noted = note(set, segment, Some(KeptSegment { at, is_pages }))?;
        if noted != Moved::All {
            return Ok(noted);
        }
        striped.write_moved(&new_of(&lay, towards), (start, kind), &bytes, None)?;
        set.submit_flush(Purpose::Cleaner).wait()?;
    }
    note(set, border_of(towards, &(segment..segment + 1), true), None)
}

fn unread(error: &DeviceError) -> Moved {
    Moved::Unread { cause: error.to_string() }
}

/// Returns how segments lie that are moved.
fn new_of(lay: &Lay, towards: Towards) -> Stripes {
    match towards {
        Towards::Wide => lay.wide,
        Towards::Narrow => lay.narrow,
    }
}

/// Returns the first byte of a segment of a disk group, in bytes of that.
fn start_of(lay: &Lay, segment: u64) -> u64 {
    let ahead = segment.saturating_mul(lay.narrow.segment_bytes);
    lay.narrow.groups_offset.saturating_add(ahead)
}

/// Says in the labels, durably, and then to all who ask, which segments are moved. Not where the
/// first of them would lie on a member that has failed meanwhile, and that nobody needed before:
/// nothing is moved then.
fn note(set: &Arc<MemberSet>, moved: u64, kept: Option<KeptSegment>) -> Result<Moved, DeviceError> {
    let (mut lay, mut noted) = (None, Moved::All);
    set.change(|slots, label| {
        let Some(reshape) = label.geometry.reshape else { return Change::Nothing };
        let before = label.geometry.reshape;
        label.geometry.reshape = Some(Reshape { moved, kept, ..reshape });
        if label.coming_slot().is_none() && !set.need_as(label, slots) {
            (label.geometry.reshape, noted) = (before, Moved::Away);
            return Change::Nothing;
        }
        lay = label.geometry.lay_of(reshape.disk_group);
        Change::Table
    })?;
    if let Some(lay) = lay {
        set.set_lay(lay);
        // CRASH: the labels are durable; only now does nobody need the one that leaves.
        if let Some(label) = set.label() {
            set.need_as(&label, &set.all());
        }
    }
    Ok(noted)
}

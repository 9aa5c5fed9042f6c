//! A full pool, and which of its clones hold most of it: what deleting each, and no other, gives
//! back.
//!
//! Policy: a weighing begins when somebody was refused for want of space since the last one began,
//! at most one in [`AGAIN_NS`] unless a clone that the last has named is gone. Clones are weighed
//! by what they reference, most first: no clone holds more alone than it references, so it ends
//! when [`NAMED`] hold as much as the next one references, or after [`PARTS_MAX`] parts. What came
//! of it is kept, and told with its age.
//!
//! # Concurrency
//!
//! The lock of the weighing is held while a part is counted, and above all others; nobody waits for
//! it. A clone is not kept from being deleted between two parts: it is left out then.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use format::fileset::Cursor;
use format::ids::FilesetId;
use runtime::planted::{self, Planted};

use super::Core;
use crate::error::{FsError, FsResult};
use crate::fileset::deletion::Counted;
use crate::fileset::table::Node;
use crate::sync::Mutex;

/// A pool is full, once it has refused something, as long as less than this is available.
const FULL_SEGMENTS: u64 = 4;
/// Clones that are named.
const NAMED: usize = 3;
/// How long what was weighed is good.
const AGAIN_NS: u64 = 60_000_000_000;
/// Parts of one weighing at most: each looks at some thousand pointers.
const PARTS_MAX: u32 = 4096;
/// Parts that are counted for somebody who waits.
const PARTS_AT_ONCE: u32 = 256;
/// How long he waits, but for the end of the part that is begun: a status socket has one thread for
/// such questions, and a part of a pool on disks may read for long.
const AT_ONCE_NS: u64 = 1_000_000_000;
/// How often a part is begun again because somebody came to go back to the clone.
const TRIES: usize = 8;

/// A clone by its slot and its id: a slot that is given out again is another's.
type CloneId = (u32, FilesetId);

/// Refusals, and what was weighed because of them.
#[derive(Debug, Default)]
pub(crate) struct Scales {
    /// When somebody was refused last: nanoseconds past 1; 0: nobody was.
    refused_ns: AtomicU64,
    work: Mutex<Work>,
    weighed: Mutex<Option<Weighed>>,
}

#[derive(Debug, Default)]
struct Work {
    begun_ns: u64,
    /// The refusal that the last weighing began for.
    refused_ns: u64,
    weighing: Option<Weighing>,
}

/// A weighing under way.
#[derive(Debug, Default)]
struct Weighing {
    /// Clones that are not weighed yet, and what they reference: most first.
    left: VecDeque<(u64, CloneId)>,
    /// The clone in hand: where to go on, and what it holds alone before that.
    at: Option<(CloneId, Cursor, u64)>,
    /// What was found, most first.
    found: Vec<(u64, CloneId)>,
    parts: u32,
}

/// What came of a weighing.
#[derive(Clone, Debug)]
struct Weighed {
    at_ns: u64,
    found: Vec<(u64, CloneId)>,
    is_all: bool,
}

/// A clone and what it holds alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeavyClone {
    /// Its name: the fileset's, `@`, its own.
    pub name: String,
    /// What deleting it, and no other, gives back.
    pub bytes: u64,
}

/// A pool that has refused a change for want of space, and still has none to speak of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fullness {
    /// How long ago it refused one last.
    pub refused_ago_ns: u64,
    /// Clones that it has.
    pub clones: usize,
    /// Which of them hold most alone; `None`: not known yet.
    pub heaviest: Option<Heaviest>,
}

/// The clones that hold most alone, as they were some time ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heaviest {
    /// Most first, three at most, and none that holds nothing.
    pub clones: Vec<HeavyClone>,
    /// How long ago that was counted.
    pub ago_ns: u64,
    /// Whether no other can hold more: not all are looked at where there are very many.
    pub is_all: bool,
}

impl fmt::Display for Fullness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the pool is full")?;
        if self.clones == 0 {
            return write!(f, ", and has no clones: delete files or filesets");
        }
        let all = if self.clones == 1 { "1 clone" } else { &format!("{} clones", self.clones) };
        match &self.heaviest {
            None => write!(f, "; what its {all} may give back is being counted"),
            Some(heaviest) if heaviest.clones.is_empty() && !heaviest.is_all => write!(
                f,
                "; of its {all} none that is counted yet holds anything that no other has"
            ),
            Some(heaviest) if heaviest.clones.is_empty() => write!(
                f,
                "; of its {all} none holds anything that no other has: what several hold comes \
                 back with the last of them"
            ),
            Some(heaviest) => {
                let named = heaviest.clones.iter();
                let named = named.map(|it| format!("{} holds {}", it.name, Size(it.bytes)));
                let named = named.collect::<Vec<_>>().join(", ");
                let looked = if heaviest.is_all { "" } else { ", as far as they are counted" };
                write!(f, "; of its {all} these hold most alone{looked}: {named}")
            }
        }
    }
}

/// Bytes for people.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let Some((shift, unit)) = units.into_iter().find(|(shift, _)| self.0 >> shift > 0) else {
            return write!(f, "{} bytes", self.0);
        };
        let tenths = (u128::from(self.0) * 10) >> shift;
        write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

impl Scales {
    /// What the clone in `slot` held is no part of what is told any more.
    pub(super) fn forget(&self, slot: u32) {
        let mut weighed = self.weighed.lock();
        let is_named = |weighed: &Weighed| weighed.found.iter().any(|(_, it)| it.0 == slot);
        if weighed.as_ref().is_some_and(is_named) {
            *weighed = None;
        }
    }
}

impl Weighing {
    /// Takes the next clone in hand; `None`: no other can be among those that are named.
    fn take(&mut self) -> Option<(CloneId, Cursor, u64)> {
        let least = self.found.get(NAMED - 1).map_or(0, |(fragments, _)| *fragments);
        let is_planted = planted::is(Planted::WeighingStopsEarly) && self.found.len() == NAMED;
        let next = self.left.pop_front().filter(|(referenced, _)| *referenced > least);
        next.filter(|_| !is_planted).map(|(_, clone)| (clone, Cursor::START, 0))
    }

    fn note(&mut self, fragments: u64, clone: CloneId) {
        if fragments > 0 {
            self.found.push((fragments, clone));
            self.found.sort_by_key(|(fragments, clone)| (std::cmp::Reverse(*fragments), clone.0));
            self.found.truncate(NAMED);
        }
    }
}

impl Core {
    /// Somebody was refused for want of space.
    pub(super) fn note_refused(&self) {
        let now_ns = self.store.clock.monotonic_ns().saturating_add(1);
        self.scales.refused_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Returns what to say of a pool that is full; `None`: it is not.
    pub(crate) fn fullness(&self) -> FsResult<Option<Fullness>> {
        self.fullness_or(|| None)
    }

    /// As [`Core::fullness`]; what is counted so far says `so_far`, where no weighing has ended.
    fn fullness_or(&self, so_far: impl FnOnce() -> Option<Weighed>) -> FsResult<Option<Fullness>> {
        let refused_ns = self.scales.refused_ns.load(Ordering::Relaxed);
        if refused_ns == 0 || !self.is_full() {
            return Ok(None);
        }
        let weighed = self.scales.weighed.lock().clone().or_else(so_far);
        let index = self.filesets.table.lock(&self.store)?;
        let now_ns = self.store.clock.monotonic_ns();
        let fragment_shift = self.store.geometry().fragment_shift;
        let tell = |weighed: Weighed| {
            let is_there = |it: &Node| it.is_clone();
            let there = weighed.found.into_iter().filter(|(_, clone)| {
                index.node(clone.0).is_some_and(|node| node.id == clone.1 && is_there(node))
            });
            let heavy = there.map(|(fragments, clone)| HeavyClone {
                name: index.path_of(clone.0),
                bytes: fragments << fragment_shift,
            });
            let ago_ns = now_ns.saturating_sub(weighed.at_ns);
            Heaviest { clones: heavy.collect(), ago_ns, is_all: weighed.is_all }
        };
        Ok(Some(Fullness {
            refused_ago_ns: now_ns.saturating_sub(refused_ns - 1),
            clones: index.nodes().filter(|node| node.is_clone()).count(),
            heaviest: weighed.map(tell),
        }))
    }

    /// Returns what to say of a pool that has refused something right now: clones are weighed for
    /// it, as far as that is soon done. What is counted by then is told, and that it is not all.
    /// Called with no lock held.
    pub(crate) fn weigh_now(&self) -> FsResult<Option<Fullness>> {
        self.note_refused();
        let since_ns = self.store.clock.monotonic_ns();
        let waited_ns = || self.store.clock.monotonic_ns().saturating_sub(since_ns);
        for _ in 0..PARTS_AT_ONCE {
            let is_late = waited_ns() >= AT_ONCE_NS && !planted::is(Planted::WeighingKeepsWaiters);
            if is_late || !self.weigh_some()? {
                break;
            }
        }
        self.fullness_or(|| self.weighed_so_far())
    }

    /// Returns what the weighing under way has found, the clone in hand too as far as it is
    /// counted; `None`: nobody weighs, or a part is being counted.
    fn weighed_so_far(&self) -> Option<Weighed> {
        let work = self.scales.work.try_lock()?;
        let weighing = work.weighing.as_ref()?;
        let mut so_far = Weighing { found: weighing.found.clone(), ..Weighing::default() };
        if let Some((clone, _, fragments)) = weighing.at {
            so_far.note(fragments, clone);
        }
        let at_ns = self.store.clock.monotonic_ns();
        Some(Weighed { at_ns, found: so_far.found, is_all: false })
    }

    /// Whether there is less space than makes a difference.
    fn is_full(&self) -> bool {
        let space = self.store.alloc.counts();
        space.available < FULL_SEGMENTS * u64::from(self.store.geometry().segment_fragments)
    }

    /// Counts a part of what clones hold, if that is due; returns whether there is more to do.
    /// Called with no lock held.
    pub(crate) fn weigh_some(&self) -> FsResult<bool> {
        let refused_ns = self.scales.refused_ns.load(Ordering::Relaxed);
        if refused_ns == 0 {
            return Ok(false);
        }
        let Some(mut work) = self.scales.work.try_lock() else { return Ok(false) };
        let now_ns = self.store.clock.monotonic_ns();
        if work.weighing.is_none() {
            let is_known = self.scales.weighed.lock().is_some();
            let is_old = now_ns.saturating_sub(work.begun_ns) >= AGAIN_NS;
            let is_due = refused_ns > work.refused_ns && is_old || !is_known;
            if !is_due || !self.is_full() {
                return Ok(false);
            }
            let weighing = self.begin_weighing()?;
            *work = Work { begun_ns: now_ns, refused_ns, weighing: Some(weighing) };
        }
        let Some(weighing) = work.weighing.as_mut() else { return Ok(false) };
        let done = self.weigh_part(weighing);
        if done == Ok(true) || done == Err(FsError::TryLater) {
            return done;
        }
        let Weighing { found, parts, .. } = work.weighing.take().unwrap_or_default();
        let is_all = done.is_ok() && parts < PARTS_MAX;
        *self.scales.weighed.lock() = Some(Weighed { at_ns: now_ns, found, is_all });
        if let Some(full) = self.fullness()? {
            tracing::warn!("{full}");
        }
        done
    }

    fn begin_weighing(&self) -> FsResult<Weighing> {
        let mut left: Vec<_> = {
            let index = self.filesets.table.lock(&self.store)?;
            let clones = index.nodes().filter(|node| node.is_clone());
            clones.map(|node| (node.fragments, (node.slot, node.id))).collect()
        };
        left.sort_by_key(|(fragments, clone)| (std::cmp::Reverse(*fragments), clone.0));
        Ok(Weighing { left: left.into(), ..Weighing::default() })
    }

    /// Counts a part; returns whether there is more to do.
    fn weigh_part(&self, weighing: &mut Weighing) -> FsResult<bool> {
        let next = weighing.at.take().or_else(|| weighing.take());
        let Some((clone, cursor, so_far)) = next else { return Ok(false) };
        let counted = self.count_part(clone, cursor);
        if counted == Err(FsError::TryLater) {
            weighing.at = Some((clone, cursor, so_far));
        }
        match counted? {
            // It was deleted meanwhile.
            None => {}
            Some((fragments, None)) => weighing.note(so_far + fragments, clone),
            Some((fragments, Some(cursor))) => {
                weighing.at = Some((clone, cursor, so_far + fragments));
            }
        }
        weighing.parts += 1;
        Ok(weighing.parts < PARTS_MAX)
    }

    /// Counts a part of the fragments that only a clone holds, past `cursor`. Returns them, and
    /// where to go on; `None`: the clone is gone. Whoever changes a fileset that goes back to it
    /// waits meanwhile. Called with no lock held.
    ///
    /// # Errors
    ///
    /// [`FsError::TryLater`] if one of those is being opened.
    pub(super) fn count_part(
        &self,
        clone: CloneId,
        cursor: Cursor,
    ) -> FsResult<Option<(u64, Option<Cursor>)>> {
        for _ in 0..TRIES {
            let mut live: Vec<u32> = {
                let index = self.filesets.table.lock(&self.store)?;
                let children = index.children_in_family(clone.0);
                let is_written = |child: &&Node| child.is_live() || child.is_receiving();
                children.filter(is_written).map(|child| child.slot).collect()
            };
            // LOCK: by rising slot, as for a clone of several filesets.
            live.sort_unstable();
            let mut filesets = Vec::new();
            for slot in &live {
                match self.open_for_job(*slot) {
                    Ok(fileset) => filesets.push(fileset.ok_or(FsError::TryLater)?),
                    // It was deleted meanwhile.
                    Err(FsError::Stale | FsError::NotFound) => {}
                    Err(error) => return Err(error),
                }
            }
            let closed: Vec<_> = filesets.iter().map(|fileset| fileset.gate.close()).collect();
            let counted = self.filesets.table.count_own(&self.store, clone, cursor, &live)?;
            drop(closed);
            match counted {
                Counted::Part(fragments, left) => return Ok(Some((fragments, left))),
                Counted::Gone => return Ok(None),
                // A fork came meanwhile, or what a restore made.
                Counted::Open => {}
            }
        }
        Err(FsError::TryLater)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(clones: usize, heaviest: Option<Heaviest>) -> String {
        Fullness { refused_ago_ns: 0, clones, heaviest }.to_string()
    }

    /// Goal: who reads of a full pool learns what to delete, whatever is known of its clones.
    #[test]
    fn a_full_pool_is_told_in_words() {
        let heavy = |clones: &[(&str, u64)], is_all| {
            let heavy = |it: &(&str, u64)| HeavyClone { name: it.0.to_owned(), bytes: it.1 };
            Some(Heaviest { clones: clones.iter().map(heavy).collect(), ago_ns: 0, is_all })
        };
        assert!(full(0, None).ends_with("no clones: delete files or filesets"));
        assert!(full(2, None).ends_with("what its 2 clones may give back is being counted"));
        assert!(full(2, heavy(&[], true)).contains("of its 2 clones none holds anything"));
        assert!(full(2, heavy(&[], false)).contains("2 clones none that is counted yet holds"));
        let told = full(9, heavy(&[("home@a", 13_207_024_436), ("b@c", 2_097_152)], true));
        let ends =
            "of its 9 clones these hold most alone: home@a holds 12.3 GiB, b@c holds 2.0 MiB";
        assert!(told.ends_with(ends), "{told}");
        let told = full(9, heavy(&[("b@c", 1_023)], false));
        assert!(told.ends_with("alone, as far as they are counted: b@c holds 1023 bytes"));
        let told = full(1, heavy(&[("b@c", u64::MAX)], true));
        assert!(
            told.ends_with("of its 1 clone these hold most alone: b@c holds 16777215.9 TiB"),
            "{told}"
        );
    }

    /// Goal: the heaviest are found whatever the order of what is referenced, and clones that can't
    /// be among them are not looked at.
    #[test]
    fn clones_that_cannot_be_among_the_heaviest_are_not_weighed() {
        let clone = |slot| (slot, FilesetId(u64::from(slot)));
        let referenced = [90, 80, 70, 60, 50, 5].into_iter().zip(1..);
        let left = referenced.map(|(fragments, slot)| (fragments, clone(slot))).collect();
        let mut weighing = Weighing { left, ..Weighing::default() };
        for (own, expected) in [(1, 1), (0, 2), (40, 3), (6, 4), (30, 5)] {
            let (taken, cursor, so_far) = weighing.take().expect("it may be among them");
            assert_eq!((taken, cursor, so_far), (clone(expected), Cursor::START, 0));
            weighing.note(own, taken);
        }
        assert_eq!(weighing.take(), None, "the last references less than three hold alone");
        assert_eq!(weighing.found, [(40, clone(3)), (30, clone(5)), (6, clone(4))]);
    }
}

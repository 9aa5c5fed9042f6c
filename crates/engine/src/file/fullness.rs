//! The weigher: finds the snapshots of a full pool whose single deletion would free most.
//!
//! Policy: a weighing follows a refusal for lack of space, at most one in [`AGAIN_NS`] unless a
//! reported snapshot was deleted. Snapshots are weighed in falling order of referenced space. None
//! frees more than it references, so the weighing ends when each of [`NAMED`] snapshots frees at
//! least what the next one references, or after [`PARTS_MAX`] parts. The result is kept, and
//! reported with its age.
//!
//! # Concurrency
//!
//! The weighing's lock is held while a part is counted. It comes before all other locks, and is
//! only tried. Snapshots deleted between parts are omitted.

use crate::file::SpaceReclaim;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use format::fileset::Cursor;
use format::ids::FilesetId;

use crate::error::{FsError, FsResult};
use crate::fileset_table::deletion::UnsharedCount;
use crate::fileset_table::table::FilesetNode;
use crate::sync::Mutex;

/// A pool that has refused a change is full while less than this is available.
const FULL_SEGMENTS: u64 = 4;
const NAMED: usize = 3;
const AGAIN_NS: u64 = 60_000_000_000;
/// Most parts of a weighing, of some thousand pointers each.
const PARTS_MAX: u32 = 4096;
const PARTS_AT_ONCE: u32 = 256;
/// Longest wait of a caller, plus a part in progress, which may take long on disks. Bounded, since
/// the status socket has one thread.
const AT_ONCE_NS: u64 = 1_000_000_000;
/// Attempts to count a part, if clones of the snapshot are created at the same time.
const TRIES: usize = 8;

/// Slot and id of a snapshot, since slots are reused.
type SnapshotId = (u32, FilesetId);

#[derive(Debug, Default)]
pub(crate) struct SnapshotWeighing {
    /// Time of the last refusal plus 1 ns; 0 for none.
    refused_ns: AtomicU64,
    work: Mutex<WeighingState>,
    weighed: Mutex<Option<WeighingResult>>,
}

#[derive(Debug, Default)]
struct WeighingState {
    begun_ns: u64,
    /// Refusal that started the last weighing.
    refused_ns: u64,
    weighing: Option<WeighingProgress>,
}

#[derive(Debug, Default)]
struct WeighingProgress {
    /// Snapshots left, with referenced fragments, largest first.
    left: VecDeque<(u64, SnapshotId)>,
    /// Current snapshot, its cursor, and its fragments so far.
    at: Option<(SnapshotId, Cursor, u64)>,
    found: Vec<(u64, SnapshotId)>,
    parts: u32,
}

#[derive(Clone, Debug)]
struct WeighingResult {
    at_ns: u64,
    found: Vec<(u64, SnapshotId)>,
    is_all: bool,
}

/// A snapshot's unshared space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeavySnapshot {
    /// Name: fileset, `@`, snapshot.
    pub name: String,
    /// Bytes that its deletion alone would free.
    pub bytes: u64,
}

/// A full pool: a change was refused, and there is still hardly any space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fullness {
    /// Time since the last refusal.
    pub refused_ago_ns: u64,
    /// Number of snapshots.
    pub snapshots: usize,
    /// The heaviest snapshots; `None` before the first weighing.
    pub heaviest: Option<Heaviest>,
}

/// Result of a weighing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heaviest {
    /// Up to three snapshots, largest first, none empty.
    pub snapshots: Vec<HeavySnapshot>,
    /// Time since the weighing.
    pub ago_ns: u64,
    /// Whether all snapshots were considered.
    pub is_all: bool,
}

impl fmt::Display for Fullness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the pool is full")?;
        if self.snapshots == 0 {
            return write!(f, ", and has no snapshots: delete files or filesets");
        }
        let all = if self.snapshots == 1 {
            "1 snapshot"
        } else {
            &format!("{} snapshots", self.snapshots)
        };
        match &self.heaviest {
            None => write!(f, "; what its {all} may give back is being counted"),
            Some(heaviest) if heaviest.snapshots.is_empty() && !heaviest.is_all => write!(
                f,
                "; of its {all} none that is counted yet holds anything that no other has"
            ),
            Some(heaviest) if heaviest.snapshots.is_empty() => write!(
                f,
                "; of its {all} none holds anything that no other has: what several hold comes \
                 back with the last of them"
            ),
            Some(heaviest) => {
                let named = heaviest.snapshots.iter();
                let named = named.map(|it| format!("{} holds {}", it.name, BinarySize(it.bytes)));
                let named = named.collect::<Vec<_>>().join(", ");
                let looked = if heaviest.is_all { "" } else { ", as far as they are counted" };
                write!(f, "; of its {all} these hold most alone{looked}: {named}")
            }
        }
    }
}

struct BinarySize(u64);

impl fmt::Display for BinarySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let Some((shift, unit)) = units.into_iter().find(|(shift, _)| self.0 >> shift > 0) else {
            return write!(f, "{} bytes", self.0);
        };
        let tenths = (u128::from(self.0) * 10) >> shift;
        write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

impl SnapshotWeighing {
    pub(crate) fn forget(&self, slot: u32) {
        let mut weighed = self.weighed.lock();
        let is_named = |weighed: &WeighingResult| weighed.found.iter().any(|(_, it)| it.0 == slot);
        if weighed.as_ref().is_some_and(is_named) {
            *weighed = None;
        }
    }
}

impl WeighingProgress {
    /// Takes the next snapshot; `None` if no other can be among the heaviest.
    fn take(&mut self) -> Option<(SnapshotId, Cursor, u64)> {
        let least = self.found.get(NAMED - 1).map_or(0, |(fragments, _)| *fragments);
        let next = self.left.pop_front().filter(|(referenced, _)| *referenced > least);
        next.map(|(_, snapshot)| (snapshot, Cursor::START, 0))
    }

    fn note(&mut self, fragments: u64, snapshot: SnapshotId) {
        if fragments > 0 {
            self.found.push((fragments, snapshot));
            self.found
                .sort_by_key(|(fragments, snapshot)| (std::cmp::Reverse(*fragments), snapshot.0));
            self.found.truncate(NAMED);
        }
    }
}

impl SpaceReclaim<'_> {
    pub(super) fn note_refused(&self) {
        let now_ns = self.store.clock.monotonic_ns().saturating_add(1);
        self.scales.refused_ns.store(now_ns, Ordering::Relaxed);
    }

    pub(crate) fn fullness(&self) -> FsResult<Option<Fullness>> {
        self.fullness_or(|| None)
    }

    /// Returns the state of a full pool, with `so_far` for a missing result.
    fn fullness_or(
        &self,
        so_far: impl FnOnce() -> Option<WeighingResult>,
    ) -> FsResult<Option<Fullness>> {
        let refused_ns = self.scales.refused_ns.load(Ordering::Relaxed);
        if refused_ns == 0 || !self.is_full() {
            return Ok(None);
        }
        let weighed = self.scales.weighed.lock().clone().or_else(so_far);
        let index = self.filesets.table.lock(&self.store)?;
        let now_ns = self.store.clock.monotonic_ns();
        let fragment_shift = self.store.geometry().fragment_shift;
        let tell = |weighed: WeighingResult| {
            let is_there = |it: &FilesetNode| it.is_snapshot();
            let there = weighed.found.into_iter().filter(|(_, snapshot)| {
                index.node(snapshot.0).is_some_and(|node| node.id == snapshot.1 && is_there(node))
            });
            let heavy = there.map(|(fragments, snapshot)| HeavySnapshot {
                name: index.path_of(snapshot.0),
                bytes: fragments << fragment_shift,
            });
            let ago_ns = now_ns.saturating_sub(weighed.at_ns);
            Heaviest { snapshots: heavy.collect(), ago_ns, is_all: weighed.is_all }
        };
        Ok(Some(Fullness {
            refused_ago_ns: now_ns.saturating_sub(refused_ns - 1),
            snapshots: index.nodes().filter(|node| node.is_snapshot()).count(),
            heaviest: weighed.map(tell),
        }))
    }

    /// Notes a refusal, weighs for a short time, and returns a possibly partial result. Called with
    /// no lock held.
    pub(crate) fn weigh_now(&self) -> FsResult<Option<Fullness>> {
        self.note_refused();
        let since_ns = self.store.clock.monotonic_ns();
        let waited_ns = || self.store.clock.monotonic_ns().saturating_sub(since_ns);
        for _ in 0..PARTS_AT_ONCE {
            let is_late = waited_ns() >= AT_ONCE_NS;
            if is_late || !self.weigh_some()? {
                break;
            }
        }
        self.fullness_or(|| self.weighed_so_far())
    }

    /// Returns the partial result; `None` without a weighing in progress, or if its lock is held.
    fn weighed_so_far(&self) -> Option<WeighingResult> {
        let work = self.scales.work.try_lock()?;
        let weighing = work.weighing.as_ref()?;
        let mut so_far =
            WeighingProgress { found: weighing.found.clone(), ..WeighingProgress::default() };
        if let Some((snapshot, _, fragments)) = weighing.at {
            so_far.note(fragments, snapshot);
        }
        let at_ns = self.store.clock.monotonic_ns();
        Some(WeighingResult { at_ns, found: so_far.found, is_all: false })
    }

    fn is_full(&self) -> bool {
        let space = self.store.alloc.counts();
        space.available < FULL_SEGMENTS * u64::from(self.store.geometry().segment_fragments)
    }

    /// Counts a part, if a weighing is due. Returns whether there is more. Called with no lock
    /// held.
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
            *work = WeighingState { begun_ns: now_ns, refused_ns, weighing: Some(weighing) };
        }
        let Some(weighing) = work.weighing.as_mut() else { return Ok(false) };
        let done = self.weigh_part(weighing);
        if done == Ok(true) || done == Err(FsError::TryLater) {
            return done;
        }
        let WeighingProgress { found, parts, .. } = work.weighing.take().unwrap_or_default();
        let is_all = done.is_ok() && parts < PARTS_MAX;
        *self.scales.weighed.lock() = Some(WeighingResult { at_ns: now_ns, found, is_all });
        if let Some(full) = self.fullness()? {
            tracing::warn!("{full}");
        }
        done
    }

    fn begin_weighing(&self) -> FsResult<WeighingProgress> {
        let mut left: Vec<_> = {
            let index = self.filesets.table.lock(&self.store)?;
            let snapshots = index.nodes().filter(|node| node.is_snapshot());
            snapshots.map(|node| (node.fragments, (node.slot, node.id))).collect()
        };
        left.sort_by_key(|(fragments, snapshot)| (std::cmp::Reverse(*fragments), snapshot.0));
        Ok(WeighingProgress { left: left.into(), ..WeighingProgress::default() })
    }

    fn weigh_part(&self, weighing: &mut WeighingProgress) -> FsResult<bool> {
        let next = weighing.at.take().or_else(|| weighing.take());
        let Some((snapshot, cursor, so_far)) = next else { return Ok(false) };
        let counted = self.count_part(snapshot, cursor);
        if counted == Err(FsError::TryLater) {
            weighing.at = Some((snapshot, cursor, so_far));
        }
        match counted? {
            // The snapshot was deleted since it was listed.
            None => {}
            Some((fragments, None)) => weighing.note(so_far + fragments, snapshot),
            Some((fragments, Some(cursor))) => {
                weighing.at = Some((snapshot, cursor, so_far + fragments));
            }
        }
        weighing.parts += 1;
        Ok(weighing.parts < PARTS_MAX)
    }

    /// Counts a part of the fragments that only a snapshot holds, from `cursor` on. Returns the
    /// count and the next cursor; `None` if the snapshot is gone. Closes the gates of the
    /// snapshot's successors. Called with no lock held.
    ///
    /// # Errors
    ///
    /// [`FsError::TryLater`] while a successor is being opened: retry.
    pub(crate) fn count_part(
        &self,
        snapshot: SnapshotId,
        cursor: Cursor,
    ) -> FsResult<Option<(u64, Option<Cursor>)>> {
        for _ in 0..TRIES {
            let mut live: Vec<u32> = {
                let index = self.filesets.table.lock(&self.store)?;
                let children = index.children_in_family(snapshot.0);
                let is_written = |child: &&FilesetNode| child.is_live() || child.is_receiving();
                children.filter(is_written).map(|child| child.slot).collect()
            };
            // LOCK: filesets by rising slot.
            live.sort_unstable();
            let mut filesets = Vec::new();
            for slot in &live {
                match self.open_for_job(*slot) {
                    Ok(fileset) => filesets.push(fileset.ok_or(FsError::TryLater)?),
                    // The fileset was deleted since it was listed.
                    Err(FsError::Stale | FsError::NotFound) => {}
                    Err(error) => return Err(error),
                }
            }
            let closed: Vec<_> = filesets.iter().map(|fileset| fileset.gate.close()).collect();
            let counted = self.filesets.table.count_own(&self.store, snapshot, cursor, &live)?;
            drop(closed);
            match counted {
                UnsharedCount::Part(fragments, left) => return Ok(Some((fragments, left))),
                UnsharedCount::Gone => return Ok(None),
                // A clone or a restored fileset was created since the successors were listed.
                UnsharedCount::Open => {}
            }
        }
        Err(FsError::TryLater)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(snapshots: usize, heaviest: Option<Heaviest>) -> String {
        Fullness { refused_ago_ns: 0, snapshots, heaviest }.to_string()
    }

    #[test]
    fn a_full_pool_is_told_in_words() {
        let heavy = |snapshots: &[(&str, u64)], is_all| {
            let heavy = |it: &(&str, u64)| HeavySnapshot { name: it.0.to_owned(), bytes: it.1 };
            Some(Heaviest { snapshots: snapshots.iter().map(heavy).collect(), ago_ns: 0, is_all })
        };
        assert!(full(0, None).ends_with("no snapshots: delete files or filesets"));
        assert!(full(2, None).ends_with("what its 2 snapshots may give back is being counted"));
        assert!(full(2, heavy(&[], true)).contains("of its 2 snapshots none holds anything"));
        assert!(full(2, heavy(&[], false)).contains("2 snapshots none that is counted yet holds"));
        let told = full(9, heavy(&[("home@a", 13_207_024_436), ("b@c", 2_097_152)], true));
        let ends =
            "of its 9 snapshots these hold most alone: home@a holds 12.3 GiB, b@c holds 2.0 MiB";
        assert!(told.ends_with(ends), "{told}");
        let told = full(9, heavy(&[("b@c", 1_023)], false));
        assert!(told.ends_with("alone, as far as they are counted: b@c holds 1023 bytes"));
        let told = full(1, heavy(&[("b@c", u64::MAX)], true));
        assert!(
            told.ends_with("of its 1 snapshot these hold most alone: b@c holds 16777215.9 TiB"),
            "{told}"
        );
    }

    /// Goal: the result does not depend on the order of referenced space, and light snapshots are
    /// skipped.
    #[test]
    fn snapshots_that_cannot_be_among_the_heaviest_are_not_weighed() {
        let take_snapshot = |slot| (slot, FilesetId(u64::from(slot)));
        let referenced = [90, 80, 70, 60, 50, 5].into_iter().zip(1..);
        let left = referenced.map(|(fragments, slot)| (fragments, take_snapshot(slot))).collect();
        let mut weighing = WeighingProgress { left, ..WeighingProgress::default() };
        for (own, expected) in [(1, 1), (0, 2), (40, 3), (6, 4), (30, 5)] {
            let (taken, cursor, so_far) = weighing.take().expect("it may be among them");
            assert_eq!((taken, cursor, so_far), (take_snapshot(expected), Cursor::START, 0));
            weighing.note(own, taken);
        }
        assert_eq!(weighing.take(), None, "the last references less than three hold alone");
        assert_eq!(
            weighing.found,
            [(40, take_snapshot(3)), (30, take_snapshot(5)), (6, take_snapshot(4))]
        );
    }
}

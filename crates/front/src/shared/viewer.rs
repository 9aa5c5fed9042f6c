//! The files that one mount's kernel must revalidate.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engine::api::Ino;
use parking_lot::{Condvar, Mutex};
use runtime::clock::Clock;

/// Most queued invalidations for the kernel. On overflow the queue is emptied.
pub const NOTICES_MAX: usize = 4096;
/// Most files remembered as changed per [`CHANGED_TIME_NS`]. On overflow every file counts as
/// changed.
pub const CHANGED_MAX: usize = 32 << 10;
/// Most threads remembered as sent back by ESTALE to repeat a lookup.
pub const ASKED_MAX: usize = 16 << 10;
/// Lifetime of such a thread's record, longer than a kernel's lookup takes. A record of an ended
/// thread is never used.
pub const ASKED_TIME_NS: u64 = 60_000_000_000;
/// Shortest time between searches for expired thread records.
const SWEEP_TIME_NS: u64 = 1_000_000_000;
/// Least time that a file counts as changed (at most twice as long). Longer than a kernel caches a
/// name.
pub const CHANGED_TIME_NS: u64 = 3_000_000_000;

/// Longest wait of an open for an invalidation in flight.
const NOTICE_TIME_MAX: Duration = Duration::from_millis(100);

/// Counters of a viewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewerCounts {
    /// Invalidations sent to the kernel.
    pub notices: u64,
    /// Invalidations queued or in flight.
    pub waiting: u64,
    /// Sum of the delays from a change to the end of its invalidation.
    pub delay_ns: u64,
    /// Overflows of the invalidation queue.
    pub overflows: u64,
    /// Opens refused, so that the kernel repeats the lookup.
    pub opens_again: u64,
}

/// Changes by other fronts that concern one mount.
#[derive(Debug)]
pub struct Viewer {
    root: Ino,
    clock: Arc<dyn Clock>,
    count: Arc<AtomicUsize>,
    known: Mutex<ViewerState>,
    has_news: Condvar,
    is_told: Condvar,
}

#[derive(Debug, Default)]
struct ViewerState {
    /// Queued invalidations with the time of the change, oldest first, each inode once.
    notices: VecDeque<(Ino, u64)>,
    waiting: HashSet<Ino>,
    in_flight: Option<Ino>,
    changed: RecentChanges,
    /// Threads that must repeat a lookup, by thread id.
    asked: HashMap<u32, RepeatedLookup>,
    swept_ns: u64,
    /// Notices were lost. The kernel keeps attributes for less than the time until this.
    lost_until_ns: u64,
    /// Files that were taken off the queue and of which the kernel may not know yet, with the time:
    /// a lookup is repeated, or the caller of [`Viewer::is_untold`] sends the notice.
    untold: HashMap<Ino, u64>,
    told: ViewerCounts,
    is_over: bool,
}

/// A thread that must repeat a lookup, and the inode that it is expected to open.
#[derive(Clone, Copy, Debug)]
struct RepeatedLookup {
    ino: Ino,
    since_ns: u64,
}

impl RepeatedLookup {
    fn is_over(self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.since_ns) >= ASKED_TIME_NS
    }
}

/// Files recently changed by other fronts, in two periods of [`CHANGED_TIME_NS`].
#[derive(Debug, Default)]
struct RecentChanges {
    /// Changed in the current period, since `turned_ns`.
    young: HashSet<Ino>,
    /// Changed in the period before.
    old: HashSet<Ino>,
    turned_ns: u64,
    /// Every file counts as changed until this time.
    all_until_ns: u64,
}

impl RecentChanges {
    fn turn(&mut self, now_ns: u64) {
        let since = now_ns.saturating_sub(self.turned_ns);
        if since >= CHANGED_TIME_NS {
            let young = std::mem::take(&mut self.young);
            self.old = if since < 2 * CHANGED_TIME_NS { young } else { HashSet::new() };
            self.turned_ns = now_ns;
        }
    }

    fn add(&mut self, ino: Ino, now_ns: u64) {
        self.turn(now_ns);
        if self.young.len() < CHANGED_MAX {
            self.young.insert(ino);
        } else if !self.young.contains(&ino) {
            self.all_until_ns = now_ns.saturating_add(CHANGED_TIME_NS);
        }
    }

    fn has(&mut self, ino: Ino, now_ns: u64) -> bool {
        self.turn(now_ns);
        now_ns < self.all_until_ns || self.young.contains(&ino) || self.old.contains(&ino)
    }
}

impl Viewer {
    pub(super) fn new(root: Ino, clock: Arc<dyn Clock>, count: Arc<AtomicUsize>) -> Viewer {
        count.fetch_add(1, Ordering::AcqRel);
        let (known, has_news, is_told) = (Mutex::default(), Condvar::new(), Condvar::new());
        Viewer { root, clock, count, known, has_news, is_told }
    }

    pub(super) fn root(&self) -> Ino {
        self.root
    }

    /// Records inodes changed by another front, or former targets of a name it changed.
    pub(super) fn changed(&self, inos: &[Ino]) {
        let now_ns = self.clock.monotonic_ns();
        let mut known = self.known.lock();
        for ino in inos {
            known.changed.add(*ino, now_ns);
            known.add_notice(*ino, now_ns);
        }
        self.has_news.notify_one();
    }

    /// Returns whether `thread` may open a file from the kernel's cached entry.
    ///
    /// `false` if another front has recently changed the file, but only once per open: the kernel
    /// then repeats lookup and open, and would pass a second refusal to the program.
    #[must_use]
    pub fn lets_open(&self, ino: Ino, thread: u32) -> bool {
        let now_ns = self.clock.monotonic_ns();
        let mut known = self.known.lock();
        // A thread opens one file at a time, so its earlier record is no longer needed.
        let asked = known.asked.remove(&thread).filter(|asked| !asked.is_over(now_ns));
        let was_asked = asked.is_some_and(|asked| asked.ino == ino);
        if !known.changed.has(ino, now_ns) {
            return true;
        }
        if was_asked || thread == 0 || !known.can_ask(now_ns) {
            // A refusal would not help: an open through a descriptor repeats no lookup. An
            // invalidation follows instead.
            known.add_notice(ino, now_ns);
            self.has_news.notify_one();
            return true;
        }
        known.asked.insert(thread, RepeatedLookup { ino, since_ns: now_ns });
        known.told.opens_again += 1;
        // No invalidation may overtake the reply of the repeated lookup: the kernel would drop that
        // reply and keep the old size.
        if known.drop_notice(ino) {
            known.note_untold(ino, now_ns);
        }
        if known.in_flight == Some(ino) {
            let _ = self.is_told.wait_for(&mut known, NOTICE_TIME_MAX);
        }
        false
    }

    /// Returns whether the caller must invalidate the attributes of `ino` before a lock of it is
    /// granted: another front has changed the file, and the kernel has not been told. It is not
    /// told by [`Viewer::tell_each`] then.
    ///
    /// `false` if the kernel knows of all changes. An invalidation that is not needed harms: the
    /// kernel drops replies to GETATTR of processes that were granted a lock just before.
    pub fn is_untold(&self, ino: Ino) -> bool {
        let now_ns = self.clock.monotonic_ns();
        let mut known = self.known.lock();
        if known.drop_notice(ino) {
            known.note_untold(ino, now_ns);
        }
        if known.in_flight == Some(ino) {
            let _ = self.is_told.wait_for(&mut known, NOTICE_TIME_MAX);
        }
        let since_ns = known.untold.get(&ino).copied();
        let is_untold = since_ns.is_some_and(|since| now_ns.saturating_sub(since) < ASKED_TIME_NS);
        is_untold || now_ns < known.lost_until_ns
    }

    /// Records that the kernel has been told of `ino`, after [`Viewer::is_untold`] at `since_ns` of
    /// [`Viewer::now_ns`].
    pub fn was_told(&self, ino: Ino, since_ns: u64) {
        let mut known = self.known.lock();
        if known.untold.get(&ino).is_some_and(|noted| *noted <= since_ns) {
            known.untold.remove(&ino);
        }
    }

    /// Returns the time now.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    /// Records that `thread` must repeat its lookup of `ino`, for another reason than a change.
    pub fn send_back(&self, thread: u32, ino: Ino) {
        let now_ns = self.clock.monotonic_ns();
        let mut known = self.known.lock();
        if thread != 0 && known.can_ask(now_ns) {
            known.asked.insert(thread, RepeatedLookup { ino, since_ns: now_ns });
        }
    }

    /// Records the inode found by a lookup of `thread`. If the lookup is repeated, the thread opens
    /// this inode next.
    pub fn looked_up(&self, thread: u32, found: Option<Ino>) {
        let mut known = self.known.lock();
        let ViewerState { asked, .. } = &mut *known;
        match (asked.get_mut(&thread), found) {
            (Some(kept), Some(found)) => kept.ino = found,
            (Some(_), None) => drop(asked.remove(&thread)),
            (None, _) => {}
        }
    }

    /// Calls `tell` for each file to invalidate, until [`Viewer::end`]. `tell` may block, since no
    /// lock is held.
    pub fn tell_each(&self, tell: &mut dyn FnMut(Ino)) {
        let mut known = self.known.lock();
        loop {
            if known.is_over {
                return;
            }
            let Some((ino, since_ns)) = known.notices.pop_front() else {
                self.has_news.wait(&mut known);
                continue;
            };
            known.waiting.remove(&ino);
            known.in_flight = Some(ino);
            drop(known);
            tell(ino);
            let delay_ns = self.clock.monotonic_ns().saturating_sub(since_ns);
            known = self.known.lock();
            known.in_flight = None;
            known.told.notices += 1;
            known.told.delay_ns = known.told.delay_ns.saturating_add(delay_ns);
            self.is_told.notify_all();
        }
    }

    /// Makes [`Viewer::tell_each`] return, at once and on later calls.
    pub fn end(&self) {
        self.known.lock().is_over = true;
        self.has_news.notify_all();
    }

    /// Returns the counters.
    #[must_use]
    pub fn told(&self) -> ViewerCounts {
        let known = self.known.lock();
        let waiting = known.notices.len() + usize::from(known.in_flight.is_some());
        ViewerCounts { waiting: u64::try_from(waiting).unwrap_or(u64::MAX), ..known.told }
    }
}

impl ViewerState {
    /// SH3: limits the remembered threads.
    fn can_ask(&mut self, now_ns: u64) -> bool {
        let is_full = self.asked.len() >= ASKED_MAX;
        if is_full && now_ns.saturating_sub(self.swept_ns) >= SWEEP_TIME_NS {
            self.asked.retain(|_, asked| !asked.is_over(now_ns));
            self.swept_ns = now_ns;
        }
        self.asked.len() < ASKED_MAX
    }

    fn add_notice(&mut self, ino: Ino, now_ns: u64) {
        if self.waiting.contains(&ino) {
            return;
        }
        if self.notices.len() >= NOTICES_MAX {
            self.notices.clear();
            self.waiting.clear();
            self.told.overflows += 1;
            self.lost_until_ns = now_ns.saturating_add(CHANGED_TIME_NS);
        }
        self.notices.push_back((ino, now_ns));
        self.waiting.insert(ino);
    }

    /// Takes `ino` off the queue. Returns whether it was there.
    fn drop_notice(&mut self, ino: Ino) -> bool {
        let was_there = self.waiting.remove(&ino);
        if was_there {
            self.notices.retain(|(other, _)| *other != ino);
        }
        was_there
    }

    /// SH3: past the bound, every file counts as untold for a while.
    fn note_untold(&mut self, ino: Ino, now_ns: u64) {
        if self.untold.len() >= ASKED_MAX {
            self.untold.clear();
            self.lost_until_ns = now_ns.saturating_add(CHANGED_TIME_NS);
        }
        self.untold.insert(ino, now_ns);
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use runtime::clock::ManualClock;

    use super::super::SharedFilesets;
    use super::*;

    /// Goal: the delay of invalidations is measured. Method: a kernel that takes 5 ms for each.
    #[test]
    fn what_waits_and_how_long_is_counted() {
        let clock = Arc::new(ManualClock::new());
        let viewer = SharedFilesets::new(Arc::<ManualClock>::clone(&clock)).join(Ino(32));
        viewer.changed(&[Ino(33), Ino(34), Ino(33)]);
        assert_eq!(viewer.told(), ViewerCounts { waiting: 2, ..ViewerCounts::default() });
        let mut waiting = Vec::new();
        viewer.tell_each(&mut |ino| {
            waiting.push(viewer.told().waiting);
            clock.advance_ns(5_000_000);
            if ino == Ino(34) {
                viewer.end();
            }
        });
        assert_eq!(waiting, [2, 1]);
        let expected = ViewerCounts { notices: 2, delay_ns: 15_000_000, ..ViewerCounts::default() };
        assert_eq!(viewer.told(), expected);
    }
}

//! What one mount must ask again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engine::vnode::api::Ino;
use parking_lot::{Condvar, Mutex};
use runtime::clock::Clock;

/// Most files of which the kernel is yet to be told. With more it is told of none of them.
pub const NOTICES_MAX: usize = 4096;
/// Most files of [`CHANGED_TIME_NS`] that are known as changed. With more all are taken to be.
pub const CHANGED_MAX: usize = 32 << 10;
/// Most threads that are to look a file up again.
pub const ASKED_MAX: usize = 16 << 10;
/// How long a thread is waited for that is to: longer than a kernel takes for a look-up. One that
/// has ended never comes.
pub const ASKED_TIME_NS: u64 = 60_000_000_000;
/// How often it is looked, while there are so many, which of them come no more.
const SWEEP_TIME_NS: u64 = 1_000_000_000;
/// How long a file is known as changed, and up to twice that: longer than a kernel keeps a name.
pub const CHANGED_TIME_NS: u64 = 3_000_000_000;

/// How long an open waits for a notice that is on its way.
const NOTICE_TIME_MAX: Duration = Duration::from_millis(100);

/// What a viewer was told, for statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Notices that went to the kernel.
    pub notices: u64,
    /// Files of which it is yet to be told.
    pub waiting: u64,
    /// How long after the changes the kernel had its notices, all together.
    pub delay_ns: u64,
    /// How often there were too many of them.
    pub overflows: u64,
    /// Opens that were sent back to look the file up again.
    pub opens_again: u64,
}

/// One who is shown a fileset.
#[derive(Debug)]
pub struct Viewer {
    root: Ino,
    clock: Arc<dyn Clock>,
    count: Arc<AtomicUsize>,
    known: Mutex<Known>,
    /// There is something to tell, or it is over.
    has_news: Condvar,
    /// A notice has gone out.
    is_told: Condvar,
}

#[derive(Debug, Default)]
struct Known {
    /// What the kernel is to be told, and since when, the oldest first, each once.
    notices: VecDeque<(Ino, u64)>,
    waiting: HashSet<Ino>,
    /// What it is being told.
    in_flight: Option<Ino>,
    changed: Changed,
    /// The threads that were sent back to look up again what they open, and what each has found.
    asked: HashMap<u32, Asked>,
    swept_ns: u64,
    told: Told,
    is_over: bool,
}

/// What a thread that was sent back is to open.
#[derive(Clone, Copy, Debug)]
struct Asked {
    ino: Ino,
    since_ns: u64,
}

impl Asked {
    fn is_over(self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.since_ns) >= ASKED_TIME_NS
    }
}

/// The files that others have changed of late.
#[derive(Debug, Default)]
struct Changed {
    /// Since `turned_ns`.
    young: HashSet<Ino>,
    /// In the time before.
    old: HashSet<Ino>,
    turned_ns: u64,
    /// Until when every file is taken to be changed.
    all_until_ns: u64,
}

impl Changed {
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

    /// Notes that somebody else has changed a file, or where a name leads that led to it.
    pub(super) fn changed(&self, inos: &[Ino]) {
        let now_ns = self.clock.monotonic_ns();
        let mut known = self.known.lock();
        for ino in inos {
            known.changed.add(*ino, now_ns);
            known.add_notice(*ino, now_ns);
        }
        self.has_news.notify_one();
    }

    /// Returns whether `thread` may open a file as the kernel remembers it. If others have changed
    /// it of late it may not, once: it is to look it up again, and is let in then. A second refusal
    /// the kernel would pass on to the program.
    #[must_use]
    pub fn lets_open(&self, ino: Ino, thread: u32) -> bool {
        let now_ns = self.clock.monotonic_ns();
        let mut known = self.known.lock();
        // A thread opens one file at a time, so what it was sent back for before is over.
        let asked = known.asked.remove(&thread).filter(|asked| !asked.is_over(now_ns));
        let was_asked = asked.is_some_and(|asked| asked.ino == ino);
        if !known.changed.has(ino, now_ns) {
            return true;
        }
        if was_asked || thread == 0 || !known.can_ask(now_ns) {
            // Who opens by a descriptor looks nothing up.
            known.add_notice(ino, now_ns);
            self.has_news.notify_one();
            return true;
        }
        known.asked.insert(thread, Asked { ino, since_ns: now_ns });
        known.told.opens_again += 1;
        // A notice that goes out while the answer to a look-up is on its way would have the kernel
        // drop that answer, and keep the size that it had.
        known.drop_notice(ino);
        if known.in_flight == Some(ino) {
            let _ = self.is_told.wait_for(&mut known, NOTICE_TIME_MAX);
        }
        false
    }

    /// Notes that `thread` is sent back to look up what it opens, for a reason of the caller's.
    pub fn send_back(&self, thread: u32, ino: Ino) {
        let now_ns = self.clock.monotonic_ns();
        let mut known = self.known.lock();
        if thread != 0 && known.can_ask(now_ns) {
            known.asked.insert(thread, Asked { ino, since_ns: now_ns });
        }
    }

    /// Notes what `thread` has found: of one that was sent back, what it will open, or that there
    /// is nothing to open.
    pub fn looked_up(&self, thread: u32, found: Option<Ino>) {
        let mut known = self.known.lock();
        let Known { asked, .. } = &mut *known;
        match (asked.get_mut(&thread), found) {
            (Some(kept), Some(found)) => kept.ino = found,
            (Some(_), None) => drop(asked.remove(&thread)),
            (None, _) => {}
        }
    }

    /// Calls `tell` for each file whose attributes are to be asked for again, until
    /// [`Viewer::end`]. It may wait: nothing is locked meanwhile.
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

    /// Has [`Viewer::tell_each`] return, now and later.
    pub fn end(&self) {
        self.known.lock().is_over = true;
        self.has_news.notify_all();
    }

    /// Returns what it was told.
    #[must_use]
    pub fn told(&self) -> Told {
        let known = self.known.lock();
        let waiting = known.notices.len() + usize::from(known.in_flight.is_some());
        Told { waiting: u64::try_from(waiting).unwrap_or(u64::MAX), ..known.told }
    }
}

impl Known {
    /// Whether there is room for one more thread that is to look a file up again.
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
        }
        self.notices.push_back((ino, now_ns));
        self.waiting.insert(ino);
    }

    fn drop_notice(&mut self, ino: Ino) {
        if self.waiting.remove(&ino) {
            self.notices.retain(|(other, _)| *other != ino);
        }
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

    use super::super::Shares;
    use super::*;

    /// Goal: how far a kernel is behind is known. Method: a kernel that takes 5 ms for a notice.
    #[test]
    fn what_waits_and_how_long_is_counted() {
        let clock = Arc::new(ManualClock::new());
        let viewer = Shares::new(Arc::<ManualClock>::clone(&clock)).join(Ino(32));
        viewer.changed(&[Ino(33), Ino(34), Ino(33)]);
        assert_eq!(viewer.told(), Told { waiting: 2, ..Told::default() });
        let mut waiting = Vec::new();
        viewer.tell_each(&mut |ino| {
            waiting.push(viewer.told().waiting);
            clock.advance_ns(5_000_000);
            if ino == Ino(34) {
                viewer.end();
            }
        });
        assert_eq!(waiting, [2, 1]);
        let expected = Told { notices: 2, delay_ns: 15_000_000, ..Told::default() };
        assert_eq!(viewer.told(), expected);
    }
}

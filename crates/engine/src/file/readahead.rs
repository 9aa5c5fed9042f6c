//! Readahead of inodes for listings with attributes.
//!
//! Names are in hash order, so each next inode may be on another page. After a reply, while the
//! program processes it, the thread reads the inode pages for the next reply, and the directory
//! pages for the reply after that ([`Files::read_ahead`]).
//!
//! Readahead is only a hint: a listing reads the attributes itself. If a page is missing, the
//! listing reads it again and reports the error.
//!
//! # Bounds
//!
//! A readahead is for a quarter more names than the last reply had, but at most one for each eight
//! pages of the cache. There is none after the first reply of a directory, where most listings end.
//! At most [`READERS_MAX`] threads read. One range of names waits, and a later one replaces it.
//!
//! # Concurrency
//!
//! No lock is held during I/O, so a hanging device does not block the directory. A concurrent
//! change makes the reads useless, and nothing else. A listing waits while its range is read ahead,
//! for at most three device deadlines (`storage::device`), instead of reading the same pages.

use std::sync::atomic::{AtomicBool, Ordering};

use format::directory::hash_in;
use format::ids::AnodeNo;

use crate::dir;
use crate::file::Files;
use crate::file::names::directory;
use crate::sync::{Condvar, Mutex};

/// Most threads that read ahead, of the mount's four or more, so that others serve requests.
const READERS_MAX: usize = 2;
const CACHE_SHARE: usize = 8;
/// Divisor of the names in the last reply, for the additional names of a readahead.
const MORE_SHARE: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListingRange {
    pub(crate) directory: AnodeNo,
    pub(crate) after: u64,
    pub(crate) count: usize,
}

impl ListingRange {
    fn begins_at(&self, directory: AnodeNo, after: u64) -> bool {
        (self.directory, self.after) == (directory, after)
    }
}

#[derive(Debug, Default)]
pub(crate) struct InodeReadahead {
    state: Mutex<InodeReadaheadState>,
    ended: Condvar,
    /// Whether `waiting` is set, readable without the lock.
    has_waiting: AtomicBool,
}

#[derive(Debug, Default)]
struct InodeReadaheadState {
    waiting: Option<ListingRange>,
    being_read: Vec<ListingRange>,
}

struct InodeReadaheadGuard<'a> {
    readahead: &'a InodeReadahead,
    stretch: ListingRange,
}

impl Drop for InodeReadaheadGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.readahead.state.lock();
        if let Some(at) = state.being_read.iter().position(|stretch| *stretch == self.stretch) {
            state.being_read.swap_remove(at);
        }
        self.readahead.ended.notify_all();
    }
}

impl InodeReadahead {
    pub(crate) fn note(&self, stretch: ListingRange) {
        self.state.lock().waiting = Some(stretch);
        self.has_waiting.store(true, Ordering::Release);
    }

    fn has_waiting(&self) -> bool {
        self.has_waiting.load(Ordering::Acquire)
    }

    fn begin(&self) -> Option<InodeReadaheadGuard<'_>> {
        if !self.has_waiting() {
            return None;
        }
        let mut state = self.state.lock();
        self.has_waiting.store(false, Ordering::Release);
        let stretch = state.waiting.take().filter(|_| state.being_read.len() < READERS_MAX)?;
        state.being_read.push(stretch);
        Some(InodeReadaheadGuard { readahead: self, stretch })
    }

    /// Called by a listing from `after` on: cancels a waiting readahead of that range, and waits
    /// for one in progress.
    pub(crate) fn arrive(&self, directory: AnodeNo, after: u64) {
        let is_here = |stretch: &ListingRange| stretch.begins_at(directory, after);
        let mut state = self.state.lock();
        state.waiting = state.waiting.take().filter(|stretch| !is_here(stretch));
        while state.being_read.iter().any(is_here) {
            self.ended.wait(&mut state);
        }
    }
}

impl Files<'_> {
    pub(crate) fn has_read_ahead_to_do(&self) -> bool {
        self.fileset.readahead.has_waiting()
    }

    /// Reads the inodes for the next listing. Called with no lock held, after a reply.
    pub(crate) fn read_ahead(&self) {
        let Some(reading) = self.fileset.readahead.begin() else { return };
        let ListingRange { directory: number, mut after, count } = reading.stretch;
        let most = self.store.cache.limit_pages() / CACHE_SHARE;
        let count = (count + count / MORE_SHARE).min(most);
        // A copy of the anode, so that no lock is held during I/O.
        let Some(vnode) = self.table.find(self.ino(number)) else { return };
        let Ok(anode) = directory(&vnode.state.read()).cloned() else { return };
        let (mut numbers, mut pages) = (Vec::with_capacity(count), 1);
        while numbers.len() < count {
            let Ok(listed) = dir::list_after(&self.store, &anode, after) else { return };
            let Some(last) = listed.last() else { break };
            after = last.cookie;
            numbers.extend(listed.iter().map(|name| name.target.anode));
            pages += 1;
        }
        numbers.truncate(most);
        numbers.retain(|number| self.table.find(self.ino(*number)).is_none());
        let inodes = self.fileset.anodes.places_of(&self.store, numbers.into_iter());
        // As many directory pages, so that the next call finds its names in the cache.
        let names = dir::pages_from(&self.store, &anode, hash_in(after), pages);
        self.store.cache.bring_in(inodes.iter().chain(names).collect());
    }
}

//! Reading the inodes that a listing with attributes will ask for next.
//!
//! A program that lists a long directory digests an answer and then asks for the next. Names come
//! in the order of their hashes, so each of the next ones may have its inode on another page. These
//! pages are brought into memory behind the answer ([`Files::read_ahead`]), while the program
//! digests it, by the thread that has given it. With them come the pages of the names that follow.
//!
//! What is read ahead is a hint: attributes are read when they are told. A page that can't be read,
//! or was evicted since, is read again by the listing, which tells why it can't be.
//!
//! # Bounds
//!
//! As many names as the last answer had and a quarter more, for names differ in length, and at most
//! one for each eight pages that the cache may hold. Nothing is read behind the first answer of a
//! directory, after which most are at their end, or their reader has seen enough. At most
//! [`READERS_MAX`] threads read; one more stretch waits for its thread, and the next one takes its
//! place.
//!
//! # Concurrency
//!
//! No lock is held while a device is waited for, the directory's neither: a device that does not
//! answer keeps nobody from it. The pages of the directory are looked through as they are found; if
//! somebody changes it meanwhile, other inodes than the next are read, or none. A listing that
//! comes to a stretch while it is being read waits for its end, three deadlines of the device at
//! most (`storage::device`): by itself it would read the same pages again.

use std::sync::atomic::{AtomicBool, Ordering};

use format::directory::hash_in;
use format::ids::AnodeNo;

use super::Files;
use super::names::directory;
use crate::dir;
use crate::sync::{Condvar, Mutex};

/// Most threads that read ahead at a time: the fewest that serve a mount are four.
const READERS_MAX: usize = 2;
/// Of the pages that the cache may hold, the part that may be read ahead at a time.
const CACHE_SHARE: usize = 8;
/// Of the names of an answer, the part that is read ahead beyond as many.
const MORE_SHARE: usize = 4;

/// The names of a directory from a place on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) directory: AnodeNo,
    /// Cookie of the last name before them.
    pub(crate) after: u64,
    /// How many names.
    pub(crate) count: usize,
}

impl Stretch {
    fn begins_at(&self, directory: AnodeNo, after: u64) -> bool {
        (self.directory, self.after) == (directory, after)
    }
}

/// What is to be read ahead, and what is being read.
#[derive(Debug, Default)]
pub(crate) struct Readahead {
    state: Mutex<State>,
    /// One of those that are being read has ended.
    ended: Condvar,
    /// Whether one waits: so nobody locks to find none.
    has_waiting: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    waiting: Option<Stretch>,
    being_read: Vec<Stretch>,
}

/// A stretch that is being read, until this is dropped.
struct Reading<'a> {
    readahead: &'a Readahead,
    stretch: Stretch,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.readahead.state.lock();
        if let Some(at) = state.being_read.iter().position(|stretch| *stretch == self.stretch) {
            state.being_read.swap_remove(at);
        }
        self.readahead.ended.notify_all();
    }
}

impl Readahead {
    /// Notes what will be asked for next.
    pub(crate) fn note(&self, stretch: Stretch) {
        self.state.lock().waiting = Some(stretch);
        self.has_waiting.store(true, Ordering::Release);
    }

    /// Returns whether anything is to be read ahead.
    fn has_waiting(&self) -> bool {
        self.has_waiting.load(Ordering::Acquire)
    }

    fn begin(&self) -> Option<Reading<'_>> {
        if !self.has_waiting() {
            return None;
        }
        let mut state = self.state.lock();
        self.has_waiting.store(false, Ordering::Release);
        let stretch = state.waiting.take().filter(|_| state.being_read.len() < READERS_MAX)?;
        state.being_read.push(stretch);
        Some(Reading { readahead: self, stretch })
    }

    /// Waits while the names of `directory` after a cookie are being read ahead. If nobody has
    /// begun to, nobody will.
    pub(crate) fn arrive(&self, directory: AnodeNo, after: u64) {
        let is_here = |stretch: &Stretch| stretch.begins_at(directory, after);
        let mut state = self.state.lock();
        state.waiting = state.waiting.take().filter(|stretch| !is_here(stretch));
        while state.being_read.iter().any(is_here) {
            self.ended.wait(&mut state);
        }
    }
}

impl Files<'_> {
    /// Returns whether [`Files::read_ahead`] has anything to do.
    pub(crate) fn has_read_ahead_to_do(&self) -> bool {
        self.fileset.readahead.has_waiting()
    }

    /// Reads what the last listings will ask for next. Called with no lock held, and with nobody
    /// waiting.
    pub(crate) fn read_ahead(&self) {
        let Some(reading) = self.fileset.readahead.begin() else { return };
        let Stretch { directory: number, mut after, count } = reading.stretch;
        let most = self.store.cache.limit_pages() / CACHE_SHARE;
        let count = (count + count / MORE_SHARE).min(most);
        // A copy: see the module's header.
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
        // As many names again, for whoever reads ahead next: one after the other takes longer.
        let names = dir::pages_from(&self.store, &anode, hash_in(after), pages);
        self.store.cache.bring_in(inodes.iter().chain(names).collect());
    }
}

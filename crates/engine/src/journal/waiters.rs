//! The list of commit waiters (the rules are in `commit`).

use format::ids::Lsn;
use runtime::planted::{self, Planted};

use crate::error::Completion;

/// Most waiters that have a completion callback.
pub(super) const CALLBACKS_MAX: usize = 1024;

/// The classes that callers want durable, until each caller has left or its callback has run: as
/// many as threads that block, and [`CALLBACKS_MAX`].
#[derive(Default)]
pub(super) struct CommitWaiters {
    /// The oldest first.
    all: Vec<CommitWaiter>,
    next: u64,
    /// How many of them have a callback.
    callbacks: usize,
    /// Whether somebody runs the callbacks.
    pub(super) has_leader: bool,
    /// What the next write of the log is delayed for.
    pub(super) delay: CommitDelay,
}

/// How many waiters are likely to be there at some time.
#[derive(Clone, Copy, Default)]
pub(super) struct CommitDelay {
    pub(super) expected: usize,
    pub(super) until_ns: u64,
}

struct CommitWaiter {
    id: WaiterId,
    class: u64,
    /// Where the chunk ends that has its commit at the latest, once that is closed.
    end: Option<Lsn>,
    /// What is called when it is served, if no thread blocks for it.
    callback: Option<Completion>,
}

/// CommitWaiters are numbered in the order in which they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaiterId(u64);

impl std::fmt::Debug for CommitWaiters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitWaiters").field("callbacks", &self.callbacks).finish_non_exhaustive()
    }
}

impl CommitWaiters {
    /// Adds a waiter. `end` if its class is closed already.
    pub(super) fn add(
        &mut self,
        class: u64,
        end: Option<Lsn>,
        callback: Option<Completion>,
    ) -> WaiterId {
        self.next += 1;
        self.callbacks += usize::from(callback.is_some());
        let id = WaiterId(self.next);
        self.all.push(CommitWaiter { id, class, end, callback });
        id
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns how many have a callback.
    pub(super) fn callbacks(&self) -> usize {
        self.callbacks
    }

    /// Returns whether as many have come as the delay is for.
    pub(super) fn is_delay_over(&self) -> bool {
        self.callbacks >= self.delay.expected
    }

    /// Returns whether a callback can run: that of a waiter that ends at `durable` or before it.
    pub(super) fn is_any_served(&self, durable: Lsn) -> bool {
        self.first_end().is_some_and(|end| end <= durable)
    }

    /// Returns where the first waiter with a callback ends, of those whose class is closed.
    pub(super) fn first_end(&self) -> Option<Lsn> {
        self.all
            .iter()
            .filter(|waiter| waiter.callback.is_some())
            .filter_map(|waiter| waiter.end)
            .min()
    }

    /// Takes out a waiter that ends at `durable` or before it; returns its callback.
    pub(super) fn take_served(&mut self, durable: Lsn) -> Option<Completion> {
        let is_early = planted::is(Planted::SyncCompletedEarly);
        self.take_callback(|waiter| is_early || waiter.end.is_some_and(|end| end <= durable))
    }

    /// Takes out any waiter with a callback; returns that.
    pub(super) fn take_any(&mut self) -> Option<Completion> {
        self.take_callback(|_| true)
    }

    fn take_callback(&mut self, is_over: impl Fn(&CommitWaiter) -> bool) -> Option<Completion> {
        let is_it = |waiter: &CommitWaiter| waiter.callback.is_some() && is_over(waiter);
        let at = self.all.iter().position(is_it)?;
        self.callbacks -= 1;
        self.all.remove(at).callback
    }

    /// Takes out a waiter without a callback.
    pub(super) fn remove(&mut self, id: WaiterId) {
        self.all.retain(|waiter| waiter.id != id);
    }

    /// Returns up to where the log must be durable for this waiter, once that is known.
    pub(super) fn end_of(&self, id: WaiterId) -> Option<Lsn> {
        self.all.iter().find(|waiter| waiter.id == id)?.end
    }

    /// Returns the classes that nobody has closed for their waiters, and the last waiter.
    pub(super) fn classes(&self) -> (Vec<u64>, WaiterId) {
        let open = self.all.iter().filter(|waiter| waiter.end.is_none());
        (open.map(|waiter| waiter.class).collect(), WaiterId(self.next))
    }

    /// Returns whether there is a waiter whose class nobody has closed for it.
    pub(super) fn are_open(&self) -> bool {
        self.all.iter().any(|waiter| waiter.end.is_none())
    }

    /// The classes of the waiters up to `last` are closed, and the log is complete up to `end`.
    pub(super) fn serve(&mut self, last: WaiterId, end: Lsn) {
        let is_closed = |waiter: &&mut CommitWaiter| waiter.end.is_none() && waiter.id <= last;
        for waiter in self.all.iter_mut().filter(is_closed) {
            waiter.end = Some(end);
        }
    }
}

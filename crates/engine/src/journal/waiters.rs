//! The list of commit waiters. The rules W1 to W4 are in `commit`.

use format::ids::Lsn;
use runtime::planted;

use crate::error::Completion;

pub(super) const CALLBACKS_MAX: usize = 1024;

/// Commit waiters. Each is listed until its thread has left, or its callback is taken out to run.
/// Bounded by the blocked threads plus [`CALLBACKS_MAX`].
#[derive(Default)]
pub(super) struct CommitWaiters {
    all: Vec<CommitWaiter>,
    next: u64,
    callbacks: usize,
    /// Whether a thread runs the callbacks.
    pub(super) has_leader: bool,
    pub(super) delay: CommitDelay,
}

/// A commit delay: ends when `expected` callbacks wait, or at `until_ns`.
#[derive(Clone, Copy, Default)]
pub(super) struct CommitDelay {
    pub(super) expected: usize,
    pub(super) until_ns: u64,
}

struct CommitWaiter {
    id: WaiterId,
    class: u64,
    /// The log must be durable up to this position. `None` until the waiter's class is closed.
    end: Option<Lsn>,
    callback: Option<Completion>,
}

/// Number of a waiter, in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaiterId(u64);

impl std::fmt::Debug for CommitWaiters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitWaiters").field("callbacks", &self.callbacks).finish_non_exhaustive()
    }
}

impl CommitWaiters {
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

    pub(super) fn callbacks(&self) -> usize {
        self.callbacks
    }

    pub(super) fn is_delay_over(&self) -> bool {
        self.callbacks >= self.delay.expected
    }

    /// Returns whether the log is durable up to the end of a waiter with a callback.
    pub(super) fn is_any_served(&self, durable: Lsn) -> bool {
        self.first_end().is_some_and(|end| end <= durable)
    }

    /// Returns the lowest end of the waiters with a callback and a closed class.
    pub(super) fn first_end(&self) -> Option<Lsn> {
        self.all
            .iter()
            .filter(|waiter| waiter.callback.is_some())
            .filter_map(|waiter| waiter.end)
            .min()
    }

    /// Takes out the oldest waiter with a callback whose `end` is durable. Returns the callback.
    pub(super) fn take_served(&mut self, durable: Lsn) -> Option<Completion> {
        let is_served = |waiter: &CommitWaiter| waiter.end.is_some_and(|end| end <= durable);
        self.take_callback(|waiter| is_served(waiter) || planted!(SyncCompletedEarly))
    }

    pub(super) fn take_any(&mut self) -> Option<Completion> {
        self.take_callback(|_| true)
    }

    fn take_callback(&mut self, is_over: impl Fn(&CommitWaiter) -> bool) -> Option<Completion> {
        let is_it = |waiter: &CommitWaiter| waiter.callback.is_some() && is_over(waiter);
        let at = self.all.iter().position(is_it)?;
        self.callbacks -= 1;
        self.all.remove(at).callback
    }

    pub(super) fn remove(&mut self, id: WaiterId) {
        self.all.retain(|waiter| waiter.id != id);
    }

    /// Returns the waiter's end, once its class is closed.
    pub(super) fn end_of(&self, id: WaiterId) -> Option<Lsn> {
        self.all.iter().find(|waiter| waiter.id == id)?.end
    }

    /// Returns the classes of waiters without an `end`, and the id of the newest waiter.
    pub(super) fn classes(&self) -> (Vec<u64>, WaiterId) {
        let open = self.all.iter().filter(|waiter| waiter.end.is_none());
        (open.map(|waiter| waiter.class).collect(), WaiterId(self.next))
    }

    pub(super) fn are_open(&self) -> bool {
        self.all.iter().any(|waiter| waiter.end.is_none())
    }

    /// Sets `end` for the waiters up to `last` that have none: their classes are closed.
    pub(super) fn serve(&mut self, last: WaiterId, end: Lsn) {
        let is_closed = |waiter: &&mut CommitWaiter| waiter.end.is_none() && waiter.id <= last;
        for waiter in self.all.iter_mut().filter(is_closed) {
            waiter.end = Some(end);
        }
    }
}

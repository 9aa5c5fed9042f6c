//! The list of what callers wish to be durable (the rules are in `commit`).

use format::ids::Lsn;
use format::planted::{self, Planted};

use crate::error::Told;

/// Most wishes of which somebody is to be told.
pub(super) const TOLD_MAX: usize = 1024;

/// The classes that callers wish to be durable, until each has left or was told: as many as threads
/// that wait, and [`TOLD_MAX`].
#[derive(Default)]
pub(super) struct Wishes {
    /// The oldest first.
    all: Vec<Wish>,
    next: u64,
    /// How many of them are to be told.
    to_tell: usize,
    /// Whether somebody tells them.
    pub(super) has_keeper: bool,
    /// Who is waited for.
    pub(super) company: Company,
}

/// How many are likely to be there at some time.
#[derive(Clone, Copy, Default)]
pub(super) struct Company {
    pub(super) expected: usize,
    pub(super) until_ns: u64,
}

struct Wish {
    id: WishId,
    class: u64,
    /// Where the chunk ends that has its commit at the latest, once that is closed.
    end: Option<Lsn>,
    /// Who is told, if nobody waits.
    told: Option<Told>,
}

/// Wishes are numbered in the order in which they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WishId(u64);

impl std::fmt::Debug for Wishes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wishes").field("to_tell", &self.to_tell).finish_non_exhaustive()
    }
}

impl Wishes {
    /// Adds a wish. `end` if its class is closed already.
    pub(super) fn add(&mut self, class: u64, end: Option<Lsn>, told: Option<Told>) -> WishId {
        self.next += 1;
        self.to_tell += usize::from(told.is_some());
        let id = WishId(self.next);
        self.all.push(Wish { id, class, end, told });
        id
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns how many are to be told.
    pub(super) fn to_tell(&self) -> usize {
        self.to_tell
    }

    /// Returns whether as many have come as are waited for.
    pub(super) fn is_company_there(&self) -> bool {
        self.to_tell >= self.company.expected
    }

    /// Returns whether somebody can be told of a wish that ends at `durable` or before it.
    pub(super) fn are_served(&self, durable: Lsn) -> bool {
        self.first_to_tell().is_some_and(|end| end <= durable)
    }

    /// Returns where the first wish ends of which somebody is to be told, of those that are closed.
    pub(super) fn first_to_tell(&self) -> Option<Lsn> {
        self.all.iter().filter(|wish| wish.told.is_some()).filter_map(|wish| wish.end).min()
    }

    /// Takes out one who is to be told of a wish that ends at `durable` or before it.
    pub(super) fn take_served(&mut self, durable: Lsn) -> Option<Told> {
        let is_early = planted::is(Planted::SyncToldEarly);
        self.take_told(|wish| is_early || wish.end.is_some_and(|end| end <= durable))
    }

    /// Takes out one who is to be told of any wish.
    pub(super) fn take_any(&mut self) -> Option<Told> {
        self.take_told(|_| true)
    }

    fn take_told(&mut self, is_over: impl Fn(&Wish) -> bool) -> Option<Told> {
        let is_it = |wish: &Wish| wish.told.is_some() && is_over(wish);
        let at = self.all.iter().position(is_it)?;
        self.to_tell -= 1;
        self.all.remove(at).told
    }

    /// Takes out a wish of which nobody is to be told.
    pub(super) fn remove(&mut self, id: WishId) {
        self.all.retain(|wish| wish.id != id);
    }

    /// Returns up to where the log must be durable for this wish, once that is known.
    pub(super) fn end_of(&self, id: WishId) -> Option<Lsn> {
        self.all.iter().find(|wish| wish.id == id)?.end
    }

    /// Returns the classes that nobody has closed for those who wish it, and the last wish.
    pub(super) fn classes(&self) -> (Vec<u64>, WishId) {
        let open = self.all.iter().filter(|wish| wish.end.is_none());
        (open.map(|wish| wish.class).collect(), WishId(self.next))
    }

    /// Returns whether there is a wish whose class nobody has closed for it.
    pub(super) fn are_open(&self) -> bool {
        self.all.iter().any(|wish| wish.end.is_none())
    }

    /// The classes of the wishes up to `last` are closed, and the log is complete up to `end`.
    pub(super) fn fulfil(&mut self, last: WishId, end: Lsn) {
        let is_closed = |wish: &&mut Wish| wish.end.is_none() && wish.id <= last;
        for wish in self.all.iter_mut().filter(is_closed) {
            wish.end = Some(end);
        }
    }
}

//! How often what happens to pools with members has happened.

use std::sync::atomic::{AtomicU64, Ordering};

/// What happens beside the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A device became a spare.
    SpareAdded,
    /// A spare took the place of a member.
    SpareTaken,
    /// A disk group became longer.
    Lengthened,
    /// A scrub began.
    ScrubBegun,
    /// A scrub came to its end.
    ScrubEnded,
    /// Scrubs that came to their end and had mended something.
    Mended,
    /// A member did not answer by its deadline.
    Stalled,
    /// A raid5 or stripe began to get a member more.
    Widening,
    /// A raid5 or stripe began to lose a member.
    Narrowing,
    /// A disk group has all its segments in rows of its new width.
    Reshaped,
    /// A member was taken back that nothing lay on, and that was missing.
    TakenBack,
    /// A round-robin got a member.
    LaneAdded,
    /// A member of a round-robin began to leave.
    LaneLeaving,
    /// The last device of the journal had failed, and it was rebuilt.
    JournalLost,
    /// Another disk group became the main one.
    MainMoved,
    /// The disk group that a pool was made with has left, with all that it was made on.
    FirstLeft,
}

const EVENTS: [Event; 16] = [
    Event::SpareAdded,
    Event::SpareTaken,
    Event::Lengthened,
    Event::ScrubBegun,
    Event::ScrubEnded,
    Event::Mended,
    Event::Stalled,
    Event::Widening,
    Event::Narrowing,
    Event::Reshaped,
    Event::TakenBack,
    Event::LaneAdded,
    Event::LaneLeaving,
    Event::JournalLost,
    Event::MainMoved,
    Event::FirstLeft,
];

fn index_of(event: Event) -> usize {
    EVENTS.iter().position(|it| *it == event).expect("all are listed")
}

/// Counts them while they happen.
#[derive(Debug, Default)]
pub struct EventTally([AtomicU64; EVENTS.len()]);

impl EventTally {
    /// Counts one.
    pub fn count(&self, event: Event) {
        self.0[index_of(event)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often each has happened.
    #[must_use]
    pub fn all(&self) -> Events {
        Events(std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }
}

/// How often each has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events([u64; EVENTS.len()]);

impl Events {
    /// Returns how often `event` has.
    #[must_use]
    pub fn of(&self, event: Event) -> u64 {
        self.0[index_of(event)]
    }

    /// Adds what another run has seen.
    pub fn add(&mut self, other: &Events) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }
}

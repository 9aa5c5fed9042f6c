//! Requests to several members, which are answered as one; whoever has not done what it was asked
//! fails before that.
//!
//! A write ends when all members have answered, what has failed is settled and the missed marks are
//! durable. The first thread that waits for it does that: its caller, or a job that wants the range
//! ([`MemberSet::try_hold`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use format::members::MemberState;
use runtime::planted::{self, Planted};

use super::{MemberSet, Standing, View};
use crate::device::{Completion, DeviceError, Operation, PendingRequest, Purpose, Ticket};
use crate::volume::ranges::InFlight;
use crate::volume::shared_ticket::SharedTicket;

/// Requests to several members.
struct Together {
    set: Arc<MemberSet>,
    view: View,
    tickets: Vec<(usize, Ticket)>,
    /// Ends when the last has been answered, and whoever failed was told of.
    in_flight: Option<InFlight>,
    /// Its number, if it is a flush.
    flush: Option<u64>,
}

impl PendingRequest for Together {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        let Together { set, view, tickets, in_flight, flush } = *self;
        let mut failed = Vec::new();
        let mut is_first = true;
        for (at, ticket) in tickets {
            if planted::is(Planted::OneCopyAcknowledged) && !is_first {
                break;
            }
            is_first = false;
            let answer =
                ticket.wait().and_then(|_| flush.map_or(Ok(()), |it| view[at].note_flushed(it)));
            failed.extend(answer.err().map(|error| (at, error)));
        }
        let mut settled = set.settle(&view, failed);
        if let (Ok(()), Some(in_flight)) = (&settled, &in_flight) {
            // CRASH: durable before the write is answered (MS5).
            settled = set.note_missed(&in_flight.parts());
        }
        drop(in_flight);
        settled.map(|()| Completion::default())
    }
}

impl MemberSet {
    /// Returns one ticket for requests to several members, each with its slot in `view`: it is
    /// answered when all are. A member that did not do what it was asked fails before that (MS1).
    #[must_use]
    pub fn together(
        self: &Arc<MemberSet>,
        view: &View,
        tickets: Vec<(usize, Ticket)>,
        in_flight: Option<InFlight>,
    ) -> Ticket {
        let (set, view) = (Arc::clone(self), Arc::clone(view));
        let Some(in_flight) = in_flight else {
            return Ticket::new(Box::new(Together { set, view, tickets, in_flight, flush: None }));
        };
        let shared = SharedTicket::of(|own| {
            in_flight.ends_with(own);
            let in_flight = Some(in_flight);
            Ticket::new(Box::new(Together { set, view, tickets, in_flight, flush: None }))
        });
        shared.ticket()
    }

    /// Makes every write answered so far durable, on every member.
    pub fn submit_flush(self: &Arc<MemberSet>, purpose: Purpose) -> Ticket {
        let flush = Some(self.ranges.begin_flush());
        let view = self.view();
        let tickets = (0..).zip(view.iter()).filter(|(_, slot)| slot.writable().is_some());
        let tickets = tickets.map(|(at, slot)| (at, self.submit(slot, purpose, Operation::Flush)));
        let tickets: Vec<_> = tickets.collect();
        let set = Arc::clone(self);
        Ticket::new(Box::new(Together { set, view, tickets, in_flight: None, flush }))
    }

    /// Fails the members that `failed` names. Where too few would remain none of them fails: the
    /// pool stops as a whole, and none is worse than the others.
    fn settle(&self, view: &View, failed: Vec<(usize, DeviceError)>) -> Result<(), DeviceError> {
        let Some((_, first)) = failed.first() else { return Ok(()) };
        if *self.standing.read() == Standing::Gone {
            return Ok(());
        }
        let now = self.view();
        let is_same = |at: &usize| {
            now.get(*at).zip(view.get(*at)).is_some_and(|(slot, seen)| {
                slot.stay() == seen.stay() && slot.state == MemberState::Online
            })
        };
        // One that was asked for several things is one.
        let lost: BTreeSet<usize> = failed.iter().map(|(at, _)| *at).filter(is_same).collect();
        if !lost.is_empty() && self.online_but(&now, &lost) < self.needed() {
            self.loses(first);
            return Err(first.clone());
        }
        for (at, error) in failed {
            if let Some(member) = view.get(at) {
                self.fail(at, member, error)?;
            }
        }
        Ok(())
    }
}

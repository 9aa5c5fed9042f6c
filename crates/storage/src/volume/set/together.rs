//! Requests to several members with one answer.
//!
//! A write completes when all members have answered, failed ones are marked, and stale parts are
//! durable. Whichever thread waits first does this: the caller, or a job that needs the range
//! ([`MemberSet::try_hold`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use format::members::MemberState;
use runtime::planted;

use super::{MemberSet, MemberSetState, MemberView};
use crate::device::{
    DeviceCompletion, DeviceError, DeviceOperation, IoPurpose, PendingRequest, Ticket,
};
use crate::volume::ranges::InFlightWrite;
use crate::volume::shared_ticket::SharedTicket;

struct MultiMemberRequest {
    set: Arc<MemberSet>,
    view: MemberView,
    tickets: Vec<(usize, Ticket)>,
    /// Dropped only when all answers are settled.
    in_flight: Option<InFlightWrite>,
    flush: Option<u64>,
}

impl PendingRequest for MultiMemberRequest {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        let MultiMemberRequest { set, view, tickets, in_flight, flush } = *self;
        let mut failed = Vec::new();
        let awaited = if planted!(OneCopyAcknowledged) { 1 } else { tickets.len() };
        for (at, ticket) in tickets.into_iter().take(awaited) {
            let answer =
                ticket.wait().and_then(|_| flush.map_or(Ok(()), |it| view[at].note_flushed(it)));
            failed.extend(answer.err().map(|error| (at, error)));
        }
        let mut settled = set.settle(&view, failed);
        if let (Ok(()), Some(in_flight)) = (&settled, &in_flight) {
            // CRASH: stale parts are durable before the write completes (MS5).
            settled = set.note_missed(&in_flight.parts());
        }
        drop(in_flight);
        settled.map(|()| DeviceCompletion::default())
    }
}

impl MemberSet {
    /// Combines requests to members, by own slot, into one ticket. A member that fails its request
    /// is marked failed before the ticket completes (MS1).
    #[must_use]
    pub fn together(
        self: &Arc<MemberSet>,
        view: &MemberView,
        tickets: Vec<(usize, Ticket)>,
        in_flight: Option<InFlightWrite>,
    ) -> Ticket {
        let (set, view) = (Arc::clone(self), Arc::clone(view));
        let Some(in_flight) = in_flight else {
            return Ticket::new(Box::new(MultiMemberRequest {
                set,
                view,
                tickets,
                in_flight,
                flush: None,
            }));
        };
        let shared = SharedTicket::of(|own| {
            in_flight.ends_with(own);
            let in_flight = Some(in_flight);
            Ticket::new(Box::new(MultiMemberRequest { set, view, tickets, in_flight, flush: None }))
        });
        shared.ticket()
    }

    /// Starts to make every completed write durable, on every member.
    pub fn submit_flush(self: &Arc<MemberSet>, purpose: IoPurpose) -> Ticket {
        let flush = Some(self.ranges.begin_flush());
        let view = self.view();
        let tickets = (0..).zip(view.iter()).filter(|(_, slot)| slot.writable().is_some());
        let tickets =
            tickets.map(|(at, slot)| (at, self.submit(slot, purpose, DeviceOperation::Flush)));
        let tickets: Vec<_> = tickets.collect();
        let set = Arc::clone(self);
        Ticket::new(Box::new(MultiMemberRequest { set, view, tickets, in_flight: None, flush }))
    }

    /// Fails the members in `failed`. If too few would remain, fails none: the pool then stops, and
    /// all its members have the same labels.
    fn settle(
        &self,
        view: &MemberView,
        failed: Vec<(usize, DeviceError)>,
    ) -> Result<(), DeviceError> {
        let Some((_, first)) = failed.first() else { return Ok(()) };
        if *self.standing.read() == MemberSetState::Gone {
            return Ok(());
        }
        let now = self.view();
        let is_same = |at: &usize| {
            now.get(*at).zip(view.get(*at)).is_some_and(|(slot, seen)| {
                slot.stay() == seen.stay() && slot.state == MemberState::Online
            })
        };
        // A member may have failed several requests.
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

//! Duplicate request cache.
//!
//! A client retransmits a request if the reply is late or the connection is lost. Reads are
//! executed again. Replies to changes are cached here (C. Juszczak, *Improving the performance and
//! correctness of an NFS server*, 1989).
//!
//! # Invariants
//! - DR1: A request in progress is not executed a second time. Its reply goes to the connection of
//!   the latest retransmission.
//! - DR2: At most [`ENTRIES_MAX`] replies are cached, each for at most [`KEPT_TIME`]. Replies to
//!   changes are short, so this is some MiB. On overflow the oldest replies of the address with the
//!   most are dropped, so that a busy client loses its own replies first.
//!
//! Not here: which requests are cached (`service`: only those that an export admits).
//!
//! # Crashes
//! The cache is lost. A retransmission after a restart is executed again.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use runtime::{if_planted, planted};

use super::handle::HandleKey;
use super::service::ReplySink;

/// Lifetime of a reply, longer than the retransmission timeout of clients.
const KEPT_TIME: Duration = Duration::from_secs(120);
const ENTRIES_MAX: usize = 32 << 10;
/// An address's replies divided by this are dropped on overflow. Dropping several makes the search
/// for the largest address rare.
const FORGOTTEN_PART: usize = 8;
/// Shortest time between searches of all addresses for expired replies.
const SWEEP_TIME: Duration = Duration::from_secs(10);
const SUMMED_BYTES: usize = 512;

/// Identity of a request. The xid alone is not unique, as clients restart theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestKey {
    peer: SocketAddr,
    xid: u32,
    program: u32,
    procedure: u32,
    length: usize,
    checksum: u64,
}

impl RequestKey {
    pub(super) fn new(
        peer: SocketAddr,
        (xid, program, procedure): (u32, u32, u32),
        record: &[u8],
    ) -> RequestKey {
        let front = &record[..record.len().min(SUMMED_BYTES)];
        let front = if planted!(DuplicateWithoutChecksum) { &[] } else { front };
        let checksum = HandleKey([0; 16]).hash(front);
        RequestKey { peer, xid, program, procedure, length: record.len(), checksum }
    }
}

enum DuplicateEntry {
    Busy(Arc<dyn ReplySink>),
    Done(Vec<u8>),
}

pub(super) enum RequestArrival {
    /// A new request. The caller must execute and end it.
    New(RequestInProgress),
    Busy,
    Done(Vec<u8>),
}

#[derive(Default)]
struct Requests {
    entries: HashMap<RequestKey, DuplicateEntry>,
    /// Finished requests by address, oldest first.
    done: HashMap<IpAddr, VecDeque<(Instant, RequestKey)>>,
    done_count: usize,
    /// Last search of all addresses for expired replies.
    swept: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Duplicates {
    requests: Mutex<Requests>,
}

/// A request in progress. If dropped without a reply, a retransmission is executed.
pub(super) struct RequestInProgress {
    of: Arc<Duplicates>,
    key: RequestKey,
}

impl Duplicates {
    pub(super) fn arrive(
        self: &Arc<Duplicates>,
        key: RequestKey,
        sink: &Arc<dyn ReplySink>,
    ) -> RequestArrival {
        let mut requests = self.requests.lock();
        requests.drop_old(key.peer.ip(), Instant::now());
        match requests.entries.get_mut(&key) {
            Some(DuplicateEntry::Done(reply)) => RequestArrival::Done(reply.clone()),
            Some(DuplicateEntry::Busy(waiting)) => {
                // DR1: the earlier connection may be closed.
                std::mem::replace(waiting, Arc::clone(sink)).forgo();
                RequestArrival::Busy
            }
            None => {
                requests.entries.insert(key, DuplicateEntry::Busy(Arc::clone(sink)));
                RequestArrival::New(RequestInProgress { of: Arc::clone(self), key })
            }
        }
    }
}

impl Requests {
    /// DR2: drops the expired replies of an address.
    fn drop_old(&mut self, address: IpAddr, now: Instant) {
        let Requests { entries, done, done_count, .. } = self;
        let Some(queue) = done.get_mut(&address) else { return };
        let is_old =
            |&(since, _): &(Instant, RequestKey)| now.saturating_duration_since(since) > KEPT_TIME;
        let old_count = queue.iter().take_while(|done| is_old(done)).count();
        for (_, key) in queue.drain(..old_count) {
            entries.remove(&key);
        }
        *done_count -= old_count;
        if queue.is_empty() {
            done.remove(&address);
        }
    }

    fn note_done(&mut self, key: RequestKey, now: Instant) {
        self.done.entry(key.peer.ip()).or_default().push_back((now, key));
        self.done_count += 1;
        if self.done_count > ENTRIES_MAX {
            self.make_room(now);
        }
    }

    /// DR2: drops expired replies, then replies of the address with the most.
    fn make_room(&mut self, now: Instant) {
        let is_due = |since| now.saturating_duration_since(since) > SWEEP_TIME;
        if self.swept.is_none_or(is_due) {
            self.swept = Some(now);
            let addresses: Vec<IpAddr> = self.done.keys().copied().collect();
            addresses.into_iter().for_each(|address| self.drop_old(address, now));
        }
        if self.done_count <= ENTRIES_MAX {
            return;
        }
        let Requests { entries, done, done_count, .. } = self;
        let Some(most) = done.values_mut().max_by_key(|queue| queue.len()) else { return };
        let count = most.len().div_ceil(FORGOTTEN_PART);
        for (_, key) in most.drain(..count) {
            entries.remove(&key);
        }
        *done_count -= count;
        done.retain(|_, queue| !queue.is_empty());
    }
}

impl RequestInProgress {
    pub(super) fn end(self, reply: Vec<u8>) {
        let mut requests = self.of.requests.lock();
        let waiting = requests.entries.insert(self.key, DuplicateEntry::Done(reply.clone()));
        requests.note_done(self.key, Instant::now());
        if_planted!(DuplicateForgotten, requests.entries.remove(&self.key));
        drop(requests);
        if let Some(DuplicateEntry::Busy(sink)) = waiting {
            sink.send(reply);
        }
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        let mut requests = self.of.requests.lock();
        if matches!(requests.entries.get(&self.key), Some(DuplicateEntry::Busy(_))) {
            requests.entries.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct ReplyRecorder(Mutex<Vec<Vec<u8>>>);

    impl ReplySink for ReplyRecorder {
        fn send(&self, reply: Vec<u8>) {
            self.0.lock().push(reply);
        }
    }

    fn key(xid: u32, record: &[u8]) -> RequestKey {
        key_from(1, xid, record)
    }

    fn key_from(last: u8, xid: u32, record: &[u8]) -> RequestKey {
        RequestKey::new(([127, 0, 0, last], 900).into(), (xid, 100_003, 8), record)
    }

    #[test]
    fn a_request_is_done_once_and_answered_where_it_was_asked_last() {
        let requests = Arc::new(Duplicates::default());
        let kept: [Arc<ReplyRecorder>; 2] = Default::default();
        let sinks = kept.clone().map(|kept| -> Arc<dyn ReplySink> { kept });
        let arrive = |at: usize| requests.arrive(key(1, b"x"), &sinks[at]);
        let RequestArrival::New(first) = arrive(0) else { panic!("it is new") };
        assert!(matches!(arrive(1), RequestArrival::Busy));
        first.end(b"done".to_vec());
        assert!(kept[0].0.lock().is_empty());
        assert_eq!(*kept[1].0.lock(), [b"done".to_vec()]);
        assert!(matches!(arrive(0), RequestArrival::Done(reply) if reply == b"done"));
        let other = requests.arrive(key(1, b"y"), &sinks[0]);
        assert!(matches!(other, RequestArrival::New(_)), "another request with the same number");
    }

    #[test]
    fn what_was_not_ended_may_be_asked_again_and_old_answers_go() {
        let requests = Arc::new(Duplicates::default());
        let sink: Arc<dyn ReplySink> = Arc::new(ReplyRecorder::default());
        drop(requests.arrive(key(0, b""), &sink));
        for xid in 0..40_000 {
            let RequestArrival::New(new) = requests.arrive(key(xid, b""), &sink) else {
                panic!("{xid} is new")
            };
            new.end(Vec::new());
        }
        let mut kept = requests.requests.lock();
        assert!(kept.entries.len() <= ENTRIES_MAX + 1);
        let (address, later) = ([127, 0, 0, 1].into(), Instant::now() + KEPT_TIME + KEPT_TIME);
        kept.drop_old(address, later);
        assert_eq!((kept.entries.len(), kept.done_count, kept.done.len()), (0, 0, 0));
    }

    /// Goal: a busy address displaces only its own replies, and silent addresses keep nothing
    /// beyond the bound (DR2).
    #[test]
    fn an_address_that_asks_much_forgets_its_own_answers() {
        let requests = Arc::new(Duplicates::default());
        let sink: Arc<dyn ReplySink> = Arc::new(ReplyRecorder::default());
        let ask = |key| match requests.arrive(key, &sink) {
            RequestArrival::New(new) => new.end(b"done".to_vec()),
            RequestArrival::Busy | RequestArrival::Done(_) => panic!("each is new"),
        };
        (0..100).for_each(|xid| ask(key_from(2, xid, b"rename")));
        for xid in 0..u32::try_from(2 * ENTRIES_MAX).expect("it is small") {
            ask(key_from(3, xid, b"remove"));
        }
        for xid in 0..100 {
            let again = requests.arrive(key_from(2, xid, b"rename"), &sink);
            assert!(matches!(again, RequestArrival::Done(_)), "{xid} was forgotten");
        }
        let mut kept = requests.requests.lock();
        assert!(kept.done_count <= ENTRIES_MAX && kept.entries.len() == kept.done_count);
        kept.swept = None;
        kept.make_room(Instant::now() + KEPT_TIME + KEPT_TIME);
        assert_eq!((kept.entries.len(), kept.done.len()), (0, 0), "both are long gone");
    }
}

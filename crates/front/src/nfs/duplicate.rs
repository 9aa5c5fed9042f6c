//! Requests that come twice are done once.
//!
//! A client sends a request again when its answer is late or its connection was lost. What reads is
//! done again; what changes is remembered here with its answer (C. Juszczak, *Improving the
//! performance and correctness of an NFS server*, 1989).
//!
//! # Invariants
//! - DR1: A request that is being done is not done a second time: its answer goes to the connection
//!   that asked last.
//! - DR2: At most [`ENTRIES_MAX`] answers are kept, none longer than [`KEPT_TIME`]. Answers to
//!   changes are short, so this is some MiB. When there are too many, the oldest of the address
//!   that has the most go: a client that sends many requests forgets its own answers first.
//!
//! Not here: which requests may have an answer kept (`service`: only those that an export admits).
//!
//! # Crashes
//! All is forgotten: a request that is sent again to a server that has died since is done again.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use runtime::planted::{self, Planted};

use super::handle::HandleKey;
use super::service::ReplySink;

/// How long an answer is kept: longer than a client waits between two tries.
const KEPT_TIME: Duration = Duration::from_secs(120);
/// Most answers that are kept.
const ENTRIES_MAX: usize = 32 << 10;
/// The part of an address's answers that goes at once when there are too many: one of so many, so
/// that the address with the most is looked for once in a while only.
const FORGOTTEN_PART: usize = 8;
/// How often the answers of all addresses are looked through for old ones, when there are too many.
const SWEEP_TIME: Duration = Duration::from_secs(10);
/// Bytes from the front of a request that are summed up.
const SUMMED_BYTES: usize = 512;

/// What tells a request from another. The number alone does not: clients begin anew with theirs.
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
        let front = if planted::is(Planted::DuplicateWithoutChecksum) { &[] } else { front };
        let checksum = HandleKey([0; 16]).hash(front);
        RequestKey { peer, xid, program, procedure, length: record.len(), checksum }
    }
}

/// What is known of a request.
enum Entry {
    /// It is being done, for this connection.
    Busy(Arc<dyn ReplySink>),
    /// It was done, with this answer.
    Done(Vec<u8>),
}

/// What is to be done with a request.
pub(super) enum Arrival {
    /// It is new: do it, and end it.
    New(InProgress),
    /// It is being done.
    Busy,
    /// It was done: this is the answer.
    Done(Vec<u8>),
}

#[derive(Default)]
struct Requests {
    entries: HashMap<RequestKey, Entry>,
    /// Those that are done, by address, the oldest first.
    done: HashMap<IpAddr, VecDeque<(Instant, RequestKey)>>,
    /// How many are done.
    done_count: usize,
    /// When the answers of all addresses were last looked through.
    swept: Option<Instant>,
}

/// The requests of the last time.
#[derive(Default)]
pub(super) struct Duplicates {
    requests: Mutex<Requests>,
}

/// A request that is being done.
pub(super) struct InProgress {
    of: Arc<Duplicates>,
    key: RequestKey,
}

impl Duplicates {
    /// A request has come that `sink` wants the answer of.
    pub(super) fn arrive(
        self: &Arc<Duplicates>,
        key: RequestKey,
        sink: &Arc<dyn ReplySink>,
    ) -> Arrival {
        let mut requests = self.requests.lock();
        requests.drop_old(key.peer.ip(), Instant::now());
        let is_busy = matches!(requests.entries.get(&key), Some(Entry::Busy(_)));
        if is_busy && planted::is(Planted::DuplicateDoneBeside) {
            requests.entries.remove(&key);
        }
        match requests.entries.get_mut(&key) {
            Some(Entry::Done(reply)) => Arrival::Done(reply.clone()),
            Some(Entry::Busy(waiting)) => {
                // DR1: the connection that asked before may be gone.
                std::mem::replace(waiting, Arc::clone(sink)).forgo();
                Arrival::Busy
            }
            None => {
                requests.entries.insert(key, Entry::Busy(Arc::clone(sink)));
                Arrival::New(InProgress { of: Arc::clone(self), key })
            }
        }
    }
}

impl Requests {
    /// DR2: forgets the old answers of an address.
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

    /// Notes that a request was done just now.
    fn note_done(&mut self, key: RequestKey, now: Instant) {
        self.done.entry(key.peer.ip()).or_default().push_back((now, key));
        self.done_count += 1;
        if self.done_count > ENTRIES_MAX {
            self.make_room(now);
        }
    }

    /// DR2: forgets what is old, and answers of the address that has the most.
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

impl InProgress {
    /// The request is done: keeps the answer, and sends it to whoever asked last.
    pub(super) fn end(self, reply: Vec<u8>) {
        let mut requests = self.of.requests.lock();
        let waiting = requests.entries.insert(self.key, Entry::Done(reply.clone()));
        requests.note_done(self.key, Instant::now());
        if planted::is(Planted::DuplicateForgotten) {
            requests.entries.remove(&self.key);
        }
        drop(requests);
        if let Some(Entry::Busy(sink)) = waiting {
            sink.send(reply);
        }
    }
}

impl Drop for InProgress {
    /// What was not ended may be asked again.
    fn drop(&mut self) {
        let mut requests = self.of.requests.lock();
        if matches!(requests.entries.get(&self.key), Some(Entry::Busy(_))) {
            requests.entries.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<Vec<Vec<u8>>>);

    impl ReplySink for Kept {
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
        let kept: [Arc<Kept>; 2] = Default::default();
        let sinks = kept.clone().map(|kept| -> Arc<dyn ReplySink> { kept });
        let arrive = |at: usize| requests.arrive(key(1, b"x"), &sinks[at]);
        let Arrival::New(first) = arrive(0) else { panic!("it is new") };
        assert!(matches!(arrive(1), Arrival::Busy));
        first.end(b"done".to_vec());
        assert!(kept[0].0.lock().is_empty());
        assert_eq!(*kept[1].0.lock(), [b"done".to_vec()]);
        assert!(matches!(arrive(0), Arrival::Done(reply) if reply == b"done"));
        let other = requests.arrive(key(1, b"y"), &sinks[0]);
        assert!(matches!(other, Arrival::New(_)), "another request with the same number");
    }

    #[test]
    fn what_was_not_ended_may_be_asked_again_and_old_answers_go() {
        let requests = Arc::new(Duplicates::default());
        let sink: Arc<dyn ReplySink> = Arc::new(Kept::default());
        drop(requests.arrive(key(0, b""), &sink));
        for xid in 0..40_000 {
            let Arrival::New(new) = requests.arrive(key(xid, b""), &sink) else {
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

    /// Goal: DR2: no address makes the answers to another be forgotten, however many requests it
    /// sends; addresses that have gone leave nothing behind for longer than there is room.
    #[test]
    fn an_address_that_asks_much_forgets_its_own_answers() {
        let requests = Arc::new(Duplicates::default());
        let sink: Arc<dyn ReplySink> = Arc::new(Kept::default());
        let ask = |key| match requests.arrive(key, &sink) {
            Arrival::New(new) => new.end(b"done".to_vec()),
            Arrival::Busy | Arrival::Done(_) => panic!("each is new"),
        };
        (0..100).for_each(|xid| ask(key_from(2, xid, b"rename")));
        for xid in 0..u32::try_from(2 * ENTRIES_MAX).expect("it is small") {
            ask(key_from(3, xid, b"remove"));
        }
        for xid in 0..100 {
            let again = requests.arrive(key_from(2, xid, b"rename"), &sink);
            assert!(matches!(again, Arrival::Done(_)), "{xid} was forgotten");
        }
        let mut kept = requests.requests.lock();
        assert!(kept.done_count <= ENTRIES_MAX && kept.entries.len() == kept.done_count);
        kept.swept = None;
        kept.make_room(Instant::now() + KEPT_TIME + KEPT_TIME);
        assert_eq!((kept.entries.len(), kept.done.len()), (0, 0), "both are long gone");
    }
}

//! Execution of one message: decode, call the server, send the reply.
//!
//! Public for tests, which send arbitrary bytes without a kernel.
//!
//! # Invariants
//!
//! - EX1: A message that needs a reply gets exactly one, whatever its bytes. A panic in the file
//!   system or here fails this request alone, with `EIO`.
//! - EX2: Memory is bounded: the data of one request, or of reads up to [`READS_MAX`] and
//!   [`READ_BYTES_MAX`], and a listing and a head.
//!
//! # Reads and syncs
//!
//! A device serves many reads in the time of one. So a thread passes arrived reads to
//! [`Exchange::gather`] and answers them as a batch. Many syncs share one device write. So the
//! thread that completes a sync also sends its reply.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::decode::{self, Dialect, Envelope, Message};
use super::encode::{
    CacheTimes, DirentBuffer, Encoder, attributes_notice, done_reply, error_reply,
};
use super::fuse_kernel::{OutHeader, opcode};
use super::inbox::Incoming;
use crate::fuse::counts::FuseRequestOrigin;
use crate::fuse::protocol::{FuseRequest, ReadRequest, Reply};
use crate::fuse::server::LockNotice;
use crate::fuse::{FuseCounts, FuseServer};

/// Most bytes of one listing. The kernel usually requests a page, or a program's buffer size.
const LISTING_BYTES_MAX: u32 = 128 << 10;

const READS_MAX: usize = 32;

/// Bytes of reads that complete a batch.
const READ_BYTES_MAX: u32 = 1 << 20;

const BLOCK_BYTES_DEFAULT: u32 = 4096;

/// Receiver of replies.
pub trait Replies: Send + Sync {
    /// Sends a reply. Called from any thread, for a sync from the completing one.
    fn send(&self, reply: &ReplyParts<'_>);

    /// Sends an unsolicited notice, for which the kernel must need no lock that a request may hold.
    fn notify(&self, notice: &[u8]);
}

/// A receiver without a kernel: keeps replies and drops notices.
#[derive(Debug, Default)]
pub struct CollectedReplies(Mutex<Vec<Vec<u8>>>);

impl CollectedReplies {
    /// Removes and returns the replies so far.
    #[must_use]
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Replies for CollectedReplies {
    fn send(&self, reply: &ReplyParts<'_>) {
        self.0.lock().push([reply.head, &reply.data.concat()].concat());
    }

    fn notify(&self, _notice: &[u8]) {}
}

/// Executes messages, one at a time.
pub struct Exchange {
    server: Arc<FuseServer>,
    dialect: Dialect,
    replies: Arc<dyn Replies>,
    encoder: Encoder,
    /// Buffer for listings and attributes. Grows to the largest reply and keeps this size.
    scratch: Vec<u8>,
    /// Gathered reads, and the request id of each.
    reads: Vec<ReadRequest>,
    uniques: Vec<u64>,
    panic_count: u64,
}

/// The parts of a reply, written in one call.
#[derive(Debug)]
pub struct ReplyParts<'r> {
    /// Header and the fixed-size part.
    pub head: &'r [u8],
    /// Data, in consecutive pieces.
    pub data: &'r [&'r [u8]],
}

impl Exchange {
    /// Returns an exchange with `server`, in the message formats before negotiation.
    #[must_use]
    pub fn new(server: Arc<FuseServer>, replies: Arc<dyn Replies>) -> Exchange {
        let dialect = Dialect { has_locks: server.has_locks(), ..Dialect::default() };
        Exchange::with_dialect(server, replies, dialect)
    }

    pub(super) fn with_dialect(
        server: Arc<FuseServer>,
        replies: Arc<dyn Replies>,
        dialect: Dialect,
    ) -> Exchange {
        let told = server.stat_fs().map_or(BLOCK_BYTES_DEFAULT, |told| told.block_bytes);
        let times = if server.viewer().is_some() { CacheTimes::SHARED } else { CacheTimes::ALONE };
        Exchange {
            server,
            dialect,
            replies,
            encoder: Encoder::new(told, times),
            scratch: Vec::new(),
            reads: Vec::new(),
            uniques: Vec::new(),
            panic_count: 0,
        }
    }

    /// Executes `message`, of the length that the kernel sent. The reply to a sync may follow
    /// later.
    pub fn answer(&mut self, message: Incoming<'_>) {
        let Some(envelope) = Envelope::of(message.head) else {
            tracing::error!(bytes = message.length_bytes(), "a message from the kernel is cut off");
            return;
        };
        let Exchange { server, dialect, replies, encoder, scratch, panic_count, .. } = self;
        server.count_answered(1);
        let begun = Instant::now();
        let (server, dialect, head_maker) = (&*server, *dialect, &*encoder);
        // After a panic, a dropped [`LateReply`] replies itself.
        let is_late = Cell::new(false);
        let (note, sender) = (&is_late, &*replies);
        let asked = move || {
            let scratch = scratch;
            let decoded = decode::decode(&envelope, message, dialect);
            note.set(matches!(decoded, Message::Sync { .. } | Message::WaitForLock(_)));
            ask(server, (sender, head_maker), (&envelope, begun), decoded, scratch)
        };
        let reply = match catch_unwind(AssertUnwindSafe(asked)) {
            Ok(RequestOutcome::Answered(reply)) => reply,
            Ok(RequestOutcome::Gathers(read)) => {
                self.reads.push(read);
                self.uniques.push(envelope.unique);
                self.answer_gathered_since(begun);
                return;
            }
            Ok(RequestOutcome::Later) => return,
            Err(_) => {
                *panic_count += 1;
                let opcode = envelope.opcode;
                tracing::error!(
                    opcode,
                    "a request failed by a bug; it gets EIO if it has no answer"
                );
                if envelope.is_silent() || is_late.get() {
                    Reply::Silence
                } else {
                    Reply::Error(Errno::IO)
                }
            }
        };
        if !is_late.get() {
            // Absence of a name or an attribute is an answer, not a failure.
            let is_failed =
                matches!(reply, Reply::Error(it) if it != Errno::NOENT && it != Errno::NODATA);
            let is_write = envelope.opcode == opcode::WRITE && !matches!(reply, Reply::Error(_));
            let bytes = if is_write { message.length_bytes() } else { 0 };
            server.counts().add(&about(&envelope), begun.elapsed(), is_failed, bytes);
        }
        if let Some((head, data)) = encoder.encode(envelope.unique, &reply) {
            let whole = [data];
            let data = if data.is_empty() { &[][..] } else { &whole[..] };
            replies.send(&ReplyParts { head, data });
        }
    }

    /// Runs work that requests deferred until after their reply.
    pub fn run_deferred_work(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.server.run_deferred_work())).is_err() {
            self.panic_count += 1;
            tracing::error!("what a request left to do failed by a bug");
        }
    }

    pub(super) fn has_deferred_work(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.server.has_deferred_work())).unwrap_or(false)
    }

    /// Keeps `message` for [`Exchange::answer_gathered`] if it is a read. Returns whether it is.
    pub fn gather(&mut self, message: Incoming<'_>) -> bool {
        let Some(envelope) = Envelope::of(message.head).filter(Envelope::is_read) else {
            return false;
        };
        let Message::Read(read) = decode::decode(&envelope, message, self.dialect) else {
            return false;
        };
        self.reads.push(read);
        self.uniques.push(envelope.unique);
        true
    }

    /// Returns whether another read may be gathered (EX2).
    #[must_use]
    pub fn has_room(&self) -> bool {
        let bytes = self.reads.iter().map(|read| read.length_bytes).fold(0, u32::saturating_add);
        self.reads.len() < READS_MAX && bytes < READ_BYTES_MAX
    }

    pub(super) fn has_reads(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Answers the gathered reads.
    pub fn answer_gathered(&mut self) {
        self.answer_gathered_since(Instant::now());
    }

    fn answer_gathered_since(&mut self, begun: Instant) {
        let reads = std::mem::take(&mut self.reads);
        let uniques = std::mem::take(&mut self.uniques);
        self.server.count_answered(reads.len().try_into().unwrap_or(0));
        let mut left = self.ask_for((&reads, &uniques), begun);
        if reads.len() > 1 {
            // EX1: repeats the reads one by one, so that a panic fails only the read that causes
            // it.
            let is_left = |index: &usize| {
                let (read, unique) = (&reads[*index..=*index], &uniques[*index..=*index]);
                !self.ask_for((read, unique), begun).is_empty()
            };
            left.retain(is_left);
        }
        for index in left {
            self.server.counts().add(&of_read(&reads[index]), begun.elapsed(), true, 0);
            refuse(&*self.replies, uniques[index], Errno::IO);
        }
        // Keeps the buffers for reuse.
        (self.reads, self.uniques) = (reads, uniques);
        self.reads.clear();
        self.uniques.clear();
    }

    /// Executes and answers `reads`. Returns the indexes of those left unanswered by a panic.
    fn ask_for(
        &mut self,
        (reads, uniques): (&[ReadRequest], &[u64]),
        begun: Instant,
    ) -> Vec<usize> {
        let Exchange { server, replies, encoder, panic_count, .. } = self;
        let mut left: Vec<usize> = (0..reads.len()).collect();
        let asked = || {
            server.read(reads, &mut |index, read| {
                left.retain(|other| *other != index);
                let length = read.map_or(0, |data| data.iter().map(|piece| piece.len()).sum());
                let about = of_read(&reads[index]);
                server.counts().add(&about, begun.elapsed(), read.is_err(), length);
                match read {
                    Ok(data) => {
                        let head = encoder.head_of_data(uniques[index], length);
                        replies.send(&ReplyParts { head, data });
                    }
                    Err(error) => refuse(&**replies, uniques[index], error),
                }
            });
        };
        if catch_unwind(AssertUnwindSafe(asked)).is_err() {
            *panic_count += 1;
            tracing::error!(reads = reads.len(), "a read failed by a bug");
        }
        left
    }

    /// Returns the request counters.
    #[must_use]
    pub fn counts(&self) -> &Arc<FuseCounts> {
        self.server.counts()
    }

    /// Returns the number of requests that failed by a panic.
    #[must_use]
    pub fn panic_count(&self) -> u64 {
        self.panic_count
    }
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("server", &self.server).finish_non_exhaustive()
    }
}

fn about(envelope: &Envelope) -> FuseRequestOrigin {
    FuseRequestOrigin {
        opcode: envelope.opcode,
        node: envelope.node,
        sender: Some(envelope.sender),
    }
}

fn of_read(read: &ReadRequest) -> FuseRequestOrigin {
    FuseRequestOrigin { opcode: opcode::READ, node: read.node, sender: None }
}

pub(super) fn unique_of(head: &[u8]) -> u64 {
    OutHeader::read_from_prefix(head).map_or(0, |(header, _)| header.unique)
}

fn refuse(replies: &dyn Replies, unique: u64, errno: Errno) {
    replies.send(&ReplyParts { head: &refusal(unique, errno), data: &[] });
}

pub(super) fn refusal(unique: u64, errno: Errno) -> Vec<u8> {
    error_reply(unique, errno).as_bytes().to_vec()
}

enum RequestOutcome<'s> {
    Answered(Reply<'s>),
    Gathers(ReadRequest),
    Later,
}

/// The reply to a sync or to a lock that waits, sent exactly once (EX1): on completion, or with
/// `EIO` if it is dropped.
struct LateReply {
    replies: Arc<dyn Replies>,
    unique: u64,
    is_sent: bool,
    /// `None` if the request was counted when it began to wait.
    counted: Option<RequestTimer>,
}

struct RequestTimer {
    counts: Arc<FuseCounts>,
    about: FuseRequestOrigin,
    begun: Instant,
}

impl RequestTimer {
    fn end(&self, is_failed: bool) {
        self.counts.add(&self.about, self.begun.elapsed(), is_failed, 0);
    }
}

impl LateReply {
    fn send(mut self, done: Result<(), Errno>) {
        self.is_sent = true;
        self.count(done.is_err());
        match done {
            Ok(()) => {
                self.replies
                    .send(&ReplyParts { head: done_reply(self.unique).as_bytes(), data: &[] });
            }
            Err(error) => refuse(&*self.replies, self.unique, error),
        }
    }

    fn count(&self, is_failed: bool) {
        if let Some(counted) = &self.counted {
            counted.end(is_failed);
        }
    }
}

impl Drop for LateReply {
    fn drop(&mut self) {
        if !self.is_sent {
            self.count(true);
            tracing::error!(unique = self.unique, "a request failed by a bug; it got EIO");
            refuse(&*self.replies, self.unique, Errno::IO);
        }
    }
}

/// FU9: invalidates attributes before a lock is granted, if another front has changed the file.
/// With them the kernel drops old pages, so the owner reads what an earlier owner wrote.
fn notify_before_lock(replies: &dyn Replies, notice: &LockNotice) {
    notice.send(|| replies.notify(&attributes_notice(notice.node)));
}

fn ask<'s>(
    server: &FuseServer,
    (replies, encoder): (&Arc<dyn Replies>, &Encoder),
    (envelope, begun): (&Envelope, Instant),
    message: Message<'_>,
    scratch: &'s mut Vec<u8>,
) -> RequestOutcome<'s> {
    RequestOutcome::Answered(match message {
        Message::Ask(request @ FuseRequest::CopyRange { source, .. }) => {
            let reply = server.answer(envelope.sender, request, scratch);
            // FU5: a copy updates the source's access time, but the kernel expects only changes of
            // the target. The requesting process holds no lock of the source's attributes
            // meanwhile.
            replies.notify(&attributes_notice(source.0));
            reply
        }
        Message::Ask(FuseRequest::SetLock(lock)) => {
            let reply = server.answer(envelope.sender, FuseRequest::SetLock(lock), scratch);
            if lock.mode.is_some() && reply == Reply::Done {
                notify_before_lock(&**replies, &server.lock_notice(lock.node));
            }
            reply
        }
        Message::Ask(request) => server.answer(envelope.sender, request, scratch),
        Message::Read(read) => return RequestOutcome::Gathers(read),
        Message::Sync { node, data_only } => {
            let (replies, unique) = (Arc::clone(replies), envelope.unique);
            let (counts, about) = (Arc::clone(server.counts()), about(envelope));
            let counted = Some(RequestTimer { counts, about, begun });
            let reply = LateReply { replies, unique, is_sent: false, counted };
            server.sync(node, data_only, |done| reply.send(done));
            return RequestOutcome::Later;
        }
        Message::WaitForLock(lock) => {
            let (replies, unique) = (Arc::clone(replies), envelope.unique);
            let reply = LateReply { replies, unique, is_sent: false, counted: None };
            let notice = server.lock_notice(lock.node);
            server.wait_for_lock(&lock, unique, move |taken| {
                if taken.is_ok() {
                    notify_before_lock(&*reply.replies, &notice);
                }
                reply.send(taken);
            });
            // The time for which it waits for another process says nothing of the server.
            server.counts().add(&about(envelope), begun.elapsed(), false, 0);
            return RequestOutcome::Later;
        }
        Message::Interrupt(unique) => {
            server.interrupt(unique);
            Reply::Silence
        }
        Message::List { node, cookie, with_nodes, keeps_atime, size_bytes } => {
            let bytes_max = usize::try_from(size_bytes.min(LISTING_BYTES_MAX))
                .expect("LISTING_BYTES_MAX fits in a usize");
            let mut listing = DirentBuffer::new(scratch, bytes_max, with_nodes, encoder);
            let listing = &mut listing;
            let request = FuseRequest::ReadDir { node, cookie, with_nodes, keeps_atime, listing };
            if let Reply::Error(error) = server.answer(envelope.sender, request, &mut Vec::new()) {
                return RequestOutcome::Answered(Reply::Error(error));
            }
            Reply::Data(scratch)
        }
        Message::Forget(forgets) => {
            for (node, count) in forgets {
                let request = FuseRequest::Forget { node, count };
                server.answer(envelope.sender, request, &mut Vec::new());
            }
            Reply::Silence
        }
        Message::Ignore => Reply::Silence,
        Message::Nothing => Reply::Done,
        Message::Refuse(error) => Reply::Error(error),
    })
}

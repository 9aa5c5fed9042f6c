//! One message in, one reply out: what happens between a read from the kernel and a write to it.
//!
//! Public, because it is tested with bytes of any sort, without a kernel.
//!
//! # Invariants
//!
//! - EX1: A message that has a reply gets exactly one, whatever it says and whatever happens: a
//!   panic in the file system, or here, costs this request (`EIO`) and nothing else.
//! - EX2: Memory is bounded: data of one request, or of reads up to [`READS_MAX`] and
//!   [`READ_BYTES_MAX`]; a listing, and a head.
//!
//! # Reads
//!
//! A read usually waits for a device, which answers many in the time of one. So a reader of
//! messages that has more than one at hand gives the reads among them to [`Exchange::gather`], and
//! has them answered together.
//!
//! # Syncs
//!
//! A sync usually waits for a device too, and many take one write. So it is answered when it is
//! over, by whoever learns that, and the thread that asked goes on to the next message.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::decode::{self, Dialect, Envelope, Message};
use super::encode::{DirentBuffer, Encoder, KeepTimes, attributes_notice, done_reply, error_reply};
use super::fuse_kernel::{OutHeader, opcode};
use super::inbox::Incoming;
use crate::fuse::counts::About;
use crate::fuse::protocol::{ReadRequest, Reply, Request};
use crate::fuse::{FuseCounts, Server};

/// Most bytes of one listing: what the kernel asks for is usually a page, or what a program's
/// buffer holds.
const LISTING_BYTES_MAX: u32 = 128 << 10;

/// Most reads that are answered together.
const READS_MAX: usize = 32;

/// Bytes of reads from which on no other is answered with them.
const READ_BYTES_MAX: u32 = 1 << 20;

/// The unit that stat(2) reports where the file system does not say.
const BLOCK_BYTES_DEFAULT: u32 = 4096;

/// Where replies go.
pub trait Replies: Send + Sync {
    /// Sends a reply. Called from any thread: a sync is answered by whoever learns that it is over.
    fn send(&self, reply: &ReplyParts<'_>);

    /// Sends what nobody has asked for. It must be nothing for which the kernel takes a lock that a
    /// request may hold.
    fn notify(&self, notice: &[u8]);
}

/// Keeps replies where there is no kernel to take them, and drops what nobody has asked for.
#[derive(Debug, Default)]
pub struct KeptReplies(Mutex<Vec<Vec<u8>>>);

impl KeptReplies {
    /// Takes out the replies that have come, each whole.
    #[must_use]
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Replies for KeptReplies {
    fn send(&self, reply: &ReplyParts<'_>) {
        self.0.lock().push([reply.head, &reply.data.concat()].concat());
    }

    fn notify(&self, _notice: &[u8]) {}
}

/// Answers messages, one at a time.
pub struct Exchange {
    server: Arc<Server>,
    dialect: Dialect,
    replies: Arc<dyn Replies>,
    encoder: Encoder,
    /// Names listed, or attributes. Grows to the largest reply and stays.
    scratch: Vec<u8>,
    /// Reads that are to be answered together, and which reply belongs to each.
    reads: Vec<ReadRequest>,
    uniques: Vec<u64>,
    panic_count: u64,
}

/// The parts of a reply, to be written at once.
#[derive(Debug)]
pub struct ReplyParts<'r> {
    /// Header and what has a fixed size.
    pub head: &'r [u8],
    /// Data, in pieces that follow one another.
    pub data: &'r [&'r [u8]],
}

impl Exchange {
    /// Returns an exchange with `server` in which messages look as they do without anything
    /// negotiated.
    #[must_use]
    pub fn new(server: Arc<Server>, replies: Arc<dyn Replies>) -> Exchange {
        Exchange::with_dialect(server, replies, Dialect::default())
    }

    pub(super) fn with_dialect(
        server: Arc<Server>,
        replies: Arc<dyn Replies>,
        dialect: Dialect,
    ) -> Exchange {
        let told = server.stat_fs().map_or(BLOCK_BYTES_DEFAULT, |told| told.block_bytes);
        let times = if server.viewer().is_some() { KeepTimes::SHARED } else { KeepTimes::ALONE };
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

    /// Answers `message`, as long as the kernel sent it; a sync perhaps later.
    pub fn answer(&mut self, message: Incoming<'_>) {
        let Some(envelope) = Envelope::of(message.head) else {
            tracing::error!(bytes = message.length_bytes(), "a message from the kernel is cut off");
            return;
        };
        let Exchange { server, dialect, replies, encoder, scratch, panic_count, .. } = self;
        server.count_answered(1);
        let begun = Instant::now();
        let (server, dialect, head_maker) = (&*server, *dialect, &*encoder);
        // Whoever has the reply to a sync sends it, whatever happens.
        let is_sync = Cell::new(false);
        let (note, sender) = (&is_sync, &*replies);
        let asked = move || {
            let scratch = scratch;
            let decoded = decode::decode(&envelope, message, dialect);
            note.set(matches!(decoded, Message::Sync { .. }));
            ask(server, (sender, head_maker), (&envelope, begun), decoded, scratch)
        };
        let reply = match catch_unwind(AssertUnwindSafe(asked)) {
            Ok(Asked::Answered(reply)) => reply,
            Ok(Asked::Gathers(read)) => {
                self.reads.push(read);
                self.uniques.push(envelope.unique);
                self.answer_gathered_since(begun);
                return;
            }
            Ok(Asked::Later) => return,
            Err(_) => {
                *panic_count += 1;
                let opcode = envelope.opcode;
                tracing::error!(
                    opcode,
                    "a request failed by a bug; it gets EIO if it has no answer"
                );
                if envelope.is_silent() || is_sync.get() {
                    Reply::Silence
                } else {
                    Reply::Error(Errno::IO)
                }
            }
        };
        if !is_sync.get() {
            let is_failed = matches!(reply, Reply::Error(_));
            server.counts().add(&about(&envelope), begun.elapsed(), is_failed);
        }
        if let Some((head, data)) = encoder.encode(envelope.unique, &reply) {
            let whole = [data];
            let data = if data.is_empty() { &[][..] } else { &whole[..] };
            replies.send(&ReplyParts { head, data });
        }
    }

    /// Does what was put off so that the last reply could go out.
    pub fn run_deferred_work(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.server.run_deferred_work())).is_err() {
            self.panic_count += 1;
            tracing::error!("what a request left to do failed by a bug");
        }
    }

    /// Returns whether requests have put anything off.
    pub(super) fn has_deferred_work(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.server.has_deferred_work())).unwrap_or(false)
    }

    /// Keeps what `message` asks, if that is a read, to be answered by
    /// [`Exchange::answer_gathered`]; returns whether it is one.
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

    /// Returns whether reads are gathered and not answered.
    pub(super) fn has_reads(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Answers the reads that were gathered.
    pub fn answer_gathered(&mut self) {
        self.answer_gathered_since(Instant::now());
    }

    fn answer_gathered_since(&mut self, begun: Instant) {
        let reads = std::mem::take(&mut self.reads);
        let uniques = std::mem::take(&mut self.uniques);
        self.server.count_answered(reads.len().try_into().unwrap_or(0));
        let mut left = self.ask_for((&reads, &uniques), begun);
        if reads.len() > 1 {
            // EX1: a bug costs one of them, and nobody knows which.
            let is_left = |index: &usize| {
                let (read, unique) = (&reads[*index..=*index], &uniques[*index..=*index]);
                !self.ask_for((read, unique), begun).is_empty()
            };
            left.retain(is_left);
        }
        for index in left {
            self.server.counts().add(&of_read(&reads[index]), begun.elapsed(), true);
            refuse(&*self.replies, uniques[index], Errno::IO);
        }
        // Their memory serves again.
        (self.reads, self.uniques) = (reads, uniques);
        self.reads.clear();
        self.uniques.clear();
    }

    /// Asks for `reads`, and answers them; returns the numbers of those that were not answered,
    /// because of a bug.
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
                server.counts().add(&of_read(&reads[index]), begun.elapsed(), read.is_err());
                match read {
                    Ok(data) => {
                        let length = data.iter().map(|piece| piece.len()).sum();
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

    /// Returns what was answered, by operation.
    #[must_use]
    pub fn counts(&self) -> &Arc<FuseCounts> {
        self.server.counts()
    }

    /// Returns how many requests failed by a bug.
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

/// Returns what is counted of a message.
fn about(envelope: &Envelope) -> About {
    About { opcode: envelope.opcode, node: envelope.node, sender: Some(envelope.sender) }
}

/// Returns the same of a read, which is perhaps answered with others.
fn of_read(read: &ReadRequest) -> About {
    About { opcode: opcode::READ, node: read.node, sender: None }
}

/// Returns the number of the request that a reply belongs to.
pub(super) fn unique_of(head: &[u8]) -> u64 {
    OutHeader::read_from_prefix(head).map_or(0, |(header, _)| header.unique)
}

/// Answers the request `unique` with an error.
fn refuse(replies: &dyn Replies, unique: u64, errno: Errno) {
    replies.send(&ReplyParts { head: &refusal(unique, errno), data: &[] });
}

/// Returns the bytes of an error's reply to the request `unique`.
pub(super) fn refusal(unique: u64, errno: Errno) -> Vec<u8> {
    error_reply(unique, errno).as_bytes().to_vec()
}

/// What became of a message.
enum Asked<'s> {
    Answered(Reply<'s>),
    /// It is a read, and those are asked for together.
    Gathers(ReadRequest),
    /// It is a sync, which is answered when it is over.
    Later,
}

/// The reply to a sync, which goes out once (EX1): when somebody tells how it ended, or when nobody
/// will any more.
struct SyncReply {
    replies: Arc<dyn Replies>,
    unique: u64,
    is_sent: bool,
    counted: Counted,
}

/// What is counted when a sync is over.
struct Counted {
    counts: Arc<FuseCounts>,
    about: About,
    begun: Instant,
}

impl Counted {
    fn end(&self, is_failed: bool) {
        self.counts.add(&self.about, self.begun.elapsed(), is_failed);
    }
}

impl SyncReply {
    fn send(mut self, done: Result<(), Errno>) {
        self.is_sent = true;
        self.counted.end(done.is_err());
        match done {
            Ok(()) => {
                self.replies
                    .send(&ReplyParts { head: done_reply(self.unique).as_bytes(), data: &[] });
            }
            Err(error) => refuse(&*self.replies, self.unique, error),
        }
    }
}

impl Drop for SyncReply {
    fn drop(&mut self) {
        if !self.is_sent {
            self.counted.end(true);
            tracing::error!(unique = self.unique, "a sync failed by a bug; it got EIO");
            refuse(&*self.replies, self.unique, Errno::IO);
        }
    }
}

fn ask<'s>(
    server: &Server,
    (replies, encoder): (&Arc<dyn Replies>, &Encoder),
    (envelope, begun): (&Envelope, Instant),
    message: Message<'_>,
    scratch: &'s mut Vec<u8>,
) -> Asked<'s> {
    Asked::Answered(match message {
        Message::Ask(request @ Request::CopyRange { source, .. }) => {
            let reply = server.answer(envelope.sender, request, scratch);
            // FU5: the kernel believes that a copy changes its target alone. Whoever waits for the
            // reply holds no lock of the source's attributes.
            replies.notify(&attributes_notice(source.0));
            reply
        }
        Message::Ask(request) => server.answer(envelope.sender, request, scratch),
        Message::Read(read) => return Asked::Gathers(read),
        Message::Sync { node, data_only } => {
            let (replies, unique) = (Arc::clone(replies), envelope.unique);
            let (counts, about) = (Arc::clone(server.counts()), about(envelope));
            let counted = Counted { counts, about, begun };
            let reply = SyncReply { replies, unique, is_sent: false, counted };
            server.sync(node, data_only, |done| reply.send(done));
            return Asked::Later;
        }
        Message::List { node, cookie, with_nodes, keeps_atime, size_bytes } => {
            let bytes_max = usize::try_from(size_bytes.min(LISTING_BYTES_MAX))
                .expect("LISTING_BYTES_MAX fits in a usize");
            let mut listing = DirentBuffer::new(scratch, bytes_max, with_nodes, encoder);
            let listing = &mut listing;
            let request = Request::ReadDir { node, cookie, with_nodes, keeps_atime, listing };
            if let Reply::Error(error) = server.answer(envelope.sender, request, &mut Vec::new()) {
                return Asked::Answered(Reply::Error(error));
            }
            Reply::Data(scratch)
        }
        Message::Forget(forgets) => {
            for (node, count) in forgets {
                let request = Request::Forget { node, count };
                server.answer(envelope.sender, request, &mut Vec::new());
            }
            Reply::Silence
        }
        Message::Ignore => Reply::Silence,
        Message::Nothing => Reply::Done,
        Message::Refuse(error) => Reply::Error(error),
    })
}
